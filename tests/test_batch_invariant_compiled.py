"""torch.compile inside batch_invariant: eager's bits, whole graphs, arithmetic fused where that changes no bit."""

from unittest.mock import Mock

import pytest
import torch
from aten_calls import BATCH, ROWS, random
from bits import assert_same_bits
from torch._dynamo.utils import counters
from torch.nn import functional

import torch_reduce

pytest.importorskip("torch._inductor.compile_fx")
_compile = pytest.importorskip("torch_reduce._compile")

FLOATS = (torch.float32, torch.bfloat16, torch.float16)
every_float = pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: str(d).removeprefix("torch."))
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")


@pytest.fixture(autouse=True)
def whole_graphs(request):
    torch._dynamo.reset()
    counters.clear()
    yield
    # Dynamo has no graph of a result that is resized, nor of a generator.
    if not any(name in request.node.name for name in (" out", "cross_entropy", "nll_loss")):
        assert not counters["graph_break"]
    torch._dynamo.reset()


@pytest.fixture
def fused(monkeypatch):
    """How many ops of arithmetic each kernel has."""
    found = []

    def spy(part, original=_compile._fused):
        found.append(sum(n.target in _compile._ARITHMETIC for n in part.graph.nodes))
        return original(part)

    monkeypatch.setattr(_compile, "_fused", spy)
    return found


@pytest.mark.parametrize("name", ROWS)
def test_the_bits_of_eager(name, device):
    x = random(BATCH, 5, 67).to(device, torch.float32)
    w = random(67, 67).to(device, torch.float32)
    with torch_reduce.batch_invariant(strict=True):
        assert_same_bits(torch.compile(ROWS[name])(x, w), ROWS[name](x, w))


def channels_last(x):
    return x[:, :4, :64].reshape(BATCH, 4, 8, 8).contiguous(memory_format=torch.channels_last)


# Results whose layout a caller may count on: x is (BATCH, 5, 67), with any strides.
LAID_OUT = {
    "conv2d": lambda x, w: functional.conv2d(channels_last(x), w[:8, :36].reshape(8, 4, 3, 3)),
    "conv_transpose2d": lambda x, w: functional.conv_transpose2d(channels_last(x), w[:4, :36].reshape(4, 4, 3, 3)),
    "group_norm": lambda x, w: functional.group_norm(channels_last(x), 2),
    "batch norm, not training": lambda x, w: functional.batch_norm(x, w[0, :5], w[1, :5].abs()),
    "index_add": lambda x, w: x.index_add(1, torch.tensor([0, 0, 1], device=x.device), x[:, :3]),
    "index_put": lambda x, w: x.index_put((torch.tensor([0, 0], device=x.device),), x[:2], accumulate=True),
    "pow": lambda x, w: x.abs() ** 2.5,
    "cosh": lambda x, w: x.cosh(),
}


@pytest.mark.parametrize("name", LAID_OUT)
def test_layouts_are_torchs(name, device):
    """Inductor asks that results have the strides that torch gives them; so may a view."""
    w = random(67, 67).to(device, torch.float32)
    for order in ((0, 1, 2), (0, 2, 1), (2, 1, 0)):
        x = random(BATCH, 5, 67).to(device, torch.float32).permute(order).contiguous().permute(order)
        expected = LAID_OUT[name](x, w)
        with torch_reduce.batch_invariant(strict=True):
            result = LAID_OUT[name](x, w)
            if device == "cpu":
                assert result.stride() == expected.stride()
            torch._dynamo.reset()
            compiled = torch.compile(lambda x, w: (LAID_OUT[name](x, w) * 2 + 1) * 3)
            assert_same_bits(compiled(x, w), (result * 2 + 1) * 3)


def wide(shape, dtype, device):
    """Subnormal numbers, both zeros, infinities and what lies between; sums and products of them overflow or vanish."""
    g = torch.Generator().manual_seed(1)
    x = torch.randn(shape, generator=g) * torch.exp2(torch.randint(-150, 127, shape, generator=g).float())
    x.flatten()[:4] = torch.tensor([0.0, -0.0, float("inf"), -float("inf")])
    near = torch.randn(shape, generator=g)
    return torch.where(torch.rand(shape, generator=g) < 0.3, x, near).to(device, dtype)


ARITHMETIC = {
    "a sum of a product": lambda a, b, c: a * b + c,
    "a difference of products": lambda a, b, c: a * b - c * a,
    "squares": lambda a, b, c: a.pow(2) + b.pow(2) * c,
    "numbers": lambda a, b, c: (a * 0.3 + 0.1 - b * 2) * -1.5 + (1 - c),
    "casts": lambda a, b, c: (a.float() * b.float() + c.float()).to(a.dtype) * c,
    "to fewer digits and back": lambda a, b, c: (a.float() * 1.1).bfloat16().float() + (b.float() * 3).half().float(),
    "signs": lambda a, b, c: (-a).abs() * b - c,
    "choices": lambda a, b, c: torch.where(a > b, a + c, b * c).masked_fill(c < 0, -2.0) + a,
    "rotations": lambda a, b, c: a * b + torch.cat((-a[:, 33:], a[:, :33]), 1) * c,
    "views": lambda a, b, c: ((a[:, None] + b[:, 1:3, None]) * c[:2, :1][None]).transpose(0, 2) + 1,
    "in place": lambda a, b, c: (a + b).mul_(c).add_(a).neg_(),
    "not as one": lambda a, b, c: torch.addcmul(a, b, c, value=0.5) + a.add(b, alpha=3) / c + (a * b).relu().exp(),
}  # fmt: skip


