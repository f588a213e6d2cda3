"""batch_invariant: what torch reduces is ours inside it, has torch's values, and does not see the batch."""

import copy
import importlib
import re
import subprocess
import sys
import threading
import warnings

import pytest
import torch
from aten_calls import BATCH, ELEMENTWISE, ROWS, random, targets
from bits import assert_same_bits
from graphs import captured
from torch.nn import functional

import torch_reduce
from torch_reduce import _invariant

FLOATS = (torch.float32, torch.bfloat16, torch.float64)
# Nothing is reduced.
SELECTS = ("gather", "index of columns")
# Left to torch on CUDA, and not counted there.
COMPLEX_ARITHMETIC = [name for name in ELEMENTWISE if "complex" in name and "power" not in name]
# On CUDA torch takes the root of a float64 sum in float32 here: its CPU kernel is the reference.
SINGLE_ROOT = "weight norm"
NO_GRADIENT = ("mm out", "addmm_", "norm 0", "logaddexp2 out")
every_row = pytest.mark.parametrize("name", ROWS)
every_float = pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: str(d).removeprefix("torch."))

# Of everything: no row is left, but runs must agree, and values be torch's.
WHOLE = {
    "dot": lambda x: torch.dot(x[0, 0], x[1, 0]),
    "sum": lambda x: x.sum(),
    "mean": lambda x: x.mean(),
    "mean to float64": lambda x: x.mean(dtype=torch.float64),
    "max": lambda x: x.max(),
    "std": lambda x: x.std(),
    "norm": lambda x: x.norm(),
    "prod": lambda x: (x[0, 0, :9] / 4 + 1).prod(),
    "trace": lambda x: x[0].trace(),
    "nansum": lambda x: torch.where(x > 0, x, torch.nan).nansum(),
    "mse_loss": lambda x: functional.mse_loss(x, x.flip(0)),
    "cross_entropy": lambda x: functional.cross_entropy(x[:, 0], targets(BATCH, 67, x)),
    "cross_entropy of weights": lambda x: functional.cross_entropy(
        x[:, 0], targets(BATCH, 67, x), weight=x[0, 0].abs()
    ),
    "cross_entropy ignored": lambda x: functional.cross_entropy(
        x[:, 0], targets(BATCH, 67, x).index_fill(0, torch.tensor([1, 3], device=x.device), -100), reduction="sum"
    ),
    "nll_loss2d": lambda x: functional.nll_loss(
        x[:, :, :66].reshape(BATCH, 5, 6, 11), targets(66, 5, x).view(6, 11).expand(BATCH, 6, 11)
    ),
    "batch norm, not training": lambda x: functional.batch_norm(x, x[0, :, 0], x[1, :, 0].abs()),
}


def inputs(dtype, device="cpu"):
    return random(BATCH, 5, 67).to(device, dtype), (random(67, 67) / 8).to(device, dtype)


@pytest.fixture
def torch_in_float32():
    """cuDNN reads float32 as tfloat32 unless told not to: what torch computes would be no reference."""
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):  # torch's helpers (test_opinfo) allow nothing else
        yield


@pytest.mark.usefixtures("torch_in_float32")
@every_float
@every_row
def test_a_row_alone_has_the_bits_that_it_has_in_the_batch(name, dtype, device):
    function = ROWS[name]
    x, w = inputs(dtype, device)
    there = "cpu" if name == SINGLE_ROOT else device
    expected = function(x.to(there), w.to(there)).to(device)
    with torch_reduce.batch_invariant(strict=True) as mode:
        actual = function(x, w)
        for rows in (slice(0, 1), slice(2, 3), slice(3, 6)):
            assert_same_bits(function(x[rows], w), actual[rows], f"{name}, rows {rows}")
        assert_same_bits(function(x[2:3].clone(), w), actual[2:3], name)
        for strided in (functional.pad(x, (1, 2))[..., 1:-2], x.transpose(0, 1).contiguous().transpose(0, 1)):
            assert_same_bits(function(strided, w), actual, f"{name}, strides {strided.stride()}")
    tolerance = {torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float64: 1e-12}[dtype]
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=4 * tolerance)
    left = device == "cuda" and name in ELEMENTWISE
    not_counted = name in SELECTS or (left and name in COMPLEX_ARITHMETIC)
    assert not_counted or any(op.torchs if left else op.ours for op in mode.report()), mode.report()


@pytest.mark.usefixtures("torch_in_float32")
@every_float
@pytest.mark.parametrize("name", [name for name in ROWS if name not in NO_GRADIENT])
def test_so_have_gradients(name, dtype, device):
    function = ROWS[name]
    x, w = inputs(dtype, device)

    def gradients(x, w=w):
        x, weight = x.detach().clone().requires_grad_(), w.clone().requires_grad_()
        result = function(x, weight)
        direction = torch.linspace(0.5, 1.5, result[0].numel(), dtype=dtype, device=x.device).view(result[0].shape)
        return torch.autograd.grad((result * direction).sum(), (x, weight), allow_unused=True)

    there = "cpu" if name == SINGLE_ROOT else device
    expected, of_weight = gradients(x.to(there), w.to(there))
    with torch_reduce.batch_invariant(strict=True):
        actual, again = gradients(x)
        for rows in (slice(0, 1), slice(3, 6)):
            assert_same_bits(gradients(x[rows])[0], actual[rows], f"{name}, rows {rows}")
        if again is not None:
            assert_same_bits(gradients(x)[1], again, name)
    tolerance = {torch.float32: 1e-4, torch.bfloat16: 6e-2, torch.float64: 1e-11}[dtype]
    torch.testing.assert_close(actual, expected.to(device), rtol=tolerance, atol=4 * tolerance)
    if again is not None:
        torch.testing.assert_close(again, of_weight.to(device), rtol=tolerance, atol=16 * tolerance)


@every_float
@pytest.mark.parametrize("product", [functional.linear, lambda x, w: x @ w.mT], ids=["linear", "matmul"])
def test_gradients_of_rows_that_lie_column_by_column(product, dtype, device):
    """Torch's derivative of a product swaps its operands there, and the kernels of few columns are others."""
    x, w = random(658, 57).to(device, dtype).T, random(301, 658).to(device, dtype)
    direction = random(301, 57).to(device, dtype).T.contiguous()

    def gradient(rows):
        part = x[rows].detach().requires_grad_()
        return torch.autograd.grad(product(part, w), part, direction[rows])[0]

    with torch_reduce.batch_invariant(strict=True):
        whole = gradient(slice(0, 57))
        for rows in (slice(0, 1), slice(2, 5)):
            assert_same_bits(gradient(rows), whole[rows], f"rows {rows}")


