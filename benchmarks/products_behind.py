"""Where torch's product is faster than `auto` beyond noise, and what bounds those products. report.py and counters.py
read it; behind.py has the reductions."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import behind
import cases
import products

import torch_reduce
from torch_reduce._plan_products import ProductPlan

CHIP = "H200"
# Above these shares of a product's time, memory at its ceiling or a chain of multiplications explains it.
MEMORY_SHARE, CHAIN_SHARE = 0.75, 0.4
# The tensor cores wait for more than sectors above this share of their peak.
BUSY_SHARE = 0.6
# Nanoseconds of a multiplication that waits for the one before (1.5 µs for 1000 steps of 16 bits; H200, 2026-11-25),
# and the steps of k that it makes, by the bytes of what tensor cores multiply.
MULTIPLICATION_NS = 24.0
STEPS = {2: 16, 4: 8, 8: 4}
FEW_US, SHORT_K = 10.0, 64
# Or of up to so many steps, where the tensor cores are not busy.
SHORT_IF_IDLE = 256
# Below this share of outputs in the rounds of tiles that the chip computes, idle multiprocessors count.
FULL = 0.9
# Fragments a multiplication, 1 / rows + 1 / columns of a tile, from which shared memory bounds float64.
MANY_FRAGMENTS = 1 / 32
SECTOR_BYTES = 32

# What bounds a product that is behind. `mechanism` says which; docs/tried.md has all that was tried.
MECHANISMS = {
    "splitting": behind.Mechanism(
        "float32 by pairs: warps split what tensor cores then multiply; of few rows issue slots and DRAM are each half "
        "to two thirds busy, and launches follow one another; of small products each block splits its lines again",
        "two lines of X split by each block, all stages of W at once, loads to registers, other numbers of warps and "
        "blocks: level or slower",
    ),
    "chain": behind.Mechanism(
        "few outputs, each a chain of dependent multiplications, whose length depends on k alone; torch divides k",
        "multiplications of warp groups, and copies of four slabs of k at once: taken, up to a quarter faster; of 16 "
        "bits one operand across k in narrow tiles: taken, 0.8 of the time in the mean; of tfloat32 one operand in "
        "registers: taken, 0.74 of the time in the mean; groups of 2048 steps already from k of 2049 on: up to 1.9 "
        "times faster here, but large products are up to 12 % slower; of float64 warps that multiply and do nothing "
        "else: taken, 1.3 times faster",
    ),
    "launch": behind.Mechanism(
        "a launch, the first copies and the last stores are most of the time; of k of a stage or two, in every tile",
        "all of a short k of float32 in shared memory at once: taken, 1.4 times faster; in halves: slower below 90; "
        "launches that overlap: taken where they are short, 12 % of float32 and float64",
    ),
    "copies": behind.Mechanism(
        "rows begin where the copy engine cannot read them: operands are copied first, which reads and writes them "
        "once more",
        "taken where it is faster: threads read them in place, of 16 bits, tfloat32 and float64; one launch for both "
        "copies, along k where outputs are few: taken, a tenth to a third faster",
    ),
    "in place": behind.Mechanism(
        "rows begin where the copy engine cannot read them, or tfloat32 lies across k: threads copy, 2 to 16 bytes an "
        "instruction; issue slots bound it where tiles are many, latencies where they are few",
        "kernels for each direction, chunks that are shifted in place of 2 bytes at once, edges as a mask: taken, up "
        "to a quarter faster; more stages under way: a fifth where tiles of tfloat32 are few, else level; warps that "
        "copy beside warps that multiply: taken where tiles are few, a third faster; there no branch between two "
        "multiplications, and fragments read ahead: taken, up to a third; five tiles of 64 x 64 on a multiprocessor, "
        "and results stored without branches: taken, up to a fifth",
    ),
    "sectors": behind.Mechanism(
        "rows of an operand begin inside sectors of 32 bytes: all multiprocessors together get half as many bytes a "
        "cycle from the L2",
        "clusters that share operands: taken where they are faster, up to a third; threads that copy in place of the "
        "copy engine: no faster; 192 x 192 tiles: 0.5 % in the mean",
    ),
    "rounds": behind.Mechanism(
        "tiles of the last round, or past the edge, leave multiprocessors idle",
        "tiles of 224, 176 and 96 columns: taken where they leave fewer idle; a strip of smaller tiles in the place "
        "of a last round: taken, up to 16 % faster; float64's last tasks dealt out by steps of k: taken, up to a "
        "quarter faster",
    ),
    "memory": behind.Mechanism(
        "few rows: the weights, read at three quarters of the ceiling or more; the rest is a launch, the first copies "
        "and the last stores",
        "testing a barrier two multiplications early, clusters that share rows or columns: level or slower",
    ),
    "fragments": behind.Mechanism(
        "small tiles of float64: fragments are read from shared memory more often a multiplication",
        "half of the warps a few stages behind the others: no effect; one warp a scheduler: slower; loads a stage "
        "ahead: taken, 8 % faster",
    ),
    "groups": behind.Mechanism(
        "long k: the sums of its groups are added, of float64 in C, which all multiprocessors write at the same time "
        "(2 % of 4096^3 a group), of others partly in shared memory, which leaves fewer stages",
        "groups of 1024 steps: 6 % of float64; of 4096: few outputs would wait for chains twice as long",
    ),
    "tensor cores": behind.Mechanism(
        "tensor cores are busy but for the first copies and the last stores of a tile; of 16 bits the power limit "
        "holds the clock down",
        "half of the warps a few stages behind the others, other arrivals at a stage: level",
    ),
}


def point_of(row: Mapping[str, Any]) -> cases.MatmulPoint:
    return cases.MatmulPoint(
        row["kind"], row["m"], row["n"], row["k"], "", row["layout"], tuple(row["batch"]), (row["dtype"],)
    )


def plan_of(row: Mapping[str, Any]) -> ProductPlan:
    """What `auto` launches on an H200."""
    with products.precision(row["dtype"]) as dtype:
        return torch_reduce.plan("matmul", *products.on_meta(point_of(row), dtype), device=CHIP)


def tiles_of(plan: ProductPlan) -> int:
    batches, m, n, _ = plan.problem
    return batches * -(-m // plan.tile[0]) * -(-n // plan.tile[1]) * (plan.groups if plan.groups_apart else 1)


def filled(plan: ProductPlan) -> float:
    """Outputs, as a share of those that all multiprocessors would compute in as many rounds of tiles."""
    tiles, (rows, columns) = tiles_of(plan), plan.tile
    cluster = max(plan.launches, key=lambda launch: launch.shared_bytes).cluster
    at_once = plan.chip.multiprocessors // cluster
    full = 1.0 if plan.tasks_dealt or any(plan.strip) else tiles / (at_once * -(-tiles // at_once))
    _, m, n, _ = plan.problem
    if m < rows or n < columns:  # no tile is full of few rows, whatever its place
        return full
    return full * m * n / (-(-m // rows) * rows * -(-n // columns) * columns)


def chain_us(plan: ProductPlan, width: int) -> float:
    """The time of an output's multiplications one after another."""
    k = math.ceil(plan.problem[3] / plan.groups) if plan.groups_apart else plan.problem[3]
    return k / STEPS[width] * MULTIPLICATION_NS / 1e3


