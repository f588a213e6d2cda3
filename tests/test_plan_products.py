"""`torch_reduce.plan` of products: what it says, for any chip, and that it says what the call does."""

import dataclasses
import itertools
import json
import re

import pytest
import tables
import torch
from tables import MATMUL_VARIANTS, names

import torch_reduce
from torch_reduce import _C, cli

RUNGS = [v for v in MATMUL_VARIANTS if v.has_kernel]
CHIPS = ("H200", "H100 PCIe", "A100", "L4")


def plan(*arguments, device="H200", tf32=False, **named):
    return torch_reduce.plan(*arguments, device=device, tf32=tf32, **named)


def main(p):
    """The launch that multiplies."""
    return next(launch for launch in p.launches if launch.kernel.startswith("multiply"))


def test_float32_by_pairs():
    p = plan("matmul", (4096, 4096), (4096, 4096))
    assert (p.rung, p.order, p.tile, p.stages) == ("split_fp16", "split_fp16", (256, 128), 3)
    by_parts = ["split into parts", "multiply parts, 128 x 128 tiles"] * 2  # a half of k after another
    pairs = ["split A and B", "multiply 128 x 128 tiles"]
    assert [launch.kernel for launch in p.launches] == [*pairs, "order lines", *by_parts, "finish"]
    assert (main(p).grid, main(p).block, main(p).cluster, main(p).overlapping) == ((132, 1), (384, 1), 2, True)
    assert (p.groups, p.groups_apart, p.reads) == (2, False, ("split first", "split first"))
    assert [region.name for region in p.regions] == [
        *("scales A", "units A", "facts A", "facts of rows", "order of rows"),
        *("scales B", "units B", "facts B", "facts of columns", "order of columns"),
        *("lines for parts", "halves of A and B, then parts"),
    ]
    assert p.regions[-1].bytes == 2 * 4096 * 4096 * 4
    assert p.workspace_bytes == p.regions[-1].offset + p.regions[-1].bytes < 1.04 * p.regions[-1].bytes
    assert p.operations == 3 * 2 * 4096**3 and p.unit == "float16 on tensor cores"
    assert (p.bytes_read, p.bytes_written) == (2 * 4096 * 4096 * 4, 4096 * 4096 * 4)
    assert p.bound_us == p.arithmetic_us == pytest.approx(3 * 2 * 4096**3 / 989.4e6)


def test_what_pairs_leave_of_small_products_is_no_launch():
    """Its blocks compute it; of larger ones and long k three launches share it."""
    for m, n, k, batch, small in (
        *((300, 600, 1000, (), True), (1000, 1000, 1000, (), True), (150, 140, 64, (3, 5), True)),
        *((300, 600, 2049, (), False), (1500, 1700, 1500, (), False), (150, 140, 64, (300, 5), False)),
    ):
        p = plan("matmul", (*batch, m, k), (*batch, k, n), variant="split_fp16")
        names = [launch.kernel for launch in p.launches]
        assert (names[0], names[1]) == ("split A and B", main(p).kernel)
        assert (p.launches[0].overlapping, p.launches[1].overlapping) == (False, True)
        if small:
            assert names[2:] == [] and p.regions[-1].name == "lines and tiles by parts"
            assert p.tile in ((128, 96), (64, 128), (64, 64), (64, 32))
        else:
            assert names[2] == "split into parts" and names[-1].endswith("finish")


def test_large_products_take_little_memory():
    """Whatever the data: the second way works in parts of k, where the first has been."""
    for side in (4096, 8192, 16384):
        p = plan("matmul", (side, side), (side, side))
        assert p.workspace_bytes < 1.1 * 2 * 4 * side**2


