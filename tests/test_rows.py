"""softmax, log_softmax, logsumexp, layer_norm, rms_norm and their backwards: bits against the models in row_models.py,
values against torch in float64, special rows as torch's, gradients, and what is refused."""

import functools
import itertools
import math

import numpy as np
import pytest
import row_models
import tables
import torch
import torch.nn.functional as F
from bits import assert_same_bits, same_bits

import torch_reduce
from torch_reduce import _C

ops = torch.ops.treduce
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
every_dtype = tables.every_dtype(DTYPES)
LENGTHS = (1, 2, 3, 4, 31, 64, 65, 128, 130, 256, 512, 777, 1023, 1024, 1025, 4096, 5000)
FORWARD = {
    "softmax": lambda x, w, b, v="auto": torch_reduce.softmax(x, -1, variant=v),
    "log_softmax": lambda x, w, b, v="auto": torch_reduce.log_softmax(x, -1, variant=v),
    "logsumexp": lambda x, w, b, v="auto": torch_reduce.logsumexp(x, -1, variant=v),
    "layer_norm": lambda x, w, b, v="auto": torch_reduce.layer_norm(x, x.shape[-1:], w, b, variant=v),
    "rms_norm": lambda x, w, b, v="auto": torch_reduce.rms_norm(x, x.shape[-1:], w, 1e-5, variant=v),
}
TORCH = {
    "softmax": lambda x, w, b: torch.softmax(x, -1),
    "log_softmax": lambda x, w, b: torch.log_softmax(x, -1),
    "logsumexp": lambda x, w, b: torch.logsumexp(x, -1),
    "layer_norm": lambda x, w, b: F.layer_norm(x, x.shape[-1:], w, b),
    "rms_norm": lambda x, w, b: F.rms_norm(x, x.shape[-1:], w, 1e-5),
}
MODELS = {
    "softmax": lambda x, w, b, order: row_models.softmax(x, order),
    "log_softmax": lambda x, w, b, order: row_models.log_softmax(x, order),
    "logsumexp": lambda x, w, b, order: row_models.logsumexp(x, order),
    "layer_norm": lambda x, w, b, order: row_models.layer_norm(x, w, b, order=order)[0],
    "rms_norm": lambda x, w, b, order: row_models.rms_norm(x, w, order=order)[0],
}
every_op = pytest.mark.parametrize("op", FORWARD)
# A variant of each order.
ORDERS = {"auto": "row_pairwise", "online": "online"}
every_order = pytest.mark.parametrize("variant", ORDERS)


def inputs(rows, n, dtype, scale=3.0):
    x = (torch.randn(rows, n, dtype=torch.float64) * scale).to(dtype)
    w, b = (torch.randn(n, dtype=torch.float64).to(dtype) for _ in "wb")
    return x, w, b


# ---- bits ----


@every_order
@every_op
@every_dtype
def test_bits_of_the_model(op, dtype, variant):
    order = ORDERS[variant]
    for n in LENGTHS if dtype != torch.float64 else LENGTHS[:-3]:
        x, w, b = inputs(3, n, dtype)
        assert_same_bits(FORWARD[op](x, w, b, variant), MODELS[op](x, w, b, order), (op, n))
    if op.endswith("norm"):
        for w_or_none, b_or_none in ((None, None), (w, None), (None, b)):
            if op == "rms_norm" and b_or_none is not None:
                continue
            got = FORWARD[op](x, w_or_none, b_or_none, variant)
            assert_same_bits(got, MODELS[op](x, w_or_none, b_or_none, order), op)


@every_order
@every_dtype
def test_bits_of_the_backwards(dtype, variant):
    order = ORDERS[variant]
    for n in (1, 5, 64, 300, 1024, 1500):
        x, w, _ = inputs(3, n, dtype)
        g = torch.randn(3, n, dtype=torch.float64).to(dtype)
        for name in ("softmax", "log_softmax"):
            y = getattr(ops, name)(x, 1)
            got = getattr(ops, f"{name}_backward")(g, y, 1, variant)
            assert_same_bits(got, getattr(row_models, f"{name}_backward")(g, y, order), (name, n))
        for weight in (w, None):
            _, mean, rstd = ops.layer_norm(x, [n], weight)
            got = ops.layer_norm_backward(g, x, [n], mean, rstd, weight, variant)
            assert_same_bits(got, row_models.layer_norm_backward(g, x, mean, rstd, weight, order), n)
            _, rstd = ops.rms_norm(x, [n], weight)
            got = ops.rms_norm_backward(g, x, [n], rstd, weight, variant)
            assert_same_bits(got, row_models.rms_norm_backward(g, x, rstd, weight, order), n)


@every_dtype
def test_row_values_are_the_models(dtype):
    x, w, b = inputs(5, 700, dtype)
    for variant, order in ORDERS.items():
        _, mean, rstd = ops.layer_norm(x, [700], w, b, 1e-5, variant)
        _, expected_mean, expected_rstd = row_models.layer_norm(x, w, b, order=order)
        assert_same_bits(mean, expected_mean)
        assert_same_bits(rstd, expected_rstd)
        assert_same_bits(ops.rms_norm(x, [700], w, 1e-5, variant)[1], row_models.rms_norm(x, w, order=order)[1])
    mean = ops.layer_norm(x, [700], w, b)[1]
    assert_same_bits(mean, torch_reduce.mean(x, 1, keepdim=True, dtype=mean.dtype))


def test_the_sum_is_treduces():
    x = torch.randn(7, 3000) * 5
    e = ops.elementary(x - x.amax(1, keepdim=True), "exp")
    expected = x.amax(1) + ops.elementary(torch_reduce.sum(e, 1), "log")
    assert_same_bits(torch_reduce.logsumexp(x, 1), expected)


@every_order
@every_op
@every_dtype
def test_a_row_alone_has_the_bits_of_its_batch(op, dtype, variant):
    x, w, b = inputs(37, 1100, dtype)
    whole = FORWARD[op](x, w, b, variant)
    for i in (0, 5, 36):
        assert_same_bits(FORWARD[op](x[i : i + 1], w, b, variant), whole[i : i + 1], (op, i))


