"""Products, norms and sums under torch.autocast: what torch's do, for every dtype that goes in."""

import itertools

import pytest
import torch
from bits import assert_same_bits
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.functional import linear as torchs_linear
from torch.utils._python_dispatch import TorchDispatchMode

import torch_reduce

ops = torch.ops.treduce
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64)
LOW = (torch.bfloat16, torch.float16)
every_low = pytest.mark.parametrize("low", LOW, ids=["bfloat16", "float16"])


def pair(dtypes, device):
    a, b = torch.randn(5, 4, device=device) * 3, torch.randn(4, 6, device=device) * 3
    return a.to(dtypes[0]), b.to(dtypes[1])


def outcome(function, *operands):
    """The dtype of the result, or that there is none."""
    try:
        return function(*operands).dtype
    except (RuntimeError, TypeError):
        return "refused"


@every_low
def test_result_dtypes_are_torchs(low, device):
    """For every pair of dtypes: floats are cast, float64 and integers are not, and what then differs is refused."""
    for dtypes in itertools.product(DTYPES, repeat=2):
        a, b = pair(dtypes, device)
        if device == "cuda" and not (a.is_floating_point() and b.is_floating_point()):
            continue  # torch has no integer product on CUDA
        with torch.autocast(device, dtype=low):
            assert torch.get_autocast_dtype(device) == low
            assert outcome(ops.matmul, a, b) == outcome(torch.matmul, a, b), dtypes
            assert outcome(ops.linear, a, b.t()) == outcome(torchs_linear, a, b.t()), dtypes
            bias = torch.randn(6, device=device).to(dtypes[0])
            assert outcome(ops.linear, a, b.t(), bias) == outcome(torchs_linear, a, b.t(), bias), dtypes


@every_low
def test_values_are_those_of_cast_operands(low, device):
    a, b = pair((torch.float32, torch.float32), device)
    bias = torch.randn(6, device=device)
    product, layer = ops.matmul(a.to(low), b.to(low)), ops.linear(a.to(low), b.t().to(low), bias.to(low))
    with torch.autocast(device, dtype=low):
        assert_same_bits(torch_reduce.matmul(a, b), product)
        assert_same_bits(torch_reduce.matmul(a, b.to(low)), product)
        assert_same_bits(
            torch_reduce.matmul(a.to(low), b, variant="tiled", tile_size=8), ops.matmul(a.to(low), b.to(low), "tiled")
        )
        assert_same_bits(torch_reduce.linear(a, b.t(), bias), layer)
        with torch.autocast(device, enabled=False):
            assert torch_reduce.matmul(a, b).dtype == torch.float32
            assert torch_reduce.linear(a, b.t(), bias).dtype == torch.float32
    assert torch_reduce.matmul(a, b).dtype == torch.float32


def test_another_devices_autocast_changes_nothing():
    a, b = pair((torch.float32, torch.float32), "cpu")
    with torch.autocast("cuda", dtype=torch.float16, enabled=torch.cuda.is_available()):
        assert ops.matmul(a, b).dtype == torch.float32


@every_low
def test_gradients_are_torchs(low, device):
    """Leaves of float32 get gradients of float32, through the casts."""
    results = []
    for matmul, linear in ((torch.matmul, torchs_linear), (ops.matmul, ops.linear)):
        torch.manual_seed(0)
        x, w, v, bias = (torch.randn(s, device=device, requires_grad=True) for s in ((7, 8), (6, 8), (6, 5), (6,)))
        with torch.autocast(device, dtype=low):
            y = matmul(linear(x, w, bias).relu(), v)
        assert y.dtype == low
        results.append(torch.autograd.grad(y.float().square().mean(), (x, w, v, bias)))
    for theirs, ours in zip(*results, strict=True):
        assert ours.dtype == theirs.dtype == torch.float32
        torch.testing.assert_close(ours, theirs, rtol=5e-2, atol=5e-2)


def test_a_weight_is_cast_once_in_a_region(device):
    class Casts(TorchDispatchMode):
        count = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.count += func is torch.ops.aten._to_copy.default
            return func(*args, **(kwargs or {}))

    x = torch.randn(3, 8, device=device).bfloat16()
    w, bias = torch.randn(8, 8, device=device, requires_grad=True), torch.randn(8, device=device, requires_grad=True)
    with torch.autocast(device, dtype=torch.bfloat16), Casts() as casts:
        for _ in range(3):
            x = ops.linear(x, w, bias).detach()
    assert casts.count == 2