@every_float
@pytest.mark.parametrize("name", WHOLE)
def test_reductions_of_everything(name, dtype, device):
    function = WHOLE[name]
    x, _ = inputs(dtype, device)
    expected = function(x.double()).to(torch.float64)
    with torch_reduce.batch_invariant(strict=True):
        actual = function(x)
        assert_same_bits(function(x), actual, name)
    tolerance = {torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float64: 1e-12}[dtype]
    torch.testing.assert_close(actual.double(), expected, rtol=tolerance, atol=tolerance)


# Additions into rows of a table (9, 6) where an index (40) says, from a source (40, 6).
INDEXED = {
    "embedding": lambda table, index, source: functional.embedding(index, table) * source,
    "embedding with padding": lambda table, index, source: functional.embedding(index, table, padding_idx=3) * source,
    "embedding by frequency": lambda table, index, source: (
        functional.embedding(index, table, scale_grad_by_freq=True) * source
    ),
    "index": lambda table, index, source: table[index] * source,
    "index of two": lambda table, index, source: table[index, index % 6] * source[:, 0],
    "index_select": lambda table, index, source: table.index_select(0, index) * source,
    "gather": lambda table, index, source: table.gather(0, index[:, None].expand(40, 6)) * source,
}
ADDED = {
    "index_add": lambda table, index, source: table.index_add(0, index, source, alpha=2),
    "index_add of dim 1": lambda table, index, source: table.mT.index_add(1, index, source.mT),
    "index_add_": lambda table, index, source: table.clone().index_add_(0, index, source),
    "scatter_add": lambda table, index, source: table.scatter_add(0, index[:, None].expand(40, 6), source),
    "scatter_add_": lambda table, index, source: table.clone().scatter_add_(0, index[:, None].expand(40, 4), source),
    "index_put": lambda table, index, source: table.index_put((index,), source, accumulate=True),
    "index_put of two": lambda table, index, source: table.index_put((index, index % 6), source[:, 1], accumulate=True),
    "index_put of a mask": lambda table, index, source: table.index_put((table > 0,), source[0, 0], accumulate=True),
    "put_": lambda table, index, source: table.clone().put_(index, source[:, 0], accumulate=True),
    "scatter_reduce": lambda table, index, source: table.scatter_reduce(
        0, index[:, None].expand(40, 6), source, "mean"
    ),
    "scatter_reduce of what comes": lambda table, index, source: table.scatter_reduce(
        0, index[:, None].expand(40, 6), source, "sum", include_self=False
    ),
    "index_reduce": lambda table, index, source: table.index_reduce(0, index, source, "mean", include_self=False),
    "index_put_": lambda table, index, source: table.clone().index_put_((index - 9,), source[0], accumulate=True),
    "scatter that adds": lambda table, index, source: table.scatter(
        0, index[:, None].expand(40, 6), source, reduce="add"
    ),
    "scatter_ that adds a number": lambda table, index, source: table.clone().scatter_(
        0, index[:, None].expand(40, 6), 1.25, reduce="add"
    ),
}
MULTIPLIED = {
    "scatter_reduce of products": lambda table, index, source: table.scatter_reduce(
        0, index[:, None].expand(40, 6), source, "prod"
    ),
    "scatter_reduce of products of what comes": lambda table, index, source: table.scatter_reduce(
        0, index[:, None].expand(40, 6), source, "prod", include_self=False
    ),
    "index_reduce of products": lambda table, index, source: table.mT.index_reduce(1, index, source.mT, "prod").mT,
    "index_reduce of products of what comes": lambda table, index, source: table.index_reduce(
        0, index, source, "prod", include_self=False
    ),
    "scatter that multiplies": lambda table, index, source: table.scatter(
        0, index[:, None].expand(40, 6), source, reduce="multiply"
    ),
    "scatter that multiplies by a number": lambda table, index, source: table.scatter(
        0, index[:, None].expand(40, 6), 1.25, reduce="multiply"
    ),
}
ADDED |= MULTIPLIED


def indexed(dtype, device):
    index = torch.randint(0, 7, (40,), generator=torch.Generator().manual_seed(2)).to(device)
    return random(9, 6).to(device, dtype), index, random(40, 6).flip(0).to(device, dtype)


@every_float
@pytest.mark.parametrize("name", ADDED)
def test_additions_where_an_index_says(name, dtype, device):
    operands = indexed(dtype, device)
    expected = ADDED[name](*(x.double() if x.is_floating_point() else x for x in operands))
    with torch_reduce.batch_invariant(strict=True) as mode:
        actual = ADDED[name](*operands)
        assert_same_bits(ADDED[name](*operands), actual, name)
    assert sum(op.ours for op in mode.report()) >= 2
    tolerance = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float64: 1e-12}[dtype]
    torch.testing.assert_close(actual.double(), expected, rtol=tolerance, atol=4 * tolerance)


@every_float
@pytest.mark.parametrize("name", MULTIPLIED)
def test_products_where_an_index_says_are_trees(name, dtype, device):
    """Of what meets in a place, neighbours first, as `prod` is; then what was there. Other places do not count."""
    table, index, source = indexed(dtype, device)
    if name == "scatter that multiplies by a number":
        source = torch.full_like(source, 1.25)
    wide = torch.promote_types(dtype, torch.float32)
    with torch_reduce.batch_invariant(strict=True):
        actual = MULTIPLIED[name](table, index, source)
        for place in range(len(table)):
            meets = source[index == place].to(wide)
            product, there = meets.prod(0), table[place].to(wide)
            product = there if len(meets) == 0 else product if "comes" in name else there * product
            assert_same_bits(actual[place], product.to(dtype), f"{name}, {place}")


@pytest.mark.parametrize("name", [name for name in MULTIPLIED if "scatter that" not in name])
def test_gradients_of_products_where_an_index_says(name, device):
    table, index, source = indexed(torch.float64, device)
    source[3], source[7, 2], table[1, 4] = 0, 0, 0

    def gradients():
        of = table.clone().requires_grad_(), source.clone().requires_grad_()
        return torch.autograd.grad(MULTIPLIED[name](of[0], index, of[1]).square().sum(), of)

    expected = gradients()
    with torch_reduce.batch_invariant(strict=True):
        torch.testing.assert_close(gradients(), expected)


