"""Times variants and torch: shared by the command line and the scripts in benchmarks/.

On a GPU the time is device time. A CUDA graph holds the calls, each with another copy of the input, so that over 512 MB
pass before a copy is read again; the L2 is flushed before each replay; events around the replay give a sample; the
samples of all candidates are interleaved. The median and the quartiles are reported. `call_us` is the CPU time of one
call from Python. On a CPU both are the same, measured by torch.utils.benchmark.

Every result is checked, in memory filled with NaN, before it is timed; on a GPU, so is the captured graph's.
"""

import dataclasses
import datetime
import functools
import gc
import json
import math
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from . import _check, ops, row_ops
from ._device import Bandwidth, build_info, describe
from ._row_calls import ROW_CALLS, row_bytes
from ._variants import PRODUCTS, REDUCTIONS, ROW_OPS, Variant, variant_named, variants

# A graph reads this many bytes of input copies before it reads a copy again, if the copies are large enough.
ROTATED_BYTES = 512 << 20
MOST_COPIES = 256
MOST_CALLS = 1024
# Rungs with one thread for the array, or for each output: above this length a sample on a GPU takes seconds.
ONE_THREAD = ("serial", "thread")
SERIAL_LIMIT = 1 << 22

BASELINES = ("torch", "torch.compile")


@dataclasses.dataclass(frozen=True)
class Settings:
    """How much time to spend."""

    seconds: float = 0.5
    """For the samples of one candidate, roughly."""
    sample_seconds: float = 1e-3
    """For one sample, roughly: short calls are repeated."""
    least_samples: int = 5
    most_samples: int = 20
    call_seconds: float = 0.1
    """For the time of a call from Python; 0 skips it."""
    ceiling_bytes: int = 1 << 30
    """The size of the data with which the ceilings are measured."""
    seed: int = 0


QUICK = Settings(seconds=0.1, most_samples=7, call_seconds=0.02, ceiling_bytes=1 << 28)


@dataclasses.dataclass(frozen=True)
class Candidate:
    """Something to time: a variant with its sizes, or torch."""

    op: str
    variant: str
    """A variant's own name, "torch" or "torch.compile"."""
    block_size: int | None = None
    num_blocks: int | None = None
    tile_size: int | None = None

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes that are named, as keyword arguments."""
        named = {"block_size": self.block_size, "num_blocks": self.num_blocks, "tile_size": self.tile_size}
        return {name: size for name, size in named.items() if size is not None}

    @property
    def label(self) -> str:
        """`tiled (tile_size 16)`."""
        sizes = ", ".join(f"{name} {size}" for name, size in self.sizes.items())
        return f"{self.variant} ({sizes})" if sizes else self.variant


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row(Candidate):
    """A candidate's figures for one shape and dtype. Times are None if it was not timed; `note` says why."""

    shape: tuple[int, ...]
    """(n,), (m, n, k) for products, or (rows, length) for row operations."""
    dtype: str
    device: str
    us: float | None = None
    """The median; on a GPU, of device time."""
    us_q1: float | None = None
    us_q3: float | None = None
    samples: int = 0
    calls: int = 0
    """Calls in a sample."""
    rate: float | None = None
    rate_unit: str = "GB/s"
    percent_of_ceiling: float | None = None
    x_torch: float | None = None
    """The speed-up over torch."""
    call_us: float | None = None
    error_of_bound: float | None = None
    """The largest ratio of an error to the variant's bound."""
    note: str = ""
    wrong: bool = False
    """The check failed, so it was not timed."""


@dataclasses.dataclass(frozen=True)
class Sampler:
    """A candidate ready to be timed."""

    sample: Callable[[], float]
    """Takes one sample: seconds a call."""
    calls: int
    expected: float
    """The estimated time of a sample in seconds."""


