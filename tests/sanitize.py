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
from torch.nn import functional

import torch_reduce
from torch_reduce import _check

LENGTHS = (0, 1, 2, 31, 33, 255, 1025, 5003)
# A cluster's share, and several blocks whose partials meet: for rungs that share a tensor in ways of their own.
LONG_LENGTHS = (65_536, 300_003)
SHARING = ("auto", "compensated", "exact", "atomic", "single_pass", "cooperative", "cluster")
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


def lengths_of(variant: torch_reduce.Variant, tool: str) -> tuple[int, ...]:
    """Of whole tensors."""
    if is_slow(tool):  # the shorter of the long ones is a cluster's: see along_dims
        return (33, 1025, 5003, *(LONG_LENGTHS[1:] if variant.name == "auto" else ()))
    return (*LENGTHS, *(LONG_LENGTHS if variant.name in SHARING else ()))


def reductions(failures: list[str], tool: str) -> int:
    count, few = 0, is_slow(tool)
    for variant in torch_reduce.variants("sum"):
        if variant.along_dims and variant.order == "pairwise" and variant.name != "auto":
            continue  # for certain rows and columns: see below
        for dtype in (torch.float32, torch.int8) if few else DTYPES:
            for n in lengths_of(variant, tool):
                # Slices: a poisoned element on either side, and a pointer that is not 16-byte aligned.
                x = (torch.randn(n + 2) * 9).to(dtype)[1 : n + 1]
                y = x.cuda()
                for op in ("sum", "amax") if few else OPS:
                    if (op == "mean" and not dtype.is_floating_point) or (n == 0 and op in ("amax", "amin")):
                        continue
                    for sizes in block_sizes(variant) if n not in LONG_LENGTHS else [{}]:
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


# Outputs so long that several blocks, or a cluster, share one; for rungs that do.
LONG_GEOMETRIES = (
    ((65_536,), 0, lambda x: x),
    ((2, 150_001), 1, lambda x: x),
    ((70_000, 24), 0, lambda x: x),
    ((70_000, 3), 0, lambda x: x),
)
SHARING_DIMS = ("row_block", "row_cluster", "column_block", "column_narrow")


def along_dims(failures: list[str], tool: str) -> int:
    count, few = 0, is_slow(tool)
    for variant in (v for v in torch_reduce.variants("sum") if v.along_dims):
        if tool == "racecheck" and variant.name == "row_cluster":
            continue  # it does not know what one block of a cluster writes to another before their barrier
        dtypes = (*DTYPES, torch.float8_e4m3fn, torch.complex64)
        geometries = GEOMETRIES + (LONG_GEOMETRIES if variant.name in SHARING_DIMS else ())
        for dtype in (torch.float32, torch.int8) if few else dtypes:
            for geometry, offset in itertools.product(geometries[1::3] if few else geometries, (0, 1)):
                if geometry in LONG_GEOMETRIES and dtype not in (torch.float32, torch.bfloat16, torch.int8):
                    continue
                shape, dim, view = geometry
                # One element in: a pointer that is not 16-byte aligned.
                x = (torch.randn(torch.Size(shape).numel() + offset) * 9).to(dtype)
                here, there = view(x[offset:].view(shape)), view(x.cuda()[offset:].view(shape))
                extrema = () if 0 in shape or dtype.is_complex else ("amax",)
                for op in ("sum", *extrema):
                    wanted = None
                    for blocks in (None, 1, 3):
                        try:
                            got = getattr(ops, op)(there, variant.name, dim=dim, num_blocks=blocks)
                        except ValueError:  # a geometry that the rung does not take
                            continue
                        count += 1
                        wanted = getattr(ops, op)(here, variant.name, dim=dim) if wanted is None else wanted
                        if not same_bits(got, wanted):
                            failures.append(f"{op} {variant.name} {dtype} {shape} along {dim} num_blocks={blocks}")
    return count


def blind(tool: str, rung: str, dtype: torch.dtype, n: int, kernels: list[str]) -> bool:
    """Whether the tool cannot see what a rung does, and reports what is right."""
    # What the copy engine stores counts as never written. Scales and flags are read in runs of lines, of which those
    # past the last are never written: what comes of them is not stored.
    unwritten = rung in ("split_fp16", "split_bf16") or (rung == "persistent" and dtype.itemsize == 2 and n % 8 == 0)
    # One lane of a warp arrives at a barrier for all, behind a barrier of the warp: what the other 31 read and wrote
    # counts as not ordered. (What persistent's warps release so is read by tensor cores, which it does not follow.)
    passes = rung == "split_fp16" or any("small" in name or "apart" in name for name in kernels)
    return {"initcheck": unwritten, "racecheck": passes}.get(tool, False)


