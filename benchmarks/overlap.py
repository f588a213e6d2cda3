"""How much of a sum's launch its neighbours hide: its time behind a kernel of one element, in a chain of sums, and
behind a kernel of torch's that fills the chip."""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import grid
import torch
from cases import Point
from torch import Tensor

from torch_reduce import bench

BUSY = 1 << 20  # float32 that the kernel which fills the chip negates: they stay in the L2
PLACES = ALONE, CHAIN, BEHIND = "alone", "in a chain", "behind torch's"

Call = Callable[[Tensor], Tensor]


def _behind(before: Callable[[], Tensor], call: Call) -> Call:
    def both(x: Tensor) -> Tensor:
        before()
        return call(x)

    return both


def measure(point: Point, device: torch.device, settings: bench.Settings) -> dict[str, Any]:
    """A row: microseconds (median and quartiles) of each graph, a call or a pair of calls each."""
    row: dict[str, Any] = {"shape": point.shape, "dim": point.dim, "bytes": grid.bytes_of(point), "us": {}, "wrong": ""}
    guard = torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()
    with guard, torch.no_grad():
        one, many = torch.ones(1, device=device), torch.ones(BUSY, device=device)
        row["wrong"] = grid.check(point, grid.ours(point), device)
        calls: dict[str, Call] = {"one": lambda x: one.neg_(), "busy": lambda x: many.neg_()}
        for name, call in ((grid.OURS, grid.ours(point)), ("torch", grid.reduction(point))):
            calls |= {name: call, f"one, {name}": _behind(one.neg_, call), f"busy, {name}": _behind(many.neg_, call)}
        rig = bench.make_rig(device, (grid.tensor(point, device, grid.random_values),), settings)
        timings = bench.time_together([rig.prepare(call)[0] for call in calls.values()], settings)
        for name, timing in zip(calls, timings, strict=True):
            row["us"][name] = [float(f"{us:.5g}") for us in (timing.us, timing.us_q1, timing.us_q3)]
        rig.close(collect=False)
    return row


def times(row: dict[str, Any], name: str) -> dict[str, float]:
    """Microseconds of a call by its place: of a pair, what remains without the time of its first kernel."""
    us = {key: median for key, (median, *_) in row["us"].items()}
    return {
        ALONE: us[f"one, {name}"] - us["one"],
        CHAIN: us[name],
        BEHIND: us[f"busy, {name}"] - us["busy"],
    }


def table(rows: Sequence[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Head and lines of the table, without the cells of the shape: times of ours and of torch's, and ratios."""
    lines = []
    for row in rows:
        ours, torchs = times(row, grid.OURS), times(row, "torch")
        lines.append([f"{us:.2f}" for us in (*ours.values(), *torchs.values())])
        lines[-1] += [f"{torchs[place] / ours[place]:.2f}" for place in ours]
    head = [f"{words}{place}" for words in ("µs ", "torch, µs ", "x torch ") for place in PLACES]
    return head, lines


def summary(rows: Sequence[dict[str, Any]]) -> list[str]:
    """A line a sum, for the terminal."""
    return [
        f"{row['shape']} dim {row['dim']}: "
        + "; ".join(
            f"{name} " + ", ".join(f"{place} {us:.2f}" for place, us in times(row, name).items())
            for name in (grid.OURS, "torch")
        )
        + f" µs {row['wrong']}"
        for row in rows
    ]
