"""Runs every rung at small sizes, for compute-sanitizer (`make sanitize`): one process, results checked by bits.

compute-sanitizer --tool memcheck python tests/sanitize.py
"""

import argparse
import itertools
import os
import sys
from pathlib import Path

# Every allocation its own: memcheck and initcheck then see where each tensor begins and ends, and which were written.
os.environ.setdefault("PYTORCH_NO_CUDA_MEMORY_CACHING", "1")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

import torch_reduce
from torch_reduce import _check

LENGTHS = (0, 1, 2, 31, 33, 255, 1025, 5003)
DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int8, torch.bool)
OPS = ("sum", "mean", "amax", "amin")
ops = torch.ops.treduce


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.cpu().contiguous().view(-1).view(torch.uint8), b.cpu().contiguous().view(-1).view(torch.uint8))


def is_slow(tool: str) -> bool:
    """racecheck follows every access to shared memory, which takes minutes for all of them."""
    return tool == "racecheck"


def block_sizes(variant: torch_reduce.Variant) -> list[dict]:
    sizes = sorted({variant.size_min, variant.size_default, variant.size_max} - {0})
    return [{"block_size": size} for size in sizes] or [{}]


def reductions(failures: list[str], tool: str) -> int:
    count, few = 0, is_slow(tool)
    for variant in torch_reduce.variants("sum"):
        if variant.along_dims and variant.order == "pairwise" and variant.name != "auto":
            continue  # for certain rows and columns: see below
        for dtype in (torch.float32, torch.int8) if few else DTYPES:
            for n in (33, 1025, 5003) if few else LENGTHS:
                # Slices: a poisoned element on either side, and a pointer that is not 16-byte aligned.
                x = (torch.randn(n + 2) * 9).to(dtype)[1 : n + 1]
                y = x.cuda()
                for op in ("sum", "amax") if few else OPS:
                    if (op == "mean" and not dtype.is_floating_point) or (n == 0 and op in ("amax", "amin")):
                        continue
                    for sizes in block_sizes(variant):
                        got = getattr(ops, op)(y, variant.name, **sizes)
                        count += 1
                        exact = variant.deterministic or op in ("amax", "amin") or not dtype.is_floating_point
                        if exact and not same_bits(got, getattr(ops, op)(x, variant.name, **sizes)):
                            failures.append(f"{op} {variant.name} {dtype} n={n} {sizes}")
    return count


# Rows, columns, middle dims and several, contiguous and not: enough for every way of reading and of sharing the work.
GEOMETRIES = (
    ((37, 3), 1, lambda x: x),
    ((37, 64), 1, lambda x: x),
    ((5, 1030), 1, lambda x: x),
    ((2, 9001), 1, lambda x: x),
    ((3, 5), 0, lambda x: x),
    ((1030, 5), 0, lambda x: x),
    ((300, 40), 0, lambda x: x),
    ((9001, 3), 0, lambda x: x),
    ((3, 130, 6), 1, lambda x: x),
    ((4, 3, 50), (0, 2), lambda x: x),
    ((40, 33), 1, lambda x: x.t()),
    ((40, 70), 1, lambda x: x[:, 1:60:2]),
    ((1, 50), 0, lambda x: x.expand(40, 50)),
    ((2, 0, 3), 1, lambda x: x),
    ((70, 4), 1, lambda x: x),
    ((70, 7), 1, lambda x: x),
    ((5000, 24), 0, lambda x: x),
    ((5000, 5), 0, lambda x: x),
    ((70, 600), 1, lambda x: x),
    ((200, 64), 0, lambda x: x),
)


def along_dims(failures: list[str], tool: str) -> int:
    count, few = 0, is_slow(tool)
    for variant in (v for v in torch_reduce.variants("sum") if v.along_dims):
        if tool == "racecheck" and variant.name == "row_cluster":
            continue  # it does not know what one block of a cluster writes to another before their barrier
        dtypes = (*DTYPES, torch.float8_e4m3fn, torch.complex64)
        for dtype in (torch.float32, torch.int8) if few else dtypes:
            for (shape, dim, view), offset in itertools.product(GEOMETRIES[1::3] if few else GEOMETRIES, (0, 1)):
                # One element in: a pointer that is not 16-byte aligned.
                x = (torch.randn(torch.Size(shape).numel() + offset) * 9).to(dtype)
                here, there = view(x[offset:].view(shape)), view(x.cuda()[offset:].view(shape))
                extrema = () if 0 in shape or dtype.is_complex else ("amax",)
                for op in ("sum", *extrema):
                    for blocks in (None, 1, 3):
                        try:
                            got = getattr(ops, op)(there, variant.name, dim=dim, num_blocks=blocks)
                        except ValueError:  # a geometry that the rung does not take
                            continue
                        count += 1
                        if not same_bits(got, getattr(ops, op)(here, variant.name, dim=dim)):
                            failures.append(f"{op} {variant.name} {dtype} {shape} along {dim} num_blocks={blocks}")
    return count


