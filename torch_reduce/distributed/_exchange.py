"""What is sent between ranks: torch.distributed's collectives, as functions that return tensors.

While torch.compile traces, they are torch's functional collectives.
"""

import ctypes
import functools
import os
import weakref
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

# An all_reduce of two ranks, of so many bytes, gathers in memory that is registered with NCCL: a rank copies its tensor
# there, and NCCL writes that to the other's without buffers of its own between. Two H200s, 64 MB: 217 us, and 33 for
# the copy, where a gather took 291. The host takes 80 to 190 us, so less is not worth it: 16 MB took 91 us in all in
# one run and 198 in another, and 104 without. 2026-11-22.
REGISTERED_LEAST, REGISTERED_MOST = 1 << 25, 1 << 26

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


class Registered:
    """Memory of a group that is registered with NCCL, for one gather after another."""

    def __init__(self, group: ProcessGroup, device: torch.device) -> None:
        self.group = weakref.ref(group)
        self.room: Tensor | None = None
        backend = group._get_backend(device)  # as torch's notes on NCCL's user buffers have it
        self.pool = torch.cuda.MemPool(backend.mem_allocator)
        # Never freed: torch ends a process that frees such memory after the group was destroyed.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self.pool))
        try:
            with torch.cuda.use_mem_pool(self.pool):
                self.room = torch.empty(group.size() * REGISTERED_MOST, dtype=torch.uint8, device=device)
        except torch.OutOfMemoryError:
            pass
        # All or none; and NCCL must have started before it takes memory.
        if not all_gather(torch.tensor([self.room is not None], device=device).byte(), group).all():
            self.room = None
        if self.room is not None:
            backend.register_mem_pool(self.pool, symm=True)
        self.read = torch.cuda.Event()

    def like(self, x: Tensor, ranks: int) -> Tensor:
        """(ranks, ...): room for `x` of each, once what was there has been read, on whatever stream."""
        self.read.wait()
        return self.room[: ranks * x.nbytes].view(x.dtype).view(ranks, *x.shape)


_memory: dict[tuple[str, torch.device], Registered] = {}


@functools.cache
def _registers(backend: type) -> bool:
    """Whether memory can be registered such that all ranks write it. NCCL_WIN_ENABLE=0 is NCCL's switch against it."""
    known = getattr(backend, "register_mem_pool", None).__doc__ or ""
    return "symm: bool" in known and torch.cuda.nccl.version() >= (2, 27) and os.environ.get("NCCL_WIN_ENABLE") != "0"


def registered(x: Tensor, group: ProcessGroup) -> Registered | None:
    """Where an all_reduce gathers `x` of all ranks; None where any memory will do.

    Every rank decides alike: by size, number of ranks, torch and NCCL. In a captured graph any memory will do, since it
    may be replayed beside other calls.
    """
    if not REGISTERED_LEAST <= x.nbytes <= REGISTERED_MOST or group.size() != 2 or not x.is_cuda:
        return None
    if torch.cuda.is_current_stream_capturing() or not _registers(type(group._get_backend(x.device))):
        return None
    key = (group.group_name, x.device)
    memory = _memory.get(key)
    if memory is None or memory.group() is not group:
        memory = _memory[key] = Registered(group, x.device)
    return None if memory.room is None else memory


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