@every_float
@pytest.mark.parametrize("name", INDEXED)
def test_gradients_where_an_index_says(name, dtype, device):
    """A row's gradient depends on what is added to it and not on what else the index names."""
    table, index, source = indexed(dtype, device)

    def gradient(index, source):
        t = table.detach().clone().requires_grad_()
        return torch.autograd.grad(INDEXED[name](t, index, source).sum(), t)[0]

    expected = gradient(index, source)
    with torch_reduce.batch_invariant(strict=True):
        actual = gradient(index, source)
        if name != "gather":  # which names 40 places
            few = (index == 2) | (index == 5)
            some = gradient(index[few], source[few])
            assert_same_bits(some[[2, 5]], actual[[2, 5]], name)
    tolerance = {torch.float32: 1e-5, torch.bfloat16: 4e-2, torch.float64: 1e-12}[dtype]
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=4 * tolerance)


def test_an_index_without_accumulate_is_torchs():
    x = torch.zeros(5)
    with torch_reduce.batch_invariant(strict=True) as mode:
        x[torch.tensor([1, 3])] = torch.ones(2)
        x.index_put_((torch.tensor([2]),), torch.tensor(1, dtype=x.dtype))
    assert x.tolist() == [0, 1, 1, 1, 0] and not any(op.ours for op in mode.report())


@pytest.mark.cuda
def test_an_index_and_a_value_of_the_host():
    for index in (torch.tensor([1, 1, 0]), (torch.tensor([1, 1, 0]), torch.tensor([2, 2, 2]))):
        x = torch.zeros(2, 3, device="cuda")
        indices = index if isinstance(index, tuple) else (index,)
        expected = x.cpu().index_put(indices, torch.tensor(1.0), accumulate=True)
        with torch_reduce.batch_invariant(strict=True):
            assert_same_bits(x.index_put_(indices, torch.tensor(1.0), accumulate=True).cpu(), expected)


def test_what_torch_refuses_is_refused():
    x, index = torch.zeros(3, 4), torch.tensor([[5], [0], [1]])
    refused = [
        (IndexError, lambda: x.scatter_add(1, index, torch.ones(3, 1))),
        (IndexError, lambda: x.scatter_add(1, -index, torch.ones(3, 1))),
        (ValueError, lambda: x.scatter_add(0, torch.zeros(2, 5, dtype=torch.long), torch.ones(2, 5))),
        (TypeError, lambda: x.scatter_add(1, index - 2, torch.ones(3, 1).double())),
        (IndexError, lambda: x.scatter_reduce(1, index, torch.ones(3, 1), "prod")),
        (IndexError, lambda: x.index_reduce(0, torch.tensor([3]), torch.ones(1, 4), "prod")),
        (RuntimeError, lambda: x.index_reduce(0, torch.tensor([2]), torch.ones(1, 4), "sum")),
        (RuntimeError, lambda: x.scatter(0, index, torch.ones(3, 1), reduce="prod")),
        (IndexError, lambda: x.index_add(0, torch.tensor([-1]), torch.ones(1, 4))),
        (IndexError, lambda: x.index_add(0, torch.tensor([3]), torch.ones(1, 4))),
        (ValueError, lambda: x.index_add(0, torch.tensor([0, 1]), torch.ones(4, 2))),
        (TypeError, lambda: x.index_put((torch.tensor([0]),), torch.ones(1, 4).double(), accumulate=True)),
        (RuntimeError, lambda: torch.ones(4).pow_(x)),
        (ValueError, lambda: torch.mm(torch.ones(2, 3, 4), torch.ones(4, 2))),
        (ValueError, lambda: torch.bmm(torch.ones(1, 3, 4), torch.ones(5, 4, 2))),
        (ValueError, lambda: torch.mv(torch.ones(3, 4), torch.ones(4, 1))),
        (RuntimeError, lambda: torch.ones(2, 3) @ torch.ones(3, 2).bfloat16()),
        (ValueError, lambda: torch.dot(torch.ones(2, 2), torch.ones(2))),
        (ValueError, lambda: torch.linalg.solve_triangular(torch.ones(2, 3), torch.ones(2, 1), upper=True)),
        (ValueError, lambda: torch.linalg.solve_triangular(torch.ones(3, 3), torch.ones(2, 1), upper=True)),
        (ValueError, lambda: torch.linalg.solve_triangular(torch.ones(3, 3), torch.ones(3), upper=True)),
        (ValueError, lambda: functional.nll_loss(torch.ones(2, 3, 4, 5), torch.ones(2, 4, 4, dtype=torch.long))),
        (ValueError, lambda: functional.conv1d(torch.ones(1, 1, 5), torch.ones(1, 1, 3), padding=-1)),
        (ValueError, lambda: functional.conv1d(torch.ones(1, 1, 5), torch.ones(1, 1, 3), stride=0)),
        (ValueError, lambda: functional.conv1d(torch.ones(1, 1, 5), torch.ones(1, 1, 3), dilation=0)),
        (ValueError, lambda: functional.conv1d(torch.ones(1, 1, 2), torch.ones(1, 1, 3))),
        (ValueError, lambda: functional.conv1d(torch.ones(1, 1, 5), torch.ones(1, 1, 0))),
        (ValueError, lambda: functional.conv1d(torch.ones(1, 4, 5), torch.ones(3, 2, 3), groups=2)),
        (ValueError, lambda: functional.conv1d(torch.ones(1, 1, 5), torch.ones(2, 1, 3), torch.ones(1))),
        (ValueError, lambda: functional.conv_transpose1d(torch.ones(1, 1, 1), torch.ones(1, 1, 1), padding=3)),
        (ValueError, lambda: torch.zeros(3).put_(torch.tensor([0, 1]), torch.ones(3), accumulate=True)),
        (IndexError, lambda: torch.tensor(1.0).cumsum(1)),
        (IndexError, lambda: torch.tensor(1.0).logsumexp((0, 1))),
    ]
    for error, call in refused:
        with pytest.raises((RuntimeError, IndexError)):
            call()
        with torch_reduce.batch_invariant(), pytest.raises(error):
            call()