def candidates(
    op: str,
    names: Sequence[str] | None = None,
    block_sizes: Sequence[int] = (),
    num_blocks: Sequence[int] = (),
    tile_sizes: Sequence[int] = (),
) -> list[Candidate]:
    """The named variants, or all of them, each with every named size that it can take.

    Args:
        op: the op.
        names: variants or aliases; None for all.
        block_sizes: each is tried with the variants that take it; the others are left out unless they were named.
        num_blocks: as `block_sizes`.
        tile_sizes: as `block_sizes`.

    Raises:
        ValueError: an unknown variant, or a variant that was named and takes none of the sizes.
    """
    rows: Iterable[Variant] = variants(op) if names is None else [variant_named(op, name) for name in names]
    wanted = {"block_size": block_sizes, "tile_size": tile_sizes}
    for name, sizes in wanted.items():
        if sizes and not any(v.size_name == name for v in variants(op)):
            raise ValueError(f"{op} takes no {name}")
    found: list[Candidate] = []
    for v in rows:
        asked = [s for sizes in wanted.values() for s in sizes]
        fitting = [s for s in asked if s in v.sizes]
        if asked and not fitting:
            if names is not None:
                given = ", ".join(map(str, asked))
                takes = f"{v.size_name} {', '.join(map(str, v.sizes))}" if v.size_name else "no size"
                raise ValueError(f"variant {v.name!r} takes {takes}; none of {given} is one")
            continue
        if num_blocks and not v.takes_num_blocks:
            if names is not None:
                raise ValueError(f"variant {v.name!r} takes no num_blocks")
            continue
        for size in fitting or [None]:
            for blocks in num_blocks or [None]:
                named = {v.size_name: size} if v.size_name and size else {}
                found.append(Candidate(op, v.name, num_blocks=blocks, **named))
    if not found:
        raise ValueError(f"no variant of {op} takes these sizes")
    return found


# torch's reductions, as functions that torch.compile can take.
def _torch_sum(x: Tensor) -> Tensor:
    return x.sum()


def _torch_mean(x: Tensor) -> Tensor:
    return x.mean()


def _torch_amax(x: Tensor) -> Tensor:
    return x.amax()


def _torch_amin(x: Tensor) -> Tensor:
    return x.amin()


def _torch_matmul(a: Tensor, b: Tensor) -> Tensor:
    return torch.matmul(a, b)


def _torch_linear(a: Tensor, b: Tensor) -> Tensor:
    return torch.nn.functional.linear(a, b)


def _torch_add(a: Tensor, b: Tensor) -> Tensor:
    return torch.add(a, b)


_TORCH: dict[str, tuple[Callable[..., Tensor], str]] = {
    "sum": (_torch_sum, "x.sum()"),
    "mean": (_torch_mean, "x.mean()"),
    "amax": (_torch_amax, "x.amax()"),
    "amin": (_torch_amin, "x.amin()"),
    "matmul": (_torch_matmul, "torch.matmul(x, y)"),
    "linear": (_torch_linear, "torch.nn.functional.linear(x, y)"),
    "vector_add": (_torch_add, "torch.add(x, y)"),
    **{
        op: (call.torchs, f"torch.{'nn.functional.' if call.weights else ''}{op}({call.arguments})")
        for op, call in ROW_CALLS.items()
    },
}


def function_of(candidate: Candidate) -> Callable[..., Tensor]:
    """The function of the inputs that a candidate stands for."""
    if candidate.variant == "torch":
        return _TORCH[candidate.op][0]
    if candidate.variant == "torch.compile":
        return torch.compile(_TORCH[candidate.op][0], dynamic=False, fullgraph=True)
    if candidate.op in ROW_OPS:
        return functools.partial(ROW_CALLS[candidate.op].ours, variant=candidate.variant)
    return functools.partial(getattr(ops, candidate.op), variant=candidate.variant, **candidate.sizes)