def blind(tool: str, rung: str, dtype: torch.dtype, m: int, n: int) -> bool:
    """Whether the tool cannot see what a rung does, and reports what is right."""
    # What the copy engine stores counts as never written. Scales and flags are read in runs of lines, of which those
    # past the last are never written: what comes of them is not stored.
    unwritten = rung == "split_fp16" or (rung == "persistent" and dtype.itemsize == 2 and n % 8 == 0)
    # One lane of a warp arrives at a barrier for all, behind a barrier of the warp: what the other 31 read and wrote
    # counts as not ordered. (What persistent's warps release so is read by tensor cores, which it does not follow.)
    passes_sums = rung == "split_fp16" and m <= 128
    return {"initcheck": unwritten, "racecheck": passes_sums}.get(tool, False)


def products(failures: list[str], tool: str) -> int:
    count = 0
    capability = torch.cuda.get_device_capability()
    for variant in torch_reduce.variants("matmul"):
        if not variant.runs_on(capability):
            continue
        for dtype in (getattr(torch, name) for name in variant.dtypes):
            shapes = [(1, 1, 1), (0, 3, 2), (5, 7, 0), (33, 17, 9), (40, 65, 31)]
            # Tiles of tensor cores are larger.
            shapes += [] if variant.on_cpu else [(129, 70, 65), (64, 264, 200)]
            for m, n, k in shapes:
                a, b = (torch.randn(2, m, k) * 5).to(dtype), (torch.randn(n, k) * 5).to(dtype).t()
                there = a.cuda(), b.cuda()
                if blind(tool, _check.chosen(variant.name, *there).name, dtype, 2 * m, n):
                    continue  # 2 m: the matrices of A are one below the other
                for size in variant.sizes or (None,):
                    got = ops.matmul(*there, variant.name, tile_size=size)
                    count += 1
                    if not dtype.is_floating_point or _check.chosen(variant.name, *there).on_cpu:
                        right = same_bits(got, ops.matmul(a, b, variant.name, tile_size=size))
                    else:
                        right = bool(_check.check("matmul", variant.name, got, there, _check.truth("matmul", *there)))
                    if not right:
                        failures.append(f"matmul {variant.name} {dtype} {m}x{n}x{k} tile {size}")
                # A bias that is not aligned.
                bias = (torch.randn(n + 1) * 5).to(_check.result_dtype("matmul", dtype))
                layer = ops.linear(there[0], there[1].t(), bias.cuda()[1:], variant.name)
                count += 1
                if not dtype.is_floating_point or _check.chosen(variant.name, *there).on_cpu:
                    right = same_bits(layer, ops.linear(a, b.t(), bias[1:], variant.name))
                else:
                    wanted = ops.matmul(*there, variant.name).double() + bias.cuda()[1:].double()
                    slack = torch.finfo(dtype).eps * (wanted.abs() + bias.cuda()[1:].double().abs())
                    right = bool(((layer.double() - wanted).abs() <= slack).all())
                if not right:
                    failures.append(f"linear {variant.name} {dtype} {m}x{n}x{k}")
    return count


def sums_of_vectors(failures: list[str], _tool: str) -> int:
    count = 0
    for variant in torch_reduce.variants("vector_add"):
        for dtype in DTYPES:
            for n in LENGTHS:
                a, b = (torch.randn(n + 1) * 9).to(dtype)[1:], (torch.randn(n + 1) * 9).to(dtype)[1:]
                got = ops.vector_add(a.cuda(), b.cuda(), variant.name)
                count += 1
                if not same_bits(got, ops.vector_add(a, b, variant.name)):
                    failures.append(f"vector_add {variant.name} {dtype} n={n}")
    return count


FAMILIES = {"classic": reductions, "dims": along_dims, "matmul": products, "vector_add": sums_of_vectors}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tool", default="", help="named in the closing line")
    parser.add_argument("--family", nargs="+", choices=FAMILIES, default=list(FAMILIES))
    given = parser.parse_args()
    tool = given.tool
    if not torch.cuda.is_available():
        print("no CUDA device")
        return 1
    torch.manual_seed(0)
    failures: list[str] = []
    count = sum(FAMILIES[name](failures, tool) for name in given.family)
    out = torch.empty((4 * 8, 7), dtype=torch.int64, device="cuda")
    ops.thread_indices_(out, [2, 2], [4, 2])
    torch.cuda.synchronize()
    print("\n".join(failures))
    print(f"{tool}: {count} calls, {len(failures)} wrong")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
