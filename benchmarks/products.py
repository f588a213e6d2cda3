"""Times a product of the matmul grid: `auto`, which is checked first, and torch."""

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from cases import MatmulPoint
from torch import Tensor

import torch_reduce
from torch_reduce import _check, bench

OURS = "auto"
# Ratios below this are measured over more rounds, unless a call is slow.
CLOSE, CLOSE_SECONDS = 1.02, 2e-3
# Above this many multiply-adds only some rows are compared with float64.
_CHECKED_WORK, _CHECKED_ROWS = 1 << 37, 256


@contextlib.contextmanager
def precision(kind: str) -> Iterator[torch.dtype]:
    """Sets torch's precision, which ours follows, to tfloat32 or full float32; yields the dtype of a kind."""
    settings = torch.backends.cuda.matmul
    before = settings.allow_tf32
    settings.allow_tf32 = kind == "tf32"
    try:
        yield torch.float32 if kind == "tf32" else getattr(torch, kind)
    finally:
        settings.allow_tf32 = before


Make = Callable[[Sequence[int]], Tensor]
# How an operand lies in memory: from its shape (batch, rows, columns), and a function that fills memory of a shape.
_VIEWS: dict[str, Callable[[Sequence[int], Make], Tensor]] = {
    "N": lambda s, make: make(s),
    "T": lambda s, make: make([*s[:-2], s[-1], s[-2]]).mT,
    # A larger matrix without its first row and column, so that every row is misaligned.
    "sliced": lambda s, make: make([*s[:-2], s[-2] + 1, s[-1] + 1])[..., 1:, 1:],
    # (batch, sequence, heads, size) seen as (batch, heads, sequence, size), and that transposed.
    "heads": lambda s, make: make([s[0], s[2], s[1], s[3]]).transpose(1, 2),
    "heads_t": lambda s, make: make([s[0], s[3], s[1], s[2]]).permute(0, 2, 3, 1),
}
LAYOUTS = {
    "NN": ("N", "N"),
    "NT": ("N", "T"),
    "TN": ("T", "N"),
    "TT": ("T", "T"),
    "sliced": ("sliced", "sliced"),
    "scores": ("heads", "heads_t"),
    "values": ("N", "heads"),
}


