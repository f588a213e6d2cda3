"""Properties over random shapes, strides, dtypes and sizes (hypothesis)."""

import math
import os

import cases
import orders
import pytest
import tables
import torch
from bits import assert_same_bits
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from tables import call

# The same examples on every run.
steady = settings(
    max_examples=60, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck)
)

lengths = st.one_of(
    st.integers(0, 70), st.integers(0, 5000), st.sampled_from([2**k + d for k in range(12) for d in (-1, 1)])
)
float_dtypes = st.sampled_from(cases.FLOATS)
dtypes = st.sampled_from(cases.DTYPES)
seeds = st.integers(0, 10)


@st.composite
def launches(draw):
    """A variant with fixed order, and arguments that it takes."""
    variant = draw(st.sampled_from(tables.ORDERED))
    sizes = {}
    if variant.sizes and draw(st.booleans()):
        sizes["block_size"] = draw(st.sampled_from(variant.sizes))
    if variant.takes_num_blocks and draw(st.booleans()):
        sizes["num_blocks"] = draw(st.integers(1, 200))
    return variant, sizes


@st.composite
def views(draw, dtype):
    """A view of up to four dimensions with any strides: sliced, stepped, permuted, expanded."""
    shape = draw(st.lists(st.integers(0, 9), min_size=0, max_size=4))
    x = cases.values(math.prod(shape), dtype, "normal", seed=draw(seeds)).view(shape)
    for dim in range(x.dim()):
        choice = draw(st.integers(0, 4))
        if choice == 1 and x.shape[dim]:
            x = x.narrow(dim, draw(st.integers(0, x.shape[dim] - 1)), 1).expand(*x.shape[:dim], 5, *x.shape[dim + 1 :])
        elif choice == 2:
            x = x[(slice(None),) * dim + (slice(draw(st.integers(0, 3)), None, draw(st.integers(1, 3))),)]
        elif choice == 3:
            x = x.flip(dim)
    return x.permute(draw(st.permutations(range(x.dim()))))


@steady
@given(launches(), lengths, float_dtypes, st.sampled_from(["sum", "mean"]), st.sampled_from(["wide", "uniform"]), seeds)
def test_any_length_has_the_bits_of_its_order(launch, n, dtype, op, kind, seed):
    variant, sizes = launch
    x = cases.values(n, dtype, kind, seed)
    expected = orders.reduce(op, x, variant.order, sizes.get("block_size"), sizes.get("num_blocks"))
    assert_same_bits(call(op, x, variant.name, **sizes), expected)


@steady
@given(st.data(), launches(), dtypes, st.sampled_from(["sum", "amax", "amin"]))
def test_any_view_is_read_in_the_order_of_its_values(data, launch, dtype, op):
    variant, sizes = launch
    x = data.draw(views(dtype))
    if op != "sum" and x.numel() == 0:
        return
    # A copy of the values for the classic rungs; the others read memory in its own order.
    read = x if variant.along_dims else x.contiguous().clone()
    expected = orders.reduce(op, read, variant.order, sizes.get("block_size"), sizes.get("num_blocks"))
    assert_same_bits(call(op, x, variant.name, **sizes), expected)


# Along dims.

EXTENTS = (
    0,
    1,
    2,
    3,
    4,
    5,
    7,
    8,
    15,
    16,
    17,
    31,
    33,
    48,
    64,
    65,
    127,
    128,
    129,
    200,
    513,
    1024,
    1025,
    2049,
    5003,
    20_011,
)
MOST = 100_000  # elements of an input, of what it is expanded to, and of a result


def volume(shape):
    """Of its dims that are not empty: what is left when the empty ones have been reduced."""
    return math.prod(max(size, 1) for size in shape)


