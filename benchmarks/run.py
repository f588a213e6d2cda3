"""Measures everything on this machine and writes a results file for each suite; report.py makes tables and plots.

Examples:
    python benchmarks/run.py                                       all suites of the GPU, or of the CPU if there is none
    python benchmarks/run.py --suite grid cub
    python benchmarks/run.py --suite compile --seconds 240         stops after 240 s; with --resume it continues
    python benchmarks/run.py --suite matmul_ladder matmul_grid matmul_accuracy matmul_calls
    python benchmarks/run.py --suite distributed                   on all GPUs of this machine
    python benchmarks/run.py --suite cpu                           writes benchmarks/results/cpu-*
    python benchmarks/run.py --smoke --device cpu --output DIR     smoke test: small shapes, few samples
"""

import argparse
import contextlib
import dataclasses
import json
import math
import platform
import re
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import accuracy as accuracies
import attention as attentions
import cases
import grid as grids
import head_products
import many_gpus
import mode_calls
import models as language_models
import overlap as overlaps
import peers
import product_errors
import product_kinds
import products
import row_ops
import torch
import torch.utils.benchmark
import transformer_products
from checkout import ROOT
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

import torch_reduce
from torch_reduce import bench
from torch_reduce._device import Bandwidth, as_device

# The largest shapes of a smoke run.
SMOKE_LENGTH, SMOKE_SIDE = 1 << 12, 64
# Points measured so far are written this often, in seconds, so that an interrupted run keeps them.
SAVE_SECONDS = 5.0

GRID_SETTINGS = bench.Settings(seconds=0.05, least_samples=7, most_samples=15, call_seconds=0)
# Few samples: some float32 products of the grid take 20 ms.
PRODUCTS_SETTINGS = bench.Settings(seconds=0.05, least_samples=5, most_samples=13, call_seconds=0)
PRODUCT_LADDER_SETTINGS = bench.Settings(seconds=0.05, least_samples=3, most_samples=9, call_seconds=0)
UNTUNED_SETTINGS = bench.Settings(seconds=0.03, least_samples=5, most_samples=9, call_seconds=0)
RUNGS_SETTINGS = bench.Settings(seconds=0.1, least_samples=3, most_samples=9, call_seconds=0)
CPU_SETTINGS = bench.Settings(seconds=0.15, least_samples=3, most_samples=9, call_seconds=0)
ROW_SETTINGS = bench.Settings(seconds=0.02, least_samples=5, most_samples=11, call_seconds=0)
# On a CPU, larger inputs of the grid are skipped.
CPU_BYTES, CPU_LENGTH = 300_000_000, 70_000_000


class Task(NamedTuple):
    """A point still to be measured."""

    name: str
    key: tuple[Any, ...]
    measure: Callable[[], grids.Result | products.Result]


