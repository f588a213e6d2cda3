"""What the reductions return, against float64 or exact arithmetic: every op, dtype and variant, on CPU and CUDA."""

import functools
import math

import cases
import orders
import pytest
import tables
import torch
from bits import assert_same_bits
from bounds import assert_within_bound
from cases import DTYPES, FLOATS, INTEGERS
from tables import call, every_dtype, every_reduction, every_variant

EXACT_DTYPES = (*INTEGERS, torch.bool)


def reference(op, x):
    """The exact result, where there is one: integers and bool, and amax and amin of anything."""
    x = x.cpu()
    if op == "sum":
        return x.to(torch.int64).sum()
    return getattr(x, op)() if x.dtype != torch.bool else (x.any() if op == "amax" else x.all())


def runnable(variant, device):
    if device == "cuda":
        tables.needs_chip(variant)


@every_variant
@every_dtype(FLOATS)
@pytest.mark.parametrize("op", ["sum", "mean"])
def test_float_sums_are_within_the_bound_of_their_order(op, dtype, variant, device, poisoned):
    runnable(variant, device)
    lengths = [n for n in cases.LENGTHS if n > 0]
    kinds = list(cases.DISTRIBUTIONS)
    for i, n in enumerate(lengths):
        kind = kinds[i % len(kinds)]
        if dtype == torch.float16 and kind in ("wide", "cancelling"):
            kind = "normal"  # those leave its range
        x = cases.values(n, dtype, kind)
        result = call(op, x.to(device), variant.name)
        assert result.dtype == dtype and result.shape == () and result.device.type == device
        assert_within_bound(result, op, x, variant, {})


@every_variant
@pytest.mark.parametrize("kind", cases.DISTRIBUTIONS)
def test_every_distribution_is_within_the_bound(kind, variant, device):
    runnable(variant, device)
    sizes = {"block_size": 64} if 64 in variant.sizes else {}
    for dtype in (torch.float32, torch.float64):
        x = cases.values(10_007, dtype, kind, seed=1)
        assert_within_bound(call("sum", x.to(device), variant.name, **sizes), "sum", x, variant, sizes)


@every_variant
@every_dtype(EXACT_DTYPES)
@pytest.mark.parametrize("op", ["sum", "amax", "amin"])
def test_integers_are_exact_and_wrap(op, dtype, variant, device, poisoned):
    runnable(variant, device)
    for n in cases.LENGTHS:
        if n == 0 and op != "sum":
            continue
        x = cases.values(n, dtype)
        assert_same_bits(call(op, x.to(device), variant.name).cpu(), reference(op, x), f"{op} of {n}")


@every_variant
@every_dtype(FLOATS)
@pytest.mark.parametrize("op", ["amax", "amin"])
def test_extrema_are_exact(op, dtype, variant, device, poisoned):
    runnable(variant, device)
    for n in cases.LENGTHS:
        if n == 0:
            continue
        x = cases.values(n, dtype, "wide", seed=2)
        assert_same_bits(call(op, x.to(device), variant.name).cpu(), reference(op, x), f"{op} of {n}")


@functools.cache
def millions(n):
    """Bytes, their sum and their least; and floats, the same tensor each time, so that its exact sum is kept."""
    ints = cases.values(n, torch.int8)
    return ints, ints.sum().item(), ints.min().item(), cases.values(n, torch.float32, "uniform")


@every_variant
def test_millions_of_elements(variant, device):
    runnable(variant, device)
    for n in cases.LONG_LENGTHS:
        if device == "cuda" and variant.name == "serial" and n > 2**20:
            continue  # one thread of a GPU
        ints, total, least, x = millions(n)
        assert call("sum", ints.to(device), variant.name).item() == total
        assert call("amin", ints.to(device), variant.name).item() == least
        assert_within_bound(call("sum", x.to(device), variant.name), "sum", x, variant, {})


@every_variant
def test_small_whole_numbers_sum_exactly(variant, device):
    runnable(variant, device)
    for n in (1000, 65_537, 262_145):
        for dtype in (torch.float32, torch.float64):
            x = cases.values(n, dtype, "whole")
            assert call("sum", x.to(device), variant.name).item() == x.double().sum().item()


# Where the elements lie.


@every_variant
@every_dtype((torch.float32, torch.float64, torch.bfloat16, torch.int8))
def test_slices_at_every_offset(dtype, variant, device, poisoned):
    runnable(variant, device)
    base = cases.values(3000, dtype, seed=3).to(device)
    for offset in range(17):
        for n in (1, 5, 16, 100, 2049):
            x = base[offset : offset + n]
            fresh = x.clone()
            for op in ("sum", "amax"):
                expected = call(op, fresh, variant.name)
                result = call(op, x, variant.name)
                if variant.deterministic:
                    assert_same_bits(result, expected, f"{op} of {n} at offset {offset}")
                else:
                    torch.testing.assert_close(result, expected)


