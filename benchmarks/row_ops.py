"""Times the row operations: `auto`, checked first, torch's and torch.compile, and for some cases every rung."""

import contextlib
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

import torch_reduce
from torch_reduce import bench
from torch_reduce._row_calls import ROW_CALLS

OURS = "auto"
ops = torch.ops.treduce


class Case(NamedTuple):
    """An op on `rows` rows of `length` elements."""

    op: str
    rows: int
    length: int
    dtype: str
    compiled: bool = True
    """Whether torch.compile is timed, too: it takes 2 to 4 s to compile."""
    rungs: bool = False
    """Whether every rung is."""

    def __str__(self) -> str:
        return f"{self.op} {self.rows}x{self.length} {self.dtype}"


# About as many elements each, from short rows to rows that fill eight blocks.
ELEMENTS = 1 << 24
LENGTHS = {"bfloat16": (64, 256, 1024, 4096, 8192, 65_536, 262_144), "float32": (64, 1024, 4096, 262_144)}
NORM_LENGTHS = {"bfloat16": (128, 4096, 131_072), "float32": (4096, 131_072)}
RUNGS = (64, 4096, 262_144)
LOGITS = (512, 50_257)  # a language model's: rows begin anywhere
BACKWARDS = ("softmax_backward", "log_softmax_backward", "layer_norm_backward", "rms_norm_backward")
# One value a row, or one of all.
A_ROW, ONE = ("logsumexp", "var", "std", "norm"), ("cross_entropy",)


