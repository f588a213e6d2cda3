"""`plan`, of a reduction, of a product, of a row operation or of `vector_add`."""

from collections.abc import Sequence
from typing import Any, Literal, overload

import torch
from torch import Tensor

from ._names import MatmulName, ReductionName, RowName, VectorAddName
from ._plan import Plan
from ._plan import plan as plan_reduction
from ._plan_additions import AdditionPlan, plan_addition
from ._plan_products import ProductPlan, plan_product
from ._plan_rows import RowPlan, plan_rows
from ._variants import OPS, PRODUCTS, REDUCTIONS, ROW_OPS


@overload
def plan(
    op: Literal["sum", "mean", "amax", "amin"],
    input: Tensor | Sequence[int],
    dim: int | Sequence[int] | None = None,
    dtype: torch.dtype | None = None,
    variant: ReductionName = "auto",
    *,
    keepdim: bool = False,
    device: torch.device | str | int | None = None,
    block_size: int | None = None,
    num_blocks: int | None = None,
    input_dtype: torch.dtype = torch.float32,
) -> Plan: ...


@overload
def plan(
    op: Literal["matmul", "linear"],
    input: Tensor | Sequence[int],
    other: Tensor | Sequence[int],
    bias: Tensor | bool | None = None,
    variant: MatmulName = "auto",
    *,
    device: torch.device | str | int | None = None,
    tile_size: int | None = None,
    tf32: bool | None = None,
    input_dtype: torch.dtype = torch.float32,
) -> ProductPlan: ...


@overload
def plan(
    op: Literal["softmax", "log_softmax", "logsumexp", "layer_norm", "rms_norm"],
    input: Tensor | Sequence[int],
    along: int | Sequence[int] | None = None,
    *,
    variant: RowName = "auto",
    device: torch.device | str | int | None = None,
    input_dtype: torch.dtype = torch.float32,
) -> RowPlan: ...


@overload
def plan(
    op: Literal["vector_add"],
    input: Tensor | Sequence[int],
    other: Tensor | Sequence[int],
    *,
    variant: VectorAddName = "auto",
    device: torch.device | str | int | None = None,
    block_size: int | None = None,
    input_dtype: torch.dtype = torch.float32,
) -> AdditionPlan: ...


def plan(op: str, *arguments: Any, **named: Any) -> Plan | ProductPlan | RowPlan | AdditionPlan:
    """What a call does on a GPU: rung, order of additions, launches, workspace, and a bound on its time.

    Nothing is launched and no element read, so no GPU is needed. The arguments are checked as those of the call.

    Args:
        op: "sum", "mean", "amax", "amin", "matmul", "linear", "vector_add", "softmax", "log_softmax", "logsumexp",
            "layer_norm" or "rms_norm"; norms without weights.
        input: a tensor, on any device (a meta tensor will do), or a shape: then a contiguous tensor of it is meant.
        dim: as for `torch_reduce.sum`; so are dtype, keepdim and num_blocks.
        along: of a row operation: dim as for `torch_reduce.softmax`, or normalized_shape as for
            `torch_reduce.layer_norm`. Default: the last dim.
        other: the second operand of `torch_reduce.matmul` or `torch_reduce.vector_add`, or the weight of
            `torch_reduce.linear`: a tensor or a shape.
        bias: of `torch_reduce.linear`: a tensor, or True for one of the right shape.
        variant: as for the op.
        block_size: as for `torch_reduce.sum` or `torch_reduce.vector_add`.
        tile_size: as for `torch_reduce.matmul`.
        tf32: whether float32 may be read as tfloat32. Default: as torch is set.
        device: a GPU of this machine ("cuda", "cuda:1") or the name of a chip ("H200", "A100", "T4"; `CHIPS` in
            torch_reduce/_plan.py has all). Default: that of the tensor, else the current GPU, else an H200.
        input_dtype: of the elements, where `input` is a shape.

    Returns:
        A `Plan`, a `ProductPlan`, a `RowPlan` or an `AdditionPlan`; its `str()` is a short text.

    Raises:
        ValueError: an unknown op, chip or variant, or whatever else the call itself would refuse as one.
        TypeError: as the call.
        IndexError: as the call.
        RuntimeError: as the call.
        NotImplementedError: as the call; also a variant that the chip cannot run.

    Source:
        csrc/*/prepare.cpp of the op's family, which the call itself goes through.
    """
    if op in PRODUCTS or op == "vector_add":
        if len(arguments) < 2 and "other" not in named:
            raise TypeError(f"plan of {op} takes two operands, tensors or shapes")
        return plan_product(op, *arguments, **named) if op in PRODUCTS else plan_addition(*arguments, **named)
    if op in ROW_OPS:
        return plan_rows(op, *arguments, **named)
    if op not in REDUCTIONS:
        raise ValueError(f"unknown op {op!r}; plans are of {', '.join(OPS)}")
    return plan_reduction(op, *arguments, **named)
