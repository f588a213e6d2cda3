"""The order of additions along dims: every rung that takes a geometry gives the bits of the model (orders.py)."""

import functools
import math

import cases
import numpy as np
import orders
import pytest
import tables
import torch
from bits import assert_same_bits
from cases import COMPLEX, EVERY_DTYPE, FLOAT8, FLOATS, REDUCTIONS
from instruction_sets import digests
from tables import attempt, call, every_dtype, every_reduction, every_variant_along_dims

AUTO = tables.row("sum", "auto")
LENGTHS = tuple(cases.ROW_LENGTHS)
every_geometry = pytest.mark.parametrize("name", cases.geometries(1))


def ops_for(variant, dtype, x, dim):
    """The reductions that have a meaning here."""
    nothing = 0 in [x.shape[d] for d in orders.dims_of(x, dim)]
    return [op for op in REDUCTIONS if tables.takes(variant, op, dtype) and not (op.startswith("a") and nothing)]


# The model itself.


def literally(x):
    """One output, as pairwise.h puts it: a list of leaves, then neighbours, with what is missing left out."""
    leaves = []
    for chunk in range(0, max(len(x), 1), 1024):
        for lane in range(chunk, chunk + 128):
            elements = x[lane : min(chunk + 1024, len(x)) : 128]
            leaves.append(functools.reduce(lambda a, b: a + b, elements) if len(elements) else None)
    while len(leaves) > 1:
        leaves += [None] * (len(leaves) % 2)
        pairs = zip(leaves[0::2], leaves[1::2], strict=True)
        leaves = [a if b is None else b if a is None else a + b for a, b in pairs]
    return leaves[0] if leaves[0] is not None else x.dtype.type(0)


def test_the_model_is_its_description():
    for n in (0, 1, 2, 3, 5, 127, 128, 129, 300, 1023, 1024, 1025, 2047, 3000, 5000):
        for dtype in (torch.float32, torch.float64):
            x = cases.values(2 * n, dtype, "wide").view(2, n)
            expected = torch.tensor(np.array([literally(row) for row in x.numpy()]))
            assert_same_bits(orders.reduce_dims("sum", x, 1), expected, f"{n}")
            depth = orders.depth("pairwise", dtype, n)
            assert depth >= max(n - 1, 0).bit_length() if n <= 128 else depth <= 7 + math.ceil(math.log2(n / 8)) + 1


# Every rung, every geometry.


@every_geometry
@every_variant_along_dims
def test_every_rung_has_the_bits_of_its_order(variant, name):
    for n in (3, 33, 1025):
        shape, view, dim = cases.geometries(n)[name]
        if variant.order == "exact" and math.prod(shape) > 20_000:
            continue  # its model adds Python integers
        x = cases.along(shape, view, torch.float32, kind="wide")
        result = attempt("sum", x, variant, dim=dim)
        if result is not None:
            assert_same_bits(result, model(name, n, variant.order), f"{variant.name}, {name} of {n}")


@functools.cache
def model(name, n, order):
    shape, view, dim = cases.geometries(n)[name]
    return orders.reduce_dims("sum", cases.along(shape, view, torch.float32, kind="wide"), dim, order=order)


@every_geometry
@every_dtype(EVERY_DTYPE)
def test_every_dtype_has_the_bits_of_the_order(dtype, name):
    """auto, for every op."""
    for n in LENGTHS if dtype in (torch.float32, torch.bfloat16) else LENGTHS[::3]:
        shape, view, dim = cases.geometries(n)[name]
        x = cases.along(shape, view, dtype)
        for op in ops_for(AUTO, dtype, x, dim):
            expected = orders.reduce_dims(op, x, dim)
            assert_same_bits(call(op, x, dim=dim), expected, f"{op}, {name} of {n}")


@every_geometry
@pytest.mark.parametrize("name_of_order", ["compensated", "exact"])
def test_the_precise_orders_for_every_dtype(name_of_order, name):
    variant = tables.row("sum", name_of_order)
    for n in (3, 129, 1025):
        shape, view, dim = cases.geometries(n)[name]
        if math.prod(shape) > 10_000:
            continue
        for dtype in EVERY_DTYPE:
            x = cases.along(shape, view, dtype, kind="wide" if dtype in (torch.float32, torch.float64) else "normal")
            for op in ops_for(variant, dtype, x, dim):
                expected = orders.reduce_dims(op, x, dim, order=variant.order)
                assert_same_bits(call(op, x, variant.name, dim=dim), expected, f"{op}, {name} of {n} {dtype}")


def test_long_rows():
    for name in ("rows", "columns", "middle", "outer_and_inner", "permuted", "inner_slice", "sliding_windows"):
        shape, view, dim = cases.geometries(cases.LONG_ROW)[name]
        for dtype in (torch.float32, torch.float16, torch.float64):
            x = cases.along(shape, view, dtype, kind="normal")
            expected = {order: orders.reduce_dims("sum", x, dim, order=order) for order in ("pairwise", "compensated")}
            for variant in tables.ALONG_DIMS:
                if variant.order in expected:
                    result = attempt("sum", x, variant, dim=dim)
                    if result is not None:
                        assert_same_bits(result, expected[variant.order], f"{variant.name}, {name} {dtype}")