@pytest.mark.parametrize("op", ["softmax", "log_softmax", "logsumexp"])
@every_dtype
def test_any_dim_and_any_strides(op, dtype):
    base = torch.randn(4, 33, 5, 6).to(dtype)
    views = {
        "contiguous": base,
        "permuted": base.permute(3, 1, 0, 2),
        "sliced": base[:, 3:30:2, :, 1:],
        "channels_last": base.to(memory_format=torch.channels_last),
        "expanded": base[:, :, :1].expand(4, 33, 5, 6),
        "unaligned": torch.randn(4 * 33 * 30 + 1).to(dtype)[1:].view(4, 33, 5, 6),
    }
    for (name, x), dim in itertools.product(views.items(), range(-4, 4)):
        rows = x.movedim(dim, -1).contiguous()
        expected = getattr(ops, op)(rows.view(-1, rows.shape[-1]), 1)
        expected = expected.view(rows.shape[:-1]) if op == "logsumexp" else expected.view(rows.shape).movedim(-1, dim)
        assert_same_bits(getattr(torch_reduce, op)(x, dim), expected.contiguous(), (name, dim))


def test_logsumexp_along_several_dims():
    x = torch.randn(3, 4, 5, 6)
    for dim in ((1, 2), (0, -1), [2], (), (0, 1, 2, 3)):
        for keepdim in (False, True):
            expected = torch.logsumexp(x.double(), dim if dim else (0, 1, 2, 3), keepdim)
            torch.testing.assert_close(torch_reduce.logsumexp(x, dim, keepdim).double(), expected, rtol=1e-6, atol=1e-6)


def test_the_gradient_of_logsumexp_beside_infinities_is_torchs():
    x = torch.tensor([[1, math.inf, 2], [1, 2, 3], [-math.inf] * 3, [math.nan, 1, 2], [-math.inf, 1, 2]])
    for dim, keepdim in ((1, False), (1, True), (0, False)):
        rows = x.clone().requires_grad_() if dim else x.T.contiguous().requires_grad_()
        found, expected = (
            torch.autograd.grad(f(rows, dim, keepdim).sum(), rows)[0] for f in (torch_reduce.logsumexp, torch.logsumexp)
        )
        torch.testing.assert_close(found, expected, equal_nan=True)
        assert (found == 0).sum() == 3


def test_dims_of_logsumexp_that_are_not_there():
    x = torch.randn(2, 3, 4)
    for wrong in ([-4], [3, 0], (0, -4)):
        with pytest.raises(IndexError, match="Dimension out of range"):
            torch_reduce.logsumexp(x, wrong)
    for twice in ([0, 0], (1, -2)):
        with pytest.raises(RuntimeError, match="appears multiple times in the list of dims"):
            torch_reduce.logsumexp(x, twice)


def test_norms_over_several_dims():
    x, w, b = torch.randn(3, 5, 4, 6), torch.randn(4, 6), torch.randn(4, 6)
    flat = torch_reduce.layer_norm(x.flatten(2), [24], w.flatten(), b.flatten())
    assert_same_bits(torch_reduce.layer_norm(x, [4, 6], w, b).flatten(2), flat)
    assert_same_bits(torch_reduce.layer_norm(x.transpose(0, 1), (4, 6), w, b).transpose(0, 1).flatten(2), flat)


def test_the_number_of_threads_changes_no_bit(one_thread_or_two):
    x = torch.randn(64, 5000)
    one_thread_or_two(1)
    alone = torch_reduce.softmax(x, 1)
    one_thread_or_two(2)
    assert_same_bits(torch_reduce.softmax(x, 1), alone)


# ---- values ----

# Units in the last place of an output near 1, in the accumulator's precision, over what sums and functions lose.
ROUNDINGS = 40


def bound(op, exact, x, w, b):
    """From float64 results: the roundings of the formula in the accumulator, and the last one."""
    unit = 2.0**-53 if x.dtype == torch.float64 else 2.0**-24
    if op.endswith("norm"):
        scale = 8 * (w.double().abs() + b.double().abs() + 1) * (1 + exact.abs())
    else:
        scale = exact.abs() + (0 if op == "softmax" else x.double().abs().amax())
    # A difference x - max of magnitude d makes a relative error of d units in its exponential.
    spread = 1 + (x.double().amax() - x.double().amin()) if op == "softmax" else 1
    return ROUNDINGS * unit * scale * spread + torch.finfo(x.dtype).eps / 2 * exact.abs() + torch.finfo(x.dtype).tiny


@every_order
@every_op
@every_dtype
def test_values(op, dtype, variant):
    for n, scale in itertools.product((1, 3, 100, 1024, 5000), (0.01, 3.0, 30.0)):
        x, w, b = inputs(4, n, dtype, scale)
        if op == "layer_norm" and n == 1:
            continue
        exact = TORCH[op](x.double(), w.double(), b.double())
        error = (FORWARD[op](x, w, b, variant).double() - exact).abs()
        assert (error <= bound(op, exact, x, w, b)).all(), (n, scale, error.max())


@every_order
@pytest.mark.parametrize("op", ["softmax", "log_softmax", "logsumexp"])
@every_dtype
def test_special_rows_are_as_torchs(op, dtype, variant):
    inf, nan = math.inf, math.nan
    most = torch.finfo(dtype).max
    rows = torch.tensor(
        [
            [0, 1, 2, 3],
            [-inf, -inf, -inf, -inf],
            [-inf, 0, -inf, 1],
            [inf, 0, 1, 2],
            [inf, -inf, 0, inf],
            [nan, 0, 1, 2],
            [most, -most, 0, most],
            [-most, -most, -most, -inf],
            [88, -88, 104, -104],
        ],
        dtype=torch.float64,
    ).to(dtype)
    got, expected = FORWARD[op](rows, None, None, variant), TORCH[op](rows, None, None)
    assert torch.equal(got.isnan(), expected.isnan()), (got, expected)
    torch.testing.assert_close(got, expected, equal_nan=True)


