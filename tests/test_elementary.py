"""exp, log and 1 / sqrt of csrc/primitives/elementary.h: their errors, their special values, and that every instruction
set gives the same bits."""

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
import torch
from bits import assert_same_bits, bits
from instruction_sets import digests

FUNCTIONS = ("exp", "log", "rsqrt")
every_function = pytest.mark.parametrize("function", FUNCTIONS)
CORRECT = {"exp": np.exp, "log": np.log, "rsqrt": lambda x: 1 / np.sqrt(x)}


def call(function, x):
    return torch.ops.treduce.elementary(x, function)


def ulps(result, exact):
    """The error of float32 results in units in the last place of what is right, which float64 gives."""
    least = np.float64(2.0**-126)
    exponent = np.frexp(np.maximum(np.abs(exact), least))[1]
    return np.abs(result.astype(np.float64) - exact) / np.ldexp(1.0, exponent - 24)


def check_floats(function, words):
    """Every float32 of these bit patterns: within one unit in the last place, and what is special as IEEE 754 says."""
    x = words.view(np.float32)
    with np.errstate(all="ignore"):
        exact = CORRECT[function](x.astype(np.float64))
        result = call(function, torch.from_numpy(x)).numpy()
        rounded = exact.astype(np.float32)
    special = ~np.isfinite(rounded)
    assert np.array_equal(result[special], rounded[special], equal_nan=True)
    assert np.isfinite(result[~special]).all()
    error = ulps(result[~special], exact[~special])
    assert error.size == 0 or error.max() < 1, x[~special][error.argmax()]


@every_function
def test_a_sample_of_float32(function):
    check_floats(function, np.arange(0, 2**32, 4099, dtype=np.int64).astype(np.uint32))
    near_zero = np.arange(2**16, dtype=np.uint32)
    check_floats(function, np.concatenate([near_zero, near_zero + np.uint32(2**31), near_zero + np.uint32(0x3F7F8000)]))


@pytest.mark.nightly
@every_function
def test_every_float32(function):
    for begin in range(0, 2**32, 2**24):
        check_floats(function, np.arange(begin, begin + 2**24, dtype=np.int64).astype(np.uint32))


@every_function
def test_a_sample_of_float64(function):
    """Against 40 digits, within one unit in the last place."""
    g = torch.Generator().manual_seed(1)
    kinds = {
        "exp": [(torch.rand(600, generator=g, dtype=torch.float64) - 0.5) * w for w in (1418.0, 40.0, 2.0, 1e-3)],
        "log": [torch.exp((torch.rand(600, generator=g, dtype=torch.float64) - 0.5) * w) for w in (1400.0, 8.0, 1e-3)],
    }
    kinds["rsqrt"] = kinds["log"]
    exact_of = {"exp": mpmath.exp, "log": mpmath.log, "rsqrt": lambda v: 1 / mpmath.sqrt(v)}
    with mpmath.workdps(40):
        for x in kinds[function]:
            for v, r in zip(x.tolist(), call(function, x).tolist(), strict=True):
                exact = exact_of[function](mpmath.mpf(v))
                assert abs(mpmath.mpf(r) - exact) < math.ulp(float(exact)), v


@every_function
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_special_values(function, dtype):
    inf, nan = math.inf, math.nan
    x = torch.tensor([0.0, -0.0, 1.0, inf, -inf, nan, -1.0], dtype=dtype)
    expected = {
        "exp": [1, 1, torch.tensor(1.0, dtype=torch.float64).exp().item(), inf, 0, nan, math.exp(-1)],
        "log": [-inf, -inf, 0, inf, nan, nan, nan],
        "rsqrt": [inf, -inf, 1, 0, nan, nan, nan],
    }[function]
    result = call(function, x)
    for r, e in zip(result.tolist(), expected, strict=True):
        assert (math.isnan(r) and math.isnan(e)) or r == pytest.approx(e, rel=1e-6), (r, e)
    assert math.copysign(1, call("rsqrt", x)[1].item()) == -1


def test_exp_is_monotone_where_softmax_needs_it():
    """exp(0) is 1, nothing below is more, and results under the least subnormal are 0."""
    assert call("exp", torch.tensor([0.0, -104.5, -1000.0])).tolist() == [1.0, 0.0, 0.0]
    x = torch.linspace(-105, 0, 100_001)
    assert (call("exp", x).diff() >= 0).all()
    least = call("exp", torch.tensor([-103.5]))
    assert Fraction(least.item()) == Fraction(1, 2**149)


def test_unknown_functions_and_dtypes():
    with pytest.raises(ValueError, match="sinh"):
        call("sinh", torch.ones(1))
    with pytest.raises(TypeError, match="float32"):
        call("exp", torch.ones(1, dtype=torch.bfloat16))


def test_every_instruction_set_gives_the_same_bits():
    found = digests()
    assert len({rows for *_, rows in found.values()}) == 1, found


def test_any_length_and_any_place():
    x = torch.randn(1000)
    whole = call("exp", x)
    for first, n in ((0, 1), (1, 7), (3, 33), (5, 500)):
        assert_same_bits(call("exp", x[first : first + n]), whole[first : first + n])
    assert bits(call("exp", torch.empty(0))).numel() == 0