def test_numbers_and_nothing():
    x, none = torch.zeros(3, 4), torch.zeros(0, dtype=torch.long)
    calls = [
        lambda: torch.tensor(2.0).var(0, correction=0),
        lambda: torch.tensor(2.0).std(-1, correction=0),
        lambda: torch.tensor(2.0).logsumexp(0),
        lambda: x[:0].logsumexp(()),
        lambda: x.index_add(0, none, torch.ones(0, 4)),
        lambda: torch.tensor(1.0).index_add(0, torch.tensor(0), torch.tensor(2.0)),
        lambda: x.scatter_add(0, none.view(0, 4), torch.ones(0, 4)),
        lambda: functional.embedding(torch.tensor([1]), torch.ones(3, 0, requires_grad=True)).sum().backward(),
    ]
    for call in calls:
        expected = call()
        with torch_reduce.batch_invariant(strict=True):
            torch.testing.assert_close(call(), expected, equal_nan=True)


PLACES = {
    "add": lambda a, b, c: torch.add(a, b, alpha=0.3),
    "sub_": lambda a, b, c: a.clone().sub_(b, alpha=-1.7),
    "rsub out": lambda a, b, c: torch.sub(b, a, alpha=0.3, out=a.new_empty(0)),
    "neg": lambda a, b, c: -a,
    "addcmul": lambda a, b, c: torch.addcmul(a, b, c, value=0.7),
    "addcdiv": lambda a, b, c: torch.addcdiv(a, b, c),
    "lerp": lambda a, b, c: torch.lerp(a, b, 0.3),
    "lerp_": lambda a, b, c: a.clone().lerp_(b, c),
    "silu": lambda a, b, c: functional.silu(a),
    "tanh, its gradient": lambda a, b, c: torch.ops.aten.tanh_backward(a, b),
    "smooth_l1_loss, its gradient": lambda a, b, c: torch.ops.aten.smooth_l1_loss_backward(a, b, c, 0, 1.3),
    "huber_loss, its gradient": lambda a, b, c: torch.ops.aten.huber_loss_backward(a, b, c, 0, 1.3),
}


@pytest.mark.parametrize(
    "dtype", [*FLOATS, torch.float16, torch.complex64], ids=lambda d: str(d).removeprefix("torch.")
)
@pytest.mark.parametrize("name", PLACES)
def test_the_place_of_an_element_changes_no_bit(name, dtype):
    """More of this: test_aten_samples.py."""
    if dtype.is_complex and "loss" in name:
        pytest.skip("not of complex numbers")
    function, numbers = PLACES[name], [torch.randn(67, generator=torch.Generator().manual_seed(i)) for i in range(6)]
    operands = [torch.complex(*numbers[i : i + 2]) if dtype.is_complex else numbers[i].to(dtype) for i in (0, 2, 4)]
    expected = function(*(x.to(torch.complex128 if dtype.is_complex else torch.float64) for x in operands))
    with torch_reduce.batch_invariant(strict=True):
        whole = function(*operands)
        for part in (slice(0, 1), slice(3, 20), slice(16, 33), slice(60, 67), slice(1, None, 2)):
            assert_same_bits(function(*(x[part] for x in operands)), whole[part], f"{name}, {part}")
    tolerance = {torch.bfloat16: 2e-2, torch.float16: 2e-3, torch.float64: 1e-12}.get(dtype, 1e-5)
    torch.testing.assert_close(whole.to(expected.dtype), expected, rtol=tolerance, atol=tolerance)


def test_the_mean_of_a_loss_has_its_gradient():
    x, y = random(9, 5), random(5, 9).T
    for loss in (functional.smooth_l1_loss, functional.huber_loss):
        of = [torch.func.grad(lambda t, loss=loss: loss(t, y))(x)]
        with torch_reduce.batch_invariant(strict=True):
            of.append(torch.func.grad(lambda t, loss=loss: loss(t, y))(x))
        torch.testing.assert_close(of[1], of[0])


@every_float
def test_addr(dtype):
    x, u, v = random(9, 67).to(dtype), random(9).to(dtype), random(67).to(dtype)
    expected = torch.addr(x.double(), u.double(), v.double(), beta=0.5, alpha=2).to(dtype)
    with torch_reduce.batch_invariant(strict=True):
        actual = torch.addr(x, u, v, beta=0.5, alpha=2)
        strided = torch.stack((v, v), 1)[:, 1]
        assert_same_bits(torch.addr(x.T.contiguous().T, u, strided, beta=0.5, alpha=2), actual)
        assert_same_bits(torch.addr(x[3:4], u[3:4], v, beta=0.5, alpha=2), actual[3:4])
        assert_same_bits(x.clone().addr_(u, v, beta=0.5, alpha=2), actual)
        of_nan = torch.addr(x * torch.nan, u, v, beta=0)
    assert_same_bits(of_nan, torch.outer(u.double(), v.double()).to(dtype))
    torch.testing.assert_close(actual, expected)


@every_float
def test_inner_products_do_not_see_strides(dtype, device):
    x, y = random(5, 67).to(device, dtype), random(67, 5).to(device, dtype)
    with torch_reduce.batch_invariant(strict=True):
        expected = torch.tensordot(x, y.T.contiguous())
        assert_same_bits(torch.tensordot(x, y.T), expected)
        assert_same_bits(torch.tensordot(x, y, ([0, 1], [1, 0])), expected)
        expected = torch.inner(x[0], y[:, 1].contiguous())
        assert_same_bits(torch.inner(x[0], y[:, 1]), expected)
    torch.testing.assert_close(expected, torch.inner(x[0], y[:, 1]), rtol=2e-2, atol=1e-2)


def test_a_number_leaves_the_dtype_of_a_complex_number():
    x = torch.tensor(1 + 2j, dtype=torch.complex64)
    with torch_reduce.batch_invariant(strict=True):
        assert (x * 0.5).dtype == (x / 3).dtype == (2.5 - x).dtype == torch.complex64
        assert (torch.tensor(0.25, dtype=torch.bfloat16) + 0.5).dtype == torch.bfloat16


