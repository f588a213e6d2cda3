"""Collectives whose results do not depend on how they are sent: the order of additions is a tree over rank numbers."""

import functools
from typing import Literal, get_args

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import GradBucket, ProcessGroup
from torch.distributed.tensor import DTensor

from .. import _C
from . import _exchange, _tree

Op = Literal["sum", "mean", "max", "min"]
_REDUCTIONS = {"sum": "sum", "mean": "mean", "max": "amax", "min": "amin"}

# Pieces begin at multiples of this many bytes: kernels and NCCL read vectors.
PIECE = 128


@functools.cache
def _reduction(name: str, op: str, dtype: torch.dtype) -> str:
    if op not in get_args(Op):
        raise ValueError(f"{name}: unknown op {op!r}; the ops are {', '.join(get_args(Op))}")
    if op == "mean" and not (dtype.is_floating_point or dtype.is_complex):
        raise NotImplementedError(f"{name}: op 'mean' takes floating-point tensors, got {dtype}")
    if op in ("max", "min") and dtype.is_complex:
        raise NotImplementedError(f"{name}: op {op!r} takes numbers that have an order, got {dtype}")
    if dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        raise TypeError(f"{name} takes no 8-bit floats, whose sums are float32; convert the tensor first")
    return _REDUCTIONS[op]


def _group(name: str, tensor: Tensor, group: ProcessGroup | None) -> ProcessGroup:
    """The group of a call, which is checked as far as one rank can."""
    if isinstance(tensor, DTensor) or not isinstance(tensor, Tensor):
        part = "; pass its to_local()" if isinstance(tensor, DTensor) else ""
        raise TypeError(f"{name} takes a Tensor, got a {type(tensor).__name__}{part}")
    if tensor.layout != torch.strided:
        raise TypeError(f"{name} takes a dense tensor, got one of layout {tensor.layout}")
    group = dist.group.WORLD if group is None else group
    if isinstance(group, ProcessGroup):
        return group
    if group is None:
        raise RuntimeError(f"{name} needs a process group: call torch.distributed.init_process_group first")
    if group == dist.GroupMember.NON_GROUP_MEMBER:
        raise ValueError(f"{name}: this rank is not in the group")
    raise TypeError(f"{name} takes a ProcessGroup, got a {type(group).__name__}")


_MOST_DIMS = 64


def _check_alike(name: str, x: Tensor, op: str, group: ProcessGroup) -> None:
    """Raises the same sentence on every rank where they disagree."""
    dtypes = sorted({d for d in vars(torch).values() if isinstance(d, torch.dtype)}, key=str)
    # Fixed in length, so that it can be sent whatever the tensors are.
    facts = [list(get_args(Op)).index(op), dtypes.index(x.dtype), x.dim(), *x.shape]
    facts = torch.tensor(facts + [0] * (3 + _MOST_DIMS - len(facts)), device=x.device)
    said = {}
    for rank, (op_number, dtype, rank_dims, *shape) in enumerate(_exchange.all_gather(facts, group).tolist()):
        said.setdefault((get_args(Op)[op_number], dtypes[dtype], tuple(shape[:rank_dims])), []).append(rank)
    if len(said) > 1:
        each = "; ".join(
            f"{'ranks' if len(ranks) > 1 else 'rank'} {', '.join(map(str, ranks))}: {dtype} {shape}, op {op!r}"
            for (op, dtype, shape), ranks in said.items()
        )
        raise ValueError(f"{name} takes the same shape, dtype and op on every rank, got {each}")


def all_reduce(tensor: Tensor, op: Op = "sum", group: ProcessGroup | None = None, *, check: bool = False) -> Tensor:
    """Replaces `tensor` by its sum, mean, largest or smallest values over all ranks, as `torch.distributed.all_reduce`.

    Every rank receives a piece of the tensor from all ranks, adds it with this library's kernels, and all gather the
    pieces: as many bytes as a ring sends. Where that sends hardly more, all gather the whole and add it.

    Args:
        tensor: of any shape and strides, the same shape and dtype on every rank: float32, float64, float16, bfloat16,
            int8, uint8, int16, int32, int64, bool, and for sums and means complex64 and complex128. It is written.
        op: "sum", "mean", "max" or "min".
        group: the process group; None is the default group.
        check: whether ranks compare shape, dtype and op first, which costs an exchange of its own. Without it a
            mismatch is an error of the backend or a timeout.

    Returns:
        `tensor`. Floats of 16 bits are added in float32 and rounded once; integers wrap.

    Raises:
        ValueError: an unknown op; a rank that is not in the group; or, with `check`, ranks that disagree: on every
            rank, with what each of them has.
        TypeError: a dtype that is not listed above; or no dense tensor, a DTensor for instance, whose part is meant.
        NotImplementedError: the mean of integers, or the largest of complex numbers.

    Determinism:
        Rank numbers are the leaves of a tree: neighbours are added (0 and 1, 2 and 3), then neighbouring pairs, and so
        on; what is missing at the end is left out. The bits depend on the values and the number of ranks, and not on
        the backend, its algorithm or the topology. "max" and "min" are the same in any order, NaN and -0 included.

    Source:
        torch_reduce/distributed/_tree.py `combine`, on the kernels of `sum`.
    """
    group = _group("all_reduce", tensor, group)
    reduction = _reduction("all_reduce", op, tensor.dtype)
    if check:
        _check_alike("all_reduce", tensor, op, group)
    if tensor.requires_grad:
        with torch.no_grad():
            _reduce(tensor, reduction, group)
    else:
        _reduce(tensor, reduction, group)
    return tensor


