"""Products of matrices: the operands, the call, and how far a result may be from the exact one."""

import itertools

import torch
from bounds import UNIT
from cases import generator

from torch_reduce import _check
from torch_reduce._check import result_dtype, tensor_core_error

# (m, k, n) -> why.
SIZES = {
    (1, 1, 1): "one multiply-add",
    (1, 7, 1): "a dot product",
    (2, 3, 4): "smaller than any tile",
    (8, 8, 8): "the smallest tile",
    (16, 16, 16): "the default tile",
    (17, 16, 15): "a tile and a row, a tile less a column",
    (31, 33, 32): "around the largest tile",
    (33, 31, 65): "several tiles, none whole",
    (1, 300, 40): "a row vector",
    (40, 300, 1): "a column vector",
    (64, 64, 64): "whole tiles only",
    (100, 1, 100): "an outer product",
    (97, 257, 61): "primes; k past what the CPU packs at a time",
    (130, 600, 270): "more than one task of the CPU in both directions",
    (5, 0, 4): "no terms: zeros",
    (0, 3, 4): "no rows",
    (4, 3, 0): "no columns",
}
BIG = (200, 1030, 300)  # k in several packed pieces


def operands(m, k, n, dtype, seed=0):
    g = generator(seed + 31 * m + 37 * k + 41 * n)
    if dtype.is_floating_point:
        pair = (
            torch.randn(m, k, generator=g, dtype=torch.float64),
            torch.randn(k, n, generator=g, dtype=torch.float64),
        )
        return tuple(x.to(dtype) for x in pair)
    info = torch.iinfo(dtype)
    return tuple(torch.randint(info.min, info.max, shape, generator=g, dtype=dtype) for shape in ((m, k), (k, n)))


def wrapped(a, b):
    """The product of integers modulo 2^32, or 2^64: torch's of int64, on the CPU, wraps as well."""
    return torch.matmul(a.cpu().long(), b.cpu().long()).to(result_dtype("matmul", a.dtype))


def product(a, b, variant, **sizes):
    return torch.ops.treduce.matmul(a, b, variant.name if variant else "auto", **sizes)


def attempt(a, b, variant, **sizes):
    """The product, or None where the variant refuses the shapes: in a sentence that says what it takes."""
    try:
        return product(a, b, variant, **sizes)
    except ValueError as refusal:
        assert variant.name != "auto" and str(refusal).startswith(f"variant '{variant.name}' takes "), refusal
        assert str(list(a.shape)) in str(refusal) and str(list(b.shape)) in str(refusal), refusal
        return None


def widest(variant):
    """float64, or for a variant that does not take it float32."""
    return torch.float64 if "float64" in variant.dtypes else torch.float32


def sizes_of(variant):
    return [{}, *({"tile_size": size} for size in variant.sizes)]


def assert_close(c, a, b, variant=None):
    """Within Higham's bound for k fused multiply-adds and one rounding to the result's dtype; on tensor cores also
    what those lose."""
    assert c.dtype == a.dtype
    cores = tensor_core_error(variant.name, a.to(c.device), b.to(c.device)) if variant else 0
    a, b, k = a.cpu().double(), b.cpu().double(), a.shape[-1]
    exact = torch.matmul(a, b)
    u = UNIT[torch.float64 if c.dtype == torch.float64 else torch.float32]
    growth = 2 * k * u + cores  # twice: the reference rounds too
    bound = growth * torch.matmul(a.abs(), b.abs()) + (1 + growth) * UNIT[c.dtype] * exact.abs() * 1.01
    assert c.shape == exact.shape
    error = (c.cpu().double() - exact).abs()
    assert (error <= bound + 1e-300).all(), f"error {error.max()}, {(error / bound).max()} of the bound"


def layouts(a, b):
    """Two matrices as they may lie in memory, by name: either direction, at odd addresses, in wider rows."""

    def transposed(x):
        return x.t().contiguous().t()

    def odd(x):
        return torch.cat([x.new_zeros(3), x.flatten()])[3:].view(x.shape)

    def wide(x):
        return torch.nn.functional.pad(x, (16, -x.size(1) % 16 + 16))[:, 16 : 16 + x.size(1)]

    views = {"N": lambda x: x, "T": transposed, "odd": odd, "wide": wide, "wide T": lambda x: wide(x.t()).t()}
    for (left, of_a), (right, of_b) in itertools.product(views.items(), repeat=2):
        yield f"{left}, {right}", of_a(a), of_b(b)


def strided_operands(device, dtype=torch.float32):
    """Operands that are not simply one row after another, by name: a 20 x 30 and a 30 x 25 matrix."""
    g = generator(11)

    def random(*shape):
        x = torch.randn(shape, generator=g, dtype=torch.float64)
        return (x if dtype.is_floating_point else x * 20).to(device, dtype)

    a, b = random(20, 30), random(30, 25)
    return {
        "transposed_a": (random(30, 20).t(), b),
        "transposed_b": (a, random(25, 30).t()),
        "both_transposed": (random(30, 20).t(), random(25, 30).t()),
        "rows_apart": (random(40, 30)[::2], random(30, 50)[:, ::2]),
        "columns_apart": (random(20, 60)[:, ::2], random(60, 25)[::2]),
        "inner_slice": (random(30, 50)[5:25, 7:37], random(50, 40)[3:33, 1:26]),
        "odd_offset": (random(601)[1:].view(20, 30), random(753)[3:].view(30, 25)),
        "expanded_rows": (random(1, 30).expand(20, 30), b),
        "expanded_columns": (random(20, 1).expand(20, 30), random(30, 1).expand(30, 25)),
        "one_number": (random(1, 1).expand(20, 30), random(1, 1).expand(30, 25)),
        "batch_of_views": (random(30, 4, 20).permute(1, 2, 0), random(25, 30, 4).permute(2, 1, 0)),
        "broadcast_batch": (random(1, 20, 30).expand(6, 20, 30), random(6, 30, 25)),
        "two_batch_dims": (random(3, 1, 20, 30).expand(3, 2, 20, 30), random(2, 30, 25)),
        "permuted_batch": (random(2, 3, 20, 30).permute(1, 0, 2, 3), random(3, 2, 25, 30).mT),
        "overlapping": (random(100).as_strided((20, 30), (2, 1)), b),
        "strided_vector": (random(60)[::2], b),
        "expanded_vector": (a, random(1).expand(30)),
        "flipped": (a.flip(0), b.flip(1)),
    }


def into_poison(a, b, variant):
    """The product, where all that it does not write is NaN. (Within `poisoned`, cuBLAS would be refused.)"""
    with _check.poisoned():
        return product(a, b, variant)
