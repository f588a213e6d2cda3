"""What Nsight Compute counts.

    python benchmarks/counters.py points        the points of cases.COUNTED, as `auto` reduces them; runs ncu itself, writes
                                                benchmarks/results/<gpu>/counters_points.csv, of which report.py makes a table

    ncu --clock-control none --csv --metrics \
        smsp__inst_executed.sum,l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum,smsp__thread_inst_executed_per_inst_executed.ratio,dram__bytes_read.sum,gpu__time_duration.sum \
        python benchmarks/counters.py ladder > benchmarks/results/nvidia-h200/counters.csv
                                                every sum rung once over 25.6 M floats
"""  # noqa: E501

import argparse
import csv
import os
import shutil
import subprocess
import sys
from pathlib import Path

import cases
import grid
import torch
from checkout import ROOT

import torch_reduce

N, BLOCK = 25_600_000, 256

# A column of the file and the metric behind it. Stalls: cycles that warps wait for a reason, by instruction issued.
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
POINT = ("op", "dtype", "shape", "dim", "layout")
# ncu's word for: only root may read counters on this machine.
FORBIDDEN = "ERR_NVGPUCTRPERM"


def run_ladder() -> None:
    x = torch.randn(N, device="cuda")
    for variant in torch_reduce.variants("sum"):
        if variant.name not in ("serial", "auto"):
            torch_reduce.sum(x, variant=variant.name, block_size=BLOCK)
    torch_reduce.sum(x)
    torch.cuda.synchronize()


def run_points() -> None:
    """One kernel a point, in their order."""
    for point in cases.COUNTED:
        x = grid.tensor(point, torch.device("cuda"), grid.random_values)
        with torch.no_grad():
            grid.ours(point)(x)
        torch.cuda.synchronize()
        del x


def count_points(ncu: str) -> list[dict[str, str]]:
    """Runs the points under ncu. Returns a row a point: a cell for each metric."""
    command = [ncu, "--clock-control", "none", "--csv", "--kernel-name", "regex:^(kernel|[a-z_]*_kernel)$"]
    command += ["--metrics", ",".join(METRICS.values()), sys.executable, __file__, "run"]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PYTHONWARNINGS": "ignore"})
    if FORBIDDEN in done.stdout + done.stderr:
        raise PermissionError(f"ncu may not read the GPU's counters on this machine ({FORBIDDEN}): nothing is written")
    lines = done.stdout.splitlines()
    begin = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    if done.returncode or begin is None:
        raise RuntimeError("ncu counted nothing:\n" + "\n".join((done.stdout + done.stderr).splitlines()[-15:]))
    kernels: dict[str, dict[str, str]] = {}
    columns = {metric: name for name, metric in METRICS.items()}
    for row in csv.DictReader(lines[begin:]):
        if "treduce::" in row["Kernel Name"] and row["Metric Name"] in columns:
            kernels.setdefault(row["ID"], {})[columns[row["Metric Name"]]] = row["Metric Value"].replace(",", "")
    if len(kernels) != len(cases.COUNTED):
        raise RuntimeError(f"{len(kernels)} kernels for {len(cases.COUNTED)} points: it must be one for each")
    return list(kernels.values())


def described(point: cases.Point) -> dict[str, str]:
    return {
        "op": point.op,
        "dtype": point.dtype,
        "shape": "x".join(map(str, point.shape)),
        "dim": "" if point.dim is None else " ".join(map(str, point.dim)),
        "layout": point.layout,
        "rung": torch_reduce.plan(point.op, point.shape, point.dim, input_dtype=grid.dtype_of(point)).rung
        if point.layout == "contiguous"
        else "",
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("points", "run", "ladder"), nargs="?", default="ladder")
    parser.add_argument("--output", type=Path, help="default: the GPU's folder in benchmarks/results")
    given = parser.parse_args()
    if given.what == "ladder":
        run_ladder()
    elif given.what == "run":
        run_points()
    else:
        ncu = shutil.which("ncu") or "/usr/local/cuda/bin/ncu"
        name = torch.cuda.get_device_name().lower().replace(" ", "-")
        path = (given.output or ROOT / "benchmarks" / "results" / name) / "counters_points.csv"
        rows = count_points(ncu)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, [*POINT, "rung", *METRICS], lineterminator="\n")
            writer.writeheader()
            writer.writerows(described(point) | row for point, row in zip(cases.COUNTED, rows, strict=True))
        print(f"{len(rows)} points counted: {path}")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (OSError, RuntimeError) as error:
        sys.exit(f"counters.py: {error}")