def _statement(candidate: Candidate) -> str:
    """A call as a user writes it, of the names x, y, z, f, ops and row_ops."""
    if candidate.variant == "torch":
        return _TORCH[candidate.op][1]
    of_row = ROW_CALLS.get(candidate.op)
    tensors = ("x", "y", "z")[: 1 + of_row.weights if of_row else 1 if candidate.op in REDUCTIONS else 2]
    if candidate.variant == "torch.compile":
        return f"f({', '.join(tensors)})"
    keywords = {"variant": candidate.variant, **candidate.sizes}
    if candidate.variant == "auto":
        del keywords["variant"]
    arguments = of_row.arguments if of_row else ", ".join(tensors)
    module = "row_ops" if of_row else "ops"
    return f"{module}.{candidate.op}({', '.join([arguments, *(f'{k}={v!r}' for k, v in keywords.items())])})"


def measure(
    op: str,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    chosen: Sequence[Candidate],
    device: torch.device,
    settings: Settings = Settings(),
    ceilings: Bandwidth | None = None,
    baselines: Sequence[str] = BASELINES,
    progress: Callable[[str], None] = lambda _: None,
) -> list[Row]:
    """Checks and times candidates and torch for one shape and dtype.

    Args:
        op: the op.
        shape: (n,), (m, n, k) for products, or (rows, length) for row operations.
        dtype: of the inputs.
        chosen: what to time.
        device: where.
        settings: how much time to spend.
        ceilings: what the rates are compared with; None leaves the column empty.
        baselines: of "torch" and "torch.compile"; the latter is left out on a CPU.
        progress: called with the name of each step.

    Returns:
        A row for each candidate and baseline, in that order; rows that could not be timed say why.
    """
    everything = [*chosen, *(Candidate(op, b) for b in baselines if b == "torch" or device.type == "cuda")]
    inputs = _check.make_inputs(op, shape, dtype, device, settings.seed, made_on=device)
    truth = _check.truth(op, *inputs)
    guard = torch.cuda.device(device) if device.type == "cuda" else _Nothing()
    with guard, torch.no_grad():
        rig = make_rig(device, inputs, settings)
        rows: list[Row] = []
        ready: list[tuple[int, Sampler]] = []
        for candidate in everything:
            progress(candidate.label)
            row, sampler = _prepare(candidate, shape, dtype, device, inputs, truth, rig, settings)
            if sampler is not None:
                ready.append((len(rows), sampler))
            rows.append(row)
        progress("timing")
        for index, (samples, sampler) in _interleave(ready, settings).items():
            q1, median, q3 = quartiles(samples)
            rows[index] = dataclasses.replace(
                rows[index],
                us=median * 1e6,
                us_q1=q1 * 1e6,
                us_q3=q3 * 1e6,
                samples=len(samples),
                calls=sampler.calls,
                rate=work(op, shape, dtype) / median / (1e12 if op in PRODUCTS else 1e9),
            )
        del ready
        rig.close()
    return _compared(rows, ceilings)


class _Nothing:
    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass


def work(op: str, shape: tuple[int, ...], dtype: torch.dtype) -> int:
    """Bytes that must be read and written, or, for products, floating-point operations."""
    if op in PRODUCTS:
        return 2 * math.prod(shape)
    if op in ROW_OPS:
        return row_bytes(op, *shape, dtype.itemsize)
    return math.prod(shape) * dtype.itemsize * (3 if op == "vector_add" else 1)


def ceiling_of(op: str, ceilings: Bandwidth) -> float:
    """What bounds an op: how fast memory is read, or, where as much is written, copied."""
    writes = op == "vector_add" or (op in ROW_OPS and op != "logsumexp")
    return ceilings.copy if writes else ceilings.read


def _compared(rows: list[Row], ceilings: Bandwidth | None) -> list[Row]:
    baseline = next((r.us for r in rows if r.variant == "torch"), None)
    found = []
    for row in rows:
        changes: dict[str, Any] = {"rate_unit": "TFLOP/s" if row.op in PRODUCTS else "GB/s"}
        if row.us and baseline:
            changes["x_torch"] = baseline / row.us
        if row.rate and ceilings and row.op not in PRODUCTS:
            changes["percent_of_ceiling"] = 100 * row.rate * 1e9 / ceiling_of(row.op, ceilings)
        found.append(dataclasses.replace(row, **changes))
    return found


