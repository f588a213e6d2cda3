"""Plots of benchmark rows. Only this file imports matplotlib, which is optional."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ._tables import significant
from .bench import BASELINES, Row

_OURS, _AUTO, _TORCH, _COMPILE, _INK, _GRID = "#6f94bf", "#1b4f8a", "#e8601c", "#f4a261", "#222222", "#dddddd"
_LINES = ("#9aa5b1", "#4c9f70", "#9467bd", "#c9485b", "#8c6d31", "#17a2b8", "#d6619c", "#7fb800", "#5c6bc0", "#c7a008")
_MARKERS = "sDv^PXd<>p"


def plot(rows: Sequence[Row], path: Path | str, title: str, ceiling: float | None = None, digest: str = "") -> None:
    """Draws rows to a file: bars for one shape, lines over the size for several.

    Args:
        rows: of one op and dtype; rows without a time are skipped.
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
    with _figure(path, digest) as figure:
        draw(figure, timed, ceiling)
        figure.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold", color=_INK)


def ratios(
    groups: Mapping[str, Sequence[Mapping[str, float]]],
    means: Mapping[str, float],
    path: Path | str,
    title: str,
    digest: str = "",
) -> None:
    """Draws the speed-up over each peer: a dot for each point and peer, on a logarithmic axis.

    Args:
        groups: for each kind of point, the points; each has its ratios by peer.
        means: the peers and the geometric mean of each.
        path: as for `plot`.
        title: above the plot.
        digest: as for `plot`.

    Raises:
        ImportError: without matplotlib.
        ValueError: the file's type is unknown.
    """
    check_target(path)
    looks = {
        "torch": {"color": _AUTO, "marker": "o", "zorder": 4},
        "torch.compile": {"color": _TORCH, "marker": "s", "zorder": 3},
        "CUB": {"color": _LINES[1], "marker": "^", "zorder": 2},
    }
    with _figure(path, digest) as figure:
        figure.set_size_inches(13, 4.8)
        axes = _axes(figure)
        axes.set_yscale("log", base=2)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.axhline(1, color=_INK, linewidth=1.2, zorder=1)
        axes.grid(axis="y", color=_GRID, linewidth=0.8)
        places: dict[str, list[tuple[int, float]]] = {name: [] for name in means}
        start, ticks = 0, []
        for number, (kind, points) in enumerate(groups.items()):
            # In ascending order, so that a group reads as a curve.
            ordered = sorted(points, key=lambda x: x.get("torch", min(x.values())))
            for place, x in enumerate(ordered):
                for name, value in x.items():
                    places[name].append((start + place, value))
            if number % 2:
                axes.axvspan(start - 1, start + len(points), color="#f4f4f4", zorder=0, linewidth=0)
            ticks.append((start + (len(points) - 1) / 2, kind))
            start += len(points) + 1
        for name, found in places.items():
            axes.scatter(
                [x for x, _ in found], [y for _, y in found], s=15, linewidths=0,
                label=f"x {name}: {means[name]:.2f} (geometric mean of {len(found)})", **looks[name],
            )  # fmt: skip
        axes.set_xticks([x for x, _ in ticks], [kind for _, kind in ticks])
        axes.tick_params(axis="x", length=0)
        axes.set_xlim(-1.5, start)
        axes.set_ylabel("speed-up")
        axes.legend(frameon=False, fontsize=9, loc="lower left", bbox_to_anchor=(0, 1), ncols=3)
        figure.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold", color=_INK)


def check_target(path: Path | str) -> None:
    """Raises ValueError for an unknown type of file, ImportError without matplotlib."""
    if Path(path).suffix not in (".svg", ".png", ".pdf"):
        raise ValueError(f"a plot is written as .svg, .png or .pdf, got {str(path)!r}")
    try:
        import matplotlib  # noqa: F401  # optional: plots alone need it
    except ImportError as error:
        raise ImportError("plots need matplotlib: pip install matplotlib") from error


@contextlib.contextmanager
def _figure(path: Path | str, digest: str) -> Iterator[Any]:
    import matplotlib  # optional, see check_target
    from matplotlib.figure import Figure  # optional as well

    # No date and no random ids: the same rows give the same file.
    style = {"svg.hashsalt": "torch_reduce", "font.size": 10, "font.family": "DejaVu Sans", "axes.edgecolor": "#888888"}
    with matplotlib.rc_context(style):
        figure = Figure(figsize=(9, 5), layout="constrained")
        figure.patch.set_facecolor("white")
        yield figure
        metadata = {"Date": None, "Description": digest or None} if Path(path).suffix == ".svg" else None
        figure.savefig(path, dpi=160, metadata=metadata)


def _axes(figure: Any, *place: int) -> Any:
    axes = figure.add_subplot(*place)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_axisbelow(True)
    return axes


