"""Plots of matmul: the ladder's share of torch's speed, the speed-up over torch at the grid's points, and by name."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from torch_reduce import _plot

_COLORS = {"float32": "#1b4f8a", "tf32": "#c9485b", "float16": "#9467bd", "bfloat16": "#e8601c", "float64": "#4c9f70"}
_MARKERS = {"float32": "o", "tf32": "s", "float16": "^", "bfloat16": "v", "float64": "D"}
# Of groups of dots, of which there are at most so many.
_STYLES = (*zip(_COLORS.values(), _MARKERS.values(), strict=True), ("#7f7f7f", "P"), ("#17a2b8", "X"))
_INK, _GRID = "#222222", "#dddddd"


def shares(groups: Mapping[str, Mapping[str, tuple[float, float]]], path: Path, title: str, digest: str) -> None:
    """Bars of each kind's rungs: per cent of torch's speed for that kind, with TFLOP/s beside them.

    Args:
        groups: by kind, by rung: (speed-up over torch, TFLOP/s).
        path: where to.
        title: above the plot.
        digest: written into the SVG's metadata.
    """
    with _plot._figure(path, digest) as figure:
        count = max(len(rungs) for rungs in groups.values())
        across = 2 if len(groups) > 1 else 1
        down = -(-len(groups) // across)
        figure.set_size_inches(6.5 * across, (0.9 + 0.27 * count) * down + 0.4)
        for place, (kind, rungs) in enumerate(groups.items()):
            axes = _plot._axes(figure, down, across, place + 1)
            axes.grid(axis="x", color=_GRID, linewidth=0.8)
            percents = [100 * x for x, _ in rungs.values()]
            axes.barh(range(len(rungs)), percents, color=_COLORS.get(kind, _INK), height=0.72, zorder=2)
            axes.axvline(100, color=_INK, linewidth=1.2, linestyle=(0, (5, 3)), zorder=3)
            for i, (x, rate) in enumerate(rungs.values()):
                axes.annotate(
                    f"{100 * x:.0f} %  ({rate:,.3g} TFLOP/s)", (100 * x, i), xytext=(4, 0), textcoords="offset points",
                    va="center", fontsize=8, color=_INK, zorder=4,
                    bbox={"boxstyle": "square,pad=0.1", "facecolor": "white", "edgecolor": "none", "alpha": 0.85},
                )  # fmt: skip
            axes.set_yticks(range(len(rungs)), list(rungs))
            axes.set_ylim(len(rungs) - 0.4, -0.6)
            axes.tick_params(axis="y", length=0)
            axes.set_xlim(0, max([100, *percents]) * 1.4)
            axes.set_title(f"{kind}: % of torch in {kind}", loc="left", fontsize=10, color=_INK)
        figure.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold", color=_INK)


def ratios(
    groups: Mapping[str, Sequence[Mapping[str, float]]], means: Mapping[str, float], path: Path, title: str, digest: str
) -> None:
    """A dot for each shape and kind of product, on a logarithmic axis.

    Args:
        groups: by group, the points; each has its speed-up over torch, by kind.
        means: the geometric mean of each kind.
        path: where to.
        title: above the plot.
        digest: written into the SVG's metadata.
    """
    with _plot._figure(path, digest) as figure:
        figure.set_size_inches(13, 4.8)
        axes = _plot._axes(figure)
        axes.set_yscale("log", base=2)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.axhline(1, color=_INK, linewidth=1.2, zorder=1)
        axes.grid(axis="y", color=_GRID, linewidth=0.8)
        places: dict[str, list[tuple[int, float]]] = {kind: [] for kind in means}
        start, ticks = 0, []
        for number, (group, points) in enumerate(groups.items()):
            for place, x in enumerate(points):
                for kind, value in x.items():
                    places[kind].append((start + place, value))
            if number % 2:
                axes.axvspan(start - 1, start + len(points), color="#f4f4f4", zorder=0, linewidth=0)
            ticks.append((start + (len(points) - 1) / 2, group))
            start += len(points) + 1
        for kind, found in places.items():
            axes.scatter(
                [x for x, _ in found], [y for _, y in found], s=22, linewidths=0, color=_COLORS[kind],
                marker=_MARKERS[kind], label=f"{kind}: {means[kind]:.2f} in the geometric mean of {len(found)}",
                zorder=3,
            )  # fmt: skip
        axes.set_xticks([x for x, _ in ticks], [group.replace(" ", "\n", 1) for _, group in ticks])
        axes.tick_params(axis="x", length=0)
        axes.set_xlim(-1.5, start)
        axes.set_ylabel("speed-up over torch")
        axes.legend(frameon=False, fontsize=9, loc="lower left", bbox_to_anchor=(0, 1), ncols=3)
        figure.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold", color=_INK)


def dots(
    names: Sequence[str], groups: Mapping[str, Sequence[tuple[str, float]]], path: Path, title: str, digest: str
) -> None:
    """A line of dots for each name: the speed-up over torch in each group, on a logarithmic axis.

    Args:
        names: of the lines, from above.
        groups: by label, the names of the lines and the speed-ups there.
        path: where to.
        title: above the plot.
        digest: written into the SVG's metadata.
    """
    with _plot._figure(path, digest) as figure:
        figure.set_size_inches(9, 0.24 * len(names) + 1.6)
        axes = _plot._axes(figure)
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.axvline(1, color=_INK, linewidth=1.2, zorder=1)
        axes.grid(axis="both", color=_GRID, linewidth=0.8)
        for (label, found), (color, marker) in zip(groups.items(), _STYLES[: len(groups)], strict=True):
            axes.scatter(
                [x for _, x in found], [names.index(name) for name, _ in found], s=30, linewidths=0, color=color,
                marker=marker, label=label, zorder=3,
            )  # fmt: skip
        axes.set_yticks(range(len(names)), names, fontsize=8)
        axes.set_ylim(len(names) - 0.4, -0.6)
        axes.set_xlabel("speed-up over torch")
        axes.legend(frameon=False, fontsize=9, loc="lower left", bbox_to_anchor=(0, 1), ncols=3)
        figure.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold", color=_INK)
