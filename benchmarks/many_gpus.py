"""Times torch_reduce.distributed beside torch.distributed and DTensor, a process a GPU; `run.py --suite distributed`.

A sample is a number of calls one after another, from a barrier until the device is done: it counts what the host does,
too. The samples of all candidates are interleaved; of the ranks' times the longest counts. Results are compared with
one GPU's bits before they are timed.
"""

import os
import queue
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from torch.distributed.tensor import DTensor, Replicate, Shard, init_device_mesh

import torch_reduce
import torch_reduce.distributed
from torch_reduce import bench
from torch_reduce.distributed._tree import CHUNK

SAMPLE_SECONDS, SAMPLES = 0.02, 9
BYTES = tuple(1 << p for p in (10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30))
"""Of a tensor on each rank, for the collectives."""
SHAPES: tuple[tuple[tuple[int, ...], int, int | None], ...] = (
    # shape, the dim that is sharded, the dim that is summed
    ((1 << 8,), 0, None),
    ((1 << 14,), 0, None),
    ((1 << 20,), 0, None),
    ((1 << 24,), 0, None),
    ((1 << 28,), 0, None),
    (((1 << 24) + 4321,), 0, None),  # a chunk is cut
    (((1 << 28) + 4321,), 0, None),
    ((16384, 16384), 0, 0),
    ((16384, 16384), 1, 1),
    ((16384, 16384), 0, 1),  # each rank has whole rows
    ((16384, 16384), 0, None),
    ((16384, 16384), 1, None),
    ((10001, 16384), 0, 0),  # a chunk of each column is cut
    ((10500, 16384), 0, 0),  # the second rank has more of it
    ((65536, 1024), 0, 0),
)


def timed(calls: dict[str, Callable[[], Any]], device: torch.device, smoke: bool) -> dict[str, list[float]]:
    """Microseconds a call: median and quartiles of the slowest rank."""

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    def sample(call: Callable[[], Any], number: int) -> float:
        wait()
        dist.barrier()
        start = time.perf_counter()
        for _ in range(number):
            call()
        wait()
        taken = torch.tensor([(time.perf_counter() - start) / number], dtype=torch.float64, device=device)
        dist.all_reduce(taken, dist.ReduceOp.MAX)
        return taken.item()

    numbers = {}
    for name, call in calls.items():
        sample(call, 3)  # to start communicators and fill caches
        numbers[name] = 1 if smoke else max(1, min(1000, int(SAMPLE_SECONDS / sample(call, 3))))
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(2 if smoke else SAMPLES):
        for name, call in calls.items():
            taken[name].append(sample(call, numbers[name]) * 1e6)
    found = {}
    for name, samples in taken.items():
        q1, median, q3 = bench.quartiles(samples)
        found[name] = [float(f"{v:.5g}") for v in (median, q1, q3)]
    return found


def row(what: dict[str, Any], calls: dict[str, Callable[[], Any]], device: torch.device, smoke: bool) -> dict[str, Any]:
    us = timed(calls, device, smoke)
    ours = us["torch_reduce"][0]
    return {
        **what,
        "us": us,
        "x": {name: float(f"{v[0] / ours:.4g}") for name, v in us.items() if name != "torch_reduce"},
    }


def collectives(device: torch.device, smoke: bool) -> Iterator[dict[str, Any]]:
    ranks, rank = dist.get_world_size(), dist.get_rank()
    for size in BYTES[:3] if smoke else BYTES:
        for dtype in (torch.float32, torch.bfloat16):
            count = size // dtype.itemsize // ranks * ranks
            each = [torch.randn(count, device=device).to(dtype) for _ in range(ranks)]
            expected = torch_reduce.sum(torch.stack(each), 0)
            x = each[rank].clone()
            right = bool(torch.equal(torch_reduce.distributed.all_reduce(x), expected))
            part = torch_reduce.distributed.reduce_scatter(each[rank])
            right &= bool(torch.equal(part, expected.chunk(ranks)[rank]))
            x, out = torch.zeros_like(each[rank]), torch.empty_like(part)  # sums of zeros stay finite
            about = {"dtype": str(dtype).removeprefix("torch."), "bytes": size, "wrong": not right}
            yield row(
                {"op": "all_reduce", **about},
                {
                    "torch_reduce": lambda x=x: torch_reduce.distributed.all_reduce(x),
                    "torch": lambda x=x: dist.all_reduce(x),
                },
                device,
                smoke,
            )
            yield row(
                {"op": "reduce_scatter", **about},
                {
                    "torch_reduce": lambda x=x: torch_reduce.distributed.reduce_scatter(x),
                    "torch": lambda x=x, out=out: dist.reduce_scatter_tensor(out, x),
                },
                device,
                smoke,
            )


