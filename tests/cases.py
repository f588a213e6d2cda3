"""The inputs that tests and benchmarks share: lengths, values and layouts, each with its reason."""

import torch

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTEGERS = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)
DTYPES = (*FLOATS, *INTEGERS, torch.bool)

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
