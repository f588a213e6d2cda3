"""Writes the tables, figures and plots of the documents from the results files. No figure in them is typed by hand.

Examples:
    python benchmarks/report.py            rewrite what stands between the markers in README.md and docs/*.md, and
                                           docs/images
    python benchmarks/report.py --check    change nothing; exit status 1 if something is out of date

What follows from the tables of rungs alone is written by ladders.py, which this script calls.

Markers: `<!-- NAME:begin -->` and `<!-- NAME:end -->` enclose a table; `<!-- figure:RUNG -->` and `<!-- /figure -->`
enclose a line of figures, where RUNG is a rung of sum, or an op and its rung: `matmul.naive`, `vector_add.grid_1d`.
"""

import argparse
import csv
import dataclasses
import functools
import hashlib
import json
import math
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import attention as attentions
import behind
import cases
import counters
import grid
import head_products
import ladders
import mode_calls as calls_in_the_mode
import models as language_models
import overlap as overlaps
import product_plots
import product_tables
import products_behind
import row_ops
import transformer_products
from checkout import ROOT

import torch_reduce
from torch_reduce import _plot, bench
from torch_reduce._tables import significant
from torch_reduce._variants import ROW_OPS
from torch_reduce.bench import Row

LONG, SHORT = cases.LADDER[1], cases.LADDER[0]
NOT_MEASURED = "*not measured yet*"


class Results:
    """The results files of one GPU; and of others, and a CPU, what its folder does not have."""

    def __init__(self, *folders: Path) -> None:
        self.files: dict[str, dict[str, Any]] = {}
        for folder in folders:
            for path in sorted(folder.glob("*.json")):
                self.files.setdefault(path.stem, json.loads(path.read_text()))
            for path in sorted(folder.glob("counters*.csv")):
                with path.open(newline="") as file:
                    self.files.setdefault(path.stem, {"environment": {}, "points": list(csv.DictReader(file))})

    def rows(self, suite: str) -> list[Row]:
        """The rows of a suite; none if it was not run."""
        return bench.rows_from_json(self.files[suite]) if suite in self.files else []

    def environment(self, suite: str | None = None) -> dict[str, Any]:
        names = [suite] if suite else ["ladder", *self.files]
        return next((self.files[n]["environment"] for n in names if n in self.files), {})

    def ceiling(self, suite: str, op: str) -> float | None:
        """In GB/s, measured in the suite's own run."""
        ceilings = self.files.get(suite, {}).get("ceilings")
        return (ceilings["copy" if op == "vector_add" else "read"] / 1e9) if ceilings and op != "matmul" else None

    @functools.cached_property
    def grid(self) -> list["GridPoint"]:
        """The points of the grid and the untuned ones, with their ratios from all suites."""
        others = {
            name: {grid.key(row): row["x"].get(name) for row in self.files.get(suite, {}).get("points", ())}
            for suite, name in (("compile", "torch.compile"), ("cub", "CUB"))
        }
        found = []
        for row in (row for suite in ("grid", "untuned") for row in self.files.get(suite, {}).get("points", ())):
            x = dict(row["x"])
            for name, ratios in others.items():
                if ratios.get(grid.key(row)):
                    x.setdefault(name, ratios[grid.key(row)])  # untuned points have all peers of their own run
            found.append(GridPoint(row, x))
        return found

    @property
    def gpu(self) -> str:
        return self.environment().get("device_name", "GPU")


class GridPoint(NamedTuple):
    """A row of the grid, and for each peer its speed-up: median, first and third quartile."""

    row: dict[str, Any]
    x: dict[str, list[float]]

    @property
    def us(self) -> float | None:
        return self.row["us"].get("auto", [None])[0]

    @property
    def rate(self) -> float | None:
        """GB/s, read and written."""
        return self.row["bytes"] / self.us / 1e3 if self.us else None


