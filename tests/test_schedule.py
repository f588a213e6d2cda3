"""The choosers: what `prepare` makes of a problem on a chip, for chips that are not here, through `plan`."""

import itertools
import math

import pytest
import torch
from tables import ALONG_DIMS, names, takes

import torch_reduce
from torch_reduce import _plan
from torch_reduce._variants import ROW_OPS

CHIPS = ("T4", "A10", "L4", "A100", "H100 PCIe", "H200", "B200")
CHUNK, LANES = 1024, 128
MOST_COUNTERS = 4096  # csrc/common/prepared.h
SHARED_BYTES = 48 * 1024  # that every chip gives a block without being asked

SHAPES = (
    ((1,), None),
    ((1 << 16,), None),
    ((1 << 20,), None),
    ((100_003,), None),
    ((1 << 30,), None),
    ((7, 1 << 22), 1),
    ((1 << 22, 2), 1),
    ((1 << 20, 3), 1),
    ((1 << 20, 49), 1),
    ((50_000, 300), 1),
    ((60_000, 200), 1),
    ((100_000, 200), 0),
    ((5000, 5000), 0),
    ((900_000, 48), 0),
    ((4096, 1024), 1),
    ((300, 5000), 1),
    ((60, 70_000), 1),
    ((64, 1 << 20), 0),
    ((3, 1_000_003), 0),
    ((1000, 1000), 0),
    ((1 << 20, 3), 0),
    ((1 << 22, 16), 0),
    ((1 << 18, 100), 0),
    ((32, 4096, 64), 1),
    ((5000, 12, 9), 1),
    ((64, 32, 56, 56), (0, 2, 3)),
)
DTYPES = (torch.float32, torch.float64, torch.float16, torch.int8, torch.complex128)
SIZES = ({}, {"block_size": 32}, {"block_size": 1024, "num_blocks": 3})


def plans(variant, chip, sizes):
    """The calls that the rung takes, each with its plan."""
    for (shape, dim), dtype in itertools.product(SHAPES, DTYPES):
        if not takes(variant, "sum", dtype):
            continue
        try:
            yield torch_reduce.plan("sum", shape, dim, variant=variant.name, input_dtype=dtype, device=chip, **sizes)
        except ValueError as refusal:  # a geometry that it does not take
            assert f"'{variant.name}'" in str(refusal), refusal


def can_run(variant, chip):
    return variant.capability <= torch_reduce.plan("sum", (1,), device=chip).chip.capability