def _why_not(candidate: Candidate, shape: tuple[int, ...], dtype: str, device: torch.device) -> str:
    """Why a variant is not timed, or nothing."""
    if candidate.variant in BASELINES:
        return ""
    v = variant_named(candidate.op, candidate.variant)
    if dtype not in v.dtypes + v.composed_dtypes:
        return f"does not take {dtype}"
    if device.type != "cuda":
        return ""
    have = torch.cuda.get_device_capability(device)
    if not v.runs_on(have):
        return f"needs compute capability {v.capability[0]}.{v.capability[1]}, this GPU has {have[0]}.{have[1]}"
    if v.name in ONE_THREAD and shape[0] > SERIAL_LIMIT:
        return f"skipped above {SERIAL_LIMIT:,} elements: one thread would take seconds"
    return ""


def _prepare(
    candidate: Candidate,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    device: torch.device,
    inputs: tuple[Tensor, ...],
    truth: _check.Truth,
    rig: "_CudaRig | _CpuRig",
    settings: Settings,
) -> tuple[Row, Sampler | None]:
    dtype_name = str(dtype).removeprefix("torch.")
    row = Row(**dataclasses.asdict(candidate), shape=shape, dtype=dtype_name, device=device.type)
    reason = _why_not(candidate, shape, dtype_name, device)
    if reason:
        return dataclasses.replace(row, note=reason), None
    ours = candidate.variant not in BASELINES
    try:
        if candidate.variant == "torch.compile":
            torch.compiler.reset()  # else a ninth shape would fall back to eager, in silence
        call = function_of(candidate)
        if ours:
            try:
                with _check.poisoned():
                    result = call(*inputs)
            except ValueError as error:  # a rung that does not take this length says so
                return dataclasses.replace(row, note=f"refused: {first_line(error)}"), None
            checked = _check.check(candidate.op, candidate.variant, result, inputs, truth, **candidate.sizes)
            if not checked:
                return dataclasses.replace(row, note=f"wrong: {checked.reason}", wrong=True), None
            row = dataclasses.replace(row, error_of_bound=checked.of_bound)
        sampler, captured = rig.prepare(call)
        if ours and captured is not None:
            checked = _check.check(candidate.op, candidate.variant, captured, inputs, truth, **candidate.sizes)
            if not checked:
                return dataclasses.replace(row, note=f"wrong in a CUDA graph: {checked.reason}", wrong=True), None
        if device.type == "cuda" and settings.call_seconds and sampler.expected / sampler.calls < 0.05:
            names = dict(zip(("x", "y", "z"), inputs, strict=False))
            timer = _timer(_statement(candidate), {**names, "f": call, "ops": ops, "row_ops": row_ops, "torch": torch})
            row = dataclasses.replace(
                row, call_us=timer.blocked_autorange(min_run_time=settings.call_seconds).median * 1e6
            )
    except Exception as error:  # whatever a compiler or a kernel may raise belongs in the row, and the others go on
        return dataclasses.replace(row, note=f"failed: {first_line(error)}", wrong=ours), None
    return row, sampler


def _timer(statement: str, names: dict[str, Any], threads: int = 1) -> Any:
    """A timer of torch.utils.benchmark."""
    import torch.utils.benchmark  # here: it is slow to import, and where there is nvcc and no GPU it prints a warning

    return torch.utils.benchmark.Timer(statement, globals=names, num_threads=threads)


