"""The ops as citizens of torch: opcheck, fake tensors, torch.compile, torch.export, functionalisation."""

import functools
import itertools

import numpy as np
import pytest
import tables
import torch
from bits import assert_same_bits
from tables import call, every_reduction, every_variant
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import torch_reduce

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


@every_reduction
def test_opcheck_along_dims(op, device):
    samples = [
        ((leaf(3, 4, 5, device=device),), {"dim": (0, -1)}),
        ((leaf(3, 4, device=device).t(),), {"dim": 1, "keepdim": True}),
        ((torch.randn(2, 3, 4, 5, device=device).contiguous(memory_format=torch.channels_last),), {"dim": [0, 2, 3]}),
        ((torch.randn(4, 6, device=device)[:, ::2], "thread"), {"dim": [0], "block_size": 64}),
        ((torch.randn(5, device=device).expand(3, 5),), {"dim": []}),
    ]
    if op in ("sum", "mean"):
        samples += [
            ((leaf(3, 4, dtype=torch.bfloat16, device=device),), {"dim": 0, "dtype": torch.float32}),
            ((torch.arange(6, device=device).view(2, 3), "exact"), {"dim": 1, "dtype": torch.float64}),
            ((torch.randn(3, 4, dtype=torch.complex64, device=device),), {"dim": 1}),
        ]
    for args, kwargs in samples:
        torch.library.opcheck(getattr(ops, op).default, args, kwargs)


def test_opcheck_of_matmul(device):
    samples = [
        ((leaf(3, 4, device=device), leaf(4, 5, device=device)), {}),
        ((leaf(2, 3, 4, device=device), leaf(4, 5, device=device), "tiled"), {"tile_size": 8}),
        ((leaf(4, device=device), leaf(2, 4, 3, device=device), "naive"), {}),
        ((leaf(3, 4, dtype=torch.float64, device=device), leaf(4, dtype=torch.float64, device=device)), {}),
        ((torch.arange(6, device=device).view(2, 3), torch.arange(3, device=device)), {}),
        ((torch.ones(2, 3, dtype=torch.int8, device=device), torch.ones(3, 4, dtype=torch.int8, device=device)), {}),
    ]
    for row in tables.MATMUL_VARIANTS:
        if tables.runs(row, device, torch.float16):
            half = torch.float16
            samples.append(
                ((leaf(5, 8, dtype=half, device=device), leaf(3, 8, dtype=half, device=device).t(), row.name), {})
            )
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


def test_opcheck_of_reduce_ranks(device):
    out, values = torch.zeros(3, 5, device=device), torch.randn(4, 3, 5, device=device)
    torch.library.opcheck(ops.reduce_ranks_.default, (out, values, "mean"))


def test_opcheck_of_square_roots_and_functions():
    x = torch.rand(3, 4)
    for given in (x, x.t(), leaf(5, dtype=torch.float64).detach().abs().requires_grad_()):
        torch.library.opcheck(ops.sqrt.default, (given,))
    for function in ("exp", "log", "rsqrt"):
        torch.library.opcheck(ops.elementary.default, (x.t(), function))
    for given in (x, x.to("meta")):
        with pytest.raises(ValueError, match="knows exp, log and rsqrt, got 'sin'"):
            ops.elementary(given, "sin")
        with pytest.raises(TypeError, match="elementary takes float32 and float64"):
            ops.elementary(given.half(), "exp")


@pytest.mark.parametrize("mean", [False, True])
def test_opcheck_of_add_segments(mean, device):
    index = torch.tensor([0, 0, 2, 2, 2], device=device)
    order = torch.randperm(5, device=device)
    given = torch.zeros(4, 3, device=device), index, order, torch.randn(5, 3, device=device), mean
    torch.library.opcheck(ops.add_segments_.default, given)


def test_opcheck_of_results_in_given_memory(device):
    x, y = torch.randn(4, 6, device=device), torch.randn(6, 5, device=device)
    torch.library.opcheck(ops.reduce_to_.default, (torch.zeros(4, device=device), x, "mean"), {"dim": [1]})
    torch.library.opcheck(ops.matmul_to_.default, (torch.zeros(4, 5, device=device), x, y))


