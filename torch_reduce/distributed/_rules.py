"""What the ops do with DTensors: what each rank computes by itself, and what moves between them where it cannot."""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.distributed import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard

from . import _collectives, _sharded, _tree

_PARTIAL = {"sum": "sum", "avg": "mean", "max": "max", "min": "min"}


def chunks(size: int, ranks: int) -> tuple[int, ...]:
    """How much of a dim each rank has, as DTensor shards it."""
    most = -(-size // ranks)
    return tuple(min(most, max(size - r * most, 0)) for r in range(ranks))


def _settled(x: DTensor) -> DTensor:
    """With placements that rules know, Shard and Replicate. Partial values are added as a tree over ranks."""
    mesh, placements = x.device_mesh, list(x.placements)
    local = None
    for i in reversed(range(mesh.ndim)):
        p = placements[i]
        if type(p) is Partial and p.reduce_op in _PARTIAL:
            local = (x.to_local() if local is None else local).clone()
            _collectives.all_reduce(local, _PARTIAL[p.reduce_op], mesh.get_group(i))
            placements[i] = Replicate()
    if local is not None:
        x = _wrapped(local, mesh, placements, x)
    if all(type(p) in (Shard, Replicate) for p in x.placements):
        return x
    return x.redistribute(placements=[p if type(p) is Shard else Replicate() for p in x.placements])


def _wrapped(local: Tensor, mesh: DeviceMesh, placements: Sequence[Placement], like: Tensor) -> DTensor:
    """`like`: the whole tensor, or one on no device of its shape and strides."""
    return DTensor.from_local(local, mesh, placements, run_check=False, shape=like.shape, stride=like.stride())


def _in_order_of(local: Tensor, whole: DTensor) -> Tensor:
    """The part with its dims in memory as those of the whole are: redistribution may have changed that."""
    order = sorted(range(local.dim()), key=lambda d: (-whole.stride(d), d))
    strides = [local.stride(d) for d in order if local.shape[d] > 1]
    if strides == sorted(strides, reverse=True):
        return local
    return local.permute(order).contiguous().permute(sorted(range(local.dim()), key=order.__getitem__))


def _meta(x: Any) -> Any:
    return torch.empty(x.shape, dtype=x.dtype, device="meta") if isinstance(x, Tensor) else x


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


def _cuts(x: DTensor, dims: Sequence[int]) -> list[_sharded.Cut]:
    """How the mesh cuts these dims, in the order of the mesh's dims."""
    mesh, here = x.device_mesh, list(x.shape)
    found = []
    for i, p in enumerate(x.placements):
        if isinstance(p, Shard):
            sizes = chunks(here[p.dim], mesh.size(i))
            here[p.dim] = sizes[mesh.get_local_rank(i)]
            if p.dim in dims and mesh.size(i) > 1:
                found.append(_sharded.Cut(p.dim, mesh.get_group(i), sizes))
    return found


def _starts(x: DTensor, dim: int) -> tuple[int, ...]:
    """Where the parts of a dim begin, on whatever rank."""
    parts = [(0, x.shape[dim])]
    for i, p in enumerate(x.placements):
        if isinstance(p, Shard) and p.dim == dim:
            parts = [
                (begin + before, size)
                for begin, whole in parts
                for sizes in [chunks(whole, x.device_mesh.size(i))]
                for before, size in zip(itertools.accumulate(sizes, initial=0), sizes, strict=False)
            ]
    return tuple(begin for begin, _ in parts)


def _elements(x: DTensor, dims: Sequence[int]) -> _sharded.Elements:
    strides = x.stride()
    order = sorted((d for d in dims), key=lambda d: (strides[d] != 0 or x.shape[d] == 1, -strides[d]))
    cuts = _cuts(x, dims)
    innermost = max((cut.dim for cut in cuts), key=order.index)
    return _sharded.Elements(tuple(order), tuple(x.shape[d] for d in order), tuple(cuts), _starts(x, innermost))


def _moved(x: DTensor, dims: Sequence[int], outermost: int) -> DTensor:
    """With its reduced dims cut in one run of elements at most: other cuts move to dims that are kept, or go."""
    mesh, placements = x.device_mesh, list(x.placements)
    cutting = [i for i, p in enumerate(placements) if isinstance(p, Shard) and p.dim in dims and mesh.size(i) > 1]
    stays = next((i for i in cutting if placements[i].dim == outermost), None)
    for i in cutting:
        if i == stays:
            continue
        taken = {p.dim for p in placements if isinstance(p, Shard)}
        free = [d for d in range(x.dim()) if d not in dims and d not in taken and x.shape[d] >= mesh.size(i)]
        if free:
            placements[i] = Shard(max(free, key=lambda d: x.shape[d]))
        elif stays is None and x.shape[outermost] >= mesh.size(i):
            placements[i], stays = Shard(outermost), i
        else:
            placements[i] = Replicate()
    return x.redistribute(placements=placements)


def _reduction(op: OpOverload, x: DTensor, variant: str = "auto", **arguments: Any) -> DTensor:
    mesh = _mesh(op, [x])
    whole = op(_meta(x), variant, **arguments)  # checks the call, and says what comes out
    name = op._schema.name.removeprefix("treduce::")
    keepdim = arguments.get("keepdim", False)
    dims = arguments.get("dim")
    dims = sorted(d % x.dim() for d in dims) if dims else list(range(x.dim()))

    x = _settled(x)
    free = _tree.any_order(name, whole.dtype)
    # Other orders than that of `auto` are not cut.
    auto = variant == "auto" and not any(arguments.get(size) for size in ("block_size", "num_blocks"))
    if _cuts(x, dims) and not auto:
        x = x.redistribute(
            placements=[Replicate() if isinstance(p, Shard) and p.dim in dims else p for p in x.placements]
        )
    elif _cuts(x, dims) and not free and not (elements := _elements(x, dims)).have_nodes:
        x = _moved(x, dims, next((d for d in elements.order if x.shape[d] > 1), elements.order[0]))

    local, cuts = x.to_local(), _cuts(x, dims)
    if not cuts:
        several = len(dims) > 1 and not free
        result = op(_in_order_of(local, x) if several else local, variant, **arguments)
    elif free:
        result = _sharded.unordered(name, local, dims, cuts, whole.dtype)
    else:
        result = _sharded.ordered(name, local, _elements(x, dims), whole.dtype)
    if cuts and keepdim:
        for d in dims:
            result = result.unsqueeze(d)
    placements = []
    for p in x.placements:
        if isinstance(p, Shard):
            p = Replicate() if p.dim in dims else Shard(p.dim if keepdim else p.dim - sum(d < p.dim for d in dims))
        placements.append(p)
    return _wrapped(result, mesh, placements, whole)


# Products and sums of two: outputs are independent, so a mesh dim can share any dim of the output.


@dataclasses.dataclass(frozen=True)
class _Operand:
    """A tensor and, for each of its dims, which dim of the output it is; None for those that the output lacks."""

    tensor: DTensor
    dims: tuple[int | None, ...]

    def placed(self, out: int | None) -> Placement:
        """Where a mesh dim shares dim `out` of the output."""
        return Shard(self.dims.index(out)) if out is not None and out in self.dims else Replicate()

    def cost(self, mesh_dim: int, out: int | None) -> float:
        """Bytes that each rank of the mesh dim receives."""
        before, after = self.tensor.placements[mesh_dim], self.placed(out)
        if before.is_replicate() or before == after:
            return 0
        ranks = self.tensor.device_mesh.size(mesh_dim)
        whole = self.tensor.numel() * self.tensor.element_size()
        return whole * (ranks - 1) / ranks / (ranks if isinstance(after, Shard) else 1)


def _independent(op: OpOverload, operands: Sequence[_Operand], run: Callable[..., Tensor], whole: Tensor) -> DTensor:
    """Each mesh dim shares the dim of the output for which least is sent."""
    mesh = operands[0].tensor.device_mesh
    shared: list[int | None] = []
    for i in range(mesh.ndim):
        if all(o.tensor.placements[i].is_replicate() for o in operands):
            shared.append(None)
            continue
        used = {o.dims[p.dim] for o in operands if isinstance(p := o.tensor.placements[i], Shard)}
        able = [d for d, size in enumerate(whole.shape) if d in used or size >= mesh.size(i)]
        shared.append(min([*able, None], key=lambda d, i=i: sum(o.cost(i, d) for o in operands)))
    locals_ = [o.tensor.redistribute(placements=[o.placed(d) for d in shared]).to_local() for o in operands]
    return _wrapped(run(*locals_), mesh, [Replicate() if d is None else Shard(d) for d in shared], whole)


def _broadcast(shape: Sequence[int], out: Sequence[int]) -> tuple[int | None, ...]:
    """The dims of the output that those of an operand are; None where it is repeated."""
    first = len(out) - len(shape)
    return tuple(first + d if size == out[first + d] else None for d, size in enumerate(shape))


def _matmul(op: OpOverload, a: DTensor, b: DTensor, *arguments: Any, **named: Any) -> DTensor:
    _mesh(op, [a, b])
    whole = op(_meta(a), _meta(b), *arguments, **named)
    rows, columns = a.dim() > 1, b.dim() > 1
    batch = whole.shape[: whole.dim() - rows - columns]
    a_dims = (*_broadcast(a.shape[:-2], batch), len(batch), None) if rows else (None,)
    b_dims = (*_broadcast(b.shape[:-2], batch), None, len(batch) + rows) if columns else (None,)
    operands = [_Operand(_settled(a), a_dims), _Operand(_settled(b), b_dims)]
    return _independent(op, operands, lambda a, b: op(a, b, *arguments, **named), whole)


def _linear(
    op: OpOverload, x: DTensor, weight: DTensor, bias: DTensor | None = None, *arguments: Any, **named: Any
) -> DTensor:
    tensors = [x, weight] if bias is None else [x, weight, bias]
    _mesh(op, tensors)
    whole = op(_meta(x), _meta(weight), _meta(bias), *arguments, **named)
    features = x.dim() - 1 if weight.dim() == 2 else None
    dims = [(*range(x.dim() - 1), None), (features, None)[-weight.dim() :]]
    if bias is not None:
        dims.append((features,) * bias.dim())
    operands = [_Operand(_settled(t), d) for t, d in zip(tensors, dims, strict=True)]
    run = lambda x, weight, bias=None: op(x, weight, bias, *arguments, **named)  # noqa: E731
    return _independent(op, operands, run, whole)


def _vector_add(op: OpOverload, a: DTensor, b: DTensor, *arguments: Any, **named: Any) -> DTensor:
    _mesh(op, [a, b])
    whole = op(_meta(a), _meta(b), *arguments, **named)
    operands = [_Operand(_settled(t), _broadcast(t.shape, whole.shape)) for t in (a, b)]
    return _independent(op, operands, lambda a, b: op(a, b, *arguments, **named), whole)


RULES: dict[str, Callable[..., DTensor]] = {
    "sum": _reduction,
    "mean": _reduction,
    "amax": _reduction,
    "amin": _reduction,
    "matmul": _matmul,
    "linear": _linear,
    "vector_add": _vector_add,
}


def _dispatched(rule: Callable[..., DTensor], _, op: OpOverload, types: Any, args: Any, kwargs: Any) -> DTensor:
    with torch.no_grad():  # autograd is above: the ops have gradients of their own
        return rule(op, *args, **(kwargs or {}))


def register() -> None:
    """Tells torch what to do where these ops meet a DTensor."""
    for name, rule in RULES.items():
        torch.library.register_torch_dispatch(f"treduce::{name}", DTensor, functools.partial(_dispatched, rule))