def covers(p):
    """Whether the tiles take every element of every output once, as the rung's kernel counts them."""
    s, n, outputs = p.schedule, p.order.length, math.prod(p.result_shape)
    size = getattr(torch, p.input_dtype).itemsize
    chunks = max(math.ceil(n / CHUNK), 1)
    team = min(LANES * size // 16, 32) if s.vectors or s.shifted else 32  # threads of a row
    groups, shared_out = s.tiles // s.splits, s.tiles % s.splits == 0

    def fit(count, each, what):  # no tile too few, and none too many
        return count * each >= what > (count - 1) * each

    match p.rung:
        case "thread":
            return fit(s.tiles, s.block[0], outputs)
        case "row_tile":
            return fit(s.tiles, s.span * s.tile, outputs)
        case "row_lanes" if s.vectors and 1 < n < 16 // size and 16 // size % n == 0 and s.span == 1:
            # Sums of integers: two rows a vector, two vectors a thread.
            wide = p.input_dtype in ("int8", "int16", "int32", "uint8", "bool")
            of_thread = 2 * min(2 * n, 16 // size) if wide else 4 * 16 // size
            return fit(s.tiles, of_thread * s.block[0], outputs * n)
        case "row_lanes":
            at_once = s.vectors and n > LANES and len(p.reduced) <= 1  # four stripes of a row in flight
            two = n <= 2 * LANES and p.input_dtype in ("float32", "float64", "float16", "bfloat16")  # stripes
            rows = 32 // s.span * (2 if at_once and not two else 4)
            return fit(s.tiles, s.block[0] // 32 * rows, math.ceil(outputs / rows) * rows)
        case "row_warp":
            return fit(s.tiles, s.block[0] // 32 * (32 // team), math.ceil(outputs / (32 // team)) * (32 // team))
        case "row_block":
            return shared_out and groups == outputs and fit(s.splits, s.span, chunks)
        case "row_cluster":
            return s.tiles == 8 * outputs and 8 * s.span >= chunks
        case "column_thread":
            return n <= CHUNK and fit(s.tiles, s.tile, outputs)
        case "column_block":
            rows = 8 if n <= LANES else CHUNK // (16 if n <= 2 * LANES else 32)  # of a group, at the most
            nodes = s.block[1] * s.span
            return (
                shared_out and fit(groups, s.tile, outputs) and s.splits * nodes * rows >= min(n, CHUNK // 4 * chunks)
            )
        case "column_narrow":
            return shared_out and groups * s.tile == outputs and fit(s.splits, s.span, chunks)
        case "exact":
            return shared_out and fit(groups, s.tile, outputs) and fit(s.splits, s.span, n)
        case _:  # a rung that counts so needs no case of its own: tiles of outputs, shared out by chunks
            return shared_out and fit(groups, s.tile, outputs) and (s.splits == 1 or fit(s.splits, s.span, chunks))


@pytest.mark.parametrize("chip", CHIPS)
def test_columns_of_any_shape(chip):
    """The chooser of column_block looks at width, length and waves together: more shapes than are listed above."""
    random = torch.Generator().manual_seed(0)
    for _ in range(1500):
        rows, columns, which = torch.rand(3, generator=random).tolist()
        shape = (int(2 ** (18 * rows)), int(2 ** (14 * columns)))
        dtype = DTYPES[int(which * len(DTYPES))]
        p = torch_reduce.plan("sum", shape, 0, variant="column_block", input_dtype=dtype, device=chip)
        x, y = p.schedule.block
        nodes = y * p.schedule.span
        assert 1 <= x * y <= 256 and nodes & (nodes - 1) == 0 and covers(p), f"{shape} {dtype}: {p}"


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("variant", ALONG_DIMS, ids=names(ALONG_DIMS))
def test_schedules(variant, chip):
    if not can_run(variant, chip):
        with pytest.raises(NotImplementedError, match=rf"'{variant.name}' needs a GPU of compute capability"):
            next(plans(variant, chip, {}))
        return
    taken = 0
    for sizes in SIZES:
        for p in plans(variant, chip, sizes):
            taken += 1
            s = p.schedule
            (launch,) = s.shapes
            assert launch.grid == (s.grid, 1) and launch.block == s.block
            assert 1 <= s.grid <= s.tiles < 2**31 or s.grid <= 2**30 < s.tiles
            assert s.grid <= max(sizes.get("num_blocks", s.grid), s.cluster) and s.grid % s.cluster == 0
            threads = s.block[0] * s.block[1]
            assert 1 <= threads <= 1024 and threads <= max(sizes.get("block_size", threads), 64)
            assert 0 <= launch.shared_bytes <= SHARED_BYTES
            assert s.counters <= MOST_COUNTERS and (s.counters > 0) == (s.splits > 1) == (s.workspace_bytes > 0)
            assert sum(region.bytes for region in s.regions) == s.workspace_bytes
            assert covers(p), f"{p}\nIf {p.rung} counts its tiles in another way, add a case to covers()"
    assert taken > len(SHAPES)


@pytest.mark.parametrize("chip", CHIPS)
def test_what_auto_picks_runs_there_and_takes_everything(chip):
    for (shape, dim), dtype in itertools.product(SHAPES, DTYPES):
        p = torch_reduce.plan("sum", shape, dim, input_dtype=dtype, device=chip)
        assert (
            torch_reduce.variants("sum")[names(torch_reduce.variants("sum")).index(p.rung)].capability
            <= p.chip.capability
        )


def test_a_larger_chip_shares_a_row_among_more_blocks():
    grids = [torch_reduce.plan("sum", (1 << 23,), device=chip).schedule.grid for chip in ("T4", "A100", "H200", "B200")]
    assert grids == sorted(grids) and grids[0] < grids[-1]


def test_clusters_are_for_chips_that_have_them():
    rungs = {chip: torch_reduce.plan("sum", (1 << 16,), input_dtype=torch.bfloat16, device=chip).rung for chip in CHIPS}
    assert rungs["H200"] == rungs["B200"] == "row_cluster"
    assert {rungs[chip] for chip in ("T4", "A10", "L4", "A100")} == {"row_block"}


@pytest.mark.parametrize("op", ["sum", "mean", "amax", "amin"])
def test_only_rounded_sums_by_atomic_are_not_deterministic(op):
    for variant in torch_reduce.variants("sum"):
        for dtype in (torch.float32, torch.int32):
            if not takes(variant, op, dtype):
                continue
            p = torch_reduce.plan(
                op,
                (4096, 8) if variant.name == "column_narrow" else (8, 100),
                0 if variant.along_dims else None,
                variant=variant.name,
                input_dtype=dtype,
                device="H200",
            )
            rounds = op in ("sum", "mean") and dtype.is_floating_point
            assert p.deterministic == (variant.deterministic or not rounds)


# KB of dynamic shared memory that a block may ask for, by compute capability: CUDA Programming Guide, specifications.
MOST_SHARED = {75: 64, 80: 163, 86: 99, 90: 227, 100: 227, 120: 99}

# What a plan is asked for, by op: shapes that take every way of a rung, and dtypes of each size.
ROWS_OF = ((4096, 100), (4096, 1000), (4096, 5000), (4096, 20_000), (4096, 50_304), (64, 131_072), (7, 300_000))
PRODUCTS = (
    (8, 4096, 4096),
    (64, 4096, 4096),
    (1024, 1024, 1024),
    (4096, 4096, 4096),
    (64, 64, 65_536),
    (300, 200, 500),
    (100, 100, 100),
)
FLOATS = (torch.float32, torch.bfloat16, torch.float64)
CALLS = (
    *(("sum", (shape, dim), {"input_dtype": dtype}) for shape, dim in SHAPES[::3] for dtype in DTYPES),
    *(
        ("matmul", ((m, k), (k, n)), {"input_dtype": dtype, "tf32": tf32})
        for m, n, k in PRODUCTS
        for dtype, tf32 in (*((dtype, False) for dtype in (*FLOATS, torch.int8, torch.int64)), (torch.float32, True))
    ),
    *((op, (shape,), {"input_dtype": dtype}) for op in ROW_OPS for shape in ROWS_OF for dtype in FLOATS),
)


@pytest.mark.parametrize("multiprocessors", [20, 132])
@pytest.mark.parametrize("capability", MOST_SHARED)
def test_every_launch_fits_the_shared_memory_of_its_chip(capability, multiprocessors):
    """By every rung, whether or not `auto` takes it there. (Attention has no plan in Python.)"""
    chip = _plan.Chip("a chip", multiprocessors, divmod(capability, 10), None, "none")
    planned = 0
    for op, arguments, named in CALLS:
        for variant in torch_reduce.variants(op):
            if not variant.runs_on(chip.capability):
                continue
            try:
                p = torch_reduce.plan(op, *arguments, variant=variant.name, device=chip, **named)
            except (ValueError, TypeError):  # a shape or dtype that the rung does not take
                continue
            planned += 1
            for launch in p.schedule.shapes if op == "sum" else p.launches:
                assert launch.shared_bytes <= 1024 * MOST_SHARED[capability], (op, arguments, named, p.rung, launch)
    assert planned > len(CALLS)


def test_a_tile_that_does_not_fit_the_chip_is_the_next_smaller_one():
    for chip, tile in (("T4", (32, 64)), ("H200", (64, 128))):
        p = torch_reduce.plan("matmul", (4096, 4096), (4096, 4096), variant="pipelined", input_dtype=torch.float64,
                              tile_size=64, device=chip)  # fmt: skip
        assert p.tile == tile
