"""The order contract on the CPU: each variant gives the bits of the model of its order class (orders.py)."""

import functools

import cases
import orders
import pytest
import tables
import torch
from bits import assert_same_bits
from cases import FLOATS
from tables import call, every_dtype, every_ordered_variant, sizes_of

BLOCK_SIZES = (1, 32, 128, 1024)


@functools.cache
def values(n, dtype, kind):
    return cases.values(n, dtype, kind)


@functools.cache
def model(op, dtype, n, kind, order, block_size=None, num_blocks=None):
    return orders.reduce(op, values(n, dtype, kind), order, block_size, num_blocks)


def expected(op, dtype, n, kind, variant, sizes):
    return model(op, dtype, n, kind, variant.order, sizes.get("block_size"), sizes.get("num_blocks"))


def check(op, dtype, lengths, kind, variant, sweep):
    for n in lengths:
        x = values(n, dtype, kind)
        for sizes in sweep:
            what = f"{op} of {n} {kind} {dtype}, {variant.name} {sizes}"
            assert_same_bits(call(op, x, variant.name, **sizes), expected(op, dtype, n, kind, variant, sizes), what)


@every_ordered_variant
@every_dtype(FLOATS)
def test_sum_has_the_bits_of_its_order(dtype, variant):
    check("sum", dtype, cases.LENGTHS, "wide", variant, sizes_of(variant, BLOCK_SIZES, (3,)))


@every_ordered_variant
@every_dtype(FLOATS)
def test_mean_has_the_bits_of_its_order(dtype, variant):
    check("mean", dtype, cases.LENGTHS, "normal", variant, [{}, *sizes_of(variant, (32,), (7,))[1:2]])


@every_ordered_variant
@pytest.mark.parametrize("kind", cases.DISTRIBUTIONS)
def test_every_distribution(kind, variant):
    for dtype in FLOATS:
        check("sum", dtype, (33, 4097, 65_537), kind, variant, [{}])


@every_ordered_variant
def test_every_block_size(variant):
    sweep = sizes_of(variant)
    check("sum", torch.float32, (0, 1, 33, 1025, 10_007), "wide", variant, sweep)
    check("sum", torch.float64, (10_007,), "wide", variant, sweep)


@every_ordered_variant
def test_every_number_of_blocks(variant):
    if not variant.takes_num_blocks:
        with pytest.raises(ValueError, match="num_blocks"):
            call("sum", torch.ones(5), variant.name, num_blocks=2)
        return
    sweep = [{"num_blocks": blocks} for blocks in (1, 2, 3, 7, 8, 9, 31, 64, 255, 256, 257, 1000, 5000)]
    check("sum", torch.float32, (1, 1000, 65_537), "wide", variant, sweep)


@every_ordered_variant
def test_millions(variant):
    for n in cases.LONG_LENGTHS:
        check("sum", torch.float32, (n,), "wide", variant, [{}])
    check("sum", torch.float16, (6_000_011,), "uniform", variant, [{}])


@every_ordered_variant
@pytest.mark.parametrize("op", ["amax", "amin"])
def test_extrema(op, variant):
    for dtype in FLOATS:
        check(op, dtype, [n for n in cases.SHORT_LENGTHS if n], "wide", variant, [{}])


@every_ordered_variant
def test_values_that_meet_special_ones(variant):
    """Infinities and NaN in the middle of the trees, and -0 among zeros."""
    g = cases.generator(5)
    for n in (33, 1025, 10_007):
        for special in (float("inf"), float("-inf"), float("nan"), -0.0):
            x = cases.normal(n, g).float() if special != 0 else torch.zeros(n)
            x[torch.randint(0, n, (3,), generator=g)] = special
            for op in cases.REDUCTIONS:
                assert_same_bits(call(op, x, variant.name), orders.reduce(op, x, variant.order), f"{op} with {special}")