@every_float
@pytest.mark.parametrize("name", ARITHMETIC)
def test_arithmetic_is_fused(name, dtype, device, fused):
    f = ARITHMETIC[name]
    a, b, c = wide((3, 131, 67), dtype, device)
    with torch_reduce.batch_invariant(strict=True):
        results = torch.compile(f)(a, b, c), f(a, b, c)
    assert_same_bits(*(x.where(~x.isnan(), torch.nan) for x in results))  # which NaN it is, nobody promises
    expected = dtype in _compile._FLOATS[device] and name not in ("not as one", "numbers")
    assert not expected or sum(fused) > 1


class Block(torch.nn.Module):
    """Of a transformer, with rotated positions."""

    def __init__(self, width=48, heads=3):
        super().__init__()
        self.heads = heads
        self.norm, self.second = torch.nn.RMSNorm(width), torch.nn.LayerNorm(width)
        self.qkv, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width, bias=False)
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(2 * width, width)

    def forward(self, x):
        q, k, v = (
            y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in self.qkv(self.norm(x) * 1.5 + x).chunk(3, -1)
        )
        angles = torch.arange(x.shape[1], device=x.device)[:, None] / torch.arange(1, q.shape[-1] + 1, device=x.device)
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        half = q.shape[-1] // 2
        q, k = (y * cos + torch.cat((-y[..., half:], y[..., :half]), -1) * sin for y in (q, k))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        gate, up = self.up(self.second(x)).chunk(2, -1)
        return x + self.down(functional.silu(gate) * up)


@pytest.mark.slow
@every_float
def test_a_training_step(dtype, device, fused):
    block = Block().to(device, dtype)
    compiled = torch.compile(block)
    x = random(5, 21, 48).to(device, dtype).requires_grad_()
    wanted = (x, *block.parameters())
    with torch_reduce.batch_invariant(strict=True) as mode:
        expected = block(x)
        grads = torch.autograd.grad(expected.square().mean(), wanted)
        for _ in range(2):
            result = compiled(x)
            assert_same_bits(result, expected)
            for a, e in zip(torch.autograd.grad(result.square().mean(), wanted), grads, strict=True):
                assert_same_bits(a, e)
        with torch.no_grad():
            assert_same_bits(compiled(x), expected)
            assert_same_bits(compiled(x[:2]), expected[:2])
            assert_same_bits(compiled(x[1:, :13]), expected[1:, :13])
    assert sum(fused) > 4 or dtype not in _compile._FLOATS[device]
    assert {op.name: op.uncovered for op in mode.report() if op.uncovered} == {}


def test_changed_inputs_and_random_numbers(device):
    def f(x, cache):
        cache[:, 2:4] = x + x * 2
        x.add_(1).mul_(x)
        return functional.dropout(x, 0.3) + x * cache.sum(1, keepdim=True)

    found = []
    for function in (f, torch.compile(f)):
        torch.manual_seed(3)
        x, cache = random(4, 2).to(device, torch.float32), random(4, 9).to(device, torch.float32)
        with torch_reduce.batch_invariant(strict=True):
            found.append((function(x, cache), x, cache))
    for a, e in zip(*found, strict=True):
        assert_same_bits(a, e)


def test_without_a_compiler(monkeypatch):
    monkeypatch.setattr(_compile, "compile_fx_inner", Mock(side_effect=_compile.InvalidCxxCompiler))
    a, b, c = wide((3, 131, 67), torch.float32, "cpu")
    with torch_reduce.batch_invariant(strict=True):
        assert_same_bits(torch.compile(lambda a, b, c: a * b + c, backend="eager")(a, b, c), a * b + c)


def test_strict_and_outside(monkeypatch):
    compilations = []
    monkeypatch.setattr(
        _compile,
        "_compile",
        lambda graph, inputs, original=_compile._compile: compilations.append(graph) or original(graph, inputs),
    )
    x = torch.ones(3, 2)
    uncovered = torch.compile(lambda x: torch.linalg.qr(x)[1], backend="aot_eager")
    uncovered(x)
    with torch_reduce.batch_invariant(strict=True), pytest.raises(NotImplementedError, match="aten::linalg_qr"):
        uncovered(x)
    seen = []
    f = torch.compile(lambda x: x.softmax(-1), backend=lambda graph, _: seen.append(graph) or graph.forward)
    for _ in range(2):
        f(x)
        with torch_reduce.batch_invariant() as mode:
            f(x)
        assert [op.ours for op in mode.report()] == [1]
    assert len(seen) == 1
