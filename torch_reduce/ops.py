"""The ops as typed functions: thin names for `torch.ops.treduce.*`, which do the work and the checks.

All of them run on CPU and CUDA tensors, under autograd to second order, in `torch.compile`, `torch.export` and CUDA
graphs. What holds for every deterministic variant: the order of additions depends on the length, the dtype and the
sizes that the caller names, so a call gives the same bits on every run, stream, GPU model and on the CPU.
"""

import torch
from torch import Tensor

from ._names import MatmulName, ReductionName, VectorAddName

# The overloads themselves: a call of one skips the search that a call of torch.ops.treduce.sum makes.
_sum = torch.ops.treduce.sum.default
_mean = torch.ops.treduce.mean.default
_amax = torch.ops.treduce.amax.default
_amin = torch.ops.treduce.amin.default
_matmul = torch.ops.treduce.matmul.default
_vector_add = torch.ops.treduce.vector_add.default


def sum(
    input: Tensor, *, variant: ReductionName = "auto", block_size: int | None = None, num_blocks: int | None = None
) -> Tensor:
    """The sum of all elements, as `torch.sum(input)`.

    Args:
        input: a dense tensor of any shape and strides; float32, float64, float16, bfloat16, int8, uint8, int16, int32,
            int64 or bool.
        variant: a rung of the ladder or an alias of one; `variants("sum")` lists them. `"auto"` picks the fastest by
            the length, the same on every device.
        block_size: threads in a block, a power of two; 1 to 1024 for the two-pass rungs, 32 to 1024 for the others.
            Default: the rung's own.
        num_blocks: blocks in the grid, for the rungs that walk it in strides. Default: by the length.

    Returns:
        A 0-d tensor: int64 for integers and bool (sums wrap), the dtype of `input` otherwise. float16 and bfloat16 are
        added in float32 and rounded once. The sum of no elements is 0.

    Raises:
        ValueError: an unknown variant, or a size that it does not take.
        TypeError: a dtype that is not listed above.
        NotImplementedError: a sparse tensor, a variant that this GPU cannot run, or a CUDA tensor in a build without
            CUDA.

    Determinism:
        The same bits everywhere but for `"atomic"`, whose partial sums are added in the order in which blocks finish.

    Source:
        csrc/reduce: the table in ladder.cpp, the order of additions in plan.h, a file for each rung in kernels.
    """
    if block_size is None and num_blocks is None:
        return _sum(input, variant)
    return _sum(input, variant, block_size=block_size, num_blocks=num_blocks)


def mean(
    input: Tensor, *, variant: ReductionName = "auto", block_size: int | None = None, num_blocks: int | None = None
) -> Tensor:
    """The mean of all elements, as `torch.mean(input)`: `sum` with one division before the rounding.

    Args:
        input: a dense tensor of any shape and strides; float32, float64, float16 or bfloat16.
        variant: as for `sum`.
        block_size: as for `sum`.
        num_blocks: as for `sum`.

    Returns:
        A 0-d tensor of the dtype of `input`. The mean of no elements is NaN.

    Raises:
        NotImplementedError: an integer or bool tensor, as torch refuses them; otherwise as `sum`.
        ValueError: as `sum`.
        TypeError: as `sum`.

    Determinism:
        As `sum`.

    Source:
        csrc/reduce, the rungs of `sum`.
    """
    if block_size is None and num_blocks is None:
        return _mean(input, variant)
    return _mean(input, variant, block_size=block_size, num_blocks=num_blocks)


def amax(
    input: Tensor, *, variant: ReductionName = "auto", block_size: int | None = None, num_blocks: int | None = None
) -> Tensor:
    """The largest element, as `torch.amax(input)`.

    Args:
        input: a dense tensor of any shape and strides with one element at least; the dtypes of `sum`.
        variant: as for `sum`.
        block_size: as for `sum`.
        num_blocks: as for `sum`.

    Returns:
        A 0-d tensor of the dtype of `input`. NaN where there is a NaN; +0 counts as larger than -0. The gradient is
        shared evenly between ties, as torch's is.

    Raises:
        ValueError: an empty tensor; otherwise as `sum`.
        TypeError: as `sum`.
        NotImplementedError: as `sum`.

    Determinism:
        Every variant gives the same bits, `"atomic"` too.

    Source:
        csrc/reduce, the rungs of `sum`.
    """
    if block_size is None and num_blocks is None:
        return _amax(input, variant)
    return _amax(input, variant, block_size=block_size, num_blocks=num_blocks)