def table(head: Sequence[str], rows: Iterable[Sequence[str]], right_from: int = 1) -> str:
    """A Markdown table; columns from `right_from` on are right-aligned."""
    rule = ["---" if i < right_from else "---:" for i in range(len(head))]
    lines = [head, rule, *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def number(value: float | None, decimals: int = 2) -> str:
    return "" if value is None else f"{value:,.{decimals}f}"


def length(n: int) -> str:
    """`2^20` for a power of two, else `25.6 M`, else all digits."""
    if n > 0 and n & (n - 1) == 0:
        return f"2^{n.bit_length() - 1}"
    return f"{n / 1e6:g} M" if n >= 10**6 and n % 10**5 == 0 else f"{n:,}"


def duration(us: float) -> str:
    return f"{us / 1000:,.2f} ms" if us >= 1000 else f"{significant(us)} µs"


def name_of(row: Row) -> str:
    code = f"`{row.variant}`" if row.variant not in bench.BASELINES else row.variant
    return f"{code} {row.tile_size}" if row.tile_size else code


def at(rows: Iterable[Row], **wanted: Any) -> list[Row]:
    return [row for row in rows if all(getattr(row, k) == v for k, v in wanted.items())]


def conditions(results: Results, suite: str, what: str) -> str:
    """The caption of a table: what, on which device, with which versions, when."""
    about = results.environment(suite)
    words = [about["device_name"], f"torch {about['torch']}"]
    if about.get("cuda_toolkit") and about["device"] == "cuda":
        words.append(f"kernels by CUDA {about['cuda_toolkit']}")
    return f"*{what}. {', '.join(words)}; {about['date'][:10]}.*"


def readme_ladder(results: Results) -> str:
    """The whole ladder at the long length: each rung's idea and its figures."""
    rows = at(results.rows("ladder"), shape=(LONG.n,))
    found = {row.variant: row for row in rows}
    lines = []
    for v in torch_reduce.variants("sum"):
        row = found.get(v.name)
        lines.append([f"`{v.name}`", ", ".join(v.aliases), escape(v.summary), *figures(row)])
    lines += [[name, "", "", *figures(found[name])] for name in bench.BASELINES if name in found]
    head = ["rung", "known as", "idea", "µs", "GB/s", "% of ceiling", "x torch"]
    ceiling = results.ceiling("ladder", "sum")
    what = f"Sum of {LONG.n:,} float32, blocks of {LONG.block_size} threads"
    under = conditions(results, "ladder", what + (f", read ceiling {ceiling:,.0f} GB/s" if ceiling else ""))
    serial = found.get("serial")
    if serial is not None and serial.us is None:
        under += " `serial` is not timed at this length: one thread would take seconds."
    return table(head, lines, right_from=3) + "\n\n" + under


def figures(row: Row | None) -> list[str]:
    if row is None or row.us is None:
        return ["", "", "", ""]
    return [significant(row.us), significant(row.rate), significant(row.percent_of_ceiling, 2), number(row.x_torch)]


def escape(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def timings(results: Results, suite: str, rows: Sequence[Row], what: str) -> str:
    """All columns, for rows of one shape and dtype."""
    if not rows:
        return NOT_MEASURED
    ceiling = any(row.percent_of_ceiling for row in rows)
    head = ["", "µs", "quartiles", rows[0].rate_unit, *(["% of ceiling"] if ceiling else []), "x torch", "call, µs"]
    lines = []
    for row in rows:
        if row.us is None:
            lines.append([f"{name_of(row)}: {escape(row.note)}", *[""] * (len(head) - 1)])
            continue
        cells = [name_of(row), significant(row.us), f"{significant(row.us_q1)}–{significant(row.us_q3)}"]
        cells += [significant(row.rate), *([number(row.percent_of_ceiling, 1)] if ceiling else [])]
        lines.append([*cells, number(row.x_torch), significant(row.call_us)])
    return table(head, lines) + "\n\n" + conditions(results, suite, what)


def sum_case(results: Results, case: cases.Ladder) -> str:
    rows = at(results.rows("ladder"), shape=(case.n,))
    return timings(results, "ladder", rows, f"Sum of {case.n:,} float32, blocks of {case.block_size} threads")


def sum_sizes(results: Results) -> str:
    """Microseconds by length and variant."""
    rows = results.rows("sizes")
    names = list(dict.fromkeys(row.variant for row in rows))
    head = ["elements", *(f"`{n}`" if n not in bench.BASELINES else n for n in names), "auto x torch"]
    lines = []
    for shape in dict.fromkeys(row.shape for row in rows):
        here = {row.variant: row for row in at(rows, shape=shape)}
        cells = [significant(here[n].us) if n in here else "" for n in names]
        lines.append([length(shape[0]), *bold_least(cells), number(here["auto"].x_torch) if "auto" in here else ""])
    under = conditions(results, "sizes", "Sum of float32, µs, each rung with its default block size; fastest in bold")
    return table(head, lines) + f"\n\n{under}\n\n![Bandwidth over the length](images/sum_sizes.svg)"


def bold_least(cells: list[str]) -> list[str]:
    values = [float(c.replace(",", "")) if c else float("inf") for c in cells]
    best = min(values, default=float("inf"))
    return [f"**{c}**" if c and v == best else c for c, v in zip(cells, values, strict=True)]


def sum_blocks(results: Results) -> str:
    """Microseconds by rung and block size."""
    rows = [row for row in results.rows("blocks") if row.num_blocks is None]
    sizes = sorted({row.block_size for row in rows if row.block_size})
    lines = []
    for name in dict.fromkeys(row.variant for row in rows if row.block_size):
        here = {row.block_size: row for row in at(rows, variant=name)}
        lines.append([f"`{name}`", *bold_least([significant(here[s].us) if s in here else "" for s in sizes])])
    what = f"Sum of {cases.BLOCKS_LENGTH.n:,} float32, µs by block size; the best of each rung in bold"
    return table(["block size", *map(str, sizes)], lines) + "\n\n" + conditions(results, "blocks", what)


def sum_num_blocks(results: Results) -> str:
    """Microseconds by number of blocks."""
    rows = [row for row in results.rows("blocks") if row.num_blocks is not None]
    if not rows:
        return NOT_MEASURED
    head = ["blocks", *(f"{row.num_blocks:,}" for row in rows)]
    what = f"`{rows[0].variant}` with {rows[0].block_size} threads a block, sum of {rows[0].shape[0]:,} float32"
    return (
        table(head, [["µs", *bold_least([significant(row.us) for row in rows])]])
        + "\n\n"
        + conditions(results, "blocks", what)
    )


def dtypes(results: Results) -> str:
    """GB/s of auto and torch by dtype and length."""
    rows = results.rows("dtypes")
    shapes = list(dict.fromkeys(row.shape for row in rows))
    head = [""]
    for (n,) in shapes:
        head += [f"{length(n)}: auto", "torch", "x torch"]
    lines = []
    for dtype in dict.fromkeys(row.dtype for row in rows):
        cells = [dtype]
        for shape in shapes:
            here = {row.variant: row for row in at(rows, dtype=dtype, shape=shape)}
            ours, theirs = here.get("auto"), here.get("torch")
            cells += [significant(ours.rate) if ours else "", significant(theirs.rate) if theirs else ""]
            cells.append(number(ours.x_torch) if ours else "")
        lines.append(cells)
    return table(head, lines) + "\n\n" + conditions(results, "dtypes", "Sum, GB/s by dtype and number of elements")


def by_tile_size(results: Results) -> list[Row]:
    """The rows of the suite `matmul`, without `auto`, which the ladder's table has."""
    return [row for row in results.rows("matmul") if row.variant != "auto"]


def matmul(results: Results) -> str:
    """TFLOP/s by shape and variant."""
    rows = by_tile_size(results)
    names = list(dict.fromkeys(name_of(row) for row in rows))
    lines = []
    for shape in dict.fromkeys(row.shape for row in rows):
        here = {name_of(row): row for row in at(rows, shape=shape)}
        side = f"{shape[0]}^3" if len(set(shape)) == 1 else " x ".join(map(str, shape))
        lines.append([side, *(significant(here[n].rate) if n in here else "" for n in names)])
    about = results.environment("matmul")
    what = (
        f"float32 (torch's matmul precision: {about['float32_matmul_precision']}), TFLOP/s; after a name, the tile size"
    )
    under = conditions(results, "matmul", what)
    return table(["m x n x k", *names], lines) + f"\n\n{under}\n\n![Matrix multiplication](images/matmul.svg)"


def matmul_ladder(results: Results) -> str:
    """TFLOP/s by rung and size, a table for each kind of product."""
    parts = [
        f"**{what[0].upper()}{what[1:]}**, TFLOP/s\n\n{table(head, lines)}"
        for what, head, lines in product_tables.ladder_tables(results.rows("matmul_ladder"))
    ]
    under = conditions(
        results, "matmul_ladder", "Every rung with its default tile size; torch is cuBLAS for the same kind of product"
    )
    return "\n\n".join([*parts, under, "![The matmul ladder](images/matmul_ladder.svg)"])


def matmul_headline(results: Results) -> str:
    """The whole ladder at one size: each rung's idea and its figures."""
    side = product_tables.HEADLINE
    head, lines = product_tables.headline(results.rows("matmul_ladder"), escape)
    what = f"Matrices of {side} x {side}, TFLOP/s (and share of torch's speed for the same kind of product)"
    picture = "![The matmul ladder, as shares of torch](docs/images/matmul_ladder.svg)"
    return f"{table(head, lines, 2)}\n\n{conditions(results, 'matmul_ladder', what)}\n\n{picture}"


def products_of(results: Results) -> list[dict[str, Any]]:
    return results.files["matmul_grid"]["products"]


def matmul_summary(results: Results) -> str:
    """The grid by group and kind of product."""
    what = "Device time of torch divided by that of `auto`, timed alternately: geometric mean (minimum); "
    what += product_tables.NOISE
    picture = "![Speed-up over torch](images/matmul_grid.svg)"
    under = conditions(results, "matmul_grid", what)
    return f"{table(*product_tables.summary(products_of(results)))}\n\n{under}\n\n{picture}"


def matmul_readme(results: Results) -> str:
    """The same for the README."""
    what = (
        f"Speed-up over `torch.matmul` for the same kind of product: geometric mean (minimum); {product_tables.NOISE}"
    )
    return f"{table(*product_tables.summary(products_of(results)))}\n\n{conditions(results, 'matmul_grid', what)}"


def matmul_points(results: Results) -> str:
    """Every point, a table for each group."""
    parts = [
        f"**{what[0].upper()}{what[1:]}**\n\n{table(head, lines, 2)}"
        for what, head, lines in product_tables.every_point(products_of(results))
    ]
    what = "`auto`: time, TFLOP/s and, in bold, speed-up over torch"
    return "\n\n".join([*parts, conditions(results, "matmul_grid", what)])


def matmul_few_rows(results: Results) -> str:
    """Compared with the time that reading the weights takes."""
    ceilings = results.files["matmul_grid"].get("ceilings")
    if not ceilings:
        return NOT_MEASURED
    what = (
        f"Time to read the weights at {ceilings['read'] / 1e9:,.0f} GB/s, as a share of `auto`'s time; then `auto`'s "
        "speed-up over torch"
    )
    lines = table(*product_tables.few_rows(products_of(results)))
    return f"{lines}\n\n{conditions(results, 'matmul_grid', what)}"


def matmul_accuracy(results: Results) -> str:
    """Errors of float32 products against float64."""
    what = (
        "Error against float64: relative error in the Frobenius norm / largest error of an output relative to its sum "
        f"of |a| |b|; {cases.MATMUL_ACCURACY_SIDE} x {cases.MATMUL_ACCURACY_SIDE} outputs"
    )
    lines = table(*product_tables.accuracy(results.files["matmul_accuracy"]["errors"]))
    return f"{lines}\n\n{conditions(results, 'matmul_accuracy', what)}"


def matmul_kinds(results: Results) -> str:
    """float32 products by kind of operand: speed-up over torch, and errors in the Frobenius norm."""
    what = (
        "Speed-up over torch's float32 (relative error in the Frobenius norm, of ours and of torch's); B is normal, "
        "or of A's kind"
    )
    lines = table(*product_tables.kinds(results.files["matmul_kinds"]["kinds"]))
    picture = "![Speed-up over torch by kind of operand](images/matmul_kinds.svg)"
    return f"{picture}\n\n{lines}\n\n{conditions(results, 'matmul_kinds', what)}"


def transformer(results: Results) -> str:
    """Products of a transformer block, and whole steps."""
    data = results.files["transformer"]
    size = data["size"]
    kinds = "; ".join(f"{kind}: {what}" for kind, what in transformer_products.KINDS.items())
    block = (
        f"Width {size['width']:,}, {size['heads']} heads, {size['batch']} x {size['tokens']:,} tokens; {kinds}; scores "
        f"have a standard deviation of {transformer_products.SCORES_DEVIATION:g}"
    )
    what = f"{block}. Speed-up over torch's float32; relative error in the Frobenius norm, of ours and of torch's"
    products = table(*transformer_products.table(data["transformer"]), 3)
    of_steps = (
        "Forward and backward, everything but products by torch; speed-up over torch's float32; relative error of all "
        "gradients in the Frobenius norm (of the worst of them)"
    )
    steps = table(*transformer_products.steps_table(data["steps"]))
    picture = "![Speed-up over torch by product](images/transformer.svg)"
    parts = [picture, products, conditions(results, "transformer", what)]
    return "\n\n".join([*parts, "Whole steps:", steps, conditions(results, "transformer", of_steps)])


def heads(results: Results) -> str:
    """Products of attention's heads, by model."""
    what = (
        "Speed-up over torch in the same precision, timed alternately; values are multiplied by probabilities, a "
        "softmax of scores whose standard deviation is 3; causal: a query has no later keys; sharp: the standard "
        "deviation is 15"
    )
    rows = results.files["heads"]["heads"]
    lines = [table(*head_products.summary(rows), right_from=1), table(*head_products.table(rows), right_from=4)]
    return "\n\n".join([*lines, conditions(results, "heads", what)])


def transformer_step(results: Results) -> str:
    """A sentence: what a step gains."""
    rows = results.files["transformer"]["steps"]
    parts = []
    for kind in dict.fromkeys(row["kind"] for row in rows):
        ours, torchs = (
            transformer_products.step_row(rows, kind, name)
            for name in (transformer_products.OURS, transformer_products.TORCH)
        )
        what = f"{number(torchs['ms'] / ours['ms'])} times with {transformer_products.KINDS[kind]}"
        parts.append(f"{what} (error of the gradients {ours['error']:.1e}, torch's {torchs['error']:.1e})")
    return f"Speed-up of a whole step over torch's float32: {', '.join(parts)}; {results.gpu}."


def matmul_calls(results: Results) -> str:
    """Microseconds a call: a line for each size, dtype and mode."""
    lines = table(*product_tables.calls(results.files["matmul_calls"]["calls"]), right_from=2)
    return f"{lines}\n\n{conditions(results, 'matmul_calls', 'CPU time of a call from Python, µs')}"


def vector_add(results: Results) -> str:
    """GB/s by length and variant."""
    rows = results.rows("vector_add")
    names = list(dict.fromkeys(name_of(row) for row in rows))
    lines = []
    for shape in dict.fromkeys(row.shape for row in rows):
        here = {name_of(row): row for row in at(rows, shape=shape)}
        best = here.get("`auto`")
        cells = [significant(here[n].rate) if n in here else "" for n in names]
        lines.append([length(shape[0]), *cells, number(best.percent_of_ceiling, 1) if best else ""])
    under = conditions(results, "vector_add", "float32, GB/s read and written")
    return table(["elements", *names, "auto, % of ceiling"], lines) + "\n\n" + under


def calls(results: Results) -> str:
    """Microseconds a call: a line for each call and mode; torch, ours, and the op without our Python function."""
    lines = []
    for row in results.files["calls"]["calls"]:
        us = {by: median for by, (median, *_) in row["us"].items()}
        what = [f"`{row['calls']['torch_reduce']}`", " x ".join(f"{size:,}" for size in row["shape"]), row["mode"]]
        cells = [number(us.get(by)) for by in ("torch", "torch_reduce", "torch.ops")]
        lines.append([*what, *cells, number(us["torch"] / us["torch_reduce"])])
    head = ["", "float32", "", "torch", "torch_reduce", "torch.ops.treduce", "x torch"]
    return (
        table(head, lines, right_from=3) + "\n\n" + conditions(results, "calls", "CPU time of a call from Python, µs")
    )


def mode_calls(results: Results) -> str:
    """Microseconds a call in batch_invariant."""
    rows = results.files["calls"].get("mode_calls")
    if not rows:
        return NOT_MEASURED
    side = calls_in_the_mode.SIDE
    what = f"CPU time of a call from Python, µs; {side} x {side} float32, without gradients"
    return table(*calls_in_the_mode.table(rows), right_from=2) + "\n\n" + conditions(results, "calls", what)


PEERS = grid.PEERS


def geometric_mean(values: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def summary(points: Sequence[GridPoint], name: str) -> list[str]:
    """The number of points, the geometric mean and the minimum of their speed-ups, and how many are below one."""
    ratios = [p.x[name] for p in points if p.x.get(name)]
    if not ratios:
        return ["", "", "", ""]
    medians = [median for median, *_ in ratios]
    below = sum(median < 1 for median in medians)
    clearly = sum(map(behind.is_behind, ratios))
    cell = f"{below} ({clearly})" if below else "0"
    return [str(len(ratios)), number(geometric_mean(medians)), number(min(medians)), cell]


def grid_summary(results: Results) -> str:
    """The grid in three lines, then by kind."""
    lines = []
    for name in PEERS:
        figures = summary(results.grid, name)
        if figures[0]:
            lines.append([f"all, x {name}", *figures])
    for kind, what in kinds_of(results.grid).items():
        lines.append([f"{what}, x torch", *summary([p for p in results.grid if p.row["kind"] == kind], "torch")])
    head = ["", "points", "geometric mean", "minimum", "points where the peer is faster (beyond noise)"]
    what = (
        "Device time of torch, torch.compile or CUB divided by that of `auto`, timed alternately; "
        f"{product_tables.NOISE}"
    )
    picture = "![Speed-up over torch, torch.compile and CUB](images/grid.svg)"
    return f"{table(head, lines)}\n\n{conditions(results, 'grid', what)} {peer_dates(results)}\n\n{picture}"


def peer_dates(results: Results) -> str:
    """When each peer was timed beside `auto`: torch in the grid's run, others in runs of their own, untuned in one."""
    found = []
    for suite, peers in behind.SUITES.items():
        if suite in results.files:
            about = results.environment(suite)
            name = peers[0] if len(peers) == 1 else "shapes that nothing was tuned for, all three"
            found.append(f"{name} {about['date'][:10]} (commit {about['commit']})")
    return f"*Each peer was timed alternately with `auto` in one run: {'; '.join(found)}.*"


def behind_mechanisms(results: Results) -> str:
    """What bounds the points that are behind: how many points, and how far behind."""
    return mechanisms(behind.points(results.files), behind.MECHANISMS)


def behind_product_mechanisms(results: Results) -> str:
    """The same of products."""
    return mechanisms(products_behind.points(results.files), products_behind.MECHANISMS)


def mechanisms(points: Sequence[behind.Behind | products_behind.Behind], known: Mapping[str, behind.Mechanism]) -> str:
    lines = []
    for key, words in known.items():
        ratios = [point.x[0] for point in points if point.mechanism == key]
        if ratios:
            lines.append([key, words.bound, words.tried, str(len(ratios)), number(min(ratios))])
    head = ["", "what bounds it", "[tried](tried.md)", "points", "lowest speed-up"]
    return table(head, lines, 3)


def behind_points(results: Results) -> str:
    """Every point where a peer is faster, in the run of that peer, with the counters that there are."""
    counted = {counter_key(row): row for row in results.files.get("counters_points", {}).get("points", ())}
    lines = []
    for point in behind.points(results.files):
        row = point.row
        cells = [*what_of(row), f"`{row['rung']}`", point.mechanism, point.peer]
        cells += [significant(point.us("auto")), significant(point.us(point.peer)), number(point.x[0], 3)]
        found = counted.get(counter_key(row))
        shares = [number(float(found[f"{name}_percent"]), 0) for name in ("dram", "issue")] if found else ["", ""]
        lines.append([*cells, *shares, most_stalls(found, 1) if found else ""])
    head = [
        *WHAT,
        "rung",
        "bound by",
        "peer",
        "µs",
        "peer, µs",
        "x",
        "DRAM, %",
        "issue slots, %",
        "most frequent stall",
    ]
    return table(head, lines, len(WHAT) + 3) + "\n\n" + peer_dates(results)


def behind_products(results: Results) -> str:
    """Every product where torch is faster, with the counters that there are, of its kernel that takes longest."""
    counted: dict[tuple[str, ...], dict[str, str]] = {}
    for row in results.files.get("counters_products", {}).get("points", ()):
        key = counters.product_key(row)
        counted[key] = max(counted.get(key, row), row, key=lambda kernel: float(kernel["ns"]))
    lines = []
    for point in products_behind.points(results.files):
        row, plan = point.row, point.plan
        tiles = f"{products_behind.tiles_of(plan):,} of {plan.tile[0]} x {plan.tile[1]}"
        cells = [product_tables.shape_of(row), row["layout"], row["dtype"], f"`{row['rung']}`", tiles, point.mechanism]
        cells += [*(significant(row["us"][name][0]) for name in ("auto", "torch")), number(point.x[0], 3)]
        found = counted.get(counters.product_key(row))
        names = ("dram", "l2", "issue", "tensor")
        lines.append([*cells, *(number(float(found[f"{name}_percent"]), 0) if found else "" for name in names)])
    head = ["m x n x k", "layout", "dtype", "rung", "tiles", "bound by", "µs", "torch, µs", "x", "DRAM, %", "L2, %"]
    what = "Products behind torch beyond noise, and counters of the kernel that takes longest"
    under = conditions(results, "matmul_grid", what)
    return table([*head, "issue slots, %", "tensor cores, %"], lines, 6) + "\n\n" + under


def counter_key(row: dict[str, Any]) -> tuple[str, ...]:
    """Of a row of the grid, or of a file of counters."""
    shape, dim = row["shape"], row["dim"]
    if not isinstance(shape, str):
        shape, dim = "x".join(map(str, shape)), "" if dim is None else " ".join(map(str, dim))
    return (row["op"], row["dtype"], row["layout"], shape, dim)


def most_stalls(row: dict[str, str], count: int) -> str:
    """The most frequent reasons for which warps wait, with their shares."""
    waits = {name: float(row[name]) for name in counters.STALLS}
    most = sorted(waits, key=lambda name: -waits[name])[:count]
    total = float(row["warp_cycles"])
    return ", ".join(f"{name.replace('_', ' ')} {100 * waits[name] / total:.0f} %" for name in most)


def kinds_of(points: Iterable[GridPoint]) -> dict[str, str]:
    """The kinds of which points were measured."""
    measured = {p.row["kind"] for p in points}
    return {kind: what for kind, what in cases.KINDS.items() if kind in measured}


def untuned(results: Results) -> str:
    """Every untuned point: µs of everybody, slowest relative to its fastest peer first."""
    points = [p for p in results.grid if p.row["kind"] == "untuned" and p.us]
    points.sort(key=lambda p: min(p.x[name][0] for name in p.x))
    predicted = {grid.key(point): point.predicted for point in cases.UNTUNED}
    lines = []
    for p in points:
        times = [predicted[grid.key(p.row)], *(p.row["us"].get(name, [None])[0] for name in PEERS)]
        least = min(p.x.values(), key=lambda x: x[0])
        cells = [*what_of(p.row), f"`{p.row['rung']}`", *map(significant, (p.us, *times)), ratio(least)]
        lines.append([*cells, significant(p.rate)])
    head = [*WHAT, "rung", "µs", "predicted, µs", *(f"{name}, µs" for name in PEERS), "x the fastest", "GB/s"]
    means = ", ".join(
        f"{mean} times {name} (least {least})"
        for name in PEERS
        for _, mean, least, _ in [summary(points, name)]
        if mean
    )
    what = f"`auto`, in the geometric mean {means}"
    return table(head, lines, len(WHAT) + 1) + "\n\n" + conditions(results, "untuned", what)


def grid_readme(results: Results) -> str:
    """The short table of the README, and the figure."""
    lines = []
    for kind, what in kinds_of(results.grid).items():
        points, mean, least, _ = summary([p for p in results.grid if p.row["kind"] == kind], "torch")
        lines.append([what, points, mean, least])
    for name in PEERS:
        points, mean, least, _ = summary(results.grid, name)
        if points:
            bold = [f"**{cell}**" for cell in (points, mean, least)]
            lines.append([f"**all**, against {name}" if name != "torch" else "**all**", *bold])
    under = conditions(results, "grid", "Speed-up over `torch.sum`, `mean`, `amax` or `amin`")
    picture = "![Speed-up over torch, torch.compile and CUB](docs/images/grid.svg)"
    head = ["", "points", "geometric mean", "minimum"]
    return f"{picture}\n\n{table(head, lines)}\n\n{under} {peer_dates(results)}"


def ratio(values: list[float] | None) -> str:
    """The median; with its quartiles if it is near one."""
    if not values:
        return ""
    median, low, high = values
    return number(median) + (f" ({number(low)}–{number(high)})" if median < grid.CLOSE else "")


WHAT = ("shape", "dim", "dtype", "op", "layout")


def what_of(row: dict[str, Any]) -> list[str]:
    """The cells under `WHAT`."""
    dims = "all" if row["dim"] is None else ", ".join(map(str, row["dim"]))
    layout = "" if row["layout"] == "contiguous" else row["layout"].replace("_", " ")
    return [shape_of(row), dims, row["dtype"], row["op"], layout]


def shape_of(row: dict[str, Any]) -> str:
    """`65,536 x 1,024`, and powers of two from 2^17 on as such."""
    return " x ".join(length(size) if size >= 1 << 17 else f"{size:,}" for size in row["shape"])


def grid_table(results: Results) -> str:
    """Every point, a table for each kind."""
    ceiling = ceiling_of(results)
    peers = [name for name in PEERS if any(p.x.get(name) for p in results.grid)]
    rungs = any(p.row["rung"] for p in results.grid)
    head = [*WHAT, *(["rung"] if rungs else []), "µs", "GB/s", "% of ceiling"]
    numbers_from = len(head) - 3
    parts = []
    for kind, what in kinds_of(results.grid).items():
        lines = []
        for p in results.grid:
            if p.row["kind"] != kind:
                continue
            cells = what_of(p.row)
            cells += [f"`{p.row['rung']}`" if p.row["rung"] else ""] if rungs else []
            share = 100 * p.rate / ceiling if p.rate and ceiling else None
            cells += [significant(p.us), significant(p.rate), number(share, 1)]
            lines.append([*cells, *(ratio(p.x.get(name)) for name in peers)])
        parts.append(
            f"**{what[0].upper()}{what[1:]}**\n\n" + table([*head, *(f"x {n}" for n in peers)], lines, numbers_from)
        )
    what = "`auto`; GB/s count what is read and written"
    return "\n\n".join([*parts, f"{conditions(results, 'grid', what)} {peer_dates(results)}"])


def ceiling_of(results: Results) -> float | None:
    """GB/s of the fastest kernel that only reads, in the grid's run."""
    floors = results.files["grid"].get("floors")
    return max(floors["read"].values()) if floors else None


def grid_ceiling(results: Results) -> str:
    """Large whole tensors of every dtype, against reading alone."""
    floors = results.files["grid"].get("floors")
    if not floors:
        return NOT_MEASURED
    ceiling = ceiling_of(results)
    sizes = (64, 256, 1024)
    lines = []
    for dtype in cases.EVERY_DTYPE:
        cells = []
        for megabytes in sizes:
            n = (megabytes << 20) // cases.WIDTHS[dtype]
            key = grid.key(cases.Point("", (n,), None, "", dtype))
            rate = next((p.rate for p in results.grid if grid.key(p.row) == key), None)
            same = floors["read"].get(str(megabytes << 20))
            cells += [significant(rate), number(100 * rate / ceiling, 1) if rate else ""]
            cells.append(number(100 * rate / same, 1) if rate and same else "")
        lines.append([dtype, *cells])
    only = ["reading alone"]
    for megabytes in sizes:
        same = floors["read"].get(str(megabytes << 20))
        only += [significant(same), number(100 * same / ceiling, 1) if same else "", "100.0" if same else ""]
    head = ["", *(cell for m in sizes for cell in (f"{m} MB: GB/s", "% of ceiling", "% of reading alone"))]
    what = f"Sum of a whole tensor by `auto`; ceiling {ceiling:,.0f} GB/s, the fastest kernel that only reads"
    return table(head, [*lines, only]) + "\n\n" + conditions(results, "grid", what)


def grid_shares(results: Results) -> str:
    """A sentence: the shares of the ceiling that large whole tensors reach."""
    floors, ceiling = results.files["grid"].get("floors"), ceiling_of(results)
    if not floors or not ceiling:
        return NOT_MEASURED
    parts = []
    for megabytes in (64, 256, 1024):
        lengths = {(dtype, (megabytes << 20) // width) for dtype, width in cases.WIDTHS.items()}
        found = {
            p.row["dtype"]: 100 * p.rate / ceiling
            for p in results.grid
            if p.rate and p.row["op"] == "sum" and p.row["layout"] == "contiguous" and len(p.row["shape"]) == 1
            and (p.row["dtype"], p.row["shape"][0]) in lengths
        }  # fmt: skip
        least, reading = min(found, key=found.__getitem__), 100 * floors["read"][str(megabytes << 20)] / ceiling
        words = f"{number(found['float32'], 0)} % in float32 and {number(found[least], 0)} % in `{least}`"
        slow = ", the slowest dtype" if not parts else ""
        parts.append(f"at {megabytes} MB {words}{slow} (reading alone: {number(reading, 0)} %)")
    return f"Of the ceiling, sums of whole tensors reach {'; '.join(parts)} ([table](tables.md#lengths))."


def grid_floor(results: Results) -> str:
    """Short whole tensors of float32, against a kernel that fetches one word."""
    floors = results.files["grid"].get("floors")
    if not floors:
        return NOT_MEASURED
    points = [p for p in results.grid if p.row["kind"] == "whole" and p.row["dtype"] == "float32"]
    points = [p for p in points if p.us and p.row["shape"][0] <= 1 << 20]
    lines = [
        ["µs", *(significant(p.us) for p in points)],
        ["x floor", *(number(p.us / floors["word_us"]) for p in points if p.us)],
        *(
            [f"x {name}", *(ratio(p.x.get(name)) for p in points)]
            for name in PEERS
            if any(p.x.get(name) for p in points)
        ),
    ]
    what = (
        f"Sum of float32 by `auto`. An empty kernel in a graph takes {floors['nothing_us']:.2f} µs; the floor, a "
        f"thread that reads a word from memory and writes it, {floors['word_us']:.2f} µs"
    )
    return (
        table(["elements", *(length(p.row["shape"][0]) for p in points)], lines)
        + "\n\n"
        + f"{conditions(results, 'grid', what)} {peer_dates(results)}"
    )


def overlap(results: Results) -> str:
    """Short sums alone, in a chain and behind a kernel of torch's."""
    rows = results.files["overlap"]["overlap"]
    head, lines = overlaps.table(rows)
    lines = [
        [shape_of(r), "all" if r["dim"] is None else str(r["dim"][0]), *cells]
        for r, cells in zip(rows, lines, strict=True)
    ]
    what = (
        "Sum of float32 by `auto` and by torch, in a graph. Alone: behind a kernel of one element; behind torch's: "
        f"behind one that negates {length(overlaps.BUSY)} numbers; their own time is subtracted"
    )
    return table(["shape", "dim", *head], lines, 2) + "\n\n" + conditions(results, "overlap", what)


def rungs(results: Results) -> str:
    """Microseconds of each rung along dims at some shapes."""
    rows = results.files["rungs"]["points"]
    names = [v.name for v in torch_reduce.variants("sum") if any(v.name in row["us"] for row in rows)]
    names += [name for name in bench.BASELINES if any(name in row["us"] for row in rows)]
    columns = [bold_least([significant(row["us"][n][0]) if n in row["us"] else "" for n in names]) for row in rows]
    lines = [
        [f"`{name}`" if name not in bench.BASELINES else name, *(column[i] for column in columns)]
        for i, name in enumerate(names)
    ]
    head = ["", *(", ".join(what_of(row)[:2]) for row in rows)]
    what = "Sum of float32, µs by shape and dim; fastest in bold, empty where a rung refuses the shape"
    return table(head, lines) + "\n\n" + conditions(results, "rungs", what)


def cpu(results: Results) -> str:
    """The grid on a CPU: by kind, then the points that are slowest beside torch."""
    points = [GridPoint(row, row["x"]) for row in results.files["cpu"]["points"]]
    lines = [["all", *summary(points, "torch")[:3]]]
    for kind, what in kinds_of(points).items():
        lines.append([what, *summary([p for p in points if p.row["kind"] == kind], "torch")[:3]])
    about = results.environment("cpu")
    threads = about["device_facts"].get("torch_threads", "")
    where = f"{about['device_name']}, {threads} threads, torch {about['torch']}; {about['date'][:10]}"
    least = sorted((p for p in points if p.x.get("torch")), key=lambda p: p.x["torch"][0])[:10]
    worst = [[*what_of(p.row), significant(p.us), ratio(p.x["torch"])] for p in least]
    by_kind = table(["", "points", "geometric mean", "minimum"], lines)
    slowest = table([*WHAT, "µs", "x torch"], worst, len(WHAT))
    parts = [by_kind, f"*Speed-up over torch, {where}.*", "The ten points with the lowest speed-up:", slowest]
    return "\n\n".join([*parts, *cpu_few_rows(results, points)])


def cpu_few_rows(results: Results, points: Sequence[GridPoint]) -> list[str]:
    """Products of one row, and rows of 1000, on a CPU."""
    timed = [
        ([f"{product_tables.shape_of(row)}, {row['layout']}", row["dtype"]], row)
        for row in results.files["cpu"].get("products", ())
    ]
    timed += [
        ([f"sum of {shape_of(p.row)} along {p.row['dim'][0]}", p.row["dtype"]], p.row)
        for p in points
        if grid.key(p.row) == grid.key(cases.CPU_ROWS)
    ]
    lines = [
        [*what, *(significant(row["us"][name][0]) for name in ("auto", "torch")), ratio(row["x"]["torch"])]
        for what, row in timed
    ]
    head = ["", "dtype", "µs", "torch, µs", "x torch"]
    return (
        ["Products of one row (m x n x k; NT: B contiguous along k), and rows of 1000:", table(head, lines, 2)]
        if lines
        else []
    )


def accuracy(results: Results) -> str:
    """Relative errors by distribution, and the cost of each way of adding."""
    data = results.files["accuracy"]
    ways = list(dict.fromkeys(row["way"] for row in data["errors"]))
    lines = []
    for n in dict.fromkeys(row["n"] for row in data["errors"]):
        for kind in dict.fromkeys(row["distribution"] for row in data["errors"]):
            here = {r["way"]: r for r in data["errors"] if (r["n"], r["distribution"]) == (n, kind)}
            lines.append([length(n), kind, *(error_cell(here.get(way)) for way in ways)])
    for n in dict.fromkeys(row["n"] for row in data["speeds"]):
        here = {row["way"]: row for row in data["speeds"] if row["n"] == n}
        lines.append([length(n), "**µs**", *(significant(here[w]["us"]) if w in here else "" for w in ways)])
    what = "Relative error of float32 sums, in bold if correctly rounded; last rows: µs a call"
    if data["environment"]["device"] == "cuda":
        what += " (device time; `math.fsum` on the CPU)"
    head = ["elements", "distribution", *(f"`{way}`" for way in ways)]
    return table(head, lines, right_from=2) + "\n\n" + conditions(results, "accuracy", what)


def of_ranks(results: Results, op: str) -> list[dict[str, Any]]:
    return [row for row in results.files["distributed"]["sharded"] if row["op"] == op]


def on_ranks(results: Results, what: str) -> str:
    data = results.files["distributed"]
    settings = "".join(f", {name}={value}" for name, value in sorted(data["nccl_settings"].items()))
    return conditions(results, "distributed", f"{what}; {data['ranks']} GPUs, NCCL {data['nccl']}{settings}")


def distributed_collectives(results: Results) -> str:
    """Each collective, ours and torch's."""
    lines = []
    for op in ("all_reduce", "reduce_scatter"):
        for row in of_ranks(results, op):
            ours, theirs = (row["us"][by][0] for by in ("torch_reduce", "torch"))
            size = [op, row["dtype"], length(row["bytes"])]
            lines.append([*size, significant(ours), significant(theirs), number(ours / theirs)])
    head = ["", "dtype", "bytes", "µs", "NCCL µs", "ours / NCCL"]
    return table(head, lines, 3) + "\n\n" + on_ranks(results, "A call, host time included")


def distributed_sums(results: Results) -> str:
    """Sums of sharded DTensors, ours and torch's, and what they cannot be faster than."""
    lines = []
    for row in of_ranks(results, "sum"):
        us = {by: median for by, (median, *_) in row["us"].items()}
        least, crossing = us["local sum and all_gather"], us.get("these and the cut chunk")
        dim = "all" if row["dim"] is None else str(row["dim"])
        cells = [shape_of(row), str(row["sharded"]), dim, significant(us["torch_reduce"]), significant(us["DTensor"])]
        lines.append(
            [*cells, significant(least), significant(crossing), number(us["torch_reduce"] / (crossing or least))]
        )
    head = [
        "shape",
        "sharded",
        "summed",
        "µs",
        "DTensor µs",
        "local sum, all_gather µs",
        "and the cut chunk's rows µs",
        "ours / that",
    ]
    return table(head, lines, 3) + "\n\n" + on_ranks(results, "Sums of float32 DTensors, host time included")


def models(results: Results) -> str:
    """Questions and times of whole models."""
    rows = results.files["models"]["models"]
    shapes = ", ".join(dict.fromkeys(f"{row['batch']} x {row['length']} tokens" for row in rows))
    what = f"Questions answered yes; ms by torch / ours (ratio); {shapes}, random weights, eager mode"
    return table(*language_models.table(rows), right_from=3) + "\n\n" + conditions(results, "models", what)


def row_operations(results: Results) -> str:
    """Times of softmax, norms and their backwards."""
    ceiling = results.files["rows"].get("copy_ceiling")
    head, lines = row_ops.table(results.files["rows"]["row_ops"], ceiling and ceiling["rate"])
    what = "Device time of `auto`; bytes that are read once and written once; speed-up over torch's functions"
    if ceiling:
        what += f"; the fastest copy has {ceiling['rate']:,.0f} GB/s ({ceiling['by']})"
    return table(head, lines, right_from=3) + "\n\n" + conditions(results, "rows", what)


def attention(results: Results) -> str:
    """Times of attention beside torch's flash kernels."""
    head, lines = attentions.table(results.files["attention"]["attention"])
    what = "Device time in bfloat16; bytes of keys and values, read once; speed-up over torch's flash kernels"
    return table(head, lines, right_from=3) + "\n\n" + conditions(results, "attention", what)


def row_rungs(results: Results) -> str:
    """Microseconds of each rung of softmax at some shapes."""
    rows = row_ops.with_rungs(results.files["rows"]["row_ops"])
    names = [*row_ops.RUNG_NAMES, row_ops.OURS, *bench.BASELINES]
    names = [name for name in names if any(name in row["us"] for row in rows)]
    lines = []
    for row in rows:
        cells = bold_least([significant(row["us"][name][0]) if name in row["us"] else "" for name in names])
        lines.append([f"{row['rows']:,} x {row['length']:,} {row['dtype']}", *cells])
    head = ["", *(name if name in bench.BASELINES else f"`{name}`" for name in names)]
    what = "softmax, µs by shape; fastest in bold, empty where a rung refuses the shape"
    return table(head, lines) + "\n\n" + conditions(results, "rows", what)


def counters_ladder(results: Results) -> str:
    """Nsight Compute's counters of the first pass of the rungs that reduce whole tensors."""
    first: dict[str, dict[str, float]] = {}
    launch: dict[str, str] = {}  # the first one of each rung's kernel
    for row in results.files["counters"]["points"]:
        rung, _, kernel = row["Kernel Name"].removeprefix("void ").partition("::")
        if kernel.startswith("kernel<") and launch.setdefault(rung, row["ID"]) == row["ID"]:
            first.setdefault(rung, {})[row["Metric Name"]] = float(row["Metric Value"].replace(",", ""))
    lines = []
    for name in (v.name for v in torch_reduce.variants("sum") if v.name in first):
        found = first[name]
        instructions = found["smsp__inst_executed.sum"]
        conflicts = found["l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum"]
        cells = [number(instructions / 1e6, 1), number(32 * instructions / LONG.n, 0), number(conflicts / 1e6)]
        lines.append([f"`{name}`", *cells, significant(found["gpu__time_duration.sum"] / 1e3)])
    head = ["rung", "warp instructions, millions", "instructions an element", "bank conflicts, millions", "kernel µs"]
    under = f"*Nsight Compute, the first pass over {LONG.n:,} float32, blocks of {LONG.block_size}, {results.gpu}.*"
    return table(head, lines) + "\n\n" + under


def counters_points(results: Results) -> str:
    """Nsight Compute's counters at points that are behind, with the two most frequent stall reasons."""
    lines = []
    for row in results.files["counters_points"]["points"]:
        shown = {
            **row,
            "shape": [int(size) for size in row["shape"].split("x")],
            "dim": [int(d) for d in row["dim"].split()] or None,
        }
        cells = [*what_of(shown), f"`{row['rung']}`" if row["rung"] else ""]
        cells.append(significant(float(row["ns"]) / 1e3))
        cells += [number(float(row[f"{name}_percent"]), 0) for name in ("dram", "l2", "issue", "occupancy")]
        lines.append([*cells, most_stalls(row, 2)])
    head = [*WHAT, "rung", "µs", "DRAM, %", "L2, %", "issue slots, %", "occupancy, %", "stalls"]
    return table(head, lines, len(WHAT) + 1) + (
        f"\n\n*Nsight Compute, cold caches, one launch each; percentages are of the peak, {results.gpu}.*"
    )


def counters_products(results: Results) -> str:
    """Nsight Compute's counters of products, a line a kernel."""
    lines = []
    for row in results.files["counters_products"]["points"]:
        sizes = [*row["batch"].split(), row["m"], row["n"], row["k"]]
        clock = float(row["cycles"]) / float(row["ns"])
        cells = [" x ".join(sizes), row["layout"], row["dtype"], f"`{row['kernel']}`", row["blocks"]]
        cells += [significant(float(row["ns"]) / 1e3), number(clock, 2)]
        cells += [number(float(row[f"{name}_percent"]), 0) for name in ("tensor", "dram", "l2", "issue", "occupancy")]
        lines.append(cells)
    head = ["m x n x k", "layout", "dtype", "kernel", "blocks", "µs", "GHz", "tensor cores, %", "DRAM, %", "L2, %"]
    return table([*head, "issue slots, %", "occupancy, %"], lines, 4) + (
        f"\n\n*Nsight Compute, cold caches, one launch each; percentages are of the peak, {results.gpu}.*"
    )


def error_cell(row: dict[str, Any] | None) -> str:
    if row is None:
        return ""
    cell = f"{row['relative']:.1e}" if row["relative"] else "0"
    return f"**{cell}**" if row["correctly_rounded"] else cell


def environment(results: Results) -> str:
    """What the figures were measured on."""
    about = results.environment()
    facts = about["device_facts"]
    lines = [
        ["device", f"{about['device_name']}, {facts['multiprocessors']} SMs, {facts['l2_bytes'] >> 20} MiB L2"
         if "multiprocessors" in facts else about["device_name"]],
        ["driver", about.get("driver")],
        ["torch", f"{about['torch']} (CUDA {about['torch_cuda']}), Python {about['python']}"],
        ["kernels", f"CUDA {about['cuda_toolkit']}, for {', '.join(about['cuda_architectures'])}"],
        ["commit", about.get("commit")],
        ["date", about["date"][:10]],
    ]  # fmt: skip
    return table(["", ""], [[k, v] for k, v in lines if v], right_from=2)


def ceilings(results: Results) -> str:
    """The two ceilings, in a sentence."""
    found = results.files["ladder"].get("ceilings")
    if not found:
        return NOT_MEASURED
    return (
        f"Ceilings on this {results.gpu}: {found['read'] / 1e9:,.0f} GB/s read ({found['read_by']}), "
        f"{found['copy'] / 1e9:,.0f} GB/s read and written ({found['copy_by']})."
    )


def differs(results: Results) -> str:
    """The gain of each published step, published and here."""
    found = {row.variant: row for row in at(results.rows("ladder"), shape=(LONG.n,))}
    here = {alias: found.get(torch_reduce.resolve("sum", alias)) for alias in cases.PUBLISHED_T4_MS}
    times = {alias: row.us for alias, row in here.items() if row and row.us}
    if "v0" not in times:
        return NOT_MEASURED
    published = cases.PUBLISHED_T4_MS
    lines = [
        ["published, T4: speed-up over v0", *(number(published["v0"] / ms) for ms in published.values())],
        [f"here, {results.gpu}: speed-up over v0",
         *(number(times["v0"] / times[a]) if a in times else "" for a in published)],
        [f"here, {results.gpu}: µs", *(significant(times.get(a)) for a in published)],
    ]  # fmt: skip
    what = f"Sum of {LONG.n:,} float32; here with blocks of {LONG.block_size} threads"
    return table(["", *published], lines) + "\n\n" + conditions(results, "ladder", what)


TABLES: dict[str, tuple[str, Callable[[Results], str]]] = {
    "ladder": ("ladder", readme_ladder),
    "environment": ("ladder", environment),
    "ceilings": ("ladder", ceilings),
    "sum_large": ("ladder", lambda r: sum_case(r, LONG)),
    "sum_small": ("ladder", lambda r: sum_case(r, SHORT)),
    "differs": ("ladder", differs),
    "sum_sizes": ("sizes", sum_sizes),
    "sum_blocks": ("blocks", sum_blocks),
    "sum_num_blocks": ("blocks", sum_num_blocks),
    "dtypes": ("dtypes", dtypes),
    "matmul": ("matmul", matmul),
    "matmul_ladder": ("matmul_ladder", matmul_ladder),
    "matmul_headline": ("matmul_ladder", matmul_headline),
    "matmul_summary": ("matmul_grid", matmul_summary),
    "matmul_readme": ("matmul_grid", matmul_readme),
    "matmul_points": ("matmul_grid", matmul_points),
    "matmul_few_rows": ("matmul_grid", matmul_few_rows),
    "matmul_accuracy": ("matmul_accuracy", matmul_accuracy),
    "matmul_kinds": ("matmul_kinds", matmul_kinds),
    "transformer": ("transformer", transformer),
    "transformer_step": ("transformer", transformer_step),
    "heads": ("heads", heads),
    "matmul_calls": ("matmul_calls", matmul_calls),
    "vector_add": ("vector_add", vector_add),
    "calls": ("calls", calls),
    "mode_calls": ("calls", mode_calls),
    "grid": ("grid", grid_table),
    "grid_summary": ("grid", grid_summary),
    "grid_readme": ("grid", grid_readme),
    "grid_ceiling": ("grid", grid_ceiling),
    "grid_shares": ("grid", grid_shares),
    "grid_floor": ("grid", grid_floor),
    "behind_mechanisms": ("grid", behind_mechanisms),
    "behind_points": ("grid", behind_points),
    "behind_product_mechanisms": ("matmul_grid", behind_product_mechanisms),
    "behind_products": ("matmul_grid", behind_products),
    "untuned": ("untuned", untuned),
    "overlap": ("overlap", overlap),
    "rungs": ("rungs", rungs),
    "cpu": ("cpu", cpu),
    "accuracy": ("accuracy", accuracy),
    "distributed_collectives": ("distributed", distributed_collectives),
    "distributed_sums": ("distributed", distributed_sums),
    "models": ("models", models),
    "rows": ("rows", row_operations),
    "row_rungs": ("rows", row_rungs),
    "attention": ("attention", attention),
    "counters_ladder": ("counters", counters_ladder),
    "counters_points": ("counters_points", counters_points),
    "counters_products": ("counters_products", counters_products),
}


def figure(results: Results, rung: str) -> str:
    """A rung's own line."""
    op, _, name = rung.rpartition(".")
    op = op or "sum"
    known = [v.name for v in torch_reduce.variants(op)]
    if name not in known:
        raise ValueError(f"<!-- figure:{rung} -->: {op} has no variant {name!r}; it has {', '.join(known)}")
    if op == "sum" and torch_reduce.variants(op)[known.index(name)].along_dims and name != "auto":
        return figure_along_dims(results, name)
    if op in ROW_OPS:
        return figure_of_rows(results, name)
    if op == "matmul" and "matmul_ladder" in results.files:
        found = product_tables.figure(results.rows("matmul_ladder"), name)
        return f"{'; '.join(found)} ({results.gpu})." if found else NOT_MEASURED
    suite = "ladder" if op == "sum" else op
    rows = [row for row in at(results.rows(suite), op=op, variant=name) if row.us]
    if op == "matmul":
        rows = [min(at(rows, shape=s), key=lambda r: r.us) for s in ((1024,) * 3, (4096,) * 3) if at(rows, shape=s)]
    elif op == "vector_add":
        rows = rows[-1:]
    else:
        rows.sort(key=lambda row: -row.shape[0])
    parts = [figure_part(row) for row in rows]
    return f"{'; '.join(parts)} ({results.gpu})." if parts else NOT_MEASURED


def figure_along_dims(results: Results, rung: str) -> str:
    """The two shapes of the suite `rungs` at which a rung is closest to `auto`."""
    points = [p for p in results.files.get("rungs", {}).get("points", []) if rung in p["us"] and "auto" in p["us"]]
    parts = []
    for point in sorted(points, key=lambda p: p["us"][rung][0] / p["us"]["auto"][0])[:2]:
        shape, dim = what_of(point)[:2]
        us = point["us"][rung][0]
        words = f"{shape} {point['dtype']}" + ("" if dim == "all" else f" along dim {dim}")
        words += f" in **{duration(us)}**, {significant(point['bytes'] / us / 1e3)} GB/s"
        parts.append(words + (f", {number(point['us']['torch'][0] / us)} x torch" if "torch" in point["us"] else ""))
    return f"{'; '.join(parts)} ({results.gpu})." if parts else NOT_MEASURED


def figure_of_rows(results: Results, rung: str) -> str:
    """The two shapes of the suite `rows` at which a rung is closest to `auto`."""
    found = results.files.get("rows", {}).get("row_ops", [])
    rows = [row for row in row_ops.with_rungs(found) if rung in row["us"]]
    parts = []
    for row in sorted(rows, key=lambda row: row["us"][rung][0] / row["us"][row_ops.OURS][0])[:2]:
        us = row["us"][rung][0]
        words = f"{row_ops.what_of(row)} in **{duration(us)}**, {significant(row['bytes'] / us / 1e3)} GB/s"
        parts.append(words + (f", {number(row['us']['torch'][0] / us)} x torch" if "torch" in row["us"] else ""))
    return f"{'; '.join(parts)} ({results.gpu})." if parts else NOT_MEASURED


def figure_part(row: Row) -> str:
    what = f"{row.shape[0]}^3" if row.op == "matmul" else f"{length(row.shape[0])} float32"
    sizes = ", ".join(f"{k.replace('_', ' ')} {v}" for k, v in row.sizes.items())
    words = [f"{what} in **{duration(row.us or 0)}**" + (f" ({sizes})" if sizes else "")]
    words.append(f"{significant(row.rate)} {row.rate_unit}")
    if row.percent_of_ceiling:
        words.append(f"{significant(row.percent_of_ceiling, 2)} % of the ceiling")
    if row.x_torch:
        words.append(f"{number(row.x_torch)} x torch")
    return ", ".join(words)


def rewrite(text: str, results: Results, where: str) -> str:
    """The text with everything between markers rewritten. Tables of suites that were not run stay as they are."""

    def block(found: re.Match[str]) -> str:
        name = found[1]
        if name not in TABLES:
            raise ValueError(f"{where}: no table is called {name!r}; there are {', '.join(TABLES)}")
        suite, make = TABLES[name]
        if suite not in results.files:
            return found[0]
        return f"<!-- {name}:begin -->\n{make(results)}\n<!-- {name}:end -->"

    text = re.sub(r"<!-- (\w+):begin -->.*?<!-- \1:end -->", block, text, flags=re.DOTALL)
    return re.sub(
        r"<!-- figure:([\w.]+) -->.*?<!-- /figure -->",
        lambda m: f"<!-- figure:{m[1]} -->{figure(results, m[1])}<!-- /figure -->",
        text,
        flags=re.DOTALL,
    )


NameOf = Callable[[dict[str, Any]], str]


class Picture:
    """A plot and what it is drawn from."""

    def __init__(self, title: str, drawn: Sequence[Any], draw: Callable[[Path, str, str], None]) -> None:
        self.title = title
        self.drawn = drawn
        self._draw = draw

    @functools.cached_property
    def digest(self) -> str:
        """A digest of all that the drawing depends on; the file contains it, so that a check need not draw."""
        parts = [self.title, *map(repr, self.drawn), Path(_plot.__file__).read_text()]
        return "drawn from " + hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]

    def up_to_date(self, path: Path) -> bool:
        return path.exists() and self.digest in path.read_text()

    def draw(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._draw(path, self.title, self.digest)


def rows_picture(results: Results, suite: str, op: str, title: str, rows: list[Row]) -> Picture | None:
    """Bars or lines of rows; None if none has a time."""
    ceiling = results.ceiling(suite, op)
    if not any(row.us for row in rows):
        return None
    return Picture(
        f"{title}, {results.gpu}", [ceiling, *rows],
        lambda path, title, digest: _plot.plot(rows, path, title, ceiling, digest),
    )  # fmt: skip


def grid_picture(results: Results) -> Picture | None:
    """A dot for each point and peer."""
    groups = {
        kind: [{name: p.x[name][0] for name in PEERS if p.x.get(name)} for p in results.grid if p.row["kind"] == kind]
        for kind in kinds_of(results.grid)
    }
    groups = {kind: [x for x in found if x] for kind, found in groups.items()}
    if not any(groups.values()):
        return None
    means = {
        name: geometric_mean([x[name] for found in groups.values() for x in found if name in x])
        for name in PEERS
        if any(name in x for found in groups.values() for x in found)
    }
    return Picture(
        f"Speed-up, point by point, {results.gpu}", [groups, means],
        lambda path, title, digest: _plot.ratios(groups, means, path, title, digest),
    )  # fmt: skip


def ladder_picture(results: Results) -> Picture | None:
    """The matmul ladder as shares of torch."""
    side = product_tables.HEADLINE
    rows = [row for row in results.rows("matmul_ladder") if row.shape[0] == side and row.us and row.x_torch]
    groups = {
        kind: {row.variant: (row.x_torch, row.rate) for row in rows if row.dtype == kind}
        for kind in cases.MATMUL_LADDER_KINDS
    }
    groups = {kind: found for kind, found in groups.items() if found}
    if not groups:
        return None
    return Picture(
        f"Matrix multiplication, {side} x {side} x {side}, {results.gpu}", [groups, PRODUCT_PLOTS.read_text()],
        lambda path, title, digest: product_plots.shares(groups, path, title, digest),
    )  # fmt: skip


def products_picture(results: Results) -> Picture | None:
    """A dot for each shape and kind of product."""
    rows = [row for row in products_of(results) if "torch" in row["x"]]
    groups: dict[str, list[dict[str, float]]] = {}
    for group in cases.MATMUL_GROUPS:
        points: dict[tuple[str, str], dict[str, float]] = {}
        for row in rows:
            if row["kind"] == group:
                points.setdefault((product_tables.shape_of(row), row["layout"]), {})[row["dtype"]] = row["x"]["torch"][
                    0
                ]
        if points:
            groups[group] = list(points.values())
    if not groups:
        return None
    means = {
        kind: geometric_mean([x[kind] for found in groups.values() for x in found if kind in x])
        for kind in cases.MATMUL_KINDS
        if any(kind in x for found in groups.values() for x in found)
    }
    groups = {group: [{k: v for k, v in x.items() if k in means} for x in found] for group, found in groups.items()}
    return Picture(
        f"Matrix multiplication: speed-up over torch, {results.gpu}",
        [groups, means, PRODUCT_PLOTS.read_text()],
        lambda path, title, digest: product_plots.ratios(groups, means, path, title, digest),
    )


def dots(results: Results, title: str, rows: list[dict[str, Any]], name: NameOf, label: NameOf) -> Picture:
    """A line of dots for each name of a product, with a label each."""
    names = list(dict.fromkeys(map(name, rows)))
    groups: dict[str, list[tuple[str, float]]] = {}
    for row in rows:
        groups.setdefault(label(row), []).append((name(row), row["x"][0]))
    return Picture(
        f"{title}, {results.gpu}", [names, groups, PRODUCT_PLOTS.read_text()],
        lambda path, title, digest: product_plots.dots(names, groups, path, title, digest),
    )  # fmt: skip


PRODUCT_PLOTS = Path(product_plots.__file__)


def pictures(results: Results) -> dict[str, Picture]:
    """By file name."""
    found: dict[str, Picture | None] = {}
    if "ladder" in results.files:
        # All have the block size of the title, so the bars' labels omit it.
        rows = [dataclasses.replace(row, block_size=None) for row in at(results.rows("ladder"), shape=(LONG.n,))]
        title = f"Sum of {LONG.n / 1e6:g} million float32, blocks of {LONG.block_size}"
        found["sum_ladder.svg"] = rows_picture(results, "ladder", "sum", title, rows)
    if "sizes" in results.files:
        found["sum_sizes.svg"] = rows_picture(results, "sizes", "sum", "Sum of float32", results.rows("sizes"))
    if "matmul" in results.files:
        square = [
            row for row in by_tile_size(results) if len(set(row.shape)) == 1 and row.shape[0] & (row.shape[0] - 1) == 0
        ]
        found["matmul.svg"] = rows_picture(results, "matmul", "matmul", "Matrix multiplication, float32", square)
    if "matmul_ladder" in results.files:
        found["matmul_ladder.svg"] = ladder_picture(results)
    if "matmul_grid" in results.files:
        found["matmul_grid.svg"] = products_picture(results)
    if "matmul_kinds" in results.files:
        rows = results.files["matmul_kinds"]["kinds"]
        title = "float32 products by kind of operand: speed-up over torch"
        found["matmul_kinds.svg"] = dots(results, title, rows, product_tables.kind_of, product_tables.shape_of)
    if "transformer" in results.files:
        rows = results.files["transformer"]["transformer"]
        title = "float32 products of a transformer block: speed-up over torch"
        found["transformer.svg"] = dots(results, title, rows, lambda row: row["name"], transformer_products.what_of)
    if "grid" in results.files:
        found["grid.svg"] = grid_picture(results)
    return {name: picture for name, picture in found.items() if picture}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; status 1 where something is out of date")
    parser.add_argument("--results", type=Path, metavar="DIR", help="default: the first folder in benchmarks/results")
    parser.add_argument("--root", type=Path, default=ROOT, help=argparse.SUPPRESS)
    args = parser.parse_args()
    folder = args.results
    if folder is None:
        folder = next((path.parent for path in sorted((ROOT / "benchmarks" / "results").glob("*/ladder.json"))), None)
    stale = ladders.bring_up_to_date(args.root, args.check)
    if folder is None or not list(folder.glob("*.json")):
        print("no results yet: benchmarks/run.py makes them on a GPU")
        return 1 if args.check and stale else 0
    on_cpu = [path.parent for path in sorted((ROOT / "benchmarks" / "results").glob("cpu-*/cpu.json"))][:1]
    others = [path for path in sorted((ROOT / "benchmarks" / "results").glob("*")) if not path.name.startswith("cpu")]
    results = Results(folder, *others, *on_cpu)
    for path in [args.root / "README.md", *sorted((args.root / "docs").glob("*.md"))]:
        before = path.read_text()
        after = rewrite(before, results, path.name)
        if after != before:
            stale.append(path)
            if not args.check:
                path.write_text(after)
    for name, picture in pictures(results).items():
        path = args.root / "docs" / "images" / name
        if not picture.up_to_date(path):
            stale.append(path)
            if not args.check:
                picture.draw(path)
    for path in stale:
        print(f"{'out of date' if args.check else 'written'}: {path.relative_to(args.root)}")
    return 1 if args.check and stale else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (ImportError, OSError, ValueError) as error:
        sys.exit(f"report.py: {error}")