def _reduce(tensor: Tensor, reduction: str, group: ProcessGroup) -> None:
    """`all_reduce`, of what was checked."""
    ranks, count, itemsize = group.size(), tensor.numel(), tensor.element_size()
    if count == 0:
        return
    if _exchange.is_swapped(count * itemsize, ranks) and _exchange.is_sent(tensor):
        _C.all_reduce(tensor, group.group_name, reduction, True)
        return
    unit = ranks * max(PIECE // itemsize, 1)
    shared = 0 if _exchange.in_one_exchange(count * itemsize, ranks) else count // unit * unit
    if not shared:
        if _exchange.is_sent(tensor) and ranks <= _tree.LANES:
            _C.all_reduce(tensor, group.group_name, reduction, False)
        else:
            tensor.copy_(_tree.combine(reduction, _exchange.all_gather(tensor, group)))
        return
    flat = tensor.detach().reshape(-1)
    pieces = _exchange.exchange_pieces(flat[:shared], group)
    mine = flat[:shared].view(ranks, -1)[group.rank()]
    if ranks <= _tree.LANES:
        _C.reduce_ranks(mine, pieces, reduction)
    else:
        mine.copy_(_tree.combine(reduction, pieces))
    _exchange.all_gather_into(flat[:shared], mine, group)
    if shared < count:
        _reduce(flat[shared:], reduction, group)  # what the ranks cannot share evenly: few
    if not tensor.is_contiguous():
        tensor.copy_(flat.view(tensor.shape))


def reduce_scatter(tensor: Tensor, op: Op = "sum", group: ProcessGroup | None = None, *, check: bool = False) -> Tensor:
    """This rank's part along dim 0 of `all_reduce`, as `torch.distributed.reduce_scatter_tensor`.

    Args:
        tensor: as for `all_reduce`, with a dim 0 that the number of ranks divides. It is read.
        op: as for `all_reduce`.
        group: as for `all_reduce`.
        check: as for `all_reduce`.

    Returns:
        A new tensor: part r of dim 0 on rank r.

    Raises:
        ValueError: a dim 0 that the number of ranks does not divide; otherwise as `all_reduce`.
        TypeError: as `all_reduce`.
        NotImplementedError: as `all_reduce`.

    Determinism:
        As `all_reduce`, and the same bits.

    Source:
        As `all_reduce`.
    """
    group = _group("reduce_scatter", tensor, group)
    reduction = _reduction("reduce_scatter", op, tensor.dtype)
    if check:
        _check_alike("reduce_scatter", tensor, op, group)
    ranks = group.size()
    if tensor.dim() == 0 or tensor.shape[0] % ranks != 0:
        raise ValueError(
            f"reduce_scatter takes a dim 0 that the {ranks} ranks divide evenly, got shape {tuple(tensor.shape)}"
        )
    shape = (tensor.shape[0] // ranks, *tensor.shape[1:])
    if tensor.numel() == 0:
        return tensor.new_empty(shape)
    with torch.no_grad():
        flat = tensor.detach().reshape(-1)
        if _exchange.is_sent(flat) and ranks <= _tree.LANES:
            return _C.reduce_scatter(flat, group.group_name, reduction).view(shape)
        pieces = _exchange.exchange_pieces(flat, group)
        return _tree.combine(reduction, pieces).view(shape)


def ddp_hook(group: ProcessGroup | None, bucket: GradBucket) -> torch.futures.Future[Tensor]:
    """A communication hook of DistributedDataParallel: gradients are averaged by `all_reduce`.

        model = torch.nn.parallel.DistributedDataParallel(model)
        model.register_comm_hook(None, torch_reduce.distributed.ddp_hook)

    On CUDA it runs on a stream of its own, beside the rest of the backward pass.

    Args:
        group: the process group; None is the default group.
        bucket: of gradients, from DistributedDataParallel.

    Returns:
        A future of the bucket's buffer, in which the means stand.

    Raises:
        As `all_reduce`.

    Determinism:
        As `all_reduce`: for a number of ranks, the same bits on every run and topology, whatever the buckets.

    Source:
        As `all_reduce`.
    """
    buffer = bucket.buffer()
    if not buffer.is_cuda:
        done = torch.futures.Future()
        done.set_result(all_reduce(buffer, "mean", group))
        return done
    done = torch.futures.Future(devices=[buffer.device])
    stream = _stream(buffer.device)
    stream.wait_stream(torch.cuda.current_stream(buffer.device))
    with torch.cuda.stream(stream):
        done.set_result(all_reduce(buffer, "mean", group))
    return done


_streams: dict[torch.device, torch.cuda.Stream] = {}


def _stream(device: torch.device) -> torch.cuda.Stream:
    """One for each device, for gradients on their way."""
    if device not in _streams:
        _streams[device] = torch.cuda.Stream(device)
    return _streams[device]
