"""The row operations as typed functions, with torch's signatures: softmax, log_softmax, logsumexp and the norms.

Each is computed in float32 (float64 for float64) from the first element to the last and rounded once. Maxima are the
same in any order; sums are those of `sum`, in its pairwise order, over the elements that the formula maps; exp, log and
1 / sqrt are the project's own (csrc/primitives/elementary.h). So a row gives the same bits alone and in any batch, on
every run, stream and GPU model and on the CPU.
"""

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling as _is_traced
from torch.nn.functional import nll_loss

from . import _C
from ._dims import wrapped_dims
from ._names import RowName
from .ops import amax, amin, check_dims, check_kinds, copied_to, mean, sum, vector_add

# As in ops.py: the overloads, for where the C functions do not take a call.
_softmax = torch.ops.treduce.softmax.default
_log_softmax = torch.ops.treduce.log_softmax.default
_logsumexp = torch.ops.treduce.logsumexp.default
_layer_norm = torch.ops.treduce.layer_norm.default
_rms_norm = torch.ops.treduce.rms_norm.default


def softmax(
    input: Tensor,
    dim: int,
    *,
    dtype: torch.dtype | None = None,
    variant: RowName = "auto",
    out: Tensor | None = None,
) -> Tensor:
    """exp(x - max) / sum of exp(x - max) along a dim, as `torch.softmax(input, dim, dtype=dtype)`.

    Args:
        input: a dense tensor of any shape; float32, float64, float16 or bfloat16. It is read in place unless the dims
            before or after `dim` do not join into one.
        dim: the dim of a row, negative ones from the end.
        dtype: of the result; the input is converted first.
        variant: a rung of the ladder; `variants("softmax")` lists them. All but `"online"` give the same bits; `"auto"`
            picks the fastest of those.
        out: as for `linear`.

    Returns:
        A contiguous tensor of the shape of `input`. A row with NaN or +inf, or of nothing but -inf, is NaN, as torch's.
        Under `torch.autocast` on CUDA it is float32 where `input` has 16 bits, as torch's.

    Raises:
        TypeError: another dtype.
        IndexError: a dim out of range.
        ValueError: an unknown variant, or a row that the named one does not take.
        NotImplementedError: a sparse tensor, a variant that this GPU cannot run, or a CUDA tensor in a build without
            CUDA.

    Determinism:
        The same bits everywhere: the sum is `sum` of the exponentials.

    Source:
        csrc/rows: the formulas in ops.h, the table in ladder.cpp, a file a rung in kernels.
    """
    if out is not None:
        return copied_to(out, "softmax", lambda: softmax(input, dim, dtype=dtype, variant=variant), input)
    if dtype is not None:
        return softmax(input.to(dtype), dim, variant=variant).to(dtype)
    if not _is_traced():
        result = _C.softmax(input, dim, variant)
        if result is not NotImplemented:
            return result
    check_kinds("softmax", dim, input=input)
    return _softmax(input, dim, variant)


def log_softmax(
    input: Tensor,
    dim: int,
    *,
    dtype: torch.dtype | None = None,
    variant: RowName = "auto",
    out: Tensor | None = None,
) -> Tensor:
    """x - max - log(sum of exp(x - max)) along a dim, as `torch.log_softmax(input, dim, dtype=dtype)`.

    Args:
        input: as for `softmax`.
        dim: as for `softmax`.
        dtype: as for `softmax`.
        variant: as for `softmax`.
        out: as for `linear`.

    Returns:
        As `softmax`.

    Raises:
        As `softmax`.

    Determinism:
        As `softmax`.

    Source:
        As `softmax`.
    """
    if out is not None:
        return copied_to(out, "log_softmax", lambda: log_softmax(input, dim, dtype=dtype, variant=variant), input)
    if dtype is not None:
        return log_softmax(input.to(dtype), dim, variant=variant).to(dtype)
    if not _is_traced():
        result = _C.log_softmax(input, dim, variant)
        if result is not NotImplemented:
            return result
    check_kinds("log_softmax", dim, input=input)
    return _log_softmax(input, dim, variant)


