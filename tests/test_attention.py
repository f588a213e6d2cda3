"""scaled_dot_product_attention: torch's values, and bits that neither batch, nor keys after, nor padding change."""

import pytest
import torch
from bits import assert_same_bits
from torch.nn import functional

import torch_reduce

attention = torch_reduce.scaled_dot_product_attention
every_float = pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=lambda d: str(d).removeprefix("torch.")
)
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3, torch.float64: 1e-12}

BATCH, HEADS, WIDTH = 3, 4, 24


def operands(dtype, device="cpu", length=37, keys=None, kv_heads=HEADS, batch=BATCH, grad=False):
    g = torch.Generator().manual_seed(11)
    shapes = [
        (batch, heads, n, WIDTH)
        for heads, n in ((HEADS, length), (kv_heads, keys or length), (kv_heads, keys or length))
    ]
    return [
        torch.randn(shape, generator=g, dtype=torch.float64).to(device, dtype).requires_grad_(grad) for shape in shapes
    ]  # fmt: skip


def torchs(q, k, v, mask=None, **named):
    """In float64, which torch composes."""
    mask = mask if mask is None or mask.dtype == torch.bool else mask.double()
    return functional.scaled_dot_product_attention(q.double(), k.double(), v.double(), mask, **named)


def masks(length, keys, device="cpu"):
    g = torch.Generator().manual_seed(3)
    seen = torch.rand((BATCH, 1, length, keys), generator=g) > 0.3
    seen[..., 0] = True
    added = torch.randn((HEADS, length, keys), generator=g)
    return {
        "none": None,
        "bool": seen.to(device),
        "of one head and batch": seen[0, 0].to(device),
        "added": added.to(device),
        "of keys": seen[:, :, :1].to(device),
    }


