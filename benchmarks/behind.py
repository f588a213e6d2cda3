"""Where a peer is faster than `auto` beyond noise, and what bounds those points. report.py and counters.py read it;
products_behind.py has the products."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import cases
import grid

import torch_reduce

# The suites in which each peer was timed alternately with `auto`.
SUITES = {"grid": ("torch",), "compile": ("torch.compile",), "cub": ("CUB",), "untuned": grid.PEERS}
FEW_BYTES, MANY_BYTES = 1 << 22, 1 << 26


class Mechanism(NamedTuple):
    bound: str
    tried: str


# What bounds a point that is behind. `mechanism` says which; docs/tried.md has all that was tried.
MECHANISMS = {
    "latency": Mechanism(
        "no unit is busy: a launch, one trip to memory, dependent instructions and shuffles (of 1024 elements, one "
        "warp's); `torch.compile` knows the shape, divides by constants and has no loop",
        "more blocks, a vector a thread: slower",
    ),
    "meeting": Mechanism(
        "blocks share an output: two batches of loads, a counter and the partials follow one another, where "
        "`torch.compile` launches twice; and the last blocks do not fill the chip",
        "a finish without a counter, clusters for 16 to 64 chunks: level or slower",
    ),
    "tail": Mechanism(
        "the last blocks do not fill the chip",
        "two leaves a thread, other numbers of threads side by side, the next launch coming early: level or slower",
    ),
    "unaligned": Mechanism(
        "rows begin at any element: each chunk's leaves are moved to their lanes, with shuffles and selects: three "
        "times the issue slots of aligned rows",
        "a test for alignment at each load: loads are no longer issued together",
    ),
    "tile": Mechanism(
        "short rows that fit no vector: a block waits between filling and reading its tile",
        "blocks that walk their tiles with the next one under way: slower",
    ),
    "memory": Mechanism(
        "warps wait for memory, with issue slots to spare",
        "2, 8 or 16 loads in flight, other caching of loads, larger blocks, eight rows a team: level or slower",
    ),
}


def mechanism(row: Mapping[str, Any]) -> str:
    """Of `MECHANISMS`, by how the call is scheduled and by its bytes."""
    x = grid.on_meta(cases.Point("", tuple(row["shape"]), None, "", row["dtype"], layout=row["layout"]))
    schedule = torch_reduce.plan(row["op"], x, row["dim"], device="H200").schedule
    by_rows = row["dim"] is None or [d % len(row["shape"]) for d in row["dim"]] == [len(row["shape"]) - 1]
    if schedule.splits == 1 and row["bytes"] < FEW_BYTES:
        return "latency"
    if schedule.shifted:
        return "unaligned"
    if row["rung"] == "row_tile":
        return "tile"
    if row["bytes"] >= (MANY_BYTES if by_rows else 2 * MANY_BYTES):
        return "memory"
    return "meeting" if schedule.splits > 1 else "tail"


def is_behind(x: Sequence[float]) -> bool:
    """Whether a speed-up (median, first and third quartile) is below 1 beyond noise."""
    median, _, high = x
    return median < 1 and high < 1


class Behind(NamedTuple):
    row: dict[str, Any]
    peer: str
    x: tuple[float, float, float]
    """The speed-up: median, first and third quartile."""
    mechanism: str

    def us(self, name: str) -> float:
        return self.row["us"][name][0]


def points(files: Mapping[str, Mapping[str, Any]]) -> list[Behind]:
    """Points that are behind, the lowest speed-up first."""
    found = [
        Behind(row, peer, tuple(row["x"][peer]), mechanism(row))
        for suite, peers in SUITES.items()
        for row in files.get(suite, {}).get("points", ())
        for peer in peers
        if peer in row["x"] and is_behind(row["x"][peer])
    ]
    return sorted(found, key=lambda point: point.x[0])


def counted(folder: Path) -> list[cases.Point]:
    """What counters.py counts: for each mechanism and rung the point with the lowest speed-up."""
    files = {suite: json.loads((folder / f"{suite}.json").read_text()) for suite in SUITES}
    found: dict[tuple[str, str], cases.Point] = {}
    for point in points(files):
        row = point.row
        dim = None if row["dim"] is None else tuple(row["dim"])
        case = cases.Point(row["kind"], tuple(row["shape"]), dim, "", row["dtype"], row["op"], row["layout"])
        found.setdefault((point.mechanism, row["rung"]), case)
    return list(found.values())