def cut_chunks(length: int, ranks: int, rank: int) -> tuple[list[slice], list[int], list[int]]:
    """The entries of this rank that others need for their chunks, and how many it takes from each and gives to each.

    The fewer entries of a chunk that is cut go to the rank that has more of it.
    """
    part = -(-length // ranks)
    moved, take, give = [], [0] * ranks, [0] * ranks
    for left in range(ranks - 1):
        cut = (left + 1) * part
        before, after = cut % CHUNK, min(-cut % CHUNK, length - cut)
        giver, taker, count = (left, left + 1, before) if before <= after else (left + 1, left, after)
        if rank == giver:
            give[taker] = count
            moved.append(slice(part - count, part) if giver == left else slice(count))
        if rank == taker:
            take[giver] = count
    return moved, take, give


def sharded_sums(device: torch.device, smoke: bool) -> Iterator[dict[str, Any]]:
    ranks, rank = dist.get_world_size(), dist.get_rank()
    mesh = init_device_mesh(device.type, (ranks,))
    for shape, cut, dim in SHAPES[:2] if smoke else SHAPES:
        torch.manual_seed(0)
        whole = torch.randn(shape, device=device)
        expected = torch_reduce.sum(whole, dim)
        local = whole.chunk(ranks, cut)[rank].contiguous()
        x = DTensor.from_local(local, mesh, [Shard(cut)], shape=whole.shape, stride=whole.stride())
        del whole
        right = bool(torch.equal(torch_reduce.sum(x, dim).full_tensor(), expected))
        nodes = torch_reduce.sum(local, dim)
        gathered = nodes.new_empty((ranks, *nodes.shape))

        def floor(local=local, dim=dim, nodes=nodes, gathered=gathered, apart=dim is not None and dim != cut) -> None:
            torch_reduce.sum(local, dim)
            if not apart:
                dist.all_gather_into_tensor(gathered.view(-1), nodes.view(-1))

        def theirs(x=x, dim=dim) -> None:
            total = x.sum() if dim is None else x.sum(dim)
            if total.placements[0].is_partial():  # what ours has added already
                total.redistribute(placements=[Replicate()])

        calls = {
            "torch_reduce": lambda x=x, dim=dim: torch_reduce.sum(x, dim),
            "DTensor": theirs,
            "local sum and all_gather": floor,
        }
        if dim == cut == 0 and len(shape) > 1 and -(-shape[0] // ranks) % CHUNK > 0:
            moved, take, give = cut_chunks(shape[0], ranks, rank)
            sent = torch.cat([local[:0], *(local[entries] for entries in moved)])
            taken = local.new_empty((sum(take), *shape[1:]))

            def crossing(floor=floor, taken=taken, sent=sent, take=take, give=give) -> None:
                dist.all_to_all_single(taken, sent, take, give)
                floor()

            calls["these and the cut chunk"] = crossing
        about = {"op": "sum", "dtype": "float32", "shape": list(shape), "sharded": cut, "dim": dim}
        yield row({**about, "wrong": not right}, calls, device, smoke)
        del x, local


def work(rank: int, ranks: int, kind: str, folder: str, smoke: bool, answers: Any) -> None:
    """What each process does."""
    device = torch.device(kind, rank) if kind == "cuda" else torch.device(kind)
    if kind == "cuda":
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(1)
    backend = "nccl" if kind == "cuda" else "gloo"
    dist.init_process_group(backend, init_method=f"file://{folder}/ranks", rank=rank, world_size=ranks)
    for part in (collectives, sharded_sums):
        torch.manual_seed(0)
        for found in part(device, smoke):
            wrong = torch.tensor([float(found.pop("wrong"))], device=device)
            dist.all_reduce(wrong)
            if rank == 0:
                answers.put({**found, **({"wrong": True} if wrong.item() else {})})
    if rank == 0:
        answers.put(None)
    dist.barrier()
    dist.destroy_process_group()


def measure(
    device: torch.device, smoke: bool, step: Callable[[str], None], save: Callable[[dict[str, Any]], None]
) -> dict[str, Any]:
    """The data of the suite, from a process for each GPU, or from two on a CPU. It is saved after each row."""
    ranks = torch.cuda.device_count() if device.type == "cuda" else 2
    settings = {name: value for name, value in os.environ.items() if name.startswith("NCCL_")}
    nccl = ".".join(map(str, torch.cuda.nccl.version())) if device.type == "cuda" else None
    head = {"ranks": ranks, "nccl": nccl, "nccl_settings": settings}
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        started = multiprocessing.spawn(
            work, (ranks, device.type, folder, smoke, answers), nprocs=ranks, join=False, daemon=True
        )
        while True:
            try:
                found = answers.get(timeout=1)
            except queue.Empty:
                started.join(timeout=0)  # raises where a process failed
                continue
            if found is None:
                break
            rows.append(found)
            save({**head, "sharded": rows})
            step(f"{found['op']} {found['dtype']} {found.get('bytes', found.get('shape'))}")
        while not started.join():
            pass
    return {**head, "sharded": rows}
