"""What a reduction would do on a GPU: its rung, the order of its additions, its schedule, and a bound on its time."""

import dataclasses
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from . import _C
from ._device import as_device, cuda_usable, describe
from ._names import ReductionName
from ._variants import REDUCTIONS, variant_named


@dataclasses.dataclass(frozen=True)
class Chip:
    """The facts about a GPU on which schedules and the bound depend."""

    name: str
    multiprocessors: int
    capability: tuple[int, int]
    bandwidth: float | None
    """Memory bandwidth in bytes a second."""
    source: str
    """The source of the bandwidth."""
    read_ceiling: float | None = None
    """The fastest read that this project recorded, in bytes a second."""

    @property
    def facts(self) -> tuple[int, int]:
        """What the C++ side asks of it."""
        return self.multiprocessors, 10 * self.capability[0] + self.capability[1]


_SHEET = "vendor's data sheet"

CHIPS: tuple[Chip, ...] = (
    # 4.505 TB/s: `ceilings` in benchmarks/results/nvidia-h200/ladder.json.
    Chip("H200", 132, (9, 0), 4.8e12, _SHEET, read_ceiling=4.505e12),
    Chip("H100", 132, (9, 0), 3.35e12, _SHEET),
    Chip("H100 PCIe", 114, (9, 0), 2.0e12, _SHEET),
    Chip("B200", 148, (10, 0), 8.0e12, _SHEET),
    Chip("A100", 108, (8, 0), 2.039e12, _SHEET),
    Chip("A100 40GB", 108, (8, 0), 1.555e12, _SHEET),
    Chip("A10", 72, (8, 6), 0.6e12, _SHEET),
    Chip("L4", 58, (8, 9), 0.3e12, _SHEET),
    Chip("L40S", 142, (8, 9), 0.864e12, _SHEET),
    Chip("RTX 4090", 128, (8, 9), 1.008e12, _SHEET),
    Chip("T4", 40, (7, 5), 0.32e12, _SHEET),
)
"""The chips that can be planned for by name; by default the SXM form with the larger memory."""


@dataclasses.dataclass(frozen=True)
class Order:
    """The additions that make an output. Nothing else changes its bits."""

    name: str
    text: str
    length: int
    """How many elements are reduced into an output."""
    depth: int
    """The most roundings that an element passes through, for floats: the error bound grows with it."""
    chunks: int | None = None
    """This and the next three: only for the pairwise tree."""
    lanes: int | None = None
    stripes: int | None = None
    leaves: int | None = None
    passes: str | None = None
    """Only for rungs that reduce whole tensors."""


@dataclasses.dataclass(frozen=True)
class Launch:
    """One launch of a kernel."""

    kernel: str
    grid: tuple[int, int]
    block: tuple[int, int]
    shared_bytes: int
    """Dynamic shared memory of a block."""
    cluster: int = 1
    """Blocks of a cluster."""
    cooperative: bool = False
    """Whether the whole grid is resident. The grid is then the most: no more blocks are launched than the GPU holds."""
    overlapping: bool = False
    """Whether it may start before the previous launch has ended."""


@dataclasses.dataclass(frozen=True)
class Region:
    """A part of the workspace: global memory beside the input and the result."""

    name: str
    offset: int
    bytes: int


@dataclasses.dataclass(frozen=True)
class Schedule:
    """Who computes the additions. It changes the time and no bit, except for rungs that reduce whole tensors."""

    grid: int
    """Blocks of the launch, or of the first one."""
    block: tuple[int, int]
    """Threads of a block, in x and y."""
    launches: int
    """Kernels launched, without those of a copy of the input."""
    workspace_bytes: int
    """Global memory for values between blocks."""
    counters: int
    """Counters of finished blocks, in global memory."""
    copies: bool
    """Whether the input is copied first: only very irregular layouts need it, and dtypes that no kernel reads."""
    shapes: tuple[Launch, ...] = ()
    """The launches, one by one."""
    regions: tuple[Region, ...] = ()
    """The parts of the workspace."""
    tiles: int | None = None
    """Tiles of work, over outputs and splits. This and the rest are None for rungs that reduce whole tensors."""
    tile: int | None = None
    """Outputs of a tile."""
    span: int | None = None
    """How many nodes of the tree (or other items that the rung counts) one block or thread folds."""
    splits: int | None = None
    """Blocks that share an output."""
    vectors: bool | None = None
    """Whether loads are 16 bytes wide."""
    shifted: bool | None = None
    """Whether unaligned rows are read in aligned 16-byte loads, whose lanes are then moved to their places."""
    shared_bytes: int | None = None
    """Dynamic shared memory of a block."""
    cluster: int | None = None
    """Blocks of a cluster."""


