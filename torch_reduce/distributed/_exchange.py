"""What is sent between ranks: torch.distributed's collectives, as functions that return tensors.

While torch.compile traces, they are torch's functional collectives.
"""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.distributed import _functional_collectives as traced

# Up to so many bytes, of all ranks together, every rank takes everything and adds it: one exchange. Beyond, each takes
# a share, adds it, and all gather the sums: two exchanges, and as many bytes as a ring.
ONE_EXCHANGE = 1 << 20

# Nodes of more bytes than this, of all ranks together, are folded further before they are gathered: another exchange.
MANY = 1 << 22

# What every backend sends. Others travel as bytes: nothing is added on the way.
_SENT = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.uint8, torch.int8)


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
    out = x.new_empty((group.size(), *x.shape))
    all_gather_into(out, x, group)
    return out


def all_gather_into(out: Tensor, x: Tensor, group: ProcessGroup) -> None:
    """The same, written to `out`, which is contiguous."""
    dist.all_gather_into_tensor(_packed(out).view(-1), _packed(x).view(-1), group=group)


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
    work = dist.all_to_all_single(out, sent, take, give, group=group, async_op=True)

    def finish() -> Tensor:
        work.wait()
        return _unpacked(out, x.dtype)

    return finish


def all_to_all(x: Tensor, take: list[int], give: list[int], group: ProcessGroup) -> Tensor:
    """The same, finished."""
    return begin_all_to_all(x, take, give, group)()
