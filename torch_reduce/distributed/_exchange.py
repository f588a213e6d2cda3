"""What is sent between ranks: torch.distributed's collectives, as functions that return tensors.

While torch.compile traces, they are torch's functional collectives.
"""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.distributed import _functional_collectives as traced
from torch.distributed.distributed_c10d import AllToAllOptions

from .. import _C, ops

# Either every rank takes everything and adds it, in one exchange; or each takes a share, adds it, and all gather the
# sums: two exchanges, and as many bytes as a ring. The first is chosen up to so many bytes that a rank sends more than
# in the second (6 us between H200s, 40 us at 50 GB/s between nodes: what an exchange costs), and so many that it has of
# all ranks, which it reads and adds. 2026-11-22.
MORE_SENT = 2 << 20
OF_ALL = 1 << 25

# Two ranks that all_reduce so many bytes send their tensors to each other, and each adds. A gather of the whole writes
# this rank's part, too: two H200s, 16 MB: 103 us on the device, and 99 this way; 64 MB: 342 and 304. It costs the host
# 15 us more, so less is gathered; above it two exchanges of a half take less. 2026-11-22.
SWAPPED_LEAST, SWAPPED_MOST = 1 << 24, 1 << 26

# Nodes of more bytes than this, of all ranks together, are folded further before they are gathered: another exchange.
MANY = 1 << 22

# Sums of so many bytes of elements, of all ranks together, gather these in place of nodes: less is launched.
FEW_ELEMENTS = 4 << 20

# What every backend sends. Others travel as bytes: nothing is added on the way.
_SENT = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.uint8, torch.int8)


def is_sendable(dtype: torch.dtype) -> bool:
    """By every backend, as it is."""
    return dtype in _SENT


def is_sent(x: Tensor) -> bool:
    """Whether it can be sent as it is."""
    return x.dtype in _SENT and x.is_contiguous() and not _is_traced(x)


def _is_traced(x: Tensor) -> bool:
    return type(x) not in (Tensor, torch.nn.Parameter)


def _packed(x: Tensor) -> Tensor:
    """Contiguous, and of a dtype that every backend sends: with a last dim more where it is not one of them."""
    x = x.contiguous()
    return x if x.dtype in _SENT else x.unsqueeze(-1).view(torch.uint8)


def _unpacked(x: Tensor, dtype: torch.dtype) -> Tensor:
    return x if x.dtype == dtype else x.view(dtype).squeeze(-1)


def all_gather(x: Tensor, group: ProcessGroup) -> Tensor:
    """(...) of each rank, of one shape, as (ranks, ...)."""
    if _is_traced(x):
        return _unpacked(traced.all_gather_tensor(_packed(x).unsqueeze(0), 0, group), x.dtype)
    return gathered(x, group.group_name)


def gathered(x: Tensor, group_name: str) -> Tensor:
    """The same, where nothing is traced."""
    return _unpacked(_C.gathered(_packed(x), group_name), x.dtype)


def gather_and_reduce(
    op: str, x: Tensor, group_name: str, dtype: torch.dtype | None = None, entries: int = -1
) -> Tensor:
    """What `op` makes of (ranks, ...) along dim 0; with `entries`, of so many that all ranks have along dim 0."""
    if x.dtype in _SENT:
        return _C.gather_and_reduce(x.contiguous(), group_name, op, dtype, entries)
    values = gathered(x, group_name)
    if entries >= 0:
        values = values.flatten(0, 1)[:entries]
    return getattr(ops, op)(values, 0, **({} if dtype is None else {"dtype": dtype}))


def reduced(op: str, x: Tensor, group: ProcessGroup) -> Tensor:
    """What `op`, of any order, makes of `x` of all ranks."""
    return getattr(ops, op)(all_gather(x, group), 0) if _is_traced(x) else gather_and_reduce(op, x, group.group_name)


def all_gather_into(out: Tensor, x: Tensor, group: ProcessGroup) -> None:
    """Gathers to `out`, which is contiguous; `x` may be this rank's part of it."""
    dist.all_gather_into_tensor(_packed(out).view(-1), _packed(x).view(-1), group=group)


def is_swapped(size: int, ranks: int) -> bool:
    """Whether an all_reduce of `size` bytes is one exchange between two ranks, without a gather."""
    return ranks == 2 and SWAPPED_LEAST <= size <= SWAPPED_MOST


def in_one_exchange(size: int, ranks: int) -> bool:
    """Whether all ranks gather a tensor of `size` bytes from each, or exchange shares of it."""
    more = size * (ranks - 1) - 2 * size * (ranks - 1) / ranks
    return more <= MORE_SENT and size * ranks <= OF_ALL


def gather_parts(x: Tensor, sizes: list[int], group: ProcessGroup) -> Tensor:
    """Parts along dim 0, of which rank r has sizes[r], one after another."""
    most = max(sizes)
    if len(x) < most:
        x = torch.cat([x, x.new_empty(most - len(x), *x.shape[1:])])
    parts = all_gather(x, group)
    full = sizes.index(next((size for size in sizes if size < most), most)) if min(sizes) < most else len(sizes)
    if not any(sizes[full + 1 :]):  # only the last one is short
        return parts.flatten(0, 1)[: sum(sizes)]
    return torch.cat([part[:size] for part, size in zip(parts.unbind(), sizes, strict=True)])


def begin_all_to_all(x: Tensor, take: list[int], give: list[int], group: ProcessGroup) -> Callable[[], Tensor]:
    """Sends give[r] of the entries along dim 0 to rank r, one after another.

    Returns a function that waits, and returns what this rank takes of each. Until then others may compute.
    """
    sent = _packed(x)
    if _is_traced(x):
        out = traced.all_to_all_single(sent, take, give, group)
        return lambda: _unpacked(out, x.dtype)
    out = sent.new_empty((sum(take), *sent.shape[1:]))
    # The group's own function: torch.distributed's for Python takes longer than the rest.
    work = group.alltoall_base(out, sent, take, give, AllToAllOptions())

    def finish() -> Tensor:
        work.wait()
        return _unpacked(out, x.dtype)

    return finish


def all_to_all(x: Tensor, take: list[int], give: list[int], group: ProcessGroup) -> Tensor:
    """The same, finished."""
    return begin_all_to_all(x, take, give, group)()


_IN_ORDER = AllToAllOptions()
_IN_ORDER.asyncOp = False  # on the current stream


def exchange_pieces(x: Tensor, group: ProcessGroup) -> Tensor:
    """Piece r of a flat tensor, which the ranks share evenly, goes to rank r: (ranks, piece), this rank's of each."""
    ranks = group.size()
    if _is_traced(x):
        return all_to_all(x, [len(x) // ranks] * ranks, [len(x) // ranks] * ranks, group).view(ranks, -1)
    sent = _packed(x)
    out = torch.empty_like(sent)
    work = group.alltoall_base(out, sent, [], [], _IN_ORDER)
    if work is not None:
        work.wait()
    return _unpacked(out, x.dtype).view(ranks, -1)
