"""The inputs that tests and benchmarks share: lengths, values and layouts, each with its reason."""

import math

import torch

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTEGERS = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)
DTYPES = (*FLOATS, *INTEGERS, torch.bool)
# Which only the rungs along dims and `auto` take: 8-bit floats, whose results are float32, and complex numbers, whose
# sums are two sums.
FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)
COMPLEX = (torch.complex64, torch.complex128)
EVERY_DTYPE = (*DTYPES, *FLOAT8, *COMPLEX)

REDUCTIONS = ("sum", "mean", "amax", "amin")

# Length -> why it is here.
LENGTHS = {
    0: "nothing: the identity, and a launch of no work",
    1: "one element: no addition at all",
    2: "the smallest tree",
    3: "odd: the last pair lacks its second element",
    15: "one short of sixteen 1-byte elements, a vector of int8",
    16: "one vector of int8, four of float32",
    31: "a warp but one",
    32: "a warp",
    33: "a warp and one: the second warp holds a single element",
    127: "prime, and one short of four warps",
    255: "one short of the default block of the grid-stride rungs",
    256: "that block",
    257: "that block and one, prime",
    511: "one short of the block of the two-load rungs",
    513: "one more than it",
    1023: "one short of the largest block, and of what a two-load block covers",
    1024: "the largest block",
    1025: "a second block with one element: the first second pass",
    2049: "two full blocks of the largest size and one element",
    4095: "one short of four vectors of float32 for each thread of a default block: one block",
    4097: "one more: a second block of the vector rungs",
    8191: "prime, and a power of two less one",
    10_007: "prime: a multiple of nothing",
    32_769: "the CPU hands out work in pieces of 32768 elements",
    65_537: "prime, and a power of two and one: 65 blocks of 1024 in the second pass",
    262_145: "one element more than the default grid of the scalar rungs has threads: a second row",
}
SHORT_LENGTHS = tuple(n for n in LENGTHS if n < 5000)

# Lengths for which one or two distributions must do.
LONG_LENGTHS = {
    2**20: "the literature's small case; 1024 blocks of 1024, a second pass of one full block",
    2**20 + 1: "one element in a third pass",
    4_194_319: "prime: one vector row more than the default grid of float32 vectors, and a ragged end",
    6_000_011: "prime: several rows a thread, partials by the thousand",
}


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def normal(n, g):
    return torch.randn(n, generator=g, dtype=torch.float64)


def uniform(n, g):
    return torch.rand(n, generator=g, dtype=torch.float64) * 2 - 1


def positive(n, g):
    return torch.rand(n, generator=g, dtype=torch.float64) + 0.5


def wide(n, g):
    """Exponents over 40 binades and both signs: almost every addition rounds."""
    exponent = torch.randint(-20, 20, (n,), generator=g).double()
    return torch.randn(n, generator=g, dtype=torch.float64) * torch.exp2(exponent)