@pytest.mark.parametrize("op", tables.REDUCTIONS)
def test_out_of_reductions(op, device):
    reduce = getattr(torch_reduce, op)
    x = torch.randn(4, 50, 6, device=device)
    for dtype in (torch.float32, torch.bfloat16, torch.float64, torch.complex64, torch.uint16):
        if (op != "sum" and dtype == torch.uint16) or (op in ("amax", "amin") and dtype.is_complex):
            continue
        values = (x.abs() * 100).to(dtype)
        for of in ((), ((0, 2), True)):
            expected = reduce(values, *of)
            out = torch.full_like(expected, 7)
            assert reduce(values, *of, out=out) is out
            assert_same_bits(out, expected, f"{dtype}")
    expected, room = reduce(x, 1), torch.zeros(6, 4, device=device)
    assert reduce(x, 1, out=room.t()).data_ptr() == room.data_ptr()
    assert_same_bits(room.t(), expected, "strides")
    for variant in ("thread", "sequential"):
        out = torch.zeros((), device=device)
        reduce(x, variant=variant, out=out)
        assert_same_bits(out, reduce(x, variant=variant), variant)
    with pytest.raises(ValueError, match="writes to a contiguous tensor of shape"):
        reduce(x, 1, out=torch.zeros(4, 6, device="meta"))
    with pytest.raises(TypeError, match="out is a Tensor, got a list"):
        reduce(x, out=[0.0])
    with pytest.raises(RuntimeError, match="has no gradient"):
        reduce(x.clone().requires_grad_(), out=torch.zeros((), device=device))
    with pytest.raises(RuntimeError, match=r"(?i)memory"):
        reduce(x, 1, out=x.view(-1)[:24].view(4, 6))
    saved = torch.ones((), device=device)
    squared = saved * torch.ones((), device=device, requires_grad=True)
    reduce(x, out=saved)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        squared.backward()


def test_out_of_products(device):
    for dtype in (torch.float32, torch.bfloat16, torch.int8, torch.uint8, torch.complex64):
        a, b = ((torch.randn(*s, device=device) * 9).to(dtype) for s in ((3, 5, 40), (40, 7)))
        expected = torch_reduce.matmul(a, b)
        out = torch.full_like(expected, 3)
        assert torch_reduce.matmul(a, b, out=out) is out
        assert_same_bits(out, expected, f"{dtype}")
    with pytest.raises(ValueError, match="matmul writes to a contiguous tensor of shape"):
        torch_reduce.matmul(a, b, out=out.to(torch.int8))
    with pytest.raises(ValueError, match="inner sizes"):
        torch_reduce.matmul(a, a, out=out)
    with pytest.raises(RuntimeError, match=r"(?i)memory"):
        torch_reduce.matmul(b[:, :7], b[:7], out=b.view(-1)[:280].view(40, 7))


def with_out():
    """Every function that takes `out`, as a function of a square matrix and of `out`, if it is given."""
    tr = torch_reduce
    yield from ((op, functools.partial(getattr(tr, op), dim=1)) for op in tables.REDUCTIONS)
    yield "matmul", lambda x, **out: tr.matmul(x, x, **out)
    yield "linear", lambda x, **out: tr.linear(x, x, x[0], **out)
    yield "vector_add", lambda x, **out: tr.vector_add(x, x, **out)
    yield from ((op, functools.partial(getattr(tr, op), dim=1)) for op in ("softmax", "log_softmax", "logsumexp"))
    yield from ((op, functools.partial(getattr(tr, op), dim=(0, 1))) for op in ("var", "std", "norm"))


@pytest.mark.parametrize(("op", "function"), list(with_out()), ids=[name for name, _ in with_out()])
def test_out_is_resized_as_torch_resizes_it(op, function, device):
    x = torch.randn(5, 5, device=device)
    expected = function(x)
    for out in (torch.empty(0, device=device), torch.empty_like(expected), torch.empty(0, 3, device=device)):
        assert function(x, out=out) is out
        assert_same_bits(out, expected)
    out = torch.empty(2, 3, 4, device=device)
    for resizes in (lambda: function(x, out=out), lambda: torch.sum(x, 1, out=torch.empty(7, device=device))):
        with pytest.warns(UserWarning, match="resized"):
            resizes()
    assert_same_bits(out, expected)
    with pytest.raises(TypeError, match="out is a Tensor, got a list"):
        function(x, out=[0.0])
    if op not in ("sum", "mean"):  # which convert
        with pytest.raises((TypeError, ValueError), match=r"float64|Double"):
            function(x, out=torch.empty(0, dtype=torch.float64, device=device))
    with pytest.raises(RuntimeError, match="has no gradient"):
        function(x.clone().requires_grad_(), out=torch.empty(0, device=device))
    compiled = torch.compile(lambda x, out: function(x, out=out), backend="aot_eager", fullgraph=True)
    out = torch.empty_like(expected)
    compiled(x, out)
    assert_same_bits(out, expected)


