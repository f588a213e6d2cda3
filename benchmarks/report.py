"""Writes the tables, figures and plots of the documents from the results files. No figure there is typed by hand.

Examples:
    python benchmarks/report.py            rewrites what is between the markers in README.md and docs/*.md, and
                                           docs/images
    python benchmarks/report.py --check    changes nothing; status 1 where something is out of date

Markers: `<!-- NAME:begin -->` and `<!-- NAME:end -->` around a table; `<!-- figure:RUNG -->` and `<!-- /figure -->`
around a line of figures, where RUNG is a rung of sum, or `matmul.naive`, or `vector_add.grid_1d`.
"""

import argparse
import dataclasses
import functools
import hashlib
import json
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import cases
from checkout import ROOT

import torch_reduce
from torch_reduce import _plot, bench
from torch_reduce._tables import significant
from torch_reduce.bench import Row

LONG, SHORT = cases.LADDER[1], cases.LADDER[0]
NOT_MEASURED = "*not measured yet*"


class Results:
    """The results files of one GPU."""

    def __init__(self, folder: Path) -> None:
        self.files = {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}

    def rows(self, suite: str) -> list[Row]:
        """No rows where the suite was not run."""
        return bench.rows_from_json(self.files[suite]) if suite in self.files else []

    def environment(self, suite: str | None = None) -> dict[str, Any]:
        names = [suite] if suite else ["ladder", *self.files]
        return next((self.files[n]["environment"] for n in names if n in self.files), {})

    def ceiling(self, suite: str, op: str) -> float | None:
        """In GB/s, measured with the suite."""
        ceilings = self.files.get(suite, {}).get("ceilings")
        return (ceilings["copy" if op == "vector_add" else "read"] / 1e9) if ceilings and op != "matmul" else None

    @property
    def gpu(self) -> str:
        return self.environment().get("device_name", "GPU")