@every_low
@pytest.mark.filterwarnings("ignore:Mismatch dtype")
def test_norms_take_weights_that_are_wider_than_rows(low, device):
    """As in a model whose parameters are float32."""
    weight, bias = torch.randn(9, device=device, requires_grad=True), torch.randn(9, device=device)
    for dtype in (low, torch.float32, torch.float64):
        x = torch.randn(4, 9, device=device).to(dtype).requires_grad_()
        w, b = (weight.double(), bias.double()) if dtype == torch.float64 else (weight, bias)
        for ours, theirs, given in (
            (torch_reduce.layer_norm, torch.nn.functional.layer_norm, (w, b)),
            (torch_reduce.rms_norm, torch.nn.functional.rms_norm, (w,)),
        ):
            with torch.autocast(device, dtype=low):
                y, expected = ours(x, (9,), *given), theirs(x, (9,), *given)
            assert y.dtype == (torch.float32 if device == "cuda" and dtype == low else dtype)
            assert y.dtype == expected.dtype or ours is torch_reduce.rms_norm  # torch 2.11 rounds it on CUDA, too
            wide = x if dtype == torch.float64 else x.float()
            assert_same_bits(y, ours(wide, (9,), *given).to(y.dtype))
            torch.testing.assert_close(y, expected.to(y.dtype), rtol=2e-2, atol=2e-2)
            gradients = torch.autograd.grad(y.float().square().sum(), (x, weight))
            assert [g.dtype for g in gradients] == [dtype, torch.float32]
    model = torch.nn.Sequential(torch.nn.Linear(9, 9), torch.nn.RMSNorm(9), torch.nn.LayerNorm(9)).to(device)
    x = torch.randn(4, 9, device=device)
    with torch.autocast(device, dtype=low):
        expected, y = model(x), torch_reduce.nn.convert(model)(x)
    assert y.dtype == expected.dtype
    torch.testing.assert_close(y, expected, rtol=2e-2, atol=2e-2)


# Of (3, 4): ours and torch's.
SINGLE = {
    "softmax": (lambda x, c: torch_reduce.softmax(x, -1), lambda x, c: torch.softmax(x, -1)),
    "log_softmax": (lambda x, c: torch_reduce.log_softmax(x, -1), lambda x, c: torch.log_softmax(x, -1)),
    "logsumexp": (lambda x, c: torch_reduce.logsumexp(x, -1), lambda x, c: torch.logsumexp(x, -1)),
    "sum": (lambda x, c: torch_reduce.sum(x), lambda x, c: x.sum()),
    "sum of rows": (lambda x, c: torch_reduce.sum(x, 1), lambda x, c: x.sum(1)),
    "sum by a rung of whole tensors": (lambda x, c: torch_reduce.sum(x, variant="two_pass"), lambda x, c: x.sum()),
    "sum to a dtype": (lambda x, c: torch_reduce.sum(x, dtype=x.dtype), lambda x, c: x.sum(dtype=x.dtype)),
    "mean": (lambda x, c: torch_reduce.mean(x, 1), lambda x, c: x.mean(1)),
    "amax": (lambda x, c: torch_reduce.amax(x, 1), lambda x, c: x.amax(1)),
    "var": (lambda x, c: torch_reduce.var(x, 1), lambda x, c: x.var(1)),
    "std": (lambda x, c: torch_reduce.std(x, 1), lambda x, c: x.std(1)),
    "cross_entropy": (torch_reduce.cross_entropy, torch.nn.functional.cross_entropy),
    "cross_entropy of rows": (
        lambda x, c: torch_reduce.cross_entropy(x, c, reduction="none", label_smoothing=0.1),
        lambda x, c: torch.nn.functional.cross_entropy(x, c, reduction="none", label_smoothing=0.1),
    ),
    "cross_entropy of probabilities": (
        lambda x, c: torch_reduce.cross_entropy(x, x, reduction="sum"),
        lambda x, c: torch.nn.functional.cross_entropy(x, x, reduction="sum"),
    ),
} | {
    f"norm {order}": (
        lambda x, c, order=order: torch_reduce.norm(x, order, 1),
        lambda x, c, order=order: torch.linalg.vector_norm(x, order, 1),
    )
    for order in (2, 1, 0, float("inf"))
}


@pytest.mark.parametrize("name", SINGLE)
def test_what_is_float32_on_cuda_alone(name):
    """By torch's tensors that have a device and no data, so that no GPU is needed."""
    ours, theirs = SINGLE[name]
    was = {device: torch.is_autocast_enabled(device) for device in ("cpu", "cuda")}
    try:
        for device, dtype in itertools.product(was, (*LOW, torch.float32, torch.float64)):
            torch.set_autocast_enabled(device, True)
            with FakeTensorMode():
                x, classes = torch.empty(3, 4, device=device, dtype=dtype), torch.zeros(3, dtype=int, device=device)
                assert ours(x, classes).dtype == theirs(x, classes).dtype, (device, dtype)
                if name == "softmax":
                    assert torch_reduce.softmax(x, -1, dtype=dtype).dtype == dtype
                    with torch_reduce.batch_invariant():
                        assert torch.ops.aten._softmax(x, -1, False).dtype == dtype
    finally:
        for device, enabled in was.items():
            torch.set_autocast_enabled(device, enabled)


