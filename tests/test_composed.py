"""Products of dtypes that no kernel multiplies: uint8, int16, complex64 and complex128."""

import math

import pytest
import tables
import torch
from bits import assert_same_bits
from cases import generator
from tables import every_dtype, every_matmul_variant

import torch_reduce
from torch_reduce import _C, _check

ops = torch.ops.treduce
COMPLEX = (torch.complex64, torch.complex128)
SMALL = (torch.uint8, torch.int16)
SHAPES = (
    (1, 1, 1),
    (5, 3, 7),
    (1, 300, 40),
    (40, 300, 1),
    (33, 150, 65),
    (130, 40, 27),
    (0, 3, 2),
    (3, 2, 0),
    (3, 0, 2),
)

RANKS = (
    *(((4,), (4,)), ((4,), (4, 3)), ((2, 4), (4,)), ((5, 2, 4), (4, 3)), ((5, 2, 4), (5, 4, 3)), ((4,), (5, 4, 3))),
    *(((2, 1, 3, 4), (5, 4, 2)), ((5, 2, 4), (4,)), ((1, 2, 4), (5, 4, 3))),
)


def random(*shape, dtype, seed=0):
    g = generator(seed + math.prod(shape))
    if dtype.is_complex:
        return torch.randn(shape, dtype=torch.complex128, generator=g).to(dtype)
    return torch.randint(torch.iinfo(dtype).min, torch.iinfo(dtype).max + 1, shape, generator=g).to(dtype)


def names_in(variant):
    return [getattr(torch, name) for name in variant.composed_dtypes]


def runs(variant, device):
    return device == "cpu" or variant.runs_on(torch.cuda.get_device_capability())


def views(matrix):
    """The same matrix as it may lie in memory."""
    yield matrix
    yield matrix.t().contiguous().t()
    yield torch.cat([matrix, matrix], 1)[:, : matrix.size(1)]
    yield torch.stack([matrix, matrix], 2)[:, :, 1]
    if matrix.is_complex():
        yield matrix.conj().resolve_conj().conj()


def join(rr, ii, ri, ir):
    return torch.complex(rr - ii, ri + ir)


def by_parts(a, b, variant):
    """What a complex product is, from products of real and imaginary parts."""

    def real(x, y):
        return ops.matmul(x.contiguous(), y.contiguous(), variant)

    return join(real(a.real, b.real), real(a.imag, b.imag), real(a.real, b.imag), real(a.imag, b.real))


def by_formula(a, b):
    """The same in torch's real products."""
    return join(a.real @ b.real, a.imag @ b.imag, a.real @ b.imag, a.imag @ b.real)


def test_who_takes_which():
    for variant in tables.MATMUL_VARIANTS:
        of = {"int8": "uint8", "int32": "int16", "float32": "complex64", "float64": "complex128"}
        assert set(variant.composed_dtypes) == {of[name] for name in variant.dtypes if name in of}


@every_matmul_variant
def test_values(variant, device, poisoned):
    if not runs(variant, device):
        pytest.skip("needs another chip")
    for dtype in names_in(variant):
        for m, k, n in SHAPES:
            a, b = random(m, k, dtype=dtype).to(device), random(k, n, dtype=dtype, seed=1).to(device)
            result = ops.matmul(a, b, variant.name)
            if dtype.is_complex:
                checked = _check.check("matmul", variant.name, result, (a, b), _check.truth("matmul", a, b))
                assert checked, f"{(m, k, n)} {dtype}: {checked.reason}"
            else:
                assert_same_bits(result.cpu(), (a.cpu().long() @ b.cpu().long()).to(dtype), f"{(m, k, n)}")
            assert result.is_contiguous() and result.dtype == dtype


@every_matmul_variant
def test_complex_bits_are_those_of_real_products_and_of_every_layout(variant, device, poisoned):
    if not runs(variant, device):
        pytest.skip("needs another chip")
    for dtype in (d for d in names_in(variant) if d.is_complex):
        for m, k, n in ((5, 3, 7), (1, 300, 40), (33, 150, 65)):
            a, b = random(m, k, dtype=dtype).to(device), random(k, n, dtype=dtype, seed=1).to(device)
            expected = by_parts(a, b, variant.name)
            for left in views(a):
                for right in views(b):
                    assert_same_bits(ops.matmul(left, right, variant.name), expected, f"{(m, k, n)} {dtype}")
            if variant.on_cpu:
                assert_same_bits(ops.matmul(a.cpu(), b.cpu(), variant.name), expected.cpu())
            for i in (0, m - 1):
                assert_same_bits(ops.matmul(a[i : i + 1], b, variant.name), expected[i : i + 1], f"row {i}")


@every_dtype((*SMALL, *COMPLEX))
def test_ranks_and_batches(dtype, device):
    for left, right in RANKS:
        a, b = random(*left, dtype=dtype).to(device), random(*right, dtype=dtype, seed=1).to(device)
        wide = torch.complex128 if dtype.is_complex else torch.int64
        expected = torch.matmul(a.cpu().to(wide), b.cpu().to(wide)).to(dtype)
        torch.testing.assert_close(ops.matmul(a, b).cpu(), expected)
        assert ops.matmul(a.to("meta"), b.to("meta")).shape == expected.shape
        if len(left) == len(right) == 3:
            wider = ops.matmul(a.expand(5, *left[1:]), b)
            assert_same_bits(wider, ops.matmul(a, b))
            assert_same_bits(torch.vmap(ops.matmul)(a.expand(5, *left[1:]), b), wider)


