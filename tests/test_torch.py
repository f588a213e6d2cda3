"""The ops as citizens of torch: opcheck, fake tensors, torch.compile, torch.export, functionalisation."""

import pytest
import tables
import torch
from bits import assert_same_bits
from tables import call, every_reduction, every_variant
from torch._subclasses.fake_tensor import FakeTensorMode

ops = torch.ops.treduce


def leaf(*shape, dtype=torch.float32, device="cpu"):
    return torch.randn(*shape, device=device).to(dtype).requires_grad_()


def reduction_samples(device):
    return [
        ((torch.randn(100, device=device),), {}),
        ((leaf(3, 4, device=device), "v0"), {"block_size": 64}),
        ((leaf(7, 5, dtype=torch.float64, device=device).t(), "two_pass"), {"block_size": 1, "num_blocks": 3}),
        ((torch.randn(33, device=device).to(torch.bfloat16), "vectorized"), {}),
    ]


@every_reduction
def test_opcheck_of_reductions(op, device):
    for args, kwargs in reduction_samples(device):
        torch.library.opcheck(getattr(ops, op).default, args, kwargs)
    if op != "mean":
        torch.library.opcheck(getattr(ops, op).default, (torch.arange(20, device=device), "serial"))
    if op == "sum":
        torch.library.opcheck(ops.sum.default, (torch.empty(0, device=device),))


def test_opcheck_of_matmul(device):
    samples = [
        ((leaf(3, 4, device=device), leaf(4, 5, device=device)), {}),
        ((leaf(2, 3, 4, device=device), leaf(4, 5, device=device), "tiled"), {"tile_size": 8}),
        ((leaf(4, device=device), leaf(2, 4, 3, device=device), "naive"), {}),
        ((leaf(3, 4, dtype=torch.float64, device=device), leaf(4, dtype=torch.float64, device=device)), {}),
        ((torch.arange(6, device=device).view(2, 3), torch.arange(3, device=device)), {}),
    ]
    for args, kwargs in samples:
        torch.library.opcheck(ops.matmul.default, args, kwargs)


def test_opcheck_of_vector_add(device):
    samples = [
        ((leaf(10, device=device), leaf(10, device=device)), {}),
        ((torch.arange(6, device=device).view(2, 3), torch.arange(6, device=device).view(2, 3), "grid_2d"), {}),
        ((leaf(3, 4, device=device), leaf(3, 4, device=device), "vectorized"), {"block_size": 128}),
    ]
    for args, kwargs in samples:
        torch.library.opcheck(ops.vector_add.default, args, kwargs)


def test_opcheck_of_thread_indices(device):
    out = torch.zeros(2 * 3, 7, dtype=torch.int64, device=device)
    torch.library.opcheck(ops.thread_indices_.default, (out, [2], [3]))


# Fake tensors: what the Meta kernels say must be what the real kernels do.


@every_variant
def test_meta_says_what_the_kernel_does(variant):
    for op in tables.REDUCTIONS:
        for name in tables.row(op, variant.name).dtypes:
            dtype = tables.DTYPE_NAMES[name]
            real = call(op, torch.ones(3, 4, dtype=dtype), variant.name)
            meta = call(op, torch.empty(3, 4, dtype=dtype, device="meta"), variant.name)
            assert meta.device.type == "meta"
            assert (meta.dtype, meta.shape, meta.stride()) == (real.dtype, real.shape, real.stride())


def test_meta_checks_what_the_kernel_checks():
    x = torch.empty(10, device="meta")
    with pytest.raises(ValueError, match="interleaved_modulo"):
        call("sum", x, "interleaved_modul")
    with pytest.raises(ValueError, match="block_size"):
        call("sum", x, "v0", block_size=3)
    with pytest.raises(NotImplementedError, match="floating"):
        call("mean", torch.empty(10, dtype=torch.int32, device="meta"))
    with pytest.raises(ValueError, match="empty"):
        call("amax", torch.empty(0, device="meta"))
    with pytest.raises(TypeError, match="Complex"):
        call("sum", torch.empty(10, dtype=torch.complex64, device="meta"))
    with pytest.raises(ValueError, match="inner sizes"):
        ops.matmul(torch.empty(2, 3, device="meta"), torch.empty(4, 5, device="meta"))


def test_fake_tensors(device):
    with FakeTensorMode():
        x = torch.empty(5, 6, device=device, dtype=torch.int8)
        y = call("sum", x)
        assert y.dtype == torch.int64 and y.shape == () and y.device.type == device
        a, b = torch.empty(7, 2, 3, device=device), torch.empty(3, 4, device=device)
        assert ops.matmul(a, b).shape == (7, 2, 4)
        assert ops.vector_add(b, b).shape == (3, 4)


# torch.compile.