@pytest.mark.cuda
@every_low
def test_sums_of_16_bit_floats_are_rounded_to_float32(low):
    x = torch.randn(7, 300, device="cuda").to(low).requires_grad_()
    expected = torch_reduce.sum(x, 1, dtype=torch.float32), torch_reduce.norm(x.float(), 2, 1)
    with torch.autocast("cuda", dtype=low):
        actual = torch_reduce.sum(x, 1), torch_reduce.norm(x, 2, 1)
        whole = torch_reduce.sum(x, variant="two_pass")
    assert_same_bits(whole, torch_reduce.sum(x.float(), variant="two_pass"))
    for a, e in zip(actual, expected, strict=True):
        assert_same_bits(a, e)
        assert torch.autograd.grad(a.sum(), x)[0].dtype == low


# What torch computes below autocast and does not cast.
NOT_CAST = {
    "dot": lambda x: torch.dot(x[0], x[1]),
    "vdot": lambda x: torch.vdot(x[0], x[1]),
    "tensordot": lambda x: torch.tensordot(x, x),
    "mv": lambda x: torch.ops.aten.mv(x, x[0]),
    "addmv": lambda x: torch.ops.aten.addmv(x[:, 0], x, x[0]),
    "trace": torch.trace,
    "nansum": torch.nansum,
    "layer norm": lambda x: torch.ops.aten.native_layer_norm(x, [9], None, None, 1e-5)[0],
    "convolution": lambda x: torch.ops.aten.convolution_backward(
        x[None], x[None], x[:, :, None], [0], [1], [0], [1], False, [0], 1, [True, True, False]
    )[1],
}


@every_low
@pytest.mark.parametrize("name", NOT_CAST)
def test_the_mode_casts_what_torch_casts(name, low, device):
    function = NOT_CAST[name]
    for dtype in (torch.float32, low):
        x = torch.randn(9, 9, device=device).to(dtype)
        with torch_reduce.batch_invariant():
            expected = function(x)
            with torch.autocast(device, dtype=low):
                actual = function(x)
        with torch.autocast(device, dtype=low):
            if function(x).dtype == dtype:  # on CUDA autocast has more in its lists
                assert_same_bits(actual, expected, name)
            assert actual.dtype == function(x).dtype


def test_integers_stay_integers(device):
    a, b = torch.arange(6, device=device).view(2, 3), torch.arange(12, device=device).view(3, 4)
    with torch.autocast(device, dtype=torch.bfloat16):
        for dtype in (torch.int32, torch.int64):
            assert_same_bits(ops.matmul(a.to(dtype), b.to(dtype)), ops.matmul(a.to(dtype), b.to(dtype), "naive"))
            assert ops.linear(a.to(dtype), b.t().to(dtype)).dtype == dtype
        a8, b8, bias = a.to(torch.int8), b.to(torch.int8), torch.ones(4, dtype=torch.int32, device=device)
        assert_same_bits(ops.matmul(a8, b8), ops.matmul(a, b).int())
        assert_same_bits(ops.linear(a8, b8.t(), bias), ops.matmul(a, b).int() + 1)
        with pytest.raises(TypeError, match="one dtype, got Long and BFloat16"):
            ops.matmul(a, b.float())
        with pytest.raises(TypeError, match="one dtype, got BFloat16, BFloat16 and Int"):
            ops.linear(a.float(), b.t().float(), torch.ones(4, dtype=torch.int32, device=device))
        with pytest.raises(TypeError, match="one dtype, got Double and BFloat16"):
            ops.matmul(a.double(), b.float())


@pytest.mark.filterwarnings("ignore:In CPU autocast")
def test_an_autocast_dtype_that_torch_refuses():
    """torch warns and disables autocast for a dtype that it does not cast to, such as an integer."""
    a, b = pair((torch.float32, torch.float32), "cpu")
    with torch.autocast("cpu", dtype=torch.int32):
        assert ops.matmul(a, b).dtype == torch.matmul(a, b).dtype == torch.float32


def test_compile(device):
    def region(x, w, bias):
        with torch.autocast(device, dtype=torch.bfloat16):
            return torch_reduce.matmul(torch_reduce.linear(x, w, bias).relu(), w)

    torch._dynamo.reset()
    compiled = torch.compile(region, fullgraph=True, backend="aot_eager", dynamic=True)
    w, bias = torch.randn(8, 8, device=device, requires_grad=True), torch.randn(8, device=device, requires_grad=True)
    for rows in (3, 17):
        x = torch.randn(rows, 8, device=device)
        found = compiled(x, w, bias)
        assert_same_bits(found, region(x, w, bias))
        ours = torch.autograd.grad(found.float().sum(), (w, bias))
        for a, b in zip(ours, torch.autograd.grad(region(x, w, bias).float().sum(), (w, bias)), strict=True):
            torch.testing.assert_close(a, b, rtol=2e-2, atol=2e-2)
    torch._dynamo.reset()