@dataclasses.dataclass
class Session:
    """The state that every suite needs."""

    device: torch.device
    settings: bench.Settings
    smoke: bool
    ceilings: Bandwidth | None
    step: Callable[[str], None]
    save: Callable[[dict[str, Any]], None]
    """Writes the results so far."""
    earlier: dict[str, Any]
    """The existing results file, if the run resumes it; else empty."""
    deadline: float
    """By time.monotonic: no point starts later."""
    every_point: bool
    kinds: tuple[str, ...]
    """The kinds of points to measure; others are skipped."""
    wrong: list[str] = dataclasses.field(default_factory=list)
    """Why the run fails."""
    left: int = 0
    """Points that were not measured for lack of time."""

    def measure(
        self,
        op: str,
        shape: tuple[int, ...],
        dtype: str,
        chosen: list[bench.Candidate],
        baselines: tuple[str, ...] = bench.BASELINES,
    ) -> list[bench.Row]:
        if self.smoke:
            shape = tuple(min(x, SMOKE_SIDE if op == "matmul" else SMOKE_LENGTH) for x in shape)
        where = f"{op} {dtype} {'x'.join(map(str, shape))}"
        rows = bench.measure(
            op, shape, getattr(torch, dtype), chosen, self.device, self.settings, self.ceilings, baselines,
            lambda what: self.step(f"{where}: {what}"),
        )  # fmt: skip
        self.wrong += [f"{r.label} {r.shape} {r.dtype}: {r.note}" for r in rows if r.wrong]
        return rows

    def products(self, chosen: Iterable[cases.MatmulPoint], settings: bench.Settings) -> dict[str, Any]:
        """The data of a suite of products, with its ceilings."""
        if self.smoke:
            settings = dataclasses.replace(self.settings, seconds=0.0)
            chosen = [smaller_product(point) for point in chosen]
        done = {products.key(row): row for row in self.earlier.get("products", ())}
        rate = self.ceilings.read if self.ceilings else None
        tasks = [
            Task(
                f"{dtype} {'x'.join(map(str, (*point.batch, point.m, point.n, point.k)))} {point.layout}",
                products.key_of(point, dtype),
                lambda point=point, dtype=dtype: products.measure(point, dtype, self.device, settings, rate),
            )
            for point in dict.fromkeys(chosen)
            for dtype in point.dtypes
        ]
        return self.each("products", tasks, done, {"ceilings": self.data([])["ceilings"]})

    def points(
        self,
        chosen: Iterable[cases.Point],
        candidates: Callable[[cases.Point], list[grids.Candidate]],
        settings: bench.Settings,
        floors: peers.Floors | None = None,
        device: torch.device | None = None,
        close: float = grids.CLOSE,
    ) -> dict[str, Any]:
        """The data of a suite of points; points in the earlier file are not measured again."""
        device = device or self.device
        if self.smoke:
            settings = dataclasses.replace(self.settings, seconds=0.0)
            chosen = [smaller(point) for point in chosen]
        done = {grids.key(row): row for row in self.earlier.get("points", ())}
        head = {"floors": floors_json(floors)} if floors else {}
        tasks = [
            Task(
                f"{point.op} {point.dtype} {'x'.join(map(str, point.shape))} {point.dim or ''} {point.layout}",
                grids.key(point),
                lambda point=point: grids.measure(point, candidates(point), device, settings, close),
            )
            for point in dict.fromkeys(chosen)
            if point.kind not in cases.KINDS or point.kind in self.kinds
        ]
        return self.each("points", tasks, done, head)

    def each(
        self, what: str, tasks: Iterable["Task"], done: dict[tuple[Any, ...], dict[str, Any]], head: dict[str, Any]
    ) -> dict[str, Any]:
        """The rows of all points that time allows; points that are done are not measured again."""
        rows: list[dict[str, Any]] = []
        saved = time.monotonic()
        for task in tasks:
            if task.key in done:
                rows.append(done[task.key])
                continue
            if time.monotonic() > self.deadline:
                self.left += 1
                continue
            self.step(task.name)
            result = task.measure()
            rows.append(result.as_json())
            if result.wrong:
                self.wrong.append(f"{task.name}: {result.notes}")
            if time.monotonic() - saved > SAVE_SECONDS:
                self.save({**head, what: rows})
                saved = time.monotonic()
        return {**head, what: rows}

    def peers(self, *wanted: tuple[str, ...]) -> tuple[peers.Peers | None, peers.Floors | None]:
        """The compiled libraries and the floors; none on a CPU."""
        if self.device.type != "cuda":
            return None, None
        self.step("compiling")
        libraries = peers.Peers(self.device, [(), *wanted])
        self.step("floors")
        most = 1 << 28 if self.smoke else 1 << 32
        return libraries, peers.measure_floors(libraries, dataclasses.replace(self.settings, seconds=0.02), most)

    def data(self, rows: list[bench.Row]) -> dict[str, Any]:
        """Rows and ceilings, as the results file has them."""
        found = bench.as_json(rows, {}, self.ceilings)
        return {"ceilings": found["ceilings"], "rows": found["rows"]}


def smaller(point: cases.Point) -> cases.Point:
    """A point, reduced for a smoke run."""
    most = SMOKE_LENGTH if len(point.shape) == 1 else max(4, int(SMOKE_LENGTH ** (1 / len(point.shape))))
    return point._replace(shape=tuple(min(size, most) for size in point.shape))