class PlanText:
    """What the plans share: a text of `rows()`, names and values."""

    chip: Chip

    def rows(self) -> list[tuple[str, str]]:
        raise NotImplementedError

    def __str__(self) -> str:
        rows = self.rows()
        width = max(len(name) for name, _ in rows)
        return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)

    def _chip_row(self) -> tuple[str, str]:
        chip = self.chip
        major, minor = chip.capability
        return "chip", f"{chip.name}: {chip.multiprocessors} multiprocessors, capability {major}.{minor}"


class MemoryPlan(PlanText):
    """What plans share that memory alone bounds."""

    bytes_read: int
    bytes_written: int

    @property
    def bound_us(self) -> float | None:
        """The time that the bytes take at the chip's bandwidth. Launch and latency come on top."""
        bandwidth = self.chip.bandwidth
        return (self.bytes_read + self.bytes_written) / bandwidth * 1e6 if bandwidth else None

    def _memory_rows(self, least: str = "") -> list[tuple[str, str]]:
        chip = self.chip
        found = [("moves", f"{self.bytes_read:,} bytes read, {self.bytes_written:,} written{least}"), self._chip_row()]
        if self.bound_us is not None and chip.bandwidth is not None:
            found.append(("bound", f"{self.bound_us:,.2f} µs at {chip.bandwidth / 1e9:,.0f} GB/s ({chip.source})"))
        return found


@dataclasses.dataclass(frozen=True)
class Plan(PlanText):
    """The result of `plan`. `str()` of it is a short text."""

    op: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    input_dtype: str
    dim: tuple[int, ...] | None
    keepdim: bool
    result_shape: tuple[int, ...]
    result_dtype: str
    variant: str
    """The variant asked for."""
    rung: str
    """The rung whose kernel or schedule it takes: another one for `auto` and `compensated`."""
    order: Order
    schedule: Schedule
    reduced: tuple[tuple[int, int], ...] | None
    """Size and stride of the reduced dims, outermost first, after contiguous neighbours were joined: the order of the
    elements. This and the next are None for rungs that reduce whole tensors."""
    kept: tuple[tuple[int, int], ...] | None
    chip: Chip
    bytes_read: int
    bytes_written: int
    deterministic: bool
    """Whether equal inputs give equal bits. False only for rounded sums by `atomic`."""

    @property
    def bound_us(self) -> float | None:
        """The time that the bytes take at the chip's bandwidth. Launch and latency come on top."""
        return self._microseconds(self.chip.bandwidth)

    @property
    def ceiling_us(self) -> float | None:
        """The same at the recorded ceiling, if there is one."""
        return self._microseconds(self.chip.read_ceiling)

    def _microseconds(self, bandwidth: float | None) -> float | None:
        return (self.bytes_read + self.bytes_written) / bandwidth * 1e6 if bandwidth else None

    def rows(self) -> list[tuple[str, str]]:
        """The text's lines, as names and values."""
        dim = "all dims" if self.dim is None else f"dim {', '.join(map(str, self.dim))}"
        found = [
            ("call", f"{self.op} of {_by(self.shape)} {self.input_dtype}, {dim}, variant {self.variant}"),
            ("result", f"{_by(self.result_shape)} {self.result_dtype}"),
            ("rung", self.rung),
        ]
        order, schedule = self.order, self.schedule
        found.append(("order", f"{order.name}: {order.text}"))
        if order.chunks is not None:
            shape = f"{_count(order.chunks, 'chunk')} of {order.stripes} stripes x {order.lanes} lanes"
            found.append(("", f"{order.length:,} elements: {shape}, {_count(order.leaves or 0, 'leaf', 'leaves')}"))
        found += [("", line) for line in (order.passes or "").splitlines() if line.strip()]
        found.append(("depth", f"{order.depth:,} roundings at most"))
        if self.reduced is not None and self.kept is not None:
            found.append(("reads", f"reduced {_extents(self.reduced)}; kept {_extents(self.kept)} (size @ stride)"))
        threads = f"{schedule.block[0]} x {schedule.block[1]}" if schedule.block[1] > 1 else f"{schedule.block[0]}"
        found.append(
            ("schedule", f"{_count(schedule.launches, 'launch', 'launches')}, grid {schedule.grid:,}, block {threads}")
        )
        if schedule.tiles is not None:
            says = (
                f"{_count(schedule.tiles, 'tile')} of {_count(schedule.tile or 0, 'output')}, span {schedule.span:,}, "
            )
            loads = "16-byte loads" if schedule.vectors else "element by element"
            says += f"splits {schedule.splits:,}, {'16-byte loads of unaligned rows' if schedule.shifted else loads}"
            if schedule.cluster != 1:
                says += f", clusters of {schedule.cluster}"
            found.append(("", says))
        memory = [f"workspace {schedule.workspace_bytes:,} bytes", _count(schedule.counters, "counter")]
        if schedule.shared_bytes:
            memory.insert(0, f"dynamic shared memory {schedule.shared_bytes:,} bytes a block")
        found.append(("", ", ".join(memory) + (", and a copy of the input" if schedule.copies else "")))
        found.append(("moves", f"{self.bytes_read:,} bytes read, {self.bytes_written:,} written"))
        found.append(self._chip_row())
        chip = self.chip
        if self.bound_us is not None and chip.bandwidth is not None:
            bound = f"{self.bound_us:,.2f} µs at {chip.bandwidth / 1e9:,.0f} GB/s ({chip.source})"
            if self.ceiling_us is not None and chip.read_ceiling is not None:
                bound += f", {self.ceiling_us:,.2f} µs at {chip.read_ceiling / 1e9:,.0f} GB/s as measured"
            found.append(("bound", bound))
        return found


