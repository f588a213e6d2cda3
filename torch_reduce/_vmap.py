"""What torch.vmap does with the ops: one call for the whole batch. Written in Python, for it runs only under vmap."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.library import register_vmap

from ._dims import wrapped_dims
from ._variants import REDUCTIONS, variant_named

_OPS = torch.ops.treduce

# A rule: (info, where each argument has the batch's dim, the arguments) to the results and where they have it.
_Dims = Sequence[int | None]


def _front(x: Tensor, dim: int | None, size: int) -> Tensor:
    """The batch as dim 0; of what has none, the same for each sample, without a copy."""
    return x.expand(size, *x.shape) if dim is None else x.movedim(dim, 0)


def _one_by_one(op: Any, info: Any, in_dims: _Dims, *args: Any, **named: Any) -> Any:
    """Where no call takes the whole batch: a whole-tensor rung, or weights of each sample."""

    def sample(i: int) -> list[Any]:
        return [x if d is None else x.select(d, i) for x, d in zip(args, in_dims, strict=True)]

    found = [op(*sample(i), **named) for i in range(info.batch_size)]
    if isinstance(found[0], Tensor):
        return torch.stack(found), 0
    return tuple(torch.stack(parts) for parts in zip(*found, strict=True)), (0,) * len(found[0])


def _reduction(name: str) -> Callable[..., Any]:
    op = getattr(_OPS, name).default

    def rule(info: Any, in_dims: _Dims, x: Tensor, variant: str = "auto", **named: Any) -> Any:
        if not variant_named(name, variant).along_dims and variant != "auto":
            return _one_by_one(op, info, (in_dims[0], None), x, variant, **named)
        x = _front(x, in_dims[0], info.batch_size)
        rank, dim = x.dim() - 1, named.pop("dim", None)
        if rank == 0:  # the only element, whether it is named or not
            wrapped_dims(dim or (), rank)
            x = x.unsqueeze(1)
            return op(x, variant, **{**named, "dim": 1, "keepdim": False}), 0
        dims = [d + 1 for d in wrapped_dims(dim or range(rank), rank)]
        return op(x, variant, **{**named, "dim": dims}), 0

    return rule


def _along(op: Any, tensors: int) -> Callable[..., Any]:
    """Ops of `tensors` tensors of one shape, along a dim; further arguments are passed on."""

    def rule(info: Any, in_dims: _Dims, *args: Any, **named: Any) -> Any:
        given = [_front(x, d, info.batch_size) for x, d in zip(args[:tensors], in_dims, strict=False)]
        dim, *rest = args[tensors:]
        rank = given[0].dim() - 1
        (dim,) = wrapped_dims((dim,), rank)
        if rank == 0:
            return op(*(x.unsqueeze(1) for x in given), 1, *rest, **named).reshape(info.batch_size), 0
        return op(*given, dim + 1, *rest, **named), 0

    return rule


def _logsumexp(info: Any, in_dims: _Dims, x: Tensor, dim: int, keepdim: bool = False, variant: str = "auto") -> Any:
    x = _front(x, in_dims[0], info.batch_size)
    (dim,) = wrapped_dims((dim,), x.dim() - 1)
    if x.dim() == 1:
        return _OPS.logsumexp(x.unsqueeze(1), 1, False, variant), 0
    return _OPS.logsumexp(x, dim + 1, keepdim, variant), 0


def _matmul(info: Any, in_dims: _Dims, a: Tensor, b: Tensor, variant: str = "auto", **named: Any) -> Any:
    rank_a, rank_b = (x.dim() - (d is not None) for x, d in ((a, in_dims[0]), (b, in_dims[1])))
    # As matrices, with the batch before all of their own dims.
    a = a if in_dims[0] is None else a.movedim(in_dims[0], 0)
    b = b if in_dims[1] is None else b.movedim(in_dims[1], 0)
    a = a.unsqueeze(-2) if rank_a == 1 else a
    b = b.unsqueeze(-1) if rank_b == 1 else b
    most = max(rank_a, rank_b, 2)

    def aligned(x: Tensor, rank: int, batched: bool) -> Tensor:
        return x.reshape(x.shape[0], *(1,) * (most - max(rank, 2)), *x.shape[1:]) if batched else x

    result = _OPS.matmul(
        aligned(a, rank_a, in_dims[0] is not None), aligned(b, rank_b, in_dims[1] is not None), variant, **named
    )
    if rank_b == 1:
        result = result.squeeze(-1)
    return result.squeeze(-2 if rank_b > 1 else -1) if rank_a == 1 else result, 0


def _linear(
    info: Any, in_dims: _Dims, x: Tensor, weight: Tensor, bias: Tensor | None = None, variant: str = "auto"
) -> Any:
    of_x, of_weight, *of_bias = in_dims
    if of_weight is None and not any(d is not None for d in of_bias[:1]):
        return _OPS.linear(_front(x, of_x, info.batch_size), weight, bias, variant), 0
    return _one_by_one(_OPS.linear, info, (*in_dims, *(None,) * (4 - len(in_dims)))[:4], x, weight, bias, variant)


def _vector_add(info: Any, in_dims: _Dims, a: Tensor, b: Tensor, variant: str = "auto", **named: Any) -> Any:
    ranks = [x.dim() - (d is not None) for x, d in zip((a, b), in_dims, strict=False)]

    def aligned(x: Tensor, d: int | None, rank: int) -> Tensor:
        if d is None:
            return x
        return x.movedim(d, 0).reshape(info.batch_size, *(1,) * (max(ranks) - rank), *x.movedim(d, 0).shape[1:])

    given = (aligned(x, d, rank) for x, d, rank in zip((a, b), in_dims, ranks, strict=False))
    return _OPS.vector_add(*given, variant, **named), 0


def _pointwise(op: Any) -> Callable[..., Any]:
    return lambda info, in_dims, x: (op(x), in_dims[0])


def _norm(op: Any, tensors: Sequence[int], weights: Sequence[int], results: int) -> Callable[..., Any]:
    """Places of the tensors that have the rows' dims, and of those that all rows share."""

    def rule(info: Any, in_dims: _Dims, *args: Any) -> Any:
        dims = [None if isinstance(d, (tuple, list)) else d for d in in_dims]
        if any(i < len(args) and dims[i] is not None for i in weights):
            return _one_by_one(op, info, dims, *args)
        given = [_front(x, dims[i], info.batch_size) if i in tensors else x for i, x in enumerate(args)]
        return op(*given), 0 if results == 1 else (0,) * results

    return rule


