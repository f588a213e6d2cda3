"""matmul: torch's shapes for every pair of ranks, values against float64, and the bits of k order."""

import functools
import itertools
from fractions import Fraction

import numpy as np
import orders
import pytest
import tables
import torch
from bits import assert_same_bits
from cases import generator
from instruction_sets import digests
from products import (
    BIG,
    SIZES,
    assert_close,
    attempt,
    layouts,
    operands,
    product,
    sizes_of,
    strided_operands,
    widest,
    wrapped,
)
from tables import every_dtype, every_matmul_variant

from torch_reduce import _C
from torch_reduce._check import chosen, result_dtype

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTEGERS = (torch.int8, torch.int32, torch.int64)


def runnable(variant, device, dtype=torch.float32):
    tables.needs_dtype(variant, dtype)
    if device == "cuda":
        tables.needs_chip(variant)


@every_matmul_variant
@every_dtype(FLOATS)
def test_values(dtype, variant, device, poisoned):
    runnable(variant, device, dtype)
    for m, k, n in (*SIZES, BIG):
        a, b = operands(m, k, n, dtype)
        for sizes in sizes_of(variant):
            assert_close(product(a.to(device), b.to(device), variant, **sizes), a, b, variant)


@every_matmul_variant
@every_dtype(INTEGERS)
def test_integers_wrap(dtype, variant, device, poisoned):
    runnable(variant, device, dtype)
    for m, k, n in SIZES:
        a, b = operands(m, k, n, dtype)
        for sizes in sizes_of(variant):
            assert_same_bits(product(a.to(device), b.to(device), variant, **sizes).cpu(), wrapped(a, b), f"{(m, k, n)}")


def test_integer_wrap_around_by_hand(device):
    a = torch.full((2, 3), 2**30, dtype=torch.int32, device=device)
    b = torch.full((3, 2), 3, dtype=torch.int32, device=device)
    expected = (9 * 2**30 + 2**31) % 2**32 - 2**31
    assert torch.ops.treduce.matmul(a, b).tolist() == [[expected] * 2] * 2


DEPTHS = (0, 1, 7, 8, 15, 16, 17, 31, 32, 33, 127, 128, 129, 500)


@every_matmul_variant
def test_int8_of_every_depth_and_layout(variant, device, poisoned):
    runnable(variant, device, torch.int8)
    for k in DEPTHS:
        for m, n in ((1, 1), (5, 3), (17, 33), (64, 80), (70, 131)):
            a, b = (x.to(device) for x in operands(m, k, n, torch.int8))
            expected = wrapped(a, b)
            for what, left, right in layouts(a, b):
                assert_same_bits(product(left, right, variant).cpu(), expected, f"{(m, k, n)} {what}")


@every_matmul_variant
def test_int8_at_its_ends(variant, device, poisoned):
    """-128 * -128 is the largest product; 131072 of them pass the end of int32, and 262144 come back to 0."""
    runnable(variant, device, torch.int8)
    for k in (1, 100, 131_071, 131_072, 131_073, 262_144):
        a = torch.full((3, k), -128, dtype=torch.int8, device=device)
        b = torch.full((k, 2), -128, dtype=torch.int8, device=device)
        b[:, 1] = 127
        c = product(a, b, variant)
        assert c.dtype == torch.int32
        assert c.tolist() == [[(p * k + 2**31) % 2**32 - 2**31 for p in (2**14, -128 * 127)]] * 3, k


def test_int8_in_batches(device):
    g = generator(5)
    for left, right in (
        ((4, 20, 33), (4, 33, 17)),
        ((3, 1, 20, 33), (2, 33, 17)),
        ((33,), (4, 33, 17)),
        ((33,), (33,)),
    ):
        a, b = (torch.randint(-128, 128, shape, generator=g, dtype=torch.int8) for shape in (left, right))
        for variant in tables.MATMUL_VARIANTS:
            if tables.runs(variant, device, torch.int8):
                result = attempt(a.to(device), b.to(device), variant)
                assert result is not None or not variant.on_cpu
                if result is not None:
                    assert_same_bits(result.cpu(), wrapped(a, b), f"{variant.name} {left} @ {right}")


# The order.


@functools.cache
def model(m, k, n, dtype):
    return orders.matmul(*operands(m, k, n, dtype))