def plan(
    op: str,
    input: Tensor | Sequence[int],
    dim: int | Sequence[int] | None = None,
    dtype: torch.dtype | None = None,
    variant: ReductionName = "auto",
    *,
    keepdim: bool = False,
    device: torch.device | str | int | Chip | None = None,
    block_size: int | None = None,
    num_blocks: int | None = None,
    input_dtype: torch.dtype = torch.float32,
) -> Plan:
    """What a reduction does on a GPU: the rung, the order of additions, the schedule, and a bound on its time.

    Nothing is launched and no element read, so no GPU is needed. The arguments are checked as those of the call.

    Args:
        op: "sum", "mean", "amax" or "amin".
        input: a tensor, on any device (a meta tensor will do), or a shape: then a contiguous tensor of it is meant.
        dim: as for `torch_reduce.sum`.
        dtype: as for `torch_reduce.sum`: that of the result.
        variant: as for `torch_reduce.sum`.
        keepdim: as for `torch_reduce.sum`.
        device: a GPU of this machine ("cuda", "cuda:1"), a `Chip`, or the name of one ("H200", "A100", "T4"; `CHIPS` in
            torch_reduce/_plan.py has all). Default: that of the tensor, else the current GPU, else an H200.
        block_size: as for `torch_reduce.sum`.
        num_blocks: as for `torch_reduce.sum`.
        input_dtype: of the elements, where `input` is a shape.

    Returns:
        A `Plan`; its `str()` is a short text.

    Raises:
        ValueError: an unknown op, chip or variant, or whatever else the call itself would refuse as one.
        TypeError: as the call.
        IndexError: as the call.
        RuntimeError: as the call.
        NotImplementedError: as the call; also a variant that the chip cannot run.

    Source:
        csrc/reduce: the order in pairwise.h (whole-tensor rungs: plan.cpp), the schedules in schedule.cpp.
    """
    if op not in REDUCTIONS:
        raise ValueError(f"unknown reduction {op!r}; there are {', '.join(REDUCTIONS)}")
    lazy = False
    if isinstance(input, Tensor):
        x, address, lazy = input.detach(), _address(input), input.is_conj() or input.is_neg()
        if device is None and x.is_cuda:
            device = x.device
        if x.layout != torch.strided:
            raise NotImplementedError(f"torch_reduce takes dense tensors, got one of layout {x.layout}")
    else:
        if any(size < 0 for size in input):
            raise ValueError(f"sizes start at 0, got {tuple(input)}")
        x, address = torch.empty(tuple(input), dtype=input_dtype, device="meta"), 0
    chip = chip_named(device)
    shape, strides = tuple(int(size) for size in x.shape), tuple(int(stride) for stride in x.stride())
    dims = None if dim is None else [dim] if isinstance(dim, int) else list(dim)
    found = _C.call_plan(
        op, shape, strides, x.dtype, address, lazy, variant, dims, keepdim, dtype, block_size, num_blocks, chip.facts
    )
    row = variant_named("sum", variant)
    return Plan(
        op=op,
        shape=shape,
        strides=strides,
        input_dtype=_dtype_name(x.dtype),
        dim=tuple(sorted(d % len(shape) if shape else 0 for d in dims)) if dims else None,
        keepdim=keepdim,
        result_shape=found["result_shape"],
        result_dtype=found["result_dtype"],
        variant=row.name,
        rung=found["rung"],
        order=_dims_order(found) if row.along_dims else _whole_order(found),
        schedule=_schedule(found),
        reduced=found.get("reduced"),
        kept=found.get("kept"),
        chip=chip,
        bytes_read=found["bytes_read"],
        bytes_written=found["bytes_written"],
        deterministic=found["deterministic"],
    )


