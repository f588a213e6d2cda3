"""What torch.compile does in batch_invariant: the ops that eager calls, arithmetic fused where that changes no bit."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch._dynamo.backends.common import aot_autograd
from torch._guards import TracingContext
from torch._inductor import config
from torch._inductor.compile_fx import compile_fx_inner
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.exc import GPUTooOldForTriton, InductorError, InvalidCxxCompiler, TritonMissing
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import OperatorSupportBase

_aten = torch.ops.aten
_NO_COMPILER = (InvalidCxxCompiler, TritonMissing, GPUTooOldForTriton)

# Between two ops inductor rounds to 16 bits on CUDA only, and subnormal float16 not as torch does.
_FLOATS = {"cuda": (torch.float32, torch.bfloat16), "cpu": (torch.float32,)}

# Rounded once, to nearest, by every compiler. Not here: division and functions, of which inductor has its own; maxima
# and negation, whose zeros may have another sign; and what rounds twice, such as addcmul.
_ARITHMETIC = {
    _aten.add.Tensor, _aten.add.Scalar, _aten.sub.Tensor, _aten.sub.Scalar, _aten.rsub.Scalar, _aten.mul.Tensor,
    _aten.mul.Scalar, _aten.abs.default, _aten.pow.Tensor_Scalar, _aten.where.self,
    _aten.masked_fill.Scalar, _aten._to_copy.default, _aten.cat.default,
}  # fmt: skip
# Views between them.
_VIEWS = {
    _aten.view.default, _aten._unsafe_view.default, _aten.transpose.int, _aten.permute.default, _aten.unsqueeze.default,
    _aten.squeeze.dim, _aten.expand.default, _aten.slice.Tensor, _aten.select.int,
}  # fmt: skip

# Sums of products stay two roundings, results of 16 bits are rounded after each op, and subnormal numbers stay.
_EXACTLY = {
    "emulate_precision_casts": True,
    "eager_numerics.disable_ftz": True,
    "cpp.enable_floating_point_contract_flag": "off",
    "fx_graph_cache": False,  # it takes a part for a whole graph of Dynamo's, whose sizes have names
}


def _exact(node: fx.Node) -> bool:
    """Whether inductor computes the bits that torch does."""
    tensors = [n.meta.get("val") for n in node.all_input_nodes if isinstance(n.meta.get("val"), Tensor)]
    result = node.meta.get("val")
    if node.target not in _ARITHMETIC or not isinstance(result, Tensor):
        return False
    floats = _FLOATS.get(result.device.type, ())
    if result.dtype not in floats or any(t.device != result.device for t in tensors):
        return False
    if node.target is _aten._to_copy.default:
        return set(node.kwargs) == {"dtype"} and tensors[0].dtype in floats
    if any(t.dtype not in (result.dtype, torch.bool) for t in tensors) or node.kwargs.get("alpha", 1) != 1:
        return False
    numbers = [a for a in node.args[1:] if isinstance(a, (int, float))]
    if node.target is _aten.pow.Tensor_Scalar:
        return numbers == [2]
    if node.target is _aten.cat.default:
        return True
    # A number that has fewer digits in 16 bits may be rounded before or after.
    return all(
        result.dtype == torch.float32 or torch.tensor(a, dtype=result.dtype).double().item() == a for a in numbers
    ) and len(numbers) + len(node.all_input_nodes) >= len(node.args)


class _Fusable(OperatorSupportBase):
    def is_node_supported(self, submodules: Mapping[str, torch.nn.Module], node: fx.Node) -> bool:
        return node.op == "call_function" and (node.target in _VIEWS or _exact(node))


def _fused(part: fx.GraphModule) -> Callable[..., Any]:
    """Inductor's kernels of a part of a graph; the part itself, where nothing compiles them."""
    inputs = [n.meta["val"] for n in part.graph.find_nodes(op="placeholder")]
    several = isinstance(part.graph.output_node().args[0], (list, tuple))

    def listed(*args: Any) -> Any:
        return tuple(part(*args)) if several else (part(*args),)

    lowered = make_fx(listed, decomposition_table=select_decomp_table())(*inputs)
    for node in lowered.graph.nodes:
        node.meta["low_precision_pointwise_barrier"] = True  # inductor's word for: round as eager does
    output = lowered.graph.output_node()
    found = [n.meta["val"] for n in output.args[0]]  # type: ignore[union-attr]
    output.meta["user_visible_output_idxs"] = list(range(len(found)))
    output.meta["original_output_strides"] = [tuple(x.stride()) for x in found]
    context = TracingContext.try_get()
    of_graph = context.output_strides if context else None
    try:
        if context:
            context.output_strides = None  # those of the whole graph
        with config.patch(_EXACTLY):
            kernels: Any = compile_fx_inner(lowered, inputs)
    except (InductorError, *_NO_COMPILER) as error:
        if not isinstance(getattr(error, "inner_exception", error), _NO_COMPILER):
            raise
        return lambda *args: part(*args)  # a node of a graph calls functions
    finally:
        if context:
            context.output_strides = of_graph
    strides = [x.stride() if isinstance(x, Tensor) else None for x in inputs]

    def run(*args: Any) -> Any:
        results = kernels([_laid_out(x, s) for x, s in zip(args, strides, strict=True)])
        return results if several else results[0]

    return run


def _laid_out(x: Any, strides: Sequence[Any] | None) -> Any:
    """An op of ours may lay its result out otherwise than torch's, whose strides the kernels were compiled for."""
    if strides is None or x.stride() == strides or not all(isinstance(s, int) for s in strides):
        return x
    return x.new_empty_strided(x.shape, strides).copy_(x)


def _compile(graph: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
    partitioner = CapabilityBasedPartitioner(graph, _Fusable())
    worth = [p for p in partitioner.propose_partitions() if sum(n.target in _ARITHMETIC for n in p.nodes) > 1]
    graph = partitioner.fuse_partitions(worth)
    for node in graph.graph.find_nodes(op="call_module"):
        part = graph.get_submodule(node.target)
        node.op, node.target = "call_function", _fused(part)
    graph.recompile()

    def boxed(args: list[Any]) -> Any:
        given = tuple(args)
        args.clear()
        return graph(*given)

    boxed._boxed_call = True  # type: ignore[attr-defined]
    return boxed


backend: Callable[..., Any] = aot_autograd(fw_compiler=_compile)