@every_reduction
@every_variant
@every_dtype((torch.float32, torch.float16, torch.int8, torch.int64, torch.bool))
def test_layouts(dtype, variant, op, device):
    runnable(variant, device)
    if op == "mean" and not dtype.is_floating_point:
        return
    for name, x in cases.layouts(dtype, device).items():
        if op.startswith("a") and x.numel() == 0:
            continue
        before = x.clone()
        result = call(op, x, variant.name)
        # The classic rungs add values in their order, the others in the order of memory.
        lying = x.permute(orders.memory_order(x, range(x.dim()))) if variant.along_dims else x
        expected = call(op, lying.contiguous().clone().reshape(-1), variant.name)
        assert result.shape == ()
        if variant.deterministic:
            assert_same_bits(result, expected, f"{op} of {name}")
        else:
            torch.testing.assert_close(result, expected, equal_nan=True)
        assert torch.equal(x, before), f"{op} changed its input ({name})"


@every_variant
def test_the_input_is_never_changed(variant, device):
    runnable(variant, device)
    for dtype in (torch.float32, torch.int32):
        x = cases.values(5000, dtype).to(device)
        before, version = x.clone(), x._version
        for op in cases.REDUCTIONS:
            if op != "mean" or dtype.is_floating_point:
                call(op, x, variant.name)
        assert torch.equal(x, before) and x._version == version


def test_lazy_negation_is_seen(device):
    x = torch.randn(100, dtype=torch.complex64, device=device).conj().imag
    assert x.is_neg()
    expected = x.clone()
    assert_same_bits(call("sum", x, "two_pass"), call("sum", expected.resolve_neg().contiguous(), "two_pass"))
    assert call("amax", x).item() == expected.resolve_neg().max().item()


# Special values.

PLACES = (0, 1, 31, 32, 500, 1023, 1024, 2998, 2999)


@every_reduction
@every_variant
@every_dtype(FLOATS)
def test_a_nan_anywhere_is_the_result(dtype, variant, op, device):
    runnable(variant, device)
    canonical = torch.tensor(float("nan"), dtype=dtype)
    for sign in (1.0, -1.0):
        for place in PLACES:
            x = cases.values(3000, dtype, "uniform").to(device)
            x[place] = math.copysign(float("nan"), sign)
            assert_same_bits(call(op, x, variant.name).cpu(), canonical, f"{op} with NaN at {place}")


@every_variant
@every_dtype(FLOATS)
def test_infinities(dtype, variant, device):
    runnable(variant, device)
    inf = float("inf")
    x = cases.values(3000, dtype, "uniform").to(device)
    x[1700] = inf
    assert call("sum", x, variant.name).item() == inf
    assert call("mean", x, variant.name).item() == inf
    assert call("amax", x, variant.name).item() == inf
    assert call("amin", x, variant.name).item() >= -1
    x[3] = -inf
    assert_same_bits(call("sum", x, variant.name).cpu(), torch.tensor(float("nan"), dtype=dtype), "inf - inf")
    assert call("amin", x, variant.name).item() == -inf
    nothing_else = torch.full((40,), -inf, dtype=dtype, device=device)
    assert call("amax", nothing_else, variant.name).item() == -inf
    assert call("amin", -nothing_else, variant.name).item() == inf