def table(head: Sequence[str], rows: Iterable[Sequence[str]], right_from: int = 1) -> str:
    """A Markdown table; columns from `right_from` on are numbers."""
    rule = ["---" if i < right_from else "---:" for i in range(len(head))]
    lines = [head, rule, *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def number(value: float | None, decimals: int = 2) -> str:
    return "" if value is None else f"{value:,.{decimals}f}"


def length(n: int) -> str:
    """`2^20` where it is one, else `25.6 M`, else the digits."""
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
    """The line under a table: what, where, with which versions, when."""
    about = results.environment(suite)
    words = [what, about["device_name"], f"torch {about['torch']}"]
    if about.get("cuda_toolkit"):
        words.append(f"kernels by CUDA {about['cuda_toolkit']}")
    return f"*{', '.join(words)}; {about['date'][:10]}.*"


def readme_ladder(results: Results) -> str:
    """The whole ladder, the long case: what each rung is and what it reaches."""
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
        under += " `serial` is left out at this length: one thread would take seconds."
    return table(head, lines, right_from=3) + "\n\n" + under


def figures(row: Row | None) -> list[str]:
    if row is None or row.us is None:
        return ["", "", "", ""]
    return [significant(row.us), significant(row.rate), significant(row.percent_of_ceiling, 2), number(row.x_torch)]


def escape(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def timings(results: Results, suite: str, rows: Sequence[Row], what: str) -> str:
    """Every column that there is, for rows of one shape and dtype."""
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
    under = conditions(results, "sizes", "Sum of float32, µs, each rung with its own block size; the least in bold")
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
    what = f"Sum of {cases.BLOCKS_LENGTH.n:,} float32, µs by block size; the least of a rung in bold"
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


def matmul(results: Results) -> str:
    """TFLOP/s by shape and variant."""
    rows = results.rows("matmul")
    names = list(dict.fromkeys(name_of(row) for row in rows))
    lines = []
    for shape in dict.fromkeys(row.shape for row in rows):
        here = {name_of(row): row for row in at(rows, shape=shape)}
        side = f"{shape[0]}^3" if len(set(shape)) == 1 else " x ".join(map(str, shape))
        lines.append([side, *(significant(here[n].rate) if n in here else "" for n in names)])
    about = results.environment("matmul")
    what = (
        f"float32 (torch's matmul precision: {about['float32_matmul_precision']}), TFLOP/s; the number is the tile size"
    )
    under = conditions(results, "matmul", what)
    return table(["m x n x k", *names], lines) + f"\n\n{under}\n\n![Matrix multiplication](images/matmul.svg)"


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
    """Microseconds of a call by mode."""
    rows = results.files["calls"]["calls"]
    names = list(dict.fromkeys(row["call"] for row in rows))
    lines = []
    for mode in dict.fromkeys(row["mode"] for row in rows):
        here = {row["call"]: row["us"] for row in rows if row["mode"] == mode}
        lines.append([mode, *(number(here[n]) for n in names)])
    what = f"µs a call from Python, {rows[0]['n']:,} float32"
    return table(["", *(f"`{n}`" for n in names)], lines) + "\n\n" + conditions(results, "calls", what)


def environment(results: Results) -> str:
    """What was measured on what."""
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
    """What each published step gains, there and here."""
    found = {row.variant: row for row in at(results.rows("ladder"), shape=(LONG.n,))}
    here = {alias: found.get(torch_reduce.resolve("sum", alias)) for alias in cases.PUBLISHED_T4_MS}
    times = {alias: row.us for alias, row in here.items() if row and row.us}
    if "v0" not in times:
        return NOT_MEASURED
    published = cases.PUBLISHED_T4_MS
    lines = [
        ["published, T4: times as fast as v0", *(number(published["v0"] / ms) for ms in published.values())],
        [f"here, {results.gpu}: times as fast as v0",
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
    "vector_add": ("vector_add", vector_add),
    "calls": ("calls", calls),
}


def figure(results: Results, rung: str) -> str:
    """A rung's own line."""
    op, _, name = rung.rpartition(".")
    op = op or "sum"
    known = [v.name for v in torch_reduce.variants(op)]
    if name not in known:
        raise ValueError(f"<!-- figure:{rung} -->: {op} has no variant {name!r}; it has {', '.join(known)}")
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
    """The text with everything between markers made anew. Tables of suites that were not run stay as they are."""

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


class Picture:
    """A plot and the rows it is drawn from."""

    def __init__(self, results: Results, suite: str, op: str, title: str, rows: list[Row]) -> None:
        self.title = f"{title}, {results.gpu}"
        self.rows = rows
        self.ceiling = results.ceiling(suite, op)

    @functools.cached_property
    def digest(self) -> str:
        """Of all that the drawing depends on; written into the file, so that a check needs no drawing."""
        drawn = [self.title, self.ceiling, *map(repr, self.rows), Path(_plot.__file__).read_text()]
        return "drawn from " + hashlib.sha256("\n".join(map(str, drawn)).encode()).hexdigest()[:16]

    def up_to_date(self, path: Path) -> bool:
        return path.exists() and self.digest in path.read_text()

    def draw(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        _plot.plot(self.rows, path, self.title, self.ceiling, self.digest)


def pictures(results: Results) -> dict[str, Picture]:
    """By file name."""
    found = {}
    if "ladder" in results.files:
        # All have one block size, which the title says; so the bars carry bare names.
        rows = [dataclasses.replace(row, block_size=None) for row in at(results.rows("ladder"), shape=(LONG.n,))]
        title = f"Sum of {LONG.n / 1e6:g} million float32, blocks of {LONG.block_size}"
        found["sum_ladder.svg"] = Picture(results, "ladder", "sum", title, rows)
    if "sizes" in results.files:
        found["sum_sizes.svg"] = Picture(results, "sizes", "sum", "Sum of float32", results.rows("sizes"))
    if "matmul" in results.files:
        square = [
            row for row in results.rows("matmul") if len(set(row.shape)) == 1 and row.shape[0] & (row.shape[0] - 1) == 0
        ]
        found["matmul.svg"] = Picture(results, "matmul", "matmul", "Matrix multiplication, float32", square)
    return {name: picture for name, picture in found.items() if any(row.us for row in picture.rows)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; status 1 where something is out of date")
    parser.add_argument("--results", type=Path, metavar="DIR", help="default: the first folder in benchmarks/results")
    parser.add_argument("--root", type=Path, default=ROOT, help=argparse.SUPPRESS)
    args = parser.parse_args()
    folder = args.results
    if folder is None:
        folder = next((path.parent for path in sorted((ROOT / "benchmarks" / "results").glob("*/ladder.json"))), None)
    if folder is None or not list(folder.glob("*.json")):
        print("no results yet: benchmarks/run.py makes them on a GPU")
        return 0
    results = Results(folder)
    stale = []
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