@every_matmul_variant
@every_dtype((torch.float32, torch.float16, torch.bfloat16))
def test_bits_of_fused_multiply_adds_in_k_order(dtype, variant):
    tables.needs_dtype(variant, dtype)
    for m, k, n in SIZES:
        a, b = operands(m, k, n, dtype)
        expected = model(m, k, n, dtype)
        for sizes in sizes_of(variant):
            assert_same_bits(product(a, b, variant, **sizes), expected, f"{variant.name} {sizes} of {(m, k, n)}")


def exact_fma(a, b, c):
    """a * b + c, rounded once to float64: Python rounds a Fraction correctly."""
    return float(Fraction(a) * Fraction(b) + Fraction(c))


@every_matmul_variant
def test_float64_bits_of_fused_multiply_adds_in_k_order(variant):
    tables.needs_dtype(variant, torch.float64)
    for m, k, n in ((2, 3, 4), (5, 17, 3), (3, 300, 2)):
        a, b = operands(m, k, n, torch.float64)
        expected = torch.zeros(m, n, dtype=torch.float64)
        for i, j in itertools.product(range(m), range(n)):
            total = 0.0
            for p in range(k):
                total = exact_fma(a[i, p].item(), b[p, j].item(), total)
            expected[i, j] = total
        assert_same_bits(product(a, b, variant), expected, f"{(m, k, n)}")


def test_the_model_of_a_fused_multiply_add_is_exact():
    """Against fractions, on values chosen so that two roundings would go wrong."""
    g = np.random.default_rng(0)
    a = np.ldexp(g.integers(2**23, 2**24, 4000), -23).astype(np.float32)
    b = np.ldexp(g.integers(2**23, 2**24, 4000), -23).astype(np.float32)
    c = -(a * b) * np.ldexp(1.0, g.integers(-30, 30, 4000)).astype(np.float32)
    got = orders.fused_multiply_add(a, b, c)
    naive = (a.astype(np.float64) * b + c).astype(np.float32)
    wrong = 0
    for x, y, z, result, twice in zip(a.tolist(), b.tolist(), c.tolist(), got, naive, strict=True):
        exact = Fraction(x) * Fraction(y) + Fraction(z)
        for candidate in (np.nextafter(result, np.float32(np.inf)), np.nextafter(result, np.float32(-np.inf))):
            assert abs(Fraction(float(result)) - exact) <= abs(Fraction(float(candidate)) - exact)
        wrong += result != twice
    # A tie that only the last bits of the product break: half a last place of c, plus a little.
    one = np.float32(1)
    half = np.float32(2.0**-24)
    a, b = half * (one + np.float32(2.0**-23)), one + np.float32(2.0**-23)
    assert orders.fused_multiply_add(np.array([a]), np.array([b]), np.array([one]))[0] == one + np.float32(2.0**-23)
    tiny = np.float32(2.0**-60)
    x, y = np.array([half]), np.array([one])
    assert orders.fused_multiply_add(x, y, np.array([one]))[0] == one  # a tie goes to even
    assert orders.fused_multiply_add(np.array([half + half * tiny]), y, np.array([one]))[0] == one


def test_a_fused_multiply_add_is_not_a_product_and_a_sum():
    """Otherwise the bits above would prove nothing."""
    a, b = operands(33, 64, 33, torch.float32)
    total = torch.zeros(33, 33)
    for p in range(64):
        total = total + a[:, p, None] * b[None, p]
    assert not torch.equal(total, orders.matmul(a, b))


def test_all_variants_and_tiles_of_an_order_class_have_the_same_bits(device):
    """On the CPU that is all of them."""
    for dtype in FLOATS:
        for m, k, n in ((33, 31, 65), (97, 257, 61), (130, 600, 270)):
            a, b = (x.to(device) for x in operands(m, k, n, dtype, seed=9))
            first = {}
            for variant in tables.MATMUL_VARIANTS:
                if not variant.deterministic or not tables.runs(variant, device, dtype):
                    continue
                order = chosen(variant.name, a, b).order if device == "cuda" else "k_order"
                for sizes in sizes_of(variant):
                    result = product(a, b, variant, **sizes)
                    assert_same_bits(result, first.setdefault(order, result), f"{variant.name} {sizes} of {order}")


def test_the_number_of_threads_changes_nothing(one_thread_or_two):
    a, b = operands(*BIG, torch.float32)
    results = []
    for threads in (1, 2, 3):
        one_thread_or_two(threads)
        results.append(product(a, b, None))
    for result in results[1:]:
        assert_same_bits(result, results[0])