def logsumexp(
    input: Tensor,
    dim: int | Sequence[int],
    keepdim: bool = False,
    *,
    variant: RowName = "auto",
    out: Tensor | None = None,
) -> Tensor:
    """max + log(sum of exp(x - max)) along dims, as `torch.logsumexp(input, dim, keepdim)`.

    Args:
        input: as for `softmax`.
        dim: the dim or dims of a row, negative ones from the end; the elements of several are taken in their order.
        keepdim: whether these dims stay, with size 1.
        variant: as for `softmax`.
        out: as for `linear`.

    Returns:
        A tensor of `input.shape` without the dims, or with size 1 for each. It is -inf for rows of nothing or of
        nothing but -inf, and +inf for rows with +inf.

    Raises:
        RuntimeError: a dim named twice; otherwise as `softmax`.

    Determinism:
        As `softmax`.

    Source:
        As `softmax`.
    """
    if out is not None:
        return copied_to(out, "logsumexp", lambda: logsumexp(input, dim, keepdim, variant=variant), input)
    if isinstance(dim, int):
        if not _is_traced():
            result = _C.logsumexp(input, dim, keepdim, variant)
            if result is not NotImplemented:
                return result
        check_kinds("logsumexp", dim, input=input)
        return _logsumexp(input, dim, keepdim, variant)
    check_kinds("logsumexp", input=input)
    if not isinstance(dim, Sequence) or isinstance(dim, str):
        raise TypeError(f"logsumexp: dim is an int or ints, got {dim!r}")
    dims = sorted(wrapped_dims(dim, input.dim()) or range(input.dim()))
    if len(dims) <= 1:
        return _logsumexp(input, dims[0] if dims else 0, keepdim, variant)
    kept = [d for d in range(input.dim()) if d not in dims]
    result = _logsumexp(input.permute(*kept, *dims).flatten(len(kept)), -1, False, variant)
    for d in dims if keepdim else ():
        result = result.unsqueeze(d)
    return result


def cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    *,
    ignore_index: int = -100,
    reduction: Literal["none", "mean", "sum"] = "mean",
    label_smoothing: float = 0.0,
    variant: RowName = "auto",
) -> Tensor:
    """The cross entropy of logits against classes or probabilities, as `torch.nn.functional.cross_entropy`.

    It is `log_softmax`, then an element a row, or `sum` of a row where there are probabilities or smoothing, then `sum`
    over the rows.

    Args:
        input: logits of shape (classes) or (rows, classes, ...); dtypes as for `softmax`.
        target: classes, of the shape of `input` without its classes and of dtype int64; or probabilities of the shape
            and dtype of `input`.
        weight: of each class, (classes), or None.
        ignore_index: a class whose rows count for nothing.
        reduction: `"none"` for the loss of each row, `"sum"` for their sum, `"mean"` for that divided by the sum of the
            weights of the rows that count (with probabilities: by their number).
        label_smoothing: the part of the target that is spread evenly over the classes, from 0 to 1.
        variant: as for `softmax`.

    Returns:
        A tensor of the dtype of `input`: a number, or with `"none"` the shape of `input` without its classes. Under
        `torch.autocast` it is float32 where `input` has 16 bits, as torch's.

    Raises:
        ValueError: a shape, a reduction or a smoothing that is not listed above; otherwise as `softmax`.
        TypeError: as `softmax`.

    Determinism:
        As `softmax`: the loss of a row depends on that row alone, and the sum over rows is `sum`. The sum of a batch is
        not that of its parts: use `"none"` and add the parts in an order of your own.

    Source:
        As `softmax`.
    """
    if reduction not in ("none", "mean", "sum"):
        raise ValueError(f"reduction must be 'none', 'mean' or 'sum', got {reduction!r}")
    if not 0 <= label_smoothing <= 1:
        raise ValueError(f"label_smoothing must be between 0 and 1, got {label_smoothing}")
    check_kinds("cross_entropy", input=input, target=target)
    _check_dense("cross_entropy", input)
    input = _autocast(input, "cpu", "cuda")
    if input.dim() == 0:
        raise ValueError("cross_entropy takes logits of shape (classes) or (rows, classes, ...), got a number")
    of_classes = 0 if input.dim() == 1 else 1
    classes = input.shape[of_classes]
    log_p = log_softmax(input, of_classes, variant=variant)
    wide = torch.promote_types(input.dtype, torch.float32)
    broadcast = [classes if d == of_classes else 1 for d in range(input.dim())]
    weighted = log_p if weight is None else log_p * weight.view(broadcast)
    if target.is_floating_point():
        if target.shape != input.shape:
            raise ValueError(
                f"probabilities have the shape of the input, {tuple(input.shape)}, got {tuple(target.shape)}"
            )
        smooth = target
        if label_smoothing:
            smooth = (_widened("cross_entropy", target) * (1 - label_smoothing) + label_smoothing / classes).to(
                target.dtype
            )
        losses = -sum(weighted * smooth, of_classes)
        if reduction == "none":
            return losses
        if reduction == "sum":
            return sum(losses)
        return _divided(sum(losses, dtype=wide), losses.numel()).to(input.dtype)
    losses = nll_loss(log_p, target, weight, ignore_index=ignore_index, reduction="none")
    counts = target != ignore_index
    if label_smoothing:
        spread = -sum(weighted, of_classes).masked_fill(~counts, 0)
        mixed = losses.to(wide) * (1 - label_smoothing) + spread.to(wide) * (label_smoothing / classes)
        losses = mixed.to(input.dtype)
    if reduction == "none":
        return losses
    if reduction == "sum":
        return sum(losses)
    of_rows = counts if weight is None else weight[target.where(counts, 0)].where(counts, 0)
    return (sum(losses, dtype=wide) / sum(of_rows, dtype=wide)).to(input.dtype)


def layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *,
    variant: RowName = "auto",
) -> Tensor:
    """(x - mean) / sqrt(variance + eps) * weight + bias over the last dims, as `torch.nn.functional.layer_norm`.

    The variance is the mean of the squares of x - mean, from a second pass over the row. Under `torch.autocast` 16-bit
    floats are cast to float32, as by torch, and the result is float32 on CUDA, on a CPU of the dtype of `input`.

    Args:
        input: as for `softmax`; its last sizes are `normalized_shape`.
        normalized_shape: the sizes of a row.
        weight: a tensor of that shape and of the dtype of `input`, or None.
        bias: as `weight`.
        eps: added to the variance.
        variant: as for `softmax`.

    Returns:
        A contiguous tensor of the shape and dtype of `input`.

    Raises:
        ValueError: a `normalized_shape` that does not fit, weights of another shape or device; otherwise as `softmax`.
        TypeError: a dtype that `softmax` does not take, or weights of another dtype than the input's.

    Determinism:
        As `softmax`; gradients of weight and bias are `sum` over the rows.

    Source:
        As `softmax`.
    """
    if not _is_traced():
        result = _C.layer_norm(input, normalized_shape, weight, bias, eps, variant)
        if result is not NotImplemented:
            return result
    check_kinds("layer_norm", input=input)
    return _layer_norm(input, normalized_shape, weight, bias, eps, variant)[0]


def rms_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
    *,
    variant: RowName = "auto",
) -> Tensor:
    """x / sqrt(mean of x^2 + eps) * weight over the last dims, as `torch.nn.functional.rms_norm`.

    Under `torch.autocast` it does as `layer_norm`.

    Args:
        input: as for `layer_norm`.
        normalized_shape: as for `layer_norm`.
        weight: as for `layer_norm`.
        eps: added to the mean of the squares. None: the epsilon of the precision that it is computed in.
        variant: as for `softmax`.

    Returns:
        As `layer_norm`. The weight is multiplied before the one rounding.

    Raises:
        As `layer_norm`.

    Determinism:
        As `layer_norm`.

    Source:
        As `softmax`.
    """
    if not _is_traced():
        result = _C.rms_norm(input, normalized_shape, weight, eps, variant)
        if result is not NotImplemented:
            return result
    check_kinds("rms_norm", input=input)
    return _rms_norm(input, normalized_shape, weight, eps, variant)[0]


