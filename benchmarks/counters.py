"""What Nsight Compute counts.

    python benchmarks/counters.py points        the points of behind.counted, which are behind torch, torch.compile or CUB in
                                                benchmarks/results/<gpu>, as `auto` reduces them; runs ncu itself, writes
                                                counters_points.csv there, of which report.py makes a table
    python benchmarks/counters.py products      the same for cases.COUNTED_PRODUCTS and the products furthest behind torch
                                                (products_behind.counted): counters_products.csv, a line a kernel

    ncu --clock-control none --csv --metrics \
        smsp__inst_executed.sum,l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum,smsp__thread_inst_executed_per_inst_executed.ratio,dram__bytes_read.sum,gpu__time_duration.sum \
        python benchmarks/counters.py ladder > benchmarks/results/nvidia-h200/counters.csv
                                                every sum rung once over 25.6 M floats
"""  # noqa: E501

import argparse
import csv
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import behind
import cases
import grid
import products
import products_behind
import torch
from checkout import ROOT

import torch_reduce

N, BLOCK = 25_600_000, 256

# Columns of the file and their metrics. Stalls: cycles that a warp waits for a reason, for each instruction issued.
STALL = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
STALLS = ("long_scoreboard", "short_scoreboard", "barrier", "membar", "lg_throttle", "mio_throttle", "wait")
METRICS = {
    "ns": "gpu__time_duration.sum",
    "dram_percent": "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
    "l2_percent": "lts__throughput.avg.pct_of_peak_sustained_elapsed",
    "issue_percent": "smsp__issue_active.avg.pct_of_peak_sustained_active",
    "occupancy_percent": "sm__warps_active.avg.pct_of_peak_sustained_active",
    "instructions": "smsp__inst_executed.sum",
    "warp_cycles": "smsp__average_warp_latency_per_inst_issued.ratio",
    **{name: STALL.format(name) for name in STALLS},
}
PRODUCT_METRICS = {
    **{name: METRICS[name] for name in ("ns", "dram_percent", "l2_percent", "issue_percent", "occupancy_percent")},
    "tensor_percent": "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed",
    "cycles": "sm__cycles_elapsed.max",
}
POINT = ("op", "dtype", "shape", "dim", "layout")
PRODUCT = ("m", "n", "k", "batch", "layout", "dtype", "kernel", "blocks")
# ncu's error if only root may read counters.
FORBIDDEN = "ERR_NVGPUCTRPERM"


def run_ladder() -> None:
    x = torch.randn(N, device="cuda")
    for variant in torch_reduce.variants("sum"):
        if variant.name not in ("serial", "auto"):
            torch_reduce.sum(x, variant=variant.name, block_size=BLOCK)
    torch_reduce.sum(x)
    torch.cuda.synchronize()


def results() -> Path:
    """The folder of this GPU's results."""
    return ROOT / "benchmarks" / "results" / torch.cuda.get_device_name().lower().replace(" ", "-")


def run_points() -> None:
    """One kernel a point, in their order."""
    for point in behind.counted(results()):
        x = grid.tensor(point, torch.device("cuda"), grid.random_values)
        with torch.no_grad():
            grid.ours(point)(x)
        torch.cuda.synchronize()
        del x


def counted_products(folder: Path) -> list[tuple[cases.MatmulPoint, str]]:
    """The products to count, each once, with their kinds."""
    found: dict[tuple[str, ...], tuple[cases.MatmulPoint, str]] = {}
    for point in (*cases.COUNTED_PRODUCTS, *products_behind.counted(folder)):
        for kind in point.dtypes:
            found.setdefault(product_key({**point._asdict(), "dtype": kind}), (point, kind))
    return list(found.values())


def product_key(row: Mapping[str, Any]) -> tuple[str, ...]:
    """The identity of a product, from a row of the grid or of a file of counters."""
    batch = row["batch"] if isinstance(row["batch"], str) else " ".join(map(str, row["batch"]))
    return (*(str(row[name]) for name in ("m", "n", "k", "layout", "dtype")), batch)


def run_products() -> None:
    for point, kind in counted_products(results()):
        with products.precision(kind) as dtype:
            a, b = products.operands(point, dtype, torch.device("cuda"))
            torch.ones(1, device="cuda").add_(1)  # marks the start of a product: see count_products
            torch_reduce.matmul(a, b)
            torch.cuda.synchronize()
            del a, b


