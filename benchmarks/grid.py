"""Times a point of the grid: `auto`, which is checked first, and torch, torch.compile or CUB.

`python benchmarks/grid.py sm_90a` compiles the libraries of peers.py that the grid needs, ahead of a run.
"""

import contextlib
import dataclasses
import functools
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import peers
import torch
from cases import GRID, UNTUNED, WIDTHS, Point
from torch import Tensor

import torch_reduce
from torch_reduce import _check, bench

OURS = "auto"
PEERS = ("torch", "torch.compile", "CUB")
# A point whose first ratio is below this is measured over more rounds.
CLOSE = 1.02
# This many elements are widened to float64 at a time.
_PART = 1 << 27


def _contiguous(shape: Sequence[int]) -> list[int]:
    return [math.prod(shape[i + 1 :]) for i in range(len(shape))]


def _permuted(shape: Sequence[int], order: Sequence[int]) -> list[int]:
    """Strides of a tensor whose dims lie in memory in that order, outermost first."""
    inner = _contiguous([shape[d] for d in order])
    return [inner[list(order).index(d)] for d in range(len(shape))]


def _pitched(shape: Sequence[int], pitch: int, step: int = 1) -> list[int]:
    """Strides of rows that begin `pitch` elements apart."""
    return [*(s * pitch for s in _contiguous(shape[:-1])), step]


# How a view lies in memory: strides and offset for a shape.
LAYOUTS: dict[str, Callable[[Sequence[int]], tuple[list[int], int]]] = {
    "contiguous": lambda s: (_contiguous(s), 0),
    # Begins one element past an aligned address.
    "unaligned": lambda s: (_contiguous(s), 1),
    # Rows of a matrix that is 24 elements wider.
    "sliced": lambda s: (_pitched(s, s[-1] + 24), 0),
    # [..., ::2]
    "every_second": lambda s: (_pitched(s, 2 * s[-1], 2), 0),
    # The last two dims swapped.
    "transposed": lambda s: (_permuted(s, [*range(len(s) - 2), len(s) - 1, len(s) - 2]), 0),
    "channels_last": lambda s: (_permuted(s, [0, *range(2, len(s)), 1]), 0),
    # (batch, sequence, heads, size) seen as (batch, heads, sequence, size).
    "heads": lambda s: (_permuted(s, [0, 2, 1, 3]), 0),
}


def dtype_of(point: Point) -> torch.dtype:
    return getattr(torch, point.dtype)


def random_values(n: int, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    """Normal floats, integers over their range."""
    where = {"generator": generator, "device": generator.device}
    if dtype == torch.bool:
        return torch.randint(0, 2, (n,), dtype=torch.uint8, **where).view(torch.bool)
    if not (dtype.is_floating_point or dtype.is_complex):
        info = torch.iinfo(dtype)
        return torch.randint(info.min, info.max, (n,), dtype=dtype, **where)
    if dtype.is_complex:
        return torch.randn(n, dtype=dtype, **where)
    made_in = dtype if dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16) else torch.float16
    return torch.randn(n, dtype=made_in, **where).to(dtype)


