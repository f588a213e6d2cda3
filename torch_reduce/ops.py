"""The ops as typed functions: thin wrappers of `torch.ops.treduce.*`, which do the work and the checks.

All run on CPU and CUDA tensors, under autograd to second order and in forward mode, in `torch.func`'s transforms (vmap
makes one call for the batch), in `torch.compile`, `torch.export` and CUDA graphs; nested tensors are refused. For
every deterministic variant the order of additions depends only on the number of elements that are added and, for the
whole-tensor rungs, on the dtype and the sizes that the caller names. So a reduction gives the same bits on every run,
stream and GPU model and on the CPU, alone or in a batch; for products see `matmul`.
"""

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling as _is_traced

from . import _C
from ._names import MatmulName, ReductionName, VectorAddName

# The overloads, called directly: torch.ops.treduce.sum would search for its overload at each call. Most also have C
# functions (csrc/torch/functions.cpp), which call the same op in less time. Where the call must be visible
# (torch.compile, tensor subclasses, modes), the op is called.
_sum = torch.ops.treduce.sum.default
_mean = torch.ops.treduce.mean.default
_amax = torch.ops.treduce.amax.default
_amin = torch.ops.treduce.amin.default
_matmul = torch.ops.treduce.matmul.default
_linear = torch.ops.treduce.linear.default
_attention = torch.ops.treduce.scaled_dot_product_attention.default
_vector_add = torch.ops.treduce.vector_add.default
_reduce_to = torch.ops.treduce.reduce_to_.default
_matmul_to = torch.ops.treduce.matmul_to_.default

# Reductions of a subclass of Tensor that need no dispatcher: (op, input, dim, keepdim, dtype, variant, block_size,
# num_blocks) to a result, or to NotImplemented for anything unusual. torch_reduce.distributed has one for DTensor.
shortcuts: dict[type, Callable[..., Any]] = {}


def _shortcut(op: str, input: Tensor, *arguments: Any) -> Any:
    found = shortcuts.get(type(input))
    return NotImplemented if found is None else found(op, input, *arguments)


def check_kinds(op: str, dim: Any = 0, /, **tensors: Any) -> None:
    """Says what is no Tensor, or no int, where torch.ops would say that its schema is not met."""
    for name, value in tensors.items():
        if not isinstance(value, Tensor):
            raise TypeError(f"{op}: {name} is a Tensor, got {type(value).__name__}")
    if isinstance(dim, tuple | list | float | str | bool | None):
        raise TypeError(f"{op}: dim is an int, got {dim!r}")


def _check_call(op: str, input: Any, dim: Any, keepdim: Any, dtype: Any = None) -> None:
    """Says the right call where something else stands in its place; what is left, torch.ops says."""
    for name, value in (("dim", dim), ("keepdim", keepdim)):
        if isinstance(value, str):
            raise TypeError(f"{op}: got {value!r} for {name}; a rung is named: {op}(x, variant={value!r})")
    check_dims(op, input, dim, dtype)


def check_dims(op: str, input: Any, dim: Any, dtype: Any = None) -> None:
    """The same of a reduction that has no rungs."""
    if not isinstance(input, Tensor):
        raise TypeError(f"{op} takes a Tensor, got a {type(input).__name__}")
    if isinstance(dim, bool):
        raise TypeError(f"{op}: got {dim} for dim, which is an int or ints; keepdim is named: {op}(x, keepdim={dim})")
    if isinstance(dim, float | str):
        raise TypeError(f"{op}: got {dim!r} for dim, which is an int or ints")
    if not isinstance(dtype, torch.dtype | None):
        raise TypeError(f"{op}: got {dtype!r} for dtype, which is a torch.dtype such as torch.float32")


def _check_out(op: str, out: Any, *inputs: Tensor) -> None:
    if not isinstance(out, Tensor):
        raise TypeError(f"{op}: out is a Tensor, got a {type(out).__name__}")
    for x in (out, *inputs):
        if type(x) in shortcuts:
            raise NotImplementedError(f"{op} has no out= for a {type(x).__name__}")
    if torch.is_grad_enabled() and any(x.requires_grad for x in (out, *inputs)):
        raise RuntimeError(f"{op}: what is written to out= has no gradient; call it under torch.no_grad() or without")