def test_masked_rows():
    scores = torch.randn(2, 3, 50, 50)
    mask = torch.ones(50, 50).triu(1).bool()
    masked = scores.masked_fill(mask, -math.inf)
    got = torch_reduce.softmax(masked, -1)
    assert (got[..., mask] == 0).all()
    # What is masked adds nothing: a row has the bits of its part alone, as long as the tree is the same.
    assert_same_bits(got[0, 0, 9, :10], torch_reduce.softmax(scores[0, 0, 9, :10], -1))


def test_dtype_converts_first():
    x = torch.randn(5, 100).half()
    for name in ("softmax", "log_softmax"):
        got = getattr(torch_reduce, name)(x, 1, dtype=torch.float32)
        assert got.dtype == torch.float32
        assert_same_bits(got, getattr(torch_reduce, name)(x.float(), 1))


def test_eps_of_rms_norm_is_torchs():
    for dtype in DTYPES:
        x = torch.full((2, 64), 1e-5).to(dtype)
        torch.testing.assert_close(torch_reduce.rms_norm(x, [64]), F.rms_norm(x, [64]))


def test_empty_and_scalar():
    assert torch_reduce.softmax(torch.empty(0, 5), 1).shape == (0, 5)
    assert torch_reduce.softmax(torch.empty(5, 0), 1).shape == (5, 0)
    assert torch_reduce.logsumexp(torch.empty(3, 0), 1).tolist() == [-math.inf] * 3
    assert torch_reduce.softmax(torch.tensor(4.0), 0).item() == 1
    assert torch_reduce.logsumexp(torch.tensor(4.0), 0).item() == 4
    assert torch_reduce.layer_norm(torch.empty(0, 5), [5]).shape == (0, 5)


# ---- gradients ----


def grads(op, x, w, b, upstream):
    leaves = [t.detach().clone().requires_grad_() for t in (x, w, b)]
    (op(*leaves) * upstream).sum().backward()
    return [leaf.grad for leaf in leaves]


@every_op
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_gradients_are_as_torchs(op, dtype):
    x, w, b = inputs(6, 70, dtype, 1.0)
    upstream = torch.randn(6, *(() if op == "logsumexp" else (70,)), dtype=torch.float64).to(dtype)
    got = grads(FORWARD[op], x, w, b, upstream)
    expected = grads(TORCH[op], x.double(), w.double(), b.double(), upstream.double())
    tolerance = {torch.float32: 2e-5, torch.float64: 1e-12, torch.bfloat16: 0.06}[dtype]
    for mine, exact in zip(got, expected, strict=True):
        assert (mine is None) == (exact is None)
        if mine is not None:
            assert mine.dtype == dtype
            torch.testing.assert_close(mine.double(), exact, rtol=tolerance, atol=tolerance)


@every_op
def test_gradcheck(op):
    x, w, b = inputs(3, 7, torch.float64, 1.0)
    leaves = [t.clone().requires_grad_() for t in (x, w, b)]
    assert torch.autograd.gradcheck(FORWARD[op], leaves)
    assert torch.autograd.gradgradcheck(FORWARD[op], leaves)


@pytest.mark.parametrize("op", ["softmax", "log_softmax", "logsumexp"])
def test_gradcheck_of_a_middle_dim_and_of_scalars(op):
    function = getattr(torch_reduce, op)
    x = torch.randn(2, 4, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda t: function(t, 1), x)
    assert torch.autograd.gradgradcheck(lambda t: function(t, -2), x)
    scalar = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda t: function(t, 0), scalar)


def test_gradients_of_weights_are_our_sums():
    x, w, b = inputs(50, 40, torch.float32)
    upstream = torch.randn(50, 40)
    _, of_weight, of_bias = grads(FORWARD["layer_norm"], x, w, b, upstream)
    assert_same_bits(of_bias, torch_reduce.sum(upstream, 0))
    _, mean, rstd = ops.layer_norm(x, [40], w, b)
    assert_same_bits(of_weight, torch_reduce.sum(upstream * ((x - mean) * rstd), 0))


@every_op
def test_gradients_of_a_row_are_those_of_its_batch(op):
    x, w, b = inputs(9, 1300, torch.bfloat16)
    upstream = torch.randn(9, *(() if op == "logsumexp" else (1300,))).bfloat16()
    whole = grads(FORWARD[op], x, w, b, upstream)[0]
    assert_same_bits(grads(FORWARD[op], x[4:5], w, b, upstream[4:5])[0], whole[4:5])


# ---- cross_entropy ----


def cross_entropy_cases():
    g = torch.Generator().manual_seed(0)
    x = torch.randn(20, 11, generator=g)
    target = torch.randint(11, (20,), generator=g)
    target[3] = target[7] = -100
    weight = torch.rand(11, generator=g) + 0.5
    yield "plain", (x, target.clamp(min=0)), {}
    yield "ignored", (x, target), {}
    yield "weights", (x, target, weight), {}
    yield "smoothed", (x, target), {"label_smoothing": 0.1}
    yield "smoothed weights", (x, target, weight), {"label_smoothing": 0.3}
    yield "another ignored", (x, target.clamp(min=0)), {"ignore_index": 2}
    yield "probabilities", (x, torch.softmax(x * 2, 1)), {"label_smoothing": 0.2}
    yield "weighted probabilities", (x, torch.softmax(x * 2, 1), weight), {}
    yield "one row", (x[0], target[0]), {}
    yield "images", (x.view(5, 4, 11).permute(0, 2, 1), target.view(5, 4)), {}


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize(
    ("args", "kwargs"), [c[1:] for c in cross_entropy_cases()], ids=[c[0] for c in cross_entropy_cases()]
)
def test_cross_entropy_is_as_torchs(args, kwargs, reduction):
    x = args[0].double().requires_grad_()
    rest = [t.double() if t.is_floating_point() else t for t in args[1:]]
    got = torch_reduce.cross_entropy(x, *rest, reduction=reduction, **kwargs)
    expected = F.cross_entropy(x, *rest, reduction=reduction, **kwargs)
    torch.testing.assert_close(got, expected)
    (mine,) = torch.autograd.grad(got.sum(), x)
    (torchs,) = torch.autograd.grad(expected.sum(), x)
    torch.testing.assert_close(mine, torchs)


