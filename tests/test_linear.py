"""linear: the shapes and gradients of torch.nn.functional.linear, the bits of matmul's sums and one addition."""

import itertools

import orders
import pytest
import tables
import torch
from bits import assert_same_bits
from cases import generator
from tables import every_dtype, every_matmul_variant
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import gradcheck, gradgradcheck
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

import torch_reduce
from torch_reduce._check import result_dtype

ops = torch.ops.treduce


def torchs(given, weight, bias=None):
    """torch.nn.functional.linear, which fails for a matrix, a vector as its weight and a bias."""
    if weight.dim() == 1 and bias is not None:
        return functional.linear(given, weight) + bias
    return functional.linear(given, weight, bias)


# input, weight
SHAPES = [
    ((3,), (4, 3)),
    ((3,), (3,)),
    ((2, 3), (4, 3)),
    ((2, 3), (3,)),
    ((5, 2, 3), (4, 3)),
    ((5, 2, 3), (3,)),
    ((2, 1, 5, 3), (4, 3)),
    ((1, 3), (1, 3)),
    ((0, 3), (4, 3)),
    ((5, 0, 3), (4, 3)),
    ((2, 0), (4, 0)),
    ((2, 3), (0, 3)),
    ((70, 40), (33, 40)),
]
every_shape = pytest.mark.parametrize("shapes", SHAPES, ids=lambda s: " ".join("x".join(map(str, x)) for x in s))
with_and_without_bias = pytest.mark.parametrize("has_bias", [False, True], ids=["", "bias"])


def tensors(shapes, dtype=torch.float64, device="cpu", has_bias=True, grad=False):
    """Input, weight and bias, or None."""
    g = generator(3)

    def random(shape, dtype=dtype):
        x = torch.randn(shape, generator=g, dtype=torch.float64)
        x = (x * 10 if not dtype.is_floating_point else x).to(device, dtype)
        return x.requires_grad_() if grad else x

    given, weight = (random(shape) for shape in shapes)
    return given, weight, random(shapes[1][:-1], result_dtype("matmul", dtype)) if has_bias else None


def runnable(variant, device, dtype=torch.float64):
    if not tables.runs(variant, device, dtype):
        pytest.skip(f"{variant.name} does not take {dtype} here")


@with_and_without_bias
@every_shape
def test_values_are_torchs(shapes, has_bias, device, poisoned):
    for dtype in (torch.float64, torch.float32, torch.int64, torch.int32, torch.int8):
        operands = tensors(shapes, dtype, has_bias=has_bias)
        expected = torchs(*(x if dtype != torch.int8 or x is None else x.int() for x in operands))
        found = ops.linear(*(x if x is None else x.to(device) for x in operands))
        assert found.shape == expected.shape and found.dtype == result_dtype("matmul", dtype) and found.is_contiguous()
        tolerance = {"rtol": 1e-5, "atol": 1e-4} if dtype == torch.float32 else {}
        torch.testing.assert_close(found.cpu(), expected, **tolerance)


def added_once(given, weight, bias, variant):
    """What linear promises: the bias added to the sums as they were accumulated, then one rounding. None where nobody
    shows those: 16-bit results of tensor cores (see test_matmul_cuda.py)."""
    if given.dtype not in (torch.float16, torch.bfloat16):
        return ops.matmul(given, weight.t(), variant.name) + bias
    if not tables.has_cpus_bits(variant, given, weight.t()):
        return None
    # In k order the sums are those of the widened operands.
    return (ops.matmul(given.float(), weight.float().t(), "naive") + bias.float()).to(given.dtype)


@every_matmul_variant
def test_bits_are_those_of_matmul_and_an_addition_before_they_are_rounded(variant, device, poisoned):
    for name, shapes in itertools.product(variant.dtypes, [*SHAPES, ((3, 130, 600), (271, 600)), ((301, 70), (1, 70))]):
        dtype = tables.DTYPE_NAMES[name]
        if not tables.runs(variant, device, dtype):
            continue
        given, weight, bias = tensors(shapes, dtype, device)
        what = f"{shapes} {dtype}"
        product = ops.matmul(given, weight.t(), variant.name)
        assert_same_bits(ops.linear(given, weight, None, variant.name), product, what)
        found, expected = ops.linear(given, weight, bias, variant.name), added_once(given, weight, bias, variant)
        if expected is not None:
            assert_same_bits(found, expected, what)
        if given.size(-1) == 0:
            assert_same_bits(found, bias.expand(product.shape).contiguous(), what)