def _target(out: Tensor) -> Tensor:
    """Where an op writes what belongs into `out`: there, or to memory of its shape that is one piece."""
    lazy = not _is_traced() and (out.is_conj() or out.is_neg())  # dynamo does not trace these
    as_it_lies = out.is_contiguous() and not lazy
    return out if as_it_lies else torch.empty_like(out, memory_format=torch.contiguous_format)


def _written(out: Tensor, target: Tensor) -> Tensor:
    if target is not out:
        return out.copy_(target)
    if not _is_traced():
        torch.autograd.graph.increment_version(out)  # for who has saved it for a backward
    return out


def _resize(op: str, out: Tensor, shape: torch.Size) -> None:
    """As torch does where `out` has another shape than the result: with a warning, if it has elements."""
    if out.numel() > 0:
        warnings.warn(
            f"{op}: out has shape {tuple(out.shape)} and is resized to {tuple(shape)}; "
            "out.resize_(0) before the call says that this is meant",
            stacklevel=4,
        )
    out.resize_(shape)


def _write_to(
    out: Tensor, op: str, write: Callable[[Tensor], object], shape: Callable[[], torch.Size], *inputs: Tensor
) -> Tensor:
    """Calls `write` with where the result belongs, and again after `out` got the shape that it needs."""
    _check_out(op, out, *inputs)
    target = _target(out)
    try:
        write(target)
    except ValueError:
        needed = shape()
        if needed == out.shape:
            raise
        _resize(op, out, needed)
        target = _target(out)
        write(target)
    return _written(out, target)


def copied_to(out: Tensor, op: str, compute: Callable[[], Tensor], *inputs: Tensor) -> Tensor:
    """The same for an op that writes its results to new memory: they are copied."""
    _check_out(op, out, *inputs)
    result = compute()
    if out.dtype != result.dtype:
        raise TypeError(f"{op}: the result is {result.dtype}, and out {out.dtype}")
    if out.device != result.device:
        raise ValueError(f"{op}: the result is on {result.device}, and out on {out.device}")
    if out.shape != result.shape:
        _resize(op, out, result.shape)
    return out.copy_(result)


def _reduced_to(
    out: Tensor,
    op: str,
    input: Tensor,
    dim: int | Sequence[int] | None,
    keepdim: bool,
    dtype: torch.dtype | None,
    variant: str,
    **sizes: int | None,
) -> Tensor:
    _check_call(op, input, dim, keepdim, dtype)
    _check_out(op, out, input)
    if dtype is not None and dtype != out.dtype:
        raise TypeError(f"{op}: dtype is {dtype}, and that of out {out.dtype}")

    def write(target: Tensor) -> None:
        _reduce_to(target, input, op, variant, dim=dim, keepdim=keepdim, **sizes)

    def shape() -> torch.Size:
        of_op = getattr(torch.ops.treduce, op).default
        return of_op(input.to("meta"), variant, dim=dim, keepdim=keepdim, **sizes).shape

    return _write_to(out, op, write, shape, input)