@pytest.mark.parametrize(
    ("args", "kwargs"), [c[1:] for c in cross_entropy_cases()], ids=[c[0] for c in cross_entropy_cases()]
)
def test_gradcheck_of_cross_entropy(args, kwargs):
    x, *rest = (t.double() if t.is_floating_point() else t for t in args)
    x.requires_grad_()

    def loss(x):
        return torch_reduce.cross_entropy(x, *rest, **kwargs)

    assert torch.autograd.gradcheck(loss, x)
    assert torch.autograd.gradgradcheck(loss, x)


def test_the_loss_of_a_row_is_its_own():
    x, target = torch.randn(40, 1000).bfloat16(), torch.randint(1000, (40,))
    losses = torch_reduce.cross_entropy(x, target, reduction="none")
    assert_same_bits(torch_reduce.cross_entropy(x[7:9], target[7:9], reduction="none"), losses[7:9])
    assert_same_bits(torch_reduce.cross_entropy(x, target, reduction="sum"), torch_reduce.sum(losses))


# ---- var, std, norm ----

POWERS = (3, 1.5, 0.5, -2)  # by torch's pow, whose bits are its own
SPREADS = {
    "var": (torch_reduce.var, torch.var),
    "std": (torch_reduce.std, torch.std),
    **{
        f"norm {order}": (
            lambda x, dim, keepdim=False, order=order: torch_reduce.norm(x, order, dim, keepdim),
            lambda x, dim, keepdim=False, order=order: torch.linalg.vector_norm(x, order, dim, keepdim),
        )
        for order in (2, 1, 0, math.inf, -math.inf, *POWERS)
    },
}


BY_POW = [f"norm {order}" for order in POWERS]


@pytest.mark.parametrize("name", SPREADS)
def test_spreads_are_as_torchs(name):
    ours, torchs = SPREADS[name]
    x = torch.randn(6, 5, 70, dtype=torch.float64)
    for dim in (None, 0, -1, (0, 2)):
        for keepdim in (False, True):
            torch.testing.assert_close(ours(x, dim, keepdim=keepdim), torchs(x, dim, keepdim=keepdim))
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        got = ours(x.to(dtype), -1)
        assert got.dtype == dtype
        tolerance = 4 * torch.finfo(dtype).eps
        torch.testing.assert_close(got.double(), torchs(x.to(dtype).double(), -1), rtol=tolerance, atol=tolerance)
    if name not in BY_POW:
        assert_same_bits(ours(x[2:3], -1), ours(x, -1)[2:3])
    y = x[:2, :2, :5].clone().requires_grad_()
    if name != "norm 0":
        assert torch.autograd.gradcheck(lambda t: ours(t, -1), y)
        assert torch.autograd.gradgradcheck(lambda t: ours(t, -1), y)
    with pytest.raises(TypeError, match="int64"):
        ours(x.long(), -1)


def test_corrections_and_few_elements():
    x = torch.randn(4, 7)
    for correction in (0, 1, 2.5):
        torch.testing.assert_close(
            torch_reduce.var(x, 1, correction=correction), torch.var(x, 1, correction=correction)
        )
    one = torch.randn(3, 1)
    assert torch_reduce.var(one, 1).isnan().all() and (torch_reduce.var(one, 1, correction=0) == 0).all()
    for root in (torch_reduce.norm, torch_reduce.std, lambda x: torch_reduce.norm(x, 0)):
        zeros = torch.zeros(3, requires_grad=True)
        root(zeros).backward()
        assert zeros.grad.tolist() == [0, 0, 0]


@pytest.mark.parametrize("order", [2, 1, 0, math.inf, 3, 0.5, -1.5])
def test_norms_in_another_dtype_and_of_zeros_are_torchs(order):
    vector_norm = torch.linalg.vector_norm
    x = torch.randn(5, 40).half()
    for dtype in (torch.float32, torch.float64):
        found = torch_reduce.norm(x, order, 1, dtype=dtype)
        assert found.dtype == dtype
        torch.testing.assert_close(found, vector_norm(x, order, 1, dtype=dtype))
    with pytest.raises(TypeError, match="at least as wide"):
        torch_reduce.norm(x, order, dtype=torch.bfloat16)
    y = torch.tensor([[0.0, 0, 0], [0, 1, -2], [math.inf, 1, 0], [math.nan, 0, 1]], dtype=torch.float64)
    for rows in (y, y[:, :0]) if order >= 0 and order != math.inf else (y,):
        torch.testing.assert_close(torch_reduce.norm(rows, order, 1), vector_norm(rows, order, 1), equal_nan=True)
    if order != 0:
        z = y[:2].clone().requires_grad_()
        found, expected = (torch.autograd.grad(f(z, order, 1).sum(), z)[0] for f in (torch_reduce.norm, vector_norm))
        torch.testing.assert_close(found, expected)
    if order < 0:
        for dim in (None, 1, (0, 1)):
            with pytest.raises(ValueError, match="no elements have no norm"):
                torch_reduce.norm(y[:, :0], order, dim)
        assert torch_reduce.norm(y[:, :0], order, 0).shape == (0,)


