"""compensated and exact: sums that plain floating point loses, against Python's exact fractions."""

import math
from fractions import Fraction

import cases
import numpy as np
import orders
import pytest
import tables
import torch
from bits import assert_same_bits
from bounds import UNIT
from cases import FLOATS
from tables import call, every_dtype

every_float = every_dtype((torch.float32, torch.float64))


def total(x):
    """The exact sum, as a Fraction."""
    return Fraction(orders.units(x.detach().cpu().double().numpy().reshape(-1)), 2**1074)


def ill_conditioned(n, dtype, digits, seed=0):
    """About n numbers whose sum is far smaller than they are: sum|x| / |sum x| is about 2^digits.

    As Ogita, Rump and Oishi make them: the first half spreads over the exponents, the second draws the running sum
    towards zero from ever smaller exponents.
    """
    rng = np.random.default_rng(seed)
    kind = np.float32 if dtype == torch.float32 else np.float64
    half = n // 2
    exponents = np.rint(rng.uniform(0, digits / 2, half))
    exponents[0], exponents[-1] = digits / 2, 0
    values = [kind(v) for v in rng.uniform(-1, 1, half) * 2.0**exponents]
    running = sum((Fraction(float(v)) for v in values), Fraction(0))
    for exponent in np.rint(np.linspace(digits / 2, -digits / 2, n - half)):
        value = kind(float(rng.uniform(-1, 1)) * 2.0**exponent - float(running))
        values.append(value)
        running += Fraction(float(value))
    x = np.array(values, dtype=kind)
    return torch.from_numpy(rng.permutation(x))


def condition(x):
    return float(total(x.abs()) / abs(total(x)))


def error(result, x, count=1):
    """Relative to the exact sum (or mean)."""
    exact = total(x) / count
    return float(abs(Fraction(result.item()) - exact) / abs(exact))


# compensated.


@every_float
def test_ill_conditioned_sums(dtype, device):
    """As if in twice the precision, and rounded once: plain sums lose all digits here."""
    u = UNIT[dtype]
    lost = 0
    for n in (10, 100, 1000, 5000):
        for share in (0.3, 0.6, 0.9, 1.2, 1.5, 1.8):
            x = ill_conditioned(n, dtype, share * -math.log2(u), seed=n)
            kappa = condition(x)
            depth = orders.depth("pairwise", dtype, n)
            bound = u + 2 * (depth * u) ** 2 * kappa
            y = x.to(device)
            if bound < 1:
                for view, dim in ((y, None), (y.view(1, -1), 1), (y.view(-1, 1).expand(-1, 3), 0)):
                    result = call("sum", view, "compensated", dim=dim).view(-1)[0]
                    assert error(result, x) <= bound, f"{n} numbers, condition {kappa:.1e}"
            lost += error(call("sum", y), x) > 0.1
    assert lost > 4, "these sums are not ill-conditioned"


@every_float
@pytest.mark.parametrize("kind", cases.DISTRIBUTIONS)
def test_compensated_is_nearly_rounded_once(kind, dtype, device):
    for n in (1, 2, 129, 5000, 100_003):
        x = cases.values(n, dtype, kind, seed=3)
        exact = total(x)
        result = call("sum", x.to(device), "compensated")
        depth = orders.depth("pairwise", dtype, n)
        bound = UNIT[dtype] * abs(exact) + 2 * Fraction(depth * UNIT[dtype]) ** 2 * total(x.abs())
        assert abs(Fraction(result.item()) - exact) <= bound, f"{n}"


def test_compensated_does_not_grow_with_n(device):
    """Tenths by the million."""
    for n in (1000, 300_000, 3_000_000):
        x = torch.full((n,), 0.1, device=device)
        result = call("sum", x, "compensated").item()
        assert result == float(np.float32(n * float(np.float32(0.1)))), f"{n}"


def test_known_cancellations(device):
    big = 2.0**60
    for dtype, values, expected in (
        (torch.float32, [1e8, 1.0, -1e8], 1.0),
        (torch.float32, [1.0, 1e30, 1.0, -1e30], 2.0),
        (torch.float32, [1e30, 1.0, 1e15, -1e30, -1e15], 0.0),  # three times the precision: not with pairs of floats
        (torch.float64, [1e16, 1.0, 1.0, -1e16], 2.0),
        (torch.float64, [big, 1.0, -big, 2.0**-50], 1.0 + 2.0**-50),
    ):
        x = torch.tensor(values, dtype=dtype, device=device)
        assert call("sum", x, "compensated").item() == expected
        assert call("sum", x, "exact").item() == math.fsum(x.tolist())