def cancelling(n, g):
    """Every element has its negative somewhere else, but for a few small ones: the sum is tiny, its terms are not."""
    half = torch.randn(n // 2, generator=g, dtype=torch.float64) * 1000
    x = torch.cat([half, -half, torch.full((n - 2 * (n // 2),), 0.25, dtype=torch.float64)])
    return x[torch.randperm(n, generator=g)] + torch.rand(n, generator=g, dtype=torch.float64) * 1e-3


def denormal(n, g):
    """Below the smallest normal float32 (and, halved again, float16's own): flushing to zero would show."""
    return torch.randn(n, generator=g, dtype=torch.float64) * 1e-39


def whole(n, g):
    """Small integers: every order gives the exact sum while it stays below 2^24."""
    return torch.randint(-4, 5, (n,), generator=g).double()


DISTRIBUTIONS = {f.__name__: f for f in (normal, uniform, positive, wide, cancelling, denormal, whole)}


def values(n, dtype, kind="normal", seed=0, device="cpu"):
    """`n` values of a dtype: floats from a distribution, integers over their whole range (int64 sums wrap), bools."""
    g = generator(seed * 1_000_003 + n)
    if dtype.is_complex:
        parts = [values(n, dtype.to_real(), kind, 2 * seed + part) for part in (0, 1)]
        return torch.complex(*parts).to(device)
    if dtype in FLOAT8:
        return DISTRIBUTIONS["uniform" if kind == "uniform" else "normal"](n, g).to(dtype).to(device)  # in their range
    if dtype.is_floating_point:
        return DISTRIBUTIONS[kind](n, g).to(dtype).to(device)
    if dtype == torch.bool:
        return (torch.randint(0, 2, (n,), generator=g) == 1).to(device)
    info = torch.iinfo(dtype)
    high = info.max if dtype == torch.int64 else info.max + 1
    return torch.randint(info.min, high, (n,), generator=g, dtype=torch.int64).to(dtype).to(device)


def layouts(dtype, device="cpu"):
    """Views whose memory is not simply one element after another, by name."""
    base = values(4000, dtype, device=device)
    return {
        "every_second": base[::2],
        "every_third_from_one": base[1::3],
        "reversed_rows": base.view(40, 100).flip(0),
        "transposed": base.view(40, 100).t(),
        "permuted": base.view(10, 20, 20).permute(2, 0, 1),
        "inner_slice": base.view(40, 100)[:, 3:97],
        "column": base.view(40, 100)[:, 7],
        "expanded": base[:50].view(50, 1).expand(50, 30),
        "expanded_scalar": base[5].expand(1000),
        "overlapping": base.as_strided((300, 10), (3, 1)),
        "zero_d": base[17],
        "one_of_each": base[:1].view(1, 1, 1, 1),
        "empty_middle": base.view(40, 100)[:, :0],
        "channels_last": base[:3840].view(2, 3, 16, 40).contiguous(memory_format=torch.channels_last),
    }


# Along dims. Length -> why it is here.
ROW_LENGTHS = {
    0: "nothing: the identity",
    1: "no addition",
    2: "one addition",
    3: "a leaf without its neighbour",
    4: "a 16-byte vector of float32",
    7: "odd at three levels of the tree",
    16: "a 16-byte vector of int8",
    33: "a warp and one",
    64: "the longest row of the rungs for short ones",
    127: "one short of a stripe",
    128: "a stripe: every lane has one element",
    129: "a second stripe of one element",
    1023: "one short of a chunk",
    1024: "a chunk",
    1025: "a second chunk of one element",
    2047: "one short of two chunks",
    2049: "a third chunk of one element",
    8191: "prime, one short of eight chunks",
}
LONG_ROW = 100_003  # prime: 98 chunks, the last of them ragged


def geometries(n):
    """Name -> (shape of the memory, the view of it, the dims reduced): n elements to an output, or about n over several
    dims. Where a view is taken, memory and values do not lie in one order."""
    half, few = -(-n // 2), -(-n // 6)
    return {
        "whole": ((n,), lambda x: x, None),
        "whole_transposed": ((n, 3), lambda x: x.t(), None),
        "rows": ((5, n), lambda x: x, 1),
        "many_rows": ((130 if n < 1000 else 7, n), lambda x: x, -1),
        "columns": ((n, 5), lambda x: x, 0),
        "one_column": ((n, 1), lambda x: x, 0),
        "many_columns": ((n, 130 if n < 1000 else 17), lambda x: x, 0),
        "middle": ((3, n, 6), lambda x: x, 1),
        "wide_middle": ((2, n, 40 if n < 1000 else 9), lambda x: x, -2),
        "outer_and_inner": ((2, 3, half), lambda x: x, (0, 2)),
        "outer_and_middle": ((2, 3, few, 3, 4), lambda x: x, (3, 0, 2)),
        "rows_as_columns": ((n, 5), lambda x: x.t(), 1),
        "permuted": ((n, 3, 2), lambda x: x.permute(2, 0, 1), 1),
        "reduced_out_of_order": ((3, half, 2), lambda x: x.permute(2, 0, 1), (0, 2)),
        "inner_slice": ((5, n + 3), lambda x: x[:, 1 : n + 1], 1),
        "column_slice": ((n, 9), lambda x: x[:, 1:6], 0),
        "every_second_element": ((3, 2 * n), lambda x: x[:, ::2], 1),
        "every_second_column": ((n, 10), lambda x: x[:, ::2], 0),
        "every_third_row": ((3 * n, 4), lambda x: x[1::3], 0),
        "expanded_over_the_reduced": ((4, 1), lambda x: x.expand(4, n), 1),
        "expanded_and_not": ((4, half), lambda x: x[:, :, None].expand(4, half, 2), (1, 2)),
        "expanded_over_the_kept": ((1, n), lambda x: x.expand(4, n), 1),
        "sliding_windows": ((n + 4,), lambda x: x.as_strided((5, n), (1, 1)), 1),
        "channels_last_batch_norm": ((2, few, 3, 5), lambda x: x.permute(0, 3, 1, 2), (0, 2, 3)),
        "channels_last_channels": ((2, 3, 2, n), lambda x: x.permute(0, 3, 1, 2), 1),
        "channels_last_pixels": ((2, few, 6, 5), lambda x: x.permute(0, 3, 1, 2), (2, 3)),
        "gaps_everywhere": ((4, 6, half, 6), lambda x: x[::2, 1::2, :, ::3].permute(3, 1, 2, 0), (2, 0)),
    }


def along(shape, view, dtype, device="cpu", kind="normal", seed=0):
    """The tensor of a geometry."""
    return view(values(math.prod(shape), dtype, kind, seed).view(shape).to(device))