def var(
    input: Tensor,
    dim: int | Sequence[int] | None = None,
    *,
    correction: float = 1,
    keepdim: bool = False,
    out: Tensor | None = None,
) -> Tensor:
    """The variance of all elements or along dims, as `torch.var(input, dim, correction=correction, keepdim=keepdim)`.

    The mean, then the sum of the squares of x - mean, divided by their number less the correction. Rows whose elements
    lie side by side are read once, unless a gradient is wanted; otherwise by an op for each step.

    Args:
        input: a dense tensor of any shape; dtypes as for `softmax`.
        dim: as for `sum`.
        correction: 1 for the variance of a sample, 0 for that of all there is.
        keepdim: as for `sum`.
        out: as for `linear`.

    Returns:
        A tensor shaped as that of `sum`, of the dtype of `input`, rounded once. Of fewer elements than the correction
        it is infinite or NaN, as torch's.

    Raises:
        TypeError: another dtype.
        IndexError: a dim out of range.
        RuntimeError: a dim named twice.
        NotImplementedError: a sparse or nested tensor.

    Determinism:
        The same bits everywhere: `mean`, a difference and a product an element, and `sum`.

    Source:
        As `sum`.
    """
    if out is not None:
        return copied_to(out, "var", lambda: var(input, dim, correction=correction, keepdim=keepdim), input)
    return _variance("var", input, dim, correction, keepdim).to(input.dtype)


def std(
    input: Tensor,
    dim: int | Sequence[int] | None = None,
    *,
    correction: float = 1,
    keepdim: bool = False,
    out: Tensor | None = None,
) -> Tensor:
    """The square root of `var`, as `torch.std(input, dim, correction=correction, keepdim=keepdim)`.

    Args:
        input: as for `var`.
        dim: as for `var`.
        correction: as for `var`.
        keepdim: as for `var`.
        out: as for `linear`.

    Returns:
        As `var`; the root is taken before the one rounding.

    Raises:
        As `var`.

    Determinism:
        As `var`.

    Source:
        As `var`.
    """
    if out is not None:
        return copied_to(out, "std", lambda: std(input, dim, correction=correction, keepdim=keepdim), input)
    return _root(_variance("std", input, dim, correction, keepdim)).to(input.dtype)