def inside_sectors(row: Mapping[str, Any]) -> bool:
    """Whether rows of an operand do not all begin at a sector of the L2."""
    with products.precision(row["dtype"]) as dtype:
        operands = products.on_meta(point_of(row), dtype)
    return any(max(x.stride()[-2:]) * x.element_size() % SECTOR_BYTES for x in operands)


def is_in_place(plan: ProductPlan) -> bool:
    """Whether the kernel is that of in_place.cu."""
    return any(launch.kernel.endswith("in place") for launch in plan.launches)


def mechanism(row: Mapping[str, Any], plan: ProductPlan) -> str:
    """Of `MECHANISMS`, by what was planned and by the time that it took."""
    us = row["us"]["auto"][0]
    bandwidth, ceiling = plan.chip.bandwidth, plan.chip.read_ceiling
    assert plan.memory_us and plan.arithmetic_us and bandwidth and ceiling
    with products.precision(row["dtype"]) as dtype:
        width = dtype.itemsize
    if plan.rung.startswith("split"):
        return "splitting"
    if plan.memory_us * bandwidth / ceiling >= MEMORY_SHARE * us:
        return "memory"
    if chain_us(plan, width) >= CHAIN_SHARE * us:
        return "chain"
    if any("copy" in how for how in plan.reads or ()):
        return "copies"
    if is_in_place(plan):
        return "in place"
    busy = plan.arithmetic_us >= BUSY_SHARE * us
    idle, short = filled(plan) < FULL, plan.problem[3] <= (SHORT_K if busy else SHORT_IF_IDLE)
    waits = width < 8 and not (short or (idle and us < FEW_US)) and not busy
    if waits and inside_sectors(row):
        return "sectors"
    if short or us < FEW_US:
        return "launch"
    if idle:
        return "rounds"
    if width == 8 and 1 / plan.tile[0] + 1 / plan.tile[1] > MANY_FRAGMENTS:
        return "fragments"
    return "groups" if plan.groups > 1 else "tensor cores"


class Behind(NamedTuple):
    row: dict[str, Any]
    plan: ProductPlan
    mechanism: str

    @property
    def x(self) -> tuple[float, float, float]:
        """The speed-up over torch: median, first and third quartile."""
        return tuple(self.row["x"]["torch"])


def points(files: Mapping[str, Mapping[str, Any]]) -> list[Behind]:
    """Products that are behind, the lowest speed-up first."""
    found = []
    for row in files.get("matmul_grid", {}).get("products", ()):
        if "torch" in row["x"] and behind.is_behind(row["x"]["torch"]):
            plan = plan_of(row)
            found.append(Behind(row, plan, mechanism(row, plan)))
    return sorted(found, key=lambda point: point.x[0])


def counted(folder: Path) -> list[cases.MatmulPoint]:
    """What counters.py counts beside `cases.COUNTED_PRODUCTS`: for each mechanism and dtype the product with the lowest
    speed-up."""
    path = folder / "matmul_grid.json"
    found: dict[tuple[str, str], cases.MatmulPoint] = {}
    for point in points({path.stem: json.loads(path.read_text())}):
        found.setdefault((point.mechanism, point.row["dtype"]), point_of(point.row))
    return list(found.values())