@every_dtype((*FLOATS, torch.int32))
def test_few_rows_or_columns_have_the_bits_of_many(dtype):
    """The CPU reads B where it lies for few rows, and takes a column for a row."""
    for k, n in ((300, 1), (77, 40), (513, 1100)):
        a, b = operands(20, k, n, dtype)
        whole = product(a, b, None)
        for what, left, right in layouts(a, b):
            for rows in (1, 2, 3, 4, 5, 8, 9):
                assert_same_bits(product(left[:rows], right, None), whole[:rows], f"{rows} rows, {what}")
                columns = product(right.t(), left[:rows].t(), None)
                assert_same_bits(columns, whole[:rows].t().contiguous(), f"{rows} columns, {what}")


def test_every_instruction_set_of_the_cpu_gives_the_same_bits():
    found = {name: products for name, (products, *_) in digests().items()}
    assert set(found) == {"best", "avx2", "baseline"} and len(set(found.values())) == 1, found


# What `auto` picks.


def test_auto_picks_what_runs_and_keeps_to_one_order():
    """On any chip, without one here: a rung that takes the dtype and runs there; of one order class for all m and n."""
    shapes = ((1, 1), (1, 4096), (16, 11008), (100, 100), (4096, 4096), (8192, 50257), (65_536, 1))
    naive = tables.row("matmul", "naive")
    for name, tfloat32 in itertools.product(naive.dtypes + naive.composed_dtypes, (False, True)):
        for capability in (0, 75, 80, 86, 89, 90, 100, 120):
            for k in (0, 1, 100, 4096, 65_536):
                rows = [tables.row("matmul", _C.matmul_choice(name, m, n, k, capability, tfloat32)) for m, n in shapes]
                for row in rows:
                    assert name in row.dtypes + row.composed_dtypes and row.name != "auto"
                    assert row.on_cpu if capability == 0 else row.runs_on(divmod(capability, 10))
                    assert name != "float32" or tfloat32 or row.float32_bits > 11
                assert len({row.order for row in rows}) == 1, f"{name} k {k}: {[row.name for row in rows]}"


# Ranks and layouts.

RANK_SHAPES = [
    (3,),
    (2, 3),
    (3, 3),
    (4, 2, 3),
    (1, 3, 3),
    (4, 3, 3),
    (5, 4, 2, 3),
    (5, 1, 3, 3),
    (1, 1, 3, 3),
    (2, 1, 4, 3, 3),
]


def fits(a, b):
    try:
        torch.matmul(torch.empty(a, device="meta"), torch.empty(b, device="meta"))
    except RuntimeError:
        return False
    return True


@every_matmul_variant
def test_every_pair_of_ranks(variant, device):
    dtype = widest(variant)
    runnable(variant, device, dtype)
    pairs = [(a, b) for a in RANK_SHAPES for b in RANK_SHAPES]
    assert sum(fits(*pair) for pair in pairs) > 50
    for i, (left, right) in enumerate(pairs):
        g = generator(i)
        a, b = (torch.randn(shape, generator=g, dtype=torch.float64).to(device, dtype) for shape in (left, right))
        if not fits(left, right):
            with pytest.raises(ValueError, match="matmul cannot multiply shapes"):
                product(a, b, variant)
            continue
        result = attempt(a, b, variant)
        if result is not None:
            assert result.is_contiguous(), f"{left} @ {right}"
            assert_close(result, a, b, variant)


@pytest.mark.parametrize(
    "shapes",
    [
        ((2, 0), (0, 3)),
        ((0,), (0,)),
        ((4, 0, 3), (3, 2)),
        ((0, 2, 3), (3, 2)),
        ((0, 2, 3), (0, 3, 2)),
        ((4, 2, 0), (4, 0, 3)),
        ((3,), (3, 0)),
        ((0, 1, 2, 3), (1, 5, 3, 2)),
    ],
    ids=str,
)
def test_sizes_of_zero(shapes, device, poisoned):
    for dtype in (torch.float32, torch.int8, torch.int64):
        a, b = (torch.ones(shape, dtype=dtype, device=device) for shape in shapes)
        expected = torch.matmul(a.cpu(), b.cpu()).to(result_dtype("matmul", dtype))
        for variant in tables.MATMUL_VARIANTS:
            if tables.runs(variant, device, dtype):
                assert_same_bits(product(a, b, variant).cpu(), expected)