@st.composite
def geometries(draw):
    """(shape of the memory, elements before it, view, dims): any rank to 5, sliced, stepped, expanded, permuted."""
    shape = draw(st.lists(st.sampled_from(EXTENTS), max_size=5))
    while volume(shape) > MOST:
        shape[shape.index(max(shape))] = draw(st.sampled_from(EXTENTS[:10]))
    steps = []
    sizes = list(shape)
    for dim, size in enumerate(shape):
        choice = draw(st.integers(0, 6))
        if choice == 0 and size > 2:
            begin, end = draw(st.integers(0, 2)), size - draw(st.integers(0, 1))
            steps.append((dim, slice(begin, end)))
        elif choice == 1:
            steps.append((dim, slice(draw(st.integers(0, 1)), None, draw(st.integers(2, 3)))))
        elif choice == 2 and size == 1:
            sizes[dim] = draw(st.sampled_from(EXTENTS[:12]))
    if volume(sizes) > MOST:
        sizes = shape
    order = draw(st.permutations(range(len(shape)))) if draw(st.booleans()) else range(len(shape))

    def view(x):
        for dim, part in steps:
            x = x[(slice(None),) * dim + (part,)]
        return x.expand([n if m == 1 else -1 for n, m in zip(sizes, x.shape, strict=True)]).permute(list(order))

    dims = (
        draw(st.lists(st.sampled_from(range(-len(shape), len(shape))), unique_by=lambda d: d % len(shape)))
        if shape
        else []
    )
    return shape, draw(st.sampled_from((0, 0, 1, 2, 3, 8, 13))), view, draw(st.sampled_from((None, dims, dims, dims)))


@st.composite
def reductions(draw):
    """An op and a dtype that go together, what is reduced along which dims, and keepdim."""
    dtype = draw(st.sampled_from(cases.EVERY_DTYPE))
    op = draw(st.sampled_from([op for op in cases.REDUCTIONS if tables.takes(tables.row(op, "auto"), op, dtype)]))
    shape, offset, view, dims = draw(geometries())
    kind = draw(st.sampled_from(("normal", "uniform", "wide" if dtype.itemsize >= 4 else "normal")))
    memory = cases.values(math.prod(shape) + offset, dtype, kind, draw(seeds))

    def on(device):
        return view(memory.to(device)[offset:].view(shape))

    if op.startswith("a"):
        x = on("cpu")
        assume(all(x.shape[d] for d in orders.dims_of(x, dims)))
    return op, on, dims, draw(st.booleans())


@settings(steady, max_examples=400)
@given(reductions(), st.data())
def test_any_geometry_has_the_bits_of_the_model(reduction, data):
    op, on, dims, keepdim = reduction
    x = on("cpu")
    names = [v.name for v in tables.ALONG_DIMS if v.order != "exact" or x.numel() < 5000]
    variant = tables.row(op, data.draw(st.sampled_from(names)))
    expected = orders.reduce_dims(op, x, dims, keepdim=keepdim, order=variant.order)
    result = tables.attempt(op, x, variant, dim=dims, keepdim=keepdim)
    if result is not None:
        assert_same_bits(result, expected, f"{op} of {tuple(x.shape)} by {x.stride()} along {dims}")


# As many as there is time for: TORCH_REDUCE_EXAMPLES=20000.
@pytest.mark.cuda
@settings(steady, max_examples=int(os.environ.get("TORCH_REDUCE_EXAMPLES", 2000)))
@given(reductions(), st.data())
def test_any_geometry_has_the_cpus_bits(reduction, data):
    """Every rung that takes it, with sizes of its own, on the GPU."""
    op, on, dims, keepdim = reduction
    here, there = on("cpu"), on("cuda")
    sizes = {
        "block_size": data.draw(st.sampled_from((None, None, 32, 64, 256, 1024))),
        "num_blocks": data.draw(st.sampled_from((None, None, 1, 2, 7, 66, 132, 1000))),
    }
    expected = {}
    for variant in tables.ALONG_DIMS:
        if not tables.can_run(tuple(variant.capability)):
            continue
        result = tables.attempt(op, there, variant, dim=dims, keepdim=keepdim, **sizes)
        if result is None:
            continue
        if variant.order not in expected:
            expected[variant.order] = call(op, here, variant.name, dim=dims, keepdim=keepdim)
        what = f"{op} of {tuple(here.shape)} by {here.stride()} along {dims}, {variant.name} {sizes}"
        assert_same_bits(result.cpu(), expected[variant.order], what)


@steady
@given(reductions())
def test_any_geometry_has_torchs_shape(reduction):
    op, on, dims, keepdim = reduction
    x = on("cpu")
    ours = call(op, x, dim=dims, keepdim=keepdim)
    theirs = getattr(torch, op)(x.float() if x.dtype in cases.FLOAT8 else x, dim=dims or (), keepdim=keepdim)
    assert (ours.dtype, ours.shape, ours.stride()) == (theirs.dtype, theirs.shape, theirs.stride())
    meta = call(op, x.to("meta"), dim=dims, keepdim=keepdim)
    assert (ours.dtype, ours.shape, ours.stride()) == (meta.dtype, meta.shape, meta.stride())


