"""A reduction whose elements lie on several ranks: each makes the nodes of its part, all gather them and fold them."""

import bisect
import dataclasses
import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from .. import ops
from . import _exchange, _tree


@dataclasses.dataclass(frozen=True)
class Cut:
    """A dim that the ranks of a group share: rank r of them has sizes[r] of it, in the order of ranks."""

    dim: int
    group: ProcessGroup
    sizes: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Elements:
    """The reduced elements of the whole tensor."""

    order: tuple[int, ...]
    """The reduced dims, outermost in memory first."""
    sizes: tuple[int, ...]
    """Of these dims, in that order."""
    cuts: tuple[Cut, ...]
    """Of these dims; where two cut the same dim, the second cuts the parts of the first."""
    starts: tuple[int, ...]
    """Where parts of the innermost dim that is cut begin, on whatever rank."""

    @property
    def count(self) -> int:
        """Of an output."""
        return math.prod(self.sizes)

    @property
    def last(self) -> int:
        """The place in `order` of the innermost dim that is cut. With the dims behind it, it is a run of elements."""
        return max(self.order.index(cut.dim) for cut in self.cuts)

    @property
    def step(self) -> int:
        """Elements of a run for each index of the dim that is cut."""
        return math.prod(self.sizes[self.last + 1 :])

    @property
    def runs(self) -> int:
        """Of an output, one after another."""
        return math.prod(self.sizes[: self.last])

    @property
    def unit(self) -> int:
        """Elements of the largest nodes that nothing cuts; no chunk where something does."""
        length = self.sizes[self.last] * self.step
        return _tree.unit_of(
            [s * self.step for s in self.starts if s * self.step < length] + [length] * (self.runs > 1)
        )

    @property
    def have_nodes(self) -> bool:
        """Whether `ordered` takes them: otherwise elements must move between the ranks first."""
        return self.unit >= _tree.CHUNK or (self.runs == 1 and len(self.cuts) == 1)


def _part_of(x: Tensor, elements: Elements) -> Tensor:
    """This rank's elements: the reduced dims first, in memory order, those of a run as one; then the others."""
    kept = [d for d in range(x.dim()) if d not in elements.order]
    return x.permute(*elements.order, *kept).flatten(elements.last, len(elements.order) - 1)


def ordered(op: str, x: Tensor, elements: Elements, dtype: torch.dtype) -> Tensor:
    """`sum` or `mean` in the pairwise order: the bits of the whole tensor, on every rank, without the reduced dims.

    Args:
        op: "sum" or "mean".
        x: this rank's part.
        elements: what is reduced; they must have nodes.
        dtype: of the result, a floating-point or complex one.
    """
    acc = _tree.accumulator(dtype)
    if dtype not in (acc, x.dtype):
        x = x.to(dtype)  # elements are converted to the result's dtype before they are added
    x = _part_of(x, elements)
    nodes = _aligned(x, elements, acc) if elements.unit >= _tree.CHUNK else _ragged(x, elements, acc)
    return _tree.finish(op, _tree.fold(nodes), elements.count, dtype)


def _aligned(x: Tensor, elements: Elements, acc: torch.dtype) -> Tensor:
    """All nodes, where every part begins at one: (nodes, ...)."""
    nodes = _tree.nodes_of(x, elements.last, elements.unit, acc)
    for cut in reversed(elements.cuts):
        place = elements.order.index(cut.dim)
        sizes = cut.sizes
        if place == elements.last:
            sizes = [_tree.node_count(size * elements.step, elements.unit) for size in sizes]
        nodes = _exchange.gather_parts(nodes.movedim(place, 0), list(sizes), cut.group).movedim(0, place)
    return nodes.flatten(0, elements.last)


def _ragged(x: Tensor, elements: Elements, acc: torch.dtype) -> Tensor:
    """The nodes of all chunks, where one run is cut anywhere: (chunks, ...).

    A chunk belongs to the rank that has its first element; the others send it what they have of it.
    """
    (cut,) = elements.cuts
    bounds = [0, *itertools.accumulate(size * elements.step for size in cut.sizes)]
    parts = list(itertools.pairwise(bounds))
    heads = [min(end, chunks_before(begin) * _tree.CHUNK) - begin for begin, end in parts]
    owners = [bisect.bisect_right(bounds, begin // _tree.CHUNK * _tree.CHUNK, hi=len(parts)) - 1 for begin, _ in parts]

    me = cut.group.rank()
    give = [heads[me] if r == owners[me] else 0 for r in range(len(parts))]
    take = [head if owner == me else 0 for head, owner in zip(heads, owners, strict=True)]
    mine = x[heads[me] :]
    rest = len(mine) % _tree.CHUNK
    received = _exchange.all_to_all(x[: heads[me]], take, give, cut.group)
    nodes = [_tree.nodes_of(mine[: len(mine) - rest], 0, _tree.CHUNK, acc)]
    if rest:
        nodes.append(_tree.nodes_of(torch.cat([mine[len(mine) - rest :], received]), 0, _tree.CHUNK, acc))
    counts = [chunks_before(end) - chunks_before(begin) for begin, end in parts]
    return _exchange.gather_parts(torch.cat(nodes), counts, cut.group)


def chunks_before(element: int) -> int:
    """How many chunks begin before an element."""
    return -(-element // _tree.CHUNK)


def unordered(op: str, x: Tensor, dims: Sequence[int], cuts: Sequence[Cut], dtype: torch.dtype) -> Tensor:
    """A reduction that is exact in any order: one value an output of each rank. `dtype` is the result's."""
    if op == "sum":
        if dtype not in (x.dtype, torch.int64):
            x = x.to(dtype)
        value = ops.sum(x, list(dims), dtype=torch.int64)
    elif math.prod(x.shape[d] for d in dims) == 0:
        value = x.new_full([size for d, size in enumerate(x.shape) if d not in dims], _identity(op, dtype), dtype=dtype)
    else:
        value = (ops.amax if op == "amax" else ops.amin)(x, list(dims))
    for cut in reversed(cuts):
        value = _tree.combine(op, _exchange.all_gather(value, cut.group))
    return value.to(dtype)


def _identity(op: str, dtype: torch.dtype) -> float | int | bool:
    """What an extremum of nothing must be for the others."""
    if dtype == torch.bool:
        return op == "amin"
    if dtype.is_floating_point:
        return -math.inf if op == "amax" else math.inf
    return torch.iinfo(dtype).min if op == "amax" else torch.iinfo(dtype).max
