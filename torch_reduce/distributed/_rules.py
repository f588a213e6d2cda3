"""What the ops do with DTensors: what each rank computes by itself, and what moves between them where it cannot."""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.distributed import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta

from .. import ops
from . import _collectives, _sharded, _tree

_PARTIAL = {"sum": "sum", "avg": "mean", "max": "max", "min": "min"}


def chunks(size: int, ranks: int) -> tuple[int, ...]:
    """How much of a dim each rank has, as DTensor shards it."""
    most = -(-size // ranks)
    return tuple(min(most, max(size - r * most, 0)) for r in range(ranks))


def _settled(x: DTensor) -> DTensor:
    """With placements that rules know, Shard and Replicate. Partial values are added as a tree over ranks."""
    if all(type(p) in (Shard, Replicate) for p in x.placements):
        return x
    mesh, placements = x.device_mesh, list(x.placements)
    local = None
    for i in reversed(range(mesh.ndim if mesh.get_coordinate() is not None else 0)):
        p = placements[i]
        if type(p) is Partial and p.reduce_op in _PARTIAL:
            local = (x.to_local() if local is None else local).clone()
            _collectives.all_reduce(local, _PARTIAL[p.reduce_op], mesh.get_group(i))
            placements[i] = Replicate()
    if local is not None:
        x = _wrapped(local, mesh, dataclasses.replace(_layout(x), placements=tuple(placements)))
    return x.redistribute(placements=[p if type(p) is Shard else Replicate() for p in x.placements])


@dataclasses.dataclass(frozen=True)
class _Layout:
    """A tensor without its values."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    placements: tuple[Placement, ...] = ()

    def meta(self) -> Tensor:
        """On no device, for checks."""
        return torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device="meta")


def _layout(x: Tensor) -> _Layout:
    return _Layout(x.shape, x.stride(), x.dtype, x.placements if isinstance(x, DTensor) else ())


def _wrapped(local: Tensor, mesh: DeviceMesh, layout: _Layout) -> DTensor:
    shape = torch.Size(layout.shape)
    return DTensor.from_local(local, mesh, layout.placements, run_check=False, shape=shape, stride=layout.stride)


def _absent(mesh: DeviceMesh, layout: _Layout) -> DTensor:
    """On a rank that is not in the mesh."""
    size = (0,) if layout.shape else ()  # from_local takes a shape of no dims from the part
    return _wrapped(torch.empty(size, dtype=layout.dtype, device=mesh.device_type), mesh, layout)


def _placed(x: DTensor, placements: tuple[Placement, ...]) -> Tensor:
    """This rank's part, with those placements."""
    return x._local_tensor if x.placements == placements else x.redistribute(placements=placements).to_local()


def _remembered(plan: Callable[..., Any]) -> Callable[..., Any]:
    """Plans are functions of layouts, so each is made once; those with symbolic sizes each time."""
    cached = functools.lru_cache(maxsize=4096)(plan)

    def remembered(*arguments: Any) -> Any:
        try:
            return cached(*arguments)
        except TypeError as error:
            if "unhashable" not in str(error):
                raise
            return plan(*arguments)

    return remembered


def _in_order_of(local: Tensor, strides: tuple[int, ...]) -> Tensor:
    """The part with its dims in memory as those of the whole are: redistribution may have changed that."""
    order = sorted(range(local.dim()), key=lambda d: (-strides[d], d))
    here = [local.stride(d) for d in order if local.shape[d] > 1]
    if here == sorted(here, reverse=True):
        return local
    return local.permute(order).contiguous().permute(sorted(range(local.dim()), key=order.__getitem__))


def _mesh(op: OpOverload, operands: Sequence[Tensor]) -> DeviceMesh:
    for x in operands:
        if not isinstance(x, DTensor):
            raise RuntimeError(
                f"{op} got a DTensor and a {type(x).__name__}: distribute it first (torch.distributed.tensor)"
            )
    meshes = {x.device_mesh for x in operands}
    if len(meshes) > 1:
        raise RuntimeError(f"{op} takes DTensors of one mesh, got {' and '.join(map(str, meshes))}")
    return operands[0].device_mesh


# Reductions.


def _cuts(x: _Layout, mesh: DeviceMesh, dims: Sequence[int]) -> tuple[_sharded.Cut, ...]:
    """How the mesh cuts these dims, in the order of the mesh's dims."""
    here, found = list(x.shape), []
    for i, p in enumerate(x.placements):
        if isinstance(p, Shard):
            sizes = chunks(here[p.dim], mesh.size(i))
            here[p.dim] = sizes[0 if mesh.get_coordinate() is None else mesh.get_local_rank(i)]
            if p.dim in dims and mesh.size(i) > 1:
                found.append(_sharded.Cut(p.dim, i, sizes))
    return tuple(found)


def _starts(x: _Layout, mesh: DeviceMesh, dim: int) -> tuple[int, ...]:
    """Where the parts of a dim begin, on whatever rank."""
    parts = [(0, x.shape[dim])]
    for i, p in enumerate(x.placements):
        if isinstance(p, Shard) and p.dim == dim:
            parts = [
                (begin + before, size)
                for begin, whole in parts
                for sizes in [chunks(whole, mesh.size(i))]
                for before, size in zip(itertools.accumulate(sizes, initial=0), sizes, strict=False)
            ]
    return tuple(begin for begin, _ in parts)


def _elements(x: _Layout, mesh: DeviceMesh, dims: Sequence[int]) -> _sharded.Elements:
    order = sorted(dims, key=lambda d: (x.stride[d] != 0 or x.shape[d] == 1, -x.stride[d]))
    cuts = _cuts(x, mesh, dims)
    innermost = max((cut.dim for cut in cuts), key=order.index)
    return _sharded.Elements(tuple(order), tuple(x.shape[d] for d in order), cuts, _starts(x, mesh, innermost))


def _moved(x: _Layout, mesh: DeviceMesh, dims: Sequence[int], outermost: int) -> tuple[Placement, ...]:
    """Where reduced dims are cut in one run of elements at most: other cuts move to dims that are kept, or go."""
    placements = list(x.placements)
    cutting = [cut.mesh_dim for cut in _cuts(x, mesh, dims)]
    stays = next((i for i in cutting if placements[i].dim == outermost), None)
    for i in cutting:
        if i == stays:
            continue
        taken = {p.dim for p in placements if isinstance(p, Shard)}
        free = [d for d, size in enumerate(x.shape) if d not in dims and d not in taken and size >= mesh.size(i)]
        if free:
            placements[i] = Shard(max(free, key=lambda d: x.shape[d]))
        elif stays is None and x.shape[outermost] >= mesh.size(i):
            placements[i], stays = Shard(outermost), i
        else:
            placements[i] = Replicate()
    return tuple(placements)


@dataclasses.dataclass(frozen=True)
class _ReductionPlan:
    """What a reduction does with its input."""

    placements: tuple[Placement, ...]
    """Of the input, before anything is added."""
    dims: tuple[int, ...]
    in_any_order: bool
    cuts: tuple[_sharded.Cut, ...]
    """Of reduced dims; where there are none, each rank calls the op."""
    elements: _sharded.Elements | None
    """Of sums that have an order, where they are cut."""
    result: _Layout


@_remembered
def _reduction_plan(
    op: OpOverload, x: _Layout, mesh: DeviceMesh, _coordinate: tuple[int, ...], variant: str, named: tuple[Any, ...]
) -> _ReductionPlan:
    arguments = {name: list(value) if isinstance(value, tuple) else value for name, value in named}
    whole = op(x.meta(), variant, **arguments)  # checks the call, and says what comes out
    rank, keepdim, dim = len(x.shape), arguments.get("keepdim", False), arguments.get("dim")
    dims = tuple(sorted(d % rank for d in dim) if dim and rank else range(rank))
    in_any_order = _tree.any_order(_name(op), whole.dtype)
    # Other orders than that of `auto` are not cut.
    auto = variant == "auto" and not any(arguments.get(size) for size in ("block_size", "num_blocks"))
    if _cuts(x, mesh, dims) and not auto:
        gathered = [Replicate() if isinstance(p, Shard) and p.dim in dims else p for p in x.placements]
        x = dataclasses.replace(x, placements=tuple(gathered))
    elif _cuts(x, mesh, dims) and not in_any_order and not (found := _elements(x, mesh, dims)).have_nodes:
        outermost = next((d for d in found.order if x.shape[d] > 1), found.order[0])
        x = dataclasses.replace(x, placements=_moved(x, mesh, dims, outermost))
    cuts, placements = _cuts(x, mesh, dims), []
    for p in x.placements:
        if isinstance(p, Shard):
            p = Replicate() if p.dim in dims else Shard(p.dim if keepdim else p.dim - sum(d < p.dim for d in dims))
        placements.append(p)
    elements = _elements(x, mesh, dims) if cuts and not in_any_order else None
    result = dataclasses.replace(_layout(whole), placements=tuple(placements))
    return _ReductionPlan(x.placements, dims, in_any_order, cuts, elements, result)


def _name(op: OpOverload) -> str:
    return op._schema.name.removeprefix("treduce::")


def _reduction(op: OpOverload, x: DTensor, variant: str = "auto", **arguments: Any) -> DTensor:
    mesh = _mesh(op, [x])
    usual = ("dim", None), ("keepdim", False), ("dtype", None)
    found = _shortcut(
        _name(op),
        x,
        *(arguments.get(k, v) for k, v in usual),
        variant,
        *map(arguments.get, ("block_size", "num_blocks")),
    )
    if found is not NotImplemented:
        return found
    x = _settled(x)
    named = tuple((name, tuple(value) if isinstance(value, list) else value) for name, value in arguments.items())
    plan = _reduction_plan(op, _layout(x), mesh, tuple(mesh.get_coordinate() or ()), variant, named)
    local = _placed(x, plan.placements)
    if mesh.get_coordinate() is None:
        return _absent(mesh, plan.result)
    if not plan.cuts:
        several = len(plan.dims) > 1 and not plan.in_any_order
        result = op(_in_order_of(local, x.stride()) if several else local, variant, **arguments)
    elif plan.elements is None:
        result = _sharded.unordered(_name(op), local, plan.dims, plan.cuts, plan.result.dtype, mesh)
    else:
        result = _sharded.ordered(_name(op), local, plan.elements, plan.result.dtype, mesh)
    if plan.cuts and arguments.get("keepdim", False):
        for d in plan.dims:
            result = result.unsqueeze(d)
    return _wrapped(result, mesh, plan.result)


# A reduction as it is called again and again: what its call and layout determine is found once, and no dispatcher is
# asked.


_Known = tuple[Callable[[Tensor], Tensor], DTensorSpec] | None
"""What a rank does with its part, and what the result is; None where the general way must be taken."""

_known: dict[tuple[Any, ...], _Known] = {}
_MOST_KNOWN = 256  # of layouts: some keep indices on the device

_dispatch_modes, _function_modes = torch._C._len_torch_dispatch_stack, torch._C._len_torch_function_stack


def _shortcut(name: str, x: DTensor, dim: Any, *arguments: Any) -> Any:
    local, spec = x._local_tensor, x._spec
    if (
        type(local) is not Tensor
        or (torch.is_grad_enabled() and (x.requires_grad or local.requires_grad))
        or _dispatch_modes()
        or _function_modes()
    ):
        return NotImplemented
    # Meshes are equal where their groups are not. What is known keeps the mesh, so no other has its id.
    key = (id(spec.mesh), name, spec, tuple(dim) if type(dim) is list else dim, *arguments)
    try:
        known = _known.get(key, NotImplemented)
    except TypeError:
        return NotImplemented  # what cannot be hashed is no dim
    if known is NotImplemented:
        if len(_known) >= _MOST_KNOWN:
            _known.clear()
        known = _known[key] = _prepared(name, x, dim, *arguments)
    if known is None:
        return NotImplemented
    run, result = known
    return _made(run(local), result)


def _made(local: Tensor, spec: DTensorSpec) -> DTensor:
    """`from_local` for a layout that is known, without a gradient. The constructor does no more, in twice the time."""
    return DTensor.__new__(DTensor, local, spec, requires_grad=False)


def _prepared(
    name: str, x: DTensor, dim: Any, keepdim: bool, dtype: Any, variant: str, block_size: Any, num_blocks: Any
) -> _Known:
    mesh, layout = x.device_mesh, _layout(x)
    dims = [dim] if type(dim) is int else None if dim is None else list(dim)
    if mesh.get_coordinate() is None or not all(type(d) is int for d in dims or ()):
        return None
    if not all(type(p) in (Shard, Replicate) for p in x.placements):
        return None
    arguments = {"dim": dims, "keepdim": keepdim, "block_size": block_size, "num_blocks": num_blocks}
    if name in ("sum", "mean"):
        arguments["dtype"] = dtype
    op = getattr(torch.ops.treduce, name).default
    named = tuple((k, tuple(v) if isinstance(v, list) else v) for k, v in arguments.items())
    plan = _reduction_plan(op, layout, mesh, tuple(mesh.get_coordinate()), variant, named)
    if plan.placements != x.placements:
        return None
    result = plan.result
    spec = DTensorSpec(
        mesh, result.placements, tensor_meta=TensorMeta(torch.Size(result.shape), result.stride, result.dtype)
    )
    if not plan.cuts:
        call = functools.partial(getattr(ops, name), variant=variant, **arguments)
        if len(plan.dims) < 2 or plan.in_any_order:
            return call, spec
        return (lambda local: call(_in_order_of(local, layout.stride))), spec
    if plan.elements is None:
        added = functools.partial(
            _sharded.unordered, name, dims=plan.dims, cuts=plan.cuts, dtype=result.dtype, mesh=mesh
        )
    else:
        added = _sharded.prepared(name, x._local_tensor, plan.elements, result.dtype, mesh)
    if not keepdim:
        return added, spec

    def with_dims(local: Tensor) -> Tensor:
        value = added(local)
        for d in plan.dims:
            value = value.unsqueeze(d)
        return value

    return with_dims, spec


# All other ops: outputs are independent along some dims, and a mesh dim can share any of these.

_Dims = tuple[int | None, ...]
"""Which dim of the output each dim of an operand is; None for those that the output lacks."""


def _target(dims: _Dims, out: int | None) -> Placement:
    """Of an operand, where a mesh dim shares dim `out` of the output."""
    return Shard(dims.index(out)) if out is not None and out in dims else Replicate()


def _cost(x: _Layout, mesh_dim: int, ranks: int, after: Placement) -> float:
    """Bytes that each rank of a mesh dim receives."""
    before = x.placements[mesh_dim]
    if before.is_replicate() or before == after:
        return 0
    return math.prod(x.shape) * x.dtype.itemsize * (ranks - 1) / ranks / (ranks if isinstance(after, Shard) else 1)


@_remembered
def _independent_plan(
    operands: tuple[_Layout, ...], dims: tuple[_Dims, ...], mesh: DeviceMesh, whole: _Layout
) -> tuple[list[tuple[Placement, ...]], _Layout]:
    """The placements of operands and output: each mesh dim shares the dim of the output for which least is sent."""
    shared: list[int | None] = []
    for i in range(mesh.ndim):
        if all(x.placements[i].is_replicate() for x in operands):
            shared.append(None)
            continue
        ranks = mesh.size(i)
        used = {d[p.dim] for x, d in zip(operands, dims, strict=True) if isinstance(p := x.placements[i], Shard)}
        known = {out for d in dims for out in d}
        able = [out for out, size in enumerate(whole.shape) if out in known and (out in used or size >= ranks)]
        costs = {
            out: sum(_cost(x, i, ranks, _target(d, out)) for x, d in zip(operands, dims, strict=True))
            for out in (*able, None)
        }
        shared.append(min(costs, key=costs.__getitem__))
    placements = tuple(Replicate() if out is None else Shard(out) for out in shared)
    return [tuple(_target(d, out) for out in shared) for d in dims], dataclasses.replace(whole, placements=placements)


def _independent(
    op: OpOverload, arguments: Sequence[Any], named: dict[str, Any], dims_of: Callable[[Any], Sequence[_Dims]]
) -> Any:
    """Calls an op whose outputs, of one or several tensors, are independent along some dims.

    Args:
        op: the op.
        arguments: those by position; all tensors are among them.
        named: the others.
        dims_of: from the outputs, on no device, to the dims of each tensor.
    """
    given = [x for x in arguments if isinstance(x, Tensor)]
    mesh = _mesh(op, given)

    def run(tensors: Iterable[Tensor]) -> Any:
        left = iter(tensors)
        return op(*(next(left) if isinstance(x, Tensor) else x for x in arguments), **named)

    whole = run(_layout(x).meta() for x in given)  # checks the call, and says what comes out
    outputs = whole if isinstance(whole, tuple) else (whole,)
    before, given = given, [_settled(x) for x in given]
    dims = tuple(map(tuple, dims_of(whole)))
    placements, first = _independent_plan(tuple(map(_layout, given)), dims, mesh, _layout(outputs[0]))
    parts = [_placed(x, p) for x, p in zip(given, placements, strict=True)]
    layouts = [dataclasses.replace(_layout(output), placements=first.placements) for output in outputs]
    if mesh.get_coordinate() is None:
        results = [_absent(mesh, layout) for layout in layouts]
    else:
        found = run(parts)
        found = found if isinstance(whole, tuple) else (found,)
        results = [_wrapped(part, mesh, layout) for part, layout in zip(found, layouts, strict=True)]
        if all(x is settled for x, settled in zip(before, given, strict=True)):
            _remember(op, arguments, named, placements, [x._spec for x in results])
    return tuple(results) if isinstance(whole, tuple) else results[0]


# A call of a layout that was there before.

_known_calls: dict[tuple[Any, ...], tuple[list[tuple[Placement, ...]], list[DTensorSpec]]] = {}
"""The placements that operands must have, and what the results are."""


def _key(op: OpOverload, arguments: Sequence[Any], named: dict[str, Any]) -> tuple[Any, ...] | None:
    """What determines the layouts of the results, of a plain call."""
    key = [op, *named.items()]
    for x in arguments:
        if isinstance(x, DTensor):
            if type(x._local_tensor) is not Tensor or x._local_tensor.requires_grad:
                return None
            key += (id(x._spec.mesh), x._spec)
        else:
            key.append(tuple(x) if type(x) is list else x)
    return tuple(key)


def _remember(
    op: OpOverload,
    arguments: Sequence[Any],
    named: dict[str, Any],
    placements: list[tuple[Placement, ...]],
    results: list[DTensorSpec],
) -> None:
    key = _key(op, arguments, named)
    if key is not None:
        if len(_known_calls) >= _MOST_KNOWN:
            _known_calls.clear()
        _known_calls[key] = placements, results


def _again(op: OpOverload, arguments: Sequence[Any], named: dict[str, Any]) -> Any:
    key = _key(op, arguments, named)
    known = None if key is None else _known_calls.get(key)
    if known is None:
        return NotImplemented
    left = iter(known[0])
    parts = [_placed(x, next(left)) if isinstance(x, DTensor) else x for x in arguments]
    found = op(*parts, **named)
    if not isinstance(found, tuple):
        return _made(found, known[1][0])
    return tuple(_made(part, spec) for part, spec in zip(found, known[1], strict=True))


def _broadcast(shape: Sequence[int], out: Sequence[int]) -> _Dims:
    """The dims of the output that those of an operand are; None where it is repeated."""
    first = len(out) - len(shape)
    return tuple(first + d if size == out[first + d] else None for d, size in enumerate(shape))


def _matmul(op: OpOverload, a: DTensor, b: DTensor, *rest: Any, **named: Any) -> DTensor:
    def dims(whole: Tensor) -> Sequence[_Dims]:
        rows, columns = a.dim() > 1, b.dim() > 1
        batch = whole.shape[: whole.dim() - rows - columns]
        left = (*_broadcast(a.shape[:-2], batch), len(batch), None) if rows else (None,)
        right = (*_broadcast(b.shape[:-2], batch), None, len(batch) + rows) if columns else (None,)
        return left, right

    return _independent(op, (a, b, *rest), named, dims)


def _linear(op: OpOverload, x: DTensor, weight: DTensor, *rest: Any, **named: Any) -> DTensor:
    features = x.dim() - 1 if weight.dim() == 2 else None
    bias = [(features,) * t.dim() for t in rest if isinstance(t, Tensor)]
    dims = [(*range(x.dim() - 1), None), (features, None)[-weight.dim() :], *bias]
    return _independent(op, (x, weight, *rest), named, lambda whole: dims)


def _vector_add(op: OpOverload, a: DTensor, b: DTensor, *rest: Any, **named: Any) -> DTensor:
    return _independent(op, (a, b, *rest), named, lambda whole: [_broadcast(x.shape, whole.shape) for x in (a, b)])


def _attention_dims(query: DTensor, key: DTensor, mask: Any, queries: bool) -> tuple[_Dims, _Dims, list[_Dims]]:
    """Of query, of key and value, and of the mask, if there is one.

    Batches are independent. Without a mask heads are, too, and queries, if `queries`; a mask decides over all heads and
    queries of a batch which keys count.
    """
    rank, ranks = query.dim(), query.device_mesh.size()
    batch, heads, length = (None,) * (4 - rank) + tuple(range(min(rank - 1, 3)))
    if mask is not None or (rank > 2 and query.shape[-3] != key.shape[-3] and key.shape[-3] % ranks):
        heads = None
    if mask is not None or not queries:
        length = None
    lead = (batch, heads)[4 - rank :]
    of_mask = []
    if mask is not None:
        of_mask.append((batch if mask.dim() == 4 and mask.shape[0] > 1 else None, *[None] * 3)[: mask.dim()])
    return (*lead, length, None), (*lead, None, None), of_mask


def _attention(op: OpOverload, query: DTensor, key: DTensor, value: DTensor, *rest: Any, **named: Any) -> DTensor:
    attn_mask = rest[0] if rest else None

    def dims(whole: Tensor) -> Sequence[_Dims]:
        is_causal = len(rest) > 2 and rest[2]
        of_query, of_keys, of_mask = _attention_dims(query, key, attn_mask, queries=not is_causal)
        return [of_query, of_keys, of_keys, *of_mask]

    return _independent(op, (query, key, value, *rest), named, dims)


def _attention_backward(
    op: OpOverload, grad: DTensor, query: DTensor, key: DTensor, value: DTensor, attn_mask: Any, *rest: Any
) -> tuple[DTensor, ...]:
    def dims(whole: Any) -> Sequence[_Dims]:
        # The gradients of keys are sums over queries.
        of_query, of_keys, of_mask = _attention_dims(query, key, attn_mask, queries=False)
        return [of_query, of_query, of_keys, of_keys, *of_mask]

    return _independent(op, (grad, query, key, value, attn_mask, *rest), {}, dims)


def _along(op: OpOverload, *arguments: Any, **named: Any) -> DTensor:
    """Of softmax and its kin: all dims but one are independent."""
    of_name = dict(zip((argument.name for argument in op._schema.arguments), arguments, strict=False))
    tensors = [x for x in arguments if isinstance(x, Tensor)]
    rank = tensors[0].dim()

    def dims(whole: Tensor) -> Sequence[_Dims]:
        along = of_name["dim"] % max(rank, 1)
        behind = whole.dim() - rank  # logsumexp drops the dim
        return [tuple(None if d == along else d + behind * (d > along) for d in range(rank)) for _ in tensors]

    return _independent(op, arguments, named, dims)


def _norm(op: OpOverload, *arguments: Any, **named: Any) -> Any:
    """Of norms, forward and backward: the dims before those that are normalized are independent."""
    names = [argument.name for argument in op._schema.arguments]
    of_name = dict(zip(names, arguments, strict=False))
    rows = of_name["input"].dim() - len(of_name["normalized_shape"])

    def dims(whole: Any) -> Sequence[_Dims]:
        return [
            tuple(d if d < rows and name not in ("weight", "bias") else None for d in range(x.dim()))
            for name, x in of_name.items()
            if isinstance(x, Tensor)
        ]

    return _independent(op, arguments, named, dims)


def _pointwise(op: OpOverload, x: DTensor, *rest: Any, **named: Any) -> DTensor:
    return _independent(op, (x, *rest), named, lambda whole: [tuple(range(x.dim()))])


RULES: dict[str, Callable[..., Any]] = {
    "sum": _reduction,
    "mean": _reduction,
    "amax": _reduction,
    "amin": _reduction,
    "matmul": _matmul,
    "linear": _linear,
    "scaled_dot_product_attention": _attention,
    "scaled_dot_product_attention_backward": _attention_backward,
    "vector_add": _vector_add,
    "softmax": _along,
    "softmax_backward": _along,
    "log_softmax": _along,
    "log_softmax_backward": _along,
    "logsumexp": _along,
    "layer_norm": _norm,
    "layer_norm_backward": _norm,
    "rms_norm": _norm,
    "rms_norm_backward": _norm,
    "sqrt": _pointwise,
    "elementary": _pointwise,
}


def _dispatched(rule: Callable[..., Any], _, op: OpOverload, types: Any, args: Any, kwargs: Any) -> Any:
    with torch.no_grad():  # autograd is above: the ops have gradients of their own
        args = [x.detach() if isinstance(x, DTensor) and x.requires_grad else x for x in args]
        found = NotImplemented if rule is _reduction else _again(op, args, kwargs or {})
        return rule(op, *args, **(kwargs or {})) if found is NotImplemented else found


def register() -> None:
    """Tells torch what to do where these ops meet a DTensor."""
    ops.shortcuts[DTensor] = _shortcut
    for name, rule in RULES.items():
        torch.library.register_torch_dispatch(f"treduce::{name}", DTensor, functools.partial(_dispatched, rule))
