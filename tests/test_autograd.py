"""Gradients: against finite differences to second order, and against torch's own."""

import itertools

import pytest
import tables
import torch
from bits import assert_same_bits
from tables import call, every_add_variant, every_matmul_variant, every_reduction, every_variant
from torch.autograd import gradcheck, gradgradcheck

import torch_reduce


def runnable(variant, device, dtype=torch.float64):
    tables.needs_dtype(variant, dtype)
    if device == "cuda":
        tables.needs_chip(variant)


def double(*shape, device="cpu", seed=0):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=g, dtype=torch.float64).to(device).requires_grad_()


@every_variant
@every_reduction
def test_gradcheck_of_reductions(op, variant, device):
    runnable(variant, device)
    nondet = 0.0 if variant.deterministic else 1e-12
    for x in (double(7, device=device), double(2, 3, device=device).t()):
        x = x.detach().requires_grad_()
        assert gradcheck(lambda x: call(op, x, variant.name), x, nondet_tol=nondet)
        assert gradgradcheck(lambda x: call(op, x, variant.name), x, nondet_tol=nondet)


@every_reduction
@pytest.mark.parametrize("shape", [(), (1,), (5,), (2, 3, 4), (0,), (3, 0)])
def test_gradients_of_reductions_are_torchs(op, shape, device):
    if 0 in shape and op.startswith("a"):
        return
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
        x = torch.randn(shape, dtype=dtype, device=device)
        grads = []
        for function in (getattr(torch, op), lambda x: call(op, x)):
            leaf = x.clone().requires_grad_()
            (function(leaf) * 3).backward()
            grads.append(leaf.grad)
        assert grads[1].shape == grads[0].shape and grads[1].dtype == grads[0].dtype
        torch.testing.assert_close(grads[1], grads[0], equal_nan=True)


@pytest.mark.parametrize("op", ["amax", "amin"])
def test_ties_share_the_gradient(op, device):
    for values in ([2.0, 5.0, 5.0, 1.0, 5.0], [1.0] * 7, [-0.0, 0.0, -0.0], [1.0, 1.0, 5.0, 5.0]):
        x = torch.tensor(values, dtype=torch.float64, device=device)
        grads = []
        for function in (getattr(torch, op), lambda x: call(op, x, "v0")):
            leaf = x.clone().requires_grad_()
            function(leaf).backward()
            grads.append(leaf.grad)
        assert torch.equal(grads[0], grads[1]), values


@pytest.mark.parametrize("op", ["amax", "amin"])
def test_ties_share_the_second_gradient(op, device):
    x = torch.tensor([3.0, 3.0, 1.0, 3.0], dtype=torch.float64, device=device)
    results = []
    for function in (getattr(torch, op), lambda x: call(op, x)):
        leaf = x.clone().requires_grad_()
        (first,) = torch.autograd.grad(function(leaf * leaf) ** 2, leaf, create_graph=True)
        (second,) = torch.autograd.grad(first.pow(2).sum(), leaf)
        results.append(second)
    torch.testing.assert_close(results[1], results[0])


@every_reduction
def test_layouts_get_their_gradient(op, device):
    base = torch.randn(6, 8, dtype=torch.float64, device=device)
    views = {
        "transposed": lambda x: x.t(),
        "strided": lambda x: x[::2, 1::3],
        "expanded": lambda x: x[:, :1].expand(6, 5),
        "permuted": lambda x: x.view(2, 3, 8).permute(2, 0, 1),
    }
    for name, view in views.items():
        grads = []
        for function in (getattr(torch, op), lambda x: call(op, x)):
            leaf = base.clone().requires_grad_()
            function(view(leaf)).backward()
            grads.append(leaf.grad)
        torch.testing.assert_close(grads[1], grads[0], msg=lambda m, name=name: f"{name}: {m}")


def test_the_sum_gradient_is_a_view_of_one_number(device):
    """expand, as torch: no memory for a tensor of ones."""
    x = torch.randn(1000, device=device, requires_grad=True)
    y = call("sum", x)
    (grad,) = torch.autograd.grad(y, x)
    assert grad.stride() == (0,)


