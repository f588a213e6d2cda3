"""What a row operation would do on a GPU: its rung, its launch, and a bound on its time."""

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from . import _C
from ._names import RowName
from ._plan import Chip, Launch, MemoryPlan, _by, _dtype_name, chip_named
from ._plan_products import _launch_rows, _operand
from ._variants import ROW_OPS, variant_named

_READS = {
    "single": "element by element",
    "adjacent": "element by element, side by side",
    "shifted": "16-byte loads of unaligned rows",
    "vectors": "16-byte loads, 8 of 16-bit elements",
    "wide": "16-byte loads",
}


@dataclasses.dataclass(frozen=True)
class RowPlan(MemoryPlan):
    """What `plan` finds for a row operation. `str()` of it is a short text."""

    op: str
    shape: tuple[int, ...]
    input_dtype: str
    result_shape: tuple[int, ...]
    variant: str
    """The variant asked for."""
    rung: str
    """The rung that runs: another one for `auto`."""
    order: str
    order_text: str
    row_count: int
    length: int
    """Elements of a row."""
    reads: str
    """How elements are read."""
    copies: bool
    """Whether the input is copied first; only very irregular layouts need it."""
    warps: int
    """Warps of a block that share a row."""
    launches: tuple[Launch, ...]
    chip: Chip
    bytes_read: int
    """A lower bound: the input once."""
    bytes_written: int

    def rows(self) -> list[tuple[str, str]]:
        """The text's lines, as names and values."""
        found = [
            ("call", f"{self.op} of {_by(self.shape)} {self.input_dtype}, variant {self.variant}"),
            ("result", f"{_by(self.result_shape)} {self.input_dtype}"),
            ("rung", self.rung),
            ("order", f"{self.order}: {self.order_text}"),
            ("rows", f"{self.row_count:,} of {self.length:,} elements"),
        ]
        if self.launches:
            copy = ", from a copy of the input" if self.copies else ""
            found.append(("reads", _READS[self.reads] + copy))
            found += _launch_rows(self.launches)
        else:
            found.append(("launches", "none"))
        return found + self._memory_rows(", at least")


def plan_rows(
    op: str,
    input: Tensor | Sequence[int],
    along: int | Sequence[int] | None = None,
    *,
    variant: RowName = "auto",
    device: torch.device | str | int | Chip | None = None,
    input_dtype: torch.dtype = torch.float32,
) -> RowPlan:
    """`plan` of the row operations. `along` is dim, or normalized_shape for norms; None means the last dim."""
    if op not in ROW_OPS:
        raise ValueError(f"unknown row operation {op!r}; there are {', '.join(ROW_OPS)}")
    if device is None and isinstance(input, Tensor) and input.is_cuda:
        device = input.device
    chip = chip_named(device)
    operand = _operand(input)
    shape = tuple(operand[0])
    if along is None:
        along = list(shape[-1:]) if op.endswith("norm") else -1
    dtype = input.dtype if isinstance(input, Tensor) else input_dtype
    sizes = [along] if isinstance(along, int) else list(along)
    found = _C.row_call_plan(op, operand, dtype, sizes, variant, chip.facts)
    return RowPlan(
        op=op,
        shape=shape,
        input_dtype=_dtype_name(dtype),
        variant=variant_named("softmax", variant).name,
        launches=tuple(Launch(**launch) for launch in found["launches"]),
        chip=chip,
        **{
            name: found[name]
            for name in (
                "result_shape", "rung", "order", "order_text", "row_count", "length", "reads", "copies", "warps",
                "bytes_read", "bytes_written",
            )
        },
    )  # fmt: skip