def test_operands_that_no_boxes_suit_are_read_in_place():
    """Of short k, by one launch, a block a tile; where k is long they are copied first, and aligned ones never."""
    for a, b, dtypes in (
        ((384, 197, 197), (384, 197, 64), (torch.bfloat16, torch.float32)),
        ((1000, 100, 130), (1000, 130, 20), (torch.bfloat16, torch.float32)),
        ((20, 1500, 1500), (20, 1500, 64), (torch.bfloat16,)),  # of float32, rows of 6,000 bytes: boxes
        ((12, 197, 64), (12, 64, 197), (torch.bfloat16, torch.float32)),  # the result's rows begin inside 16 bytes
    ):
        for dtype in dtypes:
            p = plan("matmul", a, b, input_dtype=dtype, tf32=True)
            assert (p.rung, p.order, p.workspace_bytes) == ("persistent", "warp_group_long", 0)
            assert (len(p.launches), p.reads) == (1, ("where it lies",) * 2)
            assert p.tile in ((32, 32), (64, 64), (128, 64), (128, 32))
            assert main(p).grid == (a[0] * -(-a[1] // p.tile[0]) * -(-b[2] // p.tile[1]), 1)
            assert main(p).block[0] in (128, 256, 384) and main(p).shared_bytes <= 227 << 10
    for a, b in (((4095, 4099), (4099, 4097)), ((384, 192, 192), (384, 192, 64)), ((2, 9001, 9001), (2, 9001, 64))):
        p = plan("matmul", a, b, input_dtype=torch.bfloat16)
        assert main(p).grid == (132, 1) and (len(p.launches) == 1) == (a[-1] % 8 == 0)


def test_groups_of_k_are_read_in_place():
    """Where outputs are few: a block a tile and group, whose sums a second launch adds. Nothing is copied."""
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        a = torch.empty(43_637, 114, dtype=dtype, device="meta").mT
        p = plan("matmul", a, (43_637, 18), input_dtype=dtype, tf32=True)
        assert (p.reads, p.groups, p.groups_apart) == (("where it lies",) * 2, 22, True)
        assert len(p.launches) == 2 and p.launches[0].kernel == "multiply 32 x 32 tiles, copied apart, in place"
        assert p.launches[0].grid == (4 * 22, 1) and p.workspace_bytes == 22 * 114 * 18 * 4
        for k, in_place in ((2**31 - 1, True), (2**31 + 1, False)):  # what an int counts
            p = plan("matmul", (17, k), (k, 9), input_dtype=dtype, tf32=True)
            assert ("in place" in p.launches[0].kernel) == in_place


def test_few_rows_are_split_as_they_are_read():
    p = plan("linear", (16, 8192), (28672, 8192), True)
    assert p.reads == ("split first", "split as it is read") and p.tile == (16, 64)
    assert (p.groups, p.groups_apart) == (4, True)
    assert [launch.kernel for launch in p.launches] == [
        "split A",
        "multiply 64 x 16 tiles",
        "multiply parts, 64 x 16 tiles",
        "add groups of k, finish",
    ]
    assert [r.name for r in p.regions] == [
        *("scales A", "units A", "facts A", "facts of rows", "facts of columns"),
        *("high and low A", "parts of A", "groups of k", "lines left, blocks done", "sums of segments left"),
    ]
    assert p.bound_us == p.memory_us and p.bytes_read == (16 + 28672) * 8192 * 4 + 28672 * 4
    assert "with a bias" in str(p)


def test_few_rows_by_few_weights_are_split_first():
    """Then splitting is short, and smaller tiles fill the chip. Batches were not measured."""
    first, as_read = ("split first",) * 2, ("split first", "split as it is read")
    for m, n, k, batch, reads in (
        *((100, 500, 4000, (), first), (79, 973, 1044, (), first), (9, 300, 700, (), first)),
        *((64, 8192, 8192, (), as_read), (8, 300, 700, (), as_read), (79, 973, 1044, (2,), as_read)),
    ):
        p = plan("matmul", (*batch, m, k), (*batch, k, n), variant="split_fp16")
        assert p.reads == reads, (m, n, k, batch)


def test_a_warp_splits_and_multiplies_up_to_eight_rows():
    for rows, stages in ((2, 3), (3, 3), (8, 2)):
        p = plan("linear", (rows, 4096), (11008, 4096))
        assert (p.tile, p.stages, p.launches[1].kernel) == ((8, 16), stages, "multiply 16 x 8 tiles")
        assert main(p).grid == (4 * 132, 1)
        # One launch adds the groups, and computes all that is left.
        assert [(launch.kernel, launch.grid) for launch in p.launches[2:]] == [("add groups of k, finish", (132, 1))]
    p = plan("matmul", (11008, 4096), (4096, 5), variant="split_fp16")
    assert p.tile == (16, 8)
    # One row, which each block splits: as many blocks for each of up to 16 groups of k, of one product.
    for n, k, blocks in (
        (50257, 768, 4 * 132),
        (11008, 4096, 4 * 132),
        (11008, 4092, 4 * 132),
        (4096, 4096, 2 * 256),
        (11008, 4100, 4 * 132),
        (8192, 28672, 14 * 37),
    ):
        p = plan("linear", (1, k), (n, k), variant="split_fp16")
        assert (p.stages, main(p).kernel, main(p).grid) == (2, "multiply 1 x 16 tiles", (blocks, 1)), (n, k)
    assert plan("matmul", (11008, 4096), (4096, 1), variant="split_fp16").launches[1].kernel == "multiply 16 x 1 tiles"
    assert plan("linear", (1, 32772), (11008, 32772)).launches[1].kernel == "multiply 16 x 8 tiles"
    # By few lines, and by more of long k: one launch, in which a cluster has 16 lines.
    for n, k, cluster in ((256, 4096, 4), (1024, 4096, 2), (4096, 4096, 1), (100, 20_001, 8), (4224, 2048, 1)):
        p = plan("linear", (1, k), (n, k))
        assert (p.rung, p.tile, p.workspace_bytes) == ("split_direct", (1, 16), 0), (n, k)
        assert [(launch.kernel, launch.cluster) for launch in p.launches] == [("multiply 1 x 16 tiles", cluster)], (
            n,
            k,
        )
    for n, k in ((4225, 2048), (11008, 4096), (1000, 33_000)):
        assert plan("linear", (1, k), (n, k)).rung == "split_fp16", (n, k)
    # Where the copy engine finds no lines along k, and for more rows.
    for a, b in (((1, 4096), (4096, 11008)), ((9, 4096), (4096, 11008))):
        assert "64 x" in plan("matmul", a, b, variant="split_fp16").launches[1].kernel


def test_small_products_take_one_launch():
    for m, n, k, tile in (
        *((256, 256, 256, (16, 16)), (352, 352, 352, (32, 32))),
        *((448, 448, 128, (64, 32)), (1, 4096, 512, (8, 16))),
    ):
        p = plan("matmul", (m, k), (k, n))
        assert (p.rung, p.order, p.tile, p.regions) == ("split_direct", "split_fp16", tile, ())
        assert len(p.launches) == 1 and p.reads == ("split as it is read",) * 2
    for m, n, k in ((1024, 1024, 1024), (1, 50257, 2100), (1, 4096, 4096), (256, 256, 8256)):
        assert plan("matmul", (m, k), (k, n)).rung == "split_fp16"


def test_clusters_share_the_k_of_few_tiles():
    """So many blocks as fit at once, each with segments of its own."""
    for m, n, k, cluster in (
        (256, 256, 256, 1),
        (1, 4096, 1024, 1),
        (1, 1024, 1024, 2),
        (1, 768, 3072, 4),
        (4, 1024, 1024, 2),
        (32, 32, 4096, 8),
    ):
        p = plan("matmul", (m, k), (k, n))
        assert (p.rung, main(p).cluster) == ("split_direct", cluster), (m, n, k)
        assert cluster == 1 or f"clusters of {cluster}" in str(p)
    # Both operands split as they are read, by runs of segments, is faster.
    assert plan("matmul", (64, 8192), (8192, 64)).rung == "split_fp16"
    depths = (1, 64, 65, 500, 1024, 2049, 8192, 30_000)
    for device, multiprocessors in (("H200", 132), ("H100 PCIe", 114)):
        for m, n, k in itertools.product((1, 9, 33, 256), (7, 300, 2000), depths):
            p = plan("matmul", (m, k), (k, n), variant="split_direct", device=device)
            (launch,) = p.launches
            tile_m, tile_n = p.tile
            assert launch.grid == (-(-m // tile_m) * -(-n // tile_n) * launch.cluster, 1)
            assert launch.cluster in (1, 2, 4, 8) and launch.cluster <= -(-k // 64)
            if launch.kernel != "multiply tiles, clusters share k":
                assert launch.cluster == 1 or launch.grid[0] * launch.block[0] <= multiprocessors * 512
            places = min(512 // launch.block[0], -(-launch.grid[0] // multiprocessors))
            assert launch.shared_bytes * places <= 226 << 10


def test_clusters_share_the_k_of_some_lines():
    """Tiles of sixteens of the more lines by eights of the others, in as few rounds of clusters as there are."""
    for m, n, k, tile, cluster in (
        (32, 1024, 4096, (32, 80), 8),
        (64, 768, 3072, (32, 112), 8),
        (768, 23, 3072, (64, 24), 8),
        (47, 1280, 1280, (24, 48), 2),
    ):
        p = plan("linear", (m, k), (n, k))
        (launch,) = p.launches
        assert (p.rung, p.tile, p.workspace_bytes) == ("split_direct", tile, 0), (m, n, k)
        assert (launch.kernel, launch.cluster, launch.block) == ("multiply tiles, clusters share k", cluster, (512, 1))
        assert launch.shared_bytes <= 227 << 10
    # Batches, few lines, short k, and more or fewer lines than were measured.
    for m, n, k, batch in (
        (64, 768, 3072, 2),
        (8, 768, 3072, 1),
        (64, 768, 448, 1),
        (64, 4100, 3072, 1),
        (64, 150, 3072, 1),
    ):
        p = plan("matmul", (batch, m, k), (batch, k, n), variant="split_direct")
        assert p.launches[0].kernel != "multiply tiles, clusters share k", (m, n, k)


def test_lines_are_held_where_the_others_are_many():
    """Of short k; of enough of them for the chip, by few of the other operand."""
    for m, n, k, batch in (
        (197, 64, 197, 384),
        (64, 301, 200, 100),
        (100_000, 32, 256, 1),
        (255, 128, 127, 200),
        (1, 100_000, 640, 1),
        (300, 8, 128, 200),
        (1_000_000, 16, 128, 1),
        (300, 300, 128, 32),
    ):
        p = plan("matmul", (batch, m, k), (batch, k, n), variant="split_direct")
        (launch,) = p.launches
        few = min(m, n)
        rows = 8 if few <= 8 else 64
        assert p.tile == ((64, rows) if m >= n else (rows, 64))
        assert (launch.kernel, launch.block, launch.cluster, p.workspace_bytes) == (
            f"multiply {p.tile[0]} x {p.tile[1]} tiles",
            (128, 1),
            1,
            0,
        )
        assert launch.grid[0] % (batch * -(-few // 64)) == 0 and launch.shared_bytes <= 227 << 10
        # A block holds what is known of so many lines.
        assert max(m, n) <= launch.grid[0] // (batch * -(-few // 64)) * 64 * 16
    # Where splitting both operands first takes longer.
    for m, n, k, batch, rung in (
        *((197, 64, 197, 384, "split_direct"), (128, 64, 128, 192, "split_direct"), (128, 64, 127, 192, "pipelined")),
        *((300, 300, 128, 32, "split_direct"), (257, 80, 257, 64, "split_direct")),
        *((577, 64, 577, 8, "split_fp16"), (539, 128, 539, 39, "split_fp16"), (512, 64, 512, 192, "split_fp16")),
    ):
        assert plan("matmul", (batch, m, k), (batch, k, n)).rung == rung
    for m, n, k, batch in (
        (197, 64, 197, 12),
        (40, 30, 199, 50),
        (20_000, 600, 128, 1),
        (100_000, 64, 641, 1),
    ):
        p = plan("matmul", (batch, m, k), (batch, k, n), variant="split_direct")
        assert p.launches[0].block[0] > 128
    assert plan("matmul", (16, 768), (768, 50_257)).rung == "split_fp16"


def test_parts_of_long_lines_are_taken_where_they_are_needed():
    for k, late in ((65536, True), (8192, False)):
        names = [launch.kernel for launch in plan("matmul", (64, k), (k, 3000), variant="split_fp16").launches]
        assert names[-2].startswith("multiply parts") and ("split into parts" in names) == late


def test_wide_tiles_are_for_many_lines():
    """Blocks walk them, a multiprocessor each, as many as there are; of fewer lines tiles are finer."""
    for size, other, tile, blocks in (
        ((256, 1024, 1024), 128, (128, 128), 132),
        ((4096, 4096), 128, (64, 128), 128),
        ((96, 1024, 1024), 64, (128, 64), 132),
        ((11008, 4096), 64, (64, 64), 344),
    ):
        p = plan("matmul", size, (*size[:-2], size[-1], other), variant="split_fp16")
        assert (p.tile, main(p).grid[0]) == (tile, blocks)
        assert p.launches[0].kernel == "split B" and p.launches[-2].kernel.startswith("multiply parts")
    # Lines of B are contiguous, and split eight by a cluster.
    assert plan("matmul", (256, 1024, 1024), (256, 1024, 128)).launches[0].grid == (256 * 128 // 8, 1)


def test_both_operands_are_split_as_they_are_read():
    """Where outputs are few and k is long: by runs of segments that fill the chip, or by groups."""
    p = plan("matmul", (64, 65536), (65536, 64))
    assert p.reads == ("split as it is read",) * 2 and (p.tile, p.groups, p.groups_apart) == ((64, 64), 32, True)
    kernels = [
        "split, multiply 64 x 64 tiles",
        "split, multiply parts, 64 x 64 tiles",
        "add segments and groups",
        "finish",
    ]
    assert [launch.kernel for launch in p.launches] == kernels and p.launches[0].grid[0] == 128
    assert "sums of segments" in {r.name for r in p.regions}
    p = plan("matmul", (40, 64, 4500), (40, 4500, 64))
    assert [launch.kernel for launch in p.launches] == [*kernels[:2], "add groups of k", "finish"]
    assert p.launches[0].grid[0] == 40 * 3 and "sums of segments" not in {r.name for r in p.regions}
    # Those who split load what the copy engine does not read: no warps copy. Tiles are as large as one another.
    p = plan("matmul", (100, 20_001), (20_001, 130))
    assert p.reads == ("split as it is read",) * 2 and p.launches[0].grid[0] == 2 * 3 * 21
    assert [launch.block[0] for launch in p.launches[:2]] == [640, 640]
    # So are some rows by more columns, or the reverse, where that is fastest.
    for m, n, k in ((39, 482, 3010), (822, 34, 3573), (64, 260, 4096)):
        assert plan("matmul", (m, k), (k, n)).reads == ("split as it is read",) * 2
    # Not of one group of k, nor of many or very few lines; nor of more columns in a batch, or by longer k.
    for m, n, k in ((64, 64, 2048), (64, 1025, 4096), (130, 260, 4096), (8, 64, 4096), (39, 482, 8200)):
        assert plan("matmul", (m, k), (k, n), variant="split_fp16").reads != ("split as it is read",) * 2
    assert plan("matmul", (2, 39, 3010), (2, 3010, 482), variant="split_fp16").reads != ("split as it is read",) * 2


def test_few_outputs_of_a_long_k_have_several_blocks_a_group():
    p = plan("matmul", (17, 10_000), (10_000, 300), variant="split_fp16")
    blocks, adds, rest = (p.launches[i] for i in (1, 2, 3))
    assert adds.kernel == "add segments" and blocks.grid[0] == 4 * 5 * p.groups
    assert {"sums of segments", "units of groups"} <= {r.name for r in p.regions}
    assert rest.grid[0] == 132


def test_blocks_may_share_what_few_rows_leave():
    """Of one matrix of up to 32768 lines; their sums take a quarter of what the weights do at most."""
    shared = {"lines left, blocks done", "sums of segments left"}
    for m, n, k, batch, shares in (
        (16, 4096, 4096, (), True),
        (128, 4096, 4096, (), True),
        (16, 32768, 1024, (), True),
        (16, 32769, 1024, (), False),
        (100, 3000, 2000, (), True),
        (16, 1024, 1024, (2,), False),
    ):
        p = plan("matmul", (*batch, m, k), (*batch, k, n), variant="split_fp16")
        assert shared.isdisjoint({r.name for r in p.regions}) != shares
        sums = sum(r.bytes for r in p.regions if r.name == "sums of segments left")
        assert sums <= n * k


def test_wide_tiles_hold_all_rows():
    """Their blocks have one tile of these."""
    for m, n, k in itertools.product((33, 64, 65, 100, 128), (8000, 17000, 20000, 25000), (128, 200, 1000)):
        p = plan("matmul", (m, k), (k, n), variant="split_fp16")
        if p.reads[1] == "split as it is read" and p.tile[1] == 128:
            assert p.tile[0] >= m, (m, n, k)


def test_few_rows_are_split_by_as_many_threads_as_they_have_use_for():
    for k, threads, blocks in ((128, 64, 1), (4096, 256, 1), (28672, 1024, 2), (10**6, 1024, 8)):
        split = plan("matmul", (1, k), (k, 64), variant="split_fp16").launches[0]
        assert (split.block[0], split.cluster, split.grid[0]) == (threads, blocks, blocks)


@pytest.mark.parametrize("variant", RUNGS, ids=names(RUNGS))
def test_every_rung(variant):
    for dtype in (tables.DTYPE_NAMES[name] for name in variant.dtypes):
        p = plan("matmul", (300, 200), (200, 500), variant=variant.name, input_dtype=dtype)
        assert (p.rung, p.variant, p.order) == (variant.name, variant.name, variant.order)
        assert p.problem == (1, 300, 500, 200) and p.result_shape == (300, 500)
        tile_m, tile_n = p.tile
        assert f"{tile_m // main(p).cluster} x {tile_n}" in main(p).kernel or p.rung == "persistent"
        assert main(p).grid[0] >= 1 and p.rung in str(p) and main(p).kernel in str(p) and p.bound_us > 0


def test_operands_that_cannot_be_read_are_copied():
    a = torch.empty(3000, 4001, device="meta", dtype=torch.bfloat16)[:, 1:]
    p = plan("matmul", a, torch.empty(4000, 512, device="meta", dtype=torch.bfloat16))
    assert p.rung == "persistent" and p.reads == ("from a copy with aligned rows", "where it lies")
    assert p.launches[0].kernel == "copy A" and [r.name for r in p.regions] == ["copy of A"]
    assert plan("matmul", a, a.t(), variant="naive").reads == ("through its strides",) * 2
    float32 = torch.empty(200, 300, device="meta").t()
    assert plan("matmul", float32, (200, 300), variant="mma").reads[0] == "from a copy along k"
    lazy = torch._neg_view(torch.empty(64, 64, device="meta"))
    assert plan("matmul", lazy, (64, 64)).reads[0] == "written out first"


def test_float64_of_any_rows_is_read_where_it_lies():
    """By threads, 8 bytes at once; large products are worth copies for the copy engine."""
    for a, b in (((192, 25, 137), (192, 137, 255)), ((1009, 89), (89, 371)), ((60, 33, 33), (60, 33, 33))):
        p = plan("matmul", a, b, input_dtype=torch.float64)
        assert (p.rung, p.reads, p.workspace_bytes) == ("specialized_f64", ("where it lies",) * 2, 0)
        assert "small" in p.launches[0].kernel
    p = plan("matmul", (4095, 4097), (4097, 4099), input_dtype=torch.float64)
    assert p.rung == "specialized_f64" and [x.kernel for x in p.launches[:-1]] == ["copy A and B"]
    assert [r.name for r in p.regions] == ["copy of A", "copy of B"]


def test_groups_of_long_k():
    """Side by side where tiles are few, and as many whatever the shape."""
    for m, n, apart in ((100, 100, True), (64, 64, True), (1, 1000, True), (1, 8192, False), (4096, 4096, False)):
        p = plan("matmul", (m, 100_000), (100_000, n), input_dtype=torch.bfloat16)
        assert (p.groups, p.groups_apart) == (49, apart)
        assert [r.name for r in p.regions if "group" in r.name] == ["groups of k"] * apart
        assert p.launches[-1].kernel.startswith("add groups of k") == apart
    p = plan("matmul", (100, 8192), (8192, 96), input_dtype=torch.bfloat16)
    assert p.groups == 1 and not p.regions


def test_batches():
    p = plan("matmul", (8, 64, 128), (128, 256), input_dtype=torch.float16)
    assert p.problem == (1, 8 * 64, 256, 128)  # one matrix of more rows
    p = plan("matmul", (8, 64, 128), (8, 128, 256), input_dtype=torch.float16)
    assert p.problem == (8, 64, 256, 128) and p.result_shape == (8, 64, 256)
    shared = plan("matmul", torch.empty(4, 1, 64, 128, device="meta").transpose(0, 1), (4, 128, 256), variant="naive")
    assert shared.bytes_read == 4 * (4 * 64 * 128 + 4 * 128 * 256)


# Tile, blocks, and whether groups of k are apart, on the first of CHIPS. The models were fitted on the first.
CHOICES = (
    ("pipelined", torch.float32, (4096, 4096, 4096), [((128, 256), 512), ((64, 128), 2048), ((128, 256), 512)]),
    ("pipelined", torch.float32, (1024, 1024, 1024), [((64, 128), 128), ((32, 64), 512), ((32, 64), 512)]),
    ("pipelined", torch.float32, (1500, 2048, 512), [((64, 128), 384), ((128, 256), 96), ((128, 256), 96)]),
    ("mma_f64", torch.float64, (4096, 4096, 4096), [((128, 128), 1024)] * 3),
    ("mma_f64", torch.float64, (128, 4096, 4096), [((64, 64), 256), ((64, 32), 512), ((64, 32), 512)]),
    ("mma_f64", torch.float64, (1, 4096, 4096), [((16, 16), 256)] * 3),
    # Two warps a scheduler, from one block or two; widths that leave few multiprocessors idle.
    ("specialized_f64", torch.float64, (4096, 4096, 4096), [((128, 128), 132)]),
    ("specialized_f64", torch.float64, (128, 4096, 4096), [((128, 64), 128)]),
    ("specialized_f64", torch.float64, (64, 4096, 4096), [((32, 32), 256)]),
    ("persistent", torch.bfloat16, (512, 11008, 4096), [((128, 192), 132)]),
    ("persistent", torch.bfloat16, (512, 14336, 4096), [((128, 224), 132)]),
    ("persistent", torch.bfloat16, (128, 11008, 4096), [((128, 128), 86)]),
    ("persistent", torch.bfloat16, (4096, 4096, 4096), [((256, 256), 132), ((256, 256), 114)]),
    ("persistent", torch.bfloat16, (1024, 1024, 1024), [((64, 128), 128), ((128, 96), 88)]),
    ("persistent", torch.bfloat16, (16, 4096, 4096), [((16, 32), 128), ((16, 32), 114)]),
    ("persistent", torch.bfloat16, (100, 8000, 16384), [((64, 128), 126), ((128, 128), 63)]),
    ("split_fp16", torch.float32, (1024, 1024, 4096), [((128, 128), 128, True), ((128, 80), 104, False)]),
    ("split_fp16", torch.float32, (1000, 1100, 2000), [((128, 80), 112, False)] * 2),
    ("split_fp16", torch.float32, (464, 488, 1072), [((64, 32), 128, False)]),
    ("split_fp16", torch.float32, (768, 768, 768), [((64, 128), 72, False)]),
    ("split_fp16", torch.float32, (1536, 1536, 1536), [((128, 80), 132, False), ((128, 96), 114, False)]),
    ("split_fp16", torch.float32, (1408, 1408, 8192), [((128, 128), 121, False), ((128, 80), 114, True)]),
    ("split_fp16", torch.float32, (4096, 4096, 4096), [((256, 128), 132, False), ((256, 128), 114, False)]),
    ("split_fp16", torch.float32, (16, 28672, 8192), [((16, 64), 1792, True)] * 2),
)


def cluster_of(m, n, k, device):
    """A tile, and how many blocks lie below and beside each other: they share their part of B, and of A."""
    p = plan("matmul", (m, k), (k, n), variant="persistent", input_dtype=torch.float16, device=device)
    tile_m, tile_n = (int(side) for side in re.findall(r"\d+", main(p).kernel))
    below, beside = p.tile[0] // tile_m, p.tile[1] // tile_n
    assert below * beside == main(p).cluster, (m, n, k)
    return tile_m, tile_n, below, beside


def test_every_way_in_which_blocks_of_a_cluster_lie_is_tested():
    """On a GPU by test_matmul_cuda.py, for each tile that has it, and without one by test_emulator.py."""
    tiles = {(128, 256), (128, 192), (128, 128), (128, 96), (64, 128), (64, 96), (64, 64)}
    ways = {(2, 1), (1, 2), (4, 1), (2, 2), (1, 4), (4, 2), (2, 4)}
    never = {(64, 64, 2, 1), (64, 96, 1, 2), (64, 96, 1, 4)}
    found = {cluster_of(*product, "H200") for product in tables.CLUSTERED_PRODUCTS}
    assert found == {(*tile, *way) for tile, way in itertools.product(tiles, ways)} - never
    chip = next(c for c in torch_reduce._plan.CHIPS if c.name == "H200")
    small = {
        cluster_of(*product, dataclasses.replace(chip, multiprocessors=count))
        for count, *product in tables.CLUSTERED_ON_SMALL_CHIPS
    }
    assert {(below, beside) for _, _, below, beside in small} == ways


def strip_of(batch, m, n, k, device, dtype=torch.float16):
    p = plan("matmul", (batch, m, k), (batch, k, n), variant="persistent", input_dtype=dtype, device=device)
    rows, columns = p.strip
    if rows == 0:
        assert columns == 0 and "strip" not in str(p), (m, n, k)
        return None
    # Large tiles fill whole rounds of blocks, and a strip goes from one edge to the other.
    tile_m, tile_n = p.tile
    of_rows = columns == n
    assert (rows < m, columns < n) == (of_rows, not of_rows)
    assert ((m - rows) % tile_m, (n - columns) % tile_n)[not of_rows] == 0
    large, small = [launch for launch in p.launches if launch.kernel.startswith("multiply")]
    # One more line of large tiles would begin another round.
    line = batch * (-(-m // tile_m), -(-n // tile_n))[of_rows]
    tiles = line * ((n - columns) // tile_n, (m - rows) // tile_m)[of_rows]
    at_once = p.chip.multiprocessors // large.cluster
    assert tiles + line > -(-tiles // at_once) * at_once and large.grid[0] <= p.chip.multiprocessors
    assert small.overlapping and not large.overlapping and small.cluster == 1
    assert f"the last {rows} rows" in str(p) if of_rows else f"the last {columns} columns" in str(p)
    return "rows" if of_rows else "columns"


def test_strips_of_smaller_tiles():
    """Some of rows and some of columns, of a batch, and of long k; and on small chips, for the emulator."""
    found = {product: strip_of(*product, "H200") for product in tables.STRIP_PRODUCTS}
    assert set(found.values()) >= {"rows", "columns"}
    assert any(found[p] for p in found if p[0] > 1) and any(found[p] for p in found if p[3] > 8192)
    chip = next(c for c in torch_reduce._plan.CHIPS if c.name == "H200")
    small = [
        strip_of(1, *sizes, dataclasses.replace(chip, multiprocessors=count))
        for count, *sizes in tables.STRIPS_ON_SMALL_CHIPS
    ]
    assert small == ["rows", "columns"]
    assert strip_of(1, 4096, 4096, 4096, "H200") is None and strip_of(1, 1024, 1024, 1024, "H200") is None


@pytest.mark.parametrize(("rung", "dtype", "shape", "found"), CHOICES)
def test_choices_follow_the_chip(rung, dtype, shape, found):
    m, n, k = shape
    seen = []
    for chip in CHIPS[: len(found)]:
        p = plan("matmul", (m, k), (k, n), variant=rung, input_dtype=dtype, device=chip)
        apart = (p.groups_apart,) if rung == "split_fp16" else ()
        seen.append((p.tile, main(p).grid[0], *apart))
    assert seen == found


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_few_outputs_have_narrow_tiles(dtype):
    """Rows, or columns, as many as each has."""
    for m, n, k, tile in (
        (1, 768, 3072, (1, 8)),
        (24, 2048, 8192, (24, 16)),
        (48, 1024, 4096, (24, 16)),
        (100, 500, 4000, (25, 16)),
        (1024, 16, 4096, (8, 16)),
        (2048, 40, 4096, (16, 40)),
    ):
        p = plan("linear", (m, k), (n, k), input_dtype=dtype, variant="persistent")
        assert p.tile == tile and "narrow" in main(p).kernel, (m, n, k)
    for m, n in ((16, 14336), (64, 4096), (4096, 64), (1024, 1024)):
        p = plan("linear", (m, 4096), (n, 4096), input_dtype=dtype, variant="persistent")
        assert "narrow" not in main(p).kernel, (m, n)
    across = main(plan("matmul", (24, 504), (504, 2048), input_dtype=dtype, variant="persistent"))
    assert ("narrow" in across.kernel) == (dtype == torch.float32)


@pytest.mark.parametrize("device", ["H100", "H200"])
def test_few_outputs_of_tfloat32_are_read_where_they_lie(device):
    """One operand in registers, the other turned round in shared memory if need be. Both along k of long k alone."""
    seen = set()
    for m, n, k in tables.NARROW_PRODUCTS:
        for a_lies, b_lies in itertools.product((True, False), repeat=2):
            a = torch.empty(m, k, device="meta") if a_lies else torch.empty(k, m, device="meta").mT
            b = torch.empty(n, k, device="meta").mT if b_lies else torch.empty(k, n, device="meta")
            p = plan("matmul", a, b, tf32=True, device=device)
            launch = next(launch for launch in p.launches if launch.kernel.startswith("multiply"))
            if not (found := re.fullmatch(r"multiply narrow (\d+) x (\d+) tiles", launch.kernel)):
                continue
            assert k > 8192 or not (a_lies and b_lies)
            seen.add((*map(int, found.groups()), a_lies, b_lies))
            assert sorted(p.tile) == sorted(map(int, found.groups()))
            assert launch.shared_bytes <= (227 << 10) - 1024 and launch.block[0] in (192, 256)
            assert p.groups_apart is (len(p.launches) > 1 and "add groups" in p.launches[-1].kernel)
            assert p.groups_apart <= (k > 8192)
    assert len({shape[:2] for shape in seen}) == 7 and len({shape[2:] for shape in seen}) == 4
    assert "narrow" not in main(plan("matmul", (2, 64, 4096), (2, 4096, 64), tf32=True, device=device)).kernel


def test_clusters_share_where_rows_begin_inside_cache_lines():
    """They hold as many blocks as surely fit on the chip at once."""
    for dtype in (torch.float16, torch.float32):
        clusters = set()
        for m, n, k in ((1000, 1000, 1000), (1504, 1000, 3000), (128, 3000, 5000)):
            launch = main(plan("linear", (m, k), (n, k), input_dtype=dtype, variant="persistent"))
            clusters.add(launch.cluster)
            assert launch.cluster == 1 or launch.grid[0] <= 132 * 7 // 8 or launch.cluster == 2, (m, n, k)
            assert launch.grid[0] % launch.cluster == 0
        assert clusters & {4, 8}, dtype
    for m, n, k in ((1024, 1024, 1024), (1536, 1024, 3072), (128, 3072, 5120)):
        assert main(plan("linear", (m, k), (n, k), input_dtype=torch.float16, variant="persistent")).cluster == 1


def test_few_tiles_in_place_are_copied_by_warps_of_their_own():
    """Rows at odd elements of 16 bits as well, which they shift."""

    def kernel(m, n, k, dtype=torch.float32, batch=()):
        a = torch.empty(*batch, k, m, dtype=dtype, device="meta").mT
        return plan("matmul", a, (*batch, k, n), tf32=True, input_dtype=dtype).launches[-1].kernel

    assert "copied apart" in kernel(300, 199, 150) and "copied apart" in kernel(1009, 89, 372)
    assert "copied apart" in kernel(300, 200, 400, torch.float16)
    assert "copied apart" in kernel(301, 201, 200, torch.float16)
    assert "copied apart" not in kernel(3000, 2000, 400, torch.float16)
    assert kernel(197, 197, 64, batch=(384,)).endswith("in place")


def test_groups_of_few_outputs_are_read_in_place():
    """In tiles of 32 x 32, which are more than those that the copy engine fills, also where it could; as tfloat32 in
    smaller ones, from registers."""
    in_place, from_registers = "multiply 32 x 32 tiles, copied apart, in place", "multiply narrow 32 x 8 tiles"
    for dtype, m, n, k, kernel in (
        (torch.float16, 15, 56, 52568, in_place),
        (torch.float16, 28, 12, 42872, in_place),
        (torch.float32, 84, 12, 35100, from_registers),
        (torch.float32, 96, 12, 38972, from_registers),
    ):
        b = torch.empty(n, k, dtype=dtype, device="meta").mT
        p = plan("matmul", (m, k), b, input_dtype=dtype, tf32=True)
        assert p.groups_apart and p.reads == ("where it lies",) * 2, (m, n, k)
        assert p.launches[0].kernel == kernel, (dtype, m, n, k)


def test_few_outputs_read_what_lies_across_k():
    """Of 16 bits, in tiles of 16 or 32 columns, or rows, where the other operand lies along k."""
    widths = set()
    for m, n, k in tables.FEW_OUTPUTS_ACROSS:
        for dtype in (torch.float16, torch.bfloat16):
            p = plan("matmul", (m, k), (k, n), input_dtype=dtype)
            a, b = (torch.empty(shape, dtype=dtype, device="meta").mT for shape in ((k, n), (m, k)))
            of_transposed = plan("matmul", a, b, input_dtype=dtype)
            assert p.tile == of_transposed.tile[::-1] and p.tile[0] <= 64, (m, n, k)
            for q in (p, of_transposed):
                assert len(q.launches) == 1 and main(q).kernel == f"multiply narrow tiles of {p.tile[1]} columns"
            widths.add(p.tile[1])
    assert widths == {16, 32}
    # Not both operands across k, nor tfloat32, which warp groups read across k into registers alone.
    a = torch.empty(2048, 200, dtype=torch.float16, device="meta").mT
    p = plan("matmul", a, (2048, 104), input_dtype=torch.float16)
    assert "narrow" not in main(p).kernel or p.reads != ("where it lies", "where it lies")
    p = plan("matmul", (200, 2048), (2048, 104), tf32=True)
    assert main(p).kernel == "multiply narrow 32 x 8 tiles" and p.reads == ("where it lies", "where it lies")


def test_what_is_copied_for_few_outputs_lies_along_k():
    """Then narrow tiles multiply it; one launch copies both operands."""
    for dtype in (torch.float16, torch.float32):
        for m, n, k in ((9, 121, 3819), (40, 201, 1501)):
            p = plan("matmul", (m, k), (k, n), input_dtype=dtype, tf32=True)
            assert p.reads == ("from a copy with aligned rows", "from a copy along k"), (dtype, m)
            assert p.launches[0].kernel == "copy A and B" and "narrow" in main(p).kernel
            assert len(p.launches) == 2 and main(p).overlapping
    # Where it can be read as it lies, a copy has to pay.
    assert plan("matmul", (100, 512), (512, 2048), input_dtype=torch.float16).workspace_bytes == 0


def test_launches_that_overlap_are_spread_evenly():
    """A multiprocessor has room for no more of their blocks than for an even share."""
    for dtype in (torch.float16, torch.float32, torch.float64):
        for m, n, k in ((64, 64, 64), (500, 300, 100), (1000, 700, 30), (2000, 3, 500), (300, 300, 1200)):
            for launch in plan("matmul", (m, k), (k, n), input_dtype=dtype).launches:
                share = -(-launch.grid[0] // 132)
                if launch.overlapping and launch.kernel.startswith("multiply"):
                    assert launch.shared_bytes * (share + 1) > 227 << 10 >= launch.shared_bytes * share, launch


def test_few_outputs_of_float64_are_small_tiles():
    small = ((32, 1024, 4096), (64, 1024, 1024), (16, 4096, 4096), (1, 4096, 4096))  # few rows
    for m, n, k in (*small, (1, 768, 3072), (32, 46, 64), (128, 128, 128), (79, 973, 1043)):  # chains, odd rows
        p = plan("matmul", (m, k), (k, n), input_dtype=torch.float64)
        assert p.rung == "specialized_f64" and "small" in p.launches[0].kernel, (m, n, k)
    for m, n, k in ((1024, 1024, 1024), (4096, 4096, 4096)):
        p = plan("matmul", (m, k), (k, n), input_dtype=torch.float64)
        assert p.rung == "specialized_f64" and "small" not in p.launches[0].kernel, (m, n, k)
    for k, groups in ((2048, 1), (2049, 2), (8192, 4)):
        assert plan("matmul", (100, k), (k, 100), input_dtype=torch.float64).groups == groups


def test_tasks_that_fill_no_round_are_dealt_out():
    """One to two for each block, whose accumulators lie in the workspace; never where all blocks have as many."""
    for m, n, k in ((3000, 3000, 3000), (1100, 1100, 2000), (128, 11008, 4096)):
        p = plan("matmul", (m, k), (k, n), input_dtype=torch.float64)
        blocks, (rows, columns) = main(p).grid[0], p.tile
        tasks = -(-m // rows) * -(-n // columns)
        assert blocks < p.tasks_dealt < 2 * blocks and (tasks - p.tasks_dealt) % blocks == 0
        assert [(r.name, r.bytes) for r in p.regions] == [("accumulators", blocks * rows * columns * 8)]
        assert f"{p.tasks_dealt} of them dealt out" in str(p)
    for m, n, k in ((1408, 1536, 2048), (512, 512, 512), (100, 100, 100_000)):
        assert plan("matmul", (m, k), (k, n), input_dtype=torch.float64).tasks_dealt == 0


def test_the_order_does_not_know_the_chip():
    for rung, dtype, (m, n, k), _ in CHOICES:
        plans = [
            plan("matmul", (m, k), (k, n), variant=rung, input_dtype=dtype, device=chip)
            for chip in CHIPS
            if tables.row("matmul", rung).runs_on(
                next(c for c in torch_reduce._plan.CHIPS if c.name == chip).capability
            )
        ]
        assert len({(p.order, p.groups, p.operations) for p in plans}) == 1
        assert all(p.workspace_bytes == sum(-(-r.bytes // 256) * 256 for r in p.regions[:-1]) + p.regions[-1].bytes
                   for p in plans if p.regions)  # fmt: skip


def test_stages_are_as_many_as_the_chip_holds():
    found = {c: plan("matmul", (512, 512), (512, 512), variant="mma", tf32=True, device=c).stages for c in CHIPS}
    assert found == {"H200": 4, "H100 PCIe": 4, "A100": 3, "L4": 2}
    assert plan("matmul", (512, 512), (512, 512), variant="mma", device="A100").launches[-1].shared_bytes == 3 * 49152


def test_auto_says_which_rung():
    def rung(device="H200", tf32=False, dtype=torch.float32, m=2048, k=512):
        return plan("matmul", (m, k), (k, 512), device=device, tf32=tf32, input_dtype=dtype).rung

    assert (
        rung() == "split_fp16"
        and rung(m=256, k=128) == "split_direct"
        and rung(k=64) == "pipelined"
        and rung("A100") == "pipelined"
    )
    assert rung(tf32=True) == rung(dtype=torch.bfloat16) == rung(dtype=torch.int8) == "persistent"
    assert rung(dtype=torch.float64) == "specialized_f64" and rung("A100", dtype=torch.float64) == "mma_f64"
    assert rung("A100", dtype=torch.int8) == "mma" and rung(dtype=torch.int64) == "pipelined"


def test_nothing_is_launched_for_nothing():
    for a, b, named in (((0, 5), (5, 3), {}), ((5, 0), (0, 3), {}), ((5, 5), (5, 0), {"variant": "naive"})):
        p = plan("matmul", a, b, **named)
        assert p.launches == () or p.rung in ("naive", "tiled", "pipelined")
        assert p.workspace_bytes == 0 and str(p)
    assert plan("linear", (5, 0), (3, 0), True).launches == ()


def test_it_refuses_what_the_call_refuses():
    for error, arguments, named in (
        (ValueError, ("matmul", (5, 6), (5, 6)), {}),
        (ValueError, ("matmul", (5, 5), (5, 5)), {"variant": "v9"}),
        (ValueError, ("matmul", (5, 5), (5, 5)), {"variant": "tiled", "tile_size": 3}),
        (ValueError, ("matmul", (5, 5), (5, 5)), {"device": "Voodoo"}),
        (ValueError, ("matmul", (5, 5), (5, 5), True), {}),
        (ValueError, ("matmul", (-5, 5), (5, 5)), {}),
        (ValueError, ("linear", (5, 5), (5, 6)), {}),
        (ValueError, ("linear", (5, 5), (5, 5), torch.empty(4)), {}),
        (ValueError, ("convolution", (5, 5), (5, 5)), {}),
        (TypeError, ("matmul", (5, 5), (5, 5)), {"input_dtype": torch.bool}),
        (TypeError, ("matmul", (5, 5), (5, 5)), {"input_dtype": torch.float64, "variant": "mma"}),
        (TypeError, ("matmul", torch.empty(5, 5), torch.empty(5, 5, dtype=torch.float64)), {}),
        (NotImplementedError, ("matmul", (5, 5), (5, 5)), {"variant": "persistent", "device": "A100"}),
    ):
        with pytest.raises(error):
            plan(*arguments, **named)
    with pytest.raises(TypeError, match="plan of matmul takes two operands"):
        plan("matmul", (5, 5))


def test_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan("matmul", (5, 5), (5, 5)).rung = "auto"


def test_cli(capsys, tmp_path):
    path = tmp_path / "plan.json"
    assert cli.main(["plan", "matmul", "4096x4096", "4096x4096", "--device", "H200", "--json", str(path)]) == 0
    said = capsys.readouterr().out
    for words in (
        "split_fp16",
        "256 x 128 outputs",
        "2 of k, one after another",
        "halves of A and B, then parts",
        "finish: grid",
        "µs",
    ):
        assert words in said, words
    found = json.loads(path.read_text())
    assert found["rung"] == "split_fp16" and found["bound_us"] == found["arithmetic_us"] > found["memory_us"]
    arguments = ["--dtype", "bfloat16", "--bias", "--device", "H100 PCIe"]
    assert cli.main(["plan", "linear", "64x8192", "28672x8192", *arguments]) == 0
    assert "with a bias" in capsys.readouterr().out
    assert cli.main(["plan", "matmul", "64x64", "64x64", "--tf32", "--variant", "mma", "--device", "A100"]) == 0
    assert "tfloat32" in capsys.readouterr().out
    for wrong in (["matmul", "4x4"], ["sum", "4", "4"], ["sum", "4", "--tf32"], ["matmul", "4x4", "4x4", "--dim", "0"]):
        assert cli.main(["plan", *wrong]) == 2
        assert capsys.readouterr().err.startswith("torch-reduce plan: error:")


@pytest.mark.cuda
@pytest.mark.parametrize("variant", RUNGS, ids=names(RUNGS))
def test_a_plan_says_what_is_launched(variant):
    """The same, without a GPU: test_emulator.py."""
    if not variant.runs_on(torch.cuda.get_device_capability()):
        pytest.skip(f"{variant.name} does not run on this GPU")
    shapes = ((1, 1, 1), (300, 200, 500), (1024, 1024, 1024), (8, 4096, 4096), (64, 16384, 1000), (100, 4096, 16384))
    for dtype in (tables.DTYPE_NAMES[name] for name in variant.dtypes):
        for m, n, k in shapes:
            for skew in (0, 1):
                a = torch.ones(m, k + skew, device="cuda", dtype=dtype)[:, skew:]
                b = torch.ones(n, k, device="cuda", dtype=dtype).t()
                p = torch_reduce.plan("matmul", a, b, variant=variant.name)
                launched = _C.record_launches(lambda: torch.ops.treduce.matmul(a, b, variant.name))  # noqa: B023
                assert launched == [dataclasses.asdict(launch) for launch in p.launches], (dtype, m, n, k, skew)