@pytest.mark.parametrize(
    "sizes",
    [
        ((4, 3, 8), (2, 4, 6, 8)),
        ((3, 8), (2, 4, 6, 8)),
        ((1, 4, 3, 8), (2, 4, 6, 8)),
        ((2, 4, 3, 8), (1, 4, 6, 8)),
        ((2, 4, 3, 8), (4, 6, 8)),
        ((2, 4, 3, 8), (2, 1, 6, 8)),
        ((2, 1, 3, 8), (2, 4, 6, 8)),
        ((2, 4, 3, 8), (6, 8)),
    ],
)
def test_attention_broadcasts_as_torch_does(sizes):
    q, k = random(*sizes[0]).requires_grad_(), random(*sizes[1]).requires_grad_()
    expected = functional.scaled_dot_product_attention(q, k, 2 * k)
    gradients = torch.autograd.grad(expected.square().sum(), (q, k))
    with torch_reduce.batch_invariant(strict=True):
        actual = functional.scaled_dot_product_attention(q, k, 2 * k)
        torch.testing.assert_close(torch.autograd.grad(actual.square().sum(), (q, k)), gradients)
    torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize(("of_keys", "of_values"), [(2, 4), (4, 2), (1, 2), (2, 1)])
def test_heads_of_keys_and_of_values_are_shared_apart(of_keys, of_values):
    x = tuple(random(2, heads, 6, 8).requires_grad_() for heads in (4, of_keys, of_values))
    expected = functional.scaled_dot_product_attention(*x, enable_gqa=True)
    gradients = torch.autograd.grad(expected.square().sum(), x)
    with torch_reduce.batch_invariant(strict=True):
        actual = functional.scaled_dot_product_attention(*x, enable_gqa=True)
        torch.testing.assert_close(torch.autograd.grad(actual.square().sum(), x), gradients)
    torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("left", [True, False], ids=["left", "right"])
@pytest.mark.parametrize("upper", [True, False], ids=["upper", "lower"])
def test_triangular_systems(upper, left, dtype, device):
    """Of a length that gives each matrix of a batch another alignment, on which torch's bits depend."""
    n, tolerance = 33, {torch.float32: 1e-5, torch.float64: 1e-13}[dtype]
    triangles = random(4, 1, n, n).to(device, dtype) / 8 + 2 * torch.eye(n, device=device, dtype=dtype)
    right = random(3, n, 5).to(device, dtype)
    right = right if left else right.mT
    for unitriangular in (False, True):

        def solve(a, b, unit=unitriangular):
            return torch.linalg.solve_triangular(a, b, upper=upper, left=left, unitriangular=unit)

        expected = solve(triangles, right)
        with torch_reduce.batch_invariant(strict=True):
            actual = solve(triangles, right)
            for i in range(4):
                assert_same_bits(solve(triangles[i, 0].clone(), right[2].clone()), actual[i, 2], f"matrix {i}")
        torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)
        assert actual.stride() == expected.stride()
    a, b = triangles[0, 0, :4, :4].double().requires_grad_(), random(4, 4).to(device).requires_grad_()
    with torch_reduce.batch_invariant(strict=True):
        assert torch.autograd.gradcheck(solve, (a, b))


@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
def test_grid_sample_on_a_cpu(mode):
    """On CUDA its gradient is added atomically."""
    x, grid, direction = random(5, 3, 13, 17), random(5, 7, 11, 2) / 2, random(5, 3, 7, 11)

    def both(rows, strided=lambda t: t):
        of = [strided(t[rows].float()).requires_grad_() for t in (x, grid)]
        y = functional.grid_sample(*of, mode=mode, align_corners=False)
        return y.detach(), *torch.autograd.grad(y, of, strided(direction[rows].float()))

    expected = both(slice(None))
    with torch_reduce.batch_invariant(strict=True):
        actual = both(slice(None))
        for rows in (slice(0, 1), slice(2, 4)):
            for strided in (lambda t: t, lambda t: torch.stack((t, t), -1)[..., 0], lambda t: t.mT.contiguous().mT):
                for a, whole in zip(both(rows, strided), actual, strict=True):
                    assert_same_bits(a, whole[rows])
    for a, e in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, e)


def test_batch_norm_in_evaluation_has_one_form(device):
    x, weight, bias, mean, var = (random(*shape).to(device) for shape in ((3, 5, 7), (5,), (5,), (5,), (5,)))
    for dtype in FLOATS:
        operands = [t.to(dtype).requires_grad_() for t in (x, weight, bias)]
        stats = mean.to(dtype), var.abs().to(dtype)
        with torch_reduce.batch_invariant(strict=True):
            one = functional.batch_norm(operands[0], *stats, operands[1], operands[2])
            two = torch.native_batch_norm(*operands, *stats, False, 0.1, 1e-5)[0]
            assert_same_bits(one.detach(), two.detach())
            of = [torch.autograd.grad(y.square().sum(), operands) for y in (one, two)]
            for a, b in zip(*of, strict=True):
                assert_same_bits(a, b)


def test_exp2_is_exact_of_whole_numbers():
    whole, x = torch.arange(-1074, 1024, dtype=torch.float64), torch.linspace(-160, 140, 4001)
    with torch_reduce.batch_invariant():
        assert torch.exp2(whole).tolist() == [2.0**n for n in whole.tolist()]
        actual, special = torch.exp2(x), torch.exp2(torch.tensor([torch.inf, -torch.inf, torch.nan]))
    torch.testing.assert_close(actual.double(), torch.exp2(x.double()).float().double(), rtol=2**-23, atol=2**-149)
    assert special[:2].tolist() == [torch.inf, 0] and special[2].isnan()


def test_infinities_as_torch_has_them():
    x = random(4, 9).float()
    x[0, :] = -torch.inf
    x[1, 3] = torch.inf
    x[2, 4] = torch.nan
    x[3, :8] = -torch.inf
    for function in (torch.softmax, torch.log_softmax, torch.logsumexp):
        expected = function(x, -1)
        with torch_reduce.batch_invariant():
            torch.testing.assert_close(function(x, -1), expected, equal_nan=True)


def test_sums_that_autograd_makes_are_ours():
    bias = torch.zeros(3, requires_grad=True)
    with torch_reduce.batch_invariant() as mode:
        (torch.ones(5, 3) + bias).relu().sum().backward()
    assert {op.name: op.ours for op in mode.report()} == {"aten::sum": 1, "aten::sum.dim_IntList": 1}


def test_integers_are_left_to_torch():
    x = torch.arange(12).view(3, 4)
    with torch_reduce.batch_invariant(strict=True) as mode:
        assert x.cumsum(0)[2, 0] == 12 and x.prod() == 0 and (x @ x.T)[0, 0] == 14
    assert all(op.ours == op.uncovered == 0 for op in mode.report())
    assert "integers: exact in any order" in str(mode.report())


