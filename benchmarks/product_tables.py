"""The tables of matmul for report.py: the ladder, the grid, errors and calls."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import behind
import cases

import torch_reduce
from torch_reduce._tables import significant
from torch_reduce.bench import Row

Rows = Sequence[dict[str, Any]]
HEADLINE = 4096
NOISE = "beyond noise: the third quartile is below 1, too"


def number(value: float | None, decimals: int = 2) -> str:
    return "" if value is None else f"{value:,.{decimals}f}"


def names_of(rows: Iterable[Row]) -> list[str]:
    """In teaching order, then torch."""
    there = {row.variant for row in rows}
    return [v.name for v in torch_reduce.variants("matmul") if v.name in there] + ["torch"]


def code(name: str) -> str:
    return name if name == "torch" else f"`{name}`"


def ladder_tables(rows: Sequence[Row]) -> list[tuple[str, list[str], list[list[str]]]]:
    """For each kind: its title, the head and the lines. TFLOP/s by rung and side; at the headline's side, the speed-up
    over the previous rung."""
    found = []
    for kind in dict.fromkeys(row.dtype for row in rows):
        here = {(row.variant, row.shape[0]): row for row in rows if row.dtype == kind}
        sides = sorted({side for _, side in here})
        headline = HEADLINE if HEADLINE in sides else sides[-1]
        before: Row | None = None
        lines = []
        for name in names_of(row for row in rows if row.dtype == kind):
            cells = [significant(row.rate) if (row := here.get((name, side))) else "" for side in sides]
            row = here.get((name, headline))
            timed = row is not None and row.us
            step = before.us / row.us if timed and before is not None and name not in ("auto", "torch") else None
            cells += [number(100 * row.x_torch, 0) if timed and row.x_torch else "", number(step)]
            lines.append([code(name), *cells])
            before = row if timed else before
        head = ["", *(f"{side}^3" for side in sides), f"% of torch, {headline}^3", "x previous rung"]
        found.append((cases.MATMUL_KINDS[kind], head, lines))
    return found


def headline(rows: Sequence[Row], escape: Any) -> tuple[list[str], list[list[str]]]:
    """One line a rung: the idea, and for each kind TFLOP/s and the share of torch."""
    rows = [row for row in rows if row.shape[0] == HEADLINE]
    here = {(row.variant, row.dtype): row for row in rows if row.us}
    kinds = [kind for kind in cases.MATMUL_LADDER_KINDS if any(row.dtype == kind for row in rows)]
    summaries = {v.name: v.summary for v in torch_reduce.variants("matmul")}
    lines = []
    for name in [*summaries, "torch"]:  # those that were not measured yet too
        cells = []
        for kind in kinds:
            row = here.get((name, kind))
            share = f" ({100 * row.x_torch:.0f} %)" if row and row.x_torch and name != "torch" else ""
            cells.append(significant(row.rate) + share if row else "")
        lines.append([code(name), escape(summaries.get(name, "")), *cells])
    return ["rung", "idea", *kinds], lines


def figure(rows: Sequence[Row], name: str) -> list[str]:
    """A rung at the headline's size, or at the largest below that was timed, for each kind."""
    parts = []
    for kind in dict.fromkeys(row.dtype for row in rows):
        here = [r for r in rows if r.us and r.dtype == kind and r.variant == name and r.shape[0] <= HEADLINE]
        if not here:
            continue
        row = max(here, key=lambda r: r.shape[0])
        words = f"{kind} {row.shape[0]}^3: **{significant(row.rate)} TFLOP/s**"
        parts.append(words + (f", {number(row.x_torch)} x torch" if row.x_torch else ""))
    return parts