def whole_values(n: int, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    """Small whole numbers: every order of additions gives the exact sum, so a missing or doubled element shows."""
    if not (dtype.is_floating_point or dtype.is_complex):
        return random_values(n, dtype, generator)
    where = {"generator": generator, "device": generator.device}
    most = 1 if dtype == torch.float16 else 4  # sums of float16 must stay below 65504
    if dtype.is_complex:
        return torch.view_as_complex(
            torch.randint(-most, most + 1, (n, 2), dtype=torch.int8, **where).to(dtype.to_real())
        )
    return torch.randint(-most, most + 1, (n,), dtype=torch.int8, **where).to(dtype)


def tensor(point: Point, device: torch.device, values: Callable[..., Tensor], seed: int = 0) -> Tensor:
    """The input of a point, with its layout."""
    strides, offset = LAYOUTS[point.layout](point.shape)
    reach = 1 + offset + sum((size - 1) * stride for size, stride in zip(point.shape, strides, strict=True))
    memory = values(reach, dtype_of(point), torch.Generator(device).manual_seed(seed))
    return memory.as_strided(point.shape, strides, offset)


def on_meta(point: Point) -> Tensor:
    """A tensor like it, without memory: enough for a plan."""
    strides, offset = LAYOUTS[point.layout](point.shape)
    return torch.empty(0, dtype=dtype_of(point), device="meta").as_strided(point.shape, strides, offset)


def kept(point: Point) -> tuple[int, ...]:
    """The shape of the result."""
    if point.dim is None:
        return ()
    reduced = {d % len(point.shape) for d in point.dim}
    return tuple(size for d, size in enumerate(point.shape) if d not in reduced)


def length(point: Point) -> int:
    """Elements of an output."""
    return math.prod(point.shape) // max(math.prod(kept(point)), 1)


def result_dtype(point: Point) -> torch.dtype:
    dtype = dtype_of(point)
    if dtype.is_floating_point and dtype.itemsize == 1:
        return torch.float32
    if point.op == "sum" and not (dtype.is_floating_point or dtype.is_complex):
        return torch.int64
    return dtype


def bytes_of(point: Point) -> int:
    """Bytes that must be read and written."""
    return math.prod(point.shape) * WIDTHS[point.dtype] + math.prod(kept(point)) * result_dtype(point).itemsize


def reduction(point: Point) -> Callable[[Tensor], Tensor]:
    """torch's call for a point."""
    op, dim = point.op, point.dim
    if dim is None:
        return lambda x: getattr(x, op)()
    return lambda x: getattr(x, op)(dim)


def ours(point: Point, **named: Any) -> Callable[[Tensor], Tensor]:
    call = getattr(torch_reduce, point.op)
    return functools.partial(call, **named) if point.dim is None else functools.partial(call, dim=point.dim, **named)


def reference(point: Point, x: Tensor) -> Tensor:
    """The reference in float64, complex128 or int64; for amax and amin in a dtype that holds them exactly."""
    if x.dtype.is_floating_point and x.dtype.itemsize == 1:
        x = x.to(torch.float32)  # torch does not reduce float8
    if point.op in ("amax", "amin"):
        return reduction(point)(x)
    wide = torch.complex128 if x.dtype.is_complex else torch.float64 if x.dtype.is_floating_point else torch.int64
    if x.numel() > _PART and point.dim is None:
        flat = x.as_strided((x.numel(),), (1,), x.storage_offset()) if _dense(x) else x.flatten()
        total = torch.stack([part.to(wide).sum() for part in flat.split(_PART)]).sum()
    else:
        total = x.sum(point.dim, dtype=wide) if point.dim is not None else x.sum(dtype=wide)
    return total / length(point) if point.op == "mean" else total


def _dense(x: Tensor) -> bool:
    return x.numel() == 1 + sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))


def check(point: Point, call: Callable[[Tensor], Tensor], device: torch.device) -> str:
    """What is wrong with a result for whole numbers, whose sums are exact; empty if it is right."""
    x = tensor(point, device, whole_values, seed=1)
    expected = reference(point, x)
    dtype = result_dtype(point)
    with _check.poisoned():
        got = call(x)
    if got.dtype != dtype:
        return f"dtype {got.dtype}, expected {dtype}"
    if tuple(got.shape) != kept(point):
        return f"shape {tuple(got.shape)}, expected {kept(point)}"
    want = expected.to(dtype)
    # Sums are exact; the division of a mean rounds.
    near = torch.isclose(got, want, rtol=4 * torch.finfo(dtype).eps, atol=0.0) if point.op == "mean" else got == want
    if bool(near.all()):
        return ""
    at = tuple((~near).nonzero()[0].tolist())
    return f"got {got[at].item()}, expected {want[at].item()} at {at}, and {int((~near).sum()) - 1} more"


