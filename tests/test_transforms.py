"""torch.func: forward mode, Jacobians and Hessians against torch's formulas; vmap with one call for the batch."""

import warnings

import pytest
import torch
from bits import assert_same_bits
from torch.func import hessian, jacfwd, jacrev, jvp, vmap
from torch.nn import functional

import torch_reduce as tr
from torch_reduce import _vmap

WIDTH = 5
g = torch.Generator().manual_seed(5)
A = torch.randn(4, WIDTH, generator=g, dtype=torch.float64)
B = torch.randn(4, generator=g, dtype=torch.float64)
W = torch.randn(WIDTH, generator=g, dtype=torch.float64)
CLASSES = torch.tensor([1, 2, 0])


def layer_norm(x, w, b):
    """torch's has wrong second derivatives where the weight depends on the input."""
    off = x - x.mean(1, keepdim=True)
    return off * (off.square().mean(1, keepdim=True) + 1e-5).rsqrt() * w + b


# Functions of (3, WIDTH), ours and torch's.
FUNCTIONS = {
    "sum": (lambda x: tr.sum(x), lambda x: x.sum()),
    "sum of a dim": (lambda x: tr.sum(x, -1, keepdim=True), lambda x: x.sum(1, keepdim=True)),
    "mean": (lambda x: tr.mean(x, 0), lambda x: x.mean(0)),
    "amax": (lambda x: tr.amax(x, 1), lambda x: x.amax(1)),
    "amin": (lambda x: tr.amin(x), lambda x: x.amin()),
    "matmul": (lambda x: tr.matmul(x, A.T), lambda x: x @ A.T),
    "matmul from the right": (lambda x: tr.matmul(A, x.T), lambda x: A @ x.T),
    "matmul of itself": (lambda x: tr.matmul(x, x.T), lambda x: x @ x.T),
    "matmul of vectors": (lambda x: tr.matmul(x[0], x.T), lambda x: x[0] @ x.T),
    "linear": (lambda x: tr.linear(x, A, B), lambda x: functional.linear(x, A, B)),
    "linear, its weight": (lambda x: tr.linear(A, x, x[:, 0]), lambda x: functional.linear(A, x, x[:, 0])),
    "vector_add": (lambda x: tr.vector_add(x, W), lambda x: x + W),
    "softmax": (lambda x: tr.softmax(x, 1), lambda x: x.softmax(1)),
    "log_softmax": (lambda x: tr.log_softmax(x, 0), lambda x: x.log_softmax(0)),
    "logsumexp": (lambda x: tr.logsumexp(x, 1), lambda x: x.logsumexp(1)),
    "layer_norm": (lambda x: tr.layer_norm(x, (WIDTH,), W, W), lambda x: layer_norm(x, W, W)),
    "layer_norm, its weight": (
        lambda x: tr.layer_norm(x, (WIDTH,), x[0], x[1]),
        lambda x: layer_norm(x, x[0], x[1]),
    ),
    "rms_norm": (lambda x: tr.rms_norm(x, (WIDTH,), W), lambda x: functional.rms_norm(x, (WIDTH,), W)),
    "rms_norm, its weight": (
        lambda x: tr.rms_norm(x, (WIDTH,), x[0]),
        lambda x: functional.rms_norm(x, (WIDTH,), x[0]),
    ),
    "attention": (lambda x: tr.scaled_dot_product_attention(x, x, x), lambda x: (x @ x.T / 5**0.5).softmax(1) @ x),
    "var": (lambda x: tr.var(x, 1), lambda x: x.var(1)),
    "norm": (lambda x: tr.norm(x), lambda x: x.norm()),
    "cross_entropy": (lambda x: tr.cross_entropy(x, CLASSES), lambda x: functional.cross_entropy(x, CLASSES)),
}
every_function = pytest.mark.parametrize(("ours", "torchs"), FUNCTIONS.values(), ids=FUNCTIONS)


@pytest.fixture
def x():
    return torch.randn(3, WIDTH, generator=torch.Generator().manual_seed(7), dtype=torch.float64)