def amin(
    input: Tensor, *, variant: ReductionName = "auto", block_size: int | None = None, num_blocks: int | None = None
) -> Tensor:
    """The smallest element, as `torch.amin(input)`.

    Args:
        input: a dense tensor of any shape and strides with one element at least; the dtypes of `sum`.
        variant: as for `sum`.
        block_size: as for `sum`.
        num_blocks: as for `sum`.

    Returns:
        A 0-d tensor of the dtype of `input`. NaN where there is a NaN; -0 counts as smaller than +0. The gradient is
        shared evenly between ties, as torch's is.

    Raises:
        ValueError: an empty tensor; otherwise as `sum`.
        TypeError: as `sum`.
        NotImplementedError: as `sum`.

    Determinism:
        Every variant gives the same bits, `"atomic"` too.

    Source:
        csrc/reduce, the rungs of `sum`.
    """
    if block_size is None and num_blocks is None:
        return _amin(input, variant)
    return _amin(input, variant, block_size=block_size, num_blocks=num_blocks)


def matmul(input: Tensor, other: Tensor, *, variant: MatmulName = "auto", tile_size: int | None = None) -> Tensor:
    """The matrix product, as `torch.matmul(input, other)`.

    Args:
        input: a vector (k), a matrix (m, k) or a batch of matrices (..., m, k); float32, float64, float16, bfloat16,
            int32 or int64. Transposed and strided operands are read where they lie.
        other: (k), (k, n) or (..., k, n), of the same dtype; batch dimensions broadcast.
        variant: a rung of the ladder; `variants("matmul")` lists them.
        tile_size: for `"tiled"`, the side of a tile: 8, 16 or 32.

    Returns:
        A tensor (..., m, n), without the dimension that a vector lacks, of the dtype of the operands. float16 and
        bfloat16 are accumulated in float32 and rounded once; integers wrap.

    Raises:
        ValueError: shapes that do not fit, an unknown variant, or a tile size that it does not take.
        TypeError: a dtype that is not listed above, or two dtypes.
        NotImplementedError: a sparse tensor, a variant that this GPU cannot run, or a CUDA tensor in a build without
            CUDA.

    Determinism:
        Each element is a chain of fused multiply-adds over k in order, in every variant: the same bits everywhere.

    Source:
        csrc/matmul: the table in ladder.cpp, a file for each rung in kernels.
    """
    if tile_size is None:
        return _matmul(input, other, variant)
    return _matmul(input, other, variant, tile_size=tile_size)


def vector_add(
    input: Tensor, other: Tensor, *, variant: VectorAddName = "auto", block_size: int | None = None
) -> Tensor:
    """The elementwise sum of two tensors: the first kernel that one writes, and the yardstick for memory bandwidth.

    Args:
        input: a dense tensor; the dtypes of `sum`.
        other: a tensor of the same dtype; shapes broadcast.
        variant: a rung of the ladder; `variants("vector_add")` lists them.
        block_size: threads in a block, a power of two. Default: the rung's own.

    Returns:
        A tensor of the broadcast shape and the dtype of `input`, as `input + other`; integers wrap.

    Raises:
        ValueError: shapes that do not fit, an unknown variant, or a size that it does not take.
        TypeError: a dtype that is not listed above, or two dtypes.
        NotImplementedError: a sparse tensor, or a CUDA tensor in a build without CUDA.

    Determinism:
        One addition an element: the same bits everywhere.

    Source:
        csrc/elementwise: the table in ladder.cpp, a file for each rung in kernels.
    """
    if block_size is None:
        return _vector_add(input, other, variant)
    return _vector_add(input, other, variant, block_size=block_size)