@every_dtype((torch.float32, torch.float16, torch.bfloat16))
def test_bits_of_the_cpu_are_the_models(dtype):
    twice = 0
    for m, k, n in ((1, 1, 1), (1, 300, 41), (40, 300, 1), (33, 31, 65), (97, 257, 61), (5, 7, 272)):
        given, weight, bias = tensors(((m, k), (n, k)), dtype)
        expected = orders.linear(given, weight, bias)
        assert_same_bits(ops.linear(given, weight, bias), expected, f"{(m, k, n)}")
        twice += (ops.matmul(given, weight.t()) + bias != expected).sum().item()
    assert (twice > 100) == (dtype != torch.float32)  # two roundings would have been seen


@every_matmul_variant
def test_a_bias_is_read_where_it_lies_or_copied(variant, device, poisoned):
    for name, (m, k, n) in itertools.product(variant.dtypes, ((70, 40, 33), (1, 40, 72), (130, 72, 264))):
        dtype = tables.DTYPE_NAMES[name]
        if not tables.runs(variant, device, dtype):
            continue
        given, weight, _ = tensors(((m, k), (n, k)), dtype, device)
        base = tensors(((2 * n + 1, 1),) * 2, dtype, device)[2]
        views = {"at 1": base[1 : n + 1], "every other": base[: 2 * n : 2], "one": base[:1].expand(n)}
        if dtype.is_floating_point:
            views["negated"] = torch._neg_view(base[:n])
        for what, bias in views.items():
            expected = ops.linear(given, weight, bias.clone().resolve_neg(), variant.name)
            assert_same_bits(ops.linear(given, weight, bias, variant.name), expected, f"{what} {dtype}")


@every_matmul_variant
def test_a_row_does_not_depend_on_the_rows_beside_it(variant, device):
    for name in variant.dtypes:
        dtype = tables.DTYPE_NAMES[name]
        if not tables.runs(variant, device, dtype):
            continue
        given, weight, bias = tensors(((300, 70), (65, 70)), dtype, device)
        whole = ops.linear(given, weight, bias, variant.name)
        for rows in (slice(0, 1), slice(7, 24), slice(130, 262)):
            assert_same_bits(ops.linear(given[rows], weight, bias, variant.name), whole[rows], f"{rows} {dtype}")
        assert_same_bits(ops.linear(given[9], weight, bias, variant.name), whole[9], f"{dtype}")
        one = ops.linear(given, weight[3], bias[3], variant.name)
        assert_same_bits(one, whole[:, 3].contiguous(), f"{dtype}")


@every_matmul_variant
def test_nan_and_infinity_in_a_bias_stay_in_their_column(variant, device):
    for name in variant.dtypes:
        dtype = tables.DTYPE_NAMES[name]
        if not (dtype.is_floating_point and tables.runs(variant, device, dtype)):
            continue
        given, weight, bias = tensors(((70, 40), (131, 40)), dtype, device)
        clean = ops.linear(given, weight, bias, variant.name)
        for column, value in ((0, float("nan")), (64, float("inf")), (130, -float("inf"))):
            other = bias.clone()
            other[column] = value
            found = ops.linear(given, weight, other, variant.name)
            assert_same_bits(found[:, column].contiguous(), torch.full_like(found[:, column], value), f"{dtype}")
            found[:, column] = clean[:, column]
            assert_same_bits(found, clean, f"{value} {dtype}")


@every_matmul_variant
def test_no_bias_is_not_a_bias_of_zero(variant, device):
    """Products that vanish below zero: a sum of -0 stays, and becomes +0 only where +0 is added."""
    if not tables.runs(variant, device):
        pytest.skip(f"{variant.name} does not run here")
    given, weight = torch.full((3, 21), 1e-30, device=device), torch.full((5, 21), -1e-30, device=device)
    sums = ops.matmul(given, weight.t(), variant.name)
    assert_same_bits(ops.linear(given, weight, None, variant.name), sums)
    if variant.on_cpu or device == "cpu":
        assert sums.signbit().all()
    for zero in (0.0, -0.0):
        bias = torch.full((5,), zero, device=device)
        assert_same_bits(ops.linear(given, weight, bias, variant.name), sums + bias)


