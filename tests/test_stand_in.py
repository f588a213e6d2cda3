"""Reductions of dtypes that no kernel reads: as those of the values in another dtype."""

import pytest
import tables
import torch
from bits import assert_same_bits
from cases import generator
from tables import every_dtype

import torch_reduce

ops = torch.ops.treduce
UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)
FLOAT8 = (torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.float8_e8m0fnu)
DIMS = (None, 0, -1, (0, 2), (1, 2), (0, 1, 2))


def unsigned(dtype, *shape):
    bits = 8 * dtype.itemsize
    values = torch.randint(-(2**63), 2**63 - 1, shape, generator=generator(3))
    return (values if bits == 64 else values & (2**bits - 1)).to(dtype)


@every_dtype(UNSIGNED)
def test_sums_of_unsigned_integers_are_torchs(dtype, device):
    x = unsigned(dtype, 5, 40, 130)
    for view in (x, x.transpose(0, 2), x[:, ::3], x[:0]):
        for dim in DIMS:
            for keepdim in (False, True):
                expected = torch.sum(view, dim, keepdim) if dim is not None else torch.sum(view)
                given = view.to(device)
                found = ops.sum(given, dim=dim, keepdim=keepdim and dim is not None)
                assert_same_bits(found.cpu(), expected, f"{dim} {keepdim}")
                assert ops.sum(given.to("meta"), dim=dim).dtype == torch.int64
    assert ops.mean(x.to(device), dim=1, dtype=torch.float64).dtype == torch.float64
    assert_same_bits(ops.sum(x.to(device), dim=1, dtype=torch.float32), ops.sum(x.float().to(device), dim=1))
    with pytest.raises(NotImplementedError, match="name a floating-point dtype"):
        ops.mean(x.to(device))
    for op in (ops.amax, ops.amin):
        with pytest.raises(TypeError, match="takes float32"):
            op(x.to(device))


@every_dtype(FLOAT8)
def test_8_bit_floats_are_reduced_in_float32(dtype, device):
    if dtype == torch.float8_e8m0fnu:
        x = torch.randint(120, 136, (5, 40, 130), dtype=torch.uint8, generator=generator(3)).view(dtype).to(device)
    else:
        x = torch.randn(5, 40, 130, generator=generator(3)).to(dtype).to(device)
    for op in tables.REDUCTIONS:
        for dim in DIMS:
            found = getattr(ops, op)(x, dim=dim)
            assert_same_bits(found, getattr(ops, op)(x.float(), dim=dim), f"{op} {dim}")
            assert getattr(ops, op)(x.to("meta"), dim=dim).shape == found.shape


def halves(*shape):
    return torch.view_as_complex(torch.randn(*shape, 2, generator=generator(3)).half())


def test_complex32(device):
    x = halves(5, 40, 130).to(device)
    for op in ("sum", "mean"):
        call = getattr(ops, op)
        for view in (x, x.transpose(0, 2), x[:, ::3], x.conj()):
            wide = view.to(torch.complex64)
            for dim in DIMS:
                found = call(view, dim=dim)
                parts = torch.view_as_real(call(wide, dim=dim)).half()
                assert_same_bits(torch.view_as_real(found), parts, f"{op} {dim}")
                assert found.dtype == torch.complex32 and call(view.to("meta"), dim=dim).shape == found.shape
                assert_same_bits(call(view, dim=dim, dtype=torch.complex64), call(wide, dim=dim))
        assert call(x, dim=(0, -1), keepdim=True).shape == (1, 40, 1)
        assert call(x[0, 0, 0]).shape == () and call(x[0, 0, 0]) == x[0, 0, 0]
        with pytest.raises(IndexError):
            call(x, dim=3)
    y = halves(3, 4).to(device).requires_grad_()
    ops.sum(y, dim=1).to(torch.complex64).abs().sum().backward()
    assert y.grad.shape == y.shape and y.grad.dtype == torch.complex32


def test_what_is_refused(device):
    for dtype in (*UNSIGNED, *FLOAT8, torch.complex32):
        x = torch.empty(8, dtype=dtype, device=device)
        for variant in tables.CLASSIC:
            with pytest.raises(TypeError, match=f"'{variant.name}' takes float32.*auto"):
                ops.sum(x, variant.name)
        with pytest.raises(ValueError, match="unknown variant"):
            ops.sum(x, "sume")


def test_plans(device):
    p = torch_reduce.plan("sum", torch.empty(64, 100, dtype=torch.uint16, device="meta"), 1, device="H200")
    assert p.result_dtype == "int64" and p.schedule.copies and p.schedule.launches
    p = torch_reduce.plan("sum", torch.empty(64, 100, dtype=torch.complex32, device="meta"), 1, device="H200")
    assert p.result_dtype == "complex32" and p.result_shape == (64,) and not p.schedule.copies


@pytest.mark.parametrize("variant", tables.PAIRWISE, ids=tables.names(tables.PAIRWISE))
def test_a_rung_refuses_on_the_cpu_what_it_refuses_on_a_gpu(variant):
    for shape, dim in (((64, 1000), 1), ((1000, 64), 0), ((4, 7), 1), ((5, 2000, 3), 1), ((300_000,), None)):
        x = torch.ones(shape)
        try:
            torch_reduce.plan("sum", x, dim, variant=variant.name, device="H200")
        except ValueError as refusal:
            with pytest.raises(ValueError, match=f"'{variant.name}' ") as found:
                ops.sum(x, variant.name, dim=dim)
            assert str(found.value) == str(refusal)
        else:
            ops.sum(x, variant.name, dim=dim)