def _attention_operands(info: Any, in_dims: _Dims, operands: Sequence[Tensor], mask: Tensor | None, at: int) -> Any:
    """Query, key and value (and gradients of results) with the batch in their own, and the mask likewise."""
    size = info.batch_size
    given = [_front(x, d, size) for x, d in zip(operands, in_dims, strict=False)]
    rank = given[0].dim() - 1
    fold = rank == 4
    if mask is not None:
        batched = in_dims[at] is not None
        mask = mask.movedim(in_dims[at], 0) if batched else mask.unsqueeze(0)
        mask = mask.reshape(mask.shape[0], *(1,) * (rank + 1 - mask.dim()), *mask.shape[1:])
        if fold and mask.shape[1] == 1 and mask.shape[0] == 1:
            mask = mask.flatten(0, 1)
        elif fold:
            mask = mask.expand(size, given[0].shape[1], *mask.shape[2:]).flatten(0, 1)
    if fold:
        given = [x.flatten(0, 1) for x in given]
    return given, mask, (lambda x: x.unflatten(0, (size, -1))) if fold else (lambda x: x)


def _attention(
    info: Any,
    in_dims: _Dims,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    *rest: Any,
    **named: Any,
) -> Any:
    given, mask, unfold = _attention_operands(info, in_dims, (query, key, value), mask, 3)
    return unfold(_OPS.scaled_dot_product_attention(*given, mask, *rest, **named)), 0


def _attention_backward(
    info: Any, in_dims: _Dims, grad: Tensor, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, *rest: Any
) -> Any:
    given, mask, unfold = _attention_operands(info, in_dims, (grad, query, key, value), mask, 4)
    found = _OPS.scaled_dot_product_attention_backward(*given, mask, *rest)
    return tuple(map(unfold, found)), (0, 0, 0)


RULES: dict[str, Callable[..., Any]] = {
    **{name: _reduction(name) for name in REDUCTIONS},
    "matmul": _matmul,
    "linear": _linear,
    "vector_add": _vector_add,
    "scaled_dot_product_attention": _attention,
    "scaled_dot_product_attention_backward": _attention_backward,
    "softmax": _along(_OPS.softmax, 1),
    "log_softmax": _along(_OPS.log_softmax, 1),
    "softmax_backward": _along(_OPS.softmax_backward, 2),
    "log_softmax_backward": _along(_OPS.log_softmax_backward, 2),
    "logsumexp": _logsumexp,
    "sqrt": _pointwise(_OPS.sqrt),
    "layer_norm": _norm(_OPS.layer_norm, (0,), (2, 3), 3),
    "rms_norm": _norm(_OPS.rms_norm, (0,), (2,), 2),
    "layer_norm_backward": _norm(_OPS.layer_norm_backward, (0, 1, 3, 4), (5,), 1),
    "rms_norm_backward": _norm(_OPS.rms_norm_backward, (0, 1, 3), (4,), 1),
}

for _name, _rule in RULES.items():
    register_vmap(f"treduce::{_name}", _rule)