def inside():
    return torch_reduce.is_batch_invariant()


def test_it_is_entered_and_left():
    assert not inside()
    with torch_reduce.batch_invariant():
        assert inside()
        mode = torch_reduce.batch_invariant(strict=True)
        with mode, mode, pytest.raises(NotImplementedError, match=r"aten::linalg_qr reduces in an order"):
            torch.linalg.qr(torch.ones(3, 2))
        assert inside()
    assert not inside()
    with pytest.raises(ZeroDivisionError), torch_reduce.batch_invariant():
        1 / 0  # noqa: B018
    assert not inside()


def test_inside_inference_mode():
    x = random(3, 5)
    with torch.inference_mode(), torch_reduce.batch_invariant() as mode:
        x.sum()
    assert mode.report()[0].ours == 1 and not inside()


def test_as_a_decorator():
    @torch_reduce.batch_invariant()
    def decorated():
        """Its words."""
        return inside()

    assert decorated() and decorated.__doc__ == "Its words." and not inside()

    def generator():
        yield inside()

    async def coroutine():
        return inside()

    for pauses in (generator, coroutine):
        with pytest.raises(TypeError, match=f"{pauses.__name__} pauses"):
            torch_reduce.batch_invariant()(pauses)
    for given in (generator, True):
        with pytest.raises(TypeError, match="called before it decorates"):
            torch_reduce.batch_invariant(given)


def test_enable_and_disable():
    torch_reduce.enable_batch_invariant()
    torch_reduce.enable_batch_invariant(strict=True)
    with pytest.raises(NotImplementedError):
        torch.linalg.qr(torch.ones(3, 2))
    torch_reduce.disable_batch_invariant()
    torch_reduce.disable_batch_invariant()
    assert not inside()


def test_it_belongs_to_a_thread():
    seen = []
    with torch_reduce.batch_invariant():
        thread = threading.Thread(target=lambda: seen.append(inside()))
        thread.start()
        thread.join()
    assert seen == [False]


def test_what_is_not_covered_warns_once_and_names_the_place():
    x = torch.ones(3, 4)
    with torch_reduce.batch_invariant() as mode, warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for _ in range(2):
            torch.linalg.qr(x)
    (warning,) = seen
    assert "aten::linalg_qr" in str(warning.message) and warning.filename == __file__
    assert [op.uncovered for op in mode.report()] == [2]


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
def test_products_and_sums_of_sparse_tensors_are_not_covered():
    dense, x = torch.randn(5, 5), torch.randn(5, 4)
    sparse, csr = dense.to_sparse(), dense.to_sparse_csr()
    calls = (lambda: torch.sparse.mm(sparse, x), lambda: csr @ x, lambda: torch.addmm(x, sparse, x), sparse.sum)
    for call in calls:
        with torch_reduce.batch_invariant(strict=True), pytest.raises(NotImplementedError, match="aten::"):
            call()
    with torch_reduce.batch_invariant() as mode, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.testing.assert_close(calls[0](), dense @ x)
        assert sparse.long().sum() == dense.long().sum()
    assert [op.uncovered for op in mode.report() if op.name in ("aten::mm", "aten::addmm")] == [0, 1]


def backwards(device):
    """An op that is not covered, and one that is on a CPU alone."""
    x = torch.ones(1, 1, 3, 4, device=device, requires_grad=True)
    yield functional.grid_sample(x, torch.zeros(1, 2, 2, 2, device=device), align_corners=False).sum()
    yield functional.interpolate(x, scale_factor=2, mode="bilinear").sum()


@pytest.mark.cuda
def test_the_backward_of_a_gpu_is_strict_too():
    for y, op in zip(backwards("cuda"), ("grid_sampler_2d_backward", "upsample_bilinear2d_backward"), strict=True):
        with torch_reduce.batch_invariant(strict=True), pytest.raises(NotImplementedError, match=op):
            y.backward()


def test_what_adds_atomically_on_a_gpu_is_covered_on_a_cpu():
    _, y = backwards("cpu")
    with torch_reduce.batch_invariant(strict=True) as mode:
        y.backward()
    assert {op.name: op.torchs for op in mode.report()} == {"aten::upsample_bilinear2d_backward": 1}


@every_float
def test_batch_norm_in_training(dtype, device):
    """Its channels are rows of the whole batch; running statistics, and all gradients."""
    x = random(BATCH, 5, 6, 11).to(device, dtype)

    def step(x, dtype, cudnn=True):
        norm = torch.nn.BatchNorm2d(5, momentum=0.3).to(device, dtype)
        with torch.no_grad():
            norm.weight.copy_(torch.linspace(0.5, 1.5, 5))
            norm.bias.copy_(torch.linspace(-1, 1, 5))
        x = x.detach().clone().requires_grad_()
        y = norm(x)
        direction = torch.linspace(0.5, 1.5, y.numel(), dtype=torch.float64).view(y.shape).to(device, dtype)
        y.backward(direction)
        return [y.detach(), x.grad, norm.weight.grad, norm.bias.grad, norm.running_mean, norm.running_var]

    expected = step(x.double(), torch.float64)
    with torch_reduce.batch_invariant(strict=True) as mode:
        found = step(x, dtype)
        for again in (step(x, dtype), step(x.contiguous(memory_format=torch.channels_last), dtype)):
            for a, b in zip(found, again, strict=True):
                assert_same_bits(a, b)
    assert {op.name: op.ours for op in mode.report()}["aten::native_batch_norm_backward"] == 3
    tolerance = {torch.float32: 1e-5, torch.bfloat16: 4e-2, torch.float64: 1e-12}[dtype]
    for a, e in zip(found, expected, strict=True):
        torch.testing.assert_close(a.double(), e, rtol=tolerance, atol=tolerance * e.abs().max().item())


def packed(layer, x):
    lengths = [11, 3, 8, 5, 11, 2, 7][: len(x)]
    text = torch.nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    return torch.nn.utils.rnn.pad_packed_sequence(layer(text)[0], batch_first=True, total_length=11)[0]


def layers(kind, **settings):
    return lambda: getattr(torch.nn, kind)(6, 9, batch_first=True, **settings)


