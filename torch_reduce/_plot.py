"""Plots of benchmark rows. matplotlib is asked for only here."""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from .bench import BASELINES, Row

_OURS, _AUTO, _TORCH, _COMPILE, _INK, _GRID = "#4c78a8", "#1b4f8a", "#ee6c2b", "#f2a65a", "#222222", "#dddddd"
_LINES = ("#1b4f8a", "#4c9f70", "#9467bd", "#c44e52", "#8c6d31", "#17a2b8", "#7f7f7f", "#d6619c", "#3b3b98", "#a2b93c")
_MARKERS = "os^DvPX*<>"


def plot(rows: Sequence[Row], path: Path | str, title: str, ceiling: float | None = None, digest: str = "") -> None:
    """Draws rows to a file: bars for one shape, lines over the size for several.

    Args:
        rows: of one op and dtype; those without a time are left out.
        path: a name that ends in .svg, .png or .pdf.
        title: above the plot.
        ceiling: the memory ceiling in GB/s, drawn as a line.
        digest: written into an SVG's metadata, so that a script can tell what it was drawn from.

    Raises:
        ImportError: without matplotlib.
        ValueError: no row has a time, or the file's type is unknown.
    """
    timed = [r for r in rows if r.us]
    if not timed:
        raise ValueError("nothing to plot: no row has a time")
    check_target(path)
    draw = _bars if len({r.shape for r in timed}) == 1 else _lines
    with _figure(path, digest) as (figure, axes):
        draw(figure, axes, timed, ceiling)
        axes.set_title(title, loc="left", fontsize=12, fontweight="bold", color=_INK, pad=14)


def check_target(path: Path | str) -> None:
    """Raises ValueError for a type of file that is not drawn, ImportError with what to do where there is no matplotlib."""
    if Path(path).suffix not in (".svg", ".png", ".pdf"):
        raise ValueError(f"a plot is written as .svg, .png or .pdf, got {str(path)!r}")
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ImportError("plots need matplotlib: pip install matplotlib") from error


@contextlib.contextmanager
def _figure(path: Path | str, digest: str) -> Iterator[tuple[Any, Any]]:
    import matplotlib
    from matplotlib.figure import Figure

    # No date and no random ids: the same rows give the same file.
    style = {"svg.hashsalt": "torch_reduce", "font.size": 10, "font.family": "DejaVu Sans", "axes.edgecolor": "#888888"}
    with matplotlib.rc_context(style):
        figure = Figure(figsize=(9, 5), layout="constrained")
        figure.patch.set_facecolor("white")
        axes = figure.add_subplot()
        axes.spines[["top", "right"]].set_visible(False)
        yield figure, axes
        metadata = {"Date": None, "Description": digest or None} if Path(path).suffix == ".svg" else None
        figure.savefig(path, dpi=160, metadata=metadata)


def _bars(figure: Any, axes: Any, rows: Sequence[Row], ceiling: float | None) -> None:
    """A horizontal bar a variant, from the first rung down, as the ladder is read."""
    figure.set_size_inches(9, 1.4 + 0.31 * len(rows))
    colors = {"torch": _TORCH, "torch.compile": _COMPILE, "auto": _AUTO}
    values = [r.rate or 0 for r in rows]
    places = range(len(rows))
    bars = axes.barh(places, values, color=[colors.get(r.variant, _OURS) for r in rows], height=0.74)
    for bar, row in zip(bars, rows, strict=True):
        text = f"{row.rate:,.0f}" if (row.rate or 0) >= 100 else f"{row.rate:.3g}"
        axes.annotate(
            f"{text}  ({_time(row.us or 0)})", (bar.get_width(), bar.get_y() + bar.get_height() / 2), xytext=(4, 0),
            textcoords="offset points", va="center", fontsize=8.5, color=_INK,
        )  # fmt: skip
    axes.set_yticks(places, [r.label for r in rows])
    axes.invert_yaxis()
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", color=_GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    unit = rows[0].rate_unit
    axes.set_xlabel(unit)
    longest = max([*values, ceiling or 0])
    axes.set_xlim(0, longest * 1.17)
    if ceiling:
        axes.axvline(ceiling, color=_INK, linewidth=1.2, linestyle=(0, (5, 3)))
        axes.annotate(
            f"ceiling {ceiling:,.0f}", (ceiling, 1), xycoords=("data", "axes fraction"), xytext=(0, 3),
            textcoords="offset points", ha="center", va="bottom", fontsize=8.5, color=_INK,
        )  # fmt: skip
    torch_row = next((r for r in rows if r.variant == "torch"), None)
    if torch_row and torch_row.rate:
        axes.axvline(torch_row.rate, color=_TORCH, linewidth=1.2, linestyle=(0, (1, 2)))


def _lines(_: Any, axes: Any, rows: Sequence[Row], ceiling: float | None) -> None:
    """The rate over the size, a line a variant."""
    matmul = rows[0].op == "matmul"
    names = list(dict.fromkeys(r.label for r in rows))
    ours = [name for name in names if name not in BASELINES]
    for name in names:
        points = sorted((r.shape[0], r.rate or 0) for r in rows if r.label == name)
        color, style, marker = _TORCH, (0, (4, 2)), "o"
        if name == "torch.compile":
            color, style = _COMPILE, (0, (1, 1.5))
        elif name not in BASELINES:
            place = ours.index(name)
            color, style, marker = _LINES[place % len(_LINES)], "-", _MARKERS[place % len(_MARKERS)]
        width = 2.4 if name in ("auto", "torch") else 1.5
        axes.plot(
            [x for x, _ in points], [y for _, y in points], color=color, linestyle=style, marker=marker, markersize=4,
            linewidth=width, label=name, zorder=3 if name == "auto" else 2,
        )  # fmt: skip
    axes.set_xscale("log", base=2)
    axes.set_xlabel("m = n = k" if matmul else "elements")
    axes.set_ylabel(rows[0].rate_unit)
    axes.set_ylim(bottom=0)
    axes.grid(color=_GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    if ceiling:
        axes.axhline(ceiling, color=_INK, linewidth=1.2, linestyle=(0, (5, 3)))
        axes.annotate(
            f"ceiling {ceiling:,.0f}", (0, ceiling), xycoords=("axes fraction", "data"), xytext=(4, 3),
            textcoords="offset points", va="bottom", fontsize=8.5, color=_INK,
        )  # fmt: skip
    axes.legend(frameon=False, fontsize=9, loc="upper left", bbox_to_anchor=(1.0, 1.0))


def _time(us: float) -> str:
    return f"{us / 1000:,.2f} ms" if us >= 1000 else f"{us:.3g} µs"