def _bars(figure: Any, rows: Sequence[Row], ceiling: float | None) -> None:
    """A horizontal bar a variant, the first rung at the top."""
    figure.set_size_inches(9, 1.5 + 0.29 * len(rows))
    axes = _axes(figure)
    axes.grid(axis="x", color=_GRID, linewidth=0.8)
    colors = {"torch": _TORCH, "torch.compile": _COMPILE, "auto": _AUTO}
    values = [r.rate or 0 for r in rows]
    axes.barh(range(len(rows)), values, color=[colors.get(r.variant, _OURS) for r in rows], height=0.74, zorder=2)
    torch_row = next((r for r in rows if r.variant == "torch"), None)
    if torch_row and torch_row.rate:
        axes.axvline(torch_row.rate, color=_TORCH, linewidth=1.2, linestyle=(0, (1, 2)), zorder=3)
    if ceiling:
        axes.axvline(ceiling, color=_INK, linewidth=1.2, linestyle=(0, (5, 3)), zorder=3)
        axes.annotate(
            f"ceiling {ceiling:,.0f}", (ceiling, 1), xycoords=("data", "axes fraction"), xytext=(0, 3),
            textcoords="offset points", ha="center", va="bottom", fontsize=8.5, color=_INK,
        )  # fmt: skip
    behind = {"boxstyle": "square,pad=0.1", "facecolor": "white", "edgecolor": "none", "alpha": 0.85}
    for place, row in enumerate(rows):
        axes.annotate(
            f"{significant(row.rate)}  ({_time(row.us or 0)})", (row.rate or 0, place), xytext=(5, 0),
            textcoords="offset points", va="center", fontsize=8.5, color=_INK, bbox=behind, zorder=4,
        )  # fmt: skip
    axes.set_yticks(range(len(rows)), [r.label for r in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel(rows[0].rate_unit)
    axes.xaxis.set_major_formatter(_with_commas)
    axes.set_xlim(0, max([*values, ceiling or 0]) * 1.17)


def _lines(figure: Any, rows: Sequence[Row], ceiling: float | None) -> None:
    """The rate over the size, a line a variant; beside it, if torch was timed, the speed-up over torch."""
    against_torch = any(r.variant == "torch" for r in rows)
    figure.set_size_inches(13 if against_torch else 9, 4.8)
    axes = _axes(figure, 1, 2 if against_torch else 1, 1)
    _draw_lines(axes, rows, lambda r: r.rate)
    axes.set_ylabel(rows[0].rate_unit)
    axes.yaxis.set_major_formatter(_with_commas)
    if ceiling:
        axes.axhline(ceiling, color=_INK, linewidth=1.2, linestyle=(0, (5, 3)))
        axes.set_ylim(top=1.08 * max([ceiling, *(r.rate or 0 for r in rows)]))
        axes.annotate(
            f"ceiling {ceiling:,.0f}", (0, ceiling), xycoords=("axes fraction", "data"), xytext=(4, 3),
            textcoords="offset points", va="bottom", fontsize=8.5, color=_INK,
        )  # fmt: skip
    if against_torch:
        axes = _axes(figure, 1, 2, 2)
        _draw_lines(axes, rows, lambda r: r.x_torch)
        axes.set_ylabel("speed-up over torch")
    axes.legend(frameon=False, fontsize=9, loc="upper left", bbox_to_anchor=(1.0, 1.0))


def _draw_lines(axes: Any, rows: Sequence[Row], value: Callable[[Row], float | None]) -> None:
    names = list(dict.fromkeys(r.label for r in rows))
    others = [name for name in names if name not in (*BASELINES, "auto")]
    fixed = {
        "torch": {"color": _TORCH, "linestyle": (0, (4, 2)), "marker": "o", "linewidth": 2.2},
        "torch.compile": {"color": _COMPILE, "linestyle": (0, (1, 1.5)), "marker": "o", "linewidth": 1.8},
        "auto": {"color": _AUTO, "marker": "o", "linewidth": 2.6, "zorder": 3},
    }
    for name in names:
        look = fixed.get(name)
        if look is None:
            i = others.index(name)
            look = {"color": _LINES[i % len(_LINES)], "marker": _MARKERS[i % len(_MARKERS)], "linewidth": 1.5}
        points = sorted((r.shape[0], value(r) or 0) for r in rows if r.label == name)
        axes.plot([x for x, _ in points], [y for _, y in points], markersize=4.5, label=name, **look)
    axes.set_xscale("log", base=2)
    places = sorted({r.shape[0] for r in rows})
    if len(places) <= 12:
        axes.set_xticks(places, [_place(x) for x in places])
        axes.minorticks_off()
    axes.set_xlabel("m = n = k" if rows[0].op == "matmul" else "elements")
    axes.set_ylim(bottom=0)
    axes.grid(color=_GRID, linewidth=0.8)


def _place(x: int) -> str:
    return f"$2^{{{x.bit_length() - 1}}}$" if x > 0 and x & (x - 1) == 0 else f"{x:,}"


def _with_commas(value: float, _: int) -> str:
    return f"{value:,.0f}" if value == round(value) else f"{value:g}"


def _time(us: float) -> str:
    return f"{us / 1000:,.2f} ms" if us >= 1000 else f"{significant(us)} µs"