def test_out_that_is_a_lazy_view(device):
    """Its memory holds other values than it means."""
    x = torch.randn(4, 4, dtype=torch.complex64, device=device)
    for op, given in ((torch_reduce.sum, (x, 0)), (torch_reduce.matmul, (x, x))):
        expected = op(*given)
        out = torch.zeros_like(expected).conj()
        assert op(*given, out=out) is out
        assert_same_bits(out.resolve_conj(), expected)
    out, negative = (torch.zeros(1, dtype=torch.complex64, device=device) for _ in range(2))
    torch_reduce.sum(x.real, out=negative.conj().imag[0])
    assert_same_bits(-negative.imag[0], torch_reduce.sum(x.real))
    for write, given in ((ops.reduce_to_, (x, "sum")), (ops.matmul_to_, (x[0], x[0]))):
        with pytest.raises(ValueError, match="writes to a contiguous tensor"):
            write(out[0].conj(), *given)
        write(out[0], *(t.conj() if isinstance(t, torch.Tensor) else t for t in given))


@pytest.mark.parametrize("op", [*tables.REDUCTIONS, "matmul"])
def test_out_on_another_device(op):
    x, y = torch.randn(4, 4), torch.empty(4, 4, device="meta")
    for given, out in ((x, y), (y, x)):
        of = (given, given) if op == "matmul" else (given, (), False)
        with pytest.raises(ValueError, match=r"writes to a contiguous tensor .* device"):
            getattr(torch_reduce, op)(*of, out=out if op == "matmul" else out[0, 0])


def test_compiled_out(device):
    def f(x, y, out):
        torch_reduce.sum(x, 1, out=out)
        return torch_reduce.matmul(x, y, out=torch.empty(3, 2, device=x.device)) + 1

    x, y, out = torch.randn(3, 5, device=device), torch.randn(5, 2, device=device), torch.zeros(3, device=device)
    expected = torch_reduce.matmul(x, y) + 1
    assert_same_bits(torch.compile(f, fullgraph=True, backend="aot_eager")(x, y, out), expected, "product")
    assert_same_bits(out, torch_reduce.sum(x, 1), "sum")


def test_opcheck_of_sum_to(device):
    out, values = torch.zeros(3, 5, device=device), torch.randn(4, 3, 5, device=device)
    torch.library.opcheck(ops.sum_to_.default, (out, values, None, 0))
    torch.library.opcheck(ops.sum_to_.default, (out, values, values[:2], 0))


def test_opcheck_of_pack_parts(device):
    message, x = torch.zeros(9, 3, device=device), torch.randn(2048, 3, device=device)
    torch.library.opcheck(ops.pack_parts_.default, (message, x, (5, 0, 1, 1, 0, 1, 5, 0)))


def test_opcheck_of_fold_parts(device):
    out, values = torch.zeros(3, device=device), torch.randn(2, 8, 3, device=device)
    parts = torch.tensor([[3, 0, 2, 0, 1], [2, 1, 0, 4, 0]], dtype=torch.int32, device=device)
    torch.library.opcheck(ops.fold_parts_.default, (out, values, parts, None))
    torch.library.opcheck(ops.fold_parts_.default, (out, values, parts, 7))


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


def test_meta_says_what_the_kernel_does_along_dims():
    for op, dtype in itertools.product(tables.REDUCTIONS, tables.DTYPE_NAMES.values()):
        if not tables.takes(tables.row(op, "auto"), op, dtype):
            continue
        x = torch.ones(3, 4, 5, dtype=dtype)
        for view, dim, keepdim in itertools.product(
            (x, x.permute(2, 0, 1)), (None, 0, (0, 2), (1, 0, 2)), (False, True)
        ):
            real = call(op, view, dim=dim, keepdim=keepdim)
            meta = call(op, view.to("meta"), dim=dim, keepdim=keepdim)
            assert (meta.dtype, meta.shape, meta.stride()) == (real.dtype, real.shape, real.stride())
    x = torch.ones(3, 4, dtype=torch.int8)
    for dtype in (torch.float16, torch.bool, torch.complex64):
        real, meta = (call("sum", y, dim=0, dtype=dtype) for y in (x, x.to("meta")))
        assert (meta.dtype, meta.shape) == (real.dtype, real.shape)