def sum(
    input: Tensor,
    dim: int | Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
    variant: ReductionName = "auto",
    block_size: int | None = None,
    num_blocks: int | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """The sum of all elements or along dims, as `torch.sum(input, dim, keepdim, dtype=dtype)`.

    Args:
        input: a dense tensor of any shape and strides; float32, float64, float16, bfloat16, int8, uint8, int16, int32,
            int64, bool, and, for `"auto"` and the rungs along dims, 8-bit floats, complex numbers, uint16, uint32 and
            uint64. It is read in place, whatever its strides, unless more than six reduced or six kept dims are left
            after dims that are contiguous with each other are joined: then it is copied first; so are the last three
            and the 8-bit floats but float8_e4m3fn and float8_e5m2, converted.
        dim: the dim or dims to sum along, in any order, negative ones from the end. None, `()` and `[]`: all of them.
        keepdim: whether the reduced dims stay, with size 1.
        dtype: of the result. Each element is converted as it is read, as `input.to(dtype)` would. The rungs that
            reduce whole tensors take only the dtype that the result has anyway.
        variant: a rung of the ladder or an alias of one; `variants("sum")` lists them, and the `along_dims` of each
            says whether it takes `dim`. `"auto"` picks the fastest. It and the rungs along dims give the same bits,
            except for `"compensated"` and `"exact"`, which are more accurate.
        block_size: threads in a block, a power of two; 1 to 1024 for the two-pass rungs, 32 to 1024 for the others.
            Default: the rung's own. It changes the bits of whole-tensor rungs only.
        num_blocks: blocks in the grid, for the rungs that take it. Default: the rung's own. It changes the bits of
            whole-tensor rungs only.
        out: where the result is written, which is then what is returned: a tensor of its dtype. One of another shape is
            resized, as torch does: with a warning, if it has elements. Called without gradients.

    Returns:
        A contiguous tensor of the shape that torch gives: `input.shape` without the reduced dims or, with `keepdim`,
        with size 1 for each. Its dtype is `dtype` or, by default, int64 for integers and bool (sums wrap), float32 for
        8-bit floats and the dtype of `input` otherwise. Floats of 16 and 8 bits are added in float32 and rounded once.
        The sum of no elements is 0. A result of integers carries no gradient. Under `torch.autocast` on CUDA sums of
        16-bit floats are float32, as torch's, unless there is `dtype` or `out`.

    Raises:
        ValueError: an unknown variant, a size that it does not take, `dim` or a converting `dtype` with a rung that
            reduces whole tensors, or a layout that the named rung does not read.
        TypeError: a dtype that is not listed above, or an 8-bit float as `dtype`.
        IndexError: a dim out of range.
        RuntimeError: a dim named twice.
        NotImplementedError: a sparse tensor, a variant that this GPU cannot run, or a CUDA tensor in a build without
            CUDA.

    Determinism:
        The same bits everywhere, except for `"atomic"`, which adds partial sums in the order in which blocks finish:
        on a GPU, `torch.use_deterministic_algorithms(True)` makes its sums of floats raise.
        `"auto"` and the rungs along dims add the elements of an output in their order in memory, largest stride first,
        in a tree that the number of those elements alone determines: `sum(x, 1)[i]` is `sum(x[i])`, bit for bit.

    Source:
        csrc/reduce: the table in ladder.cpp, the order of additions in pairwise.h (whole-tensor rungs: plan.h), a file
        a rung in kernels.
    """
    if out is not None:
        sizes = {"block_size": block_size, "num_blocks": num_blocks}
        return _reduced_to(out, "sum", input, dim, keepdim, dtype, variant, **sizes)
    if not _is_traced():
        result = _C.sum(input, variant, dim, keepdim, dtype, block_size, num_blocks)
        if result is NotImplemented:
            result = _shortcut("sum", input, dim, keepdim, dtype, variant, block_size, num_blocks)
        if result is not NotImplemented:
            return result
    _check_call("sum", input, dim, keepdim, dtype)
    return _sum(input, variant, dim=dim, keepdim=keepdim, dtype=dtype, block_size=block_size, num_blocks=num_blocks)


def mean(
    input: Tensor,
    dim: int | Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
    variant: ReductionName = "auto",
    block_size: int | None = None,
    num_blocks: int | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """The mean of all elements or along dims, as `torch.mean(input, dim, keepdim, dtype=dtype)`.

    It is `sum` with one division, by the number of elements, before the rounding.

    Args:
        input: as for `sum`; integers and bool only where `dtype` is given.
        dim: as for `sum`.
        keepdim: as for `sum`.
        dtype: of the result, a floating-point or complex one; otherwise as for `sum`.
        variant: as for `sum`.
        block_size: as for `sum`.
        num_blocks: as for `sum`.
        out: as for `sum`.

    Returns:
        A contiguous tensor, shaped as that of `sum`, of `dtype` or, by default, the dtype of `input` (float32 for 8-bit
        floats). The mean of no elements is NaN.

    Raises:
        NotImplementedError: an integer or bool tensor without `dtype`, or such a `dtype`, as torch refuses them;
            otherwise as `sum`.
        ValueError: as `sum`.
        TypeError: as `sum`.
        IndexError: as `sum`.
        RuntimeError: as `sum`.

    Determinism:
        As `sum`.

    Source:
        csrc/reduce, the rungs of `sum`.
    """
    if out is not None:
        sizes = {"block_size": block_size, "num_blocks": num_blocks}
        return _reduced_to(out, "mean", input, dim, keepdim, dtype, variant, **sizes)
    if not _is_traced():
        result = _C.mean(input, variant, dim, keepdim, dtype, block_size, num_blocks)
        if result is NotImplemented:
            result = _shortcut("mean", input, dim, keepdim, dtype, variant, block_size, num_blocks)
        if result is not NotImplemented:
            return result
    _check_call("mean", input, dim, keepdim, dtype)
    return _mean(input, variant, dim=dim, keepdim=keepdim, dtype=dtype, block_size=block_size, num_blocks=num_blocks)


def amax(
    input: Tensor,
    dim: int | Sequence[int] | None = (),
    keepdim: bool = False,
    *,
    variant: ReductionName = "auto",
    block_size: int | None = None,
    num_blocks: int | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """The largest element of all or along dims, as `torch.amax(input, dim, keepdim)`.

    Args:
        input: as for `sum`, but not complex, uint16, uint32 or uint64. It needs at least one element for each of the
            result.
        dim: the dim or dims to reduce, in any order, negative ones from the end. `()`, `[]` and None: all of them.
        keepdim: as for `sum`.
        variant: as for `sum`.
        block_size: as for `sum`.
        num_blocks: as for `sum`.
        out: as for `sum`.

    Returns:
        A contiguous tensor, shaped as that of `sum`, of the dtype of `input`, or float32 for 8-bit floats, which torch
        refuses. NaN where there is a NaN; +0 counts as larger than -0. The gradient is shared evenly between ties, as
        torch's is.

    Raises:
        ValueError: an empty tensor and no `dim`; otherwise as `sum`.
        IndexError: a dim that is empty; otherwise as `sum`.
        NotImplementedError: a complex tensor; otherwise as `sum`.
        TypeError: as `sum`.
        RuntimeError: as `sum`.

    Determinism:
        Every variant gives the same bits, `"atomic"` too.

    Source:
        csrc/reduce, the rungs of `sum`.
    """
    if out is not None:
        sizes = {"block_size": block_size, "num_blocks": num_blocks}
        return _reduced_to(out, "amax", input, dim, keepdim, None, variant, **sizes)
    if not _is_traced():
        result = _C.amax(input, variant, dim, keepdim, block_size, num_blocks)
        if result is NotImplemented:
            result = _shortcut("amax", input, dim, keepdim, None, variant, block_size, num_blocks)
        if result is not NotImplemented:
            return result
    _check_call("amax", input, dim, keepdim)
    return _amax(input, variant, dim=dim, keepdim=keepdim, block_size=block_size, num_blocks=num_blocks)


def amin(
    input: Tensor,
    dim: int | Sequence[int] | None = (),
    keepdim: bool = False,
    *,
    variant: ReductionName = "auto",
    block_size: int | None = None,
    num_blocks: int | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """The smallest element of all or along dims, as `torch.amin(input, dim, keepdim)`.

    Args:
        input: as for `amax`.
        dim: as for `amax`.
        keepdim: as for `sum`.
        variant: as for `sum`.
        block_size: as for `sum`.
        num_blocks: as for `sum`.
        out: as for `sum`.

    Returns:
        As `amax`. NaN where there is a NaN; -0 counts as smaller than +0.

    Raises:
        ValueError: as `amax`.
        IndexError: as `amax`.
        NotImplementedError: as `amax`.
        TypeError: as `amax`.
        RuntimeError: as `amax`.

    Determinism:
        Every variant gives the same bits, `"atomic"` too.

    Source:
        csrc/reduce, the rungs of `sum`.
    """
    if out is not None:
        sizes = {"block_size": block_size, "num_blocks": num_blocks}
        return _reduced_to(out, "amin", input, dim, keepdim, None, variant, **sizes)
    if not _is_traced():
        result = _C.amin(input, variant, dim, keepdim, block_size, num_blocks)
        if result is NotImplemented:
            result = _shortcut("amin", input, dim, keepdim, None, variant, block_size, num_blocks)
        if result is not NotImplemented:
            return result
    _check_call("amin", input, dim, keepdim)
    return _amin(input, variant, dim=dim, keepdim=keepdim, block_size=block_size, num_blocks=num_blocks)


def matmul(
    input: Tensor,
    other: Tensor,
    *,
    variant: MatmulName = "auto",
    tile_size: int | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """The matrix product, as `torch.matmul(input, other)`.

    Under `torch.autocast` it does what torch's does: floating-point operands but float64 are cast to
    `torch.get_autocast_dtype` of their device; with `out` it casts nothing.

    Args:
        input: a vector (k), a matrix (m, k) or a batch of matrices (..., m, k); float32, float64, float16, bfloat16,
            int8, uint8, int16, int32, int64, complex64 or complex128. Transposed and strided operands are read in
            place, but real and imaginary parts mostly from a copy.
        other: (k), (k, n) or (..., k, n), of the same dtype; batch dimensions broadcast.
        variant: a rung of the ladder; `variants("matmul")` lists them, with the dtypes and the chip that each takes.
            `"auto"` picks the fastest that has the dtype's precision, on GPUs other than the H200 and H100, for floats
            but float64, the fastest in k order; with `torch.backends.cuda.matmul.fp32_precision = "tf32"` (or
            `allow_tf32`), for float32 that is tfloat32's. A named variant ignores that setting.
        tile_size: for `"tiled"`, the side of a tile: 8, 16 or 32; for `"pipelined"`, its rows: 32, 64 or 128 (default:
            by the shape). No size changes the result.
        out: as for `sum`.

    Returns:
        A tensor (..., m, n), without the dimension that a vector lacks, of the dtype of the operands, or int32 for int8
        operands, like `torch._int_mm`. float16 and bfloat16 are accumulated in float32 and rounded once;
        integers wrap. Complex products are made of one real product of all parts, by the same variant.

    Raises:
        ValueError: shapes that do not fit or that the named variant does not take, an unknown variant, or a tile size
            that it does not take.
        TypeError: a dtype that is not listed above or that the named variant does not take, or two dtypes.
        NotImplementedError: a sparse tensor, a variant that this GPU cannot run, or a CUDA tensor in a build without
            CUDA.

    Determinism:
        On the CPU, and for variants of the order class `"k_order"`, each element is a chain of fused multiply-adds over
        k in order: the same bits everywhere. The tensor-core variants have orders of their own, which depend on k and
        the dtype alone: the same bits on every run and stream, alone or in a batch, but not the CPU's. Integers are
        exact in any order, so every variant gives the CPU's bits. A complex output adds two real ones: re = rr - ii,
        im = ri + ir.

    Source:
        csrc/matmul: the table in ladder.cpp, a file a rung in kernels.
    """
    if out is not None:
        return _write_to(
            out,
            "matmul",
            lambda target: _matmul_to(target, input, other, variant, tile_size),
            lambda: _matmul(input.to("meta"), other.to("meta"), variant).shape,
            input,
            other,
        )
    if not _is_traced():
        result = _C.matmul(input, other, variant, tile_size)
        if result is not NotImplemented:
            return result
    check_kinds("matmul", input=input, other=other)
    if tile_size is None:
        return _matmul(input, other, variant)
    return _matmul(input, other, variant, tile_size=tile_size)


def linear(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    variant: MatmulName = "auto",
    out: Tensor | None = None,
) -> Tensor:
    """A linear layer, as `torch.nn.functional.linear(input, weight, bias)`: `matmul(input, weight.t()) + bias`.

    The weight is read in place. The gradients of input and weight are `matmul` of the same variant over transposed
    views, that of the bias is `sum` along the leading dimensions. Under `torch.autocast` it does as `matmul`, and casts
    the bias too.

    Args:
        input: (..., in_features); the dtypes of `matmul`.
        weight: (out_features, in_features), or (in_features); of the same dtype.
        bias: (out_features), or () for a weight (in_features); of the same dtype, or int32 for int8 operands. None:
            nothing is added.
        variant: a rung of matmul; `variants("matmul")` lists them.
        out: where a copy of the result is written, otherwise as for `sum`.

    Returns:
        A tensor (..., out_features), or (...) for a weight (in_features), of the dtype of the operands, or int32 for
        int8. The bias is added to the accumulator, float32 for float16 and bfloat16, before the one rounding.

    Raises:
        ValueError: shapes that do not fit or that the named variant does not take, tensors on different devices, or an
            unknown variant.
        TypeError: a dtype that matmul or the named variant does not take, or different ones.
        NotImplementedError: as `matmul`.

    Determinism:
        As `matmul`; the bias is one more addition.

    Source:
        csrc/matmul.
    """
    if out is not None:
        of_bias = () if bias is None else (bias,)
        return copied_to(out, "linear", lambda: linear(input, weight, bias, variant=variant), input, weight, *of_bias)
    if not _is_traced():
        result = _C.linear(input, weight, bias, variant)
        if result is not NotImplemented:
            return result
    check_kinds("linear", input=input, weight=weight)
    return _linear(input, weight, bias, variant)


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """`softmax(scale * query @ key.mT + mask) @ value`, as `torch.nn.functional.scaled_dot_product_attention`.

    Memory is linear in the length, forward and backward. Scores and probabilities are float32 (float64 for float64);
    probabilities are rounded to the dtype of `value` before they multiply it. float16 and bfloat16 of widths of up to
    128 run on CUDA in kernels that keep no score (compute capability 8.0); all else is composed of our products and
    softmax, a piece of the queries at a time. Under `torch.autocast` operands are cast as torch's are.

    Args:
        query: (..., heads, length, width), of 2 to 4 dims; float16, bfloat16, float32 or float64.
        key: (..., heads, keys, width), of the same dtype.
        value: (..., heads, keys, value width), of the same dtype.
        attn_mask: broadcasts to (..., heads, length, keys). bool: True where a query attends a key; otherwise it is
            added to the scores. It has no gradient.
        dropout_p: must be 0.
        is_causal: query i attends keys 0 to i; without `attn_mask`.
        scale: of the scores; None: 1 / sqrt(width).
        enable_gqa: heads of key and value may be fewer, each shared by as many neighbouring heads of the query.

    Returns:
        A tensor (..., heads, length, value width) of the dtype of the query. A query that attends no key gets zeros.
        It is laid out in memory as the query. Tangents (forward mode) and derivatives of gradients, of any order, are
        composed of our products and softmax, in memory quadratic in the length.

    Raises:
        ValueError: sizes that do not fit, `attn_mask` together with `is_causal`, or dropout.
        TypeError: a dtype that is not listed above, or several.
        NotImplementedError: a mask that requires a gradient or has a tangent.

    Determinism:
        A query has the same bits alone and in any batch, and whatever keys that it does not attend stand after those
        that it does: as the last of few with a cache, or in a longer causal sequence. So do padded sequences: keys that
        no query of a batch attends (`False`, or at most -10000) are moved to the end. Keys that only some queries
        attend keep their places, so one that is masked before others (a sliding window) counts. On CUDA the bits are
        those of one kind of chip.

    Source:
        csrc/attention, and csrc/torch/attention.cpp, which composes.
    """
    check_kinds("scaled_dot_product_attention", query=query, key=key, value=value)
    return _attention(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)


def vector_add(
    input: Tensor,
    other: Tensor,
    *,
    variant: VectorAddName = "auto",
    block_size: int | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """The elementwise sum of two tensors: the first kernel of most courses, and the yardstick for memory bandwidth.

    Args:
        input: a dense tensor; float32, float64, float16, bfloat16, int8, uint8, int16, int32, int64 or bool.
        other: a tensor of the same dtype; shapes broadcast.
        variant: a rung of the ladder; `variants("vector_add")` lists them.
        block_size: threads in a block, a power of two. Default: the rung's own.
        out: as for `linear`.

    Returns:
        A tensor of the broadcast shape and the dtype of `input`, as `input + other`; integers wrap.

    Raises:
        ValueError: shapes that do not fit, an unknown variant, or a size that it does not take.
        TypeError: a dtype that is not listed above, or two dtypes.
        NotImplementedError: a sparse tensor, or a CUDA tensor in a build without CUDA.

    Determinism:
        One addition an element: the same bits everywhere.

    Source:
        csrc/elementwise: the table in ladder.cpp, a file a rung in kernels.
    """
    check_kinds("vector_add", input=input, other=other)
    if out is not None:
        return copied_to(
            out, "vector_add", lambda: vector_add(input, other, variant=variant, block_size=block_size), input, other
        )
    if block_size is None:
        return _vector_add(input, other, variant)
    return _vector_add(input, other, variant, block_size=block_size)