def _cases() -> Iterator[Case]:
    for dtype, lengths in LENGTHS.items():
        for length in lengths:
            yield Case("softmax", ELEMENTS // length, length, dtype, rungs=length in RUNGS)
        yield Case("softmax", *LOGITS, dtype, rungs=True)
        yield Case("softmax", 100_000, 77, dtype)  # rows that no vector fits: attention
        for length in NORM_LENGTHS[dtype]:
            yield Case("rms_norm", ELEMENTS // length, length, dtype)
            yield Case("layer_norm", ELEMENTS // length, length, dtype)
        for op in ("log_softmax", "logsumexp", "cross_entropy"):
            yield Case(op, *LOGITS, dtype)
        for op in ("log_softmax", *BACKWARDS, "var", "std", "norm"):
            yield Case(op, 4096, 4096, dtype)
    yield Case("log_softmax", 512, 50_304, "bfloat16")
    yield Case("cross_entropy", 16_384, 1024, "bfloat16")
    for op in ("softmax", "layer_norm", "rms_norm", "softmax_backward"):
        yield Case(op, 4096, 4096, "float16")
    yield Case("cross_entropy", *LOGITS, "float16")


CASES = tuple(_cases())
RUNG_NAMES = tuple(v.name for v in torch_reduce.variants("softmax") if v.has_kernel)


def tensors(case: Case, device: torch.device) -> tuple[Tensor, ...]:
    """The arguments of a case, all of them tensors."""
    g = torch.Generator(device).manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=g, device=device).to(getattr(torch, case.dtype))

    x, n = normal(case.rows, case.length), case.length
    if case.op in ("softmax", "log_softmax", *A_ROW):
        return (x,)
    if case.op == "cross_entropy":
        return x, torch.randint(n, (case.rows,), generator=g, device=device)
    if case.op in ("softmax_backward", "log_softmax_backward"):
        return normal(case.rows, n), getattr(ops, case.op.removesuffix("_backward"))(x, 1)
    w, b = normal(n), normal(n)
    if case.op == "layer_norm_backward":
        return normal(case.rows, n), x, *ops.layer_norm(x, [n], w, b)[1:], w
    if case.op == "rms_norm_backward":
        return normal(case.rows, n), x, *ops.rms_norm(x, [n], w)[1:], w
    return (x, w, b) if case.op == "layer_norm" else (x, w)


def ours(case: Case, variant: str = OURS) -> Callable[..., Tensor]:
    """Ours, on the tensors of a case."""
    n = case.length
    if case.op in ROW_CALLS:
        return functools.partial(ROW_CALLS[case.op].ours, variant=variant)
    return {
        "cross_entropy": lambda x, t: torch_reduce.cross_entropy(x, t, variant=variant),
        "var": lambda x: torch_reduce.var(x, 1),
        "std": lambda x: torch_reduce.std(x, 1),
        "norm": lambda x: torch_reduce.norm(x, 2, 1),
        "softmax_backward": lambda g, y: ops.softmax_backward(g, y, 1, variant),
        "log_softmax_backward": lambda g, y: ops.log_softmax_backward(g, y, 1, variant),
        "layer_norm_backward": lambda g, x, m, r, w: ops.layer_norm_backward(g, x, [n], m, r, w, variant),
        "rms_norm_backward": lambda g, x, r, w: ops.rms_norm_backward(g, x, [n], r, w, variant),
    }[case.op]


def torchs(case: Case) -> Callable[..., Tensor]:
    """What torch has for it. Its kernel for the backward of rms_norm has other names in other versions: the formula
    stands for it, an op at a time."""
    n, dtype = case.length, getattr(torch, case.dtype)
    aten = torch.ops.aten
    only_input = [True, False, False]

    def rms_backward(g: Tensor, x: Tensor, r: Tensor, w: Tensor) -> Tensor:
        h, gw = x * r, g * w
        return ((gw - h * (gw * h).mean(1, keepdim=True)) * r).to(dtype)

    if case.op in ROW_CALLS:
        return ROW_CALLS[case.op].torchs
    return {
        "cross_entropy": lambda x, t: F.cross_entropy(x, t),
        "var": lambda x: torch.var(x, 1),
        "std": lambda x: torch.std(x, 1),
        "norm": lambda x: torch.linalg.vector_norm(x, 2, 1),
        "softmax_backward": lambda g, y: aten._softmax_backward_data(g, y, 1, dtype),
        "log_softmax_backward": lambda g, y: aten._log_softmax_backward_data(g, y, 1, dtype),
        "layer_norm_backward": lambda g, x, m, r, w: aten.native_layer_norm_backward(
            g, x, [n], m, r, w, None, only_input
        )[0],
        "rms_norm_backward": rms_backward,
    }[case.op]


def bytes_of(case: Case, inputs: Sequence[Tensor]) -> int:
    """Read once and written once."""
    written = 1 if case.op in ONE else case.rows if case.op in A_ROW else case.rows * case.length
    return sum(t.nbytes for t in inputs) + written * getattr(torch, case.dtype).itemsize


def check(case: Case, inputs: Sequence[Tensor]) -> str:
    """Why a result is wrong, or nothing: against torch's formula in float64, on some rows where each has a result."""
    rows = case.rows if case.op in ONE else min(case.rows, 64)
    some = [t[:rows] if t.shape[0] == case.rows and t.dim() == inputs[0].dim() else t for t in inputs]
    got = ours(case)(*some)
    if case.op not in ONE and not torch.equal(got, ours(case)(*inputs)[:rows]):
        return "rows have other bits in a larger batch"
    wide = [t.double() if t.is_floating_point() else t for t in some]
    exact = torchs(case._replace(dtype="float64"))(*wide)
    eps = torch.finfo(getattr(torch, case.dtype)).eps
    worst = ((got.double() - exact).abs() / (exact.abs() + exact.abs().mean())).max().item()
    return "" if worst < 4 * max(eps, 1e-5) else f"off by {worst:.2g} of what float64 gives"


def measure(case: Case, device: torch.device, settings: bench.Settings) -> dict[str, Any]:
    """A row of results: microseconds (median and quartiles) of each, and ratios to ours."""
    row: dict[str, Any] = {**case._asdict(), "us": {}, "x": {}, "notes": {}, "wrong": False}
    guard = torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()
    with guard, torch.no_grad():
        inputs = tensors(case, device)
        row["bytes"] = bytes_of(case, inputs)
        if problem := check(case, inputs):
            row["notes"][OURS], row["wrong"] = f"wrong: {problem}", True
        candidates = {OURS: ours(case), "torch": torchs(case)}
        if case.compiled and device.type == "cuda":
            torch.compiler.reset()  # else a ninth shape would fall back to eager, in silence
            candidates["torch.compile"] = torch.compile(torchs(case), dynamic=False)
        if case.rungs:
            candidates |= {name: ours(case, name) for name in RUNG_NAMES}
        rig = bench.make_rig(device, inputs, settings)
        ready = {}
        for name, call in candidates.items():
            try:
                ready[name] = rig.prepare(call)[0]
            except Exception as error:  # a rung refuses a shape, torch.compile finds no compiler
                row["notes"][name] = bench.first_line(error)
                row["wrong"] |= name == OURS
        if OURS in ready:
            timings = bench.time_together(list(ready.values()), settings)
            for name, timing in zip(ready, timings, strict=True):
                row["us"][name] = timing.us, timing.us_q1, timing.us_q3
                if name != OURS:
                    row["x"][name] = timing.ratio
        rig.close(collect=False)
    return row


def copy_ceiling(device: torch.device, settings: bench.Settings, most_bytes: int) -> dict[str, Any]:
    """GB/s of the fastest copy, of torch's two ways to copy and two sizes: read and written."""
    best: dict[str, Any] = {"rate": 0.0, "by": ""}
    for size in (most_bytes // 16, most_bytes):
        x = torch.ones(size // 4, device=device)
        rig = bench.make_rig(device, (x,), settings)
        calls = {"clone": torch.clone, "neg": torch.neg}
        ready = [rig.prepare(call)[0] for call in calls.values()]
        for name, timing in zip(calls, bench.time_together(ready, settings), strict=True):
            rate = 2 * size / timing.us / 1e3
            if rate > best["rate"]:
                best = {"rate": float(f"{rate:.5g}"), "by": f"torch.{name} of {size >> 20} MB"}
        del ready
        rig.close(collect=False)
    return best


def key(row: dict[str, Any]) -> Case:
    return Case(*(row[field] for field in Case._fields))


def summary(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Lines for the terminal: means against each peer, then a line a case."""
    lines = []
    for peer in ("torch", "torch.compile"):
        ratios = [row["x"][peer][0] for row in rows if peer in row["x"]]
        if ratios:
            mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
            lines.append(f"x {peer}: {len(ratios)} cases, geometric mean {mean:.3f}, least {min(ratios):.3f}")
    for row in rows:
        if OURS not in row["us"]:
            lines.append(f"{key(row)}: {row['notes']}")
            continue
        us = row["us"][OURS][0]
        times = ", ".join(f"{name} {t[0]:.1f}" for name, t in row["us"].items())
        lines.append(f"{key(row)}: {times} µs; {row['bytes'] / us / 1e3:,.0f} GB/s {row['notes'] or ''}".rstrip())
    return lines


def table(rows: Sequence[dict[str, Any]], ceiling: float | None) -> tuple[list[str], list[list[str]]]:
    """Head and lines of the table in docs/tables.md; `ceiling`: of a copy, in GB/s."""
    lines = []
    for row in rows:
        if OURS not in row["us"]:
            continue
        us = row["us"][OURS][0]
        ratios = [f"{row['x'][peer][0]:.2f}" if peer in row["x"] else "" for peer in ("torch", "torch.compile")]
        shape = f"{row['rows']:,} x {row['length']:,}"
        rate = row["bytes"] / us / 1e3
        share = [f"{100 * rate / ceiling:.0f}"] if ceiling else []
        lines.append([f"`{row['op']}`", shape, row["dtype"], f"{us:.1f}", f"{rate:,.0f}", *share, *ratios])
    share = ["% of a copy"] if ceiling else []
    return ["op", "rows x length", "dtype", "µs", "GB/s", *share, "x torch", "x torch.compile"], lines


def with_rungs(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows in which every rung was timed."""
    return [row for row in rows if row["rungs"] and OURS in row["us"]]


def what_of(row: dict[str, Any]) -> str:
    return f"{row['op']} of {row['rows']:,} x {row['length']:,} {row['dtype']}"