@every_matmul_variant
def test_operands_are_read_where_they_lie(variant, device):
    runnable(variant, device, torch.float32)
    base = torch.randn(60, 90, device=device)
    views = {
        "transposed": (base.t()[:50], torch.randn(60, 33, device=device).t()),
        "sliced": (base[3:40, 5:37], torch.randn(20, 64, device=device)[:, ::2]),
        "permuted": (base.view(3, 20, 90).permute(1, 0, 2), base[7:30]),
        "expanded": (base[:1].expand(20, 90), base[3:4].expand(5, 90)),
        "one_bias": (base, base[:9]),
    }
    for name, (given, weight) in views.items():
        bias = torch.randn(1, device=device).expand(weight.size(0))
        found = ops.linear(given, weight, bias, variant.name)
        assert found.is_contiguous()
        assert_same_bits(found, ops.linear(given.clone(), weight.contiguous(), bias.clone(), variant.name), name)


# Gradients.


@every_matmul_variant
@with_and_without_bias
@every_shape
def test_gradients_are_torchs(shapes, has_bias, variant, device):
    runnable(variant, device)
    operands = tensors(shapes, device=device, has_bias=has_bias, grad=True)
    leaves = [x for x in operands if x is not None]
    results = []
    for function in (torchs, lambda *given: ops.linear(*given, variant=variant.name)):
        y = function(*operands)
        weights = torch.arange(1.0, y.numel() + 1, dtype=y.dtype, device=device).view(y.shape)
        first = torch.autograd.grad((y * weights).pow(2).sum(), leaves, create_graph=True)
        second = torch.autograd.grad(first[0].pow(2).sum() + first[1].sin().sum(), leaves)
        results.append((*first, *second))
    for theirs, ours in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs)


@every_matmul_variant
def test_gradcheck(variant, device):
    runnable(variant, device)
    function = lambda *given: ops.linear(*given, variant=variant.name)  # noqa: E731
    for shapes, has_bias in itertools.product(SHAPES[:8], (False, True)):
        assert gradcheck(function, tensors(shapes, device=device, has_bias=has_bias, grad=True))
    for shapes in (SHAPES[0], SHAPES[2], SHAPES[4], SHAPES[5]):
        assert gradgradcheck(function, tensors(shapes, device=device, grad=True))


@every_matmul_variant
def test_gradients_are_matmul_of_the_same_variant_and_sum(variant, device):
    runnable(variant, device, torch.float32)
    given, weight, bias = tensors(((7, 37, 19), (23, 19)), torch.float32, device, grad=True)
    grad = torch.randn(7, 37, 23, device=device)
    ops.linear(given, weight, bias, variant.name).backward(grad)
    rows = grad.flatten(0, 1)
    assert_same_bits(given.grad, ops.matmul(grad, weight.detach(), variant.name))
    assert_same_bits(weight.grad, ops.matmul(rows.t(), given.detach().flatten(0, 1), variant.name))
    assert_same_bits(bias.grad, ops.sum(grad, dim=(0, 1)))


class Calls(TorchDispatchMode):
    """The names of the ops that are called within it."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(str(func).removesuffix(".default"))
        return func(*args, **(kwargs or {}))


def test_nothing_is_copied(device):
    """Forward and backward are one product each and views; the bias' gradient is one sum."""
    for shapes in (((7, 37, 19), (23, 19)), ((37, 19), (23, 19)), ((19,), (23, 19)), ((7, 5, 19), (19,))):
        operands = tensors(shapes, torch.float32, device, grad=True)
        with Calls() as forward:
            y = ops.linear(*operands)
        grad = torch.randn_like(y)
        with Calls() as backward:
            torch.autograd.grad(y, operands, grad)
        assert forward.names == ["treduce::linear"] or forward.names == ["treduce.linear"]
        work = [name for name in backward.names if name.startswith("treduce")]
        assert work == ["treduce.matmul"] * 2 + ["treduce.sum"] * (len(shapes[0]) > 1)
        views = {"aten.t", "aten.view", "aten.transpose.int", "aten.unsqueeze", "aten._unsafe_view", "aten.detach"}
        assert set(backward.names) - set(work) <= views, backward.names


def test_only_the_gradients_that_are_asked_for(device):
    for wants in itertools.product((False, True), repeat=3):
        operands = [x.requires_grad_(want) for x, want in zip(tensors(SHAPES[4], device=device), wants, strict=True)]
        y = ops.linear(*operands)
        assert y.requires_grad == any(wants)
        if y.requires_grad:
            assert y.grad_fn.name() == "TreduceLinearBackward"
            y.sum().backward()
        assert tuple(x.grad is not None for x in operands) == wants
    with torch.no_grad():
        assert not ops.linear(*operands).requires_grad


