"""What a call costs in `batch_invariant`: CPU time of torch's function there, beside ours called directly."""

import contextlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
import torch.utils.benchmark

import torch_reduce
from torch_reduce import bench

SIDE = 32  # so small that only the call counts


class Call(NamedTuple):
    """A function of x, y and b, square matrices and a vector, as a user writes it."""

    torchs: str
    ours: str


CALLS = (
    Call("torch.mm(x, y)", "torch_reduce.matmul(x, y)"),
    Call("torch.sum(x, 1)", "torch_reduce.sum(x, 1)"),
    Call("torch.softmax(x, 1)", "torch_reduce.softmax(x, 1)"),
    Call("F.linear(x, y, b)", "torch_reduce.linear(x, y, b)"),
    Call("F.layer_norm(x, (32,), b, b)", "torch_reduce.layer_norm(x, (32,), b, b)"),
)
WAYS = ("torch", "ours", "in the mode")


def measure(device: torch.device, rounds: int, number: int) -> list[dict[str, Any]]:
    """A row a call: microseconds (median and quartiles) of each way, alternately."""
    x, y, b = (torch.randn(shape, device=device) for shape in ((SIDE, SIDE), (SIDE, SIDE), (SIDE,)))
    names = {"x": x, "y": y, "b": b, "torch": torch, "F": F, "torch_reduce": torch_reduce}
    rows = []
    for call in CALLS:
        statements = {"torch": call.torchs, "ours": call.ours, "in the mode": call.torchs}
        timers = {way: torch.utils.benchmark.Timer(statements[way], globals=names) for way in WAYS}
        times: dict[str, list[float]] = {way: [] for way in WAYS}
        with torch.no_grad():
            for _ in range(rounds):
                for way, timer in timers.items():
                    mode = torch_reduce.batch_invariant() if way == "in the mode" else contextlib.nullcontext()
                    with mode:
                        times[way].append(timer.timeit(number).median * 1e6)
        us = {}
        for way, samples in times.items():
            q1, median, q3 = bench.quartiles(samples)
            us[way] = [float(f"{value:.5g}") for value in (median, q1, q3)]
        rows.append({**call._asdict(), "us": us})
    return rows


def table(rows: Sequence[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Head and lines of the table in docs/batch_invariance.md."""
    lines = []
    for row in rows:
        torchs, ours, mode = (row["us"][way][0] for way in WAYS)
        cells = [f"{us:.2f}" for us in (torchs, ours, mode, mode - ours)]
        lines.append([f"`{row['torchs']}`", f"`{row['ours']}`", *cells])
    return ["call", "ours", "torch", "ours", "the call in the mode", "more than ours"], lines