@steady
@given(
    st.lists(st.integers(-8, 8), max_size=4), st.lists(st.integers(1, 3), max_size=4), st.sampled_from(cases.REDUCTIONS)
)
def test_any_dims_work_or_are_refused_as_torch_refuses_them(dims, shape, op):
    x = torch.ones(shape)
    outcomes = []
    for function in (getattr(torch, op), lambda x, **kwargs: call(op, x, **kwargs)):
        try:
            outcomes.append(function(x, dim=dims).tolist())
        except (IndexError, RuntimeError) as error:
            outcomes.append((type(error), str(error)))
    assert outcomes[0] == outcomes[1]


@steady
@given(st.integers(0, 40), st.integers(0, 40), st.integers(0, 40), st.booleans(), st.booleans(), seeds)
def test_any_product_has_the_bits_of_k_order(m, k, n, transpose_a, transpose_b, seed):
    g = cases.generator(seed)
    a = torch.randn((k, m) if transpose_a else (m, k), generator=g)
    b = torch.randn((n, k) if transpose_b else (k, n), generator=g)
    a, b = a.t() if transpose_a else a, b.t() if transpose_b else b
    expected = orders.matmul(a, b)
    for variant in tables.MATMUL_VARIANTS:
        if "float32" in variant.dtypes:
            assert_same_bits(torch.ops.treduce.matmul(a, b, variant.name), expected)


@st.composite
def matmul_shapes(draw):
    """Two shapes that torch.matmul accepts."""
    m, k, n = (draw(st.integers(0, 5)) for _ in range(3))
    batch = draw(st.lists(st.integers(0, 3), max_size=3))

    def part():
        own = [size if draw(st.booleans()) else 1 for size in batch]
        return own[draw(st.integers(0, len(own))) :] if own else own

    a = [k] if draw(st.integers(0, 4)) == 0 else [*part(), m, k]
    b = [k] if draw(st.integers(0, 4)) == 0 else [*part(), k, n]
    return a, b


@steady
@given(matmul_shapes(), st.sampled_from([torch.float64, torch.int8, torch.int64]))
def test_any_shapes_multiply_as_torchs(shapes, dtype):
    a, b = (torch.randn(shape, dtype=torch.float64).mul(10).to(dtype) for shape in shapes)
    expected = torch.matmul(a, b) if dtype != torch.int8 else torch.matmul(a.int(), b.int())
    for variant in tables.MATMUL_VARIANTS:
        if tables.runs(variant, "cpu", dtype):
            torch.testing.assert_close(torch.ops.treduce.matmul(a, b, variant.name), expected)
    meta = torch.ops.treduce.matmul(a.to("meta"), b.to("meta"))
    assert meta.shape == expected.shape and meta.dtype == expected.dtype


@steady
@given(st.data(), dtypes)
def test_any_views_add_as_torchs(data, dtype):
    a = data.draw(views(dtype))
    shape = [size if data.draw(st.booleans()) else 1 for size in a.shape][data.draw(st.integers(0, a.dim())) :]
    b = cases.values(math.prod(shape), dtype, "normal", seed=3).view(shape)
    expected = a + b
    for variant in tables.ADD_VARIANTS:
        assert_same_bits(torch.ops.treduce.vector_add(a, b, variant.name), expected)


@steady
@given(st.text(max_size=20))
def test_any_name_is_known_or_refused(name):
    known = {n for v in tables.REDUCE_VARIANTS for n in (v.name, *v.aliases)}
    x = torch.arange(5)
    try:
        assert call("sum", x, name).item() == 10 and name in known
    except ValueError as error:  # a known one may not take the shape
        assert ("unknown variant" in str(error)) == (name not in known)
    except (RuntimeError, UnicodeError):  # lone surrogates never reach the op
        assert any(0xD800 <= ord(c) < 0xE000 for c in name)


@steady
@given(st.integers(-(2**63), 2**63 - 1), st.integers(-(2**63), 2**63 - 1), st.sampled_from(tables.REDUCE_VARIANTS))
def test_any_sizes_work_or_are_refused(block_size, num_blocks, variant):
    x = torch.arange(5)
    for sizes in ({"block_size": block_size}, {"num_blocks": num_blocks}):
        if abs(next(iter(sizes.values()))) < 2**31 and "num_blocks" in sizes:
            continue  # would be taken, and allocate that many partials
        try:
            assert call("sum", x, variant.name, **sizes).item() == 10
        except ValueError as error:
            assert next(iter(sizes)) in str(error)