def test_roots_are_correctly_rounded():
    for dtype in (torch.float32, torch.float64):
        x = torch.cat([torch.rand(100_003, dtype=dtype) * 1e3, torch.tensor([0.0, 1e-40, math.inf], dtype=dtype)])
        assert_same_bits(ops.sqrt(x), torch.from_numpy(np.sqrt(x.numpy())))
        assert_same_bits(ops.sqrt(x[::3]), ops.sqrt(x)[::3])
    y = torch.rand(5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(ops.sqrt, y, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(ops.sqrt, y)
    with pytest.raises(TypeError, match="float32 and float64"):
        ops.sqrt(x.half())


def loss_of(x, probabilities, weight, *, kind, **options):
    target = probabilities if kind == "probabilities" else probabilities.argmax(1)
    return torch_reduce.cross_entropy(x, target, weight if kind == "weights" else None, **options)


# What is composed of torch's elementwise ops, whose last bits may differ between devices.
COMPOSED = {
    **{name: lambda x, t, w, ours=ours: ours(x, -1) for name, (ours, _) in SPREADS.items() if name not in BY_POW},
    "var with a correction": lambda x, t, w: torch_reduce.var(x, -1, correction=2.5),
    "std along all": lambda x, t, w: torch_reduce.std(x),
    **{
        f"cross_entropy {reduction} {smoothing} {kind}": functools.partial(
            loss_of, kind=kind, reduction=reduction, label_smoothing=smoothing
        )
        for reduction in ("none", "mean")
        for smoothing in (0.0, 0.1)
        for kind in ("classes", "weights", "probabilities")
    },
}


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", COMPOSED)
def test_what_is_composed_has_one_result_on_both_devices(name, dtype):
    for rows, classes in ((257, 300), (33, 1025), (5, 3)):
        inputs = torch.randn(rows, classes) * 3, torch.randn(rows, classes).softmax(1), torch.rand(classes)
        found = []
        for device in ("cpu", "cuda"):
            x, t, w = (y.to(device, dtype) for y in inputs)
            x.requires_grad_()
            result = COMPOSED[name](x, t, w)
            found.append((result, *torch.autograd.grad((result * result).sum(), x)))
        for on_cpu, on_cuda in zip(*found, strict=True):
            assert_same_bits(on_cuda.detach().cpu(), on_cpu.detach())


def test_the_mean_of_many_rows_in_16_bits():
    # 257 is no bfloat16.
    x, target = torch.randn(257, 50).bfloat16(), torch.randint(50, (257,))
    losses = torch_reduce.cross_entropy(x, target, reduction="none")
    expected = (losses.double().sum() / 257).bfloat16()
    assert_same_bits(torch_reduce.cross_entropy(x, target), expected)


def test_the_variance_is_layer_norms():
    x = torch.randn(9, 3000)
    _, _, rstd = ops.layer_norm(x, [3000], eps=0.0)
    assert_same_bits(rstd, ops.elementary(torch_reduce.var(x, 1, correction=0, keepdim=True), "rsqrt"))


# ---- sums in one read ----

ONE_READ = {
    "norm": lambda x, dim=None, keepdim=False: torch_reduce.norm(x, 2, dim, keepdim),
    "var": lambda x, dim=None, keepdim=False: torch_reduce.var(x, dim, keepdim=keepdim),
    "std": lambda x, dim=None, keepdim=False: torch_reduce.std(x, dim, correction=0, keepdim=keepdim),
    "var 2.5": lambda x, dim=None, keepdim=False: torch_reduce.var(x, dim, correction=2.5, keepdim=keepdim),
}
every_sum = pytest.mark.parametrize("name", ONE_READ)
# Elements of whole tensors: one row, one node, several, more than are folded at once.
WHOLE = (1, 1000, 2**15, 2**15 + 1, 40 * 2**15 + 1025, 200 * 2**15 + 77)


def is_one_read(x, dim=None, centred=False):
    return _C.row_squares(x, dim, False, centred) is not NotImplemented


def by_ops(name, x, *args):
    """What a call gives that wants a gradient, and so computes the steps one after another."""
    leaf = x.detach().requires_grad_()
    assert not is_one_read(leaf)
    return ONE_READ[name](leaf, *args).detach()


def rows_in_places(dtype):
    """Views, dims of rows in them, and whether they are read once."""
    x = (torch.randn(6, 5, 4, 130, dtype=torch.float64) * 3 + 1).to(dtype)
    unaligned = (torch.randn(6 * 5 * 131 + 1, dtype=torch.float64) + 1).to(dtype)[1:].view(6, 5, 131)
    yield x, -1, True
    yield x, (-2, -1), True
    yield x, (3, 1, 2), True
    yield x, None, True
    yield x, (), True
    yield x, (0, 1, 2, 3), True
    yield x, 0, False
    yield x, (0, 3), False
    yield x.transpose(0, 1), -1, True
    yield x.permute(3, 0, 1, 2), 0, True
    yield x.permute(2, 3, 0, 1), (0, 1), True
    yield x.permute(3, 2, 0, 1), (0, 1), False  # the order of elements is that of the dims of the view
    yield x[:, :, 1:3, 7:], 3, True
    yield x[..., ::2], -1, False
    yield x[:, :, :, :1], -1, True
    yield x[:1], 0, True
    yield x[:, :1].expand(6, 5, 4, 130), 1, False
    yield x[:, :1].expand(6, 5, 4, 130), 3, True
    yield x.to(memory_format=torch.channels_last), (2, 3), False
    yield unaligned, -1, True
    yield unaligned, (1, 2), True
    yield x[0, 0, 0, 0], None, True
    yield x[0, 0, 0, 0], 0, True


@every_sum
@every_dtype
def test_one_read_has_the_bits_of_the_steps(name, dtype):
    centred = name != "norm"
    for n in LENGTHS:
        x, _, _ = inputs(5, n, dtype)
        assert is_one_read(x, 1, centred)
        assert_same_bits(ONE_READ[name](x, 1), by_ops(name, x, 1), n)
    for x, dim, once in rows_in_places(dtype):
        assert is_one_read(x, dim, centred) == once, (x.shape, x.stride(), dim)
        for keepdim in (False, True):
            got = ONE_READ[name](x, dim, keepdim)
            assert_same_bits(got, by_ops(name, x, dim, keepdim), (x.shape, x.stride(), dim))


@every_dtype
def test_one_read_of_whole_tensors(dtype):
    for n in WHOLE:
        x = (torch.randn(n) * 3 + 1).to(dtype)
        assert is_one_read(x)
        assert_same_bits(ONE_READ["norm"](x), by_ops("norm", x), n)
        for name in ("var", "std"):
            assert_same_bits(ONE_READ[name](x), by_ops(name, x), (name, n))
        if n > 2:
            assert_same_bits(ONE_READ["norm"](x[1:-1]), by_ops("norm", x[1:-1]), n)
    x = torch.randn(5, 1000, 1000).to(dtype)
    for keepdim in (False, True):
        assert_same_bits(ONE_READ["norm"](x, (0, 1, 2), keepdim), by_ops("norm", x, (0, 1, 2), keepdim))


@every_sum
@every_dtype
def test_one_read_of_special_rows(name, dtype):
    inf, nan, most = math.inf, math.nan, torch.finfo(dtype).max
    least = torch.finfo(dtype).tiny
    for n in (7, 1500):
        x = torch.randn(9, n, dtype=torch.float64).to(dtype)
        for row, value in enumerate((inf, -inf, nan, -nan, most, least)):
            x[row, n // 2] = value
        x[6] = 0
        x[7] = -0.0
        x[8, :2] = torch.tensor([inf, -inf])
        assert_same_bits(ONE_READ[name](x, 1), by_ops(name, x, 1), n)
        assert_same_bits(ONE_READ[name](x), by_ops(name, x), n)
    for shape, dim in (((0, 5), 1), ((5, 0), 1), ((0,), None), ((5, 0), 0)):
        x = torch.empty(shape, dtype=dtype)
        assert not is_one_read(x, dim)
        assert_same_bits(ONE_READ[name](x, dim), by_ops(name, x, dim), shape)


@every_dtype
def test_one_read_in_the_batch_invariant_mode(dtype):
    x = (torch.randn(7, 5, 1100, dtype=torch.float64) + 1).to(dtype)
    strided = x.transpose(1, 2)
    with torch_reduce.batch_invariant():
        for dim in (-1, (1, 2), (0, 1, 2)):
            assert_same_bits(torch.linalg.vector_norm(x, 2, dim), torch_reduce.norm(x, 2, dim))
            variance, center = torch.var_mean(x, dim)
            assert_same_bits(variance, torch_reduce.var(x, dim))
            assert_same_bits(center, torch_reduce.mean(x, dim))
            assert_same_bits(torch.std(x, dim), torch_reduce.std(x, dim))
        assert_same_bits(torch.linalg.vector_norm(x, 2, -1), torch.linalg.vector_norm(strided, 2, 1))
        assert_same_bits(torch.var(x, -1), torch.var(strided, 1))
        x[0, 0, 0], x[0, 1, 0] = math.inf, math.nan  # torch's conversion of a NaN gives several bits
        torch.testing.assert_close(torch.var_mean(x, -1)[1], torch_reduce.mean(x, -1), rtol=0, atol=0, equal_nan=True)


def test_who_has_to_see_the_steps():
    x = torch.randn(4, 70)
    leaf = x.clone().requires_grad_()
    assert not is_one_read(leaf) and leaf.grad is None
    with torch.no_grad():
        assert is_one_read(leaf) and not torch_reduce.norm(leaf).requires_grad
    with torch.inference_mode():
        assert is_one_read(leaf)
    primal, tangent = torch.func.jvp(lambda t: torch_reduce.norm(t, 2, 1), (x,), (torch.ones_like(x),))
    torch.testing.assert_close(tangent, x.sum(1) / primal)
    found = torch.func.vmap(torch_reduce.var)(x)
    assert_same_bits(found, torch_reduce.var(x, 1))
    assert torch.func.grad(torch_reduce.norm)(x).shape == x.shape
    compiled = torch.compile(lambda t: torch_reduce.norm(t, 2, 1) + torch_reduce.std(t, 1), backend="aot_eager")
    assert_same_bits(compiled(x), torch_reduce.norm(x, 2, 1) + torch_reduce.std(x, 1))
    assert not is_one_read(torch._neg_view(x)) and not is_one_read(x.to("meta"))
    assert_same_bits(torch_reduce.norm(torch._neg_view(x), 2, 1), torch_reduce.norm(x, 2, 1))
    for wrong in (2, (0, -3)):
        with pytest.raises(IndexError):
            torch_reduce.norm(x, 2, wrong)
        with pytest.raises(IndexError):
            torch_reduce.var(x, wrong)


def test_opcheck_of_row_sums():
    x, squares, mean = torch.randn(4, 70).half(), torch.zeros(4), torch.zeros(4, 1)
    torch.library.opcheck(ops.row_sums_.default, (squares, mean, x))
    torch.library.opcheck(ops.row_sums_.default, (squares, None, x))
    for wrong, kind in ((squares.double(), TypeError), (squares[:3], ValueError)):
        with pytest.raises(kind, match="row_sums_ writes"):
            ops.row_sums_(wrong, None, x)


def with_one_nan(x):
    """A NaN that torch's division makes, of one element, has other bits on a GPU."""
    return x.cpu().masked_fill(x.cpu().isnan(), math.nan)


@pytest.mark.cuda
@every_sum
@every_dtype
def test_cuda_one_read_is_the_cpus(name, dtype):
    def check(on_cuda, on_cpu, what):
        assert_same_bits(with_one_nan(on_cuda), with_one_nan(on_cpu), what)

    for n in (*LENGTHS, 20_000, 2**15, 70_001):
        x, _, _ = inputs(5, n, dtype)
        check(ONE_READ[name](x.cuda(), 1), ONE_READ[name](x, 1), n)
        check(by_ops(name, x.cuda(), 1), ONE_READ[name](x, 1), n)
    for x, dim, _ in rows_in_places(dtype):
        base = x._base if x._base is not None else x
        on_cuda = base.cuda().as_strided(x.shape, x.stride(), x.storage_offset())
        check(ONE_READ[name](on_cuda, dim), ONE_READ[name](x, dim), (x.shape, x.stride(), dim))
    for n in WHOLE:
        x = (torch.randn(n) * 3 + 1).to(dtype)
        check(ONE_READ[name](x.cuda()), ONE_READ[name](x), n)
        check(by_ops(name, x.cuda()), ONE_READ[name](x), n)


@pytest.mark.cuda
def test_cuda_one_read_is_one_launch():
    x = torch.randn(64, 4096, device="cuda")
    kernels = [launch["kernel"] for launch in _C.record_launches(lambda: torch_reduce.norm(x, 2, 1))]
    assert kernels == ["rms_norm"]
    kernels = [launch["kernel"] for launch in _C.record_launches(lambda: torch_reduce.var(x, 1))]
    assert kernels == ["layer_norm"]


# ---- torch ----


def samples():
    x = torch.randn(4, 6, 10)
    g, w = torch.randn(4, 6, 10), torch.randn(10)
    y = ops.softmax(x, -1)
    _, mean, rstd = ops.layer_norm(x, [10])
    yield ops.softmax, (x, 1), {}
    yield ops.log_softmax, (x.bfloat16(), -1, "three_pass"), {}
    yield ops.logsumexp, (x, 1, True, "online"), {}
    yield ops.layer_norm, (x, [10], w, w, 1e-3), {}
    yield ops.layer_norm, (x, [6, 10]), {}
    yield ops.rms_norm, (x, [10], w), {}
    yield ops.softmax_backward, (g, y, -1), {}
    yield ops.log_softmax_backward, (g, y, -1), {}
    yield ops.layer_norm_backward, (g, x, [10], mean, rstd, w), {}
    yield ops.rms_norm_backward, (g, x, [10], rstd), {}


@pytest.mark.parametrize(("op", "args", "kwargs"), list(samples()), ids=lambda v: getattr(v, "__name__", None))
def test_opcheck(op, args, kwargs):
    if not op.__name__.endswith("backward"):
        args = tuple(a.clone().requires_grad_() if isinstance(a, torch.Tensor) else a for a in args)
    torch.library.opcheck(op.default, args, kwargs)


def test_compile_gives_the_bits_of_eager():
    def step(x, w):
        return torch_reduce.softmax(torch_reduce.rms_norm(x, [64], w), -1)

    x, w = torch.randn(8, 64), torch.randn(64)
    assert_same_bits(torch.compile(step, fullgraph=True, backend="aot_eager")(x, w), step(x, w))


# ---- what is refused ----


def test_what_is_refused():
    x = torch.randn(3, 4)
    for wrong in (x.long(), x.cfloat(), x.bool()):
        with pytest.raises(TypeError, match="takes float32, float64, float16 and bfloat16"):
            torch_reduce.softmax(wrong, 1)
    with pytest.raises(IndexError):
        torch_reduce.softmax(x, 2)
    with pytest.raises(ValueError, match=r"'row_register' of softmax; .*'row_registers'"):
        torch_reduce.softmax(x, 1, variant="row_register")
    with pytest.raises(ValueError, match="normalized_shape"):
        torch_reduce.layer_norm(x, [3])
    with pytest.raises(ValueError, match="normalized_shape"):
        torch_reduce.rms_norm(x, [])
    with pytest.raises(ValueError, match="weight"):
        torch_reduce.layer_norm(x, [4], torch.ones(3))
    with pytest.raises(TypeError, match="weight"):
        torch_reduce.rms_norm(x, [4], torch.ones(4).half())
    with pytest.raises(ValueError, match="got a number"):
        torch_reduce.cross_entropy(x[0, 0], torch.tensor(0))
    with pytest.raises(NotImplementedError, match="dense"):
        torch_reduce.softmax(x.to_sparse(), 1)
    with pytest.raises(ValueError, match="one shape"):
        ops.softmax_backward(x, x[:2], 1)


# ---- what is launched, for any chip ----


ROW_OPS = (*FORWARD, *(op + "_backward" for op in FORWARD if op != "logsumexp"))


def planned(op, dtype, n, **named):
    return _C.row_plan(op, str(dtype).removeprefix("torch."), 5, n, **named)


@pytest.mark.parametrize("op", ROW_OPS)
@every_dtype
def test_auto_picks_what_runs(op, dtype):
    """Lengths on both sides of every power of two: there the warps of a row change."""
    for exponent in range(19):
        for n in (2**exponent - 1, 2**exponent, 2**exponent + 1, 3 * 2**exponent // 2):
            for capability, shift in itertools.product((75, 80, 89, 90, 100), (0, 1)) if n else ():
                auto = planned(op, dtype, n, capability=capability, shift=shift)
                assert auto == planned(op, dtype, n, variant=auto["rung"], capability=capability, shift=shift)
                assert capability >= 90 or auto["rung"] not in ("row_cluster", "row_shared")


def test_a_cluster_has_as_many_blocks_as_the_row_needs():
    """Warps of float64 hold a chunk of 1024 elements of each input: with two, four make a block, else eight."""

    def shape(op, dtype, n):
        (launch,) = planned(op, dtype, n, variant="row_cluster")["launches"]
        return launch["cluster"], launch["block"][0]

    assert [shape("softmax", torch.float64, n) for n in (12_289, 20_000, 65_536)] == [(2, 256), (4, 256), (8, 256)]
    assert [shape("softmax_backward", torch.float64, n) for n in (8192, 12_289, 32_768)] == [
        (2, 128),
        (4, 128),
        (8, 128),
    ]
    with pytest.raises(ValueError, match="holds rows of up to 32768 elements, got 32769"):
        planned("softmax_backward", torch.float64, 32_769, variant="row_cluster")


@pytest.mark.parametrize(
    ("n", "shift", "reads"),
    [
        *((64, 0, "wide"), (64, 4, "vectors"), (64, 1, "adjacent"), (68, 0, "vectors"), (77, 0, "adjacent")),
        *(
            (512, 0, "wide"),
            (1024, 0, "vectors"),
            (50_304, 0, "vectors"),
            (1025, 0, "adjacent"),
            (50_257, 0, "shifted"),
        ),
    ],
)
def test_rows_are_read_in_vectors(n, shift, reads):
    """The widest that addresses and lengths allow, though the stride of a dim that is not there is 1."""
    assert planned("log_softmax", torch.bfloat16, n, shift=shift)["reads"] == reads


def test_weights_begin_where_vectors_do():
    assert planned("rms_norm", torch.bfloat16, 1025)["reads"] == "adjacent"


def test_long_rows_in_shared_memory():
    def shape(op, dtype, n):
        (launch,) = planned(op, dtype, n, variant="row_shared")["launches"]
        return launch["cluster"], launch["block"][0]

    assert shape("log_softmax", torch.bfloat16, 50_257) == (1, 320)
    assert shape("softmax", torch.bfloat16, 65_536) == (2, 256)
    assert shape("softmax_backward", torch.bfloat16, 50_257) == (4, 256)
    with pytest.raises(ValueError, match="holds rows of up to 524288 elements, got 600001"):
        planned("softmax", torch.bfloat16, 600_001, variant="row_shared")


# ---- on a GPU ----

ROW_SHAPES = (
    (7, 1),
    (1000, 3),
    (513, 64),
    (100, 65),
    (300, 128),
    (65, 256),
    (33, 300),
    (64, 512),
    (30, 1000),
    (31, 1024),
)
ROW_SHAPES += (
    (9, 1025),
    (17, 4096),
    (5, 8192),
    (6, 12_289),
    (3, 32_768),
    (3, 50_257),
    (2, 65_536),
    (2, 262_144),
    (1, 300_001),
)


@pytest.mark.cuda
@pytest.mark.parametrize("variant", tables.ROW_VARIANTS, ids=tables.names(tables.ROW_VARIANTS))
@every_dtype
def test_cuda_gives_the_cpus_bits(variant, dtype):
    tables.needs_chip(variant)
    ran = 0
    for rows, n in ROW_SHAPES:
        x, w, b = inputs(rows, n, dtype)
        g = torch.randn(rows, n, dtype=torch.float64).to(dtype)
        _, mean, rstd = ops.layer_norm(x, [n], w, b)
        y = ops.softmax(x, 1)
        calls = {
            "softmax": (x, 1),
            "log_softmax": (x, 1),
            "logsumexp": (x, 1, False),
            "layer_norm": (x, [n], w, b, 1e-5),
            "rms_norm": (x, [n], w, 1e-5),
            "softmax_backward": (g, y, 1),
            "log_softmax_backward": (g, y, 1),
            "layer_norm_backward": (g, x, [n], mean, rstd, w),
            "rms_norm_backward": (g, x, [n], rstd, w),
        }
        for name, args in calls.items():
            expected = getattr(ops, name)(*args, variant.name)
            on_gpu = [a.cuda() if isinstance(a, torch.Tensor) else a for a in args]
            try:
                got = getattr(ops, name)(*on_gpu, variant.name)
            except ValueError as refusal:
                assert f"'{variant.name}'" in str(refusal)
                continue
            ran += 1
            pair = [(got, expected)] if isinstance(got, torch.Tensor) else list(zip(got, expected, strict=True))
            for mine, cpus in pair:
                assert_same_bits(mine, cpus, (name, rows, n))
    assert ran > 90


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_cuda_many_long_rows(dtype):
    """More rows than blocks fit a chip at once, in vectors and beginning anywhere."""
    tables.needs_chip(next(row for row in tables.ROW_VARIANTS if row.name == "row_shared"))
    for n in (19_457, 20_480):
        x = torch.randn(500, n, dtype=torch.float64).to(dtype)
        for op in ("softmax", "log_softmax", "logsumexp"):
            got = getattr(torch_reduce, op)(x.cuda(), 1, variant="row_shared")
            assert_same_bits(got, getattr(torch_reduce, op)(x, 1), (op, n))


@pytest.mark.cuda
@pytest.mark.parametrize("variant", tables.ROW_VARIANTS, ids=tables.names(tables.ROW_VARIANTS))
def test_cuda_reads_any_strides(variant):
    tables.needs_chip(variant)
    base = torch.randn(40, 70, 30)
    for view, dim in (
        (lambda t: t, 1),
        (lambda t: t, 0),
        (lambda t: t.permute(2, 0, 1), -1),
        (lambda t: t[:, 1:, 1:], 2),
        (lambda t: t[:, ::2], 1),
        (lambda t: t[:, :, :1].expand(40, 70, 30), 2),
        (lambda t: t.bfloat16()[:, :, 1:], 2),
    ):
        expected = torch_reduce.softmax(view(base), dim, variant=variant.name)
        try:
            got = torch_reduce.softmax(view(base.cuda()), dim, variant=variant.name)
        except ValueError as refusal:
            assert "side by side" in str(refusal) and variant.name == "row_shared"
            continue
        assert_same_bits(got, expected, dim)


@pytest.mark.cuda
def test_cuda_functions_are_the_cpus():
    """exp, log and rsqrt through ops that use nothing else: over many exponents."""
    x = torch.randn(200, 1000, dtype=torch.float64).mul(40)
    for dtype in (torch.float32, torch.float64):
        y = x.to(dtype)
        assert_same_bits(torch_reduce.logsumexp(y.cuda(), 1), torch_reduce.logsumexp(y, 1))
        scaled = torch.ldexp(y, torch.arange(200)[:, None] - 100)
        for a in (y, scaled):
            assert_same_bits(
                torch_reduce.rms_norm(a.cuda(), [1000], eps=0.0), torch_reduce.rms_norm(a, [1000], eps=0.0)
            )
            g = torch.ones_like(a)
            assert_same_bits(ops.log_softmax_backward(g.cuda(), a.cuda(), 1), ops.log_softmax_backward(g, a, 1))


@pytest.mark.cuda
def test_cuda_launches_what_is_prepared_and_replays():
    x = torch.randn(512, 4096, device="cuda", dtype=torch.bfloat16)
    expected = torch_reduce.softmax(x, 1)
    assert [launch["kernel"] for launch in _C.record_launches(lambda: torch_reduce.softmax(x, 1))] == ["softmax"]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = torch_reduce.softmax(x, 1)
    for _ in range(2):
        y.zero_()
        graph.replay()
        assert same_bits(y, expected)