def count(what: str, kernels: str, metrics: dict[str, str]) -> list[dict[str, str]]:
    """Runs this file with `what` under ncu. Returns a row for each kernel whose mangled name matches: a cell for each
    metric, and the name."""
    ncu = shutil.which("ncu") or "/usr/local/cuda/bin/ncu"
    command = [
        ncu,
        "--clock-control",
        "none",
        "--csv",
        "--kernel-name-base",
        "mangled",
        "--print-kernel-base",
        "mangled",
    ]
    command += ["--kernel-name", f"regex:{kernels}", "--metrics", ",".join(metrics.values())]
    command += [sys.executable, __file__, what]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PYTHONWARNINGS": "ignore"})
    if FORBIDDEN in done.stdout + done.stderr:
        raise PermissionError(f"ncu may not read the GPU's counters on this machine ({FORBIDDEN}): nothing is written")
    lines = done.stdout.splitlines()
    begin = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    if done.returncode or begin is None:
        raise RuntimeError("ncu counted nothing:\n" + "\n".join((done.stdout + done.stderr).splitlines()[-15:]))
    found: dict[str, dict[str, str]] = {}
    columns = {metric: name for name, metric in metrics.items()}
    for row in csv.DictReader(lines[begin:]):
        kernel = found.setdefault(row["ID"], {"name": row["Kernel Name"], "blocks": row["Grid Size"]})
        if row["Metric Name"] in columns:
            kernel[columns[row["Metric Name"]]] = row["Metric Value"].replace(",", "")
    return list(found.values())


# As compilers write the namespace into a name.
OURS = "7treduce"


def count_points() -> list[dict[str, str]]:
    """A row a point."""
    points, kernels = behind.counted(results()), count("run", OURS, METRICS)
    if len(kernels) != len(points):
        raise RuntimeError(f"{len(kernels)} kernels for {len(points)} points: it must be one for each")
    return [
        described(point) | {name: kernel[name] for name in METRICS}
        for point, kernel in zip(points, kernels, strict=True)
    ]


def short_name(mangled: str) -> str:
    """`split::finish` of _ZN7treduce6matmul5split6finishI..."""
    names, rest = [], mangled.removeprefix("_Z").removeprefix("N").removeprefix("K")
    while match := re.match(r"\d+", rest):
        end = match.end() + int(match[0])
        names.append(rest[match.end() : end])
        rest = rest[end:]
    # A namespace without a name has one of the compiler's.
    return "::".join(name for name in names if name not in ("treduce", "matmul") and not name.startswith("_GLOBAL__N_"))


def count_products() -> list[dict[str, str]]:
    """A row for each kernel of each product, in their order: the mark before a product is a kernel of torch."""
    rows, which = [], -1
    asked = counted_products(results())
    for kernel in count("run_products", f"{OURS}|AddFunctor|CUDAFunctorOnSelf_add|CUDAFunctor_add", PRODUCT_METRICS):
        if OURS not in kernel["name"]:
            which += 1
            continue
        point, kind = asked[which]
        about = {"m": point.m, "n": point.n, "k": point.k, "batch": " ".join(map(str, point.batch))}
        about |= {"layout": point.layout, "dtype": kind, "kernel": short_name(kernel["name"])}
        about |= {"blocks": kernel["blocks"].strip("()").split(",")[0]}
        rows.append({name: str(value) for name, value in about.items()} | {n: kernel[n] for n in PRODUCT_METRICS})
    if which + 1 != len(asked):
        raise RuntimeError(f"{which + 1} products counted of {len(asked)}")
    return rows


def described(point: cases.Point) -> dict[str, str]:
    return {
        "op": point.op,
        "dtype": point.dtype,
        "shape": "x".join(map(str, point.shape)),
        "dim": "" if point.dim is None else " ".join(map(str, point.dim)),
        "layout": point.layout,
        "rung": torch_reduce.plan(point.op, grid.on_meta(point), point.dim).rung,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    runs = {"ladder": run_ladder, "run": run_points, "run_products": run_products}
    parser.add_argument("what", choices=("points", "products", *runs), nargs="?", default="ladder")
    parser.add_argument("--output", type=Path, help="default: the GPU's folder in benchmarks/results")
    given = parser.parse_args()
    if given.what in runs:
        runs[given.what]()
        return 0
    path = (given.output or results()) / f"counters_{given.what}.csv"
    points = given.what == "points"
    rows = count_points() if points else count_products()
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        columns = [*POINT, "rung", *METRICS] if points else [*PRODUCT, *PRODUCT_METRICS]
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    print(f"{len(rows)} kernels counted: {path}")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (OSError, RuntimeError) as error:
        sys.exit(f"counters.py: {error}")
