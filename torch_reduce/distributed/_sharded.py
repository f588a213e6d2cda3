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

from .. import _C, ops
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
        found = _Groups(tuple(sizes), _tree.CHUNK, group.rank())
        nodes, counts = found.nodes(x, acc, group), found.counts
    of_all = sum(counts) * math.prod(nodes.shape[1:]) * nodes.element_size()
    while sum(counts) > group.size() * _tree.LANES and of_all > _exchange.MANY:
        found = _Groups(tuple(counts), _tree.LANES, group.rank())
        nodes, counts = found.nodes(nodes, acc, group), found.counts
        of_all /= _tree.LANES
    return _folded(nodes, counts, finished, group)


def _folded(nodes: Tensor, counts: list[int], finished: Callable[[Tensor], Tensor], group: ProcessGroup) -> Tensor:
    """What `finished` makes of the nodes of all ranks, of which rank r has counts[r]."""
    ranks, outputs = group.size(), math.prod(nodes.shape[1:])
    if outputs < ranks or _exchange.in_one_exchange(max(counts) * outputs * nodes.element_size(), ranks):
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


@dataclasses.dataclass(frozen=True)
class _Groups:
    """Groups of `length` entries, which ranks cut anywhere: rank r has sizes[r] of the entries.

    A group belongs to the rank that has its first entry; the others send it what they have of it.
    """

    sizes: tuple[int, ...]
    length: int
    rank: int
    """Of this process."""

    @functools.cached_property
    def parts(self) -> list[tuple[int, int]]:
        """Where the entries of each rank begin and end."""
        return list(itertools.pairwise(itertools.accumulate(self.sizes, initial=0)))

    @functools.cached_property
    def heads(self) -> list[int]:
        """How many entries of each rank belong to one before it."""
        return [min(end, _tree.groups(begin, self.length) * self.length) - begin for begin, end in self.parts]

    @functools.cached_property
    def owners(self) -> list[int]:
        """To which rank."""
        starts = [begin for begin, _ in self.parts] + [self.parts[-1][1]]
        last = len(self.parts)
        return [bisect.bisect_right(starts, begin // self.length * self.length, hi=last) - 1 for begin, _ in self.parts]

    @functools.cached_property
    def counts(self) -> list[int]:
        """How many groups each rank has."""
        return [_tree.groups(end, self.length) - _tree.groups(begin, self.length) for begin, end in self.parts]

    @functools.cached_property
    def exchanged(self) -> tuple[list[int], list[int]]:
        """How many entries this rank takes of each, and how many it gives."""
        head = self.heads[self.rank]
        take = [size if owner == self.rank else 0 for size, owner in zip(self.heads, self.owners, strict=True)]
        return take, [head if r == self.owners[self.rank] else 0 for r in range(len(self.parts))]

    def nodes(self, x: Tensor, acc: torch.dtype, group: ProcessGroup) -> Tensor:
        """This rank's nodes of a group each, from its entries along dim 0: elements, or nodes of fewer."""
        head = self.heads[self.rank]
        rest = (len(x) - head) % self.length
        receive = _exchange.begin_all_to_all(x[:head], *self.exchanged, group)
        nodes = [_tree.nodes_of(x[head : len(x) - rest], 0, self.length, acc)] if len(x) - rest > head else []
        received = receive()
        if rest:
            nodes.append(ops.sum(torch.cat([x[len(x) - rest :], received]), 0, keepdim=True, dtype=acc))
        if not nodes:
            return x.new_empty((0, *x.shape[1:]), dtype=acc)
        return nodes[0] if len(nodes) == 1 else torch.cat(nodes)


# The same for one layout, which is called again and again: what the layout determines is found once.

_Run = Callable[[Tensor], Tensor]


def prepared(op: str, part: Tensor, elements: Elements, dtype: torch.dtype, mesh: DeviceMesh) -> _Run:
    """`ordered`, for parts that are all like `part`."""
    if len(elements.cuts) == 1:
        call = _Call(op, elements, dtype, mesh, part)
        for way in (_of_elements, _of_one_node, _of_parts_of_runs, _of_packed_nodes, _of_blocks):
            run = way(call)
            if run is not None:
                return run
    return functools.partial(ordered, op, elements=elements, dtype=dtype, mesh=mesh)


class _Call:
    """What the ways below ask of a layout whose elements one mesh dim cuts."""

    def __init__(self, op: str, elements: Elements, dtype: torch.dtype, mesh: DeviceMesh, part: Tensor) -> None:
        (cut,) = elements.cuts
        self.op, self.elements, self.dtype = op, elements, dtype
        # What is remembered must not keep a group alive.
        self.group = functools.partial(mesh.get_group, cut.mesh_dim)
        group = self.group()
        self.group_name, self.ranks, self.rank = group.group_name, group.size(), group.rank()
        self.acc = _tree.accumulator(dtype)
        self.given, self.device = part.dtype, part.device
        self.sizes = [size * elements.step for size in cut.sizes]
        """Of each rank's part of a run, in elements."""
        self.outputs = math.prod(size for d, size in enumerate(part.shape) if d not in elements.order)
        """On this rank, as on all that share its elements."""
        self.kept = part.dim() - len(elements.order)
        self.in_place = elements.order == tuple(range(len(elements.order)))
        """Whether the elements are the leading dims, in their order."""
        self.one_node_each = elements.unit >= _tree.CHUNK and all(0 < n <= elements.unit for n in self.sizes)
        as_it_lies = torch.empty_strided(part.shape, part.stride(), device="meta")
        self.is_near = part.numel() > 0 and self.of_run(as_it_lies).stride(0) == 1
        """Whether the elements of an output are one after another in memory."""

    def of_run(self, part: Tensor) -> Tensor:
        """(elements, ...): this rank's part of the only run, before the outputs."""
        if not self.in_place:
            part = _part_of(part, self.elements)
            return part.flatten(0, self.elements.last)
        return part if len(self.elements.order) == 1 else part.flatten(0, len(self.elements.order) - 1)

    def converted(self, x: Tensor) -> Tensor:
        """Elements are converted to the result's dtype before they are added."""
        return x if self.dtype in (self.acc, x.dtype) else x.to(self.dtype)

    def finished(self, total: Tensor) -> Tensor:
        return _tree.finish(self.op, total, self.elements.count, self.dtype)


def _of_elements(call: _Call) -> _Run | None:
    """Few elements: all ranks gather them, and add them as one GPU does."""
    most, limit = max(call.sizes), _exchange.FEW_ELEMENTS
    if call.one_node_each:
        limit //= 64  # one node each takes one launch more
    if call.elements.runs > 1 or call.ranks * most * call.outputs * call.given.itemsize > limit:
        return None
    count = sum(call.sizes)

    def run(part: Tensor) -> Tensor:
        x = call.of_run(part)
        if len(x) < most:
            x = torch.cat([x, x.new_empty(most - len(x), *x.shape[1:])])
        return _exchange.gather_and_reduce(call.op, x, call.group_name, call.dtype, count)

    return run


def _of_one_node(call: _Call) -> _Run | None:
    """Each rank's part is one node."""
    size = call.outputs * call.acc.itemsize
    if (
        call.elements.runs > 1
        or not call.one_node_each
        or call.ranks > _tree.LANES
        or not (call.outputs < call.ranks or _exchange.in_one_exchange(size, call.ranks))
    ):
        return None

    dims = call.elements.order
    sends_nodes = _exchange.is_sendable(call.acc)
    is_final = call.op == "sum" and call.dtype == call.acc

    def run(part: Tensor) -> Tensor:
        part, along = call.converted(part), dims
        if len(dims) > 1 and not (call.in_place and part.is_contiguous()):  # not in their order as they are
            part, along = call.of_run(part), (0,)
        if sends_nodes:
            total = _C.node_sum(part, along, call.group_name, call.acc)
        else:
            total = _exchange.gather_and_reduce("sum", ops.sum(part, along, dtype=call.acc), call.group_name)
        return total if is_final else call.finished(total)

    return run


def _of_parts_of_runs(call: _Call) -> _Run | None:
    """Several runs, and each rank's part of one is one node."""
    e, size = call.elements, call.elements.runs * call.outputs * call.acc.itemsize
    if (
        e.runs == 1
        or any(n != e.unit for n in call.sizes)
        or _tree.lowest_bit(call.ranks) != call.ranks
        or call.ranks > _tree.LANES
        or not _exchange.in_one_exchange(size, call.ranks)
    ):
        return None

    def run(part: Tensor) -> Tensor:
        nodes = ops.sum(_part_of(call.converted(part), e), e.last, dtype=call.acc)
        of_runs = _exchange.gather_and_reduce("sum", nodes, call.group_name)
        return call.finished(_tree.fold(of_runs.flatten(0, e.last - 1)))

    return run


# Blocks of an output, at most, which one block of threads folds; and of all outputs.
MOST_BLOCKS = 1024
MOST_NODES = 1 << 15
# Bytes of all messages, which it reads.
MOST_SENT = 1 << 22
MOST_RANKS = 128  # kMostParts
# Chunks of a block that is summed in the launch that packs the rest, at most (kMostPacked); and bytes of a part of
# which that is so where elements are not one after another in memory: it reads those one at a time.
MOST_PACKED = 32
NEAR = 1 << 20


def _of_packed_nodes(call: _Call) -> _Run | None:
    """A run that is cut anywhere: one exchange of nodes and of the elements of cut chunks.

    The run is divided in blocks of a power of two of chunks. A rank sends one node for each block that it has wholly;
    of those that it has a part of, one for each chunk; of cut chunks, the elements. The end of the run cuts like a
    rank. All but long blocks is packed in one launch, and every rank puts the messages together in another
    (csrc/reduce/parts.h).
    """
    e, ranks = call.elements, call.ranks
    chunk, length = _tree.CHUNK, sum(call.sizes)
    block = chunk
    while length > block * MOST_BLOCKS or length * call.outputs > block * MOST_NODES:
        block *= 2
    starts = [0, *itertools.accumulate(call.sizes)]
    # Where each rank's whole chunks begin and end, and its whole blocks.
    bounds = [
        (
            begin,
            _tree.groups(begin, chunk) * chunk,
            _tree.groups(begin, block) * block,
            end // block * block,
            end // chunk * chunk,
            end,
        )
        for begin, end in itertools.pairwise(starts)
    ]
    if (
        e.runs > 1
        or ranks > MOST_RANKS
        or not _exchange.is_sendable(call.acc)
        or any(first > last or begin == end for begin, _, first, last, _, end in bounds)
    ):
        return None
    # A message: nodes of blocks, of the chunks before them and after, elements before and after.
    counts = [
        ((last - first) // block, (first - head) // chunk, (tail - last) // chunk, head - begin, end - tail)
        for begin, head, first, last, tail, end in bounds
    ]
    most = max(map(sum, counts))
    if ranks * most * call.outputs * call.acc.itemsize > MOST_SENT:
        return None

    # Of each kind: where it begins in the part and in the message, and its count.
    begin, head, first, last, tail, _ = bounds[call.rank]
    blocks, before, after, at_head, at_tail = (
        (position - begin, sum(counts[call.rank][:i]), counts[call.rank][i])
        for i, position in enumerate((first, head, last, begin, tail))
    )
    is_near = call.is_near or length * call.outputs // ranks * call.given.itemsize <= NEAR
    packs_blocks = block <= MOST_PACKED * chunk and is_near
    nodes = () if packs_blocks or not blocks[2] else (blocks[0], blocks[2], block)
    groups = [(*blocks, block // chunk)] * packs_blocks + [(*before, 1), (*after, 1), (*at_head, 0), (*at_tail, 0)]
    groups = tuple(itertools.chain(*(group for group in groups if group[2])))
    parts = torch.tensor(counts, dtype=torch.int32).to(call.device)
    count = e.count if call.op == "mean" else None
    facts = (nodes, groups, most, parts, count, call.acc, call.dtype)

    def run(part: Tensor) -> Tensor:
        return _C.packed_sum(call.converted(call.of_run(part)), call.group_name, *facts)

    return run


def _of_blocks(call: _Call) -> _Run | None:
    """A run that is cut anywhere, and long: a block that ranks cut is put together by one of them, beside its sums.

    The run is divided in at most `LANES` blocks of a power of two of chunks. A block belongs to the rank that has its
    first entry, and a block of one chunk to the rank that has most of it. The others send that rank what they have of
    the block: the elements of the chunk that is cut, and a node for each other chunk. Then all gather nodes of blocks,
    and one more sum folds them.
    """
    length, chunks = sum(call.sizes), 1
    while length > chunks * _tree.CHUNK * _tree.LANES:
        chunks *= 2
    block = chunks * _tree.CHUNK
    groups = _Groups(tuple(call.sizes), block, call.rank)
    counts, heads, ranks, rank = list(groups.counts), groups.heads, call.ranks, call.rank
    of_neighbours = all(counts) and not any(heads[r] and groups.owners[r] != r - 1 for r in range(1, ranks))
    tails = [(size - head) % block for size, head in zip(call.sizes, heads, strict=True)]
    # Whether the chunk that the begin of a rank cuts belongs to that rank.
    keeps = [chunks == 1 and of_neighbours and r > 0 and heads[r] > tails[r - 1] > 0 for r in range(ranks)] + [False]
    for r in range(1, ranks):
        if keeps[r]:
            counts[r - 1], counts[r] = counts[r - 1] - 1, counts[r] + 1
    most = max(counts)
    if (
        call.elements.runs > 1
        or call.elements.unit >= _tree.CHUNK
        or not (_exchange.is_sendable(call.acc) and _exchange.is_sendable(call.given))
        or not (chunks == 1 or of_neighbours)
        or not _exchange.in_one_exchange(most * call.outputs * call.acc.itemsize, ranks)
    ):
        return None
    take, give = groups.exchanged
    if keeps[rank]:
        take[rank - 1], give[rank - 1] = tails[rank - 1], 0
    if keeps[rank + 1]:
        take[rank + 1], give[rank + 1] = 0, tails[rank]
    elements = sum(n % _tree.CHUNK for n in take)
    if chunks > 1:
        take, give = ([n % _tree.CHUNK + n // _tree.CHUNK for n in entries] for entries in (take, give))
    order = None
    if any(count < most for count in counts[:-1]):
        order = [r * most + node for r, count in enumerate(counts) for node in range(count)]
        order = torch.tensor(order).to(call.device)
    gives = heads[rank] > 0 and not keeps[rank], keeps[rank + 1]
    taken = sum(take[:rank]), elements, tuple(take), tuple(give)
    facts = (block, heads[rank], tails[rank], *gives, *taken, most, sum(counts), order, call.acc)

    def run(part: Tensor) -> Tensor:
        x = call.converted(call.of_run(part))
        return call.finished(_C.blocks_sum(x, call.group_name, *facts))

    return run


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
        value = _exchange.reduced(op, value, mesh.get_group(cut.mesh_dim))
    return value.to(dtype)


def _identity(op: str, dtype: torch.dtype) -> float | int | bool:
    """What an extremum of nothing must be for the others."""
    if dtype == torch.bool:
        return op == "amin"
    if dtype.is_floating_point:
        return -math.inf if op == "amax" else math.inf
    return torch.iinfo(dtype).min if op == "amax" else torch.iinfo(dtype).max
