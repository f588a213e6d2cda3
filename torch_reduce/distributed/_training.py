"""Training whose bits do not depend on the number of ranks: a tree over the numbers of micro-batches."""

from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from .. import ops
from . import _collectives, _tree


class MicroBatches:
    """Sums over the micro-batches of a step, which the ranks share: the same bits on any number of ranks.

        parts = torch_reduce.distributed.MicroBatches(8)
        for number in parts:  # the numbers of this rank
            ...
            parts.add(loss.detach(), *torch.autograd.grad(loss, parameters))
        loss, *grads = parts.sums()

    Rank r of R computes micro-batches r * count / R and following. A rank keeps one set of tensors for each level of
    its part of the tree, log2(count / R) + 1 at most, and one `all_reduce` adds the ranks'.

    Args:
        count: of micro-batches in a step, on all ranks together. Each rank has the same number of them, a power of two
            (one rank alone: any number).
        group: the process group; None is the default group, or this process alone where there is none.

    Raises:
        ValueError: ranks that cannot share so many micro-batches evenly, in runs of a power of two.

    Determinism:
        Numbers of micro-batches are the leaves of a tree: 0 and 1, 2 and 3 are added, then neighbouring pairs, and so
        on. Sums of 16-bit floats are kept in float32 and rounded once. The bits depend on the values and on `count`,
        not on the number of ranks. The values of a micro-batch must not depend on it either: the same samples in
        each, and ops that keep the promise (docs/numerics.md).

    Source:
        torch_reduce/distributed/_training.py.
    """

    def __init__(self, count: int, group: ProcessGroup | None = None) -> None:
        self.group = dist.group.WORLD if group is None and dist.is_available() and dist.is_initialized() else group
        ranks = 1 if self.group is None else self.group.size()
        mine = count // ranks
        if count < 1 or mine * ranks != count or (ranks > 1 and _tree.lowest_bit(mine) != mine):
            raise ValueError(
                f"{count} micro-batches on {ranks} ranks: each rank needs the same number of them, a power of two"
            )
        first = 0 if self.group is None else self.group.rank() * mine
        self.numbers = range(first, first + mine)
        self._added = 0
        self._nodes: list[list[Tensor]] = []
        self._dtypes: list[torch.dtype] = []

    def __iter__(self) -> Iterator[int]:
        """The numbers of this rank's micro-batches."""
        return iter(self.numbers)

    def add(self, *tensors: Tensor) -> None:
        """Takes what is to be summed of the next micro-batch of this rank.

        Args:
            tensors: as many as ever, of the same shapes and dtypes: floating-point, complex or integer. They are read
                later, so they must not be written to.

        Raises:
            ValueError: more calls than micro-batches of this rank.
        """
        if self._added == len(self.numbers):
            raise ValueError(f"this rank has {len(self.numbers)} micro-batches, and all of them were added")
        self._dtypes = [t.dtype for t in tensors]
        node = [t.detach().to(_tree.accumulator(t.dtype)) for t in tensors]
        # A binary counter: after n micro-batches there is a node for each bit of n.
        for _ in range(_tree.lowest_bit(~self._added).bit_length() - 1):
            node = self._sum(self._nodes.pop(), node)
        self._nodes.append(node)
        self._added += 1

    def sums(self) -> list[Tensor]:
        """The sums over all micro-batches of all ranks, on every rank, each of the dtype of what was added.

        Raises:
            ValueError: fewer calls of `add` than micro-batches of this rank.
        """
        if self._added != len(self.numbers):
            raise ValueError(f"this rank has {len(self.numbers)} micro-batches, and {self._added} were added")
        node = self._nodes.pop()
        while self._nodes:
            node = self._sum(self._nodes.pop(), node)
        self._added = 0
        totals = list(node)
        for dtype in dict.fromkeys(t.dtype for t in node):  # in the same order on every rank
            which = [i for i, t in enumerate(node) if t.dtype == dtype]
            flat = torch.cat([node[i].reshape(-1) for i in which])
            if self.group is None:
                flat = _tree.combine("sum", flat.unsqueeze(0))
            else:
                _collectives.all_reduce(flat, "sum", self.group)
            for i, part in zip(which, flat.split([node[i].numel() for i in which]), strict=True):
                totals[i] = _tree.finish("sum", part.view(node[i].shape), 1, self._dtypes[i])
        return totals

    @staticmethod
    def _sum(left: list[Tensor], right: list[Tensor]) -> list[Tensor]:
        return [_added(a, b) for a, b in zip(left, right, strict=True)]


def _added(a: Tensor, b: Tensor) -> Tensor:
    if a.is_complex():
        return torch.view_as_complex(_added(torch.view_as_real(a), torch.view_as_real(b)))
    return ops.vector_add(a, b)