@every_reduction
def test_who_requires_grad(op, device):
    x = torch.randn(10, device=device)
    assert not call(op, x).requires_grad
    leaf = x.clone().requires_grad_()
    y = call(op, leaf)
    assert y.requires_grad and y.grad_fn is not None and "Treduce" in y.grad_fn.name()
    assert_same_bits(y, call(op, x))
    with torch.no_grad():
        assert not call(op, leaf).requires_grad
    with torch.inference_mode():
        result = call(op, leaf)
        assert not result.requires_grad and result.is_inference()
    assert_same_bits(result.clone(), call(op, x))


def test_integers_have_no_gradient(device):
    x = torch.arange(10, device=device)
    assert not call("sum", x).requires_grad
    with pytest.raises(RuntimeError):
        call("sum", x).backward()


def test_backward_twice_needs_retain_graph(device):
    x = torch.randn(5, device=device, requires_grad=True)
    y = call("amax", x)
    y.backward(retain_graph=True)
    y.backward()
    with pytest.raises(RuntimeError, match="second time"):
        y.backward()
    z = call("amin", x)
    with torch.no_grad():
        x.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.backward()


def test_gradients_accumulate_and_hooks_run(device):
    x = torch.randn(5, device=device, requires_grad=True)
    seen = []
    x.register_hook(lambda grad: seen.append(grad.clone()))
    (call("sum", x) + call("mean", x, "v6")).backward()
    assert len(seen) == 1
    torch.testing.assert_close(x.grad, torch.full((5,), 1.2, device=device))


# Along dims.

DIMS = (None, 0, -1, (0, 2), (1,), (2, 0, 1), ())


@every_reduction
@pytest.mark.parametrize("variant", ["auto", "thread", "compensated", "exact"])
def test_gradcheck_along_dims(op, variant, device):
    for shape in ((3, 4, 2), (1, 5, 1)):
        for dim, keepdim in itertools.product(DIMS, (False, True)):
            x = double(*shape, device=device)
            function = lambda x, dim=dim, keepdim=keepdim: call(op, x, variant, dim=dim, keepdim=keepdim)  # noqa: E731
            assert gradcheck(function, x)
            if variant == "auto":
                assert gradgradcheck(lambda x, function=function: function(x * x), x)


@every_reduction
def test_gradients_along_dims_are_torchs(op, device):
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        x = torch.randn(3, 4, 5, dtype=dtype, device=device)
        for dim, keepdim in itertools.product((0, -1, (0, 2), (2, 1)), (False, True)):
            for view in (
                lambda x: x,
                lambda x: x.permute(2, 0, 1),
                lambda x: x[:, 1:, ::2],
                lambda x: x.expand(2, 3, 4, 5),
            ):
                grads = []
                for function in (getattr(torch, op), lambda x, **kwargs: call(op, x, **kwargs)):
                    leaf = x.clone().requires_grad_()
                    y = function(view(leaf), dim=dim, keepdim=keepdim)
                    weight = torch.arange(1.0, y.numel() + 1, device=device).view(y.shape).to(dtype)
                    (y * weight).sum().backward()
                    grads.append(leaf.grad)
                assert grads[1].dtype == dtype and grads[1].shape == x.shape
                torch.testing.assert_close(grads[1], grads[0])


@pytest.mark.parametrize("op", ["amax", "amin"])
def test_ties_along_dims_share_the_gradient(op, device):
    """Each output's own ties, to second order."""
    x = torch.tensor([[1.0, 3.0, 3.0], [2.0, 2.0, 2.0], [5.0, 1.0, 0.0], [-0.0, 0.0, 0.0]], device=device).double()
    for dim, keepdim in itertools.product((0, 1, (0, 1), None), (False, True)):
        results = []
        for function in (getattr(torch, op), lambda x, **kwargs: call(op, x, **kwargs)):
            leaf = x.clone().requires_grad_()
            y = function(leaf * leaf, keepdim=keepdim, **({} if dim is None else {"dim": dim}))
            (first,) = torch.autograd.grad((y * y).sum(), leaf, create_graph=True)
            (second,) = torch.autograd.grad(first.pow(2).sum(), leaf)
            results.append((first.detach(), second))
        for theirs, ours in zip(*results, strict=True):
            torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("op", ["sum", "mean"])
