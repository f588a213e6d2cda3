"""Measures everything on this machine's GPU and writes a results file for each suite; report.py makes tables and plots.

Examples:
    python benchmarks/run.py
    python benchmarks/run.py --suite ladder sizes
    python benchmarks/run.py --smoke --device cpu --output DIR    does it run? small shapes, few samples
"""

import argparse
import contextlib
import dataclasses
import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cases
import torch
import torch.utils.benchmark
from checkout import ROOT
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

import torch_reduce
from torch_reduce import bench
from torch_reduce._device import Bandwidth, as_device

# The largest shapes of a smoke run.
SMOKE_LENGTH, SMOKE_SIDE = 1 << 12, 64


@dataclasses.dataclass
class Session:
    """What every suite needs."""

    device: torch.device
    settings: bench.Settings
    smoke: bool
    ceilings: Bandwidth | None
    step: Callable[[str], None]

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
        return bench.measure(
            op, shape, getattr(torch, dtype), chosen, self.device, self.settings, self.ceilings, baselines,
            lambda what: self.step(f"{where}: {what}"),
        )  # fmt: skip


def ladder(session: Session) -> list[bench.Row]:
    """Every rung that takes the block size, and auto as it is."""
    rows = []
    for n, block, _ in cases.LADDER:
        rungs = torch_reduce.variants("sum")
        chosen = [
            bench.Candidate("sum", v.name, block_size=block if v.size_name and v.name != "auto" else None)
            for v in rungs
            if not v.size_name or block in v.sizes
        ]
        rows += session.measure("sum", (n,), "float32", chosen)
    return rows


def sizes(session: Session) -> list[bench.Row]:
    """Some rungs over the length."""
    chosen = bench.candidates("sum", cases.SIZES_VARIANTS)
    return [row for n, _ in cases.SIZES for row in session.measure("sum", (n,), "float32", chosen)]


def blocks(session: Session) -> list[bench.Row]:
    """Every rung with every block size, and one with many numbers of blocks."""
    shape = (cases.BLOCKS_LENGTH.n,)
    chosen = [
        bench.Candidate("sum", v.name, block_size=size)
        for v in torch_reduce.variants("sum")
        if v.name != "auto"
        for size in v.sizes
    ]
    rows = session.measure("sum", shape, "float32", chosen, ("torch",))
    named = [cases.NUM_BLOCKS_VARIANT], [cases.NUM_BLOCKS_BLOCK], cases.NUM_BLOCKS
    return rows + session.measure("sum", shape, "float32", bench.candidates("sum", *named), ())


def dtypes(session: Session) -> list[bench.Row]:
    """auto beside torch, for every dtype."""
    chosen = bench.candidates("sum", ["auto"])
    return [
        row
        for n, _ in cases.DTYPES_LENGTHS
        for dtype in cases.DTYPES
        for row in session.measure("sum", (n,), dtype, chosen, ("torch",))
    ]


def matmul(session: Session) -> list[bench.Row]:
    """Every rung, with every tile size; torch in float32 without tensor cores, unless this torch's default says
    otherwise."""
    chosen = []
    for v in torch_reduce.variants("matmul"):
        chosen += [
            bench.Candidate("matmul", v.name, tile_size=s)
            for s in ((None,) if v.name == "auto" else v.sizes or (None,))
        ]
    return [
        row
        for *shape, _ in cases.MATMUL
        for row in session.measure("matmul", tuple(shape), "float32", chosen, ("torch",))
    ]


def vector_add(session: Session) -> list[bench.Row]:
    """Every rung."""
    chosen = bench.candidates("vector_add")
    return [row for n, _ in cases.VECTOR_ADD for row in session.measure("vector_add", (n,), "float32", chosen)]