def test_every_rung_takes_something():
    """What is refused everywhere has been tested nowhere."""
    for variant in tables.ALONG_DIMS:
        taken = [
            (name, n)
            for n in (3, 33, 1025)
            for name, (shape, view, dim) in cases.geometries(n).items()
            if attempt("sum", cases.along(shape, view, torch.float32), variant, dim=dim) is not None
        ]
        assert len(taken) >= 3, f"{variant.name} takes {taken}"


@every_dtype((torch.float32, torch.float16, torch.float64, torch.int8))
def test_every_alignment(dtype):
    for n in (7, 64, 1030):
        base = cases.values(6 * (n + 20), dtype, "wide" if dtype.itemsize >= 4 else "normal")
        for offset in range(17):
            row_stride = n + offset % 3
            for x, dim in (
                (base.as_strided((5, n), (row_stride, 1), offset), 1),
                (base.as_strided((n, 5), (5, 1), offset), 0),
                (base.as_strided((n,), (1,), offset), None),
            ):
                expected = orders.reduce_dims("sum", x, dim)
                for variant in tables.PAIRWISE:
                    result = attempt("sum", x, variant, dim=dim)
                    if result is not None:
                        assert_same_bits(result, expected, f"{variant.name}, {n} at {offset} along {dim}")


@every_reduction
def test_dtype_conversion_has_the_models_bits(op):
    if op.startswith("a"):
        return
    for source in EVERY_DTYPE:
        for target in (torch.float32, torch.float64, torch.float16, torch.bfloat16, *COMPLEX):
            if source.is_complex and not target.is_complex:
                continue
            x = cases.values(5 * 1100, source, "normal").view(5, 1100)
            for view, dim in ((x, 1), (x.t(), 1), (x, None)):
                expected = orders.reduce_dims(op, view, dim, target)
                assert_same_bits(call(op, view, dim=dim, dtype=target), expected, f"{op} of {source} as {target}")


def test_the_whole_tensor_is_one_row():
    """auto without dim has the order of auto with all of them."""
    for n in (0, 1, 129, 5000, 100_003):
        for dtype in FLOATS:
            x = cases.values(n, dtype, "normal")
            assert_same_bits(call("sum", x), orders.reduce_dims("sum", x), f"{n}")
            assert_same_bits(call("sum", x), call("sum", x.view(1, n), dim=1)[0], f"{n}")


# Every element, once.


