"""The row operations as typed functions, with torch's signatures: softmax, log_softmax, logsumexp and the norms.

Each is computed in float32 (float64 for float64) from the first element to the last and rounded once. Maxima are the
same in any order; sums are those of `sum`, in its pairwise order, over the elements that the formula maps; exp, log and
1 / sqrt are the project's own (csrc/primitives/elementary.h). So a row gives the same bits alone and in any batch, on
every run, stream and GPU model and on the CPU.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from ._names import RowName

_softmax = torch.ops.treduce.softmax.default
_log_softmax = torch.ops.treduce.log_softmax.default
_logsumexp = torch.ops.treduce.logsumexp.default
_layer_norm = torch.ops.treduce.layer_norm.default
_rms_norm = torch.ops.treduce.rms_norm.default


def softmax(input: Tensor, dim: int, *, dtype: torch.dtype | None = None, variant: RowName = "auto") -> Tensor:
    """exp(x - max) / sum of exp(x - max) along a dim, as `torch.softmax(input, dim, dtype=dtype)`.

    Args:
        input: a dense tensor of any shape; float32, float64, float16 or bfloat16. It is read in place unless the dims
            before or after `dim` do not join into one.
        dim: the dim of a row, negative ones from the end.
        dtype: of the result; the input is converted first.
        variant: a rung of the ladder; `variants("softmax")` lists them. All give the same bits; `"auto"` picks the
            fastest.

    Returns:
        A contiguous tensor of the shape of `input`. A row with NaN or +inf, or of nothing but -inf, is NaN, as torch's.

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
    return _softmax(input if dtype is None else input.to(dtype), dim, variant)


def log_softmax(input: Tensor, dim: int, *, dtype: torch.dtype | None = None, variant: RowName = "auto") -> Tensor:
    """x - max - log(sum of exp(x - max)) along a dim, as `torch.log_softmax(input, dim, dtype=dtype)`.

    Args:
        input: as for `softmax`.
        dim: as for `softmax`.
        dtype: as for `softmax`.
        variant: as for `softmax`.

    Returns:
        As `softmax`.

    Raises:
        As `softmax`.

    Determinism:
        As `softmax`.

    Source:
        As `softmax`.
    """
    return _log_softmax(input if dtype is None else input.to(dtype), dim, variant)


def logsumexp(input: Tensor, dim: int | Sequence[int], keepdim: bool = False, *, variant: RowName = "auto") -> Tensor:
    """max + log(sum of exp(x - max)) along dims, as `torch.logsumexp(input, dim, keepdim)`.

    Args:
        input: as for `softmax`.
        dim: the dim or dims of a row, negative ones from the end; the elements of several are taken in their order.
        keepdim: whether these dims stay, with size 1.
        variant: as for `softmax`.

    Returns:
        A tensor of `input.shape` without the dims, or with size 1 for each. It is -inf for rows of nothing or of
        nothing but -inf, and +inf for rows with +inf.

    Raises:
        As `softmax`.

    Determinism:
        As `softmax`.

    Source:
        As `softmax`.
    """
    if isinstance(dim, int):
        return _logsumexp(input, dim, keepdim, variant)
    rank = max(input.dim(), 1)
    dims = sorted({d + rank if d < 0 else d for d in dim} or range(input.dim()))
    if len(dims) <= 1:
        return _logsumexp(input, dims[0] if dims else 0, keepdim, variant)
    kept = [d for d in range(rank) if d not in dims]
    result = _logsumexp(input.permute(*kept, *dims).flatten(len(kept)), -1, False, variant)
    for d in dims if keepdim else ():
        result = result.unsqueeze(d)
    return result


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

    The variance is the mean of the squares of x - mean, from a second pass over the row.

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
    return _rms_norm(input, normalized_shape, weight, eps, variant)[0]