@every_float
@pytest.mark.parametrize("mask", masks(1, 1))
@pytest.mark.parametrize("kv_heads", [HEADS, 2, 1])
def test_values(mask, kv_heads, dtype, device):
    q, k, v = operands(dtype, device, length=19, keys=300, kv_heads=kv_heads)
    m = masks(19, 300, device)[mask]
    m = m.to(dtype) if mask == "added" else m
    actual = attention(q, k, v, m, enable_gqa=kv_heads < HEADS, scale=0.3)
    expected = torchs(q, k, v, m, enable_gqa=kv_heads < HEADS, scale=0.3)
    torch.testing.assert_close(actual.double(), expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.mark.parametrize("dims", [2, 3, 4])
def test_dims(dims):
    q, k, v = (x[(0,) * (4 - dims)] for x in operands(torch.float64))
    torch.testing.assert_close(attention(q, k, v, is_causal=True), torchs(q, k, v, is_causal=True))


@every_float
@pytest.mark.parametrize("case", ["causal", "bool", "added", "groups", "plain"])
def test_gradients(case, dtype, device):
    kv_heads = 2 if case == "groups" else HEADS
    q, k, v = operands(dtype, device, length=300, keys=300, kv_heads=kv_heads, grad=True)
    named = {"is_causal": case in ("causal", "groups"), "enable_gqa": case == "groups"}
    mask = masks(300, 300, device).get(case)
    mask = mask.to(dtype) if case == "added" else mask
    direction = torch.linspace(-1, 1, q.numel(), dtype=torch.float64, device=device).view(q.shape)
    actual = torch.autograd.grad((attention(q, k, v, mask, **named).double() * direction).sum(), (q, k, v))
    expected = torch.autograd.grad((torchs(q, k, v, mask, **named) * direction).sum(), (q, k, v))
    scale = max(e.abs().max().item() for e in expected)
    for a, e in zip(actual, expected, strict=True):
        torch.testing.assert_close(a.double(), e.double(), rtol=0, atol=4 * TOLERANCE[dtype] * scale)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
@pytest.mark.parametrize(("width", "value_width"), [(64, 64), (128, 128), (80, 20), (7, 100), (128, 5), (136, 24)])
def test_widths_and_layouts(width, value_width, dtype, device):
    """As models have them: heads beside each other in a row of a token; and rows that no vector fits."""
    g = torch.Generator().manual_seed(2)
    length, keys = 70, 200
    q, k, v = (
        torch.randn(2, n, heads, w, generator=g, dtype=torch.float64).to(device, dtype).transpose(1, 2).requires_grad_()
        for heads, n, w in ((6, length, width), (2, keys, width), (2, keys, value_width))
    )
    mask = (torch.rand(2, 6, length, keys, generator=g) > 0.2).to(device)
    mask[0, :, :, 150:] = False
    for attn_mask in (None, mask, mask[:, :1, :1]):
        named = {"enable_gqa": True, "is_causal": attn_mask is None}
        actual = attention(q, k, v, attn_mask, **named)
        if width == value_width:
            assert actual.stride() == q.stride()
        expected = torchs(q, k, v, attn_mask, **named)
        torch.testing.assert_close(actual.double(), expected, rtol=0, atol=2 * TOLERANCE[dtype])
        direction = torch.linspace(-1, 1, actual.numel(), dtype=torch.float64, device=device).view(actual.shape)
        grads = torch.autograd.grad((actual.double() * direction).sum(), (q, k, v))
        for a, e in zip(grads, torch.autograd.grad((expected * direction).sum(), (q, k, v)), strict=True):
            torch.testing.assert_close(a.double(), e.double(), rtol=0, atol=4 * TOLERANCE[dtype] * e.abs().max().item())
    # Alone, and the last of few.
    whole = attention(q, k, v, is_causal=True, enable_gqa=True)
    step = attention(q[1:, :, 40:41], k[1:, :, :41], v[1:, :, :41], enable_gqa=True)
    assert_same_bits(step, whole[1:, :, 40:41])


def composed(q, k, v, mask=None, *, is_causal=False, scale=None, **_):
    """Attention by torch's differentiable ops, in which rows that attend nothing are zeros."""
    k, v = (x.repeat_interleave(q.shape[-3] // x.shape[-3], -3) for x in (k, v))
    scores = q @ k.mT * (scale or q.shape[-1] ** -0.5)
    seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device)
    seen = seen.tril() if is_causal else seen if mask is None or mask.is_floating_point() else mask & seen
    scores = scores if mask is None or mask.dtype == torch.bool else scores + mask
    return (scores.masked_fill(~seen, -1e300).softmax(-1) * seen.any(-1, keepdim=True)) @ v


# What a call of (2, 2, 3, 4) scores has beside query, key and value: heads of keys, the mask, the rest.
some_seen = torch.rand(2, 1, 3, 4, generator=torch.Generator().manual_seed(0)) > 0.4
some_seen[1, :, 2] = False
DERIVED = {
    "plain": (2, None, {}),
    "causal": (2, None, {"is_causal": True}),
    "grouped": (1, None, {"is_causal": True, "enable_gqa": True, "scale": 0.3}),
    "masked": (2, some_seen, {}),
    "added": (2, torch.linspace(-1, 1, 12, dtype=torch.float64).view(3, 4), {"scale": 2.0}),
    "grouped, a mask of heads": (1, some_seen.transpose(0, 1)[..., :1, :], {"enable_gqa": True}),
}


@pytest.mark.parametrize("case", DERIVED)
def test_all_derivatives(case, device):
    kv_heads, mask, named = DERIVED[case]
    g = torch.Generator().manual_seed(4)
    x = tuple(
        torch.randn(2, heads, n, width, generator=g, dtype=torch.float64).to(device)
        for heads, n, width in ((2, 3, 3), (kv_heads, 4, 3), (kv_heads, 4, 2))
    )
    masks = () if mask is None else (mask.to(device),)

    def scalar(f):
        return lambda *x: f(*x).square().sum()

    def tangent(f):
        return lambda *x: torch.func.jvp(f, x, tuple(y.cos() for y in x))[1]

    def twice(f):
        return scalar(lambda *x: torch.func.grad(scalar(f), 1)(*x))

    every = (0, 1, 2)
    ours, torchs = (lambda *x, f=f: f(*x, *masks, **named) for f in (attention, composed))
    for derived in (
        tangent,
        lambda f: torch.func.jacfwd(f, every),
        lambda f: torch.func.hessian(scalar(f), every),
        lambda f: torch.func.jacrev(torch.func.jacrev(scalar(f), every), every),
        lambda f: torch.func.grad(scalar(tangent(f)), every),
        lambda f: torch.func.grad(twice(f), every),
        lambda f: torch.func.grad(twice(lambda *x: torch.func.grad(scalar(f))(*x)), every),
    ):
        torch.testing.assert_close(derived(ours)(*x), derived(torchs)(*x))
    x = tuple(y.requires_grad_() for y in x)
    assert torch.autograd.gradcheck(ours, x, check_forward_ad=True, check_batched_forward_grad=True)
    assert torch.autograd.gradgradcheck(ours, x, check_fwd_over_rev=True, check_rev_over_rev=True)


@every_float
def test_derivatives_are_rounded_as_the_dtype_is(dtype, device):
    q, k, v = operands(dtype, device, kv_heads=2, grad=True)
    wide = tuple(x.detach().double().requires_grad_() for x in (q, k, v))
    tangents = tuple(x.detach().cos() for x in (q, k, v))
    named = {"is_causal": True, "enable_gqa": True}
    for derived in (
        lambda f, *x: torch.func.jvp(f, x, tuple(t.to(x[0].dtype) for t in tangents)),
        lambda f, *x: torch.autograd.grad(
            sum(y.square().sum() for y in torch.autograd.grad(f(*x).sum(), x, create_graph=True)), x
        ),
    ):
        actual = derived(lambda *x: attention(*x, **named), q, k, v)
        expected = derived(lambda *x: composed(*x, **named), *wide)
        for a, e in zip(actual, expected, strict=True):
            assert a.dtype == dtype
            torch.testing.assert_close(a.double(), e, rtol=0, atol=4 * TOLERANCE[dtype] * e.abs().max().item())


def test_a_batch_changes_no_bit_of_derivatives(device):
    def derived(q, k, v):
        x = tuple(y.clone().requires_grad_() for y in (q, k, v))
        grads = torch.autograd.grad(attention(*x, is_causal=True).square().sum(), x, create_graph=True)
        tangent = torch.func.jvp(lambda *x: attention(*x, is_causal=True), (q, k, v), (k, v, q))[1]
        return (tangent, *torch.autograd.grad(sum(y.square().sum() for y in grads), x))

    q, k, v = operands(torch.float32, device)
    whole = derived(q, k, v)
    for b in range(BATCH):
        for a, e in zip(derived(q[b : b + 1], k[b : b + 1], v[b : b + 1]), whole, strict=True):
            assert_same_bits(a, e[b : b + 1])


def test_derivatives_of_nothing():
    q, k, v = (torch.ones(2, 1, n, 3, dtype=torch.float64) for n in (4, 0, 0))
    mask = torch.ones(4, 0, dtype=torch.bool)
    result, tangent = torch.func.jvp(lambda *x: attention(*x, mask), (q, k, v), (q, k, v))
    assert (result == 0).all() and (tangent == 0).all()
    x = q.requires_grad_()
    (first,) = torch.autograd.grad(attention(x, k, v).sum(), x, create_graph=True)
    assert (torch.autograd.grad(first.sum(), x)[0] == 0).all()


@every_float
@pytest.mark.parametrize("kv_heads", [HEADS, 2])
def test_a_batch_changes_no_bit(kv_heads, dtype, device):
    q, k, v = operands(dtype, device, length=100, kv_heads=kv_heads, grad=True)
    named = {"is_causal": True, "enable_gqa": True}
    whole = attention(q, k, v, **named)
    grads = torch.autograd.grad(whole.square().sum(), (q, k, v))
    for b in (0, 2):
        alone = attention(q[b : b + 1], k[b : b + 1], v[b : b + 1], **named)
        assert_same_bits(alone, whole[b : b + 1])
        for some, grad in zip(torch.autograd.grad(alone.square().sum(), (q, k, v)), grads, strict=True):
            assert_same_bits(some[b], grad[b])
    assert_same_bits(attention(q[:, :2], k[:, : kv_heads // 2], v[:, : kv_heads // 2], **named), whole[:, :2])


@every_float
def test_a_prefix_and_a_cache_change_no_bit(dtype, device):
    q, k, v = operands(dtype, device, length=1100 if device == "cuda" else 330)
    whole = attention(q, k, v, is_causal=True)
    for n in (1, 2, 17, 64, 129, 300):
        assert_same_bits(
            attention(q[:, :, :n], k[:, :, :n], v[:, :, :n], is_causal=True), whole[:, :, :n], f"{n} tokens"
        )
        step = attention(q[:, :, n - 1 : n], k[:, :, :n], v[:, :, :n])
        assert_same_bits(step, whole[:, :, n - 1 : n], f"token {n} with a cache")
        seen = torch.arange(k.shape[2], device=device) < n  # a cache of full length, not yet filled
        assert_same_bits(
            attention(q[:, :, n - 1 : n], k, v, seen.view(1, 1, 1, -1)), step, f"token {n}, a static cache"
        )


@every_float
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("mask", ["bool", "infinite", "lowest"])
def test_padding_changes_no_bit(mask, side, dtype, device):
    length, padding = 70, 29
    q, k, v = operands(dtype, device, length=length, batch=1)
    alone = attention(q, k, v, is_causal=True)
    total = length + padding
    at = slice(padding, None) if side == "left" else slice(0, length)
    padded = [torch.full((1, HEADS, total, WIDTH), 3.0, dtype=dtype, device=device) for _ in range(3)]
    for x, p in zip((q, k, v), padded, strict=True):
        p[:, :, at] = x
    seen = torch.ones(total, total, dtype=torch.bool, device=device).tril()
    real = torch.zeros(total, dtype=torch.bool, device=device)
    real[at] = True
    seen = (seen & real).view(1, 1, total, total)
    if mask != "bool":
        never = -torch.inf if mask == "infinite" else torch.finfo(dtype).min
        seen = torch.zeros_like(seen, dtype=dtype).masked_fill(~seen, never)
    assert_same_bits(attention(*padded, seen)[:, :, at], alone)


def test_threads_and_pieces_change_no_bit(one_thread_or_two):
    q, k, v = operands(torch.float32, length=700, batch=2)
    one_thread_or_two(1)
    expected = attention(q, k, v, is_causal=True)
    one_thread_or_two(2)
    assert_same_bits(attention(q, k, v, is_causal=True), expected)
    assert_same_bits(
        attention(q[:, :, 600:], k, v, torch.ones(700, 700, dtype=torch.bool).tril()[600:]), expected[:, :, 600:]
    )


def test_nothing_attended_and_nothing_there():
    q, k, v = operands(torch.float32, length=4, grad=True)
    mask = torch.ones(4, 4, dtype=torch.bool)
    mask[2] = False
    result = attention(q, k, v, mask)
    assert (result[:, :, 2] == 0).all() and result.isfinite().all()
    result.sum().backward()
    assert q.grad.isfinite().all() and (q.grad[:, :, 2] == 0).all()
    assert (attention(q, k[:, :, :0], v[:, :, :0]) == 0).all()
    assert attention(q[:0], k[:0], v[:0]).shape == (0, HEADS, 4, WIDTH)


def test_what_is_refused():
    q, k, v = operands(torch.float32, length=4)
    with pytest.raises(ValueError, match=r"dropout_p 0, got 0\.5"):
        attention(q, k, v, dropout_p=0.5)
    with pytest.raises(ValueError, match="attn_mask or is_causal"):
        attention(q, k, v, torch.ones(4, 4, dtype=torch.bool), is_causal=True)
    with pytest.raises(ValueError, match="sizes do not fit"):
        attention(q, k, v[:, :, :3])
    with pytest.raises(ValueError, match="enable_gqa=True shares"):
        attention(q, k[:, :2], v[:, :2])
    with pytest.raises(ValueError, match="does not broadcast"):
        attention(q, k, v, torch.ones(3, 4, dtype=torch.bool))
    with pytest.raises(ValueError, match="2 to 4 dims"):
        attention(q[None], k[None], v[None])
    with pytest.raises(TypeError, match="one dtype"):
        attention(q, k.double(), v)
    with pytest.raises(ValueError, match="one device, got cpu, meta and cpu"):
        attention(q, k.to("meta"), v)
    with pytest.raises(ValueError, match="attn_mask on the query's device, cpu, got meta"):
        attention(q, k, v, torch.ones(4, 4, dtype=torch.bool, device="meta"))
    with pytest.raises(NotImplementedError, match="gradient of attn_mask"):
        attention(q, k, v, torch.zeros(4, 4, requires_grad=True))
    with pytest.raises(NotImplementedError, match="gradient of attn_mask"):
        torch.func.jvp(lambda mask: attention(q, k, v, mask), (torch.zeros(4, 4),), (torch.ones(4, 4),))


def test_autocast_compile_and_opcheck():
    q, k, v = operands(torch.float32, length=6, grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        result = attention(q, k, v)
    assert_same_bits(result, attention(q.bfloat16(), k.bfloat16(), v.bfloat16()))
    compiled = torch.compile(lambda *x: attention(*x, is_causal=True) * 2, backend="aot_eager", fullgraph=True)
    assert_same_bits(compiled(q, k, v), attention(q, k, v, is_causal=True) * 2)
    op = torch.ops.treduce.scaled_dot_product_attention.default
    torch.library.opcheck(op, (q, k, v), {"scale": 0.5})
    beside = [x.detach().transpose(1, 2).contiguous().transpose(1, 2).requires_grad_() for x in (q, k, v)]
    torch.library.opcheck(op, tuple(beside))


@pytest.mark.cuda
def test_memory_is_linear(much_memory):
    much_memory(4)
    q, k, v = (torch.randn(1, 8, 32768, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    attention(q, k, v, is_causal=True).sum().backward()
    scores = 8 * 32768 * 32768 * 4
    assert torch.cuda.max_memory_allocated() - before < scores / 8


class TestInTheMode:
    def test_it_is_taken(self, device):
        q, k, v = operands(torch.float32, device, grad=True)
        expected = torch.autograd.grad(attention(q, k, v, is_causal=True).sum(), (q, k, v))
        with torch_reduce.batch_invariant(strict=True) as mode:
            result = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            actual = torch.autograd.grad(result.sum(), (q, k, v))
        for a, e in zip(actual, expected, strict=True):
            assert_same_bits(a, e)
        assert any(op.name == "aten::scaled_dot_product_attention" and op.ours == 1 for op in mode.report())
        with torch.inference_mode(), torch_reduce.batch_invariant(strict=True):
            assert_same_bits(functional.scaled_dot_product_attention(q, k, v, is_causal=True), result)
        x = tuple(y.detach() for y in (q, k, v))
        with torch_reduce.batch_invariant(strict=True):
            forward = torch.func.jvp(lambda *x: functional.scaled_dot_product_attention(*x), x, x)
        for a, e in zip(forward, torch.func.jvp(attention, x, x), strict=True):
            assert_same_bits(a, e)

    def test_outside_torchs_is_what_it_was(self):
        q, k, v = operands(torch.float32, grad=True)
        with torch_reduce.batch_invariant():
            pass
        result = functional.scaled_dot_product_attention(q, k, v)
        assert "Treduce" not in result.grad_fn.name()

    def test_dropout_and_gradients_of_masks_are_composed(self):
        q, k, v = operands(torch.float32, length=8)
        mask = torch.zeros(8, 8, requires_grad=True)
        with torch_reduce.batch_invariant(strict=True) as mode:
            functional.scaled_dot_product_attention(q, k, v, mask).sum().backward()
            functional.scaled_dot_product_attention(q, k, v, dropout_p=0.5)
        assert mask.grad is not None
        assert {"aten::bmm", "aten::_softmax"} <= {op.name for op in mode.report() if op.ours}
