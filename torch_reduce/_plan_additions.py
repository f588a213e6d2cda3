"""What `vector_add` would do on a GPU: its rung, its launches, and a bound on its time."""

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from . import _C
from ._names import VectorAddName
from ._plan import Chip, Launch, MemoryPlan, _by, _dtype_name, chip_named
from ._plan_products import _launch_rows, _operand
from ._variants import variant_named


@dataclasses.dataclass(frozen=True)
class AdditionPlan(MemoryPlan):
    """What `plan` finds for `vector_add`. `str()` of it is a short text."""

    op: str
    shapes: tuple[tuple[int, ...], tuple[int, ...]]
    """The operands' shapes."""
    input_dtype: str
    result_shape: tuple[int, ...]
    variant: str
    """The variant asked for."""
    rung: str
    """The rung that runs: another one for `auto`."""
    order: str
    order_text: str
    elements: int
    """Elements of the result."""
    vectors: bool
    """Whether loads and stores are 16 bytes wide."""
    copies: tuple[bool, bool]
    """Whether each operand is copied first: one that is broadcast, or laid out otherwise than the other."""
    launches: tuple[Launch, ...]
    chip: Chip
    bytes_read: int
    """Of copies too; so is `bytes_written`."""
    bytes_written: int

    def rows(self) -> list[tuple[str, str]]:
        """The text's lines, as names and values."""
        operands = " and ".join(_by(shape) for shape in self.shapes)
        found = [
            ("call", f"{self.op} of {operands} {self.input_dtype}, variant {self.variant}"),
            ("result", f"{_by(self.result_shape)} {self.input_dtype}"),
            ("rung", self.rung),
            ("order", f"{self.order}: {self.order_text}"),
        ]
        if self.launches:
            copied = [which for which, copies in zip(("first", "second"), self.copies, strict=True) if copies]
            copy = f", from a copy of the {' and of the '.join(copied)} operand" if copied else ""
            found.append(("reads", ("16-byte loads" if self.vectors else "element by element") + copy))
            found += _launch_rows(self.launches)
        else:
            found.append(("launches", "none"))
        return found + self._memory_rows()


def plan_addition(
    input: Tensor | Sequence[int],
    other: Tensor | Sequence[int],
    *,
    variant: VectorAddName = "auto",
    device: torch.device | str | int | Chip | None = None,
    block_size: int | None = None,
    input_dtype: torch.dtype = torch.float32,
) -> AdditionPlan:
    """`plan` of "vector_add"."""
    tensors = [x for x in (input, other) if isinstance(x, Tensor)]
    if device is None:
        device = next((x.device for x in tensors if x.is_cuda), None)
    chip = chip_named(device)
    if len(tensors) == 2 and tensors[0].device != tensors[1].device:
        places = " and ".join(str(x.device) for x in tensors)
        raise ValueError(f"treduce::vector_add takes two tensors on one device, got {places}")
    dtype = tensors[0].dtype if tensors else input_dtype
    left, right = _operand(input), _operand(other)
    other_dtype = other.dtype if isinstance(other, Tensor) else dtype
    found = _C.addition_plan(left, dtype, right, other_dtype, variant, block_size, chip.facts)
    return AdditionPlan(
        op="vector_add",
        shapes=(tuple(left[0]), tuple(right[0])),
        input_dtype=_dtype_name(dtype),
        variant=variant_named("vector_add", variant).name,
        launches=tuple(Launch(**launch) for launch in found["launches"]),
        chip=chip,
        **{
            name: found[name]
            for name in (
                "result_shape", "rung", "order", "order_text", "elements", "vectors", "copies", "bytes_read",
                "bytes_written",
            )
        },
    )  # fmt: skip