def test_variants_of_one_class_have_the_same_bits():
    classes = {}
    for variant in tables.ORDERED:
        classes.setdefault(variant.order, []).append(variant)
    assert max(len(rows) for rows in classes.values()) >= 4
    for rows in classes.values():
        for n in (1, 1025, 10_007, 262_145):
            x = cases.values(n, torch.float32, "wide", seed=4)
            for size in (None, 32, 256, 1024):
                if size is not None and any(size not in row.sizes for row in rows):
                    continue
                results = [call("sum", x, row.name, block_size=size) for row in rows]
                for row, result in zip(rows, results, strict=True):
                    assert_same_bits(result, results[0], f"{row.name} and {rows[0].name}, {n}, block {size}")


def test_different_classes_differ_somewhere():
    """If they did not, the tests above would prove nothing."""
    inputs = [cases.values(20_011, torch.float32, "normal", seed=seed) for seed in range(12)]
    inputs.append(torch.tensor([1e30, 1.0, 1e15, -1e30, -1e15]))  # more digits than `compensated` holds
    seen = {}
    for variant in tables.ORDERED:
        # With a block for every T elements a grid-stride sum would be the tree of `halves`.
        sizes = ({"block_size": 256} if variant.sizes else {}) | ({"num_blocks": 5} if variant.takes_num_blocks else {})
        seen.setdefault(tuple(call("sum", x, variant.name, **sizes).item() for x in inputs), set()).add(variant.order)
    assert all(len(classes) == 1 for classes in seen.values()), seen
    assert len(seen) == len({variant.order for variant in tables.ORDERED})


def test_the_number_of_threads_changes_nothing(one_thread_or_two):
    for variant in tables.ORDERED:
        for n in (100_003, 1_000_003):
            x = cases.values(n, torch.float32, "wide", seed=6)
            results = []
            for threads in (1, 2, 3):
                one_thread_or_two(threads)
                results.append(call("sum", x, variant.name))
            for result in results[1:]:
                assert_same_bits(result, results[0], variant.name)


@every_ordered_variant
def test_defaults_are_the_documented_ones(variant):
    x = cases.values(65_537, torch.float32, "wide", seed=7)
    default = call("sum", x, variant.name)
    if not variant.sizes or variant.along_dims:  # whose sizes change no bits
        return
    block = orders.DEFAULT_BLOCK[variant.order]
    assert_same_bits(call("sum", x, variant.name, block_size=block), default, "the default block size")
    if variant.takes_num_blocks:
        blocks = orders.grid(variant.order, x.dtype, x.numel(), block)
        given = call("sum", x, variant.name, block_size=block, num_blocks=blocks)
        assert_same_bits(given, default, "the default number of blocks")


@every_ordered_variant
def test_alignment_and_position_change_nothing(variant):
    base = cases.values(20_000, torch.float32, "wide", seed=8)
    for offset in range(8):
        x = base[offset : offset + 10_007]
        assert_same_bits(call("sum", x, variant.name), orders.reduce("sum", x, variant.order), f"offset {offset}")


def test_auto_has_the_bits_of_whatever_it_may_pick():
    assert tables.row("sum", "auto").order == "pairwise" and len(tables.PAIRWISE) > 5
    for n in (0, 1, 500, 1024, 1025, 5000, 20_000, 300_000, 2_000_003):
        for dtype in FLOATS:
            x = cases.values(n, dtype, "wide")
            expected = orders.reduce("sum", x, "pairwise")
            for variant in tables.PAIRWISE:
                result = tables.attempt("sum", x, variant)
                if result is not None:
                    assert_same_bits(result, expected, f"{variant.name} of {n}")


@pytest.mark.parametrize("n", [1, 1000, 100_003])
def test_batches_do_not_matter(n):
    """The order depends on the length, not on the shape."""
    x = cases.values(n, torch.float32, "wide")
    for variant in tables.ORDERED:
        assert_same_bits(call("sum", x.view(1, n, 1), variant.name), call("sum", x, variant.name), variant.name)