def places_of(n):
    """Where lanes, vectors, warps, stripes, chunks and groups of chunks begin and end."""
    edges = {0, n - 1, n // 2}
    for step in (4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384):
        edges |= {step - 1, step, step + 1, n // step * step - 1, n // step * step}
    return sorted(p for p in edges if 0 <= p < n)


def walked(n, dtype, device):
    """n rows of n, each with a single one in another place: windows that slide over one array of zeros."""
    memory = torch.zeros(2 * n - 1, dtype=dtype, device=device)
    memory[n - 1] = 1
    return memory.as_strided((n, n), (1, 1))


@every_variant_along_dims
def test_a_single_one_walks_through_zeros(variant, device):
    if device == "cuda":
        tables.needs_chip(variant)
    more = device == "cuda"  # on the CPU the rungs of an order share one executor
    for n in (1, 2, 3, 31, 64, 65, 200, 1500) if more else (1, 3, 65, 300):
        for dtype in (torch.float32, torch.float16, torch.int8) if more else (torch.float32, torch.int8):
            for x, dim in ((walked(n, dtype, device), 1), (torch.eye(n, dtype=dtype, device=device), 0)):
                for view in (x, x.contiguous()):
                    result = attempt("sum", view, variant, dim=dim)
                    if result is not None:
                        assert result.eq(1).all(), f"{n} {dtype} along {dim}"
    n = 40_000
    places = places_of(n) + list(range(77, n, 997)) if more else places_of(n)[::3]
    x = torch.zeros(n, 3, device=device)
    for memory, dim in ((x, 0), (x.view(3, n), 1), (x.view(-1), None)):
        for place in places:
            where = place * memory.stride(dim or 0) + (0 if dim is None else memory.stride(1 - dim))
            x.view(-1)[where] = 1
            result = attempt("sum", memory, variant, dim=dim)
            x.view(-1)[where] = 0
            if result is None:
                break
            expected = 1 if dim is None else [0, 1, 0]
            assert result.tolist() == expected, f"place {place} along {dim}"


@every_variant_along_dims
def test_special_values_at_every_edge(variant, device):
    """A NaN or an infinity in one place of one row: that row's result and no other."""
    if device == "cuda":
        tables.needs_chip(variant)
    inf, nan = math.inf, math.nan
    few = (torch.float32, torch.float16)  # on the CPU, where the rungs of an order share one executor
    for n in (2, 7, 64, 129, 1025, 17_000):
        places = places_of(n)
        for dtype in (*FLOATS, torch.float8_e5m2) if n < 2000 and device == "cuda" else few:
            for special in (nan, inf, -inf):
                x = torch.ones(2 * len(places), n, dtype=torch.float32)
                for i, place in enumerate(places):
                    x[2 * i, place] = special
                x = x.to(dtype)
                for view, dim in ((x.to(device), 1), (x.t().contiguous().to(device), 0)):
                    for op, expected in (
                        ("sum", special),
                        ("mean", special),
                        ("amax", special if special != -inf else 1.0),
                        ("amin", special if special != inf else 1.0),
                    ):
                        result = attempt(op, view, variant, dim=dim)
                        if result is None:
                            continue
                        others = float(n) if op == "sum" else 1.0
                        right = torch.tensor([expected, others], dtype=torch.float64).to(result.dtype)
                        assert_same_bits(
                            result.cpu(), right.repeat(len(places)), f"{op} of {n} {dtype} with {special} along {dim}"
                        )


@every_variant_along_dims
def test_infinities_of_both_signs_are_nan(variant, device):
    if device == "cuda":
        tables.needs_chip(variant)
    for n in (2, 129, 3000):
        for dtype in (*FLOATS, torch.float8_e5m2, *COMPLEX):
            if not tables.takes(variant, "sum", dtype):
                continue
            x = torch.ones(3, n, dtype=torch.float64)
            x[1, 0], x[1, n - 1] = math.inf, -math.inf
            x = x.to(dtype).to(device)
            for view, dim in ((x, 1), (x.t(), 0), (x.t().contiguous(), 0)):
                result = attempt("sum", view, variant, dim=dim)
                if result is not None:
                    real = result.real if dtype.is_complex else result
                    expected = torch.tensor([n, math.nan, n], dtype=torch.float64).to(real.dtype)
                    assert_same_bits(real.cpu(), expected, f"{n} {dtype}")


@every_variant_along_dims
def test_zeros_and_their_signs(variant, device):
    if device == "cuda":
        tables.needs_chip(variant)
    for n in (1, 2, 33, 1025):
        zeros = torch.full((4, n), -0.0, device=device)
        mixed = zeros.clone()
        mixed[:, n // 2] = 0.0
        for x, dim in ((zeros, 1), (zeros.t().contiguous(), 0), (mixed, 1), (mixed.t().contiguous(), 0)):
            for op in REDUCTIONS:
                result = attempt(op, x, variant, dim=dim)
                if result is not None:
                    assert_same_bits(result.cpu(), orders.reduce_dims(op, x, dim), f"{op} of {n} along {dim}")
    nothing = attempt("sum", torch.zeros(3, 0, device=device), variant, dim=1)
    if nothing is not None:
        assert_same_bits(nothing.cpu(), torch.zeros(3), "nothing")


@every_variant_along_dims
def test_nan_results_are_canonical_along_dims(variant, device):
    """Whatever sign and payload came in."""
    if device == "cuda":
        tables.needs_chip(variant)
    for dtype, word in ((torch.float32, torch.int32), (torch.float16, torch.int16), (torch.float64, torch.int64)):
        x = torch.ones(3, 200, dtype=dtype, device=device)
        x.view(word)[1, 150] = -1  # every bit set: negative, quiet or signalling
        for view, dim in ((x, 1), (x.t().contiguous(), 0)):
            for op in REDUCTIONS:
                result = attempt(op, view, variant, dim=dim)
                if result is not None:
                    assert_same_bits(result[1].cpu(), torch.tensor(math.nan, dtype=dtype), f"{op} {dtype}")
                    assert not result[0].isnan() and not result[2].isnan()


def test_float8_values(device):
    """Each of the 256 patterns, alone and among zeros."""
    patterns = torch.arange(256, dtype=torch.uint8)
    for dtype in FLOAT8:
        x = patterns.view(dtype)
        column = torch.zeros(3, 256, dtype=torch.uint8).view(dtype)
        column[1] = x
        expected = torch.where(x.float().isnan(), math.nan, x.float() + 0.0)
        assert_same_bits(call("sum", x.view(256, 1).to(device), dim=1).cpu(), expected, f"{dtype}")
        assert_same_bits(call("sum", column.to(device), dim=0).cpu(), expected, f"{dtype}")
        finite = x[~x.float().isnan() & ~x.float().isinf()]
        assert_same_bits(call("amax", finite.to(device)).cpu(), finite.float().max())
        assert_same_bits(call("sum", finite.to(device)).cpu(), orders.reduce_dims("sum", finite))


# The instruction sets of a CPU.


def test_every_instruction_set_of_the_cpu_gives_the_same_bits_along_dims():
    found = {name: reductions for name, (_, reductions, _) in digests().items()}
    assert set(found) == {"best", "avx2", "baseline"} and len(set(found.values())) == 1, found
