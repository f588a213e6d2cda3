"""Nodes of the pairwise order (csrc/reduce/pairwise.h, docs/numerics.md): made of a part of the elements, and folded.

Nothing here communicates. A node is the sum of an aligned run of chunks, in the type that is added in. `sum` gives it:
what it does to finish a float32 or float64 sum, +0 for -0 and one NaN for all, changes no later sum.
"""

import torch
from torch import Tensor

from .. import ops

CHUNK = 1024
# So many values `sum` adds as a tree of neighbours: one in each lane of its first stripe.
LANES = 128


def accumulator(dtype: torch.dtype) -> torch.dtype:
    """What sums of that dtype are added in."""
    if dtype.is_complex or dtype == torch.float64:
        return dtype
    return torch.float32 if dtype.is_floating_point else torch.int64


def result_dtype(op: str, dtype: torch.dtype, wanted: torch.dtype | None) -> torch.dtype:
    """The dtype of a reduction's result, as the ops have it."""
    if wanted is not None:
        return wanted
    if dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        return torch.float32
    rounds = dtype.is_floating_point or dtype.is_complex
    return torch.int64 if op == "sum" and not rounds else dtype


def any_order(op: str, dtype: torch.dtype) -> bool:
    """Whether a reduction to that dtype gives the same bits in any order."""
    return op in ("amax", "amin") or not (dtype.is_floating_point or dtype.is_complex)


def lowest_bit(n: int) -> int:
    """The largest power of two that divides n."""
    return n & -n


def unit_of(bounds: list[int]) -> int:
    """The length of the largest nodes that no bound cuts: a power of two of elements."""
    return min((lowest_bit(b) for b in bounds if b > 0), default=1 << 62)


def groups(entries: int, length: int) -> int:
    """Groups of `length` that begin among the first so many entries."""
    return -(-entries // length)


def nodes_of(x: Tensor, dim: int, unit: int, dtype: torch.dtype) -> Tensor:
    """The nodes of `unit` elements each along `dim`, which begins at a multiple of them; the last may be shorter.

    Args:
        x: elements, in their order along `dim`; or nodes.
        dim: not negative. It keeps its place, with a node in place of `unit` elements.
        unit: a power of two: of chunks, or of nodes up to LANES.
        dtype: of the accumulator; elements are converted as they are read.
    """
    if 0 < x.shape[dim] <= unit:
        return ops.sum(x, dim, keepdim=True, dtype=dtype)
    whole, rest = divmod(x.shape[dim], unit)
    parts = []
    if whole:
        parts.append(ops.sum(x.narrow(dim, 0, whole * unit).unflatten(dim, (whole, unit)), dim + 1, dtype=dtype))
    if rest:
        parts.append(ops.sum(x.narrow(dim, whole * unit, rest), dim, keepdim=True, dtype=dtype))
    if not parts:
        return x.new_empty(x.shape, dtype=dtype)
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim)


def fold(values: Tensor) -> Tensor:
    """Adds neighbours along dim 0, then neighbouring pairs, then neighbouring fours, until one value is left.

    `values` are accumulators (see `accumulator`). Zeros past the end change nothing.
    """
    while len(values) > LANES:
        missing = -len(values) % LANES
        if missing:
            values = torch.cat([values, values.new_zeros(missing, *values.shape[1:])])
        values = ops.sum(values.unflatten(0, (-1, LANES)), 1)
    return ops.sum(values, 0)


def finish(op: str, total: Tensor, count: int, dtype: torch.dtype) -> Tensor:
    """From the sum of an output's elements to what `sum` or `mean` stores: one division, one rounding, one NaN."""
    if total.dtype == dtype and op == "sum":
        return total
    if total.is_complex():
        parts = finish(op, torch.view_as_real(total), count, dtype.to_real() if dtype.is_complex else dtype)
        return torch.view_as_complex(parts)
    if op == "mean":
        # A tensor on the device: torch multiplies by the reciprocal of a number on CUDA.
        total = total / torch.full((), count, dtype=total.dtype, device=total.device)
    # The largest of one value is that value, a NaN the one that the library stores.
    return ops.amax(total.to(dtype).unsqueeze(0), 0)


def combine(op: str, values: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Values of ranks, one after another along dim 0, as one: a tree of neighbours for `sum` and `mean`.

    Args:
        op: "sum", "mean", "amax" or "amin".
        values: of any dtype of the reductions; 16-bit floats are added in float32 and rounded once.
        dtype: of the result; by default that of `values`.
    """
    dtype = dtype or values.dtype
    if op in ("amax", "amin"):
        return (ops.amax if op == "amax" else ops.amin)(values, 0)
    if len(values) <= LANES:
        return (ops.sum if op == "sum" else ops.mean)(values, 0, dtype=dtype)
    wide = values.to(accumulator(dtype))
    return finish(op, fold(wide), len(values), dtype)
