"""The tables of the command line, as rich renders them."""

from collections.abc import Iterable, Sequence

from rich.console import Group
from rich.table import Table
from rich.text import Text

from ._device import BuildInfo, DeviceInfo
from ._variants import COLUMNS, Variant
from .bench import BASELINES, Row


def plain_table() -> Table:
    """An empty table in the common style."""
    return Table(box=None, header_style="bold", pad_edge=False)


def titled(title: str, table: Table) -> Group:
    """A table under a title, which may be wider than the table."""
    return Group(Text(title, style="bold underline"), table)


def variants_table(rows: Iterable[Variant]) -> Table:
    """One line a variant: name, aliases, sizes, order class, what it needs, the idea."""
    table = plain_table()
    for name in COLUMNS:
        table.add_column(name, no_wrap=name != "idea")
    for v in rows:
        table.add_row(*map(Text, v.cells()))
    return table


def human_bytes(count: int) -> str:
    """`201326592` as `192 MiB`."""
    for unit, size in (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size:
            return f"{count / size:.4g} {unit}"
    return f"{count} bytes"


def _fact(name: str, value: int | str) -> tuple[str, str]:
    """A fact for people: its name without the unit, and its value with it."""
    if isinstance(value, str):
        return name.replace("_", " "), value
    if name.endswith("_khz"):
        return name[:-4].replace("_", " "), f"{value / 1000:,.0f} MHz"
    if "_bytes" in name or name.startswith("bytes"):
        return name.replace("_bytes", "").replace("_", " "), human_bytes(value)
    return name.replace("_", " "), f"{value:,}"


def device_table(info: DeviceInfo) -> Table:
    """A device's facts, one a line."""
    table = plain_table()
    table.add_column("fact")
    table.add_column("value", justify="right")
    facts = dict(info.facts)
    if "compute_capability_major" in facts:
        major, minor = facts.pop("compute_capability_major"), facts.pop("compute_capability_minor")
        table.add_row("compute capability", f"{major}.{minor}")
    for what in ("max_block", "max_grid"):
        axes = [facts.pop(f"{what}_{axis}") for axis in "xyz" if f"{what}_{axis}" in facts]
        if axes:
            facts[what] = " x ".join(f"{a:,}" for a in axes)
    for switch in ("cooperative_launch", "cluster_launch"):
        if switch in facts:
            facts[switch] = "yes" if facts[switch] else "no"
    for name, value in facts.items():
        table.add_row(*(Text(cell) for cell in _fact(name, value)))
    if info.bandwidth:
        table.add_row("measured read bandwidth", f"{info.bandwidth.read / 1e9:,.0f} GB/s")
        table.add_row("    by", Text(info.bandwidth.read_by))
        table.add_row("measured copy bandwidth", f"{info.bandwidth.copy / 1e9:,.0f} GB/s")
        table.add_row("    by", Text(info.bandwidth.copy_by))
    return table


def build_table(build: BuildInfo) -> Table:
    """How the extension was built, one fact a line."""
    table = plain_table()
    table.add_column("fact")
    table.add_column("value")
    for name, value in (
        ("torch_reduce", build.version),
        ("CUDA kernels", f"compiled by CUDA {build.cuda}" if build.cuda else "none: built for the CPU alone"),
        ("compiled for", ", ".join(build.architectures)),
        ("C++ compiler", f"{build.compiler}, C++{build.cpp_standard // 100 % 100}"),
        ("torch", build.torch + (f" (CUDA {build.torch_cuda})" if build.torch_cuda else " (no CUDA)")),
        ("Python", build.python),
    ):
        if value:
            table.add_row(name, Text(value))
    return table


def _number(value: float | None, pattern: str = "{:,.0f}") -> str:
    return "" if value is None else pattern.format(value)


def significant(value: float | None, digits: int = 3) -> str:
    """`3.45`, `34.5`, `345`, `3,451`: three digits, or all before the point."""
    if value is None:
        return ""
    before = len(str(int(abs(value))))
    return f"{value:,.{max(digits - before, 0)}f}"


def rows_table(rows: Sequence[Row]) -> Table:
    """Benchmark rows of one op, dtype and shape, one a line. The fastest is bold."""
    on_gpu = any(r.device == "cuda" for r in rows)
    table = plain_table()
    table.add_column("variant", no_wrap=True)
    names = ["µs", "spread", rows[0].rate_unit if rows else "GB/s"]
    names += ["% ceiling", "x torch", "call µs"] if on_gpu else ["x torch"]
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("")
    best = min((r.us for r in rows if r.us), default=None)
    for row in rows:
        spread = None
        if row.us and row.us_q1 is not None and row.us_q3 is not None:
            spread = 100 * (row.us_q3 - row.us_q1) / row.us
        cells = [row.label, significant(row.us), _number(spread, "{:.1f} %"), significant(row.rate)]
        cells += [_number(row.percent_of_ceiling, "{:.1f}")] if on_gpu else []
        cells += [_number(row.x_torch, "{:.2f}")]
        cells += [significant(row.call_us)] if on_gpu else []
        style = (
            "red" if row.wrong else "bold" if best and row.us == best else "cyan" if row.variant in BASELINES else ""
        )
        table.add_row(*(Text(cell) for cell in (*cells, row.note)), style=style)
    return table