def test_gradients_through_a_conversion_are_torchs(op, device):
    for source, target in (
        (torch.float16, torch.float32),
        (torch.float32, torch.float64),
        (torch.float64, torch.float16),
        (torch.complex64, torch.complex128),
    ):
        x = torch.randn(4, 5, device=device).to(source)
        for dim in (0, (0, 1)):
            grads = []
            for function in (getattr(torch, op), lambda x, **kwargs: call(op, x, **kwargs)):
                leaf = x.clone().requires_grad_()
                y = function(leaf, dim=dim, dtype=target)
                assert y.dtype == target and y.requires_grad
                y.backward(torch.full_like(y, 2.0))
                grads.append(leaf.grad)
            assert grads[1].dtype == source
            torch.testing.assert_close(grads[1], grads[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_gradient_of_a_mean_has_the_same_bits_everywhere(dtype, device):
    g = torch.Generator().manual_seed(0)
    x, grad = torch.randn(50, 7, generator=g, dtype=dtype), torch.randn(50, generator=g, dtype=dtype)
    leaf = x.to(device).requires_grad_()
    call("mean", leaf, dim=1).backward(grad.to(device))
    factor = torch.tensor(1 / 7, dtype=torch.float64).to(dtype)
    assert torch.equal(leaf.grad.cpu(), (grad * factor)[:, None].expand(50, 7))


def test_the_gradient_of_a_complex_sum_of_real_numbers_is_real(device):
    """Which torch refuses to compute."""
    x = torch.randn(4, 5, device=device, requires_grad=True)
    y = call("sum", x, dim=0, dtype=torch.complex64)
    y.backward(torch.full_like(y, 2 + 3j))
    assert torch.equal(x.grad, torch.full_like(x, 2))


@pytest.mark.parametrize("op", ["sum", "mean"])
def test_gradients_of_complex_sums_are_torchs(op, device):
    g = torch.Generator().manual_seed(0)
    x = torch.randn(3, 4, generator=g, dtype=torch.complex128).to(device).requires_grad_()
    for dim in (None, 0, (0, 1)):
        assert gradcheck(lambda x, dim=dim: call(op, x, dim=dim), x)
        assert gradgradcheck(lambda x, dim=dim: call(op, x * x, dim=dim), x)


def test_no_memory_for_the_gradient_of_a_sum_along_a_dim(device):
    x = torch.randn(100, 50, device=device, requires_grad=True)
    (grad,) = torch.autograd.grad(call("sum", x, dim=0), x, torch.ones(50, device=device))
    assert grad.stride() == (0, 1)


def test_integers_have_no_gradient_along_dims(device):
    x = torch.randn(3, 4, device=device, requires_grad=True)
    assert not call("sum", x, dim=0, dtype=torch.int64).requires_grad
    assert not call("sum", x.detach().int(), dim=0, dtype=torch.float32).requires_grad


@every_reduction
def test_empty_gradients_along_dims(op, device):
    for shape, dim in (((3, 0), 0), ((0, 4), 1), ((2, 0, 3), 2)):
        x = torch.zeros(shape, device=device, requires_grad=True)
        y = call(op, x, dim=dim)
        assert y.numel() == 0
        (grad,) = torch.autograd.grad(y.sum(), x)
        assert grad.shape == x.shape


def test_a_loss_of_parts_has_the_gradient_of_the_whole(device):
    """A layer norm, a bias and a loss along dims, in training: torch's gradients, and ours bit for bit twice."""

    def gradients(sum_, mean_):
        g = torch.Generator().manual_seed(3)
        x, bias = (
            torch.randn(20, 16, generator=g, dtype=torch.float64),
            torch.randn(16, generator=g, dtype=torch.float64),
        )
        x, bias = x.to(device).requires_grad_(), bias.to(device).requires_grad_()
        centred = x - mean_(x, dim=1, keepdim=True)
        normal = centred * (mean_(centred * centred, dim=1, keepdim=True) + 1e-5).rsqrt() + bias
        return torch.autograd.grad(mean_(sum_(normal.tanh(), dim=1) ** 2), (x, bias))

    ours = [gradients(torch.ops.treduce.sum, torch.ops.treduce.mean) for _ in range(2)]
    for first, second, theirs in zip(*ours, gradients(torch.sum, torch.mean), strict=True):
        assert_same_bits(first, second)
        torch.testing.assert_close(first, theirs)


# matmul.

RANKS = [
    ((3,), (3,)),
    ((3,), (3, 4)),
    ((2, 3), (3,)),
    ((2, 3), (3, 4)),
    ((3,), (2, 3, 4)),
    ((5, 2, 3), (3,)),
    ((5, 2, 3), (3, 4)),
    ((2, 3), (5, 3, 4)),
    ((5, 2, 3), (5, 3, 4)),
    ((1, 2, 3), (5, 3, 4)),
    ((5, 2, 3), (1, 3, 4)),
    ((2, 1, 2, 3), (3, 3, 2)),
    ((2, 0), (0, 4)),
    ((2, 3), (3, 0)),
    ((0, 2, 3), (3, 4)),
]


def shape_id(shapes):
    return " @ ".join("x".join(map(str, shape)) for shape in shapes)


@every_matmul_variant
@pytest.mark.parametrize("shapes", RANKS, ids=map(shape_id, RANKS))
def test_matmul_gradients_are_torchs(shapes, variant, device):
    runnable(variant, device)
    a, b = (double(*shape, device=device, seed=i) for i, shape in enumerate(shapes))
    results = []
    for function in (torch.matmul, lambda a, b: torch.ops.treduce.matmul(a, b, variant.name)):
        c = function(a, b)
        weight = torch.arange(1.0, c.numel() + 1, dtype=c.dtype, device=device).view(c.shape)
        first = torch.autograd.grad((c * weight).pow(2).sum(), (a, b), create_graph=True)
        second = torch.autograd.grad(first[0].pow(2).sum() + first[1].sin().sum(), (a, b))
        results.append((*first, *second))
    for theirs, ours in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs)


@every_matmul_variant
def test_gradcheck_of_matmul(variant, device):
    runnable(variant, device)
    for shapes in RANKS[:12]:
        operands = tuple(double(*shape, device=device, seed=i) for i, shape in enumerate(shapes))
        function = lambda a, b: torch.ops.treduce.matmul(a, b, variant.name)  # noqa: E731
        assert gradcheck(function, operands)
    for shapes in (RANKS[3], RANKS[8]):
        operands = tuple(double(*shape, device=device, seed=i) for i, shape in enumerate(shapes))
        assert gradgradcheck(function, operands)


def test_batched_gradients_of_products(device):
    """is_grads_batched, as jacobian(vectorize=True) asks for them; a weight that a batch shares is folded."""
    x, w, v = (torch.randn(*s, dtype=torch.float64, device=device) for s in ((2, 3, 4), (5, 4), (4,)))
    for function, given in (
        (torch_reduce.matmul, (x, w.t())),
        (torch_reduce.matmul, (x, v)),
        (torch_reduce.linear, (x, w, w[:, 0])),
        (torch_reduce.linear, (x, v)),
        (torch_reduce.linear, (v, w)),
    ):
        plain = torch.autograd.functional.jacobian(function, given)
        for a, b in zip(plain, torch.autograd.functional.jacobian(function, given, vectorize=True), strict=True):
            torch.testing.assert_close(a, b)


def test_matmul_needs_only_the_gradient_that_is_asked_for(device):
    a, b = torch.randn(3, 4, device=device), torch.randn(4, 5, device=device)
    for wants_a, wants_b in itertools.product((False, True), repeat=2):
        x, y = a.clone().requires_grad_(wants_a), b.clone().requires_grad_(wants_b)
        c = torch.ops.treduce.matmul(x, y)
        assert c.requires_grad == (wants_a or wants_b)
        if c.requires_grad:
            c.sum().backward()
        assert (x.grad is not None) == wants_a and (y.grad is not None) == wants_b


def test_matmul_of_transposed_and_shared_operands(device):
    x = torch.randn(4, 4, dtype=torch.float64, device=device)
    grads = []
    for function in (torch.matmul, torch.ops.treduce.matmul):
        leaf = x.clone().requires_grad_()
        function(leaf, leaf.t()).pow(2).sum().backward()
        grads.append(leaf.grad)
    torch.testing.assert_close(grads[1], grads[0])


@every_matmul_variant
def test_matmul_gradient_is_matmul_of_the_same_variant(variant, device):
    """So it has that variant's bits: dA = G B^T and dB = A^T G."""
    runnable(variant, device, torch.float32)
    a, b = torch.randn(37, 19, device=device), torch.randn(19, 23, device=device)
    sizes = {"tile_size": variant.sizes[0]} if variant.sizes else {}
    x, y = a.clone().requires_grad_(), b.clone().requires_grad_()
    grad = torch.randn(37, 23, device=device)
    torch.ops.treduce.matmul(x, y, variant.name, **sizes).backward(grad)
    assert_same_bits(x.grad, torch.ops.treduce.matmul(grad, b.t(), variant.name, **sizes))
    assert_same_bits(y.grad, torch.ops.treduce.matmul(a.t(), grad, variant.name, **sizes))


# vector_add.


@every_add_variant
def test_gradcheck_of_vector_add(variant, device):
    runnable(variant, device)
    function = lambda a, b: torch.ops.treduce.vector_add(a, b, variant.name)  # noqa: E731
    operands = double(3, 4, device=device), double(3, 4, device=device, seed=1)
    assert gradcheck(function, operands)
    assert gradgradcheck(lambda a, b: function(a * a, b * b), operands)


def test_training_steps_match_torchs(device):
    """A small regression, a dozen steps: the same losses as with torch's ops."""

    def train(matmul, mean):
        g = torch.Generator().manual_seed(1)
        w = torch.randn(8, 3, generator=g, dtype=torch.float64).to(device).requires_grad_()
        x = torch.randn(64, 8, generator=g, dtype=torch.float64).to(device)
        y = torch.randn(64, 3, generator=g, dtype=torch.float64).to(device)
        losses = []
        for _ in range(12):
            loss = mean((matmul(x, w) - y).pow(2))
            (grad,) = torch.autograd.grad(loss, w)
            with torch.no_grad():
                w -= 0.1 * grad
            losses.append(loss.item())
        return losses

    ours = train(torch.ops.treduce.matmul, torch.ops.treduce.mean)
    theirs = train(torch.matmul, torch.mean)
    assert ours == pytest.approx(theirs, rel=1e-9) and ours[-1] < ours[0]


def test_gradients_of_what_was_broadcast_are_our_sums(device):
    a, b = torch.randn(300, 1, 70, device=device), torch.randn(5, 70, device=device, requires_grad=True)
    g = torch.randn(300, 5, 70, device=device)
    (of_b,) = torch.autograd.grad(torch_reduce.vector_add(a, b), b, g)
    assert_same_bits(of_b, torch_reduce.sum(g, 0))
    w = torch.randn(1, 70, 6, device=device, requires_grad=True)
    x = torch.randn(40, 5, 70, device=device)
    (of_w,) = torch.autograd.grad(torch_reduce.matmul(x, w), w, g[:40, :, :6].contiguous())
    assert_same_bits(of_w, torch_reduce.sum(torch_reduce.matmul(x.mT, g[:40, :, :6].contiguous()), 0, keepdim=True))