def chip_named(device: torch.device | str | int | Chip | None) -> Chip:
    """The chip meant: itself, a name in `CHIPS`, a GPU of this machine, or, for None, the current GPU, else an H200.

    Raises:
        ValueError: neither.
    """
    if isinstance(device, Chip):
        return device
    if device is None and not cuda_usable():
        device = "H200"
    if isinstance(device, str):
        wanted = _plain(device)
        for chip in CHIPS:
            if _plain(chip.name) == wanted:
                return chip
    names = ", ".join(chip.name for chip in CHIPS)
    if isinstance(device, str) and device.partition(":")[0] not in ("cpu", "cuda"):
        raise ValueError(f"unknown device {device!r}; use 'cuda', 'cuda:1' or the name of a chip: {names}")
    where = as_device(device)
    if where.type == "cpu":
        raise ValueError(f"a plan is of a GPU, got device {device!r}; name one of this machine or a chip: {names}")
    info = describe(where)
    facts = {name: int(value) for name, value in info.facts.items() if not isinstance(value, str)}
    known = next((chip for chip in CHIPS if _plain(chip.name) == _plain(info.name)), None)
    bandwidth = 2 * facts["memory_clock_khz"] * 1000 * facts["memory_bus_bits"] / 8
    return Chip(
        name=info.name,
        multiprocessors=facts["multiprocessors"],
        capability=(facts["compute_capability_major"], facts["compute_capability_minor"]),
        bandwidth=known.bandwidth if known else bandwidth or None,
        source=known.source if known else "its memory clock and bus width",
        read_ceiling=known.read_ceiling if known else None,
    )


_LANES, _STRIPES = 128, 8  # see csrc/reduce/pairwise.h


def _dims_order(found: dict) -> Order:
    length, chunks = found["length"], found["chunks"]
    if found["order"] == "exact":
        return Order(found["order"], found["order_text"], length, depth=1)
    leaves = min(length, _LANES) if chunks == 1 else chunks * _LANES
    return Order(found["order"], found["order_text"], length, found["depth"], chunks, _LANES, _STRIPES, leaves)


def _whole_order(found: dict) -> Order:
    passes = found["passes"]
    depth = sum(max(p["rows"] - 1, 0) + math.ceil(math.log2(max(p["lanes"], 1))) for p in passes)
    if found["order"] == "unordered":
        depth += passes[0]["blocks"]
    return Order(found["order"], found["order_text"], found["length"], depth, passes=found["text"])


def _schedule(found: dict) -> Schedule:
    shapes = tuple(Launch(**launch) for launch in found["launches"])
    regions = tuple(Region(**region) for region in found["regions"])
    # The one of the most threads stands for all.
    main = max(shapes, key=lambda shape: shape.grid[0] * shape.block[0], default=Launch("", (0, 0), (0, 0), 0))
    names: tuple[str, ...] = ()
    if shapes and "tiles" in found:
        names = ("tiles", "tile", "span", "splits", "vectors", "shifted")
    return Schedule(
        grid=main.grid[0],
        block=main.block,
        launches=len(shapes),
        workspace_bytes=found["workspace_bytes"],
        counters=found["counters"],
        copies=found["copies"],
        shapes=shapes,
        regions=regions,
        shared_bytes=main.shared_bytes if names else None,
        cluster=main.cluster if names else None,
        **{name: found[name] for name in names},
    )


def _address(x: Tensor) -> int:
    """A tensor's address; for a fake tensor its offset, as in newly allocated memory."""
    if x.device.type in ("cpu", "cuda") and type(x) is Tensor:
        return x.data_ptr()
    return int(x.storage_offset()) * x.element_size()


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _plain(name: str) -> str:
    return name.lower().removeprefix("nvidia").replace("-", " ").replace("_", " ").strip()


def _by(shape: Sequence[int]) -> str:
    return " x ".join(f"{size:,}" for size in shape) or "one"


def _count(n: int, one: str, many: str | None = None) -> str:
    return f"{n:,} {one if n == 1 else many or one + 's'}"


def _extents(extents: tuple[tuple[int, int], ...]) -> str:
    return " x ".join(f"{size:,} @ {stride:,}" for size, stride in extents) or "none"