@every_dtype((*SMALL, *COMPLEX))
def test_linear(dtype, device):
    for m, k, n in ((3, 5, 4), (1, 200, 30), (4, 0, 3)):
        x, w = random(m, k, dtype=dtype).to(device), random(n, k, dtype=dtype, seed=1).to(device)
        bias = random(n, dtype=dtype, seed=2).to(device)
        assert_same_bits(ops.linear(x, w), ops.matmul(x, w.t()))
        assert_same_bits(ops.linear(x, w, bias), ops.matmul(x, w.t()) + bias)
        if dtype.is_complex:
            assert_same_bits(ops.linear(x, w, bias.conj()), ops.matmul(x, w.t()) + bias.conj())


@every_dtype(COMPLEX)
def test_infinities_and_the_one_nan(dtype, device):
    inf = math.inf
    a = torch.tensor([[complex(inf, 0), 1 + 1j], [complex(math.nan, 1), 2j], [3, 4j]], dtype=dtype)
    b = torch.tensor([[1, 2j], [1j, complex(0, -inf)]], dtype=dtype)
    result = ops.matmul(a.to(device), b.to(device))
    quiet = torch.full((), math.nan, dtype=torch.view_as_real(result).dtype)
    parts, expected = torch.view_as_real(result.cpu()), torch.view_as_real(by_formula(a, b))
    assert parts.isnan().any() and parts.isinf().any()
    torch.testing.assert_close(parts, expected, equal_nan=True)
    assert_same_bits(parts[parts.isnan()], quiet.expand_as(parts)[parts.isnan()].contiguous())


def test_gradients_are_torchs(device):
    for left, right in (((3, 4), (4, 5)), ((4,), (4, 5)), ((2, 3, 4), (4, 5)), ((2, 3, 4), (2, 4, 1)), ((4,), (4,))):
        a, b = (random(*s, dtype=torch.complex128, seed=len(s)).to(device).requires_grad_() for s in (left, right))
        torch.autograd.gradcheck(ops.matmul, (a, b))
        torch.autograd.gradgradcheck(ops.matmul, (a, b))
        ours, torchs = ops.matmul(a, b), torch.matmul(a, b)
        g = random(*torchs.shape, dtype=torch.complex128, seed=9).to(device)
        for found, expected in zip(*(torch.autograd.grad(y, (a, b), g) for y in (ours, torchs)), strict=True):
            torch.testing.assert_close(found, expected)
    x, w, bias = (random(*s, dtype=torch.complex128).to(device).requires_grad_() for s in ((2, 3, 4), (5, 4), (5,)))
    torch.autograd.gradcheck(ops.linear, (x, w, bias))
    w = random(4, dtype=torch.complex128).to(device).requires_grad_()
    torch.autograd.gradcheck(ops.linear, (x, w))


@every_dtype((*SMALL, *COMPLEX))
def test_compile_and_autocast(dtype, device):
    a, b = random(6, 7, dtype=dtype).to(device), random(7, 5, dtype=dtype, seed=1).to(device)
    expected = ops.matmul(a, b)
    assert_same_bits(torch.compile(torch_reduce.matmul, backend="aot_eager")(a, b), expected)
    with torch.autocast(device, torch.bfloat16):
        assert_same_bits(torch_reduce.matmul(a, b), expected)


def test_plans_say_what_is_multiplied():
    a = torch.empty(100, 300, dtype=torch.complex64, device="meta")
    p = torch_reduce.plan("matmul", a, (300, 50), device="H200", input_dtype=torch.complex64)
    assert p.rung == "split_direct" and "one product of float32" in p.made_of and p.made_of in str(p)
    assert p.problem == (1, 200, 100, 300) and p.result_shape == (100, 50) and p.result_dtype == "complex64"
    assert p.reads[0] == "written out first" and p.reads[1] != "written out first"
    assert p.operations == 3 * 4 * 2 * 100 * 50 * 300
    assert (p.bytes_read, p.bytes_written) == ((100 + 50) * 300 * 8, 100 * 50 * 8)
    p = torch_reduce.plan("linear", (64, 128), (32, 128), True, device="H200", input_dtype=torch.uint8)
    assert p.unit == "int8 on tensor cores" and p.result_dtype == "uint8" and "as int8" in p.made_of
    p = torch_reduce.plan("matmul", (4, 0), (0, 3), device="H200", input_dtype=torch.complex128)
    assert not p.launches
    for variant in tables.MATMUL_VARIANTS:
        for dtype in names_in(variant):
            p = torch_reduce.plan("matmul", (64, 96), (96, 32), variant=variant.name, device="H200", input_dtype=dtype)
            assert p.launches and p.made_of and p.result_dtype == str(dtype).removeprefix("torch.")


@pytest.mark.cuda
@every_dtype((*SMALL, *COMPLEX))
def test_a_plan_says_what_is_launched(dtype):
    for m, n, k in ((1, 1, 1), (300, 200, 500), (8, 1024, 1024)):
        a, b = random(m, k, dtype=dtype).cuda(), random(n, k, dtype=dtype).cuda().t()
        p = torch_reduce.plan("matmul", a, b)
        launched = _C.record_launches(lambda: ops.matmul(a, b))  # noqa: B023
        assert [launch["kernel"] for launch in launched] == [launch.kernel for launch in p.launches]
