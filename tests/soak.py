"""A random soak on a GPU: several streams and graphs at once, every result checked by bits against the CPU.

python tests/soak.py --minutes 10

Each round draws reductions at random (op, dtype, shape, strides, dims, rung, sizes of the launch), computes them on the
CPU, then runs them all at once: as eager calls and as replayed graphs, on several streams, beside a matrix product that
keeps the chip busy. A result that differs is printed with what it takes to repeat it, and the exit status is 1.
"""

import argparse
import dataclasses
import math
import random
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import cases
import tables
import torch
from bits import same_bits
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

SIZES = (
    1,
    2,
    3,
    4,
    5,
    7,
    8,
    16,
    17,
    31,
    33,
    64,
    100,
    127,
    128,
    129,
    257,
    768,
    1000,
    1024,
    1025,
    2049,
    5003,
    50_257,
    300_007,
)


@dataclasses.dataclass
class Work:
    """One reduction: what it is, its input on the GPU, and the CPU's result."""

    what: str
    call: object
    expected: torch.Tensor
    graph: torch.cuda.CUDAGraph | None = None
    result: torch.Tensor | None = None


def random_view(rng: random.Random, x: torch.Tensor, elements: int) -> torch.Tensor:
    """x, sliced, stepped, expanded and permuted; `elements` bounds what an expanded dim may come to."""
    for dim in range(x.dim()):
        choice = rng.randrange(8)
        if choice == 0 and x.shape[dim] > 2:
            x = x.narrow(dim, rng.randrange(2), x.shape[dim] - rng.randint(1, 2))
        elif choice == 1:
            x = x[(slice(None),) * dim + (slice(None, None, rng.randint(2, 3)),)]
        elif choice == 2 and x.shape[dim] == 1 and x.numel() * 40 < elements:
            x = x.expand(*x.shape[:dim], rng.randint(2, 40), *x.shape[dim + 1 :])
    return x.permute(rng.sample(range(x.dim()), x.dim())) if rng.randrange(2) else x


def random_work(rng: random.Random, elements: int) -> Work | None:
    """None where the rung that was drawn refuses the geometry."""
    dtype = rng.choice(cases.EVERY_DTYPE)
    variants = [v for v in tables.REDUCE_VARIANTS if v.deterministic and tables.can_run(tuple(v.capability))]
    variant = rng.choice([*variants, *[tables.row("sum", "auto")] * 6])
    ops = [op for op in cases.REDUCTIONS if tables.takes(variant, op, dtype)]
    shape = [rng.choice(SIZES) for _ in range(rng.randint(1, 5))]
    while math.prod(shape) > elements or (variant.name == "serial" and math.prod(shape) > 10_000):
        shape[rng.randrange(len(shape))] = rng.choice(SIZES[:12])
    if not ops:
        return None
    op, seed, offset = rng.choice(ops), rng.randrange(1000), rng.randrange(17)
    kind = rng.choice(("normal", "uniform", "wide" if dtype.itemsize >= 4 else "normal"))
    memory = cases.values(math.prod(shape) + offset, dtype, kind, seed)
    state = rng.getstate()
    views = []
    for device in ("cpu", "cuda"):
        rng.setstate(state)  # the same view of both
        views.append(random_view(rng, memory.to(device)[offset:].view(shape), elements))
    arguments = {}
    if variant in tables.ALONG_DIMS and rng.randrange(4):
        arguments["dim"] = tuple(rng.sample(range(len(shape)), rng.randint(1, len(shape))))
        arguments["keepdim"] = bool(rng.randrange(2))
    if variant.sizes and not rng.randrange(3):
        arguments["block_size"] = rng.choice(variant.sizes)
    if variant.takes_num_blocks and not rng.randrange(3):
        arguments["num_blocks"] = rng.choice((1, 2, 7, 66, 132, 500))
    here, there = views
    if there.numel() == 0:
        return None
    if tables.attempt(op, there, variant, **arguments) is None:
        return None
    expected = tables.call(op, here, variant.name, **arguments)
    what = f"{op} of {shape}+{offset} as {tuple(there.shape)} by {there.stride()} {dtype} {kind} {seed} "
    return Work(
        f"{what}{variant.name} {arguments}", lambda: tables.call(op, there, variant.name, **arguments), expected
    )


def capture(work: Work) -> None:
    work.graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(work.graph):
        work.result = work.call()


def run_round(works: list[Work], streams: list, load: torch.Tensor, repeats: int) -> list[tuple[Work, torch.Tensor]]:
    """Everything at once, `repeats` times. Returns every result with the work that it is of."""
    results = []
    torch.cuda.synchronize()
    with torch.cuda.stream(streams[0]):
        for _ in range(repeats):
            load = (load @ load).clamp_(-1, 1)
    for _ in range(repeats):
        for i, work in enumerate(works):
            # A graph stays on its stream: two replays of one graph share its result.
            with torch.cuda.stream(streams[1 + i % (len(streams) - 1)]):
                if work.graph is None:
                    results.append((work, work.call()))
                else:
                    work.graph.replay()
                    results.append((work, work.result.clone()))
    torch.cuda.synchronize()
    return results


def main() -> int:
    """Runs rounds until the time is up; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--elements", type=int, default=2_000_000, help="of the largest input")
    given = parser.parse_args()
    console = Console()
    if not torch.cuda.is_available():
        console.print("no CUDA device")
        return 1
    streams = [torch.cuda.Stream() for _ in range(given.streams + 1)]
    load = torch.randn(2048, 2048, device="cuda")
    rng = random.Random(given.seed)
    checked, rounds, wrong, said = 0, 0, [], 0
    began = time.monotonic()
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TimeElapsedColumn(),
        TextColumn("of {task.fields[minutes]} min"),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("soak", total=given.minutes * 60, minutes=given.minutes)
        while (elapsed := time.monotonic() - began) < given.minutes * 60:
            works = [work for _ in range(40) if (work := random_work(rng, given.elements)) is not None]
            for work in works[::2]:
                capture(work)
            for work, result in run_round(works, streams, load, repeats=5):
                checked += 1
                if not same_bits(result, work.expected) and work not in wrong:
                    wrong.append(work)
                    console.print(f"[red]wrong[/] (seed {given.seed}, round {rounds}) {work.what}", highlight=False)
            rounds += 1
            so_far = f"{rounds} rounds, {checked} results, {len(wrong)} wrong"
            progress.update(task, completed=elapsed, description=so_far)
            if not console.is_terminal and elapsed >= (said + 1) * 60:
                said = int(elapsed // 60)
                console.print(f"{said} min: {so_far}", highlight=False)
                console.file.flush()  # what a log says when the machine is taken away
    console.print(f"{rounds} rounds, {checked} results checked by bits, {len(wrong)} reductions wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