def test_what_is_kept_for_the_backward_pass(device):
    """Of a frozen weight's input, and of a constant input's weight, nothing."""
    for wants_input, wants_weight in itertools.product((False, True), repeat=2):
        given, weight, bias = tensors(SHAPES[2], device=device)
        given.requires_grad_(wants_input)
        weight.requires_grad_(wants_weight)
        y = ops.linear(given, weight, bias.requires_grad_())
        with torch.no_grad():
            if not wants_weight:
                given.add_(1)  # harmless: only the weight's gradient needs it
            if not wants_input:
                weight.add_(1)
            bias.add_(1)
        y.sum().backward()
        if wants_weight:
            y = ops.linear(given, weight, bias)
            with torch.no_grad():
                given.add_(1)
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                y.sum().backward()


def test_forward_mode_is_torchs(device):
    operands = tensors(SHAPES[2], device=device)
    forward = torch.autograd.forward_ad
    with forward.dual_level():
        for i in range(3):
            given = list(operands)
            given[i] = forward.make_dual(given[i], torch.ones_like(given[i]))
            actual = forward.unpack_dual(ops.linear(*given)).tangent
            expected = forward.unpack_dual(torch.nn.functional.linear(*given)).tangent
            torch.testing.assert_close(actual, expected, atol=1e-4, rtol=1e-4)


def test_backward_twice_needs_retain_graph(device):
    operands = tensors(SHAPES[2], device=device, grad=True)
    y = ops.linear(*operands).sum()
    y.backward(retain_graph=True)
    y.backward()
    with pytest.raises(RuntimeError, match="second time"):
        y.backward()


# A citizen of torch.


def test_opcheck(device):
    for shapes, has_bias in itertools.product((SHAPES[0], SHAPES[2], SHAPES[4], SHAPES[5]), (False, True)):
        torch.library.opcheck(ops.linear.default, tensors(shapes, torch.float32, device, has_bias, grad=True))
    torch.library.opcheck(ops.linear.default, (*tensors(SHAPES[2], torch.float64, device, grad=True), "tiled"))
    torch.library.opcheck(ops.linear.default, tensors(SHAPES[2], torch.int64, device))
    torch.library.opcheck(ops.linear.default, tensors(SHAPES[8], torch.float32, device))


def test_meta_says_what_the_kernel_does():
    for shapes, has_bias in itertools.product(SHAPES, (False, True)):
        operands = tensors(shapes, torch.bfloat16, has_bias=has_bias)
        real = ops.linear(*operands)
        meta = ops.linear(*(x if x is None else x.to("meta") for x in operands))
        assert (meta.dtype, meta.shape, meta.stride()) == (real.dtype, real.shape, real.stride())
    with FakeTensorMode():
        assert ops.linear(torch.empty(7, 2, 3), torch.empty(4, 3)).shape == (7, 2, 4)


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def block(x, w, b, v):
    """Through the package, as users write it."""
    return (
        torch_reduce.linear(torch_reduce.linear(x, w, b, variant="naive").relu(), v)
        + torch_reduce.matmul(x, x.mT).sum()
    )


@pytest.mark.parametrize("dynamic", [False, True])
def test_compile_without_graph_breaks(dynamic, device):
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(block, fullgraph=True, backend=backend, dynamic=dynamic)
    w, b, v = (torch.randn(shape, device=device) for shape in ((5, 6), (5,), (4, 5)))
    for batch, rows in ((2, 3), (7, 33), (4, 9)):
        x = torch.randn(batch, rows, 6, device=device)
        assert_same_bits(compiled(x, w, b, v), block(x, w, b, v))
    assert len(graphs) == 1 or not dynamic


def test_compile_with_gradients(device):
    compiled = torch.compile(block, fullgraph=True, backend="aot_eager", dynamic=True)
    w, b, v = (torch.randn(shape, device=device, requires_grad=True) for shape in ((5, 6), (5,), (4, 5)))
    for batch, rows in ((2, 3), (7, 33)):
        x = torch.randn(batch, rows, 6, device=device, requires_grad=True)
        leaves = x, w, b, v
        eager = torch.autograd.grad(block(*leaves).square().mean(), leaves)
        traced = torch.autograd.grad(compiled(*leaves).square().mean(), leaves)
        for ours, theirs in zip(traced, eager, strict=True):
            assert_same_bits(ours, theirs)


