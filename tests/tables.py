"""The variant tables as test parameters: no test keeps a list of rungs of its own."""

import functools

import pytest
import torch
from cases import REDUCTIONS

import torch_reduce

DTYPE_NAMES = {
    name: getattr(torch, name)
    for name in ["float32", "float64", "float16", "bfloat16", "int8", "uint8", "int16", "int32", "int64", "bool"]
}

REDUCE_VARIANTS = tuple(torch_reduce.variants("sum"))
MATMUL_VARIANTS = tuple(torch_reduce.variants("matmul"))
ADD_VARIANTS = tuple(torch_reduce.variants("vector_add"))


def names(variants):
    return [v.name for v in variants]


def row(op, name):
    return next(v for v in torch_reduce.variants(op) if v.name == name)


# `auto` has no kernel of its own and borrows another's order with a block size of its choice; it has tests of its own.
ORDERED = tuple(v for v in REDUCE_VARIANTS if v.deterministic and v.name != "auto")

every_reduction = pytest.mark.parametrize("op", REDUCTIONS)
every_variant = pytest.mark.parametrize("variant", REDUCE_VARIANTS, ids=names(REDUCE_VARIANTS))
every_ordered_variant = pytest.mark.parametrize("variant", ORDERED, ids=names(ORDERED))
every_matmul_variant = pytest.mark.parametrize("variant", MATMUL_VARIANTS, ids=names(MATMUL_VARIANTS))
every_add_variant = pytest.mark.parametrize("variant", ADD_VARIANTS, ids=names(ADD_VARIANTS))


def every_dtype(dtypes):
    return pytest.mark.parametrize("dtype", dtypes, ids=[str(d).removeprefix("torch.") for d in dtypes])


def call(op, x, variant="auto", **sizes):
    """The op itself, below the Python package."""
    return getattr(torch.ops.treduce, op)(x, variant, **sizes)


def sizes_of(variant, block_sizes=None, num_blocks=(1, 3, 64)):
    """Keyword arguments to sweep for a variant: its defaults, its block sizes, and a few numbers of blocks."""
    sweep = [{}]
    for size in block_sizes or variant.sizes:
        if size in variant.sizes:
            sweep.append({"block_size": size})
    if variant.takes_num_blocks:
        sweep += [{"num_blocks": blocks} for blocks in num_blocks]
        sweep += [{"block_size": size, "num_blocks": 5} for size in variant.sizes[:: len(variant.sizes) - 1]]
    return sweep


@functools.cache
def can_run(capability):
    return torch.cuda.get_device_capability() >= capability


def needs_chip(variant):
    """Skips a CUDA test of a variant that this GPU is too old for."""
    if not can_run(tuple(variant.capability)):
        pytest.skip(f"{variant.name} needs compute capability {variant.capability[0]}.{variant.capability[1]}")


def plan(variant, dtype, n, **sizes):
    """What runs for this length and dtype, and its passes."""
    from torch_reduce import _C

    return _C.reduce_plan(variant, str(dtype).removeprefix("torch."), n, **sizes)
