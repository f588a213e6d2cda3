"""The ladders as data, read from the tables of the extension."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Generic, Literal, TypeVar, get_args, overload

from . import _C
from ._names import MatmulName, OpName, ReductionName, RowName, VectorAddName

REDUCTIONS: tuple[OpName, ...] = ("sum", "mean", "amax", "amin")
PRODUCTS: tuple[OpName, ...] = ("matmul", "linear")
ROW_OPS: tuple[OpName, ...] = ("softmax", "log_softmax", "logsumexp", "layer_norm", "rms_norm")
OPS: tuple[OpName, ...] = get_args(OpName)

_FLOATING = ("float32", "float64", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
_COMPLEX = ("complex64", "complex128")


_Name = TypeVar("_Name", bound=str)


@dataclasses.dataclass(frozen=True)
class Variant(Generic[_Name]):
    """One rung of a ladder."""

    name: _Name
    aliases: tuple[str, ...]
    summary: str
    """The idea, in a line."""
    origin: str
    """The source of the idea."""
    order: str
    """The order class. Variants of one class give the same bits for the same sizes."""
    order_text: str
    deterministic: bool
    has_kernel: bool
    """False for `auto`, which runs the kernel of the variant that it picks."""
    capability: tuple[int, int]
    """The lowest compute capability on which it runs."""
    one_chip: bool
    """Whether it runs on that compute capability only, not on later ones."""
    on_cpu: bool
    """Whether the CPU gives the same bits. If not, the CPU computes in an order of its own."""
    float32_bits: int
    """How many bits of a float32 operand's significand enter the products: 24 are all."""
    dtypes: tuple[str, ...]
    size_name: Literal["block_size", "tile_size"] | None
    """The argument to which `sizes` belong; None if the variant takes none."""
    size_default: int
    """0: chosen by the shape, or the variant takes no size."""
    size_min: int
    size_max: int
    takes_num_blocks: bool
    along_dims: bool = False
    """Whether it takes `dim`. The other reductions reduce whole tensors."""
    composed_dtypes: tuple[str, ...] = ()
    """Further dtypes that it takes: their products are composed of products of `dtypes`."""

    def runs_on(self, capability: tuple[int, int]) -> bool:
        """Whether it runs on a GPU of that compute capability."""
        return capability == self.capability if self.one_chip else capability >= self.capability

    @property
    def sizes(self) -> tuple[int, ...]:
        """The values that `size_name` may have: powers of two from `size_min` to `size_max`."""
        return tuple(1 << i for i in range(self.size_max.bit_length()) if self.size_min <= 1 << i <= self.size_max)

    def cells(self) -> tuple[str, ...]:
        """Its line in a table of variants, whose columns are `COLUMNS`."""
        sizes = []
        if self.size_name:
            sizes.append(f"{self.size_name} {self.size_min}..{self.size_max}")
        if self.takes_num_blocks:
            sizes.append("num_blocks")
        needs = "" if self.capability <= (7, 5) else f"sm_{self.capability[0]}{self.capability[1]}"
        order = self.order if self.deterministic else f"{self.order} (not deterministic)"
        return self.name, ", ".join(self.aliases), ", ".join(sizes), order, needs, self.summary


COLUMNS = ("variant", "known as", "sizes", "order class", "needs", "idea")


class Variants(tuple[Variant[_Name], ...], Generic[_Name]):
    """The variants of an op in teaching order. `str()` of it is a table."""

    __slots__ = ()

    def __str__(self) -> str:
        lines = [COLUMNS, *(v.cells() for v in self)]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        return "\n".join(
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
        )


def _family(op: str) -> tuple[Callable[[], list[dict]], Callable[[str], str], Literal["block_size", "tile_size"]]:
    if op in REDUCTIONS:
        return _C.reduce_variants, _C.reduce_name, "block_size"
    if op in PRODUCTS:
        return _C.matmul_variants, _C.matmul_name, "tile_size"
    if op == "vector_add":
        return _C.vector_add_variants, _C.vector_add_name, "block_size"
    if op in ROW_OPS:
        return _C.row_variants, _C.row_name, "block_size"
    raise ValueError(f"unknown op {op!r}; the ops are {', '.join(OPS)}")


@overload
def variants(op: Literal["sum", "mean", "amax", "amin"]) -> Variants[ReductionName]: ...
@overload
def variants(op: Literal["matmul", "linear"]) -> Variants[MatmulName]: ...
@overload
def variants(op: Literal["vector_add"]) -> Variants[VectorAddName]: ...
@overload
def variants(
    op: Literal["softmax", "log_softmax", "logsumexp", "layer_norm", "rms_norm"],
) -> Variants[RowName]: ...
@overload
def variants(op: OpName) -> Variants[str]: ...
def variants(op: OpName) -> Any:
    """The variants of an op, in teaching order.

    Args:
        op: "sum", "mean", "amax", "amin", "matmul", "linear", "vector_add", "softmax", "log_softmax", "logsumexp",
            "layer_norm" or "rms_norm".

    Returns:
        A tuple of `Variant`; its `str()` is a table.

    Raises:
        ValueError: an unknown op.

    Source:
        csrc/*/ladder.cpp, the tables themselves.
    """
    return _variants_of(op)


@functools.cache
def _variants_of(op: OpName) -> Variants[str]:
    table, _, size_name = _family(op)
    rows = []
    for row in table():
        if op == "mean":
            row["dtypes"] = tuple(d for d in row["dtypes"] if d in _FLOATING + _COMPLEX)
        elif op in ("amax", "amin"):
            row["dtypes"] = tuple(d for d in row["dtypes"] if d not in _COMPLEX)
        elif op == "linear":  # its tiles are those of matmul's default
            row.update(size_default=0, size_min=0, size_max=0)
        rows.append(Variant(size_name=size_name if row["size_max"] else None, **row))
    return Variants(rows)


def resolve(op: OpName, name: str) -> str:
    """The name in the table behind a name or an alias: `resolve("sum", "v0") == "interleaved_modulo"`.

    Args:
        op: "sum", "mean", "amax", "amin", "matmul", "linear", "vector_add", "softmax", "log_softmax", "logsumexp",
            "layer_norm" or "rms_norm".
        name: a variant or one of its aliases.

    Raises:
        ValueError: an unknown op, or an unknown variant; the message names the closest ones.
    """
    return _family(op)[1](name)


def variant_named(op: OpName, name: str) -> Variant:
    """The row of a name or alias. Raises ValueError as `resolve` does."""
    canonical = resolve(op, name)
    return next(v for v in variants(op) if v.name == canonical)