def calls(session: Session) -> list[dict[str, Any]]:
    """What a call costs, in microseconds: ours and torch's in turn, in each of autograd's modes."""
    n = cases.CALLS_LENGTH.n
    rounds, number = (3, 20) if session.smoke else (31, 1000)
    statements = ("x.sum()", "torch_reduce.sum(x)", "torch.ops.treduce.sum(x)")
    found = []
    for mode in ("no grad", "grad", "inference mode"):
        session.step(f"calls: {mode}")
        x = torch.randn(n, device=session.device, requires_grad=mode == "grad")
        names = {"x": x, "torch": torch, "torch_reduce": torch_reduce}
        timers = {s: torch.utils.benchmark.Timer(s, globals=names) for s in statements}
        times: dict[str, list[float]] = {s: [] for s in statements}
        with torch.inference_mode(mode == "inference mode"):
            for _ in range(rounds):
                for statement, timer in timers.items():
                    times[statement].append(timer.timeit(number).median * 1e6)
        for statement, samples in times.items():
            q1, median, q3 = bench.quartiles(samples)
            found.append({"mode": mode, "n": n, "call": statement, "us": median, "us_q1": q1, "us_q3": q3})
    return found


SUITES: dict[str, Callable[[Session], list[Any]]] = {
    "ladder": ladder, "sizes": sizes, "blocks": blocks, "dtypes": dtypes, "matmul": matmul, "vector_add": vector_add,
    "calls": calls,
}  # fmt: skip


@contextlib.contextmanager
def progress() -> Iterator[Callable[[str, str], None]]:
    """A line on stderr, where that is a terminal; call what it gives with the suite and the step."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.fields[suite]}"), BarColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    # Drawn at each step and by no thread of its own, which would disturb what is timed.
    quiet = {"auto_refresh": False, "redirect_stdout": False, "redirect_stderr": False}
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal, **quiet) as bar:
        task = bar.add_task("", total=None, suite="")
        yield lambda suite, what: bar.update(task, suite=suite, description=what, refresh=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suite", nargs="+", choices=SUITES, default=list(SUITES), help="default: all")
    parser.add_argument("--output", type=Path, metavar="DIR", help="default: benchmarks/results/<gpu>")
    parser.add_argument("--device", help="cpu, cuda or cuda:1 (default: the GPU where there is one)")
    parser.add_argument(
        "--smoke", action="store_true", help="small shapes and few samples, to see that everything runs"
    )
    parser.add_argument("--commit", help="what to record as the commit where this is not a git checkout")
    args = parser.parse_args()
    device = as_device(args.device)
    if device.type == "cpu" and not args.smoke:
        parser.error("the ladder is timed on a GPU, and torch finds none that it can use; --smoke runs on a CPU")
    if args.smoke and args.output is None:
        parser.error("--smoke needs --output: its figures are worth nothing")
    output = args.output
    if output is None:
        output = ROOT / "benchmarks" / "results" / slug(torch.cuda.get_device_name(device))
    output.mkdir(parents=True, exist_ok=True)
    settings = bench.Settings()
    if args.smoke:
        settings = dataclasses.replace(
            bench.QUICK, seconds=0.0, least_samples=2, call_seconds=0.001, ceiling_bytes=1 << 24
        )

    wrong = []
    with progress() as show:
        ceilings = None
        if device.type == "cuda":
            show("ceilings", "")
            ceilings = bench.measure_bandwidth(device, settings)
        for suite in args.suite:
            start = time.monotonic()
            about = bench.environment(device, f"python benchmarks/run.py --suite {suite}")
            about["commit"] = about["commit"] or args.commit
            session = Session(device, settings, args.smoke, ceilings, lambda what, suite=suite: show(suite, what))
            found = SUITES[suite](session)
            if suite == "calls":
                data = {"environment": about, "calls": found}
            else:
                data = bench.as_json(found, about, ceilings)
                wrong += [f"{suite}: {r.label} {r.shape} {r.dtype}: {r.note}" for r in found if r.wrong]
            bench.write_json(output / f"{suite}.json", data)
            print(f"{suite}: {len(found)} rows in {time.monotonic() - start:.0f} s")
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


def slug(name: str) -> str:
    """`NVIDIA H200` as `nvidia-h200`."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


if __name__ == "__main__":
    sys.exit(main())
