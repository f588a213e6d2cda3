"""Times attention beside torch's flash kernels: forward, with its gradients, and of one query with a cache."""

import functools
import math
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import checkout  # noqa: F401, makes torch_reduce importable
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

import torch_reduce
from torch_reduce import bench

DTYPE = torch.bfloat16
# A model of 2048 features, and about as many tokens in each batch.
FEATURES, TOKENS = 2048, 8192
KINDS = {"forward": "forward", "training": "forward and backward", "token": "one query with a cache"}
# The error of a result, relative to what float32 gives, of all elements together: bfloat16 rounds by 2^-9.
ERROR = 0.02


class Case(NamedTuple):
    kind: str
    batch: int
    heads: int
    tokens: int
    width: int
    causal: bool

    def __str__(self) -> str:
        return f"{self.kind} {self.batch}x{self.heads}x{self.tokens}x{self.width}{' causal' if self.causal else ''}"


def _case(kind: str, tokens: int, width: int, causal: bool) -> Case:
    batch = 16 if kind == "token" else TOKENS // tokens
    return Case(kind, batch, FEATURES // width, tokens, width, causal)


CASES = tuple(
    _case(kind, tokens, width, causal)
    for kind in KINDS
    for tokens in (2048, 8192)
    for width in (64, 128)
    for causal in ((False,) if kind == "token" else (False, True))
)


def tensors(case: Case, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Query, key and value."""
    g = torch.Generator(device).manual_seed(0)
    lengths = (1 if case.kind == "token" else case.tokens, case.tokens, case.tokens)
    return tuple(
        torch.randn(case.batch, case.heads, n, case.width, generator=g, device=device).to(DTYPE) for n in lengths
    )


def ours(case: Case) -> Callable[..., Tensor]:
    return lambda q, k, v: torch_reduce.scaled_dot_product_attention(q, k, v, is_causal=case.causal)


def flash(case: Case) -> Callable[..., Tensor]:
    def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            return F.scaled_dot_product_attention(q, k, v, is_causal=case.causal)

    return call


def exact(case: Case, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The formula, of float32."""
    scores = q @ k.mT / math.sqrt(case.width)
    if case.causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:], device=q.device).triu(1).bool(), -math.inf)
    return scores.softmax(-1) @ v


def with_gradients(call: Callable[..., Tensor]) -> Callable[..., tuple[Tensor, ...]]:
    """The result, and the gradients of query, key and value where that of the result is the query."""

    def step(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        with torch.enable_grad():
            leaves = [t.detach().requires_grad_() for t in (q, k, v)]
            result = call(*leaves)
            return result.detach(), *torch.autograd.grad(result, leaves, q)

    return step


def check(case: Case, inputs: Sequence[Tensor]) -> str:
    """Why a result is wrong, or nothing: against float32, on one head; and against its bits alone."""

    def all_of(call: Callable[..., Tensor], given: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return with_gradients(call)(*given) if case.kind == "training" else (call(*given),)

    whole, alone = all_of(ours(case), inputs), all_of(ours(case), [t[:1] for t in inputs])
    right = all_of(functools.partial(exact, case), [t[:1, :1].float() for t in inputs])
    names = ("result", "dq", "dk", "dv")[: len(whole)]
    for name, all_of_it, one, want in zip(names, whole, alone, right, strict=True):
        if not torch.equal(all_of_it[:1], one):
            return f"{name}: other bits in a larger batch"
        error = ((one[:, :1].float() - want).norm() / want.norm()).item()
        if not error < ERROR:
            return f"{name}: off by {error:.2g} of what float32 gives"
    return ""


def work(case: Case) -> tuple[float, str]:
    """Floating-point operations or, of one query, bytes of the cache; and the unit of their rate."""
    if case.kind == "token":
        return 2.0 * case.batch * case.heads * case.tokens * case.width * DTYPE.itemsize, "GB/s"
    products = 2 if case.kind == "forward" else 7
    flops = 2.0 * products * case.batch * case.heads * case.tokens**2 * case.width
    return flops / (2 if case.causal else 1), "TFLOP/s"


def _sampler(call: Callable[..., Any], inputs: Sequence[Tensor], settings: bench.Settings) -> bench.Sampler:
    """Of calls with gradients, one after another on the stream: they take much longer than their launches."""

    def seconds(calls: int) -> float:
        if inputs[0].device.type != "cuda":
            start = time.perf_counter()
            for _ in range(calls):
                call(*inputs)
            return time.perf_counter() - start
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(calls):
            call(*inputs)
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / 1e3

    seconds(1)  # whatever happens once
    estimate = seconds(1)
    calls = min(max(math.ceil(4 * settings.sample_seconds / max(estimate, 1e-9)), 1), 64)
    return bench.Sampler(lambda: seconds(calls) / calls, calls, estimate * calls)


def measure(case: Case, device: torch.device, settings: bench.Settings) -> dict[str, Any]:
    """A row of results: microseconds (median and quartiles) of ours and of torch's, and the ratio."""
    row: dict[str, Any] = {**case._asdict(), "us": {}, "x": {}, "notes": {}, "wrong": False}
    with torch.no_grad():
        inputs = tensors(case, device)
        if problem := check(case, inputs):
            row["notes"]["ours"], row["wrong"] = problem, True
        candidates = {"ours": ours(case), "flash": flash(case)}
        rig = None if case.kind == "training" else bench.make_rig(device, inputs, settings)
        ready = {}
        for name, call in candidates.items():
            try:
                ready[name] = rig.prepare(call)[0] if rig else _sampler(with_gradients(call), inputs, settings)
            except Exception as error:  # torch without flash attention
                row["notes"][name] = bench.first_line(error)
                row["wrong"] |= name == "ours"
        if "ours" in ready:
            timings = bench.time_together(list(ready.values()), settings)
            for name, timing in zip(ready, timings, strict=True):
                row["us"][name] = timing.us, timing.us_q1, timing.us_q3
                if name != "ours":
                    row["x"][name] = timing.ratio
        if rig:
            rig.close(collect=False)
    return row


def key(row: dict[str, Any]) -> Case:
    return Case(*(row[field] for field in Case._fields))


def table(rows: Sequence[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Head and lines of the table in docs/tables.md."""
    lines = []
    for row in rows:
        if "ours" not in row["us"]:
            continue
        case, us = key(row), row["us"]["ours"][0]
        amount, unit = work(case)
        rate = amount / us / (1e6 if unit == "TFLOP/s" else 1e3)
        theirs = row["us"].get("flash")
        lines.append(
            [
                KINDS[case.kind],
                f"{case.batch} x {case.heads} x {case.tokens:,} x {case.width}",
                "causal" if case.causal else "",
                f"{us:,.1f}",
                f"{rate:,.0f} {unit}",
                f"{theirs[0]:,.1f}" if theirs else "",
                f"{row['x']['flash'][0]:.2f}" if theirs else "",
            ]
        )
    return ["", "batch x heads x tokens x width", "", "µs", "rate", "flash, µs", "x flash"], lines


def summary(rows: Sequence[dict[str, Any]]) -> list[str]:
    """A line a case, for the terminal."""
    lines = ["  ".join(filter(None, line)) for line in table(rows)[1]]
    return lines + [f"{key(row)}: {row['notes']}" for row in rows if row["notes"]]