def norm(
    input: Tensor,
    ord: float = 2,
    dim: int | Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """The norm of all elements as a vector or along dims, as `torch.linalg.vector_norm(input, ord, dim, keepdim)`.

    Args:
        input: as for `var`.
        ord: 2, the root of the sum of the squares; 1, the sum of the absolute values; inf and -inf, the largest and the
            smallest of them; 0, the number of elements that are not zero; p, any other number: the sum of the absolute
            values to the power of p, to the power of 1 / p.
        dim: as for `sum`.
        keepdim: as for `sum`.
        dtype: of the result, as wide as that of `input` or wider; the elements are converted first.
        out: as for `linear`.

    Returns:
        A tensor shaped as that of `sum`, of `dtype` or, by default, the dtype of `input`, rounded once. Under
        `torch.autocast` on CUDA it is float32 where `input` has 16 bits, as torch's.

    Raises:
        TypeError: as `var`, an `ord` that is no number, or a narrower `dtype`.
        ValueError: a negative `ord` of no elements.
        IndexError: as `var`; a dim that is empty, with inf or -inf.
        RuntimeError: as `var`.
        NotImplementedError: as `var`.

    Determinism:
        As `var`: at most a product an element, and `sum`, `amax` or `amin`. But for p, torch's `pow` raises to powers:
        its last bits are those of one kind of device and, on a CPU outside `batch_invariant`, depend on an element's
        place in memory.

    Source:
        As `sum`.
    """
    if out is not None:
        return copied_to(out, "norm", lambda: norm(input, ord, dim, keepdim, dtype=dtype), input)
    if not isinstance(ord, int | float):
        raise TypeError(f"norm: ord is a number, got {ord!r}; dims are the third argument: norm(x, 2, dim)")
    check_dims("norm", input, dim, dtype)
    if dtype is not None:
        if torch.promote_types(input.dtype, dtype) != dtype:
            raise TypeError(f"norm: dtype is at least as wide as that of the input, {input.dtype}, got {dtype}")
        # Integers are refused whatever the dtype, as by torch.
        return norm(_widened("norm", input).to(dtype), ord, dim, keepdim).to(dtype)
    input = _autocast(input, "cuda")
    if ord == 2:
        squares = _squares(input, dim, keepdim, False)
        if squares is not NotImplemented:
            return torch.ops.treduce.sqrt(squares).to(input.dtype)
    wide = _widened("norm", input)
    if ord == 2:
        return _root(sum(wide * wide, dim, keepdim)).to(input.dtype)
    if ord == 1:
        return sum(wide.abs(), dim, keepdim).to(input.dtype)
    if ord in (math.inf, -math.inf):
        return (amax if ord > 0 else amin)(wide.abs(), dim, keepdim).to(input.dtype)
    if ord == 0:
        # The sign adds nothing but a gradient, of zeros.
        return sum((wide != 0) + 0 * wide.sign(), dim, keepdim).to(input.dtype)
    powers = sum(_power(wide.abs(), ord), dim, keepdim)
    if ord < 0 and input.numel() == 0 and powers.numel() > 0:
        raise ValueError(f"norm: with ord {ord} no elements have no norm; the input has shape {tuple(input.shape)}")
    return _power(powers, 1 / ord).to(input.dtype)


def _autocast(input: Tensor, *devices: str) -> Tensor:
    """What `torch.autocast` on these devices makes of the operand of a norm or a loss: float32 of 16 bits."""
    there = input.device.type
    narrow = there in devices and input.dtype in (torch.float16, torch.bfloat16)
    return input.float() if narrow and torch.is_autocast_enabled(there) else input


def _check_dense(op: str, input: Tensor) -> None:
    """Names the op that was called, not those that it is composed of."""
    if input.is_nested:
        raise NotImplementedError(
            f"{op} takes no nested tensors: call it on their values(), or torch's function inside batch_invariant()"
        )
    if input.layout != torch.strided:
        raise NotImplementedError(f"{op} takes dense tensors, got one of layout {input.layout}")


def _widened(op: str, input: Tensor) -> Tensor:
    """In what row operations compute."""
    _check_dense(op, input)
    if input.dtype not in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
        raise TypeError(f"{op} takes float32, float64, float16 and bfloat16, got {input.dtype}")
    return input if input.dtype == torch.float64 else input.float()


def _divided(x: Tensor, number: float) -> Tensor:
    """`x / number`, rounded once; on CUDA, torch multiplies by the reciprocal of a number that lies on the host."""
    return x / x.new_full((), number)


def _root(x: Tensor) -> Tensor:
    """The square root. Its gradient at zero is infinite; torch takes 0 for those of `std` and `norm`."""
    zero = x == 0
    return torch.ops.treduce.sqrt(x.masked_fill(zero, 1)).masked_fill(zero, 0)


def _power(x: Tensor, exponent: float) -> Tensor:
    """Of numbers that are not negative. The gradient at zero, which may be infinite, is 0, as of torch's norms."""
    zero = x == 0
    return x.masked_fill(zero, 1).pow(exponent).masked_fill(zero, 0 if exponent > 0 else math.inf)


def _squares(input: Tensor, dim: int | Sequence[int] | None, keepdim: bool, centred: bool) -> Tensor:
    """The sum of squares, or of squares of what elements differ from their mean by, in one read of the input.

    NotImplemented where a gradient is wanted, or the input does not lie in rows: then the caller computes it by ops.
    """
    return NotImplemented if _is_traced() else _C.row_squares(input, dim, keepdim, centred)


def _variance(op: str, input: Tensor, dim: int | Sequence[int] | None, correction: float, keepdim: bool) -> Tensor:
    check_dims(op, input, dim)
    squares = _squares(input, dim, keepdim, True)
    if squares is NotImplemented:
        wide = _widened(op, input)
        # Our sum is what vector_add makes of the gradient of the mean.
        centred = vector_add(wide, -mean(wide, dim, True))
        squares = sum(centred * centred, dim, keepdim)
    count = input.numel() // max(squares.numel(), 1)
    return _divided(squares, max(count - correction, 0))
