"""What a matrix product would do on a GPU: its rung, tiles, launches and workspace, and a bound on its time."""

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from . import _C
from ._names import MatmulName
from ._plan import CHIPS, Chip, Launch, PlanText, Region, _address, _by, _dtype_name, _plain, chip_named
from ._variants import PRODUCTS, variant_named

# Operations a second of the data sheets, dense: by chip, then by what is multiplied by which cores.
_H100 = {
    "float16 on tensor cores": 989.4e12,
    "bfloat16 on tensor cores": 989.4e12,
    "tfloat32 on tensor cores": 494.7e12,
    "int8 on tensor cores": 1978.9e12,
    "float64 on tensor cores": 66.9e12,
    "float32 on plain cores": 66.9e12,
    "float64 on plain cores": 33.5e12,
}
_A100 = {
    "float16 on tensor cores": 312e12,
    "bfloat16 on tensor cores": 312e12,
    "tfloat32 on tensor cores": 156e12,
    "int8 on tensor cores": 624e12,
    "float64 on tensor cores": 19.5e12,
    "float32 on plain cores": 19.5e12,
    "float64 on plain cores": 9.7e12,
}
_H100_PCIE = {
    "float16 on tensor cores": 756e12,
    "bfloat16 on tensor cores": 756e12,
    "tfloat32 on tensor cores": 378e12,
    "int8 on tensor cores": 1513e12,
    "float64 on tensor cores": 51e12,
    "float32 on plain cores": 51e12,
    "float64 on plain cores": 26e12,
}
PEAKS = {"H200": _H100, "H100": _H100, "H100 PCIe": _H100_PCIE, "A100": _A100, "A100 40GB": _A100}


@dataclasses.dataclass(frozen=True)
class ProductPlan(PlanText):
    """What `plan` finds for a product. `str()` of it is a short text."""

    op: str
    shapes: tuple[tuple[int, ...], ...]
    """The operands' shapes, then the bias's if there is one."""
    input_dtype: str
    result_shape: tuple[int, ...]
    result_dtype: str
    variant: str
    """The variant asked for."""
    rung: str
    """The rung that runs: another one for `auto`."""
    order: str
    order_text: str
    problem: tuple[int, int, int, int]
    """Number of matrices, m, n, k; batch dimensions that could become rows of one matrix are counted in m."""
    tile: tuple[int, int]
    """Rows and columns of the outputs that a block computes, or a cluster of blocks."""
    stages: int
    """Stages of the pipeline of tiles in dynamic shared memory; 0 if there is none."""
    groups: int
    """Into how many groups k is cut. Their sums are added in the order of k."""
    groups_apart: bool
    """Whether different blocks compute the groups of k. The bits are the same."""
    tasks_dealt: int
    """Tiles, or groups of k of tiles, that blocks are dealt by steps of k, because they fill no round of blocks: one
    goes on from the sums of another. The bits are the same."""
    strip: tuple[int, int]
    """Rows and columns of the outputs that the last launch computes in smaller tiles, because large ones would fill a
    part of a round of blocks: the last rows of each matrix, or its last columns. (0, 0): none. The bits are the
    same."""
    reads: tuple[str, str]
    """How each operand is read."""
    launches: tuple[Launch, ...]
    workspace_bytes: int
    regions: tuple[Region, ...]
    """The parts of the workspace."""
    chip: Chip
    made_of: str
    """How the product is composed if no kernel multiplies its dtype, else empty. The fields from `problem` on then
    describe the product that is launched."""
    operations: float
    """Multiplications and additions of `unit`, three times the product's in `split_fp16`, six in `split_bf16`."""
    unit: str
    """What is multiplied, and on which cores."""
    bytes_read: int
    """A lower bound: each operand once. Copies and halves may stay in the L2."""
    bytes_written: int

    @property
    def memory_us(self) -> float | None:
        """The time that the bytes take at the chip's bandwidth."""
        bandwidth = self.chip.bandwidth
        return (self.bytes_read + self.bytes_written) / bandwidth * 1e6 if bandwidth else None

    @property
    def peak(self) -> float | None:
        """Operations of `unit` a second, where the chip's data sheet is known."""
        peaks = next((found for name, found in PEAKS.items() if _plain(name) == _plain(self.chip.name)), {})
        return peaks.get(self.unit)

    @property
    def arithmetic_us(self) -> float | None:
        """The time that the operations take at the chip's peak."""
        return self.operations / self.peak * 1e6 if self.peak else None

    @property
    def bound_us(self) -> float | None:
        """The longer of `memory_us` and `arithmetic_us`. Launch and latency come on top."""
        return max((us for us in (self.memory_us, self.arithmetic_us) if us is not None), default=None)

    def rows(self) -> list[tuple[str, str]]:
        """The text's lines, as names and values."""
        operands = " and ".join(_by(shape) for shape in self.shapes[:2])
        bias = ", with a bias" if len(self.shapes) > 2 else ""
        batches, m, n, k = self.problem
        matrices = f"{batches:,} matrices, each " if batches != 1 else ""
        found = [
            ("call", f"{self.op} of {operands} {self.input_dtype}{bias}, variant {self.variant}"),
            ("result", f"{_by(self.result_shape)} {self.result_dtype}"),
            ("rung", self.rung),
            ("order", f"{self.order}: {self.order_text}"),
            ("product", f"{matrices}m {m:,}, n {n:,}, k {k:,}"),
        ]
        if self.made_of:
            found.insert(2, ("made of", self.made_of))
        if not self.launches:
            found.append(("launches", "none: zeros, or the bias, are written"))
        else:
            tiles = f"{self.tile[0]} x {self.tile[1]} outputs"
            found.append(("tiles", tiles + (f", {self.stages} stages" if self.stages else "")))
            if self.groups > 1:
                where = "side by side, then added" if self.groups_apart else "one after another"
                found.append(("groups", f"{self.groups} of k, {where}"))
            if self.tasks_dealt:
                found.append(("tasks", f"{self.tasks_dealt} of them dealt out by steps of k"))
            rows, columns = self.strip
            if rows:
                lines = f"{columns} columns" if rows == self.problem[1] else f"{rows} rows"
                found.append(("strip", f"the last {lines}, in smaller tiles"))
            found.append(("reads", f"A {self.reads[0]}, B {self.reads[1]}"))
            found += _launch_rows(self.launches)
        found.append(("workspace", f"{self.workspace_bytes:,} bytes"))
        found += [("", f"{r.name}: {r.bytes:,} bytes at {r.offset:,}") for r in self.regions]
        found.append(("moves", f"{self.bytes_read:,} bytes read, {self.bytes_written:,} written, at least"))
        found.append(("computes", f"{self.operations:,.0f} operations, {self.unit}"))
        found.append(self._chip_row())
        chip = self.chip
        bounds = []
        if self.memory_us is not None and chip.bandwidth is not None:
            bounds.append(f"{self.memory_us:,.2f} µs at {chip.bandwidth / 1e9:,.0f} GB/s")
        if self.arithmetic_us is not None and self.peak is not None:
            bounds.append(f"{self.arithmetic_us:,.2f} µs at {self.peak / 1e12:,.1f} TFLOP/s")
        if bounds:
            found.append(("bound", f"{', '.join(bounds)} ({chip.source})"))
        return found