# A module, and a function of it and of a batch (BATCH, 11, 6).
MODULES = {
    "LSTM": (layers("LSTM", num_layers=2), lambda layer, x: layer(x)[0]),
    "LSTM of both directions": (layers("LSTM", bidirectional=True, num_layers=2), lambda layer, x: layer(x)[0]),
    "LSTM without a bias": (layers("LSTM", bias=False), lambda layer, x: layer(x)[1][1][0]),
    "LSTM with projections": (layers("LSTM", proj_size=4), lambda layer, x: layer(x)[0]),
    "LSTM, packed": (layers("LSTM", bidirectional=True), packed),
    "GRU": (layers("GRU", num_layers=2), lambda layer, x: layer(x)[0]),
    "GRU, packed": (layers("GRU"), packed),
    "RNN": (layers("RNN", bidirectional=True), lambda layer, x: layer(x)[0]),
    "InstanceNorm1d": (lambda: torch.nn.InstanceNorm1d(11, affine=True), lambda layer, x: layer(x)),
    "weight_norm": (
        lambda: torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(6, 9)),
        lambda layer, x: layer(x),
    ),
    "weight_norm of the last dim": (
        lambda: torch.nn.utils.parametrizations.weight_norm(torch.nn.Conv1d(11, 5, 3), dim=2),
        lambda layer, x: layer(x),
    ),
    "TransformerEncoderLayer": (
        lambda: torch.nn.TransformerEncoderLayer(6, 2, 20, 0.0, "gelu", batch_first=True),
        lambda layer, x: layer(x),
    ),
    "TransformerEncoderLayer, masked": (
        lambda: torch.nn.TransformerEncoderLayer(6, 2, 20, 0.0, batch_first=True),
        lambda layer, x: layer(x, src_key_padding_mask=(torch.arange(11, device=x.device) > 7).expand(len(x), 11)),
    ),
}


@every_float
@pytest.mark.parametrize("name", MODULES)
def test_modules_of_torch(name, dtype, device):
    """In evaluation without gradients torch takes kernels of their own for some; in training there are gradients.

    Values are compared with torch's on the CPU: on CUDA it takes tfloat32, tanh in place of erf, roots in float32.
    """
    make, function = MODULES[name]
    torch.manual_seed(1)
    on_cpu = make().to(dtype)
    module = copy.deepcopy(on_cpu).to(device)
    x = random(BATCH, 11, 6).to(device, dtype)

    def gradients(x, module=module):
        x = x.detach().clone().requires_grad_()
        result = function(module, x)
        direction = torch.linspace(0.5, 1.5, result[0].numel(), dtype=dtype, device=x.device).view(result[0].shape)
        return torch.autograd.grad((result * direction).sum(), (x, *module.parameters()))

    on_cpu.eval()
    module.eval()
    with torch.no_grad():
        expected = function(on_cpu, x.cpu())
        strides = function(module, x).stride()
    on_cpu.train()
    module.train()
    of_all = gradients(x.cpu(), on_cpu)
    with torch_reduce.batch_invariant(strict=True):
        with torch.no_grad():
            module.eval()
            found = function(module, x)
            assert found.stride() == strides
            for rows in (1, 3):
                assert_same_bits(function(module, x[:rows]), found[:rows], f"{rows} rows")
            strided = functional.pad(x, (1, 2))[..., 1:-2]
            assert_same_bits(function(module, strided), found, "strides")
            module.train()
        actual = gradients(x)
        for a, b in zip(actual, gradients(x), strict=True):
            assert_same_bits(a, b, "twice")
        if name != "GRU, packed":  # autograd adds what meets in a state in an order that follows the lengths
            assert_same_bits(gradients(x[:3])[0], actual[0][:3], "the gradient of three rows")
    tolerance = {torch.float32: 1e-5, torch.bfloat16: 4e-2, torch.float64: 1e-12}[dtype]
    torch.testing.assert_close(found.cpu(), expected, rtol=tolerance, atol=tolerance)
    for a, e in zip(actual, of_all, strict=True):
        torch.testing.assert_close(a.cpu(), e, rtol=4 * tolerance, atol=4 * tolerance * max(1, e.abs().max().item()))


BAGS = [{"mode": "sum"}, {"mode": "mean"}, {"mode": "max"}, {"mode": "mean", "padding_idx": 2}]
BAGS += [{"mode": "sum", "scale_grad_by_freq": True}, {"mode": "sum", "padding_idx": 2, "per_sample_weights": True}]


@every_float
@pytest.mark.parametrize("settings", BAGS, ids=lambda s: " ".join(map(str, s.values())))
def test_bags_of_embeddings(settings, dtype, device):
    table = random(9, 6).to(device, dtype)
    index = torch.randint(0, 7, (40,), generator=torch.Generator().manual_seed(2)).to(device)
    offsets = torch.tensor([0, 3, 3, 17, 39], device=device)
    weights = random(40).to(device, dtype) if settings.get("per_sample_weights") else None

    def bags(table, weights, **others):
        table = table.detach().clone().requires_grad_()
        weights = None if weights is None else weights.detach().clone().requires_grad_()
        y = functional.embedding_bag(index, table, offsets, **settings | {"per_sample_weights": weights} | others)
        direction = torch.linspace(0.5, 1.5, y.numel(), dtype=y.dtype, device=device).view(y.shape)
        wanted = [t for t in (table, weights) if t is not None]
        return y.detach(), *torch.autograd.grad((y * direction).sum(), wanted)

    expected = bags(table.double(), None if weights is None else weights.double())
    if settings.get(
        "scale_grad_by_freq"
    ):  # from the gradient without it, for torch 2.11 on a CPU counts some indices wrongly
        plain = bags(table.double(), None, scale_grad_by_freq=False)[1]
        expected = expected[0], plain / index.bincount(minlength=len(table)).clamp(min=1)[:, None]
    with torch_reduce.batch_invariant(strict=True):
        found = bags(table, weights)
        for a, b in zip(bags(table, weights), found, strict=True):
            assert_same_bits(a, b)
        one = functional.embedding_bag(
            index[3:17],
            table,
            offsets[:1],
            **settings | {"per_sample_weights": None if weights is None else weights[3:17]},
        )
        assert_same_bits(one[0], found[0][2])
    tolerance = {torch.float32: 1e-5, torch.bfloat16: 3e-2, torch.float64: 1e-12}[dtype]
    for a, e in zip(found, expected, strict=True):
        torch.testing.assert_close(a.double(), e, rtol=tolerance, atol=4 * tolerance)