@pytest.mark.slow
def test_compile_with_inductor(device):
    compiled = torch.compile(lambda x, w, b: ops.linear(x.sin(), w, b).relu() * 2, fullgraph=True)
    operands = tensors(((70, 40), (33, 40)), torch.float32, device, grad=True)
    eager = ops.linear(operands[0].sin(), *operands[1:]).relu() * 2
    found = compiled(*operands)
    torch.testing.assert_close(found, eager)
    for ours, theirs in zip(
        torch.autograd.grad(found.sum(), operands), torch.autograd.grad(eager.sum(), operands), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


class Layer(torch.nn.Linear):
    def forward(self, x):
        return torch_reduce.linear(x, self.weight, self.bias)


def test_export(device):
    layer = Layer(6, 5).to(device)
    rows = torch.export.Dim("rows", min=2, max=1000)
    program = torch.export.export(layer, (torch.randn(6, 6, device=device),), dynamic_shapes={"x": {0: rows}})
    targets = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    assert [t for t in targets if t.startswith("treduce")] == ["treduce.linear.default"]
    for m in (6, 33):
        x = torch.randn(m, 6, device=device)
        assert_same_bits(program.module()(x), layer(x))


def test_a_layer_trains_as_torchs(device):
    torch.manual_seed(1)
    theirs = torch.nn.Linear(6, 3, dtype=torch.float64, device=device)
    ours = Layer(6, 3, dtype=torch.float64, device=device)
    ours.load_state_dict(theirs.state_dict())
    x, y = (torch.randn(20, width, dtype=torch.float64, device=device) for width in (6, 3))
    for _ in range(5):
        for layer in (theirs, ours):
            grads = torch.autograd.grad((layer(x) - y).square().mean(), list(layer.parameters()))
            with torch.no_grad():
                for parameter, grad in zip(layer.parameters(), grads, strict=True):
                    parameter -= 0.1 * grad
    torch.testing.assert_close(list(ours.parameters()), list(theirs.parameters()))


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_function_transforms(device):
    given, weight, bias = tensors(((4, 2, 3), (5, 3)), device=device)
    loss = lambda w, b, x: ops.linear(x, w, b).square().sum()  # noqa: E731
    found = torch.func.grad(loss, argnums=(0, 1))(weight, bias, given)
    expected = torch.func.grad(lambda w, b, x: torchs(x, w, b).square().sum(), argnums=(0, 1))(weight, bias, given)
    torch.testing.assert_close(found, expected)
    # vmap runs such ops one sample after another.
    torch.testing.assert_close(torch.vmap(lambda x: ops.linear(x, weight, bias))(given), torchs(given, weight, bias))
    torch.testing.assert_close(torch.vmap(lambda x: ops.matmul(x, weight.t()))(given), given @ weight.t())
    torch.testing.assert_close(
        torch.func.jacrev(lambda w: ops.linear(given[0, 0], w, bias))(weight),
        torch.func.jacrev(lambda w: torchs(given[0, 0], w, bias))(weight),
    )


def test_schema():
    schema = 'treduce::linear(Tensor input, Tensor weight, Tensor? bias=None, str variant="auto") -> Tensor'
    assert str(ops.linear.default._schema) == schema


def test_the_package_calls_the_op(device):
    given, weight, bias = tensors(SHAPES[4], torch.float32, device)
    for variant in ("auto", "naive", "tiled"):
        expected = ops.linear(given, weight, bias, variant)
        assert_same_bits(torch_reduce.linear(given, weight, bias, variant=variant), expected)
        assert_same_bits(torch_reduce.linear(given, weight, bias=bias, variant=variant), expected)
        assert_same_bits(
            torch_reduce.linear(input=given, weight=weight, variant=variant), ops.linear(given, weight, None, variant)
        )
    with pytest.raises(TypeError):
        torch_reduce.linear(given, weight, bias, "auto")


# Bad input.


def refused(kind, match, *operands, shapes=True):
    """In a sentence with every shape, by the CPU or CUDA and by Meta alike."""
    for where in (lambda x: x, lambda x: x if x is None else x.to("meta")):
        with pytest.raises(kind, match=match) as error:
            ops.linear(*map(where, operands))
        sentence = str(error.value).splitlines()[0]
        for x in operands if shapes else ():
            assert x is None or str(list(x.shape)) in sentence, sentence


def test_shapes_that_do_not_fit(device):
    def ones(*shape):
        return torch.ones(shape, device=device)

    refused(ValueError, "in_features of input and weight, 3 and 4, differ", ones(2, 3), ones(5, 4), None)
    refused(ValueError, "in_features of input and weight, 3 and 5, differ", ones(2, 3), ones(5), ones())
    refused(ValueError, "in_features of input and weight, 0 and 1, differ", ones(2, 0), ones(5, 1), ones(5))
    refused(ValueError, r"takes an input \(\.\.\., in_features\)", ones(), ones(3), None)
    refused(ValueError, r"a weight \(out_features, in_features\)", ones(3), ones(), None)
    refused(ValueError, r"a weight \(out_features, in_features\)", ones(2, 3), ones(2, 4, 3), ones(4))
    for bias in (ones(3), ones(1), ones(2, 4), ones(1, 4), ones()):
        refused(ValueError, r"takes a bias \(out_features\)", ones(2, 3), ones(4, 3), bias)
    refused(ValueError, r"takes a bias \(out_features\), or \(\)", ones(2, 3), ones(3), ones(1))


def test_dtypes_and_devices_that_do_not_fit(device):
    def ones(*shape, dtype=torch.float32):
        return torch.ones(shape, device=device, dtype=dtype)

    refused(
        TypeError, "one dtype, got Float and Double", ones(2, 3), ones(4, 3, dtype=torch.float64), None, shapes=False
    )
    refused(
        TypeError, "one dtype, got Half, Half and Float",
        ones(2, 3, dtype=torch.float16), ones(4, 3, dtype=torch.float16), ones(4), shapes=False,
    )  # fmt: skip
    for dtype in (torch.bool, torch.uint16, torch.complex32, torch.float8_e4m3fn):
        given = torch.zeros(2, 3, device=device).to(dtype), torch.zeros(4, 3, device=device).to(dtype), None
        refused(
            TypeError, "linear takes float32, float64, float16, .* int64, complex64 and complex128, got", *given,
            shapes=False,
        )  # fmt: skip
    for dtype in (torch.int8, torch.int64, torch.float32):
        given = ones(2, 3, dtype=torch.int8), ones(4, 3, dtype=torch.int8), ones(4, dtype=dtype)
        refused(TypeError, "int8 takes a bias of int32, got", *given, shapes=False)
    given = ones(2, 3, dtype=torch.int8), ones(4, 3, dtype=torch.int8), ones(4, dtype=torch.int32).to("meta")
    with pytest.raises((ValueError, NotImplementedError), match=r"one device.*meta|Meta"):
        ops.linear(*given)
    for operands in ((ones(2, 3), ones(4, 3).to("meta"), None), (ones(2, 3), ones(4, 3), ones(4).to("meta"))):
        with pytest.raises((ValueError, NotImplementedError), match=r"one device.*meta|Meta"):
            ops.linear(*operands)
    with pytest.raises((NotImplementedError, TypeError)):
        ops.linear(ones(2, 3).to_sparse(), ones(4, 3))


@pytest.mark.cuda
def test_a_cpu_tensor_beside_a_cuda_tensor():
    x, w, b = torch.ones(2, 3), torch.ones(4, 3), torch.ones(4)
    for operands in ((x, w.cuda(), None), (x.cuda(), w, None), (x.cuda(), w.cuda(), b), (x, w, b.cuda())):
        with pytest.raises(ValueError, match=r"one device.*(cpu|cuda)"):
            ops.linear(*operands)


def test_variants_that_do_not_fit(device):
    x, w = torch.ones(2, 3, device=device), torch.ones(4, 3, device=device)
    with pytest.raises(ValueError, match="closest names are 'tiled'"):
        ops.linear(x, w, None, "tilde")
    for row in tables.MATMUL_VARIANTS:
        for name, dtype in tables.DTYPE_NAMES.items():
            if name in tables.MATMUL_VARIANTS[0].dtypes and name not in row.dtypes:
                for function in (lambda x, w, v: ops.linear(x, w, None, v), lambda x, w, v: ops.matmul(x, w.t(), v)):
                    for where in (device, "meta"):
                        with pytest.raises(TypeError, match=f"'{row.name}' of matmul takes .*, got {name}"):
                            function(x.to(where, dtype), w.to(where, dtype), row.name)