def check_random(point: Point, x: Tensor, got: Tensor) -> str:
    """What is wrong with a result for normal numbers, which must lie within the bound of pairwise summation."""
    want = reference(point, x)
    if point.op in ("amax", "amin") or not (got.dtype.is_floating_point or got.dtype.is_complex):
        return "" if torch.equal(got, want.to(got.dtype)) else "differs from torch's, which is exact here"
    if x.numel() > _PART:
        return ""  # the sum of |x| would take too much memory; whole numbers have been checked
    n = length(point)
    part = got.dtype.to_real() if got.dtype.is_complex else got.dtype
    accumulator = torch.float64 if part == torch.float64 else torch.float32
    depth = 8 + math.ceil(math.log2(max(n, 1))) + 2
    if accumulator == torch.float64:
        depth += math.ceil(math.sqrt(n))  # the reference rounds as well, in torch's order
    wide = torch.complex128 if got.dtype.is_complex else torch.float64
    size = x.to(torch.float32) if x.dtype.itemsize == 1 else x
    scale = size.abs().sum(point.dim, dtype=torch.float64) if point.dim else size.abs().sum(dtype=torch.float64)
    scale = scale / n if point.op == "mean" else scale
    bound = _check.gamma(depth, _check.unit_roundoff(accumulator)) * scale * (2 if got.dtype.is_complex else 1)
    bound = bound + 2 * _check.unit_roundoff(part) * want.abs() + torch.finfo(part).smallest_normal
    bad = ~((got.to(wide) - want).abs() <= bound)
    if not bool(bad.any()):
        return ""
    at = tuple(bad.nonzero()[0].tolist())
    return f"got {got[at].item()}, expected {want[at].item()} within {bound[at].item():.3g}"


@dataclasses.dataclass
class Result:
    """A measured point."""

    point: Point
    us: dict[str, tuple[float, float, float]] = dataclasses.field(default_factory=dict)
    """Median and quartiles, by candidate."""
    x: dict[str, tuple[float, float, float]] = dataclasses.field(default_factory=dict)
    """The speed-up of `auto` over a peer: the ratio of the medians, and the quartiles of the rounds' ratios."""
    samples: int = 0
    rung: str = ""
    """The rung that `auto` took."""
    notes: dict[str, str] = dataclasses.field(default_factory=dict)
    """Why a candidate was not timed."""
    wrong: bool = False

    def as_json(self) -> dict[str, Any]:
        p = self.point
        found: dict[str, Any] = {
            "kind": p.kind, "op": p.op, "shape": p.shape, "dim": p.dim, "dtype": p.dtype, "layout": p.layout,
            "bytes": bytes_of(p), "rung": self.rung, "samples": self.samples,
        }  # fmt: skip
        for name in ("us", "x"):
            found[name] = {k: [float(f"{v:.5g}") for v in values] for k, values in getattr(self, name).items()}
        if self.notes:
            found["notes"] = self.notes
        return found


def key(row: dict[str, Any] | Point) -> tuple[Any, ...]:
    """The identity of a point, or of a row of a results file."""
    if isinstance(row, Point):
        row = row._asdict()
    dim = row["dim"]
    return (*(row[k] for k in ("op", "dtype", "layout")), tuple(row["shape"]), None if dim is None else tuple(dim))


class Candidate(NamedTuple):
    """A peer to time."""

    name: str
    make: Callable[[Tensor], Callable[[Tensor], Tensor]]
    """Makes the call from the input, which a compiler or a library may need."""
    checked: bool = False
    """Whether its results are checked like ours."""
    rung: bool = False
    """Whether it is one of ours: then a wrong result is an error."""


def torch_eager(point: Point) -> Candidate:
    return Candidate("torch", lambda x: reduction(point))


def torch_compile(point: Point) -> Candidate:
    def make(x: Tensor) -> Callable[[Tensor], Tensor]:
        torch.compiler.reset()  # else the ninth shape would silently fall back to eager
        return torch.compile(reduction(point), dynamic=False, fullgraph=True)

    return Candidate("torch.compile", make)


