"""The checker itself: reductions that are wrong on purpose must fail it, and right ones must pass."""

import math

import cases
import pytest
import torch
from bits import assert_same_bits, same_bits, ulp_distance
from bounds import assert_within_bound, exact_sums
from tables import row

from torch_reduce import _check, _verify, ops

N = 100_003


def inputs(dtype=torch.float32):
    return cases.values(N, dtype, "normal", seed=12)


def judged(result, x, op="sum", variant="single_pass"):
    return _check.check(op, variant, result, (x,), _check.truth(op, x))


def dropped_tail(x):
    return ops.sum(x[:-1])


def dropped_vector(x):
    return ops.sum(x[: x.numel() // 4 * 4 - 4])


def counted_twice(x):
    return ops.sum(x) + x[-1]


def nan(x):
    return torch.full((), math.nan, dtype=x.dtype)


def zero(x):
    return torch.zeros((), dtype=x.dtype)


def infinity(x):
    return torch.full((), math.inf, dtype=x.dtype)


def stale(x):
    """The result of the call before, on other data."""
    return ops.sum(x + 1)


def unwritten(x):
    with _check.poisoned():
        return torch.empty((), dtype=x.dtype)


def an_unwritten_partial(x):
    with _check.poisoned():
        partials = torch.empty(8, dtype=x.dtype)
    partials[:7] = torch.stack([ops.sum(part) for part in x.chunk(7)])
    return ops.sum(partials)


def partials_in_bfloat16(x):
    partials = torch.stack([ops.sum(part) for part in x.chunk(1000)])
    return ops.sum(partials.bfloat16().to(x.dtype))


def wrong_shape(x):
    return ops.sum(x).view(1)


def wrong_dtype(x):
    return ops.sum(x).double()


WRONG = (
    dropped_tail,
    dropped_vector,
    counted_twice,
    nan,
    zero,
    infinity,
    stale,
    unwritten,
    an_unwritten_partial,
    partials_in_bfloat16,
    wrong_shape,
    wrong_dtype,
)


@pytest.mark.parametrize("wrong", WRONG, ids=lambda f: f.__name__)
def test_wrong_sums_fail(wrong):
    x = inputs()
    assert judged(ops.sum(x), x)
    outcome = judged(wrong(x), x)
    assert not outcome and outcome.reason


@pytest.mark.parametrize("wrong", WRONG[:-2], ids=lambda f: f.__name__)
def test_wrong_sums_fail_the_tests_own_bound(wrong):
    x = inputs()
    variant = row("sum", "vectorized")
    assert_within_bound(ops.sum(x, variant="vectorized"), "sum", x, variant, {})
    with pytest.raises(AssertionError):
        assert_within_bound(wrong(x), "sum", x, variant, {})


@pytest.mark.parametrize("dtype", [torch.int8, torch.int64, torch.bool])
def test_an_integer_sum_must_be_exact(dtype):
    x = cases.values(N, dtype)
    assert judged(ops.sum(x), x)
    for off in (-1, 1, 2**40):
        assert not judged(ops.sum(x) + off, x)
    assert not judged(ops.sum(x).to(torch.int32), x)


@pytest.mark.parametrize("op", ["amax", "amin"])
def test_an_extremum_must_be_exact(op):
    x = inputs()
    right = getattr(ops, op)(x)
    assert judged(right, x, op)
    assert not judged(torch.nextafter(right, torch.tensor(0.0)), x, op)
    assert not judged(torch.nextafter(right, right * 2), x, op)


def test_the_bound_is_not_slack():
    """An error of a ten-thousandth must not hide in it."""
    x = cases.values(N, torch.float32, "positive")
    right = ops.sum(x)
    assert judged(right, x)
    assert not judged(right * 1.0001, x)
    assert not judged(right * (1 - 1e-4), x)
    mean = ops.mean(x)
    assert judged(mean, x, "mean") and not judged(mean * 1.0001, x, "mean")


def test_a_nan_passes_only_where_one_is_expected():
    x = inputs()
    x[5] = math.nan
    assert judged(ops.sum(x), x)
    assert not judged(torch.tensor(1.0), x)
    x[5] = math.inf
    assert judged(ops.sum(x), x)
    for other in (math.nan, -math.inf, 1.0, 3.4e38):
        assert not judged(torch.tensor(other), x)


def test_overflow_passes_only_at_the_end_of_the_range():
    x = torch.full((70_000,), 1.0, dtype=torch.float16)
    assert judged(ops.sum(x), x)
    x = torch.full((60_000,), 1.0, dtype=torch.float16)
    assert judged(ops.sum(x), x) and not judged(torch.tensor(math.inf, dtype=torch.float16), x)


def test_wrong_products_fail():
    a, b = torch.randn(40, 30), torch.randn(30, 20)

    def judged(c):
        return _check.check("matmul", "tiled", c, (a, b), _check.truth("matmul", a, b))

    c = ops.matmul(a, b)
    assert judged(c)
    assert not judged(ops.matmul(a[:, :-1], b[:-1]))  # a dropped last step of k
    assert not judged(c.roll(1, 0)) and not judged(c.t()) and not judged(torch.zeros_like(c))
    for i, j in ((0, 0), (39, 19), (17, 3)):
        wrong = c.clone()
        wrong[i, j] += 0.01
        outcome = judged(wrong)
        assert not outcome and f"({i}, {j})" in outcome.reason
        wrong[i, j] = math.nan
        assert not judged(wrong)


def test_wrong_additions_fail():
    a, b = torch.randn(1000), torch.randn(1000)

    def judged(c):
        return _check.check("vector_add", "grid_1d", c, (a, b), _check.truth("vector_add", a, b))

    c = ops.vector_add(a, b)
    assert judged(c)
    for place in (0, 500, 999):
        wrong = c.clone()
        wrong[place] = a[place]
        assert not judged(wrong)


def test_verify_notices_a_wrong_op(monkeypatch):
    """The whole of `verify`, with ops that went wrong underneath."""
    device = torch.device("cpu")

    def outcomes(op="sum"):
        found = _verify.verify(op, ["v0", "v1", "single_pass"], [(1000,)], ["float32", "int32"], device)
        assert len(found) == 3 and all(o.cases for o in found)
        return [o.ok for o in found]

    assert outcomes() == [True] * 3
    right = ops.sum
    wrongs = {
        "dropped": lambda x, **kwargs: right(x[:-1], **kwargs),
        "raises": lambda x, **kwargs: 1 / 0,
        "nan": lambda x, **kwargs: right(x, **kwargs) * math.nan if x.is_floating_point() else right(x, **kwargs),
    }
    for wrong in wrongs.values():
        monkeypatch.setattr(ops, "sum", wrong)
        assert outcomes() == [False] * 3
    # One last place in one rung of a class: within the bound, but not the bits of its class.
    monkeypatch.setattr(
        ops,
        "sum",
        lambda x, variant, **kwargs: (
            right(x, variant=variant, **kwargs)
            if variant != "interleaved_bitmask" or not x.is_floating_point()
            else torch.nextafter(right(x, variant=variant, **kwargs), torch.tensor(math.inf))
        ),
    )
    assert outcomes() == [True, False, True]


def test_poison_shows_on_both_kinds_of_numbers(device):
    with _check.poisoned():
        assert torch.empty(100, device=device).isnan().all()
        assert torch.empty(100, dtype=torch.bfloat16, device=device).isnan().all()
        # Scratch is allocated as bytes: they must read as NaN too.
        assert torch.empty(400, dtype=torch.uint8, device=device).view(torch.float32).isnan().all()
        assert torch.empty(3, dtype=torch.int64, device=device).min() == torch.iinfo(torch.int64).max
    assert not torch.are_deterministic_algorithms_enabled()


def test_bit_comparison():
    nan = torch.tensor(math.nan)
    assert same_bits(nan, nan.clone()) and not same_bits(nan, -nan)
    assert not same_bits(torch.tensor(0.0), torch.tensor(-0.0))
    assert not same_bits(torch.tensor(1), torch.tensor(1.0)) and not same_bits(torch.ones(1), torch.ones(1, 1))
    with pytest.raises(AssertionError, match="0x80000000"):
        assert_same_bits(torch.tensor([1.0, -0.0]), torch.tensor([1.0, 0.0]))
    one = torch.tensor([1.0])
    assert ulp_distance(one, torch.nextafter(one, one * 2)) == 1
    assert ulp_distance(torch.tensor([0.0]), torch.tensor([-0.0])) == 0
    for dtype in cases.DTYPES:
        x = cases.values(100, dtype)
        assert same_bits(x, x.clone()) == _check.same_bits(x, x.clone()) is True


def test_exact_sums():
    x = torch.tensor([1e16, 1.0, -1e16], dtype=torch.float64)
    assert exact_sums(x)[0] == 1.0 and _check.truth("sum", x).value.item() == 1.0