def scaled(x):
    return ops.sum(x * 2, "v3", block_size=128) + ops.mean(x) * ops.amax(x, "cluster") - ops.amin(x, "v6")


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("dynamic", [False, True])
def test_compile_without_graph_breaks(dynamic, device):
    if device == "cuda" and not tables.can_run((9, 0)):
        pytest.skip("cluster needs compute capability 9.0")
    compiled = torch.compile(scaled, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    for n in (10, 1000, 4099):
        x = torch.randn(n, device=device)
        assert_same_bits(compiled(x), scaled(x), f"{n}")


def test_compile_with_gradients(device):
    def loss(a, b):
        return ops.mean(ops.matmul(a, b, "tiled") * 2) + ops.amax(ops.vector_add(a, a), "v2")

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    a, b = leaf(5, 6, device=device), leaf(6, 7, device=device)
    eager = torch.autograd.grad(loss(a, b), (a, b))
    traced = torch.autograd.grad(compiled(a, b), (a, b))
    for x, y in zip(eager, traced, strict=True):
        assert_same_bits(x, y)


def test_compile_keeps_one_graph_for_dynamic_shapes(device):
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(lambda a, b: ops.sum(ops.matmul(a, b)), fullgraph=True, backend=backend, dynamic=True)
    for m, k, n in ((3, 4, 5), (30, 14, 25), (7, 9, 2)):
        a, b = torch.randn(m, k, device=device), torch.randn(k, n, device=device)
        assert_same_bits(compiled(a, b), ops.sum(ops.matmul(a, b)))
    assert len(graphs) == 1


def test_compile_raises_what_eager_raises(device):
    compiled = torch.compile(lambda x: ops.sum(x, "no_such"), backend="aot_eager")
    with pytest.raises(Exception, match="no_such"):
        compiled(torch.randn(4, device=device))


@pytest.mark.slow
def test_compile_with_inductor(device):
    compiled = torch.compile(lambda x: ops.sum(x.sin() * 2, "v6") + 1, fullgraph=True)
    x = leaf(10_007, device=device)
    y = compiled(x)
    torch.testing.assert_close(y, ops.sum(x.sin() * 2, "v6") + 1)
    (grad,) = torch.autograd.grad(y, x)
    torch.testing.assert_close(grad, 2 * x.cos())


class Model(torch.nn.Module):
    def forward(self, x, w):
        return ops.sum(ops.vector_add(ops.matmul(x, w, "tiled", tile_size=8), x), "warp_shuffle", num_blocks=2)


def test_export(device):
    args = torch.randn(6, 5, device=device), torch.randn(5, 5, device=device)
    rows = torch.export.Dim("rows", min=2, max=1000)
    program = torch.export.export(Model(), args, dynamic_shapes={"x": {0: rows}, "w": None})
    targets = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    assert [t for t in targets if t.startswith("treduce")] == [
        "treduce.matmul.default",
        "treduce.vector_add.default",
        "treduce.sum.default",
    ]
    for m in (6, 33):
        x = torch.randn(m, 5, device=device)
        assert_same_bits(program.module()(x, args[1]), Model()(x, args[1]))


def test_functionalisation(device):
    def f(x):
        y = x.clone()
        y.add_(1)
        total = ops.sum(y, "v1")
        y.mul_(total)
        return ops.amax(y)

    x = torch.randn(50, device=device)
    assert_same_bits(torch.func.functionalize(f)(x), f(x))


def test_make_fx_keeps_the_op(device):
    from torch.fx.experimental.proxy_tensor import make_fx

    graph = make_fx(lambda x: ops.sum(x, "v0", block_size=32), tracing_mode="symbolic")(torch.randn(9, device=device))
    (node,) = (n for n in graph.graph.nodes if "treduce" in str(n.target))
    assert node.args[1] == "v0" and node.kwargs["block_size"] == 32


def test_func_grad(device):
    x = torch.randn(7, device=device)
    assert torch.equal(torch.func.grad(lambda x: ops.sum(x * x))(x), 2 * x)


def test_schemas():
    """What callers depend on: names, order and defaults of the arguments."""
    reduction = '(Tensor self, str variant="auto", *, int? block_size=None, int? num_blocks=None) -> Tensor'
    expected = {op: f"treduce::{op}{reduction}" for op in tables.REDUCTIONS}
    expected["matmul"] = (
        'treduce::matmul(Tensor self, Tensor other, str variant="auto", *, int? tile_size=None) -> Tensor'
    )
    expected["vector_add"] = (
        'treduce::vector_add(Tensor self, Tensor other, str variant="auto", *, int? block_size=None) -> Tensor'
    )
    for op, schema in expected.items():
        assert str(getattr(ops, op).default._schema) == schema


def test_the_package_calls_the_ops(device):
    import torch_reduce

    x = torch.randn(1000, device=device)
    for op in tables.REDUCTIONS:
        ours = getattr(torch_reduce, op)
        assert_same_bits(ours(x), call(op, x))
        assert_same_bits(ours(x, variant="v4", block_size=64), call(op, x, "v4", block_size=64))
        assert_same_bits(ours(x, variant="v6", num_blocks=3), call(op, x, "v6", num_blocks=3))
    a, b = torch.randn(5, 6, device=device), torch.randn(6, 7, device=device)
    assert_same_bits(torch_reduce.matmul(a, b, variant="tiled", tile_size=8), ops.matmul(a, b, "naive"))
    assert_same_bits(torch_reduce.vector_add(a, a, variant="grid_1d", block_size=64), a + a)