def first_line(error: BaseException) -> str:
    """The first line of an error's message; its type if there is none."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


@dataclasses.dataclass(frozen=True)
class Timing:
    """The time of a call in microseconds: the median, the quartiles, and how they were measured."""

    us: float
    us_q1: float
    us_q3: float
    samples: int
    calls: int
    """Calls in a sample."""
    ratio: tuple[float, float, float] = (1.0, 1.0, 1.0)
    """The time relative to the first candidate's: the ratio of the medians, and the quartiles of the rounds' ratios."""


def time_together(ready: Sequence[Sampler], settings: Settings, close: float = 0.0, repeats: int = 3) -> list[Timing]:
    """Times candidates alternately, round after round, and compares them with the first.

    Args:
        ready: the candidates.
        settings: `seconds`, `least_samples` and `most_samples` say how many rounds there are.
        close: if a candidate's time relative to the first is below this, the rounds are repeated, so that a ratio near
            one rests on more samples. All samples count.
        repeats: how often at most.
    """
    slowest = max(sampler.expected for sampler in ready)
    rounds = min(max(int(settings.seconds / max(slowest, 1e-9)), settings.least_samples), settings.most_samples)
    samples: list[list[float]] = [[] for _ in ready]
    for again in range(repeats + 1):
        if again and min((statistics.median(s) for s in samples[1:]), default=math.inf) >= close * statistics.median(
            samples[0]
        ):
            break
        for _ in range(rounds):
            for sampler, found in zip(ready, samples, strict=True):
                found.append(sampler.sample())
    first = samples[0]
    timings = []
    for sampler, found in zip(ready, samples, strict=True):
        q1, median, q3 = quartiles(found)
        low, _, high = quartiles([a / b for a, b in zip(found, first, strict=True)])
        ratio = median / statistics.median(first), low, high
        timings.append(Timing(median * 1e6, q1 * 1e6, q3 * 1e6, len(found), sampler.calls, ratio))
    return timings


def copy_of(tensor: Tensor) -> Tensor:
    """A copy with the same strides and the same offset into its memory, which `clone` does not keep for every view."""
    storage = tensor.untyped_storage().clone()
    empty = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return empty.set_(storage, tensor.storage_offset(), tensor.size(), tensor.stride())


def make_rig(device: torch.device, inputs: tuple[Tensor, ...], settings: Settings) -> "_CudaRig | _CpuRig":
    """Prepares samplers for a device and some inputs; its `close` frees the memory.

    `prepare(call)` returns a `Sampler` and, on a GPU, the result of the last call that the graph holds.
    """
    return _CudaRig(device, inputs, settings) if device.type == "cuda" else _CpuRig(inputs, settings)


def _interleave(ready: list[tuple[int, Sampler]], settings: Settings) -> dict[int, tuple[list[float], Sampler]]:
    """One sample of each candidate a round, so that clock drift affects all alike."""
    rounds = {
        index: min(max(int(settings.seconds / max(s.expected, 1e-9)), settings.least_samples), settings.most_samples)
        for index, s in ready
    }
    found: dict[int, tuple[list[float], Sampler]] = {index: ([], sampler) for index, sampler in ready}
    for step in range(settings.most_samples):
        for index, sampler in ready:
            if step < rounds[index]:
                found[index][0].append(sampler.sample())
    return found


def quartiles(samples: Sequence[float]) -> tuple[float, float, float]:
    """The first quartile, the median and the third quartile; for a single sample, that sample three times."""
    if len(samples) == 1:
        return samples[0], samples[0], samples[0]
    q1, median, q3 = statistics.quantiles(samples, n=4, method="inclusive")
    return q1, median, q3


class _CpuRig:
    """Times on the CPU: wall time, by torch.utils.benchmark, with all of torch's threads."""

    def __init__(self, inputs: tuple[Tensor, ...], settings: Settings) -> None:
        self.inputs = inputs
        self.settings = settings

    def prepare(self, call: Callable[..., Tensor]) -> tuple[Sampler, None]:
        timer = _timer("call(*inputs)", {"call": call, "inputs": self.inputs}, torch.get_num_threads())
        call(*self.inputs)
        once = timer.timeit(1).median
        number = min(max(int(self.settings.sample_seconds * 10 / max(once, 1e-9)), 1), 10_000)
        return Sampler(lambda: timer.timeit(number).median, number, number * once), None

    def close(self, collect: bool = True) -> None:
        pass