def cub(point: Point, libraries: peers.Peers) -> Candidate:
    return Candidate("CUB", lambda x: libraries.cub(point.op, x, rows=point.dim is not None), checked=True)


def rung(point: Point, variant: str) -> Candidate:
    return Candidate(variant, lambda x: ours(point, variant=variant), checked=True, rung=True)


def cub_applies(point: Point) -> bool:
    """Whether CUB has it: contiguous memory, whole or by rows; no float8 and no complex numbers."""
    in_place = point.layout in ("contiguous", "unaligned")
    by_rows = point.dim is None or (len(point.dim) == 1 and point.dim[0] % len(point.shape) == len(point.shape) - 1)
    return in_place and by_rows and peers.cub_takes(point.op, point.dtype)


def chosen_rung(point: Point, x: Tensor) -> str:
    """The rung that `auto` takes, if the package can tell."""
    plan = getattr(torch_reduce, "plan", None)
    if plan is None:
        return ""
    try:
        return str(plan(point.op, x, dim=point.dim).rung)
    except (AttributeError, TypeError, ValueError, RuntimeError, NotImplementedError):
        return ""


def measure(
    point: Point,
    candidates: Iterable[Candidate],
    device: torch.device,
    settings: bench.Settings,
    close: float = CLOSE,
) -> Result:
    """Checks ours, then times it and the candidates.

    Args:
        point: what.
        candidates: beside what. One that cannot be timed gets a note.
        device: where.
        settings: how much time to spend.
        close: a ratio below this is measured over more rounds.
    """
    result = Result(point)
    calls: list[tuple[str, bench.Sampler]] = []
    rig = None
    guard = torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()
    with guard, torch.no_grad():
        x = tensor(point, device, random_values)
        mine = ours(point)
        try:
            if problem := check(point, mine, device) or check_random(point, x, mine(x)):
                raise _WrongError(problem)
            result.rung = chosen_rung(point, x)
            rig = bench.make_rig(device, (x,), settings)
            sampler, captured = rig.prepare(mine)
            if captured is not None and not _same_bits(captured, mine(x)):
                raise _WrongError("a replayed CUDA graph gives other bits")
            calls.append((OURS, sampler))
        except Exception as error:  # continue with the other points
            result.notes[OURS], result.wrong = _note(error), True
        rig = rig or bench.make_rig(device, (x,), settings)
        for candidate in candidates:
            try:
                call = candidate.make(x)
                if candidate.checked and (problem := check(point, call, device)):
                    raise _WrongError(problem)
                calls.append((candidate.name, rig.prepare(call)[0]))
            except Exception as error:  # for example: torch refuses float8, a rung refuses a shape
                result.notes[candidate.name] = _note(error)
                result.wrong |= candidate.rung and not isinstance(error, ValueError)
        if calls:
            timings = bench.time_together([sampler for _, sampler in calls], settings, close)
            result.samples = timings[0].samples
            for (name, _), timing in zip(calls, timings, strict=True):
                result.us[name] = timing.us, timing.us_q1, timing.us_q3
                if name != OURS and calls[0][0] == OURS:
                    result.x[name] = timing.ratio
        rig.close(collect=False)
    return result


class _WrongError(Exception):
    pass


def _note(error: Exception) -> str:
    return f"wrong: {error}" if isinstance(error, _WrongError) else bench.first_line(error)


def _same_bits(a: Tensor, b: Tensor) -> bool:
    """Whether two results have the same bits, compared in place: results may be large."""
    a, b = (torch.view_as_real(t) if t.is_complex() else t for t in (a, b))
    words = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[a.element_size()]
    return a.dtype == b.dtype and torch.equal(a.view(words), b.view(words))


if __name__ == "__main__":
    wanted = [(), *dict.fromkeys((p.op, p.dtype) for p in (*GRID, *UNTUNED) if cub_applies(p))]
    for library in peers.build(wanted, sys.argv[1]).values():
        print(library)