def smaller_product(point: cases.MatmulPoint) -> cases.MatmulPoint:
    """As `smaller`."""
    sizes = (min(size, SMOKE_SIDE // 2) for size in (point.m, point.n, point.k))
    return point._replace(batch=tuple(min(size, 2) for size in point.batch), **dict(zip("mnk", sizes, strict=True)))


def floors_json(floors: peers.Floors) -> dict[str, Any]:
    """Formats the floors: microseconds, and GB/s by bytes."""
    return {
        "nothing_us": round(floors.nothing_us, 3),
        "word_us": round(floors.word_us, 3),
        "read": {str(size): round(rate, 1) for size, rate in floors.read.items()},
        "read_by": {str(size): by for size, by in floors.read_by.items()},
    }


def ladder(session: Session) -> dict[str, Any]:
    """Every rung that takes the block size, and auto."""
    rows = []
    for n, block, _ in cases.LADDER:
        rungs = torch_reduce.variants("sum")
        chosen = [
            bench.Candidate("sum", v.name, block_size=block if v.size_name and v.name != "auto" else None)
            for v in rungs
            if not v.size_name or block in v.sizes
        ]
        rows += session.measure("sum", (n,), "float32", chosen)
    return session.data(rows)


def sizes(session: Session) -> dict[str, Any]:
    """Some rungs at many lengths."""
    chosen = bench.candidates("sum", cases.SIZES_VARIANTS)
    return session.data([row for n, _ in cases.SIZES for row in session.measure("sum", (n,), "float32", chosen)])


def blocks(session: Session) -> dict[str, Any]:
    """Every rung with every block size, and one with many numbers of blocks."""
    shape = (cases.BLOCKS_LENGTH.n,)
    chosen = [
        bench.Candidate("sum", v.name, block_size=size)
        for v in torch_reduce.variants("sum")
        if not v.along_dims
        for size in v.sizes
    ]
    rows = session.measure("sum", shape, "float32", chosen, ("torch",))
    named = [cases.NUM_BLOCKS_VARIANT], [cases.NUM_BLOCKS_BLOCK], cases.NUM_BLOCKS
    return session.data(rows + session.measure("sum", shape, "float32", bench.candidates("sum", *named), ()))


def dtypes(session: Session) -> dict[str, Any]:
    """auto and torch, for every dtype."""
    chosen = bench.candidates("sum", ["auto"])
    return session.data(
        [
            row
            for n, _ in cases.DTYPES_LENGTHS
            for dtype in cases.DTYPES
            for row in session.measure("sum", (n,), dtype, chosen, ("torch",))
        ]
    )


def matmul(session: Session) -> dict[str, Any]:
    """Every rung, with every tile size; torch in float32 without tensor cores, unless its default differs."""
    chosen = []
    for v in torch_reduce.variants("matmul"):
        chosen += [
            bench.Candidate("matmul", v.name, tile_size=s)
            for s in ((None,) if v.name == "auto" else v.sizes or (None,))
        ]
    return session.data(
        [
            row
            for *shape, _ in cases.MATMUL
            for row in session.measure("matmul", tuple(shape), "float32", chosen, ("torch",))
        ]
    )


def matmul_ladder(session: Session) -> dict[str, Any]:
    """Every rung with every kind of product that it takes, and torch. tf32 stands for the rungs that read float32
    without all of its bits."""
    settings = session.settings if session.smoke else PRODUCT_LADDER_SETTINGS
    rows: list[bench.Row] = []
    before: dict[tuple[str, str], tuple[int, float]] = {}
    earlier = bench.rows_from_json(session.earlier) if session.earlier else []
    for side, _ in cases.MATMUL_LADDER[:2] if session.smoke else cases.MATMUL_LADDER:
        for kind in cases.MATMUL_LADDER_KINDS:
            if kind == "float64" and side > cases.MATMUL_LADDER_FLOAT64:
                continue
            if done := [row for row in earlier if (row.shape[0], row.dtype) == (side, kind)]:
                rows += done
                before |= {(kind, row.variant): (side, row.us / 1e3) for row in done if row.us}
                continue
            chosen, late = [], []
            for v in torch_reduce.variants("matmul"):
                if not takes_kind(v, kind):
                    continue
                earlier_side, ms = before.get((kind, v.name), (side, 0.0))
                candidate = bench.Candidate("matmul", v.name)
                slow = ms * (side / earlier_side) ** 3 > cases.MATMUL_LADDER_MS
                (late if slow else chosen).append(candidate)
            if time.monotonic() > session.deadline:
                session.left += 1
                continue
            with products.precision(kind) as dtype:
                found = dataclasses.replace(session, settings=settings).measure(
                    "matmul", (side,) * 3, str(dtype).removeprefix("torch."), chosen, ("torch",)
                )
            before |= {(kind, row.variant): (side, row.us / 1e3) for row in found if row.us}
            note = f"skipped: a call would take more than {cases.MATMUL_LADDER_MS:g} ms"
            found += [
                bench.Row(**dataclasses.asdict(c), shape=(side,) * 3, dtype=kind, device=session.device.type, note=note)
                for c in late
            ]
            rows += [dataclasses.replace(row, dtype=kind) for row in found]
        session.save(session.data(rows))
    return session.data(rows)


def takes_kind(v: torch_reduce.Variant, kind: str) -> bool:
    """Whether a rung of matmul computes products of a kind; `auto` computes all."""
    if kind not in ("float32", "tf32"):
        return kind in v.dtypes
    return "float32" in v.dtypes and (v.name == "auto" or (v.float32_bits < 22) == (kind == "tf32"))


def matmul_grid(session: Session) -> dict[str, Any]:
    """auto and torch, for every shape, layout and kind of product."""
    return session.products(cases.MATMUL_GRID, PRODUCTS_SETTINGS)


def matmul_accuracy(session: Session) -> dict[str, Any]:
    """Errors of float32 products, ours and torch's, against float64."""
    side = SMOKE_SIDE if session.smoke else cases.MATMUL_ACCURACY_SIDE
    return product_errors.measure(side, session.device, session.step)


def matmul_kinds(session: Session) -> dict[str, Any]:
    """float32 products of operands of many kinds, ours and torch's: times and errors."""
    rows = []
    for shape, kind, both in product_kinds.cases():
        session.step(f"{shape} {kind}")
        smoke = tuple(min(size, SMOKE_SIDE) for size in shape) if session.smoke else shape
        rows.append(
            product_kinds.measure(
                smoke, kind, both, session.device, PRODUCTS_SETTINGS if not session.smoke else session.settings
            )
        )
    return {"kinds": rows}


def transformer(session: Session) -> dict[str, Any]:
    """The float32 products of a transformer block on the operands of a step, and whole steps, ours and torch's."""
    size = transformer_products.transformer.SIZES["small" if session.smoke else "large"]
    settings = session.settings if session.smoke else PRODUCTS_SETTINGS
    return transformer_products.measure(size, session.device, settings, session.step, session.save)


def heads(session: Session) -> dict[str, Any]:
    """The products of attention's heads in shapes of known models, ours and torch's."""
    chosen, settings = head_products.CASES, PRODUCTS_SETTINGS
    if session.smoke:
        chosen, settings = head_products.SMOKE, session.settings
    return {"heads": head_products.measure(chosen, session.device, settings, session.step)}


def matmul_calls(session: Session) -> dict[str, Any]:
    """The CPU time of a call of matmul and of linear in microseconds: ours and torch's alternately, in each of
    autograd's modes. The GPU is synchronised between samples, not within."""
    rounds, number = (3, 5) if session.smoke else (15, 100)
    found = []
    for case in cases.MATMUL_CALLS:
        for mode in ("no grad", "grad", "inference mode"):
            session.step(f"{case.side}^3 {case.dtype} {mode}")
            dtype = getattr(torch, case.dtype)
            side = min(case.side, SMOKE_SIDE) if session.smoke else case.side
            x, w = (torch.randn(side, side, device=session.device, dtype=dtype) for _ in range(2))
            x.requires_grad_(mode == "grad")
            w.requires_grad_(mode == "grad")
            names = {"x": x, "w": w, "torch": torch, "torch_reduce": torch_reduce}
            # torch's timer would synchronise the GPU within the sample.
            timers = {
                by: torch.utils.benchmark.Timer(s, globals=names, timer=time.perf_counter)
                for by, s in PRODUCT_CALLS.items()
            }
            times: dict[str, list[float]] = {by: [] for by in timers}
            contexts = {"no grad": torch.no_grad, "inference mode": torch.inference_mode}
            with contexts.get(mode, contextlib.nullcontext)():
                for _ in range(rounds):
                    for by, timer in timers.items():
                        if session.device.type == "cuda":
                            torch.cuda.synchronize(session.device)
                        times[by].append(timer.timeit(number).median * 1e6)
            us = {}
            for by, samples in times.items():
                q1, median, q3 = bench.quartiles(samples)
                us[by] = [float(f"{v:.5g}") for v in (median, q1, q3)]
            row = {"side": side, "dtype": case.dtype, "mode": mode, "calls": PRODUCT_CALLS, "us": us}
            found.append(row)
    return {"calls": found}


PRODUCT_CALLS = {
    "torch": "torch.matmul(x, w)",
    "torch_reduce": "torch_reduce.matmul(x, w)",
    "torch.ops": "torch.ops.treduce.matmul(x, w)",
    "torch linear": "torch.nn.functional.linear(x, w)",
    "torch_reduce linear": "torch_reduce.linear(x, w)",
}


def vector_add(session: Session) -> dict[str, Any]:
    """Every rung."""
    chosen = bench.candidates("vector_add")
    rows = [row for n, _ in cases.VECTOR_ADD for row in session.measure("vector_add", (n,), "float32", chosen)]
    return session.data(rows)


def rungs(session: Session) -> dict[str, Any]:
    """Every rung along dims that takes the shape, and auto."""
    names = [v.name for v in torch_reduce.variants("sum") if v.along_dims and v.name != "auto"]

    def chosen(point: cases.Point) -> list[grids.Candidate]:
        taken = [n for n in names if n != "thread" or grids.length(point) <= cases.RUNGS_THREAD_LENGTH]
        return [*(grids.rung(point, name) for name in taken), grids.torch_eager(point)]

    points = [cases.Point("rungs", *geometry) for geometry in cases.RUNGS]
    return session.points(points, chosen, RUNGS_SETTINGS, close=0.0)


def grid(session: Session) -> dict[str, Any]:
    """Every point: auto and torch; and the floors."""
    _, floors = session.peers()
    return session.points(cases.GRID, lambda point: [grids.torch_eager(point)], GRID_SETTINGS, floors)


def compiled(session: Session) -> dict[str, Any]:
    """The points marked for it: auto and torch.compile, which compiles each shape by itself."""
    if session.device.type != "cuda":
        return {"points": []}
    chosen = [point for point in cases.GRID if point.compiled or session.every_point]
    return session.points(chosen, lambda point: [grids.torch_compile(point)], GRID_SETTINGS)


def cub(session: Session) -> dict[str, Any]:
    """Every point for which CUB has a function: auto and CUB."""
    chosen = [point for point in cases.GRID if grids.cub_applies(point)]
    libraries, _ = session.peers(*((point.op, point.dtype) for point in chosen))
    if libraries is None:
        return {"points": []}
    return session.points(chosen, lambda point: [grids.cub(point, libraries)], GRID_SETTINGS)


def untuned(session: Session) -> dict[str, Any]:
    """Shapes that no schedule was tuned for: auto and every peer, timed alternately."""
    libraries = None
    if session.device.type == "cuda":
        session.step("compiling")
        wanted = dict.fromkeys((point.op, point.dtype) for point in cases.UNTUNED if grids.cub_applies(point))
        libraries = peers.Peers(session.device, wanted)

    def candidates(point: cases.Point) -> list[grids.Candidate]:
        chosen = [grids.torch_eager(point)]
        if libraries is not None:
            chosen.append(grids.torch_compile(point))
            if grids.cub_applies(point):
                chosen.append(grids.cub(point, libraries))
        return chosen

    return session.points(cases.UNTUNED, candidates, UNTUNED_SETTINGS)


def overlap(session: Session) -> dict[str, Any]:
    """Short sums, ours and torch's, alone, in a chain and behind a kernel of torch's."""
    settings = dataclasses.replace(session.settings, seconds=0.0) if session.smoke else UNTUNED_SETTINGS
    rows = []
    for point in map(smaller, cases.OVERLAP) if session.smoke else cases.OVERLAP:
        session.step(f"overlap {point.shape} {point.dim or ''}")
        rows.append(overlaps.measure(point, session.device, settings))
        session.wrong += [rows[-1]["wrong"]] if rows[-1]["wrong"] else []
    return {"overlap": rows}


def cpu(session: Session) -> dict[str, Any]:
    """The grid's points that are not too large, and products of one row, on the CPU: auto and torch."""
    chosen = [p for p in cases.GRID if grids.bytes_of(p) <= CPU_BYTES and math.prod(p.shape) <= CPU_LENGTH]
    products = session.products(cases.CPU_PRODUCTS, CPU_SETTINGS)["products"]
    points = session.points(
        [cases.CPU_ROWS, *chosen], lambda point: [grids.torch_eager(point)], CPU_SETTINGS, device=torch.device("cpu"),
        close=0.0,
    )  # fmt: skip
    return {**points, "products": products}


def accuracy(session: Session) -> dict[str, Any]:
    """Errors of float32 sums on the distributions of the tests, and the time of each way to add."""
    lengths = [n for n, _ in cases.ACCURACY_LENGTHS]
    if session.smoke:
        lengths = [SMOKE_LENGTH]
    elif session.device.type != "cuda":
        lengths = lengths[:1]
    return accuracies.measure(lengths, session.device, session.settings, session.step)


def models(session: Session) -> dict[str, Any]:
    """Models of transformers: the six questions and times, by torch and in batch_invariant."""
    if not language_models.available():
        print("models: transformers is not installed: nothing to measure")
        return {"models": []}
    done = {language_models.key(row): row for row in session.earlier.get("models", ())}
    rows: list[dict[str, Any]] = []
    for case in language_models.CASES[: 1 if session.smoke else None]:
        if case not in done and time.monotonic() > session.deadline:
            session.left += 1
            continue
        session.step(str(case))
        rows.append(done.get(case) or language_models.measure(case, session.device, session.smoke))
        session.save({"models": rows})
    return {"models": rows}


def row_operations(session: Session) -> dict[str, Any]:
    """softmax, norms and their backwards, beside torch, torch.compile and, for some shapes, every rung."""
    settings = dataclasses.replace(session.settings, seconds=0.0) if session.smoke else ROW_SETTINGS
    done = {row_ops.key(row): row for row in session.earlier.get("row_ops", ())}
    rows: list[dict[str, Any]] = []
    chosen = row_ops.CASES
    if session.smoke:  # one shape of each op
        ops = {case.op: case for case in reversed(chosen) if case.dtype == "float32"}
        chosen = tuple(
            case._replace(rows=4, length=min(case.length, SMOKE_SIDE), compiled=False, rungs=case.op == "softmax")
            for case in ops.values()
        )
    ceiling = session.earlier.get("copy_ceiling")
    if ceiling is None:
        session.step("a copy")
        ceiling = row_ops.copy_ceiling(session.device, settings, 1 << (20 if session.smoke else 30))
    for case in chosen:
        if case not in done and time.monotonic() > session.deadline:
            session.left += 1
            continue
        session.step(str(case))
        rows.append(done.get(case) or row_ops.measure(case, session.device, settings))
        if rows[-1]["wrong"]:
            session.wrong.append(f"{case}: {rows[-1]['notes']}")
        session.save({"copy_ceiling": ceiling, "row_ops": rows})
    return {"copy_ceiling": ceiling, "row_ops": rows}


def attention(session: Session) -> dict[str, Any]:
    """Attention, forward, with gradients and of one query, beside torch's flash kernels."""
    settings = dataclasses.replace(session.settings, seconds=0.0) if session.smoke else ROW_SETTINGS
    done = {attentions.key(row): row for row in session.earlier.get("attention", ())}
    rows: list[dict[str, Any]] = []
    chosen = attentions.CASES
    if session.smoke:
        chosen = tuple(dict.fromkeys(case._replace(batch=2, heads=2, tokens=SMOKE_SIDE) for case in chosen))
    for case in chosen:
        if case not in done and time.monotonic() > session.deadline:
            session.left += 1
            continue
        session.step(str(case))
        rows.append(done.get(case) or attentions.measure(case, session.device, settings))
        if rows[-1]["wrong"]:
            session.wrong.append(f"{case}: {rows[-1]['notes']}")
        session.save({"attention": rows})
    return {"attention": rows}


def calls(session: Session) -> dict[str, Any]:
    """The time of a call in microseconds: ours and torch's alternately, in each of autograd's modes."""
    rounds, number = (3, 20) if session.smoke else (31, 1000)
    found = []
    for case in cases.CALLS:
        shape = cases.CALLS_SHAPE if case.arguments else (cases.CALLS_LENGTH.n,)
        statements = statements_of(case)
        for mode in ("no grad", "grad", "inference mode"):
            session.step(f"calls: {case.op} {case.arguments} {mode}")
            x = torch.randn(shape, device=session.device, requires_grad=mode == "grad")
            names = {"x": x, "torch": torch, "torch_reduce": torch_reduce}
            timers = {by: torch.utils.benchmark.Timer(s, globals=names) for by, s in statements.items()}
            times: dict[str, list[float]] = {by: [] for by in statements}
            with torch.inference_mode() if mode == "inference mode" else contextlib.nullcontext():
                for _ in range(rounds):
                    for by, timer in timers.items():
                        times[by].append(timer.timeit(number).median * 1e6)
            us = {}
            for by, samples in times.items():
                q1, median, q3 = bench.quartiles(samples)
                us[by] = [float(f"{v:.5g}") for v in (median, q1, q3)]
            found.append({"mode": mode, "shape": shape, "calls": statements, "us": us})
    session.step("calls in batch_invariant")
    return {"calls": found, "mode_calls": mode_calls.measure(session.device, rounds, number)}


def statements_of(case: cases.Call) -> dict[str, str]:
    """The call as users write it: torch's, ours, and the op's."""
    first, *rest = case.arguments.split(", ", 1) if not case.arguments.startswith("(") else [case.arguments]
    named = ", ".join([f"dim={first}", *rest]) if first else ""
    return {
        "torch": f"x.{case.op}({case.arguments})",
        "torch_reduce": f"torch_reduce.{case.op}({', '.join(filter(None, ['x', case.arguments]))})",
        "torch.ops": f"torch.ops.treduce.{case.op}({', '.join(filter(None, ['x', named]))})",
    }


def distributed(session: Session) -> dict[str, Any]:
    """Collectives and sums of DTensors on all GPUs of this machine; in a smoke run, on two processes of the CPU."""
    data = many_gpus.measure(session.device, session.smoke, session.step, session.save)
    session.wrong += [f"{row['op']} {row}" for row in data["sharded"] if row.get("wrong")]
    return data


class Suite(NamedTuple):
    run: Callable[[Session], dict[str, Any]]
    on: str
    """The device on which it runs by default: "cuda", "cpu" or "both"; "gpus": CUDA, if there are several."""


SUITES = {
    "ladder": Suite(ladder, "cuda"), "sizes": Suite(sizes, "cuda"), "blocks": Suite(blocks, "cuda"),
    "dtypes": Suite(dtypes, "cuda"), "rungs": Suite(rungs, "cuda"), "grid": Suite(grid, "cuda"),
    "compile": Suite(compiled, "cuda"), "cub": Suite(cub, "cuda"), "untuned": Suite(untuned, "cuda"),
    "overlap": Suite(overlap, "cuda"),
    "matmul": Suite(matmul, "cuda"),
    "matmul_ladder": Suite(matmul_ladder, "cuda"), "matmul_grid": Suite(matmul_grid, "cuda"),
    "matmul_accuracy": Suite(matmul_accuracy, "cuda"), "matmul_calls": Suite(matmul_calls, "cuda"),
    "matmul_kinds": Suite(matmul_kinds, "cuda"), "transformer": Suite(transformer, "cuda"),
    "heads": Suite(heads, "cuda"),
    "vector_add": Suite(vector_add, "cuda"), "calls": Suite(calls, "cuda"), "accuracy": Suite(accuracy, "both"),
    "cpu": Suite(cpu, "cpu"), "distributed": Suite(distributed, "gpus"),
    "models": Suite(models, "cuda"), "rows": Suite(row_operations, "cuda"), "attention": Suite(attention, "cuda"),
}  # fmt: skip


@contextlib.contextmanager
def progress() -> Iterator[Callable[[str, str], None]]:
    """A progress line on stderr, if that is a terminal. Yields a function to call with the suite and the step."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.fields[suite]}"), BarColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    # Drawn at each step, not by a thread of its own, which would disturb the timing.
    quiet = {"auto_refresh": False, "redirect_stdout": False, "redirect_stderr": False}
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal, **quiet) as bar:
        task = bar.add_task("", total=None, suite="")
        yield lambda suite, what: bar.update(task, suite=suite, description=what, refresh=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suite", nargs="+", choices=SUITES, help="default: those of the device")
    parser.add_argument("--output", type=Path, metavar="DIR", help="default: benchmarks/results/<gpu>, or cpu-<what>")
    parser.add_argument("--device", help="cpu, cuda or cuda:1 (default: the GPU where there is one)")
    parser.add_argument(
        "--smoke", action="store_true", help="small shapes and few samples, to see that everything runs"
    )
    parser.add_argument("--commit", help="what to record as the commit, where the checkout does not know it")
    parser.add_argument(
        "--seconds", type=float, metavar="S", help="begin no point of a grid after that time, all suites together"
    )
    parser.add_argument("--resume", action="store_true", help="keep the points that are in the results files already")
    parser.add_argument(
        "--kind", nargs="+", choices=cases.KINDS, default=list(cases.KINDS), help="of points of the grid"
    )
    parser.add_argument("--every-point", action="store_true", help="compile: all points, not the marked ones alone")
    args = parser.parse_args()
    device = as_device(args.device)
    usual = (device.type, "both", *(["gpus"] if torch.cuda.device_count() > 1 else []))
    suites = args.suite or [name for name, suite in SUITES.items() if args.smoke or suite.on in usual]
    gpu_alone = [name for name in suites if SUITES[name].on in ("cuda", "gpus")]
    if device.type == "cpu" and gpu_alone and not args.smoke:
        parser.error(f"{', '.join(gpu_alone)}: for a GPU, and torch finds none that it can use; --smoke runs on a CPU")
    if args.smoke and args.output is None:
        parser.error("--smoke needs --output: its figures are worth nothing")
    settings = bench.Settings()
    if args.smoke:
        settings = dataclasses.replace(
            bench.QUICK, seconds=0.0, least_samples=2, most_samples=2, call_seconds=0, sample_seconds=1e-5,
            ceiling_bytes=1 << 24,
        )  # fmt: skip
    deadline = time.monotonic() + (args.seconds or float("inf"))

    wrong = []
    with progress() as show:
        ceilings = None
        if device.type == "cuda" and any(SUITES[name].run in WITH_CEILINGS for name in suites):
            show("ceilings", "")
            ceilings = bench.measure_bandwidth(device, settings)
        for name in suites:
            start = time.monotonic()
            here = torch.device("cpu") if name == "cpu" else device
            output = args.output or ROOT / "benchmarks" / "results" / folder(here)
            output.mkdir(parents=True, exist_ok=True)
            path = output / f"{name}.json"
            about = bench.environment(here, f"python benchmarks/run.py --suite {name}")
            about["commit"] = args.commit or about["commit"]

            def save(data: dict[str, Any], path: Path = path, about: dict[str, Any] = about) -> None:
                bench.write_json(path, {"environment": about, **data})

            earlier = json.loads(path.read_text()) if args.resume and path.exists() else {}
            session = Session(
                here, settings, args.smoke, ceilings, lambda what, name=name: show(name, what), save, earlier, deadline,
                args.every_point, tuple(args.kind),
            )  # fmt: skip
            data = SUITES[name].run(session)
            if earlier.get("floors"):
                data = {**data, "floors": earlier["floors"]}
            save(data)
            rows = sum(len(value) for value in data.values() if isinstance(value, list))
            left = f", {session.left} points left: --resume goes on" if session.left else ""
            print(f"{name}: {rows} rows in {time.monotonic() - start:.0f} s{left}", flush=True)
            for line in digest(data):
                print(line, flush=True)
            wrong += [f"{name}: {line}" for line in session.wrong]
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


def digest(data: dict[str, Any]) -> Iterator[str]:
    """A summary of a grid: means, points that are hardly faster, large points that are slow."""
    points = data.get("points", [])
    for peer in ("torch", "torch.compile", "CUB"):
        ratios = sorted(((row["x"][peer], row) for row in points if peer in row["x"]), key=lambda pair: pair[0][0])
        if not ratios:
            continue
        mean = statistics.geometric_mean(median for (median, *_), _ in ratios)
        yield f"  x {peer}: {len(ratios)} points, geometric mean {mean:.3f}, least {ratios[0][0][0]:.3f}"
        for (median, low, high), row in ratios:
            if median < grids.CLOSE:
                yield f"    {median:.3f} ({low:.3f} to {high:.3f}) {in_words(row)}"
    yield from digest_of_products(data)
    yield from (f"  {line}" for line in language_models.summary(data.get("models", [])))
    yield from (f"  {line}" for line in row_ops.summary(data.get("row_ops", [])))
    yield from (f"  {line}" for line in attentions.summary(data.get("attention", [])))
    yield from (f"  {line}" for line in overlaps.summary(data.get("overlap", [])))
    yield from (f"  {line}" for line in transformer_products.summary(data))
    if "errors" in data and "frobenius" in data["errors"][0]:
        worse = product_errors.worse_than_torch(data["errors"])
        yield f"  auto is further from the truth than torch float32 in {len(worse)} cases"
        yield from (f"    {line}" for line in worse)
    if "floors" in data:
        ceiling = max(data["floors"]["read"].values())
        yield f"  floors: {json.dumps(data['floors'])}"
        for row in points:
            rate = row["bytes"] / row["us"]["auto"][0] / 1e3 if "auto" in row["us"] else math.inf
            least = 0.97 if row["bytes"] >= 1 << 28 else 0.92 if row["bytes"] >= 1 << 26 else 0.0
            if row["kind"] in ("whole", "bytes") and rate < least * ceiling:
                yield f"    {rate:,.0f} GB/s, {100 * rate / ceiling:.1f} % of the ceiling: {in_words(row)}"


def digest_of_products(data: dict[str, Any]) -> Iterator[str]:
    """A summary: means by dtype and kind, and points slower than torch or, with few rows, than reading the weights."""
    rows = data.get("products", [])
    for dtype in dict.fromkeys(row["dtype"] for row in rows):
        for kind in cases.MATMUL_GROUPS:
            ratios = [r["x"]["torch"][0] for r in rows if (r["kind"], r["dtype"]) == (kind, dtype) and r["x"]]
            if ratios:
                mean = statistics.geometric_mean(ratios)
                yield f"  {dtype}, {kind}: {len(ratios)} points, geometric mean {mean:.3f}, least {min(ratios):.3f}"
    for row in rows:
        share = row.get("weights_us", 0.0) / row["us"]["auto"][0] if "auto" in row["us"] else 0.0
        behind = bool(row["x"]) and row["x"]["torch"][0] < 1
        if behind or 0 < share < 0.85:
            shape = "x".join(map(str, (*row["batch"], row["m"], row["n"], row["k"])))
            of_weights = f", {100 * share:.0f} % of the weights' time" if share else ""
            times = ", ".join(f"{by} {us:.2f} µs" for by, (us, *_) in row["us"].items())
            yield f"    {row['dtype']} {shape} {row['layout']} {row['rung']}: {times}{of_weights}"


def in_words(row: dict[str, Any]) -> str:
    times = ", ".join(f"{name} {us:.2f} µs" for name, (us, *_) in row["us"].items())
    what = (
        f"{row['op']} {row['dtype']} {'x'.join(map(str, row['shape']))} dim {row['dim']} {row['layout']} {row['rung']}"
    )
    return f"{what.rstrip()}: {times}"


# The suites that use bench's ceilings.
WITH_CEILINGS = (ladder, sizes, blocks, dtypes, matmul, matmul_grid, vector_add)


def folder(device: torch.device) -> str:
    """`NVIDIA H200` as `nvidia-h200`; a CPU by what matters: `cpu-x86-64-avx512-2-threads`."""
    if device.type == "cuda":
        return slug(torch.cuda.get_device_name(device))
    simd = torch.backends.cpu.get_cpu_capability()
    return slug(f"cpu {platform.machine()} {simd} {torch.get_num_threads()} threads")


def slug(name: str) -> str:
    """`NVIDIA H200` as `nvidia-h200`."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


if __name__ == "__main__":
    sys.exit(main())