class _CudaRig:
    """Times on a GPU: device time, by events around replays of a CUDA graph over rotated inputs."""

    def __init__(self, device: torch.device, inputs: tuple[Tensor, ...], settings: Settings) -> None:
        properties = torch.cuda.get_device_properties(device)
        l2_bytes = int(getattr(properties, "L2_cache_size", 0)) or 64 << 20
        self.settings = settings
        self.stream = torch.cuda.Stream(device)
        self.pool = torch.cuda.graph_pool_handle()
        self.graphs: list[torch.cuda.CUDAGraph] = []
        size = max(sum(t.untyped_storage().nbytes() for t in inputs), 1)
        room = min(ROTATED_BYTES, properties.total_memory // 8)
        copies = min(max(-(-room // size), 1), MOST_COPIES)
        self.inputs = [inputs, *(tuple(copy_of(t) for t in inputs) for _ in range(copies - 1))]
        # If the copies do not fill the L2 several times over, each is read only once between two flushes.
        self.most_calls = MOST_CALLS if copies * size >= 4 * l2_bytes else copies
        # Read, not written: the L2 then holds clean lines, so nothing is written back during a sample. Reading takes
        # longer than Python needs to queue the replay behind it, so no sample waits for Python.
        flush_bytes = min(max(8 * l2_bytes, ROTATED_BYTES), properties.total_memory // 16)
        self.flush = torch.zeros(flush_bytes // 4, dtype=torch.float32, device=device)

    def prepare(self, call: Callable[..., Tensor]) -> tuple[Sampler, Tensor]:
        """Warms up, estimates the time, captures and replays once; also returns the result of the graph's last call."""
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            call(*self.inputs[0])
            torch.cuda.synchronize()
            estimate = self._timed(lambda: call(*self.inputs[-1]))
        torch.cuda.current_stream().wait_stream(self.stream)
        # That estimate holds the call from Python, which may take ten times as long as its kernels. So a first graph
        # tells how many calls fill a sample: with few of them the begin of a replay would be a visible part of each.
        calls = 0
        while (wanted := self._calls(estimate)) > 2 * calls:
            calls = wanted
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self.pool, stream=self.stream):
                for i in range(calls):
                    result = call(*self.inputs[i % len(self.inputs)])
            self.graphs.append(graph)
            estimate = self._timed(graph.replay) / calls
        return Sampler(lambda: self._timed(graph.replay) / calls, calls, estimate * calls + 3e-4), result.clone()

    def _calls(self, estimate: float) -> int:
        """How many calls of so many seconds fill a sample."""
        return min(max(math.ceil(self.settings.sample_seconds / max(estimate, 1e-9)), 1), self.most_calls)

    def _timed(self, run: Callable[[], Any]) -> float:
        """Seconds on the device, with a cold L2."""
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        self.flush.sum()
        start.record()
        run()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / 1e3

    def close(self, collect: bool = True) -> None:
        """Frees the memory before the next point. `collect` also runs the garbage collector, which takes a while."""
        torch.cuda.synchronize()
        for graph in self.graphs:
            graph.reset()
        self.graphs.clear()
        self.inputs.clear()
        del self.flush
        if collect:
            gc.collect()
        torch.cuda.empty_cache()


def measure_bandwidth(device: torch.device, settings: Settings = Settings()) -> Bandwidth:
    """The benchmarks' ceilings: the bandwidth of the fastest of some sums, and of `vector_add`.

    Args:
        device: where.
        settings: `ceiling_bytes` is how much is read; less on a device with little memory.
    """
    settings = dataclasses.replace(settings, call_seconds=0)
    total = settings.ceiling_bytes
    if device.type == "cuda":
        total = min(total, torch.cuda.get_device_properties(device).total_memory // 16)
    else:
        total = min(total, 1 << 28)
    best: dict[str, Row] = {}
    for op, dtype in (("sum", torch.float32), ("sum", torch.int64), ("vector_add", torch.float32)):
        chosen = [Candidate(op, "auto"), Candidate(op, "vectorized")]
        if op == "sum":
            chosen += [Candidate(op, "single_pass", block_size=size) for size in (512, 1024)]
        n = total // dtype.itemsize // (2 if op == "vector_add" else 1)
        for row in measure(op, (n,), dtype, chosen, device, settings, baselines=()):
            if row.rate and (op not in best or row.rate > (best[op].rate or 0)):
                best[op] = row
    missing = {"sum", "vector_add"} - set(best)
    if missing:
        raise RuntimeError(f"the bandwidth could not be measured: {', '.join(sorted(missing))} failed")
    read, copy = best["sum"], best["vector_add"]
    return Bandwidth(
        (read.rate or 0) * 1e9,
        (copy.rate or 0) * 1e9,
        f"sum {read.label} over {read.shape[0]:,} {read.dtype}",
        f"vector_add {copy.label} over 2 x {copy.shape[0]:,} {copy.dtype}",
    )


def environment(device: torch.device, command: str) -> dict[str, Any]:
    """The circumstances of a measurement: versions, the device, the commit, the date and the command."""
    build = build_info()
    facts = describe(device)
    found: dict[str, Any] = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": command,
        "commit": _output("git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--exclude=*"),
        "torch_reduce": build.version,
        "torch": build.torch,
        "torch_cuda": build.torch_cuda,
        "cuda_toolkit": build.cuda,
        "cuda_architectures": list(build.architectures),
        "python": build.python,
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "device": device.type,
        "device_name": facts.name,
        "device_facts": facts.facts,
    }
    if device.type == "cuda":
        query = ("nvidia-smi", f"--id={device.index or 0}", "--query-gpu=driver_version", "--format=csv,noheader")
        found["driver"] = _output(*query)
    return found


def _output(*command: str) -> str | None:
    """The first line that a program prints; None if there is no such program or it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    lines = done.stdout.strip().splitlines()
    return lines[0].strip() if lines else None


def as_json(rows: Sequence[Row], about: dict[str, Any], ceilings: Bandwidth | None) -> dict[str, Any]:
    """Results as they are written to a file; rows omit fields that have their default."""
    empty = {f.name: f.default for f in dataclasses.fields(Row)}
    return {
        "environment": about,
        "ceilings": {k: _rounded(v) for k, v in dataclasses.asdict(ceilings).items()} if ceilings else None,
        "rows": [
            {k: _rounded(v) for k, v in dataclasses.asdict(row).items() if v != empty[k] or k == "rate_unit"}
            for row in rows
        ],
    }


def write_json(path: Path | str, data: dict[str, Any]) -> None:
    """Writes results with one line a row, so that two runs can be compared by diff; to "-", standard output."""
    parts = []
    for key, value in data.items():
        text = json.dumps(value, indent=1, ensure_ascii=False).replace("\n", "\n ")
        if isinstance(value, list) and value and isinstance(value[0], dict):
            text = "[\n" + ",\n".join(f"  {json.dumps(v, ensure_ascii=False)}" for v in value) + "\n ]"
        parts.append(f" {json.dumps(key)}: {text}")
    text = "{\n" + ",\n".join(parts) + "\n}\n"
    if path == "-":
        sys.stdout.write(text)
    else:
        Path(path).write_text(text)


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.5g}") if math.isfinite(value) else None
    return value


def rows_from_json(data: dict[str, Any]) -> list[Row]:
    """The rows of a results file."""
    return [Row(**{**row, "shape": tuple(row["shape"])}) for row in data["rows"]]