# Where many lines meet few, other kernels multiply them.
MANY_LINES = {"split_fp16": [(60, 8700, 130), (100, 8700, 130)], "split_direct": [(3, 8700, 130), (40, 8700, 130)]}
# And where pairs do not suit some rows and columns alone, or no row: also in clusters that go several rounds.
SOME_SELECT = {
    "split_fp16": [(300, 500, 2100), (17, 700, 130)],
    "split_direct": [(40, 50, 130), (9000, 12, 130), (61, 738, 1030)],
}
ALL_SPREAD = {
    "split_fp16": [(17, 700, 130), (8700, 60, 300), (8700, 100, 300)],
    "split_direct": [
        (16, 30, 7000),
        (130, 520, 1500),
        (9000, 3, 130),
        (9000, 40, 130),
        (9000, 20, 300),
        (20, 9000, 300),
        (10, 294, 3966),
        (656, 64, 868),
        (70, 844, 568),
    ],
}


def select(m: int, n: int, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    a, b = torch.randn(m, k), torch.randn(n, k)
    a[1], a[9], b[n // 2] = torch.eye(k)[3], torch.eye(k)[5], torch.eye(k)[k - 1]
    return a, b.t()


def spread(m: int, n: int, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.softmax(15 * torch.randn(m, k), -1), torch.randn(n, k).t()


# And of some rows alone, so few that they are multiplied without tiles.
SOME_SPREAD = {"split_fp16": [(8700, 60, 300), (8700, 100, 200)]}


def spread_rows(m: int, n: int, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    a = torch.randn(m, k)
    a[:: m // 20] = spread(len(a[:: m // 20]), n, k)[0]
    return a, torch.randn(n, k).t()


def products(failures: list[str], tool: str) -> int:
    count = 0
    capability = torch.cuda.get_device_capability()
    for variant in torch_reduce.variants("matmul"):
        if not variant.runs_on(capability):
            continue
        for dtype in (getattr(torch, name) for name in variant.dtypes):
            shapes = [(1, 1, 1), (0, 3, 2), (5, 7, 0), (33, 17, 9), (40, 65, 31)]
            # Tiles of tensor cores are larger; few rows have others.
            shapes += (
                [] if variant.on_cpu else [(129, 70, 65), (64, 264, 200), (8, 300, 136), (16, 100, 72), (30, 264, 264)]
            )
            shapes += MANY_LINES.get(variant.name, [])
            for m, n, k in shapes:
                a, b = (torch.randn(2, m, k) * 5).to(dtype), (torch.randn(n, k) * 5).to(dtype).t()
                there = a.cuda(), b.cuda()
                kernels = [x.kernel for x in torch_reduce.plan("matmul", *there, variant=variant.name).launches]
                if blind(tool, _check.chosen(variant.name, *there).name, dtype, n, kernels):
                    continue
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
        for shapes_of, operands in ((SOME_SELECT, select), (ALL_SPREAD, spread), (SOME_SPREAD, spread_rows)):
            for m, n, k in shapes_of.get(variant.name, []):
                there = tuple(x.cuda() for x in operands(m, n, k))
                count += 1
                got = ops.matmul(*there, variant.name)
                if not _check.check("matmul", variant.name, got, there, _check.truth("matmul", *there)):
                    failures.append(f"matmul {variant.name} {m}x{n}x{k}, {operands.__name__}")
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


# Rows that vectors fit, rows that none fits, elements apart, several chunks; rows that a block, or a cluster, holds in
# shared memory; more rows than multiprocessors.
ROWS = (
    ((5, 64), lambda x: x),
    ((3, 77), lambda x: x),
    ((7, 1030), lambda x: x),
    ((40, 33), lambda x: x.t()),
    ((40, 70), lambda x: x[:, 1:60:2]),
    ((3, 9001), lambda x: x),
    ((2, 20_480), lambda x: x),
    ((2, 70_001), lambda x: x),
    ((140, 33_001), lambda x: x),
)
SHORT_ROWS = 4  # of ROWS


def row_calls(
    x: torch.Tensor, g: torch.Tensor, w: torch.Tensor, b: torch.Tensor, variant: str
) -> dict[str, tuple[torch.Tensor, ...]]:
    """The results of every row operation, by name."""
    n = [x.shape[-1]]
    norm, rms = ops.layer_norm(x, n, w, b, 1e-5, variant), ops.rms_norm(x, n, w, 1e-5, variant)
    soft, log_soft = ops.softmax(x, -1, variant), ops.log_softmax(x, -1, variant)
    return {
        "softmax": (soft, ops.softmax_backward(g, soft, -1, variant)),
        "log_softmax": (log_soft, ops.log_softmax_backward(g, log_soft, -1, variant)),
        "logsumexp": (ops.logsumexp(x, -1, False, variant),),
        "layer_norm": (*norm, ops.layer_norm_backward(g, x, n, norm[1], norm[2], w, variant)),
        "rms_norm": (*rms, ops.rms_norm_backward(g, x, n, rms[1], w, variant)),
    }


def row_operations(failures: list[str], tool: str) -> int:
    count, few = 0, is_slow(tool)
    for variant in torch_reduce.variants("softmax"):
        if tool == "racecheck" and variant.name == "row_cluster":
            continue  # see along_dims
        for shape, view in ROWS[:SHORT_ROWS] if few else ROWS:
            many = shape[0] > 100
            if many and variant.name != "row_shared":
                continue
            for dtype in (torch.bfloat16,) if many else (torch.float32, torch.bfloat16, torch.float64):
                x, g = (view((torch.randn(shape) * 3).to(dtype)) for _ in range(2))
                w, b = (torch.randn(x.shape[-1]).to(dtype) for _ in range(2))
                try:
                    there = row_calls(*(t.cuda() for t in (x, g, w, b)), variant.name)
                except ValueError:  # rows that the rung does not take
                    continue
                for op, wanted in row_calls(x, g, w, b, variant.name).items():
                    count += len(wanted)
                    if not all(map(same_bits, there[op], wanted)):
                        failures.append(f"{op} {variant.name} {dtype} {tuple(x.shape)}")
    return count


# Heads, heads of keys, queries, keys, width; whether causal. The kernel: few queries and pieces of 512 keys, one query
# with a cache, warp groups of each width.
ATTENTION = (
    (4, 2, 5, 70, 64, False),
    (4, 1, 1, 1100, 128, False),
    (2, 2, 200, 200, 64, True),
    (4, 2, 200, 200, 128, True),
    (2, 1, 70, 200, 80, False),
)


def attention(failures: list[str], tool: str) -> int:
    """Forward, with a mask too, and backward, near what torch computes in float64."""
    if tool == "racecheck":
        return 0  # one lane of a warp arrives at a barrier for all, and tensor cores read what they release: see blind
    count = 0
    for (heads, kv_heads, length, keys, width, causal), dtype in itertools.product(
        ATTENTION, (torch.bfloat16, torch.float16)
    ):
        sizes = ((heads, length), (kv_heads, keys), (kv_heads, keys))
        q, k, v = (torch.randn(2, h, n, width).to(dtype) for h, n in sizes)
        masks = (None,) if causal else (None, torch.rand(2, 1, length, keys) > 0.2)
        for mask in masks:
            named = {"is_causal": causal, "enable_gqa": True}
            there, wide = ([t.to(*to).requires_grad_() for t in (q, k, v)] for to in (("cuda",), (torch.float64,)))
            got = ops.scaled_dot_product_attention(*there, mask if mask is None else mask.cuda(), **named)
            want = functional.scaled_dot_product_attention(*wide, mask, **named)
            ours = (got, *torch.autograd.grad(got, there, torch.ones_like(got)))
            count += len(ours)
            for a, e in zip(ours, (want, *torch.autograd.grad(want, wide, torch.ones_like(want))), strict=True):
                if not torch.allclose(a.double().cpu(), e, rtol=0, atol=0.08 * max(1.0, e.abs().max().item())):
                    failures.append(f"attention {dtype} {(heads, kv_heads, length, keys, width)} {named}")
    return count


# Rows and their elements, places, and the index: short runs, runs that several teams share, all rows in one place.
SEGMENTS = (
    (100, 3, 40, lambda n, places: torch.randint(0, places, (n,))),
    (300, 64, 3, lambda n, places: torch.randint(0, places, (n,))),
    (200, 1030, 5, lambda n, places: torch.full((n,), 2)),
    (70, 130, 70, lambda n, places: torch.arange(n)),
)


def segments(failures: list[str], _tool: str) -> int:
    """add_segments_, which gradients of embeddings and index_add are made of."""
    count = 0
    for (rows, width, places, make), dtype in itertools.product(
        SEGMENTS, (torch.float32, torch.bfloat16, torch.float16, torch.float64)
    ):
        index, order = make(rows, places).sort(stable=True)
        source, out = torch.randn(rows, width).to(dtype), torch.randn(places, width).to(dtype)
        for mean in (False, True):
            there, here = out.cuda(), out.clone()
            ops.add_segments_(there, index.cuda(), order.cuda(), source.cuda(), mean)
            ops.add_segments_(here, index, order, source, mean)
            count += 1
            if not same_bits(there, here):
                failures.append(f"add_segments_ {dtype} {rows} rows of {width} into {places}, mean {mean}")
    return count


FAMILIES = {
    "classic": reductions, "dims": along_dims, "matmul": products, "vector_add": sums_of_vectors,
    "rows": row_operations, "attention": attention, "segments": segments,
}  # fmt: skip


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
