"""Times the row operations: `auto`, checked first, and torch's, and for some cases torch.compile and every rung."""

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

import torch_reduce
from torch_reduce import bench

OURS = "auto"
ops = torch.ops.treduce


class Case(NamedTuple):
    """An op on `rows` rows of `length` elements."""

    op: str
    rows: int
    length: int
    dtype: str
    compiled: bool = False
    """Whether torch.compile is timed, too: it takes seconds to compile."""
    rungs: bool = False
    """Whether every rung is."""

    def __str__(self) -> str:
        return f"{self.op} {self.rows}x{self.length} {self.dtype}"


# About as many elements each, from short rows to rows that fill eight blocks.
LENGTHS = (64, 128, 256, 512, 1024, 2048, 4096, 8192, 32_768, 65_536, 262_144)
ELEMENTS = 1 << 24
DTYPES = ("bfloat16", "float32")


def _cases() -> Iterator[Case]:
    for dtype in DTYPES:
        for length in LENGTHS:
            compiled = dtype == "bfloat16" and length in (64, 1024, 4096, 65_536)
            yield Case("softmax", ELEMENTS // length, length, dtype, compiled, rungs=length == 4096)
        for length in (128, 4096, 8192, 131_072):
            yield Case("rms_norm", ELEMENTS // length, length, dtype, length == 4096 and dtype == "bfloat16")
            yield Case("layer_norm", ELEMENTS // length, length, dtype, length == 4096 and dtype == "bfloat16")
        # A language model's logits, whose rows begin anywhere; rows that no vector fits; attention.
        for op in ("log_softmax", "logsumexp"):
            yield Case(op, 512, 50_257, dtype, op == "log_softmax" and dtype == "bfloat16")
            yield Case(op, 512, 50_304, dtype)
        yield Case("softmax", 16_384, 1000, dtype)
        yield Case("softmax", 100_000, 77, dtype)
        yield Case("log_softmax", 4096, 4096, dtype)
        for op in ("softmax_backward", "log_softmax_backward", "layer_norm_backward", "rms_norm_backward"):
            yield Case(op, 4096, 4096, dtype)


CASES = tuple(_cases())


def tensors(case: Case, device: torch.device) -> tuple[Tensor, ...]:
    """The arguments of a case, all of them tensors."""
    g = torch.Generator(device).manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=g, device=device).to(getattr(torch, case.dtype))

    x, n = normal(case.rows, case.length), case.length
    if case.op in ("softmax", "log_softmax", "logsumexp"):
        return (x,)
    if case.op in ("softmax_backward", "log_softmax_backward"):
        return normal(case.rows, n), getattr(ops, case.op.removesuffix("_backward"))(x, 1)
    w, b = normal(n), normal(n)
    if case.op == "layer_norm_backward":
        return normal(case.rows, n), x, *ops.layer_norm(x, [n], w, b)[1:], w
    if case.op == "rms_norm_backward":
        return normal(case.rows, n), x, *ops.rms_norm(x, [n], w)[1:], w
    return (x, w, b) if case.op == "layer_norm" else (x, w)


def ours(case: Case, variant: str = OURS) -> Callable[..., Tensor]:
    """The op itself, on the tensors of a case."""
    n = case.length
    return {
        "softmax": lambda x: ops.softmax(x, 1, variant),
        "log_softmax": lambda x: ops.log_softmax(x, 1, variant),
        "logsumexp": lambda x: ops.logsumexp(x, 1, False, variant),
        "layer_norm": lambda x, w, b: ops.layer_norm(x, [n], w, b, 1e-5, variant)[0],
        "rms_norm": lambda x, w: ops.rms_norm(x, [n], w, 1e-5, variant)[0],
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

    return {
        "softmax": lambda x: torch.softmax(x, 1),
        "log_softmax": lambda x: torch.log_softmax(x, 1),
        "logsumexp": lambda x: torch.logsumexp(x, 1),
        "layer_norm": lambda x, w, b: F.layer_norm(x, [n], w, b),
        "rms_norm": lambda x, w: F.rms_norm(x, [n], w, 1e-5),
        "softmax_backward": lambda g, y: aten._softmax_backward_data(g, y, 1, dtype),
        "log_softmax_backward": lambda g, y: aten._log_softmax_backward_data(g, y, 1, dtype),
        "layer_norm_backward": lambda g, x, m, r, w: aten.native_layer_norm_backward(
            g, x, [n], m, r, w, None, only_input
        )[0],
        "rms_norm_backward": rms_backward,
    }[case.op]


def bytes_of(case: Case, inputs: Sequence[Tensor]) -> int:
    """Read once and written once."""
    size = getattr(torch, case.dtype).itemsize
    return sum(t.numel() * t.element_size() for t in inputs) + size * case.rows * (
        1 if case.op == "logsumexp" else case.length
    )


def check(case: Case, inputs: Sequence[Tensor]) -> str:
    """Why a result is wrong, or nothing: against torch's formula in float64, on some rows."""
    rows = min(case.rows, 64)
    some = [t[:rows] if t.dim() == 2 else t for t in inputs]
    got = ours(case)(*some)
    if not torch.equal(got, ours(case)(*inputs)[:rows]):
        return "rows have other bits in a larger batch"
    wide = [t.double() for t in some]
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
        if case.compiled:
            candidates["torch.compile"] = torch.compile(torchs(case), dynamic=False)
        if case.rungs:
            named = [v.name for v in torch_reduce.variants("softmax") if v.has_kernel]
            candidates |= {name: ours(case, name) for name in named}
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


def table(rows: Sequence[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Head and lines of the table in docs/tables.md."""
    lines = []
    for row in rows:
        if OURS not in row["us"]:
            continue
        us = row["us"][OURS][0]
        ratios = [f"{row['x'][peer][0]:.2f}" if peer in row["x"] else "" for peer in ("torch", "torch.compile")]
        shape = f"{row['rows']:,} x {row['length']:,}"
        lines.append([f"`{row['op']}`", shape, row["dtype"], f"{us:.1f}", f"{row['bytes'] / us / 1e3:,.0f}", *ratios])
    return ["op", "rows x length", "dtype", "µs", "GB/s", "x torch", "x torch.compile"], lines
