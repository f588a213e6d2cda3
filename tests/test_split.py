"""split_fp16 and split_bf16, float32 on tensor cores: the model of halves and parts (orders.py), and on a GPU accuracy
beside torch's own float32, which outputs are computed how, and rows and columns that do not depend on what lies beside
them."""

import itertools
import math

import numpy as np
import orders
import pytest
import tables
import torch
from bits import assert_same_bits, same_bits
from graphs import captured
from orders import CLEAN, CLOSE, DENSE, FEW, MODERATE, SEGMENT, ZERO
from products import into_poison, product
from tables import row

import torch_reduce

SPLIT, PARTS, K_ORDER = row("matmul", "split_fp16"), row("matmul", "split_bf16"), row("matmul", "pipelined")
DIRECT = row("matmul", "split_direct")
both_rungs = pytest.mark.parametrize("rung", [SPLIT, PARTS], ids=["split_fp16", "split_bf16"])

DEPTHS = (1, 7, 63, 64, 65, 127, 128, 129, 2047, 2048, 2049, 4100)
NAN, INF = float("nan"), float("inf")

# Each launches another kernel, or reads B in another way: (m, n, batch, layouts of A and B: see in_layout). Of few rows
# of one matrix both operands are split first, unless one is large.
KERNELS = {
    "rows 8": (5, 260, (), "NN"),
    "rows 8, B transposed": (8, 130, (), "NT"),
    "rows 8, batch": (3, 73, (3,), "NT"),
    "one row": (1, 300, (), "NT"),
    "rows 16": (13, 100, (2,), "NN"),
    "rows 16, B transposed": (16, 132, (2,), "NT"),
    "rows 32": (32, 96, (2,), "NN"),
    "rows 32, B transposed": (17, 68, (2,), "NT"),
    "rows 64": (50, 132, (2,), "NN"),
    "rows 64, B transposed": (64, 200, (2,), "NT"),
    "rows 128": (128, 260, (2,), "NN"),
    "rows 128, B transposed": (65, 129, (2,), "NT"),
    "rows 128, A transposed": (100, 128, (2,), "TN"),
    "columns 8": (260, 5, (), "NN"),
    "columns 8, A transposed": (132, 1, (), "TN"),
    "one column": (300, 1, (), "NN"),
    "columns 16": (200, 13, (2,), "NT"),
    "columns 32, A transposed": (132, 31, (2,), "TT"),
    "columns 64": (300, 50, (2,), "NN"),
    "columns 128": (129, 128, (2,), "NT"),
    "columns 128, A transposed": (260, 65, (2,), "TN"),
    "wide rows": (128, 8700, (), "NN"),
    "wide rows, B transposed": (70, 8650, (), "NT"),
    "wide rows, batch": (127, 8300, (2,), "NT"),
    "wide columns": (8700, 128, (), "NT"),
    "wide columns, A transposed": (8650, 65, (), "TN"),
    "wide rows of 64": (64, 8700, (), "NN"),
    "wide rows of 64, B transposed": (33, 8650, (), "NT"),
    "wide columns of 64": (8700, 50, (), "NT"),
    "wide columns of 64, A transposed": (8650, 64, (), "TN"),
    "tiles": (257, 260, (), "NN"),
    "tiles, transposed": (300, 129, (), "TT"),
    "tiles, unaligned": (130, 131, (), "UU"),
    "few rows, unaligned": (3, 67, (), "UU"),
    "some rows, unaligned": (100, 97, (), "UU"),
    "few rows, split first": (13, 100, (), "NN"),
    "some rows, split first": (100, 128, (), "TN"),
    "some columns, split first": (132, 31, (), "TT"),
    "batch": (33, 72, (3,), "NN"),
    "batch of columns": (140, 30, (3,), "NT"),
    "batch of tiles": (131, 140, (3,), "NN"),
    "batch, transposed": (130, 67, (2,), "TT"),
    "large batch": (128, 128, (200,), "NT"),
}
every_kernel = pytest.mark.parametrize("kernel", KERNELS)


@pytest.fixture(autouse=True)
def needs_chip(request):
    if request.node.get_closest_marker("cuda"):
        tables.needs_chip(SPLIT)


# Values: functions of a shape (..., lines, k), where lines are rows of A or columns of B.


def normal(shape, g):
    return torch.randn(shape, generator=g, device=g.device)


def uniform(shape, g):
    return torch.rand(shape, generator=g, device=g.device) * 2 - 1


def positive(shape, g):
    return torch.rand(shape, generator=g, device=g.device)


def exponents(shape, g, low, high):
    """Normal numbers times powers of two."""
    return torch.ldexp(normal(shape, g), torch.randint(low, high + 1, shape, generator=g, device=g.device))


def wide(shape, g):
    """Anything that a product of two can be without leaving float32, in one line."""
    return exponents(shape, g, -60, 55)


def full_range(shape, g):
    """The full range within each line; the other operand is small enough."""
    return exponents(shape, g, -126, 120)


def below_one(shape, g):
    return exponents(shape, g, -20, -8)


def some_wide(shape, g):
    x = normal(shape, g)
    x[..., ::7, :] = wide(x[..., ::7, :].shape, g)
    return x


def scaled_lines(shape, g, low=-30, high=20):
    """Every line has a scale of its own."""
    scale = torch.randint(low, high + 1, (*shape[:-1], 1), generator=g, device=g.device)
    return torch.ldexp(normal(shape, g), scale)


def far_scaled_lines(shape, g):
    """Beyond what pairs take, too."""
    return scaled_lines(shape, g, -50, 50)