@every_variant
@every_dtype(FLOATS)
def test_zeros_and_their_signs(dtype, variant, device):
    runnable(variant, device)
    plus, minus = torch.tensor(0.0, dtype=dtype), torch.tensor(-0.0, dtype=dtype)
    for n in (1, 2, 33, 1025, 5000):
        zeros = torch.full((n,), -0.0, dtype=dtype, device=device)
        for op, expected in {"sum": plus, "mean": plus, "amax": minus, "amin": minus}.items():
            assert_same_bits(call(op, zeros, variant.name).cpu(), expected, f"{op} of {n} times -0")
        if n > 1:
            for place in (0, n // 2, n - 1):
                mixed = zeros.clone()
                mixed[place] = 0.0
                assert_same_bits(call("amax", mixed, variant.name).cpu(), plus, f"amax, +0 at {place} of {n}")
                assert_same_bits(call("amin", -mixed, variant.name).cpu(), minus, f"amin, -0 at {place} of {n}")


@every_variant
@every_dtype((torch.float32, torch.float64))
def test_denormals_are_kept(dtype, variant, device):
    runnable(variant, device)
    if not variant.deterministic and dtype == torch.float32 and torch.device(device).type == "cuda":
        pytest.skip("the hardware's float32 atomicAdd takes subnormals for zero")
    tiny = torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps  # the smallest of all
    x = torch.full((3000,), tiny, dtype=dtype, device=device)
    assert call("sum", x, variant.name).item() == 3000 * tiny
    assert call("amax", x, variant.name).item() == tiny
    x[1234] = -2 * tiny
    assert call("amin", x, variant.name).item() == -2 * tiny


@every_variant
def test_float16_accumulates_in_float32(variant, device):
    runnable(variant, device)
    x = torch.full((100_000,), 0.5, dtype=torch.float16, device=device)
    assert call("sum", x[:3000], variant.name).item() == 1500
    assert call("sum", x[:4099], variant.name).item() == 2050  # 2049.5: a tie, to even
    assert call("mean", x, variant.name).item() == 0.5  # whose sum float16 can hold; not its running total of ones
    big = torch.full((70_000,), 1.0, dtype=torch.float16, device=device)
    assert call("sum", big, variant.name).item() == math.inf  # past 65504 only the last rounding overflows
    assert call("mean", big, variant.name).item() == 1.0
    cancel = torch.cat([torch.full((2,), 60000.0), torch.full((2,), -60000.0), torch.ones(1)]).half().to(device)
    assert call("sum", cancel, variant.name).item() == 1.0


@every_variant
@every_dtype((torch.float32, torch.float64))
def test_overflow_is_infinite(dtype, variant, device):
    runnable(variant, device)
    x = torch.full((3000,), torch.finfo(dtype).max, dtype=dtype, device=device)
    assert call("sum", x, variant.name).item() == math.inf
    assert call("sum", -x, variant.name).item() == -math.inf


@every_variant
def test_integer_sums_wrap_at_64_bits_only(variant, device):
    runnable(variant, device)
    for dtype in (torch.int8, torch.uint8, torch.int16, torch.int32):
        x = torch.full((5001,), torch.iinfo(dtype).max, dtype=dtype, device=device)
        result = call("sum", x, variant.name)
        assert result.dtype == torch.int64 and result.item() == 5001 * torch.iinfo(dtype).max
    x = torch.full((5001,), 2**62, dtype=torch.int64, device=device)
    wrapped = (5001 * 2**62 + 2**63) % 2**64 - 2**63
    assert call("sum", x, variant.name).item() == wrapped == x.sum().item()


@every_variant
def test_booleans(variant, device):
    runnable(variant, device)
    x = cases.values(4097, torch.bool).to(device)
    assert call("sum", x, variant.name).item() == x.sum().item()
    for op, extreme in {"amax": x.any(), "amin": x.all()}.items():
        result = call(op, x, variant.name)
        assert result.dtype == torch.bool and result.item() == extreme.item()
    # A byte other than 0 and 1 counts as true, as torch reads it.
    odd = torch.tensor([0, 2, 255, 1, 0], dtype=torch.uint8, device=device).view(torch.bool)
    assert call("sum", odd, variant.name).item() == 3
    assert call("amax", odd, variant.name).item() is True


@every_variant
@every_dtype(DTYPES)
def test_empty(dtype, variant, device, poisoned):
    runnable(variant, device)
    for shape in ((0,), (3, 0, 2)):
        x = torch.empty(shape, dtype=dtype, device=device)
        total = call("sum", x, variant.name)
        assert_same_bits(total, x.sum(), "sum")
        if dtype.is_floating_point:
            assert_same_bits(call("mean", x, variant.name).cpu(), torch.tensor(float("nan"), dtype=dtype), "mean")
        for op in ("amax", "amin"):
            with pytest.raises(ValueError, match="empty"):
                call(op, x, variant.name)


@every_reduction
@every_dtype(DTYPES)
def test_result_dtypes_are_those_of_torch(dtype, op, device):
    x = cases.values(10, dtype, device=device)
    if op == "mean" and not dtype.is_floating_point:
        return
    ours, theirs = call(op, x), getattr(torch, op)(x)
    assert ours.dtype == theirs.dtype and ours.shape == theirs.shape and ours.device == theirs.device


@every_variant
def test_an_unwritten_output_would_show(variant, device, poison):
    """Outputs and scratch come from memory that was filled with NaN, not from memory that happens to hold zeros."""
    runnable(variant, device)
    if device == "cuda":
        poison()
    for n in (1, 1000, 100_003):
        x = torch.ones(n, device=device)
        assert call("sum", x, variant.name).item() == n
        assert call("amax", x, variant.name).item() == 1