def test_distances_do_not_count_rows():
    """Torch computes them by a product from 26 rows on."""
    x, y = random(30, 7).float() + 9, random(4, 7).float() + 9
    with torch_reduce.batch_invariant(strict=True):
        whole = torch.cdist(x, y)
        for rows in (slice(0, 1), slice(3, 6)):
            assert_same_bits(torch.cdist(x[rows], y), whole[rows])
        assert torch.cdist(x.bfloat16(), y.bfloat16()).dtype == torch.bfloat16
    torch.testing.assert_close(whole, torch.cdist(x.double(), y.double()).float())


def test_a_mask_beside_softmax():
    x, out = random(3, 2, 4, 5), torch.arange(5) > 2
    for mask, kind in ((out.expand(3, 5), 1), (out.expand(4, 5), 0), (out.expand(3, 2, 4, 5), 2)):
        expected = x.masked_fill(out, -torch.inf).softmax(-1)
        with torch_reduce.batch_invariant(strict=True):
            found = torch._masked_softmax(x, mask.contiguous(), -1, kind)
        torch.testing.assert_close(found, expected)


def test_what_is_covered_on_a_cpu_alone():
    """One loop for each result, in the order of what is added."""
    x, target = random(12, 3, 9).float().log_softmax(-1).requires_grad_(), torch.randint(1, 9, (3, 4))
    with torch_reduce.batch_invariant(strict=True) as mode:
        functional.ctc_loss(x, target, torch.full((3,), 12), torch.full((3,), 4)).backward()
        functional.multi_margin_loss(x[0], target[:, 0]).backward()
        torch.bincount(target.flatten(), target.flatten() / 3)
    names = {op.name for op in mode.report() if op.torchs}
    assert {"aten::_ctc_loss", "aten::_ctc_loss_backward", "aten::multi_margin_loss", "aten::bincount"} <= names


class Model(torch.nn.Module):
    """Of tokens, with what language models are made of."""

    def __init__(self, width=64, heads=4, vocabulary=91):
        super().__init__()
        self.heads = heads
        self.tokens = torch.nn.Embedding(vocabulary, width)
        self.convolution = torch.nn.Conv1d(width, width, 3, padding=2)
        self.before, self.after = torch.nn.RMSNorm(width), torch.nn.LayerNorm(width)
        self.qkv, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, tokens, seen=None):
        x = self.tokens(tokens)
        x = x + self.convolution(x.mT)[..., : x.shape[1]].mT
        q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in self.qkv(self.before(x)).chunk(3, -1))
        y = functional.scaled_dot_product_attention(q, k, v, seen, is_causal=seen is None)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        x = x + self.down(functional.gelu(self.up(self.after(x))))
        return x @ self.tokens.weight.T


@pytest.fixture(params=[torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def captured_model(request):
    return Model().to("cuda", request.param)


def tokens_of(seed, batch=3, length=150):
    return torch.randint(0, 91, (batch, length), generator=torch.Generator().manual_seed(seed)).cuda()


@pytest.mark.cuda
def test_a_graph_of_a_model_has_the_bits_of_eager(captured_model):
    tokens, seen = tokens_of(0), torch.ones(3, 1, 150, 150, dtype=torch.bool, device="cuda").tril()
    with torch.no_grad(), torch_reduce.batch_invariant(strict=True):
        graph, results = captured(lambda: (captured_model(tokens), captured_model(tokens, seen)))
    for seed in range(4):
        tokens.copy_(tokens_of(seed))
        seen[:, :, :, : 10 * seed] = False  # padding on the left
        graph.replay()
        with torch.no_grad(), torch_reduce.batch_invariant(strict=True):
            for result, expected in zip(results, (captured_model(tokens), captured_model(tokens, seen)), strict=True):
                assert_same_bits(result, expected)
            assert_same_bits(results[0][1:2], captured_model(tokens[1:2]))


@pytest.mark.cuda
def test_a_graph_of_a_training_step_has_the_bits_of_eager(captured_model):
    model, twin = captured_model, copy.deepcopy(captured_model)
    tokens, answers = tokens_of(0), tokens_of(1)

    def step(model, tokens, answers):
        for p in model.parameters():
            p.grad = None
        loss = functional.cross_entropy(model(tokens).flatten(0, 1).float(), answers.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        with torch.no_grad():
            for p in model.parameters():
                p.sub_(p.grad, alpha=0.1)
        return loss

    with torch_reduce.batch_invariant(strict=True):
        graph, loss = captured(lambda: step(model, tokens, answers))
        twin.load_state_dict(model.state_dict())  # the warm-up was a step
        for seed in range(4):
            tokens.copy_(tokens_of(seed))
            answers.copy_(tokens_of(seed + 9))
            graph.replay()
            assert_same_bits(loss.detach(), step(twin, tokens_of(seed), tokens_of(seed + 9)).detach())
            for a, e in zip(model.parameters(), twin.parameters(), strict=True):
                assert_same_bits(a.detach(), e.detach())


def test_meta_tensors_and_the_report_of_nothing():
    with torch_reduce.batch_invariant(strict=True) as mode:
        assert torch.empty(3, 4, device="meta").prod(1).shape == (3,)
        assert torch.empty(3, 4, device="meta").sum(1).shape == (3,)
    assert str(mode.report()) == "no op that reduces ran in batch_invariant"


def test_what_waits_for_an_import(tmp_path, monkeypatch):
    (tmp_path / "imported_late.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    called = []
    _invariant.WhenImported("imported_late", lambda: called.append(sys.modules["imported_late"].value))
    before = len(sys.meta_path)
    module = importlib.import_module("imported_late")
    assert called == [module.value] and len(sys.meta_path) == before - 1
    del sys.modules["imported_late"]
    importlib.import_module("imported_late")
    assert called == [1]


@pytest.mark.slow
def test_the_first_compilation_of_a_process_inside():
    code = """
import torch, torch_reduce
x = torch.randn(300, 777)
f = lambda x: x.softmax(-1).sum(-1) * 2
with torch_reduce.batch_invariant(strict=True):
    assert torch.equal(torch.compile(f)(x), f(x))
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_ten_lines_of_the_document_run(root, capsys):
    text = (root / "docs" / "batch_invariance.md").read_text()
    code = re.search(r"```python\n(.*?)```", text, flags=re.DOTALL)[1]
    exec(code, {})
    assert capsys.readouterr().out.splitlines()[1] == "True"