@every_dtype(FLOATS)
@pytest.mark.parametrize("variant", ["compensated", "exact"])
def test_special_values_of_precise_sums(variant, dtype, device):
    inf, nan = math.inf, math.nan
    largest = torch.finfo(dtype).max
    for values, expected in (
        ([], 0.0),
        ([-0.0, -0.0], 0.0),
        ([inf, 1.0, -largest], inf),
        ([1.0, -inf, largest], -inf),
        ([inf, 1.0, -inf], nan),
        ([inf, inf], inf),
        ([nan, 1.0], nan),
        ([1.0, nan, inf, -inf], nan),
    ):
        for n in (0, 3, 200, 3000):  # zeros between and behind
            x = torch.zeros(n + len(values) * 7, dtype=dtype)
            for i, value in enumerate(values):
                x[(i * (n + 7 * len(values) - 1)) // max(len(values) - 1, 1)] = value
            y = x.to(device)
            right = torch.tensor(expected, dtype=dtype)
            assert_same_bits(call("sum", y, variant).cpu(), right, f"{values} in {len(x)}")
            two = torch.stack([y, torch.ones_like(y)])
            rows = call("sum", two, variant, dim=1).cpu()
            columns = call("sum", two.t().contiguous(), variant, dim=0).cpu()
            assert_same_bits(rows[0], right, f"{values} in {len(x)}")
            assert_same_bits(columns, rows, f"{values} in {len(x)}")
            assert rows[1].item() == torch.tensor(float(len(x))).to(dtype).item()


def test_overflow_of_precise_sums(device):
    """exact overflows where the sum does, not on the way."""
    for dtype in (torch.float32, torch.float64):
        largest = torch.finfo(dtype).max
        ulp = largest - torch.nextafter(torch.tensor(largest, dtype=dtype), torch.tensor(0.0, dtype=dtype)).item()
        for values, expected in (
            ([largest, largest, -largest], largest),
            ([largest] * 5 + [-largest] * 4, largest),
            ([largest, ulp / 4], largest),
            ([largest, ulp / 4, ulp / 4], math.inf),  # half of a last place: the tie goes to infinity
            ([-largest, -ulp], -math.inf),
            ([largest, largest], math.inf),
        ):
            x = torch.tensor(values, dtype=dtype, device=device)
            assert call("sum", x, "exact").item() == expected, f"{values}"
        x = torch.full((3000,), largest, dtype=dtype, device=device)
        assert call("sum", x, "compensated").item() == math.inf
        assert call("sum", -x, "exact").item() == -math.inf


# exact.


def mixtures(dtype):
    """Values whose exact sum is hard to get: huge beside tiny, subnormals, cancellation to the last bit."""
    g = cases.generator(3)
    info = torch.finfo(dtype)
    low, high = math.log2(info.smallest_normal * info.eps), math.log2(info.max)

    def spread(n, least, most):
        exponent = torch.rand(n, generator=g, dtype=torch.float64) * (most - least) + least
        sign = torch.randint(0, 2, (n,), generator=g) * 2 - 1
        return (torch.exp2(exponent) * sign).to(dtype)

    everything = spread(2999, low, high - 13)
    cancelling = torch.cat(
        [everything, -everything.flip(0), torch.tensor([info.smallest_normal * info.eps], dtype=dtype)]
    )
    return {
        "every exponent": everything,
        "all cancels but the smallest number": cancelling,
        "subnormals": spread(2000, low, math.log2(info.smallest_normal)),
        "subnormals that add up to a normal": torch.full((4097,), info.smallest_normal * (1 - info.eps), dtype=dtype),
        "a tie": torch.tensor([1.0, info.eps / 2], dtype=dtype),
        "a tie and a little": torch.tensor([1.0, info.eps / 2, info.smallest_normal * info.eps], dtype=dtype),
        "a tie less a little": torch.tensor([1.0, 1.5 * info.eps, -info.smallest_normal * info.eps], dtype=dtype),
        "carries": torch.cat([torch.ones(1000, dtype=dtype), torch.full((2000,), -info.eps, dtype=dtype)]),
        "the largest": torch.tensor([info.max, info.max, -info.max, 1.0, -info.max], dtype=dtype),
        "one": torch.tensor([1.0], dtype=dtype),
    }


@every_dtype(FLOATS)
def test_exact_is_the_fraction_rounded_once(dtype, device):
    for name, x in mixtures(dtype).items():
        right = torch.tensor(orders.exact_rounded(total(x), dtype), dtype=torch.float64).to(dtype)
        y = x.to(device)
        assert_same_bits(call("sum", y, "exact").cpu(), right, name)
        assert_same_bits(call("sum", y.view(1, -1), "exact", dim=1).cpu(), right.view(1), name)
        assert_same_bits(call("sum", y.view(-1, 1), "exact", dim=0).cpu(), right.view(1), name)
        if dtype == torch.float64 and right.isfinite() and name != "the largest":
            assert call("sum", y, "exact").item() == math.fsum(x.tolist()), name


@every_dtype(FLOATS)
@pytest.mark.parametrize("kind", ["normal", "cancelling", "denormal"])
def test_exact_sums_of_every_distribution(kind, dtype, device):
    for n in (1, 2, 33, 1025, 20_011, 262_147):
        x = cases.values(n, dtype, kind, seed=5)
        if not x.isfinite().all():
            continue
        right = torch.tensor(orders.exact_rounded(total(x), dtype), dtype=torch.float64).to(dtype)
        assert_same_bits(call("sum", x.to(device), "exact").cpu(), right, f"{n}")


@every_dtype(FLOATS)
def test_exact_does_not_know_the_order(dtype, device):
    """Permutations and other shapes of the same values."""
    for name, x in mixtures(dtype).items():
        y = x.to(device)
        expected = call("sum", y, "exact")
        for seed in range(6):
            shuffled = y[torch.randperm(len(x), generator=cases.generator(seed)).to(device)]
            assert_same_bits(call("sum", shuffled, "exact"), expected, f"{name}, permutation {seed}")
        for padded in (torch.cat([y, torch.zeros(999, dtype=dtype, device=device)]), y.flip(0)):
            assert_same_bits(call("sum", padded, "exact"), expected, name)
        if len(x) % 3 == 0:
            assert_same_bits(call("sum", y.view(3, -1).t(), "exact"), expected, name)


def test_exact_sums_of_parts_join_exactly(device):
    """Splits over machines: parts that are exact in float64 join to the float32 sum of the whole."""
    x = cases.values(60_000, torch.float32, "normal", seed=9).to(device)
    expected = call("sum", x, "exact")
    for parts in (2, 3, 7, 100):
        sums = torch.stack([call("sum", part, "exact", dtype=torch.float64) for part in x.chunk(parts)])
        assert_same_bits(call("sum", sums, "exact", dtype=torch.float64).float(), expected, f"{parts} parts")
        rotated = torch.cat(list(x.chunk(parts))[::-1])
        assert_same_bits(call("sum", rotated, "exact"), expected, f"{parts} parts")


@pytest.mark.parametrize("variant", ["compensated", "exact"])
def test_precise_means(variant, device):
    for dtype in FLOATS:
        x = cases.values(3 * 1000, dtype, "normal", seed=4).view(3, 1000)
        for view, dim in ((x, 1), (x.t(), 0), (x, None), (x, 0)):
            result = call("mean", view.to(device), variant, dim=dim)
            assert_same_bits(result.cpu(), orders.reduce_dims("mean", view, dim, order=variant), f"{dtype} along {dim}")


@pytest.mark.parametrize("variant", ["compensated", "exact"])
def test_precise_rungs_reduce_everything_else_as_auto(variant, device):
    """Integers, and extrema of anything, round nothing."""
    for dtype in tables.DTYPE_NAMES.values():
        x = cases.values(700, dtype, device=device).view(7, 100)
        for op in ("sum", "amax", "amin"):
            row = tables.row(op, variant)
            if tables.takes(row, op, dtype) and (op != "sum" or not (dtype.is_floating_point or dtype.is_complex)):
                for dim in (None, 0, 1):
                    assert_same_bits(call(op, x, variant, dim=dim), call(op, x, dim=dim), f"{op} {dtype}")


@pytest.mark.parametrize("variant", ["compensated", "exact"])
def test_precise_sums_of_converted_elements(variant, device):
    for source, target in (
        (torch.float16, torch.float64),
        (torch.float64, torch.float32),
        (torch.int32, torch.float32),
        (torch.float32, torch.bfloat16),
        (torch.float8_e4m3fn, torch.float16),
    ):
        x = cases.values(5 * 900, source, "normal").view(5, 900)
        for dim in (0, 1, None):
            result = call("sum", x.to(device), variant, dim=dim, dtype=target)
            expected = orders.reduce_dims("sum", x, dim, target, order=variant)
            assert_same_bits(result.cpu(), expected, f"{source} as {target} along {dim}")