def plan_product(
    op: str,
    input: Tensor | Sequence[int],
    other: Tensor | Sequence[int],
    bias: Tensor | bool | None = None,
    variant: MatmulName = "auto",
    *,
    device: torch.device | str | int | Chip | None = None,
    tile_size: int | None = None,
    tf32: bool | None = None,
    input_dtype: torch.dtype = torch.float32,
) -> ProductPlan:
    """`plan` of "matmul" and "linear"."""
    if op not in PRODUCTS:
        raise ValueError(f"unknown product {op!r}; there are {', '.join(PRODUCTS)}")
    if op == "matmul" and bias is not None:
        raise ValueError("matmul takes no bias; linear does")
    if op == "linear" and tile_size is not None:
        raise ValueError("linear takes no tile_size")
    tensors = [x for x in (input, other) if isinstance(x, Tensor)]
    dtypes = {x.dtype for x in tensors} or {input_dtype}
    if len(dtypes) > 1:
        raise TypeError(f"{op} takes tensors of one dtype, got {' and '.join(_dtype_name(x.dtype) for x in tensors)}")
    (dtype,) = dtypes
    if device is None:
        device = next((x.device for x in tensors if x.is_cuda), None)
    chip = chip_named(device)
    left, right = _operand(input), _operand(other)
    added = None
    if isinstance(bias, Tensor):
        added = _operand(bias)
    elif bias:
        added = _operand(right[0][:1] if len(right[0]) > 1 else ())
    if tf32 is None:
        tf32 = torch.backends.cuda.matmul.fp32_precision == "tf32"
    here = not isinstance(device, Chip) and chip not in CHIPS
    found = _C.product_plan(op == "linear", left, right, added, dtype, variant, tile_size, tf32, chip.facts, here)
    return ProductPlan(
        op=op,
        shapes=tuple(tuple(operand[0]) for operand in (left, right, added) if operand is not None),
        input_dtype=_dtype_name(dtype),
        variant=variant_named("matmul", variant).name,
        problem=tuple(found[name] for name in ("batches", "m", "n", "k")),
        reads=(found["reads_a"], found["reads_b"]),
        launches=tuple(Launch(**launch) for launch in found["launches"]),
        regions=tuple(Region(**region) for region in found["regions"]),
        chip=chip,
        **{
            name: found[name]
            for name in (
                "result_shape", "result_dtype", "made_of", "rung", "order", "order_text", "tile", "stages", "groups",
                "groups_apart", "tasks_dealt", "strip", "workspace_bytes", "operations", "unit", "bytes_read",
                "bytes_written",
            )
        },
    )  # fmt: skip


def _launch_rows(launches: Sequence[Launch]) -> list[tuple[str, str]]:
    return [("launches" if not i else "", _as_text(launch)) for i, launch in enumerate(launches)]


def _as_text(launch: Launch) -> str:
    block = f"{launch.block[0]} x {launch.block[1]}" if launch.block[1] > 1 else f"{launch.block[0]}"
    says = [f"grid {launch.grid[0]:,}", f"block {block}"]
    if launch.shared_bytes:
        says.append(f"dynamic shared memory {launch.shared_bytes:,} bytes")
    if launch.cluster > 1:
        says.append(f"clusters of {launch.cluster}")
    if launch.overlapping:
        says.append("overlaps the one before")
    return f"{launch.kernel}: {', '.join(says)}"


def _operand(x: Tensor | Sequence[int]) -> tuple[list[int], list[int], int, bool]:
    """Sizes, strides, address, and whether it is conjugated or negated when it is read."""
    if isinstance(x, Tensor):
        if x.layout != torch.strided:
            raise NotImplementedError(f"torch_reduce takes dense tensors, got one of layout {x.layout}")
        return list(x.shape), list(x.stride()), _address(x), x.is_conj() or x.is_neg()
    if any(size < 0 for size in x):
        raise ValueError(f"sizes start at 0, got {tuple(x)}")
    meta = torch.empty(tuple(x), device="meta")
    return list(meta.shape), list(meta.stride()), 0, False