def mean_of(values: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def ratios_of(rows: Rows, kind: str | None, dtype: str) -> list[tuple[float, float, float]]:
    """The ratios to torch of a group, or of all."""
    return [r["x"]["torch"] for r in rows if r["dtype"] == dtype and kind in (None, r["kind"]) and "torch" in r["x"]]


def summary(rows: Rows) -> tuple[list[str], list[list[str]]]:
    """By group and dtype: the geometric mean and the minimum; in the last line, how many points are below one."""
    dtypes = [dtype for dtype in cases.MATMUL_KINDS if any(row["dtype"] == dtype for row in rows)]
    lines = []
    for kind, what in (*cases.MATMUL_GROUPS.items(), (None, "**all**")):
        cells = []
        for dtype in dtypes:
            medians = [median for median, *_ in ratios_of(rows, kind, dtype)]
            cells.append(f"{number(mean_of(medians))} ({number(min(medians))})" if medians else "")
        if any(cells):
            lines.append([what, *(f"**{cell}**" if kind is None and cell else cell for cell in cells)])
    below = []
    for dtype in dtypes:
        found = ratios_of(rows, None, dtype)
        less, clearly = sum(m < 1 for m, *_ in found), sum(map(behind.is_behind, found))
        below.append(f"{less} ({clearly}) of {len(found)}")
    lines.append(["points where torch is faster (beyond noise)", *below])
    return ["", *dtypes], lines


def shape_of(row: dict[str, Any]) -> str:
    batch = " x ".join(map(str, row["batch"]))
    return (f"{batch} x " if batch else "") + f"{row['m']} x {row['n']} x {row['k']}"


def every_point(rows: Rows) -> list[tuple[str, list[str], list[list[str]]]]:
    """For each group: its title, the head and the lines; microseconds, and the speed-up over torch."""
    found = []
    for kind, what in cases.MATMUL_GROUPS.items():
        here = [row for row in rows if row["kind"] == kind]
        dtypes = list(dict.fromkeys(row["dtype"] for row in here))
        lines = []
        for place in dict.fromkeys((shape_of(row), row["layout"]) for row in here):
            of = {row["dtype"]: row for row in here if (shape_of(row), row["layout"]) == place}
            lines.append([*place, *(point_cell(of.get(dtype)) for dtype in dtypes)])
        if lines:
            found.append((what, ["m x n x k", "layout", *dtypes], lines))
    return found


def point_cell(row: dict[str, Any] | None) -> str:
    if row is None or "auto" not in row["us"]:
        return ""
    us = row["us"]["auto"][0]
    cell = f"{significant(us)} µs · {significant(row['flops'] / us / 1e6)}"
    return cell + (f" · **{number(row['x']['torch'][0])}**" if "torch" in row["x"] else " · torch refuses")


def few_rows(rows: Rows) -> tuple[list[str], list[list[str]]]:
    """The time to read the weights as a share of our time, and the speed-up over torch."""
    here = [row for row in rows if row.get("weights_us") and "auto" in row["us"]]
    dtypes = [dtype for dtype in cases.MATMUL_KINDS if any(row["dtype"] == dtype for row in here)]
    lines = []
    for shape in dict.fromkeys(map(shape_of, here)):
        of = {row["dtype"]: row for row in here if shape_of(row) == shape}
        cells = []
        for dtype in dtypes:
            row = of.get(dtype)
            share = f"{100 * row['weights_us'] / row['us']['auto'][0]:.0f} %" if row else ""
            cells.append(share + (f" · {number(row['x']['torch'][0])}" if row and "torch" in row["x"] else ""))
        lines.append([shape, *cells])
    return ["m x n x k", *dtypes], lines


def accuracy(rows: Rows) -> tuple[list[str], list[list[str]]]:
    """Frobenius error and, after a slash, the worst output."""
    ways = list(dict.fromkeys(row["way"] for row in rows))
    lines = []
    for case in dict.fromkeys((row["distribution"], row["k"]) for row in rows):
        of = {row["way"]: row for row in rows if (row["distribution"], row["k"]) == case}
        lines.append([case[0], f"{case[1]:,}", *(error_cell(of[way]) for way in ways)])
    return ["operands", "k", *(f"`{way}`" if " " not in way else way for way in ways)], lines


def error_cell(row: dict[str, Any]) -> str:
    if row["frobenius"] is None:
        return "not finite"
    return " / ".join(f"{row[name]:.1e}" if row[name] else "0" for name in ("frobenius", "worst"))


def kind_of(row: dict[str, Any]) -> str:
    return row["kind"] + (", both" if row["both"] else "")


def kinds(rows: Rows) -> tuple[list[str], list[list[str]]]:
    """A line for each kind of operand, a column for each shape."""
    shapes = list(dict.fromkeys(shape_of(row) for row in rows))
    lines = []
    for kind in dict.fromkeys(kind_of(row) for row in rows):
        cells = []
        for shape in shapes:
            row = next((r for r in rows if kind_of(r) == kind and shape_of(r) == shape), None)
            if row is None:
                cells.append("")
                continue
            errors = errors_of(row)
            cells.append(f"{row['x'][0]:.2f}" + (f" ({errors})" if errors else ""))
        lines.append([kind, *cells])
    return ["operands", *shapes], lines


def errors_of(row: dict[str, Any]) -> str:
    """In the Frobenius norm: ours and torch's; empty where the operands were not finite."""
    return ", ".join(f"{row[name][0]:.1e}" for name in ("error_auto", "error_torch") if name in row)


def calls(rows: Rows) -> tuple[list[str], list[list[str]]]:
    """Microseconds a call from Python."""
    names = list(rows[0]["us"])
    lines = []
    for row in rows:
        us = {by: median for by, (median, *_) in row["us"].items()}
        what = [f"{row['side']}^3 {row['dtype']}", row["mode"]]
        lines.append([*what, *(number(us[by]) for by in names), number(us["torch"] / us["torch_reduce"])])
    return ["", "", *(f"`{rows[0]['calls'][by]}`" for by in names), "x torch"], lines