def operands(point: MatmulPoint, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Normal numbers; integers within 100."""
    generator = torch.Generator(device).manual_seed(0)

    def make(shape: Sequence[int]) -> Tensor:
        if dtype.is_floating_point:
            return torch.randn(*shape, dtype=dtype, generator=generator, device=device)
        return torch.randint(-100, 101, tuple(shape), dtype=dtype, generator=generator, device=device)

    return _laid_out(point, make)


def on_meta(point: MatmulPoint, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Operands like them, without memory: enough for a plan."""
    return _laid_out(point, lambda shape: torch.empty(*shape, dtype=dtype, device="meta"))


def _laid_out(point: MatmulPoint, make: Make) -> tuple[Tensor, Tensor]:
    first, second = LAYOUTS[point.layout]
    a = _VIEWS[first]([*point.batch, point.m, point.k], make)
    return a, _VIEWS[second]([*point.batch, point.k, point.n], make)


def flops_of(point: MatmulPoint) -> int:
    return 2 * math.prod(point.batch) * point.m * point.n * point.k


def bytes_of(point: MatmulPoint, width: int) -> int:
    """Bytes that must be read and written."""
    elements = point.m * point.k + point.k * point.n + point.m * point.n
    return math.prod(point.batch) * elements * width


def check(point: MatmulPoint, a: Tensor, b: Tensor, got: Tensor) -> str:
    """What is wrong with a product; empty if it is right. Of a batch the first, a middle and the last matrix are
    checked, of large products some rows."""
    expected = (*point.batch, point.m, point.n)
    dtype = _check.result_dtype("matmul", a.dtype)
    if tuple(got.shape) != expected or got.dtype != dtype:
        return f"{got.dtype} {tuple(got.shape)}, expected {dtype} {expected}"
    batches = math.prod(point.batch)
    rows = slice(None)
    if point.m * point.n * point.k > _CHECKED_WORK:
        rows = torch.linspace(0, point.m - 1, min(point.m, _CHECKED_ROWS), device=a.device).long()
    for flat in sorted({0, batches // 2, batches - 1}):
        at = tuple(int(i) for i in torch.unravel_index(torch.tensor(flat), point.batch)) if point.batch else ()
        inputs = a[at][rows], b[at]
        found = _check.check("matmul", OURS, got[at][rows], inputs, _check.truth("matmul", *inputs))
        if not found:
            return found.reason
    return "" if not got.dtype.is_floating_point or bool(torch.isfinite(got).all()) else "not all outputs are finite"


@dataclasses.dataclass
class Result:
    """A measured product."""

    point: MatmulPoint
    dtype: str
    us: dict[str, tuple[float, float, float]] = dataclasses.field(default_factory=dict)
    """Median and quartiles, of ours and of torch's."""
    x: dict[str, tuple[float, float, float]] = dataclasses.field(default_factory=dict)
    """The speed-up over torch."""
    samples: int = 0
    rung: str = ""
    notes: dict[str, str] = dataclasses.field(default_factory=dict)
    wrong: bool = False
    weights_us: float | None = None
    """The time to read the second operand at the ceiling, for few rows."""

    def as_json(self) -> dict[str, Any]:
        p = self.point
        found: dict[str, Any] = {
            "kind": p.kind, "m": p.m, "n": p.n, "k": p.k, "batch": p.batch, "layout": p.layout, "dtype": self.dtype,
            "flops": flops_of(p), "rung": self.rung, "samples": self.samples,
        }  # fmt: skip
        for name in ("us", "x"):
            found[name] = {k: [float(f"{v:.5g}") for v in values] for k, values in getattr(self, name).items()}
        if self.weights_us is not None:
            found["weights_us"] = float(f"{self.weights_us:.5g}")
        if self.notes:
            found["notes"] = self.notes
        return found


def key(row: dict[str, Any]) -> tuple[Any, ...]:
    """The identity of a product, from a row of a results file."""
    return (*(row[k] for k in ("kind", "m", "n", "k", "layout", "dtype")), tuple(row["batch"]))


def key_of(point: MatmulPoint, dtype: str) -> tuple[Any, ...]:
    """The same for a product to be measured."""
    return key({**point._asdict(), "dtype": dtype})


def measure(
    point: MatmulPoint, kind: str, device: torch.device, settings: bench.Settings, read_rate: float | None
) -> Result:
    """Checks ours, then times it and torch.

    Args:
        point: what.
        kind: of `cases.MATMUL_KINDS`, or an integer dtype.
        device: where.
        settings: how much time to spend.
        read_rate: bytes a second that memory gives, for the time that weights need; None leaves that out.
    """
    result = Result(point, kind)
    guard = torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()
    with guard, torch.no_grad(), precision(kind) as dtype:
        a, b = operands(point, dtype, device)
        if point.m <= 64 and point.kind == "few rows" and read_rate:
            result.weights_us = point.n * point.k * dtype.itemsize / read_rate * 1e6
        rig = bench.make_rig(device, (a, b), settings)
        ready: dict[str, bench.Sampler] = {}
        try:
            planned = device.type == "cuda"  # which knows the batch
            result.rung = torch_reduce.plan("matmul", a, b).rung if planned else _check.chosen(OURS, a, b).name
            with _check.poisoned():
                got = torch_reduce.matmul(a, b)
            if problem := check(point, a, b, got):
                raise ValueError(f"wrong: {problem}")
            sampler, captured = rig.prepare(torch_reduce.matmul)
            if captured is not None and not torch.equal(captured, got):
                raise ValueError("wrong: a replayed CUDA graph gives other bits")
            ready[OURS] = sampler
            del got, captured
        except Exception as error:  # continue with the other products
            result.notes[OURS], result.wrong = bench.first_line(error), True
        try:
            # torch.matmul of int8 would give int8.
            ready["torch"] = rig.prepare(torch._int_mm if dtype == torch.int8 else torch.matmul)[0]
        except Exception as error:  # for example: torch refuses integers
            result.notes["torch"] = bench.first_line(error)
        if ready:
            slow = max(sampler.expected / sampler.calls for sampler in ready.values()) > CLOSE_SECONDS
            timings = bench.time_together(list(ready.values()), settings, 0.0 if slow else CLOSE)
            result.samples = timings[0].samples
            for name, timing in zip(ready, timings, strict=True):
                result.us[name] = timing.us, timing.us_q1, timing.us_q3
                if name != OURS and OURS in ready:
                    result.x[name] = timing.ratio
        ready.clear()
        rig.close(collect=False)
    return result


BESIDE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {OURS: torch_reduce.matmul, "torch": torch.matmul}


def beside_torch(a: Tensor, b: Tensor, device: torch.device, settings: bench.Settings) -> dict[str, Any]:
    """Times in microseconds of `auto` and of torch, and the speed-up: medians and quartiles, as a row has them."""
    rig = bench.make_rig(device, (a, b), settings)
    samplers = [rig.prepare(call)[0] for call in BESIDE.values()]
    timings = bench.time_together(samplers, settings)
    del samplers
    rig.close(collect=False)
    us = {name: [float(f"{v:.5g}") for v in (t.us, t.us_q1, t.us_q3)] for name, t in zip(BESIDE, timings, strict=True)}
    return {"us": us, "x": [float(f"{v:.4g}") for v in timings[1].ratio]}