def scaled_segments(shape, g):
    """So has each part of a line."""
    scale = torch.randint(-50, 51, (*shape[:-1], -(-shape[-1] // 50)), generator=g, device=g.device)
    return torch.ldexp(normal(shape, g), scale.repeat_interleave(50, dim=-1)[..., : shape[-1]])


def relu(shape, g):
    return normal(shape, g).clamp(min=0)


def sparse(shape, g):
    return normal(shape, g) * (torch.rand(shape, generator=g, device=g.device) < 0.03)


def denormal(shape, g):
    return exponents(shape, g, -140, -128)


def large(shape, g):
    return exponents(shape, g, 95, 100)


def tiny(shape, g):
    return exponents(shape, g, -80, -60)


def outliers(shape, g):
    """Activations as models have them: a few numbers a thousand times the rest."""
    x = normal(shape, g)
    return torch.where(torch.rand(shape, generator=g, device=g.device) < 0.01, x * 1000, x)


def softmax(shape, g):
    """Rows of attention probabilities."""
    return torch.softmax(normal(shape, g) * 5, dim=-1)


def sharp_softmax(shape, g):
    """Some probabilities are next to nothing."""
    return torch.softmax(normal(shape, g) * 30, dim=-1)


def causal(shape, g):
    """Zeros beyond the diagonal."""
    return normal(shape, g).tril()


def from_nothing(shape, g):
    """Zeros up to the diagonal."""
    return normal(shape, g).triu(1) * 2.0**40


def late(shape, g):
    """Lines that begin with zeros, of 40 numbers or more that lie far from one: pairs of three to some ten in a segment
    may be off by more than 2^-22, within their bound of 2^-21 (docs/numerics.md)."""
    count, k = shape[-2:]
    begins = torch.rand((*shape[:-1], 1), generator=g, device=g.device) * max(k - 40, 1)
    scale = torch.tensor([1e-18, 1.0, 1e12], device=g.device)[torch.arange(count, device=g.device) % 3, None]
    return normal(shape, g) * scale * (torch.arange(k, device=g.device) >= begins)


def one_hot(shape, g):
    x = torch.zeros(shape, device=g.device)
    return x.scatter_(-1, torch.randint(0, shape[-1], (*shape[:-1], 1), generator=g, device=g.device), 3.0)


def skewed(shape, g):
    """Log-normal: many small numbers, few large."""
    return normal(shape, g) * (normal(shape, g) * 3).exp()


def spread(shape, g):
    """Neither clean nor dense: numbers over some thirty binary orders, few of them large."""
    return normal(shape, g) * (normal(shape, g) * 4.5).exp()


def close(shape, g):
    """No number is much less than the others."""
    return uniform(shape, g) + torch.where(normal(shape, g) < 0, -1.01, 1.01)


# Name -> the values of A and of B.
DISTRIBUTIONS = {
    "normal": (normal, normal),
    "uniform": (uniform, uniform),
    "positive": (positive, positive),
    "wide": (wide, wide),
    "full range": (full_range, below_one),
    "some wide": (some_wide, some_wide),
    "scaled lines": (scaled_lines, scaled_lines),
    "far scaled lines": (far_scaled_lines, far_scaled_lines),
    "scaled segments": (scaled_segments, scaled_segments),
    "relu": (relu, normal),
    "sparse": (sparse, sparse),
    "denormal": (denormal, large),
    "denormal with normal": (normal, denormal),
    "underflow": (tiny, tiny),
    "outliers": (outliers, normal),
    "softmax": (softmax, normal),
    "sharp softmax": (sharp_softmax, normal),
    "causal": (causal, normal),
    "from nothing": (normal, from_nothing),
    "late": (late, normal),
    "one-hot": (one_hot, skewed),
    "small": (lambda shape, g: normal(shape, g) * 1e-20, normal),
    "large": (lambda shape, g: normal(shape, g) * 1e10, lambda shape, g: normal(shape, g) * 1.7e9),
    "skewed": (skewed, skewed),
    "spread by close": (spread, close),
    "close by spread": (close, spread),
}
every_distribution = pytest.mark.parametrize("kind", DISTRIBUTIONS)


def operands(kind, m, n, k, batch=(), layout="NN", device="cuda", seed=0):
    """A and B in a layout: N: as torch.matmul's, T: the other dimension contiguous, U: no row aligned."""
    g = torch.Generator(device=device).manual_seed(seed + 1000 * m + 100 * n + k)
    of_a, of_b = DISTRIBUTIONS[kind]
    a, b = of_a((*batch, m, k), g), of_b((*batch, n, k), g).mT.contiguous()
    return in_layout(a, layout[0]), in_layout(b, layout[1])


def in_layout(x, layout):
    if layout == "T":
        return x.mT.contiguous().mT
    if layout == "U":
        room = x.new_zeros(*x.shape[:-1], x.shape[-1] + 3)
        room[..., 1:-2] = x
        return room[..., 1:-2]
    return x


def of_magnitude(error, scale):
    """The worst component beside |A| |B|; where that is nothing, nothing may be wrong."""
    assert error.isfinite().all()
    assert (error[scale == 0] == 0).all()
    return (error / scale)[scale > 0].max().item() if (scale > 0).any() else 0.0


def errors(c, a, b):
    """Relative to the true product in the Frobenius norm, and the worst component beside |A| |B|."""
    a, b = a.double(), b.double()
    truth = a @ b
    error = c.double() - truth
    size = truth.norm().item()
    return error.norm().item() / size if size > 0 else error.norm().item(), of_magnitude(error.abs(), a.abs() @ b.abs())


# Where a sum has few terms it counts that three products of halves are up to 2^-22 away from the product, and one of
# float32 2^-24: in short sums, which `auto` leaves to other rungs, and where both operands are mostly zeros.
FEW_TERMS = ("sparse", "causal", "from nothing", "sharp softmax", "spread by close", "close by spread")
SHORT = 128
# Sums whose terms have one sign: the tensor core cuts four times in 64, always towards zero, where torch rounds. Below
# some thousands of k that is more than torch loses, in the worst output some 2^-21: docs/numerics.md.
ONE_SIGN = ("positive", "relu")
# Numbers so far apart that one product outweighs the others of an output: what pairs lose of it shows, or where outputs
# are computed in float32, as by the references, which rounds worse in the worst of thousands is a draw.
FAR_APART = ("wide", "full range", "some wide")
# One output outweighs all others in the Frobenius norm: chance.
ONE_OUTPUT = ("scaled lines", "far scaled lines", "scaled segments", "some wide", "skewed", "one-hot")


def assert_accurate(c, a, b, references, kind, what=""):
    """No worse than the worst of `references`: torch's float32 product, and where references_of says so k order."""
    few = kind in FEW_TERMS or (a.shape[-1] < SHORT and what != "auto")
    allowed = (2.0**-23 if kind in FAR_APART else 2.0**-24, 2.0**-22 if kind in FAR_APART else 2.0**-24)
    if few or kind in ONE_SIGN:
        allowed = (2.0**-22, 2.0**-21)
    found, known = errors(c, a, b), [errors(reference, a, b) for reference in references]
    for i, name in enumerate(("Frobenius", "worst")):
        if name == "Frobenius" and kind in ONE_OUTPUT:
            continue
        most = max(errors_of_one[i] for errors_of_one in known)
        shapes = f"{kind} {tuple(a.shape)} @ {tuple(b.shape)} {what}"
        assert found[i] <= most + allowed[i], f"{shapes}: {name} error {found[i]:.3g}, not {most:.3g}"  # NaN fails


# All of whose outputs the tensor cores compute.
IN_PAIRS = ("normal", "uniform", "positive", "scaled lines", "far scaled lines", "relu", "small", "large")


def references_of(kind, a, b):
    """Torch alone for long sums in pairs; but a matrix times a vector torch adds by halves."""
    matrices = min(a.shape[-2], b.shape[-1]) > 1
    torchs_alone = kind in IN_PAIRS and a.shape[-1] >= SHORT and matrices
    return [a @ b] if torchs_alone else [a @ b, product(a, b, K_ORDER)]


def some(rows, columns, shape, device="cuda"):
    """A mask of outputs in these rows or columns."""
    mask = torch.zeros(shape, dtype=torch.bool, device=device)
    mask[..., rows, :] = True
    mask[..., columns] = True
    return mask


def of_matrices(model, *operands):
    """What the model says of each product of a batch."""
    batches = zip(*(x.reshape(-1, *x.shape[-2:]).cpu().numpy() for x in operands), strict=True)
    return torch.stack([torch.from_numpy(model(*matrices)) for matrices in batches]).to(operands[0].device)


def arithmetic(a, b):
    """How each output is computed, as the model has it."""
    return of_matrices(orders.arithmetic, a, b).reshape(*a.shape[:-1], b.shape[-1])


def within(c, a, b, orders_below):
    """Which outputs are at most so many binary orders below the largest product that there could be."""
    return of_matrices(lambda *matrices: orders.certain(*matrices, orders_below), c, a, b).reshape(c.shape)


# The model, which needs no GPU.


def lines_of(kind, count, k, seed=0):
    return DISTRIBUTIONS[kind][0]((count, k), torch.Generator().manual_seed(seed)).numpy()


@every_distribution
def test_halves_keep_22_bits_of_what_is_clean(kind):
    for k in (1, 63, 64, 65, 200):
        x = lines_of(kind, 20, k)
        high, low, scale, flags = orders.split_lines(x)
        assert high.shape == low.shape == (20, -(-k // SEGMENT), SEGMENT) and scale.shape == flags.shape
        assert (np.log2(scale) % 1 == 0).all()
        exact = x.astype(np.float64)
        error = np.abs(orders.joined(x).astype(np.float64) - exact)
        clean = np.repeat(flags & CLEAN != 0, SEGMENT, axis=1)[:, :k]
        assert (error <= 2.0**-23 * np.abs(exact))[clean].all()
        # What is dense loses less than a part of 2^-35 of a large number.
        dense = np.repeat(flags & DENSE != 0, SEGMENT, axis=1)[:, :k]
        units = np.repeat(scale, SEGMENT, axis=1)[:, :k].astype(np.float64)
        assert (error <= np.maximum(2.0**-23 * np.abs(exact), 2.0**-36 * units))[dense | clean].all()


def test_flags_of_segments():
    """What a segment says, case by case."""
    ones = np.ones((1, SEGMENT), np.float32)

    def all_of_line(*parts):
        return int(orders.line_flags(np.concatenate(parts, axis=1).astype(np.float32))[0])

    def of_line(*parts):
        return all_of_line(*parts) & ~(MODERATE | CLOSE)

    def flags(**at):
        x = ones.copy()
        for place, value in at.items():
            x[0, int(place[1:])] = value
        return of_line(x)

    assert flags() == CLEAN | DENSE
    assert flags(_3=0) == CLEAN | DENSE
    assert flags(_3=2.0**-27) == CLEAN | DENSE  # 2^14 and 2^-13, scaled
    assert flags(_3=np.nextafter(np.float32(2.0**-27), np.float32(0))) == DENSE
    assert flags(_63=2.0**-60) == DENSE
    assert flags(_0=2.0**20) == CLEAN | DENSE | FEW  # the ones are 2^-6, scaled: close
    assert flags(_0=2.0**23) == CLEAN | FEW
    assert flags(_0=2.0**20, _1=2.0**-10) == FEW
    assert flags(_0=2.0**23, _1=2.0**23) == CLEAN | FEW
    assert flags(_0=2.0**23, _1=2.0**23, _2=2.0**23) == CLEAN
    assert flags(_0=NAN) == flags(_5=INF) == flags(_63=-INF) == 0
    assert of_line(ones * 0) == CLEAN | DENSE | FEW | ZERO
    few = np.zeros((1, SEGMENT), np.float32)
    few[0, [3, 60]] = 5, -7
    assert of_line(few) == CLEAN | FEW
    few[0, 9] = 1
    assert of_line(few) == CLEAN
    half = ones.copy()
    half[0, 32:] = 2.0**-30
    assert of_line(half) == 0  # 32 of 64 are not more than half
    assert of_line(half[:, :-1]) == DENSE  # of 63 they are
    # A line says what all of its segments say.
    assert of_line(ones * 0, ones) == CLEAN | DENSE
    assert of_line(half[:, :-1], ones) == DENSE  # 33 ones and 31
    assert of_line(ones, np.full((1, 1), NAN)) == 0
    # Any scale is as good, as long as numbers and scales are normal.
    for exponent in (-107, -60, 0, 60, 127):
        assert of_line(ones * 2.0**exponent) == CLEAN | DENSE
    assert of_line(ones * 2.0**-108) == CLEAN | DENSE  # no number counts as large, but all are close
    assert of_line(np.where(np.arange(SEGMENT) < 60, ones, 0) * 2.0**-108) == CLEAN
    assert of_line(ones * 2.0**-126) == 0
    # The unit is 2^-11, from the first 16 numbers; or, if these are zero, from every 33rd that follows.
    for last, expected in ((2.0**43, CLEAN), (2.0**44, 0)):
        assert of_line(ones, 0 * ones[:, :-1], np.full((1, 1), last)) & CLEAN == expected
    last = range(orders.SAMPLED, orders.GROUP, orders.SAMPLE_STEP)[-1]
    for zeros, expected in ((16, CLEAN), (17, CLEAN), (80, CLEAN), (500, CLEAN), (last, CLEAN), (last + 1, 0)):
        assert of_line(np.zeros((1, zeros)), np.full((1, 200), 1e20)) & CLEAN == expected

    # A line is close if no number of it is small or all of a segment are zero, and scaled if no segment is too small.
    assert all_of_line(ones) == all_of_line(ones, ones * 0) == CLEAN | DENSE | MODERATE | CLOSE
    assert all_of_line(ones * 0) == CLEAN | DENSE | FEW | ZERO | MODERATE | CLOSE
    for least, found in ((0, 0), (2.0**-22, CLOSE), (2.0**-22 * (1 - 2.0**-11), 0), (-(2.0**-21), CLOSE)):
        segment = ones.copy()
        segment[0, 40] = least  # of numbers to 2^14
        assert all_of_line(segment) & (MODERATE | CLOSE) == MODERATE | found
        assert all_of_line(ones, segment[:, :41]) & (MODERATE | CLOSE) == MODERATE | found
    for last, found in ((2.0**-42, MODERATE), (2.0**-43, 0)):
        assert all_of_line(ones, ones * last) & MODERATE == found
    assert all_of_line(np.full((1, 1), NAN)) == all_of_line(ones, np.full((1, 1), INF)) == 0


def test_kinds_of_lines():
    """Which lines are multiplied by pairs with which."""
    ones = np.ones((1, SEGMENT), np.float32)
    small = np.concatenate([ones[:, :32], ones[:, 32:] * np.float32(2.0**-30)], axis=1)
    lines = {
        "selects": np.eye(1, SEGMENT, dtype=np.float32),
        "close": ones,
        "clean": np.where(np.arange(SEGMENT) < 10, ones, 0),
        "dense": np.where(np.arange(SEGMENT) < 40, ones, np.float32(2.0**-30)),
        "both": np.where(np.arange(SEGMENT) < 60, ones, 0),
        "spread": small,
        "not finite": ones * np.float32(INF),
        "not scaled": np.concatenate([ones, small * np.float32(2.0**-60)], axis=1),
    }
    expected = (0, CLOSE, CLEAN, DENSE, CLEAN | DENSE, MODERATE, 0, 0)
    assert [int(orders.kinds(line.astype(np.float32))[0]) for line in lines.values()] == list(expected)
    by_pairs = {"close": "close clean dense both spread", "clean": "close clean both", "dense": "close dense both"}
    by_pairs |= {"both": "close clean dense both", "spread": "close"}
    checked = {"spread": "dense both", "dense": "spread", "both": "spread"}
    for a, x in lines.items():
        for b, y in lines.items():
            k = min(x.shape[1], y.shape[1])
            if "not scaled" in (a, b) and k == SEGMENT:
                continue
            how = orders.arithmetic(x.astype(np.float32)[:, :k], y.astype(np.float32)[:, :k].T)
            assert (how[0, 0] == orders.PAIRS) == (b in by_pairs.get(a, "").split()), (a, b)
            assert (how[0, 0] == orders.CHECKED_PAIRS) == (b in checked.get(a, "").split()), (a, b)


def test_what_parts_can_hold():
    """Case by case: of a line of ones and other numbers."""

    def of_line(*numbers):
        line = np.ones((1, 200), np.float32)
        line[0, 100 : 100 + len(numbers)] = numbers
        return int(orders.ranges(line)[0])

    assert of_line() == of_line(1e10) == of_line(2.0**-117) == of_line(0) == of_line(2.0**117) == 2
    assert of_line(2.0**-118) == of_line(2.0**-149) == of_line(2.0**118) == 1
    assert of_line(NAN) == of_line(INF, 0) == 0
    zeros = np.zeros((1, 200), np.float32)
    assert orders.ranges(zeros) == orders.ranges(zeros + np.float32(2.0**-149)) == 2
    tiny = np.concatenate([zeros + np.float32(2.0**-71), zeros + np.float32(2.0**-149)], axis=1)
    assert orders.ranges(tiny) == 2


def test_parts_are_exact():
    for kind in ("normal", "outliers", "softmax", "skewed", "far scaled lines"):
        x = lines_of(kind, 20, 2200)
        holds = orders.ranges(x) == 2
        parts = sum(part.astype(np.float64) for part in orders.line_parts(x)).reshape(20, -1)[:, :2200]
        assert holds.any() and (np.ldexp(parts, -orders.parts_exponents(x)[:, None]) == x)[holds].all()


@every_distribution
@pytest.mark.parametrize("k", [64, 128, 500, 2049, 4100])
def test_model_is_as_accurate_as_k_order(kind, k):
    """Where a sum of 64 products is rounded once. The tensor core's own is cut: see the tests on a GPU."""
    a, b = operands(kind, 24, 20, k, device="cpu")
    for pairs in (True, False):
        assert_accurate(orders.split_matmul(a, b, pairs), a, b, [orders.matmul(a, b)], kind)


def test_model_of_integers_is_exact():
    g = torch.Generator().manual_seed(0)
    for k in (1, 65, 4100):
        a, b = (torch.randint(-30, 31, shape, generator=g).float() for shape in ((9, k), (k, 7)))
        for pairs in (True, False):
            assert_same_bits(orders.split_matmul(a, b, pairs), (a.double() @ b.double()).float() + 0.0)


@np.errstate(all="ignore")
def test_model_leaves_what_parts_cannot_hold_to_float32():
    a, b = operands("normal", 20, 17, 300, device="cpu")
    plain = orders.split_matmul(a, b)
    assert not same_bits(plain, orders.segments_matmul(a, b))
    assert not same_bits(orders.matmul(a, b), orders.segments_matmul(a, b))
    for value in (NAN, INF, -INF, 2.0**100):
        left, right = a.clone(), b.clone()
        left[3, 64], right[299, 5] = value, value
        c = orders.split_matmul(left, right)
        touched = some([3], [5], c.shape, "cpu")
        assert_same_bits(c[touched], orders.segments_matmul(left, right)[touched])
        assert_same_bits(c[~touched], plain[~touched])


# Halves on the GPU, seen through products with one number a line, which the tensor cores compute exactly.


@pytest.mark.cuda
@every_distribution
def test_halves_are_the_models(kind):
    """C = A I and C = I B are what the halves stand for, where they are used, and A or B itself where they are not."""
    for k, lines, layout in itertools.product((64, 100, 260, 2112), (7, 40, 130), ("NN", "TT", "UU", "NT")):
        g = torch.Generator(device="cuda").manual_seed(k + lines)
        x = DISTRIBUTIONS[kind][0]((lines, k), g)
        values = x.cpu().numpy()
        # In a segment more, where the other operand is zero, ones: a line of I alone would go to float32.
        x = torch.cat([x, torch.zeros(lines, SEGMENT, device="cuda")], 1)
        eye = torch.cat([torch.eye(k, device="cuda"), torch.ones(k, SEGMENT, device="cuda")], 1)
        # The lines of I are clean in all of their segments, and some are dense. Parts are the numbers themselves.
        left, right = x.cpu().numpy(), eye.T.cpu().numpy()
        sure = orders.certain(values, left, right, orders.certain_of_pairs(k + SEGMENT))
        how = orders.arithmetic(left, right)
        used = (how == orders.PAIRS) | ((how == orders.CHECKED_PAIRS) & sure)
        expected = torch.from_numpy(np.where(used, orders.joined(values), values)) + 0.0
        what = f"{kind}, k {k}, {lines} lines, {layout}"
        found = product(in_layout(x, layout[0]), in_layout(eye.mT.contiguous(), layout[1]), SPLIT)
        assert_same_bits(found.cpu(), expected, f"A of {what}")
        found = product(in_layout(eye, layout[0]), in_layout(x.mT.contiguous(), layout[1]), SPLIT)
        assert_same_bits(found.cpu(), expected.mT.contiguous(), f"B of {what}")
        # One row of I at a time: B is split as it is read.
        for i in (0, 63, k - 1):
            found = product(eye[i : i + 1], in_layout(x.mT.contiguous(), layout[1]), SPLIT)
            assert_same_bits(found.cpu()[0], expected[:, i].contiguous(), f"step {i} of B of {what}")


@pytest.mark.cuda
@every_distribution
@both_rungs
def test_selections_are_exact(rung, kind):
    """Lines with one or two numbers in 64 are not by pairs: a product with I is the operand itself, whatever it has."""
    for k, lines, layout in itertools.product((64, 100, 260, 2112), (7, 130), ("NN", "NT")):
        g = torch.Generator(device="cuda").manual_seed(k + lines)
        x = DISTRIBUTIONS[kind][0]((lines, k), g)
        eye = torch.eye(k, device="cuda")
        expected = (x + 0.0).cpu()
        found = product(in_layout(x, layout[0]), in_layout(eye, layout[1]), rung)
        assert_same_bits(found.cpu(), expected, f"A of {kind}, k {k}")
        found = product(in_layout(eye, layout[0]), in_layout(x.mT.contiguous(), layout[1]), rung)
        assert_same_bits(found.cpu(), expected.mT.contiguous(), f"B of {kind}, k {k}")


@pytest.mark.cuda
@every_kernel
@both_rungs
def test_products_are_near_the_models(rung, kernel):
    """Within what the tensor core's sums of 64 products lose."""
    m, n, batch, layout = KERNELS[kernel]
    m, n, batch = min(m, 140), min(n, 140), batch and (2,)
    for k, kind in itertools.product((200, 2100), ("normal", "softmax")):
        a, b = operands(kind, m, n, k, batch, layout)
        c = product(a, b, rung)
        matrices = [x.reshape(-1, *x.shape[-2:]) for x in (a, b, c)]
        for left, right, found in zip(*matrices, strict=True):
            expected = orders.split_matmul(left, right, rung is SPLIT).to("cuda")
            error = of_magnitude((found - expected).abs().double(), left.double().abs() @ right.double().abs())
            assert error <= 2.0**-20, f"{kernel}, {kind}, k {k}: {error:.3g}"


def nearly_close(shape, g):
    """Half of the numbers of a line are as small as those of a close line can be, or a little smaller: scaled and
    rounded to 11 bits they are 2^-8 or the number before."""
    least = 2.0**-22 * (1 - 2.0**-12 + torch.randint(-2, 3, (*shape[:-1], 1), generator=g, device=g.device) * 2.0**-24)
    return torch.where(normal(shape, g) < 0, least, torch.where(normal(shape, g) < 0, -1.5, 1.25))


@pytest.mark.cuda
@pytest.mark.parametrize("kind", [*DISTRIBUTIONS, "spread by nearly close"])
def test_one_row_has_the_bits_of_several(kind):
    """Its kernel finds out by other means what pairs suit."""
    for n, k in ((3000, 192), (9000, 768), (300, 2048), (1030, 2112), (500, 4096)):
        if kind in DISTRIBUTIONS:
            a, b = operands(kind, 8, n, k, layout="NT")
        else:
            g = torch.Generator(device="cuda").manual_seed(n)
            a, b = spread((8, k), g), nearly_close((n, k), g).mT
        rows, columns = product(a, b, SPLIT), product(b.mT, a.mT, SPLIT)
        for i in (0, 5):
            one = a[i : i + 1]
            assert_same_bits(product(one, b, SPLIT), rows[i : i + 1], f"{n} x {k}")
            assert_same_bits(product(b.mT, one.mT, SPLIT).mT, columns[:, i : i + 1].mT, f"{n} x {k}, a column")


# Accuracy.


@pytest.mark.cuda
@every_distribution
@every_kernel
def test_as_accurate_as_torch(kernel, kind, poison):
    poison()
    m, n, batch, layout = KERNELS[kernel]
    for k in (64, 500, 2049, 4100) if len(batch) == 0 or batch[0] < 100 else (64, 500):
        a, b = operands(kind, m, n, k, batch, layout)
        references = references_of(kind, a, b)
        assert_accurate(product(a, b, SPLIT), a, b, references, kind, layout)
        assert_accurate(product(a, b, PARTS), a, b, references, kind, layout)


SHAPES = ((5, 260, "NN"), (40, 100, "NT"), (200, 130, "NN"), (70, 9, "UU"))  # m, n and layout


@pytest.mark.cuda
@every_distribution
def test_as_accurate_as_torch_at_every_depth(kind):
    for k, (m, n, layout) in itertools.product(DEPTHS, SHAPES):
        a, b = operands(kind, m, n, k, (), layout)
        references = references_of(kind, a, b)
        assert_accurate(product(a, b, SPLIT), a, b, references, kind, layout)
        assert_accurate(product(a, b, None), a, b, references, kind, "auto")


@pytest.mark.cuda
@pytest.mark.parametrize("k", [16384, 65536])
@pytest.mark.parametrize("m", [3, 64, 128, 300])
def test_as_accurate_as_torch_where_nothing_cancels(m, k):
    for kind in ("positive", "relu", "normal"):
        a, b = operands(kind, m, 260, k)
        assert_accurate(product(a, b, SPLIT), a, b, references_of(kind, a, b), kind)


@pytest.mark.cuda
@pytest.mark.parametrize("m", [4, 100, 300])
def test_as_accurate_as_torch_where_nearly_all_cancels(m):
    """B is orthogonal to A but for its last bits: the error counts beside |A| |B|, the truth being next to nothing."""
    for k in (256, 2048, 6000):
        a, b = operands("normal", m, 128, k // 2)
        a, b = torch.cat([a, a], dim=1), torch.cat([b, -b * (1 + 2.0**-20)], dim=0)
        c, reference = product(a, b, SPLIT), a @ b
        scale, truth = a.double().abs() @ b.double().abs(), a.double() @ b.double()
        assert truth.norm() < 1e-5 * scale.norm()
        found, torchs = ((x.double() - truth).abs() for x in (c, reference))
        assert found.norm() <= torchs.norm() + 2.0**-24 * scale.norm(), f"k {k}: {found.norm()}, {torchs.norm()}"
        assert of_magnitude(found, scale) <= of_magnitude(torchs, scale) + 2.0**-24


@pytest.mark.cuda
@every_kernel
def test_integers_are_exact(kernel):
    m, n, batch, layout = KERNELS[kernel]
    for k in DEPTHS:
        g = torch.Generator(device="cuda").manual_seed(k)
        a, b = (
            torch.randint(-30, 31, shape, generator=g, device="cuda").float()
            for shape in ((*batch[:1], m, k), (*batch[:1], k, n))
        )
        expected = (a.double() @ b.double()).float() + 0.0
        found = into_poison(in_layout(a, layout[0]), in_layout(b, layout[1]), SPLIT)
        assert_same_bits(found, expected, f"{kernel}, k {k}")


@pytest.mark.cuda
def test_zeros_and_nothing(poisoned):
    """No terms, zeros and negative zeros: +0."""
    for m, n, k in itertools.product((1, 9, 65, 130), (1, 4, 129), (0, 1, 64, 130, 2049)):
        for value in (0.0, -0.0):
            a = torch.full((m, k), value, device="cuda")
            assert_same_bits(product(a, torch.ones(k, n, device="cuda"), SPLIT), torch.zeros(m, n, device="cuda"))
            b = torch.full((k, n), value, device="cuda")
            assert_same_bits(product(torch.ones(m, k, device="cuda"), b, SPLIT), torch.zeros(m, n, device="cuda"))
    assert product(torch.ones(0, 5, device="cuda"), torch.ones(5, 3, device="cuda"), SPLIT).shape == (0, 3)


# Which outputs are computed how.


def in_float32(a, b):
    """What they are then: segments in k order, by the rung that has it, and their sums."""
    return orders.segments_matmul(a, b, lambda x, y: product(x, y, K_ORDER))


@pytest.mark.cuda
@every_kernel
@every_distribution
def test_each_output_is_computed_as_its_lines_say(kernel, kind):
    """Bit for bit the plain sums, and the other rung's products by parts, for few lines and many; the rest by pairs."""
    m, n, batch, layout = KERNELS[kernel]
    batch = batch and (2,)
    a, b = operands(kind, m, n, 333, batch, layout)
    c, how = product(a, b, SPLIT), arithmetic(a, b)
    plain, parts = in_float32(a, b), product(a, b, PARTS)
    for code, expected in ((orders.PLAIN, plain), (orders.PARTS, parts), (orders.CHECKED, parts)):
        assert_same_bits(c[how == code], expected[how == code], f"{kernel}, {kind}, {code}")
    checked, most = how == orders.CHECKED_PAIRS, orders.certain_of_pairs(a.shape[-1])
    refused = checked & ~within(plain, a, b, most + 1)
    assert_same_bits(c[refused], plain[refused], f"{kernel}, {kind}, refused")
    pairs = (how == orders.PAIRS) | (checked & within(plain, a, b, most - 1))
    if kind in ("normal", "uniform", "positive", "scaled lines", "far scaled lines", "small", "large"):
        assert pairs.all()
    if kind == "one-hot":
        assert not pairs.any()
    if kind in ("spread by close", "close by spread"):
        assert pairs.float().mean() > 0.5
    if pairs.sum() > 200 and kind not in ("sparse", "underflow"):
        assert not same_bits(c[pairs], plain[pairs]) and not same_bits(c[pairs], parts[pairs])


@pytest.mark.cuda
@every_kernel
def test_infinity_and_nan_at_the_edges_of_segments(kernel):
    m, n, batch, layout = KERNELS[kernel]
    batch = batch and (2,)
    k = 2048 + 129
    a, b = operands("normal", m, n, k, batch, "NN")
    a, b = in_layout(a, layout[0]), in_layout(b, layout[1])
    plain = product(a, b, SPLIT)
    lines = itertools.cycle([(0, 0), (m - 1, n - 1), (m // 2, n // 2), (m // 3, min(64, n - 1))])
    for depth in (0, 63, 64, 127, 2047, 2048, 2111, 2112, k - 1):
        for value, (i, j) in zip((INF, -INF, NAN), lines, strict=False):
            left, right = a.clone(), b.clone()
            left[..., i, depth] = value
            right[..., depth, j] = value
            left, right = in_layout(left, layout[0]), in_layout(right, layout[1])
            for x, y, touched in (
                (left, b, some([i], [], plain.shape)),
                (a, right, some([], [j], plain.shape)),
                (left, right, some([i], [j], plain.shape)),
            ):
                c, expected = product(x, y, SPLIT), in_float32(x, y)
                assert_same_bits(c[touched], expected[touched], f"{kernel}: {value} at {depth} of lines {i}, {j}")
                assert not c[touched].isfinite().any()
                assert_same_bits(c[~touched], plain[~touched], f"{kernel}: beside {value} at {depth} of {i}, {j}")


@pytest.mark.cuda
@every_kernel
def test_a_wide_line_changes_its_own_outputs_only(kernel):
    """One number of the line is so large that parts cannot hold all of the rest. What it meets is certain."""
    m, n, batch, layout = KERNELS[kernel]
    batch = batch and (2,)
    for k, depth in ((64, 5), (300, 299), (2500, 2060)):
        a, b = operands("normal", m, n, k, batch, layout)
        plain = product(a, b, SPLIT)
        i, j = m - 1, n // 2
        left, right = a.clone(), b.clone()
        left[..., i, depth] = 2.0**127
        right[..., depth, j] = 2.0**127
        left, right = in_layout(left, layout[0]), in_layout(right, layout[1])
        for x, y, touched in (
            (left, b, some([i], [], plain.shape)),
            (a, right, some([], [j], plain.shape)),
            (left, right, some([i], [j], plain.shape)),
        ):
            assert torch.equal(arithmetic(x, y) == orders.CHECKED, touched)
            c = product(x, y, SPLIT)
            assert_same_bits(c[touched], product(x, y, PARTS)[touched], f"{kernel}, k {k}")
            assert_same_bits(c[~touched], plain[~touched], f"{kernel}, k {k}, beside")


@pytest.mark.cuda
def test_outputs_of_next_to_nothing_are_plain():
    """The large numbers of a row meet zeros, and parts lose the others."""
    for m, n, k in ((3, 100, 2100), (70, 64, 4200), (200, 300, 2100), (3000, 3010, 200)):
        a, b = operands("normal", m, n, k)
        a[:, k // 2 :] *= 2.0**-125
        b[: k // 2] = 0
        for some in (torch.ones(m, dtype=torch.bool), torch.arange(m) % 7 == 0):
            left = torch.where(some.cuda()[:, None], a, operands("normal", m, n, k, seed=1)[0])
            c = product(left, b, SPLIT)
            assert_same_bits(c[some], in_float32(left, b)[some], f"{(m, n)}")
            assert errors(c[some], left[some], b)[1] < 2.0**-20
    # Parts are kept where the large numbers meet something.
    a, b = operands("normal", 200, 300, 500)
    a[:, 250:] *= 2.0**-125
    assert_same_bits(product(a, b, SPLIT), product(a, b, PARTS))
    assert not same_bits(product(a, b, SPLIT), in_float32(a, b))


@pytest.mark.cuda
@every_kernel
def test_parts_hold_outputs_far_below_the_largest_product(kernel):
    """The large numbers of a row meet zeros, all others are far below: parts hold these, and none is computed again."""
    m, n, batch, layout = KERNELS[kernel]
    for k in (300, 2500):
        a, b = operands("normal", m, n, k, batch and (2,), layout)
        a[..., k // 2 :] *= 2.0**-80
        a[..., k - 1] = 2.0**-130  # so low that parts may not hold it
        b[..., : k // 2, :] = 0
        assert (arithmetic(a, b) == orders.CHECKED).all()
        c = product(a, b, SPLIT)
        assert_same_bits(c, product(a, b, PARTS), f"{kernel}, k {k}")
        assert errors(c, a, b)[1] < 2.0**-20, f"{kernel}, k {k}"


def spread_and_dense(m, n, k, batch, layout):
    """Rows whose few large numbers meet zeros in some columns, but not in the others."""
    g = torch.Generator(device="cuda").manual_seed(m + n + k)
    a, b = close((*batch, m, k), g), close((*batch, k, n), g)
    large, step = torch.arange(k, device="cuda") % 8 == 3, torch.arange(n, device="cuda") % 3 == 1
    a = torch.where(large, a, a * 2.0**-34)
    b = torch.where(large[:, None] & step, 0, b)
    b[..., k // 2, ~step] = 0
    return in_layout(a, layout[0]), in_layout(b, layout[1]), step


@pytest.mark.cuda
@every_kernel
def test_pairs_of_a_spread_line_and_a_dense_one_are_checked(kernel, poison):
    """Outputs of next to nothing are computed on the plain cores, and no others."""
    poison()
    m, n, batch, layout = KERNELS[kernel]
    batch = batch and (2,)
    for k in (64, 200, 1100, 2500, 4500):
        a, b, refused = spread_and_dense(m, n, k, batch, layout)
        assert (arithmetic(a, b) == orders.CHECKED_PAIRS).all()
        c, plain = product(a, b, SPLIT), in_float32(a, b)
        where = f"{kernel}, k {k}"
        assert_same_bits(c[..., refused].contiguous(), plain[..., refused].contiguous(), where)
        assert n == 1 or not same_bits(c[..., ~refused], plain[..., ~refused]), where
        assert errors(c, a, b)[1] < 2.0**-20 and errors(c[..., refused], a, b[..., refused])[1] < 2.0**-20, where
        # The same where they are not all that there is.
        some_rows = torch.arange(m, device="cuda")[:, None] % 4 == 0
        mixed = torch.where(some_rows, a, operands("normal", m, n, k, batch)[0])
        mixed[..., m // 2, k // 3] = NAN if m > 8 else 1.0
        found = product(in_layout(mixed, layout[0]), b, SPLIT)
        same = (torch.arange(m, device="cuda") % 4 == 0) & (torch.arange(m, device="cuda") != m // 2)
        assert_same_bits(found[..., same, :].contiguous(), c[..., same, :].contiguous(), f"{where}, mixed")
        transposed = product(b.mT, a.mT, SPLIT).mT[..., refused].contiguous()
        assert_same_bits(transposed, plain[..., refused].contiguous(), f"{where}, transposed")


@pytest.mark.cuda
@pytest.mark.parametrize("k", [200, 4200])
def test_exceptional_lines_among_others(k):
    """Tiles of parts are made of lines that lie apart; the outputs go where they belong."""
    for m, n in ((700, 900), (3000, 300)):
        for rows, columns in ((0.3, 0.0), (0.0, 0.3), (0.1, 0.1), (0.9, 0.5), (1.0, 0.0)):
            a, b = operands("normal", m, n, k)
            gaps = torch.arange(k, device="cuda") % 5 < 3
            a[:, gaps], b[gaps] = 0, 0  # no line is close or dense
            g = torch.Generator(device="cuda").manual_seed(k)
            spread = (torch.rand(size, generator=g, device="cuda") < share for size, share in ((m, rows), (n, columns)))
            of_rows, of_columns = spread
            a = torch.where(of_rows[:, None], softmax(a.shape, g), a)
            b = torch.where(of_columns, softmax((n, k), g).T, b)
            c, parts = product(a, b, SPLIT), product(a, b, PARTS)
            by_parts = of_rows[:, None] | of_columns
            assert_same_bits(c[by_parts], parts[by_parts], f"{(m, n)}, {rows}, {columns}")
            assert_accurate(c, a, b, [a @ b], "some wide")


# Shapes, and how many rows and columns have outputs by parts: such lines alone are computed without tiles, those of
# rows and of columns together, groups of k apart or not; or they are more than that pays for.
LISTED = (
    ((200, 300), (64, 500, 2049, 4200), "NN", ((0, 1), (1, 0), (2, 3), (20, 9), (0, 300))),
    ((1000, 1100), (333, 2000), "NT", ((0, 1), (17, 0), (2, 70), (0, 200))),
    ((1100, 130), (500, 6000), "UU", ((1, 2), (0, 30))),
    ((131, 4001), (130, 2500), "TT", ((0, 9), (3, 3))),
    ((3000, 3010), (200,), "TN", ((0, 5), (9, 0), (3, 100))),
    ((17, 3000), (700, 5000), "NN", ((0, 5), (0, 100), (2, 2))),
    ((900, 40), (333, 2500), "NT", ((5, 0), (60, 1))),
    ((5, 1000), (1500, 2100), "NT", ((0, 3), (1, 1))),
    ((100, 700), (500, 4200), "UU", ((0, 20), (4, 4))),
)


@pytest.mark.cuda
@pytest.mark.parametrize(("shape", "depths", "layout", "counts"), LISTED, ids=[str(case[0]) for case in LISTED])
def test_few_lines_by_parts_have_the_bits_of_all(shape, depths, layout, counts, poison):
    m, n = shape
    for k, (rows, columns), spread in itertools.product(depths, counts, (False, True)):
        poison()
        g = torch.Generator(device="cuda").manual_seed(k)
        a, b = operands("normal", m, n, k)
        a, b = a.sign() * (a.abs() + 0.01), b.sign() * (b.abs() + 0.01)  # close
        if spread:  # what is not close or dense has outputs by parts with rows of softmax
            a = torch.softmax(normal((m, k), g) * 3, dim=-1)
        few_rows, few_columns = (
            torch.randperm(size, generator=g, device="cuda")[:few] for size, few in ((m, rows), (n, columns))
        )
        a[few_rows, :] = one_hot((rows, k), g)
        gaps = torch.arange(k, device="cuda") % 5 < 3
        b[:, few_columns] = torch.where(gaps[:, None], 0, b[:, few_columns])
        if not spread:
            b[:, few_columns] = one_hot((columns, k), g).T
        a, b = in_layout(a, layout[0]), in_layout(b, layout[1])
        where = f"k {k}, {rows} rows, {columns} columns, spread {spread}"
        how = arithmetic(a, b)
        by_pairs = (how == orders.PAIRS) & ~some(few_rows.tolist(), few_columns.tolist(), (m, n))
        assert by_pairs.sum() >= 0.5 * (m - rows) * (n - columns) and (spread or (how == orders.PARTS).any()), where
        c, parts = product(a, b, SPLIT), product(a, b, PARTS)
        assert_same_bits(c[how == orders.PARTS], parts[how == orders.PARTS], where)
        bias = torch.randn(n, generator=g, device="cuda")
        with_bias = torch_reduce.linear(a, b.T, bias, variant=SPLIT.name)
        assert_same_bits(with_bias, c + bias, where)
        plain = a.clone()
        plain[few_rows, :] = operands("normal", rows, n, k)[0] if rows else plain[few_rows, :]
        pairs = product(in_layout(plain, layout[0]), b, SPLIT)
        assert_same_bits(c[by_pairs], pairs[by_pairs], where)


# m, n and k of products of a batch, and how many: one operand has tiles of 128 lines.
WIDE_BATCHES = (
    (512, 64, 512, 140),
    (300, 50, 300, 140),
    (4300, 64, 520, 2),
    (64, 520, 512, 150),
    (500, 70, 2100, 66),
    (70, 500, 520, 66),
)


def test_every_wide_tile_of_batches_is_tested():
    plans = [
        torch_reduce.plan("matmul", (b, m, k), (b, k, n), variant=SPLIT.name, device="H200")
        for m, n, k, b in WIDE_BATCHES
    ]
    assert {p.tile for p in plans} == {(128, 64), (64, 128), (128, 128)}


@pytest.mark.cuda
@pytest.mark.parametrize("layout", ["NN", "TT"])
@pytest.mark.parametrize(("m", "n", "k", "batch"), WIDE_BATCHES)
def test_lines_left_of_products_of_a_batch_have_the_bits_of_each(m, n, k, batch, layout, poison):
    """However many pairs leave: a few, more than are multiplied without tiles, or all."""
    poison()
    g = torch.Generator(device="cuda").manual_seed(k)
    lines, few = max(m, n), min(m, n)
    w, x = normal((batch, lines, k), g), normal((batch, few, k), g)
    counts = (33, 32, lines, 17, 0, 1, 16, 60)[:batch]
    for i, count in enumerate(counts):
        places = torch.randperm(lines, generator=g, device="cuda")[:count]
        w[i, places] = torch.softmax(15 * w[i], -1) if count == lines else lines_of_every_kind(count, k, g)[0]
        if i % 3 == 0:
            x[i, few // 2] = 0  # outputs next to nothing
        elif i % 3 == 1:
            x[i, ::3] = lines_of_every_kind(x[i, ::3].shape[0], k, g)[0]
    a, b = (w, x.mT) if m >= n else (x, w.mT)
    c = product(in_layout(a, layout[0]), in_layout(b, layout[1]), SPLIT)
    for i, count in enumerate(counts):
        assert_same_bits(c[i], product(a[i], b[i], DIRECT), f"{count} lines left")


# Independent of what lies beside.


@pytest.mark.cuda
@pytest.mark.parametrize("kind", ["normal", "some wide"])
@pytest.mark.parametrize("layout", ["NN", "NT", "UU", "TN"])
@pytest.mark.parametrize("k", [64, 500, 2048, 2049, 6000])
def test_rows_do_not_depend_on_their_number(k, layout, kind, poison):
    poison()
    for n in (64, 100, 260):
        a, b = operands(kind, 257, n, k, (), layout)
        whole = product(a, b, SPLIT)
        for m in (1, 5, 8, 9, 16, 17, 33, 64, 65, 100, 128, 129, 200, 257):
            for first in {0, 257 - m}:
                found = product(a[first : first + m], b, SPLIT)
                assert_same_bits(found, whole[first : first + m], f"{m} rows from {first}, n {n}")


def lines_of_every_kind(lines, k, g):
    """Lines that pairs suit, that suit some, and none; that parts hold in whole, in part, and not at all."""
    x = torch.randn(lines, k, generator=g, device="cuda")
    kind = torch.randint(0, 12, (lines, 1), generator=g, device="cuda")
    some = torch.rand(lines, k, generator=g, device="cuda")
    group = torch.arange(k, device="cuda") // orders.GROUP
    of_kind = {
        1: torch.where(some < 0.1, x, 0),
        2: torch.softmax(3 * x, -1),
        3: torch.softmax(40 * x, -1),
        4: torch.where(some == some.amin(-1, keepdim=True), 1.0, 0.0),
        5: torch.where(some == some.amin(-1, keepdim=True), NAN, x),
        6: torch.where(some < 0.01, -INF, x),
        7: torch.zeros_like(x),
        8: torch.ldexp(x, (some * 126).int() - 100),
        9: torch.ldexp(x, (some * 50).int() - 25),
        10: torch.ldexp(x, -40 * (group + 1)),
        11: x * 1e-38,
    }
    for number, values in of_kind.items():
        x = torch.where(kind == number, values, x)
    return x, kind.flatten()


@pytest.mark.cuda
@pytest.mark.parametrize("k", [100, 2048, 4200])
@pytest.mark.parametrize("lines", [260, 20000])  # so many that the chip is full, whatever the blocks
def test_few_lines_have_the_bits_of_many(lines, k, poison):
    """Few lines are multiplied by halves, by parts or both, whichever they need; the others are read in any layout."""
    poison()
    g = torch.Generator(device="cuda").manual_seed(k)
    x, kinds = lines_of_every_kind(300, k, g)
    never = ((kinds == 3) | (kinds == 4) | (kinds >= 8)).nonzero().flatten()
    pad = torch.nn.functional.pad
    normal_lines = torch.randn(lines, k, generator=g, device="cuda")
    # Some of which meet lines that spread by parts: blocks share these, gathered where they lie apart.
    apart, together = torch.arange(0, lines, 89, device="cuda"), torch.arange(70, 250, device="cuda")
    far = [normal_lines.index_put((at, at % k), torch.tensor(1e-9, device="cuda")) for at in (apart, together)]
    for of_w in (lines_of_every_kind(lines, k, g)[0], normal_lines, *far):
        whole = product(x, of_w.T, SPLIT)
        transposed = product(of_w, x.T, SPLIT)
        layouts = (of_w.T, of_w.T.contiguous(), pad(of_w, (0, 1))[:, :k].T, pad(of_w.T, (0, 1))[:, :lines])
        for w in layouts:
            for m in (1, 2, 3, 7, 16, 17, 32, 50, 64, 100, 128):
                for some in (torch.randperm(300, generator=g, device="cuda")[:m], never[:m]):
                    found = product(x[some], w, SPLIT)
                    assert_same_bits(found, whole[some], f"{m} rows of kinds {kinds[some].tolist()}")
                    assert_same_bits(product(w.T, x[some].T, SPLIT), transposed[:, some], f"{m} columns")


def powers(shape, g, low, high):
    """A power of two for each of `shape`."""
    return torch.randint(low, high + 1, shape, generator=g, device=g.device).float().exp2()


def by_segments(x, factors):
    """Each segment of the lines of x times its factor, of shape (..., lines, segments)."""
    return x * factors.repeat_interleave(SEGMENT, dim=-1)[..., : x.shape[-1]]


def segments(shape):
    return (*shape[:-1], -(-shape[-1] // SEGMENT))


def few_bits(shape, g):
    """Low halves that are zero, subnormal and large, beside one another."""
    x = normal(shape, g)
    bits = torch.randint(0, 24, shape, generator=g, device=g.device, dtype=torch.int32)
    return (x.view(torch.int32) >> bits << bits).view(torch.float32) * powers(shape, g, -13, 0)


def group_begins(factor):
    """The numbers that the unit is guessed from, times a factor."""

    def values(shape, g):
        x = normal(shape, g)
        return torch.where(torch.arange(shape[-1], device=g.device) % orders.GROUP < 16, x * factor, x)

    return values


# Lines whose segments lie above and below their group's unit, or can be brought to it in part.
UNITS = {
    "segments of many scales": lambda shape, g: by_segments(normal(shape, g), powers(segments(shape), g, -8, 8)),
    "segments of all scales": lambda shape, g: by_segments(normal(shape, g), powers(segments(shape), g, -40, 20)),
    "zero segments": lambda shape, g: by_segments(normal(shape, g), powers(segments(shape), g, -1, 0) - 0.5),
    "few bits": few_bits,
    "from nothing on": group_begins(0),
    "from little on": group_begins(2.0**-40),
    "from much on": group_begins(2.0**12),
    "small": lambda shape, g: normal(shape, g) * 2.0**-43,
    "small and large": lambda shape, g: normal(shape, g) * powers((*shape[:-1], 1), g, -43, 22),
    "nothing but low halves": lambda shape, g: (normal(shape, g) * 2.0**-11 + 1).repeat_interleave(2, dim=-1)[
        ..., : shape[-1]
    ],
}


@pytest.mark.cuda
@pytest.mark.parametrize("kind", UNITS)
@pytest.mark.parametrize("cancels", [False, True])
def test_units_change_no_bits(kind, cancels):
    """Tiles add most sums of segments in a unit of their group; kernels for few rows and columns know no units."""
    for k, layout in itertools.product((100, 2048, 2200, 6000), ("NN", "TT", "UU")):
        g = torch.Generator(device="cuda").manual_seed(k)
        a, b = UNITS[kind]((300, k), g), UNITS[kind]((260, k), g)
        if cancels:  # high halves of neighbours: what is left are sums of low ones
            b[..., 1::2] = -b[..., : k - 1 : 2]
            a[..., 1::2] = a[..., : k - 1 : 2] * (1 + 2.0**-15)
        a, b = in_layout(a, layout[0]), in_layout(b.mT.contiguous(), layout[1])
        whole = product(a, b, SPLIT)
        for first, count in ((0, 1), (7, 8), (100, 16), (40, 60), (172, 128)):
            found = product(a[first : first + count], b, SPLIT)
            assert_same_bits(found, whole[first : first + count], f"{count} rows from {first}, k {k}, {layout}")
            found = product(a, b[:, first : first + count], SPLIT)
            assert_same_bits(
                found, whole[:, first : first + count].contiguous(), f"{count} columns from {first}, k {k}"
            )


@pytest.mark.cuda
@pytest.mark.parametrize("kind", ["normal", "some wide"])
@pytest.mark.parametrize("layout", ["NN", "NT", "UU"])
@pytest.mark.parametrize("m", [1, 12, 30, 60, 128, 257])
def test_columns_do_not_depend_on_their_number(m, layout, kind, poison):
    poison()
    for k in (64, 500, 2049, 6000):
        a, b = operands(kind, m, 260, k, (), layout)
        whole = product(a, b, SPLIT)
        for n in (1, 7, 8, 9, 17, 33, 63, 64, 65, 128, 129, 200, 260):
            for first in {0, 260 - n}:
                found = product(a, b[:, first : first + n], SPLIT)
                expected = whole[:, first : first + n].contiguous()
                assert_same_bits(found, expected, f"{n} columns from {first}, k {k}")


@pytest.mark.cuda
def test_many_tiles_have_the_bits_of_few():
    """Three groups of k side by side, or where that saves no time (2900, 1280) one after another in a block."""
    k = 4096 + 70
    a, b = operands("some wide", 2900, 2900, k)
    whole = product(a, b, SPLIT)
    some_tiles = ((129, 2100), (300, 300), (1100, 1100), (1280, 1280), (2100, 2100))
    for m, n in ((1, 2100), (64, 300), (100, 2100), (128, 2100), *some_tiles):
        assert_same_bits(product(a[-m:], b[:, -n:], SPLIT), whole[-m:, -n:].contiguous(), f"{(m, n)}")


@pytest.mark.cuda
@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
@pytest.mark.parametrize("benign", [True, False], ids=["normal", "every kind"])
@pytest.mark.parametrize(
    ("m", "n", "k", "batch"),
    [
        (64, 64, 2112, ()),
        (9, 20, 2052, ()),
        (64, 36, 65536, ()),
        (100, 128, 9000, ()),
        (40, 16, 150_000, ()),
        (64, 68, 4500, (2,)),
        (64, 64, 4500, (40,)),  # a block a group
        (128, 124, 40_000, (3,)),
        # Those who split load them.
        (9, 9, 2051, ()),
        (65, 18, 43_637, ()),
        (49, 190, 11_605, ()),
        (255, 250, 5001, ()),
        (33, 70, 4099, (3,)),
        (63, 64, 4501, (40,)),
    ],
)
def test_few_lines_on_both_sides_have_the_bits_of_many(m, n, k, batch, benign, layout, poison):
    """Where both operands are split as they are read, in runs of segments or in groups."""
    poison()
    g = torch.Generator(device="cuda").manual_seed(k)

    def lines(count, benign):
        x = torch.randn(*batch, count, k, generator=g, device="cuda")
        return x if benign else lines_of_every_kind(x.numel() // k, k, g)[0].view_as(x)

    a, b = in_layout(lines(m, benign), layout[0]), in_layout(lines(n, benign).mT.contiguous(), layout[1])
    beside = lines(260, True)  # so many that one operand is split before
    for more_a, more_b in ((torch.cat([a, beside], -2), b), (a, torch.cat([b, beside.mT], -1))):
        whole = product(more_a, more_b, SPLIT)[..., :m, :n].contiguous()
        for _ in range(2):
            assert_same_bits(product(a, b, SPLIT), whole)
    if benign and not batch:
        bias = torch.randn(n, generator=g, device="cuda")
        assert_same_bits(torch.ops.treduce.linear(a, b.T, bias, SPLIT.name), whole + bias)


@pytest.mark.cuda
@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
@pytest.mark.parametrize(("m", "n", "k"), [(64, 64, 9000), (20, 40, 5001), (49, 190, 6605), (9, 250, 70_000)])
def test_plain_outputs_of_a_long_k_have_the_bits_of_many(m, n, k, layout, poison):
    """Both operands spread so far that all outputs are computed on the plain cores, a block each group of k."""
    poison()
    g = torch.Generator(device="cuda").manual_seed(k)
    a, b = (torch.softmax(15 * torch.randn(lines, k, generator=g, device="cuda"), 1) for lines in (m, n))
    a[1, k // 2], b[3, 7] = torch.inf, torch.nan
    beside, bias = torch.randn(260, k, generator=g, device="cuda"), torch.randn(n, generator=g, device="cuda")
    whole = product(in_layout(torch.cat([a, beside]), layout[0]), in_layout(b.mT.contiguous(), layout[1]), SPLIT)[:m]
    a, b = in_layout(a, layout[0]), in_layout(b.mT.contiguous(), layout[1])
    assert_same_bits(product(a, b, SPLIT), whole.contiguous())
    with_bias = torch.where(whole.isnan(), whole, whole + bias)  # torch's NaN has other bits
    assert_same_bits(torch.ops.treduce.linear(a, b.mT, bias, SPLIT.name), with_bias)


@pytest.mark.cuda
def test_few_lines_of_any_stride_have_the_bits_of_contiguous_ones(poison):
    poison()
    a, b = (torch.randn(2 * lines, 3 * 9001, device="cuda") for lines in (100, 70))
    for x, y in ((a[::2, ::3], b[::2, ::3]), (a[::2, 5:9006], b[::2, ::3]), (a[:100, 1:9002], b[70:, 3:9004])):
        x_whole, y_whole = torch.cat([x, a[:260, :9001]]), torch.cat([y, b[:10, :9001]])
        whole = product(x_whole, y_whole.T, SPLIT)[: len(x), : len(y)].contiguous()
        assert_same_bits(product(x, y.T, SPLIT), whole)


# Of each tile that split_direct has, and of each cluster, also of such as walk k in several rounds: m, n, k, batch.
DIRECT_PRODUCTS = [
    (600, 633, 640, ()),
    (505, 512, 500, ()),
    (297, 1999, 129, ()),
    (128, 761, 768, ()),
    (49, 50, 130, ()),
    (250, 251, 192, (2,)),
    (16, 1000, 1024, ()),
    (40, 33, 4200, (3,)),
    (2100, 3, 130, (3,)),
    (4099, 7, 300, ()),
    (1000, 8, 2048, ()),
    (1, 4099, 512, ()),
    (7, 1000, 1024, ()),
    (5, 300, 4200, (2,)),
    (2100, 7, 1024, ()),
    (1, 768, 3072, ()),
    # One line by lines along k, in clusters of each size, and more groups of k.
    (1, 4000, 2048, ()),
    (1, 1003, 4097, ()),
    (1, 256, 4096, ()),
    (1, 100, 20_001, ()),
    (3001, 1, 2050, ()),
    (1000, 1, 768, ()),
    (250, 1, 9000, ()),
    (17, 1, 32_700, ()),
    (3, 200, 20_000, ()),
    (30, 40, 4096, ()),
    (128, 120, 2112, ()),
    (33, 1000, 4100, (2,)),
    (100, 90, 13_000, (2,)),
    # Many lines by few: of one matrix or of many, in rows that are aligned or not.
    (1, 40_000, 640, ()),
    (30_003, 7, 384, ()),
    (300, 3, 131, (130,)),
    (128, 9000, 256, ()),
    (17_000, 20, 320, ()),
    (20_001, 40, 301, ()),
    (37, 18_001, 130, ()),
    (17_003, 64, 333, ()),
    (199, 100, 197, (45,)),
    (31, 130, 129, (130,)),
    (300, 301, 140, (33,)),
    (2, 20_001, 1500, ()),
    (9000, 8, 2048, (3,)),
    (70_001, 3, 130, ()),
]


# Of some lines by more, whose clusters share k (split_some.cu).
SHARED_K = [
    (9, 501, 1040, ()),
    (2384, 64, 2149, ()),
    (10, 1176, 4801, ()),
    (2483, 95, 536, ()),
    (25, 253, 3128, ()),
    (1489, 39, 646, ()),
    (82, 763, 704, ()),
    (812, 101, 644, ()),
    (1278, 17, 619, ()),
    (112, 1126, 516, ()),
    (703, 25, 4303, ()),
    (98, 634, 544, ()),
    (64, 768, 3072, ()),
    (16, 1094, 5040, ()),
    (10, 294, 3966, ()),
]


def shares_k(p):
    return p.launches[0].kernel == "multiply tiles, clusters share k"


def direct_plan(m, n, k, batch):
    return torch_reduce.plan("matmul", (*batch, m, k), (*batch, k, n), variant="split_direct", device="H200")


def test_every_tile_whose_clusters_share_k_is_tested():
    """Sixteens of the more lines by eights of the others, one tile of these and several; one group of k and more."""
    found = set()
    for m, n, k, batch in SHARED_K:
        p = direct_plan(m, n, k, batch)
        assert shares_k(p), (m, n, k)
        of_w, of_x = sorted(zip((m, n), p.tile, strict=True), reverse=True)
        found |= {("sets", of_w[1] // 16), ("octets", of_x[1] // 8), ("tiles", of_x[0] > of_x[1])}
        found |= {("cluster", p.launches[0].cluster, m > n), ("groups", k > 2048)}
    assert {f for f in found if f[0] != "cluster"} == {
        *(("sets", i) for i in range(1, 9)),
        *(("octets", i) for i in range(1, 9)),
        *((kind, of) for kind in ("tiles", "groups") for of in (False, True)),
    }
    assert {f for f in found if f[0] == "cluster"} == {("cluster", c, a) for c in (1, 2, 4, 8) for a in (False, True)}


def test_every_tile_of_small_products_is_tested():
    plans = [p for p in itertools.starmap(direct_plan, DIRECT_PRODUCTS) if not shares_k(p)]
    found = {(p.tile, p.launches[0].block[0]) for p in plans}
    tiles = {(64, 64), (64, 32), (32, 32), (16, 16), (16, 8), (8, 16)}
    several = {(tile, t) for tile in tiles for t in (256, 512)} - {((64, 64), 256), ((64, 32), 256)}
    assert found == several | {((64, 64), 128), ((64, 8), 128), ((8, 64), 128), ((16, 1), 256)}
    assert {p.launches[0].cluster for p in plans} == {1, 2, 4, 8}
    single = {p.launches[0].cluster for p in plans if p.tile == (16, 1)}
    for m, n, k, batch in DIRECT_PRODUCTS:
        p = torch_reduce.plan("linear", (*batch, m, k), (n, k), variant="split_direct", device="H200")
        if p.tile == (1, 16):
            single.add(p.launches[0].cluster)
    assert single == {1, 2, 4, 8}


def assert_small_has_bits_of_large(rung, m, n, k, batch, layout, more):
    """Of benign lines, of every kind, and of one line that is not benign; beside `more` rows and columns."""
    g = torch.Generator(device="cuda").manual_seed(k + n)

    def lines(count, kind):
        x = torch.randn(*batch, count, k, generator=g, device="cuda")
        if kind == "one":
            x[..., count // 2, k // 3] = NAN
        if kind == "select":
            x[..., count // 2, :] = torch.eye(k, device="cuda")[k // 3]
        return lines_of_every_kind(x.numel() // k, k, g)[0].view_as(x) if kind == "every" else x

    beside = lines(more, "benign")
    kinds = [("benign", "benign"), ("every", "every"), ("one", "benign"), ("benign", "every")]
    for of_a, of_b in (*kinds, ("select", "benign"), ("benign", "select")):
        a, b = lines(m, of_a), lines(n, of_b).mT.contiguous()
        large = torch.cat([a, beside], -2), torch.cat([b, beside.mT], -1)
        whole = product(*large, SPLIT)[..., :m, :n].contiguous()
        a, b = in_layout(a, layout[0]), in_layout(b, layout[1])
        for _ in range(2):
            assert_same_bits(product(a, b, rung), whole, f"{of_a} by {of_b}")
        if not batch:
            bias = torch.randn(n, generator=g, device="cuda")
            found = torch.ops.treduce.linear(a, b.T, bias, rung.name)
            more_bias = torch.nn.functional.pad(bias, (0, more))
            whole = torch.ops.treduce.linear(large[0], large[1].T, more_bias, SPLIT.name)[:m, :n].contiguous()
            assert_same_bits(found, whole, f"{of_a} by {of_b}, with a bias")


@pytest.mark.cuda
@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT", "TU", "UU"])
@pytest.mark.parametrize(("m", "n", "k", "batch"), DIRECT_PRODUCTS + SHARED_K)
def test_small_products_have_the_bits_of_large(m, n, k, batch, layout, poison):
    poison()
    assert_small_has_bits_of_large(DIRECT, m, n, k, batch, layout, more=300)


@pytest.mark.cuda
@pytest.mark.parametrize("layout", ["NN", "TT"])
@pytest.mark.parametrize(("m", "n", "k", "batch"), [p for p in DIRECT_PRODUCTS + SHARED_K if p[1] > 1 and p[2] <= 4500])
def test_checked_pairs_of_small_products_are_plain_where_they_are_next_to_nothing(m, n, k, batch, layout, poison):
    """Where all lines have such outputs, and where one has; spread lines on either side."""
    poison()
    a, b, refused = spread_and_dense(m, n, k, batch, layout)
    one = operands("normal", m, n, k, batch)[0]
    one[..., m // 2, :] = a[..., m // 2, :]
    plain = in_float32(a, b)
    for spread, rows in ((a, slice(None)), (in_layout(one, layout[0]), slice(m // 2, m // 2 + 1))):
        expected = plain[..., rows, :]
        c = product(spread, b, DIRECT)[..., rows, :]
        assert_same_bits(c[..., refused].contiguous(), expected[..., refused].contiguous())
        assert not same_bits(c[..., ~refused], expected[..., ~refused])
        transposed = product(b.mT, spread.mT, DIRECT).mT[..., rows, :]
        assert_same_bits(transposed[..., refused].contiguous(), expected[..., refused].contiguous(), "transposed")


# Segments of k whose numbers pairs lose: all, later ones, the last, and those of some blocks of a cluster.
FAR_SEGMENTS = {"all": slice(0, None), "late": slice(12, None), "last": slice(-1, None), "some": slice(4, None, 12)}


@pytest.mark.cuda
@pytest.mark.parametrize("far", FAR_SEGMENTS)
@pytest.mark.parametrize(
    ("m", "n", "k"),
    [(64, 768, 3072), (30, 40, 4100), (100, 90, 13_000), (128, 761, 1000), (500, 512, 1000), (10, 294, 3966)],
)
def test_small_products_that_no_pairs_suit_have_the_bits_of_large(m, n, k, far, poison):
    """A block then stops multiplying pairs, in whatever round it finds so."""
    poison()
    g = torch.Generator(device="cuda").manual_seed(k)

    def lines(count, is_far):
        x = torch.randn(count, k, generator=g, device="cuda")
        if is_far:
            segments = torch.arange(0, k, 64, device="cuda")[FAR_SEGMENTS[far]]
            places = (segments[:, None] + torch.arange(64, device="cuda")).flatten()
            places = places[places < k]
            x[:, places] *= torch.exp2(torch.randint(-40, 40, (count, len(places)), generator=g, device="cuda").float())
        return x

    beside = lines(300, False)
    for of_a, of_b in ((True, False), (False, True), (True, True)):
        a, b = lines(m, of_a), lines(n, of_b)
        whole = product(torch.cat([a, beside]), torch.cat([b, beside]).mT, SPLIT)[:m, :n].contiguous()
        for _ in range(2):
            assert_same_bits(product(a, b.mT, DIRECT), whole, f"far: {of_a}, {of_b}")


def one_hot(shape, g):
    """Zero in nearly all segments."""
    return torch.nn.functional.one_hot(
        torch.randint(shape[-1], shape[:-1], generator=g, device="cuda"), shape[-1]
    ).float()


def later_larger(shape, g, orders=70):
    """Of the second half of k, which parts in units of the first numbers do not hold."""
    x = normal(shape, g)
    x[::3, shape[-1] // 2 :] *= 2.0**orders
    return x


@pytest.mark.cuda
@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT", "UU"])
@pytest.mark.parametrize(("m", "n", "k"), [p[:3] for p in SHARED_K if p[2] > 900])
def test_clusters_that_multiply_all_of_x_by_parts_at_once(m, n, k, layout, poison):
    """No line of the fewer has outputs by pairs, as each block finds of its segments: it is such there, or zero."""
    poison()
    g = torch.Generator(device="cuda").manual_seed(k)
    beside = normal((300, k), g)
    for few, more in itertools.product((sharp_softmax, one_hot, full_range), (normal, sharp_softmax, later_larger)):
        x, w = few((min(m, n), k), g), more((max(m, n), k), g)
        for exceptional in (False, True):
            if exceptional:
                x[1, k // 3], w[2, k // 2], w[5, 0] = NAN, INF, -INF
            a, b = (x, w.mT) if m <= n else (w, x.mT)
            large = torch.cat([a, beside]), torch.cat([b, beside.mT], -1)
            whole = product(*large, SPLIT)[:m, :n].contiguous()
            a, b = in_layout(a.contiguous(), layout[0]), in_layout(b.contiguous(), layout[1])
            found = product(a, b, DIRECT)
            assert_same_bits(found, whole, f"{few.__name__} by {more.__name__}, exceptional: {exceptional}")


# Products whose blocks compute what pairs leave of their tiles: of each shape, and of one task and several.
REST_PRODUCTS = [
    (862, 1360, 204, ()),
    (700, 720, 400, ()),
    (1000, 800, 300, ()),
    (301, 609, 1003, ()),
    (129, 131, 1600, ()),
    (200, 300, 500, (2,)),
    (150, 140, 64, (3, 15)),
    (1100, 1090, 700, ()),
]


REST_MORE = 2400  # lines: a product that has so many more leaves the rest to other launches


def test_every_tile_of_blocks_that_compute_the_rest_is_tested():
    found = set()
    for m, n, k, batch in REST_PRODUCTS:
        p, large = (
            torch_reduce.plan("matmul", (*batch, m + more, k), (*batch, k, n + more), variant=SPLIT.name, device="H200")
            for more in (0, REST_MORE)
        )
        assert len(p.launches) == 2 < len(large.launches)
        found.add(p.tile)
    assert found == {(128, 96), (64, 128), (64, 64), (64, 32)}


@pytest.mark.cuda
@pytest.mark.parametrize("layout", ["NN", "TU"])
@pytest.mark.parametrize(("m", "n", "k", "batch"), REST_PRODUCTS)
def test_what_blocks_compute_of_the_rest_has_the_bits_of_large(m, n, k, batch, layout, poison):
    poison()
    assert_small_has_bits_of_large(SPLIT, m, n, k, batch, layout, more=REST_MORE)


@pytest.mark.cuda
@pytest.mark.parametrize("layout", ["NN", "TT", "UU"])
@pytest.mark.parametrize(("m", "n", "k"), [(1100, 1090, 700), (463, 551, 1811), (300, 2048, 2048), (2000, 2000, 130)])
def test_blocks_help_each_other_to_split_lines(m, n, k, layout, poison):
    """Few tiles have outputs by parts, so that blocks without any split their lines."""
    poison()
    g = torch.Generator(device="cuda").manual_seed(m)
    a, b = (torch.randn(lines, k, generator=g, device="cuda") for lines in (m, n))
    benign = product(in_layout(a, layout[0]), in_layout(b.T.contiguous(), layout[1]), SPLIT)
    for rows, columns in (([m // 2], []), ([], [n - 1]), ([0], [n // 3])):
        x, y = a.clone(), b.clone()
        x[rows] = exponents((len(rows), k), g, -50, 50)
        y[columns] = exponents((len(columns), k), g, -50, 50)
        x, y = in_layout(x, layout[0]), in_layout(y.T.contiguous(), layout[1])
        expected = torch.where(some(rows, columns, (m, n)), product(x, y, PARTS), benign)
        for _ in range(3):
            assert_same_bits(product(x, y, SPLIT), expected, f"{rows} by {columns}")


@pytest.mark.cuda
@pytest.mark.parametrize("kind", UNITS)
def test_clusters_change_no_bits(kind):
    """Groups begin within the segments of a block, end in those of another, and lie in several rounds of a cluster."""
    for m, n, k in ((1, 300, 2048), (5, 768, 3072), (1, 70, 8191), (16, 256, 4160), (32, 200, 6000), (60, 64, 20_000)):
        g = torch.Generator(device="cuda").manual_seed(k)
        a, b = UNITS[kind]((m, k), g), UNITS[kind]((n, k), g)
        assert torch_reduce.plan("matmul", a, b.T, variant=DIRECT.name).launches[0].cluster > 1
        assert_same_bits(product(a, b.T, DIRECT), product(a, b.T, SPLIT), f"{(m, n, k)}")
        for line in (0, m - 1):
            a[line, k - 1] = INF  # in the last block's segments alone
        assert_same_bits(product(a, b.T, DIRECT), product(a, b.T, SPLIT), f"{(m, n, k)}, with infinities")


@pytest.mark.cuda
@pytest.mark.parametrize("kind", ["normal", "some wide"])
@pytest.mark.parametrize("layout", ["NN", "TT", "UU"])
def test_a_batch_has_the_bits_of_its_matrices(layout, kind, poisoned):
    for (m, n, k), batch in itertools.product(((1, 64, 200), (20, 100, 2049), (130, 70, 64)), ((1,), (7,), (3, 5))):
        a, b = operands(kind, m, n, k, batch, layout)
        whole = product(a, b, SPLIT)
        for index in itertools.product(*map(range, batch)):
            assert_same_bits(whole[index], product(a[index], b[index], SPLIT), f"{(m, n, k)} at {index}")
        # Broadcast along one dimension or all.
        for i in range(len(batch)):
            left, right = a.narrow(i, 0, 1), b.narrow(i, batch[i] - 1, 1)
            for x, y in ((left, b), (a, right)):
                whole = product(x, y, SPLIT)
                x, y = x.expand_as(a), y.expand_as(b)
                for index in itertools.product(*map(range, batch)):
                    assert_same_bits(whole[index], product(x[index], y[index], SPLIT), f"dimension {i}, at {index}")
        last = tuple(size - 1 for size in batch)
        for index in ((0,) * len(batch), last):
            assert_same_bits(product(a, b[index], SPLIT)[last], product(a[last], b[index], SPLIT))
            assert_same_bits(product(a[index], b, SPLIT)[last], product(a[index], b[last], SPLIT))


@pytest.mark.cuda
@every_kernel
def test_what_is_left_in_the_workspace_does_not_matter(kernel, poison):
    """Nor the call before: NaN, another call's halves and flags, and calls one upon another without a wait."""
    m, n, batch, layout = KERNELS[kernel]
    for k in (65, 2049):
        pairs = [operands(kind, m, n, k, batch, layout) for kind in ("normal", "some wide", "positive")]
        expected = []
        for a, b in pairs:
            poison()
            expected.append(product(a, b, SPLIT))
        torch.cuda.synchronize()
        for _ in range(5):
            found = [product(a, b, SPLIT) for a, b in pairs]
        for one, other in zip(found, expected, strict=True):
            assert_same_bits(one, other, f"{kernel}, k {k}")
        # A product of a product, whose operand the launch before has only just written.
        square = operands("uniform", n, n, n)[0] / math.sqrt(n)
        chain = waited = product(*pairs[0], SPLIT)
        for _ in range(4):
            chain = product(chain, square, SPLIT)
        for _ in range(4):
            torch.cuda.synchronize()
            waited = product(waited, square, SPLIT)
        assert_same_bits(chain, waited, f"{kernel}, k {k}, chained")


@pytest.mark.cuda
def test_a_graph_overlaps_as_a_stream_does():
    shapes = ((5, 260, 4100), (100, 128, 2049), (300, 129, 500), (40, 67, 65))
    pairs = [operands("some wide", m, n, k) for m, n, k in shapes]
    graph, results = captured(lambda: [product(a, b, SPLIT) for a, b in pairs for _ in range(2)])
    for seed in range(3):
        for (a, b), (m, n, k) in zip(pairs, shapes, strict=True):
            fresh = operands("some wide", m, n, k, seed=seed)
            a.copy_(fresh[0])
            b.copy_(fresh[1])
        graph.replay()
        for i, replayed in enumerate(results):
            assert_same_bits(replayed, product(*pairs[i // 2], SPLIT), f"replay {seed}, {shapes[i // 2]}")