@pytest.fixture(autouse=True)
def no_rule_is_missing():
    """torch warns where it runs an op one sample after another."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*batching rule.*")
        yield


@every_function
def test_forward_mode(ours, torchs, x):
    torch.testing.assert_close(jvp(ours, (x,), (x.cos(),)), jvp(torchs, (x,), (x.cos(),)))
    torch.testing.assert_close(jacfwd(ours)(x), jacfwd(torchs)(x))


@every_function
def test_jacobian_and_hessian(ours, torchs, x):
    torch.testing.assert_close(jacrev(ours)(x), jacfwd(torchs)(x))
    torch.testing.assert_close(
        hessian(lambda y: ours(y).square().sum())(x), hessian(lambda y: torchs(y).square().sum())(x)
    )


def test_reverse_over_forward_and_dual_numbers(x):
    def along(y):
        return jvp(lambda z: tr.softmax(z, 1), (y,), (y.cos(),))[1].square().sum()

    def torchs(y):
        return jvp(lambda z: z.softmax(1), (y,), (y.cos(),))[1].square().sum()

    torch.testing.assert_close(torch.func.grad(along)(x), torch.func.grad(torchs)(x))
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, torch.ones_like(x))
        assert torch.autograd.forward_ad.unpack_dual(tr.sum(dual)).tangent == x.numel()
        dual_attention = tr.scaled_dot_product_attention(x, x, dual)
        torch.testing.assert_close(torch.autograd.forward_ad.unpack_dual(dual_attention).tangent, torch.ones_like(x))


@every_function
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_vmap(ours, torchs, x, dim):
    samples = [x, 2 * x, x + 1]
    actual = vmap(ours, in_dims=dim)(torch.stack(samples, dim))
    torch.testing.assert_close(actual, torch.stack([torchs(s) for s in samples]))
    assert_same_bits(actual, torch.stack([ours(s) for s in samples]))


def test_vmap_of_numbers_and_of_rungs(x):
    numbers = x[0]
    for f in (tr.sum, tr.amax, lambda n: tr.softmax(n, 0), lambda n: tr.logsumexp(n, 0), lambda n: tr.sum(n, dim=-1)):
        assert_same_bits(vmap(f)(numbers), torch.stack([f(n) for n in numbers]))
    assert_same_bits(
        vmap(lambda row: tr.sum(row, variant="sequential"))(x),
        torch.stack([tr.sum(row, variant="sequential") for row in x]),
    )
    for op in (lambda row, dim: tr.sum(row, dim=dim), tr.softmax, tr.log_softmax, tr.logsumexp):
        for dim, samples in ((1, x), (-2, x), (1, numbers), (-2, numbers)):
            with pytest.raises(IndexError, match="out of range"):
                vmap(lambda sample, op=op, dim=dim: op(sample, dim))(samples)


def test_vmap_of_both_operands(x):
    a, b = torch.stack([x, x + 1]), torch.stack([A.T, 2 * A.T], dim=-1)
    expected = torch.stack([x @ A.T, (x + 1) @ (2 * A.T)])
    torch.testing.assert_close(vmap(tr.matmul, in_dims=(0, -1))(a, b), expected)
    torch.testing.assert_close(vmap(tr.matmul, in_dims=(None, -1))(x, b), torch.stack([x @ A.T, 2 * x @ A.T]))
    torch.testing.assert_close(vmap(tr.matmul)(a[:, 0], b.movedim(-1, 0)), expected[:, 0])
    torch.testing.assert_close(vmap(tr.matmul)(a, a[:, 0]), torch.einsum("brc,bc->br", a, a[:, 0]))
    torch.testing.assert_close(vmap(tr.vector_add)(a, a[:, 0]), a + a[:, :1])
    torch.testing.assert_close(
        vmap(lambda y, w: tr.rms_norm(y, (WIDTH,), w))(a, a[:, 0]),
        torch.stack([functional.rms_norm(s, (WIDTH,), s[0]) for s in a]),
    )


@pytest.mark.parametrize("rank", [2, 3, 4])
@pytest.mark.parametrize("masked", ["no", "shared", "own"])
def test_vmap_of_attention(rank, masked):
    shape = (2, 3, 7, 8)[4 - rank :]
    q, k, v = (torch.randn(4, *shape, dtype=torch.float64, requires_grad=True) for _ in range(3))
    seen = torch.rand(4, 7, 7) > 0.3
    seen[..., 0] = True
    masks = {"no": (), "shared": (seen[0],), "own": (seen,)}[masked]
    f = tr.scaled_dot_product_attention
    actual = vmap(f, in_dims=(0, None, 0, *(None if masked == "shared" else 0,) * len(masks)))(q, k[0], v, *masks)
    each = [f(q[i], k[0], v[i], *(m if masked == "shared" else m[i] for m in masks)) for i in range(4)]
    assert_same_bits(actual, torch.stack(each))
    grads = vmap(lambda *x: torch.func.grad(lambda *y: f(*y, is_causal=True).sum(), (0, 1, 2))(*x))(q, k, v)
    expected = torch.autograd.grad(
        torch.stack([f(q[i], k[i], v[i], is_causal=True) for i in range(4)]).sum(), (q, k, v)
    )
    for a, e in zip(grads, expected, strict=True):
        torch.testing.assert_close(a, e)


IN_THE_MODE = {
    "attention": lambda x: functional.scaled_dot_product_attention(x[None], x[None], x[None], is_causal=True),
    "softmax": lambda x: x.softmax(-1),
    "mm": lambda x: x @ x.mT,
    "layer_norm": lambda x: functional.layer_norm(x, (WIDTH,), W, W),
    "rms_norm": lambda x: functional.rms_norm(x, (WIDTH,), W),
    "cross_entropy": lambda x: functional.cross_entropy(x, CLASSES),
    "var": lambda x: x.var(),
}


@pytest.mark.parametrize("f", IN_THE_MODE.values(), ids=IN_THE_MODE)
def test_the_mode(f, x, request):
    """torch's own functions in batch_invariant, transformed."""

    def plain(y):
        seen = torch.ones(3, 3, dtype=torch.bool).tril()
        return ((y @ y.mT / WIDTH**0.5).masked_fill(~seen, -1e30).softmax(-1) @ y)[None]

    reference = plain if f is IN_THE_MODE["attention"] else f
    samples = torch.stack([x, 2 * x, x + 1])

    def everything(f):
        def grad(y):
            return torch.func.grad(lambda z: f(z).square().sum())(y)

        found = [jvp(f, (x,), (x.cos(),)), grad(x)]
        if "attention" not in request.node.name:  # torch takes attention apart before the mode sees it
            found += [vmap(f)(samples), vmap(grad)(samples)]
        return found

    expected = everything(reference)
    with tr.batch_invariant(strict=True):
        torch.testing.assert_close(everything(f), expected)


def test_every_op_has_a_rule():
    # Not: the functions that elementary shows to tests, ops that write into a tensor, and overloads that raise.
    ops = {name.removeprefix("treduce::") for name in torch._C._dispatch_get_all_op_names() if "treduce::" in name}
    assert set(_vmap.RULES) == {op for op in ops if not op.endswith("_") and "." not in op} - {"elementary"}