@every_matmul_variant
def test_layouts(variant, device):
    runnable(variant, device)
    for name, (a, b) in strided_operands(device).items():
        before = a.clone(), b.clone()
        for sizes in sizes_of(variant):
            result = product(a, b, variant, **sizes)
            assert_same_bits(result, product(a.contiguous(), b.contiguous(), variant, **sizes), f"{name} {sizes}")
            assert_close(result, a, b, variant)
        assert torch.equal(a, before[0]) and torch.equal(b, before[1])


@every_matmul_variant
def test_slices_at_every_offset(variant, device):
    runnable(variant, device)
    base = torch.randn(60, 60, device=device)
    for offset in range(0, 17):
        a, b = base[offset : offset + 19, offset : offset + 21], base[1:22, offset : offset + 23]
        assert_same_bits(product(a, b, variant), product(a.clone(), b.clone(), variant), f"offset {offset}")


def test_more_batch_dimensions_than_a_kernel_takes(device):
    """Ten that do not merge: broadcast in one operand, then in the other."""
    a = torch.randn(*[2, 1] * 5, 3, 4, dtype=torch.float64, device=device)
    b = torch.randn(*[1, 2] * 5, 4, 2, dtype=torch.float64, device=device)
    for variant in tables.MATMUL_VARIANTS:
        dtype = widest(variant)
        if tables.runs(variant, device, dtype):
            result = attempt(a.to(dtype), b.to(dtype), variant)
            assert result is not None or not variant.on_cpu, f"{variant.name} refuses"
            if result is not None:
                assert_close(result, a.to(dtype), b.to(dtype), variant)


@pytest.mark.cuda
def test_operands_with_strides_are_not_copied():
    """A transposed operand of 8 MB costs no memory but the result's. On tensor cores that is so for 16-bit ones, whose
    instructions read either direction."""
    x, y = torch.randn(1024, 2048, device="cuda"), torch.randn(4096, 1024, device="cuda")
    for variant in tables.MATMUL_VARIANTS:
        dtype = torch.float32 if variant.on_cpu else torch.float16
        if not tables.runs(variant, "cuda", dtype):
            continue
        a, b = x.to(dtype).t(), y.to(dtype)[::4].t()
        product(a, b, variant)
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        c = product(a, b, variant)
        assert torch.cuda.max_memory_allocated() - before <= c.numel() * c.element_size() + 2**16, variant.name


# Special values.


@every_matmul_variant
@every_dtype((torch.float32, torch.float16))
def test_special_values_stay_in_their_row_and_column(dtype, variant, device):
    runnable(variant, device, dtype)
    a, b = (x.to(device) for x in operands(33, 20, 35, dtype))
    nan = torch.tensor(float("nan"), dtype=dtype)
    a[5, 3] = float("nan")
    b[19, 30] = float("inf")
    c = product(a, b, variant).cpu()
    assert c[5].isnan().all() and not c[:5].isnan().any() and not c[6:].isnan().any()
    if tables.has_cpus_bits(variant, a, b):
        assert_same_bits(c[5], nan.expand(35).contiguous())
    assert c[:5, 30].isinf().all() and not c[:5, :30].isinf().any()
    zeros = torch.zeros(33, 20, dtype=dtype, device=device)
    assert product(zeros, b, variant)[:, 30].isnan().all()  # 0 * inf
    minus = product(zeros, -torch.ones(20, 4, dtype=dtype, device=device), variant)
    assert_same_bits(minus.cpu(), torch.zeros(33, 4, dtype=dtype))  # 0 + 0 * -1 is +0


@every_matmul_variant
def test_float16_rounds_once(variant, device):
    runnable(variant, device, torch.float16)
    a = torch.full((1, 4099), 1.0, dtype=torch.float16, device=device)
    b = torch.full((4099, 1), 0.5, dtype=torch.float16, device=device)
    assert product(a, b, variant).item() == 2050  # 2049.5: a tie, to even; running float16 sums would stop at 1024
    big = torch.full((1, 4), 300.0, dtype=torch.float16, device=device)
    signs = torch.tensor([[300.0], [300.0], [-300.0], [-300.0]], dtype=torch.float16, device=device)
    assert product(big, signs, variant).item() == 0  # passes 180000 on the way
    assert product(big, signs.abs(), variant).item() == float("inf")


def test_a_batch_is_its_matrices(device):
    """Batching changes no bit."""
    a, b = torch.randn(5, 40, 33, device=device), torch.randn(5, 33, 20, device=device)
    for variant in tables.MATMUL_VARIANTS:
        if not tables.runs(variant, device):
            continue
        whole = product(a, b, variant)
        for i in range(5):
            assert_same_bits(whole[i].contiguous(), product(a[i], b[i], variant))
