"""A reduction whose elements lie on several ranks: each makes the nodes of its part, all gather them and fold them."""

import bisect
import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.distributed import DeviceMesh, ProcessGroup

from .. import ops
from . import _exchange, _tree


@dataclasses.dataclass(frozen=True)
class Cut:
    """A dim that the ranks of a mesh dim share: rank r of them has sizes[r] of it, in the order of ranks."""

    dim: int
    mesh_dim: int
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

    @functools.cached_property
    def count(self) -> int:
        """Of an output."""
        return math.prod(self.sizes)

    @functools.cached_property
    def last(self) -> int:
        """The place in `order` of the innermost dim that is cut. With the dims behind it, it is a run of elements."""
        return max(self.order.index(cut.dim) for cut in self.cuts)

    @functools.cached_property
    def step(self) -> int:
        """Elements of a run for each index of the dim that is cut."""
        return math.prod(self.sizes[self.last + 1 :])

    @functools.cached_property
    def runs(self) -> int:
        """Of an output, one after another."""
        return math.prod(self.sizes[: self.last])

    @functools.cached_property
    def unit(self) -> int:
        """Elements of the largest nodes that nothing cuts; no chunk where something does."""
        length = self.sizes[self.last] * self.step
        return _tree.unit_of(
            [s * self.step for s in self.starts if s * self.step < length] + [length] * (self.runs > 1)
        )

    @functools.cached_property
    def have_nodes(self) -> bool:
        """Whether `ordered` takes them: otherwise elements must move between the ranks first."""
        return self.unit >= _tree.CHUNK or (self.runs == 1 and len(self.cuts) == 1)


def _part_of(x: Tensor, elements: Elements) -> Tensor:
    """This rank's elements: the reduced dims first, in memory order, those of a run as one; then the others."""
    kept = [d for d in range(x.dim()) if d not in elements.order]
    return x.permute(*elements.order, *kept).flatten(elements.last, len(elements.order) - 1)


def ordered(op: str, x: Tensor, elements: Elements, dtype: torch.dtype, mesh: DeviceMesh) -> Tensor:
    """`sum` or `mean` in the pairwise order: the bits of the whole tensor, on every rank, without the reduced dims.

    Args:
        op: "sum" or "mean".
        x: this rank's part.
        elements: what is reduced; they must have nodes.
        dtype: of the result, a floating-point or complex one.
        mesh: whose dims cut the elements.
    """
    acc = _tree.accumulator(dtype)
    if dtype not in (acc, x.dtype):
        x = x.to(dtype)  # elements are converted to the result's dtype before they are added
    x = _part_of(x, elements)

    def finished(nodes: Tensor) -> Tensor:
        return _tree.finish(op, _tree.fold(nodes), elements.count, dtype)

    if elements.runs > 1 or len(elements.cuts) > 1:
        return finished(_gathered(x, elements, acc, mesh))
    (cut,) = elements.cuts
    x = x.flatten(0, elements.last)
    group = mesh.get_group(cut.mesh_dim)
    sizes = [size * elements.step for size in cut.sizes]
    if elements.unit >= _tree.CHUNK:
        nodes, counts = _tree.nodes_of(x, 0, elements.unit, acc), [_tree.groups(n, elements.unit) for n in sizes]
    else:
        nodes, counts = _nodes_of_groups(x, sizes, _tree.CHUNK, acc, group)
    of_all = sum(counts) * math.prod(nodes.shape[1:]) * nodes.element_size()
    while sum(counts) > group.size() * _tree.LANES and of_all > _exchange.MANY:
        nodes, counts = _nodes_of_groups(nodes, counts, _tree.LANES, acc, group)
        of_all /= _tree.LANES
    return _folded(nodes, counts, finished, group)


def _folded(nodes: Tensor, counts: list[int], finished: Callable[[Tensor], Tensor], group: ProcessGroup) -> Tensor:
    """What `finished` makes of the nodes of all ranks, of which rank r has counts[r]."""
    ranks, outputs = group.size(), math.prod(nodes.shape[1:])
    if ranks <= 2 or sum(counts) * outputs * nodes.element_size() <= _exchange.ONE_EXCHANGE or outputs < ranks:
        return finished(_exchange.gather_parts(nodes, counts, group))
    # Many outputs: each rank folds its share of them, as in an all_reduce.
    share = -(-outputs // ranks)
    columns = torch.nn.functional.pad(nodes.reshape(len(nodes), outputs), (0, share * ranks - outputs))
    sent = columns.view(len(nodes), ranks, share).transpose(0, 1).reshape(ranks * len(nodes), share)
    mine = finished(_exchange.all_to_all(sent, counts, [len(nodes)] * ranks, group))
    return _exchange.all_gather(mine, group).flatten()[:outputs].view(nodes.shape[1:])


def _gathered(x: Tensor, elements: Elements, acc: torch.dtype, mesh: DeviceMesh) -> Tensor:
    """All nodes, where every part begins at one: (nodes, ...)."""
    nodes = _tree.nodes_of(x, elements.last, elements.unit, acc)
    for cut in reversed(elements.cuts):
        place = elements.order.index(cut.dim)
        sizes = list(cut.sizes)
        if place == elements.last:
            sizes = [_tree.groups(size * elements.step, elements.unit) for size in sizes]
        group = mesh.get_group(cut.mesh_dim)
        nodes = _exchange.gather_parts(nodes.movedim(place, 0), sizes, group).movedim(0, place)
    return nodes.flatten(0, elements.last)


def _nodes_of_groups(
    x: Tensor, sizes: list[int], length: int, acc: torch.dtype, group: ProcessGroup
) -> tuple[Tensor, list[int]]:
    """This rank's nodes of `length` entries of dim 0 each, and how many each rank has.

    Rank r has sizes[r] of the entries: elements, or nodes of fewer. Ranks cut groups anywhere. A group belongs to the
    rank that has its first entry; the others send it what they have of it.
    """
    bounds = [0, *itertools.accumulate(sizes)]
    parts = list(itertools.pairwise(bounds))
    heads = [min(end, _tree.groups(begin, length) * length) - begin for begin, end in parts]
    owners = [bisect.bisect_right(bounds, begin // length * length, hi=len(parts)) - 1 for begin, _ in parts]

    me = group.rank()
    give = [heads[me] if r == owners[me] else 0 for r in range(len(parts))]
    take = [head if owner == me else 0 for head, owner in zip(heads, owners, strict=True)]
    mine = x[heads[me] :]
    rest = len(mine) % length
    receive = _exchange.begin_all_to_all(x[: heads[me]], take, give, group)
    nodes = [_tree.nodes_of(mine[: len(mine) - rest], 0, length, acc)]
    received = receive()
    if rest:
        nodes.append(_tree.nodes_of(torch.cat([mine[len(mine) - rest :], received]), 0, length, acc))
    return torch.cat(nodes), [_tree.groups(end, length) - _tree.groups(begin, length) for begin, end in parts]


def unordered(
    op: str, x: Tensor, dims: Sequence[int], cuts: Sequence[Cut], dtype: torch.dtype, mesh: DeviceMesh
) -> Tensor:
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
        value = _tree.combine(op, _exchange.all_gather(value, mesh.get_group(cut.mesh_dim)))
    return value.to(dtype)


def _identity(op: str, dtype: torch.dtype) -> float | int | bool:
    """What an extremum of nothing must be for the others."""
    if dtype == torch.bool:
        return op == "amin"
    if dtype.is_floating_point:
        return -math.inf if op == "amax" else math.inf
    return torch.iinfo(dtype).min if op == "amax" else torch.iinfo(dtype).max