def test_meta_checks_dims():
    x = torch.empty(3, 0, device="meta")
    for dim, kind in ((2, IndexError), ((0, 0), RuntimeError), (-3, IndexError)):
        with pytest.raises(kind):
            call("sum", x, dim=dim)
    with pytest.raises(IndexError):
        call("amax", x, dim=1)
    with pytest.raises(ValueError, match="whole tensors"):
        call("sum", x, "v0", dim=0)
    with pytest.raises(NotImplementedError, match="mean"):
        call("mean", x, dim=0, dtype=torch.int32)


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
    with pytest.raises(TypeError, match="Bits8"):
        call("sum", torch.empty(10, dtype=torch.bits8, device="meta"))
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


def along(x, y):
    return (
        ops.sum(x * 2, dim=1)
        + ops.mean(x, dim=(-1,), dtype=torch.float64).float()
        - ops.amax(x, dim=-1, keepdim=True).squeeze(-1)
        + ops.amin(y, "thread", dim=0)
        + ops.sum(y, "compensated", dim=0)
        + ops.sum(y, "exact")
    )


@pytest.mark.parametrize("dynamic", [False, True])
def test_compile_along_dims_without_graph_breaks(dynamic, device):
    compiled = torch.compile(along, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    for m, n in ((10, 7), (100, 70), (33, 129)):
        x, y = torch.randn(m, n, device=device), torch.randn(n, m, device=device)
        assert_same_bits(compiled(x, y), along(x, y), f"{m} by {n}")
        assert_same_bits(compiled(y.t(), x.t()), along(y.t(), x.t()), f"{m} by {n}, transposed")


def test_compile_along_dims_keeps_one_graph_for_dynamic_shapes(device):
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(along, fullgraph=True, backend=backend, dynamic=True)
    for m, n in ((3, 4), (30, 14), (7, 2000)):
        x, y = torch.randn(m, n, device=device), torch.randn(n, m, device=device)
        assert_same_bits(compiled(x, y), along(x, y), f"{m} by {n}")
    assert len(graphs) == 1


def test_compile_along_dims_with_gradients(device):
    def loss(x):
        centred = x - ops.mean(x, dim=1, keepdim=True)
        return ops.sum(ops.amax(centred, dim=0) * ops.sum(centred * x, dim=0)) + ops.mean(ops.amin(x, dim=(0, 1)))

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager", dynamic=True)
    for m, n in ((5, 6), (40, 9)):
        x = leaf(m, n, device=device)
        (eager,) = torch.autograd.grad(loss(x), x)
        (traced,) = torch.autograd.grad(compiled(x), x)
        assert_same_bits(traced, eager, f"{m} by {n}")


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


class Statistics(torch.nn.Module):
    def forward(self, x):
        return ops.mean(x, dim=(0, 2)), ops.amax(x, dim=-1, keepdim=True), ops.sum(x, dim=[1], dtype=torch.float64)


def test_export_along_dims(device):
    args = (torch.randn(6, 5, 4, device=device),)
    shapes = {"x": {0: torch.export.Dim("batch", min=2, max=1000), 2: torch.export.Dim("width", min=2, max=500)}}
    program = torch.export.export(Statistics(), args, dynamic_shapes=shapes)
    targets = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    assert [t for t in targets if t.startswith("treduce")] == [
        f"treduce.{op}.default" for op in ("mean", "amax", "sum")
    ]
    for batch, width in ((6, 4), (33, 129)):
        x = torch.randn(batch, 5, width, device=device)
        for exported, eager in zip(program.module()(x), Statistics()(x), strict=True):
            assert_same_bits(exported, eager)


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
    graph = make_fx(lambda x: ops.sum(x, "v0", block_size=32), tracing_mode="symbolic")(torch.randn(9, device=device))
    (node,) = (n for n in graph.graph.nodes if "treduce" in str(n.target))
    assert node.args[1] == "v0" and node.kwargs["block_size"] == 32


def test_func_grad(device):
    x = torch.randn(7, device=device)
    assert torch.equal(torch.func.grad(lambda x: ops.sum(x * x))(x), 2 * x)


def test_schemas():
    """What callers depend on: names, order and defaults of the arguments."""
    head = '(Tensor self, str variant="auto", *, int[1]? dim=None, bool keepdim=False, '
    tail = "int? block_size=None, int? num_blocks=None) -> Tensor"
    expected = {op: f"treduce::{op}{head}ScalarType? dtype=None, {tail}" for op in ("sum", "mean")}
    expected |= {op: f"treduce::{op}{head}{tail}" for op in ("amax", "amin")}
    expected["matmul"] = (
        'treduce::matmul(Tensor self, Tensor other, str variant="auto", *, int? tile_size=None) -> Tensor'
    )
    expected["linear"] = 'treduce::linear(Tensor input, Tensor weight, Tensor? bias=None, str variant="auto") -> Tensor'
    expected["vector_add"] = (
        'treduce::vector_add(Tensor self, Tensor other, str variant="auto", *, int? block_size=None) -> Tensor'
    )
    for op in ("softmax", "log_softmax"):
        expected[op] = f'treduce::{op}(Tensor self, int dim, str variant="auto") -> Tensor'
    expected["layer_norm"] = (
        "treduce::layer_norm(Tensor input, SymInt[] normalized_shape, Tensor? weight=None, Tensor? bias=None, "
        'float eps=1.0000000000000001e-05, str variant="auto") -> (Tensor output, Tensor mean, Tensor rstd)'
    )
    for op, schema in expected.items():
        assert str(getattr(ops, op).default._schema) == schema


def test_the_package_calls_the_ops(device):
    x = torch.randn(1000, device=device)
    for op in tables.REDUCTIONS:
        ours = getattr(torch_reduce, op)
        assert_same_bits(ours(x), call(op, x))
        assert_same_bits(ours(x, variant="v4", block_size=64), call(op, x, "v4", block_size=64))
        assert_same_bits(ours(x, variant="v6", num_blocks=3), call(op, x, "v6", num_blocks=3))
    a, b = torch.randn(5, 6, device=device), torch.randn(6, 7, device=device)
    assert_same_bits(torch_reduce.matmul(a, b, variant="tiled", tile_size=8), ops.matmul(a, b, "naive"))
    assert_same_bits(torch_reduce.vector_add(a, a, variant="grid_1d", block_size=64), a + a)


@every_reduction
def test_the_package_calls_the_ops_along_dims(op, device):
    """However the arguments are written."""
    ours = getattr(torch_reduce, op)
    x = torch.randn(4, 5, 6, device=device)
    for dim in (1, -1, (0, 2), [2, 0], torch.Size([1]), np.int64(2), (np.int32(0), 1), (), [], None):
        listed = [int(d) for d in dim] if isinstance(dim, (tuple, list)) else None if dim is None else int(dim)
        expected = call(op, x, dim=listed)
        assert_same_bits(ours(x, dim), expected, f"{dim!r}")
        assert_same_bits(ours(x, dim=dim, keepdim=True), call(op, x, dim=listed, keepdim=True), f"{dim!r}")
    assert_same_bits(ours(x, 1, variant="row_warp", block_size=64), call(op, x, "row_warp", dim=1, block_size=64))
    assert_same_bits(ours(x, (0, 1), variant="compensated", num_blocks=2), call(op, x, "compensated", dim=(0, 1)))
    assert_same_bits(ours(torch.nn.Parameter(x), 1), call(op, x, dim=1))
    for wrong, kind in (
        (3, IndexError),
        ((0, 0), RuntimeError),
        ("rows", (TypeError, RuntimeError)),
        (1.5, (TypeError, RuntimeError)),
    ):
        with pytest.raises(kind):
            ours(x, wrong)
    with pytest.raises((TypeError, RuntimeError)):
        ours([1.0, 2.0], 0)
    with pytest.raises(TypeError):
        ours(x, 0, False, "auto")


@every_reduction
def test_subclasses_and_modes_see_the_call(op, device):
    seen = []

    class Function(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    class Dispatch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    class Subclass(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            seen.append(str(func))
            return super().__torch_function__(func, types, args, kwargs)

    ours = getattr(torch_reduce, op)
    x = torch.randn(3, 4, device=device)
    for watch in (Function, Dispatch):
        seen.clear()
        with watch():
            result = ours(x, 1)
        assert any(op in name for name in seen), watch
        assert_same_bits(result, call(op, x, dim=1))
    seen.clear()
    result = ours(x.as_subclass(Subclass), 1)
    assert any(op in name for name in seen) and isinstance(result, Subclass)
    with FakeTensorMode():
        assert ours(torch.empty(3, 4, device=device), 1, True).shape == (3, 1)


def test_func_transforms_along_dims(device):
    x = torch.randn(3, 4, device=device)
    grad = torch.func.grad(lambda x: torch_reduce.sum(torch_reduce.mean(x * x, 1)))(x)
    torch.testing.assert_close(grad, 2 * x / 4)
    jacobian = torch.func.jacrev(lambda x: torch_reduce.amax(x, 1))(x)
    torch.testing.assert_close(jacobian, torch.func.jacrev(lambda x: torch.amax(x, 1))(x))
