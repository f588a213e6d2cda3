"""The kernels on a GPU: the CPU's bits, on any stream, in graphs, past 2^31 elements, in little memory."""

import itertools
import threading

import cases
import pytest
import tables
import torch
from bits import assert_same_bits
from bounds import assert_within_bound
from cases import DTYPES, FLOATS
from graphs import captured
from products import BIG, SIZES, assert_close, operands, product, strided_operands
from products import sizes_of as tiles_of
from tables import (
    call,
    every_add_variant,
    every_dtype,
    every_matmul_variant,
    every_ordered_variant,
    every_variant,
    has_cpus_bits,
    needs_chip,
    needs_dtype,
    sizes_of,
)

pytestmark = pytest.mark.cuda

HUGE = 2**31 + 3


def pairs(n, dtype, kind="wide", seed=0):
    """The same values on the CPU and on the GPU."""
    x = cases.values(n, dtype, kind, seed)
    return x, x.cuda()


def ops_for(dtype, n):
    """The reductions that an input of this dtype and length has."""
    return [
        op for op in cases.REDUCTIONS if (op != "mean" or dtype.is_floating_point) and (n or not op.startswith("a"))
    ]


# The CPU's bits.


@every_variant
@every_dtype(DTYPES)
def test_every_dtype_and_length_has_the_cpus_bits(dtype, variant, poison, poisoned):
    needs_chip(variant)
    poison()
    for n in cases.LENGTHS:
        x, y = pairs(n, dtype)
        for op in ops_for(dtype, n):
            if not variant.deterministic and op in ("sum", "mean") and dtype.is_floating_point:
                continue
            result = call(op, y, variant.name)
            assert result.is_cuda
            assert_same_bits(result.cpu(), call(op, x, variant.name), f"{op} of {n}")


@every_ordered_variant
def test_every_block_size_has_the_cpus_bits(variant, poisoned):
    needs_chip(variant)
    for dtype, n in itertools.product((torch.float32, torch.float64, torch.bfloat16), (1, 33, 1025, 65_537, 300_007)):
        x, y = pairs(n, dtype)
        for sizes in sizes_of(variant, num_blocks=(1, 2, 9, 64, 300)):
            for op in ("sum", "amax"):
                result = call(op, y, variant.name, **sizes)
                assert_same_bits(result.cpu(), call(op, x, variant.name, **sizes), f"{op} of {n} {dtype} {sizes}")


@every_ordered_variant
def test_integers_at_every_block_size(variant):
    needs_chip(variant)
    for dtype, n in itertools.product((torch.int8, torch.int64, torch.bool), (31, 10_007)):
        x, y = pairs(n, dtype)
        for sizes in sizes_of(variant):
            assert call("sum", y, variant.name, **sizes).item() == x.sum().item()
            assert call("amin", y, variant.name, **sizes).item() == x.amin().item() if dtype != torch.bool else True


@every_ordered_variant
def test_every_distribution_has_the_cpus_bits(variant):
    needs_chip(variant)
    for kind, dtype in itertools.product(cases.DISTRIBUTIONS, FLOATS):
        x, y = pairs(20_011, dtype, kind, seed=1)
        for op in cases.REDUCTIONS:
            assert_same_bits(call(op, y, variant.name).cpu(), call(op, x, variant.name), f"{op}, {kind} {dtype}")


@every_ordered_variant
def test_millions_have_the_cpus_bits(variant):
    needs_chip(variant)
    for n in cases.LONG_LENGTHS:
        if variant.name == "serial" and n > 2**20:
            continue  # one thread of a GPU
        for dtype in (torch.float32, torch.float16):
            x, y = pairs(n, dtype, "uniform")
            assert_same_bits(call("sum", y, variant.name).cpu(), call("sum", x, variant.name), f"{n} {dtype}")


@every_ordered_variant
@every_dtype((torch.float32, torch.float64, torch.float16, torch.int8))
def test_misaligned_slices_have_the_cpus_bits(dtype, variant):
    needs_chip(variant)
    x, y = pairs(70_000, dtype)
    for offset in range(17):
        for n in (7, 1030, 66_001):
            for op in ("sum", "amin"):
                result = call(op, y[offset : offset + n], variant.name)
                assert_same_bits(result.cpu(), call(op, x[offset : offset + n], variant.name), f"{n} at {offset}")


@every_variant
@every_dtype(FLOATS)
def test_nan_results_are_canonical(dtype, variant):
    needs_chip(variant)
    canonical = torch.tensor(float("nan"), dtype=dtype)
    inf = float("inf")
    for values in ([float("nan")], [-float("nan"), 1.0], [inf, -inf], [1.0, inf, 2.0, -inf, 3.0]):
        x = torch.zeros(5000, dtype=dtype, device="cuda")
        x[1111 : 1111 + len(values)] = torch.tensor(values, dtype=dtype, device="cuda")
        if dtype == torch.float32 and values[0] != values[0]:
            x[1111:1112].view(torch.int32).fill_(-1)  # a signalling pattern with every bit set
        for op in ("sum", "mean"):
            assert_same_bits(call(op, x, variant.name).cpu(), canonical, f"{op} with {values}")
        if values[0] != values[0]:
            for op in ("amax", "amin"):
                assert_same_bits(call(op, x, variant.name).cpu(), canonical, f"{op} with {values}")


@every_matmul_variant
@every_dtype((torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64))
def test_products_have_the_cpus_bits(dtype, variant, poison, poisoned):
    """Or, on tensor cores, values within their bound."""
    needs_dtype(variant, dtype)
    needs_chip(variant)
    poison()
    for m, k, n in (*SIZES, BIG, (513, 1000, 511)):
        a, b = operands(m, k, n, dtype)
        for sizes in tiles_of(variant):
            result = product(a.cuda(), b.cuda(), variant, **sizes)
            if variant.deterministic and has_cpus_bits(variant, a.cuda(), b.cuda()):
                assert_same_bits(result.cpu(), product(a, b, variant, **sizes), f"{(m, k, n)} {sizes}")
            else:
                assert_close(result, a, b, variant)


@every_matmul_variant
def test_products_of_any_layout_have_the_cpus_bits(variant):
    tables.needs_dtype(variant, torch.float32)
    needs_chip(variant)
    here, there = strided_operands("cpu"), strided_operands("cuda")
    for name in here:
        for sizes in tiles_of(variant):
            result = product(*there[name], variant, **sizes)
            if has_cpus_bits(variant, *there[name]):
                assert_same_bits(result.cpu(), product(*here[name], variant, **sizes), f"{name} {sizes}")
            else:
                assert_close(result, *here[name], variant)


@every_add_variant
@every_dtype(DTYPES)
def test_additions_have_the_cpus_bits(dtype, variant, poisoned):
    needs_chip(variant)
    for n in (*cases.LENGTHS, 6_000_011):
        a, b = cases.values(n, dtype, "wide", 1), cases.values(n, dtype, "wide", 2)
        ours = torch.ops.treduce.vector_add(a.cuda(), b.cuda(), variant.name)
        assert_same_bits(ours.cpu(), torch.ops.treduce.vector_add(a, b, variant.name), f"{n}")


@every_ordered_variant
def test_runs_do_not_differ(variant):
    needs_chip(variant)
    n = 100_003 if variant.name == "serial" else 3_000_017
    x = cases.values(n, torch.float32, "wide").cuda()
    first = call("sum", x, variant.name)
    for _ in range(3 if variant.name == "serial" else 30):
        assert_same_bits(call("sum", x, variant.name), first)


def test_runs_do_not_differ_under_load():
    """While another stream keeps the chip busy with other blocks."""
    x = cases.values(3_000_017, torch.float32, "wide").cuda()
    expected = {v.name: call("sum", x, v.name) for v in tables.ORDERED if v.name != "serial" and can_run(v)}
    torch.cuda.synchronize()
    load, here = torch.cuda.Stream(), torch.cuda.Stream()
    big = torch.randn(2048, 2048, device="cuda")
    torch.cuda.synchronize()
    for _ in range(5):
        with torch.cuda.stream(load):
            for _ in range(20):
                big = (big @ big).clamp_(-1, 1)
        with torch.cuda.stream(here):
            results = {name: call("sum", x, name) for name in expected}
        here.synchronize()
        for name, result in results.items():
            assert_same_bits(result, expected[name], name)
    torch.cuda.synchronize()


def test_atomic_is_within_its_bound_and_exact_where_it_can_be():
    for variant in (v for v in tables.WHOLE if not v.deterministic):
        for n in (1, 1000, 65_537, 3_000_017):
            for kind, dtype in itertools.product(("positive", "wide", "cancelling"), (torch.float32, torch.float64)):
                x, y = pairs(n, dtype, kind)
                for sizes in sizes_of(variant, (32, 1024)):
                    assert_within_bound(call("sum", y, variant.name, **sizes), "sum", x, variant, sizes)
            x, y = pairs(n, torch.int16)
            for op in ("sum", "amax", "amin"):
                assert_same_bits(call(op, y, variant.name).cpu(), call(op, x, variant.name))
            x, y = pairs(n, torch.float32, "wide")
            for op in ("amax", "amin"):
                assert_same_bits(call(op, y, variant.name).cpu(), call(op, x, variant.name))


# Streams, threads, devices.


def can_run(variant):
    return tables.can_run(tuple(variant.capability))


CALLS = [(op, v) for op in ("sum", "amax") for v in tables.WHOLE]
call_ids = [f"{op}-{v.name}" for op, v in CALLS]


@pytest.mark.parametrize(("op", "variant"), CALLS, ids=call_ids)
def test_the_current_stream_is_used(op, variant):
    """A slow producer on a side stream: a kernel on any other stream would read what was there before."""
    needs_chip(variant)
    side = torch.cuda.Stream()
    source = torch.ones(200_003, device="cuda")
    x = torch.full((200_003,), -5.0, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(20_000_000)
        x.copy_(source)
        result = call(op, x, variant.name)
    side.synchronize()
    assert result.item() == (200_003 if op == "sum" else 1)


def test_matmul_and_vector_add_use_the_current_stream():
    side = torch.cuda.Stream()
    ones = torch.ones(128, 128, device="cuda")
    for function in (torch.ops.treduce.matmul, torch.ops.treduce.vector_add):
        expected = function(ones, ones)
        x = torch.zeros(128, 128, device="cuda")
        torch.cuda.synchronize()
        with torch.cuda.stream(side):
            torch.cuda._sleep(20_000_000)
            x.copy_(ones)
            result = function(x, x)
        side.synchronize()
        assert_same_bits(result, expected)


@every_variant
def test_two_streams_at_once(variant):
    """Two inputs, two streams, no waiting between them: partials and counters must not be shared."""
    needs_chip(variant)
    n = 20_011 if variant.name == "serial" else 1_000_003
    inputs = [torch.full((n,), value, device="cuda", dtype=torch.int32) for value in (1, 2)]
    streams = [torch.cuda.Stream() for _ in inputs]
    torch.cuda.synchronize()
    results = [[], []]
    for _ in range(10 if variant.name == "serial" else 100):
        for x, stream, found in zip(inputs, streams, results, strict=True):
            with torch.cuda.stream(stream):
                found.append(call("sum", x, variant.name))
    torch.cuda.synchronize()
    for value, found in zip((1, 2), results, strict=True):
        assert torch.stack(found).eq(value * n).all()


def test_many_threads_each_with_its_stream():
    x = torch.ones(500_000, device="cuda")
    variants = [v.name for v in tables.WHOLE if v.name not in ("serial", "global_memory") and can_run(v)]
    torch.cuda.synchronize()
    wrong = []

    def work():
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(20):
                results = [call("sum", x, name) for name in variants]
                stream.synchronize()
                wrong.extend(name for name, r in zip(variants, results, strict=True) if r.item() != 500_000)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one GPU in this machine")
@every_variant
def test_a_device_that_is_not_the_current_one(variant):
    needs_chip(variant)
    x = cases.values(100_003, torch.float32, "wide")
    there = x.to("cuda:1")
    assert torch.cuda.current_device() == 0
    for op in cases.REDUCTIONS:
        result = call(op, there, variant.name)
        assert result.device == there.device and torch.cuda.current_device() == 0
        if variant.deterministic:
            assert_same_bits(result.cpu(), call(op, x, variant.name), op)
    with torch.cuda.device(1), torch.cuda.stream(torch.cuda.Stream()):
        result = call("amax", there, variant.name)
        torch.cuda.synchronize()
    assert result.item() == x.max().item()


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one GPU in this machine")
def test_two_operands_on_another_device():
    a, b = torch.randn(50, 60), torch.randn(60, 70)
    result = torch.ops.treduce.matmul(a.to("cuda:1"), b.to("cuda:1"))
    assert result.device.index == 1
    assert_same_bits(result.cpu(), torch.ops.treduce.matmul(a.to("cuda:0"), b.to("cuda:0")).cpu())
    total = torch.ops.treduce.vector_add(a.to("cuda:1"), a.to("cuda:1"))
    assert_same_bits(total.cpu(), a + a)
    for pair in ((a.to("cuda:0"), b.to("cuda:1")), (a.to("cuda:1"), b.to("cuda:0"))):
        with pytest.raises(ValueError, match="one device"):
            torch.ops.treduce.matmul(*pair)


# CUDA graphs.


@every_variant
def test_a_graph_replayed_hundreds_of_times(variant):
    needs_chip(variant)
    n = 3001 if variant.name == "serial" else 300_007
    x = torch.zeros(n, dtype=torch.int32, device="cuda")
    graph, result = captured(lambda: call("sum", x, variant.name))
    found = []
    for i in range(300):
        x.fill_(i)
        graph.replay()
        found.append(result.clone())
    expected = torch.arange(300, device="cuda") * n
    assert torch.equal(torch.stack(found), expected)


@every_ordered_variant
def test_a_graph_has_the_bits_of_a_call(variant):
    needs_chip(variant)
    n = 3001 if variant.name == "serial" else 100_003
    x = torch.zeros(n, device="cuda")
    graph, (total, largest) = captured(lambda: (call("mean", x, variant.name), call("amax", x, variant.name)))
    for seed in range(10):
        host = cases.values(n, torch.float32, "wide", seed)
        x.copy_(host)
        graph.replay()
        assert_same_bits(total.cpu(), call("mean", host, variant.name))
        assert_same_bits(largest.cpu(), call("amax", host, variant.name))


@every_variant
def test_two_graphs_at_once(variant):
    """Replayed on two streams without waiting: what one graph keeps between its kernels is its own."""
    needs_chip(variant)
    n = 3001 if variant.name == "serial" else 1_000_003
    inputs = [torch.full((n,), value, device="cuda", dtype=torch.int32) for value in (1, 2)]
    graphs = [captured(lambda x=x: call("sum", x, variant.name)) for x in inputs]
    streams = [torch.cuda.Stream() for _ in graphs]
    torch.cuda.synchronize()
    found = [[], []]
    for _ in range(100):
        for (graph, result), stream, results in zip(graphs, streams, found, strict=True):
            with torch.cuda.stream(stream):
                graph.replay()
                results.append(result.clone())
    torch.cuda.synchronize()
    for value, results in zip((1, 2), found, strict=True):
        assert torch.stack(results).eq(value * n).all()


@every_variant
def test_a_graph_beside_eager_calls(variant):
    needs_chip(variant)
    n = 3001 if variant.name == "serial" else 1_000_003
    x, y = (torch.full((n,), value, device="cuda", dtype=torch.int32) for value in (1, 2))
    graph, result = captured(lambda: call("sum", x, variant.name))
    side = torch.cuda.Stream()
    torch.cuda.synchronize()
    replayed, eager = [], []
    for _ in range(50):
        with torch.cuda.stream(side):
            graph.replay()
            replayed.append(result.clone())
        eager.append(call("sum", y, variant.name))
    torch.cuda.synchronize()
    assert torch.stack(replayed).eq(n).all() and torch.stack(eager).eq(2 * n).all()


def test_many_graphs_come_and_go():
    """Each captured call holds what it needs as long as its graph lives, and gives it back."""
    x = torch.ones(100_003, device="cuda")
    for _ in range(60):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            results = [call("sum", x, "single_pass") for _ in range(100)]
        graph.replay()
        assert torch.stack(results).eq(100_003).all()
        del graph


def test_a_graph_of_everything():
    a, b = torch.randn(70, 50, device="cuda"), torch.randn(50, 60, device="cuda")

    def function():
        c = torch.ops.treduce.matmul(a, b, "tiled")
        d = torch.ops.treduce.vector_add(c, c)
        return call("sum", d), call("amin", d, "v5"), call("mean", d, "cooperative")

    graph, results = captured(function)
    for seed in range(5):
        torch.manual_seed(seed)
        a.normal_()
        graph.replay()
        for replayed, eager in zip(results, function(), strict=True):
            assert_same_bits(replayed, eager)


def test_a_training_step_in_a_graph():
    w = torch.randn(30, 20, device="cuda", requires_grad=True)
    x = torch.randn(10, 30, device="cuda")

    def step():
        loss = torch.ops.treduce.mean(torch.ops.treduce.matmul(x, w).square())
        return torch.autograd.grad(loss, w)[0]

    graph, grad = captured(step)
    x.normal_()
    graph.replay()
    assert_same_bits(grad, step())


# Size.


@pytest.mark.slow
@every_variant
def test_more_than_2_to_the_31_elements(variant, much_memory):
    needs_chip(variant)
    if variant.name == "serial":
        pytest.skip("one thread would take minutes")
    scratch = variant.name == "global_memory"
    much_memory(24 if scratch else 4)
    x = torch.ones(HUGE, dtype=torch.int8, device="cuda")
    # Where an index of 32 bits would wrap, and the ends.
    places = (0, 2**30, 2**31 - 1, 2**31, HUGE - 1)
    for i, place in enumerate(places):
        x[place] = 10 + i
    expected = HUGE + sum(9 + i for i in range(len(places)))
    assert call("sum", x, variant.name).item() == expected
    assert call("amax", x, variant.name).item() == 14
    x[2**31 + 1] = -7
    assert call("amin", x, variant.name).item() == -7
    if variant.sizes and not scratch:
        assert call("sum", x, variant.name, block_size=variant.sizes[-1]).item() == expected - 8
        assert call("sum", x, variant.name, block_size=128).item() == expected - 8


@pytest.mark.slow
@every_add_variant
def test_adding_more_than_2_to_the_31_elements(variant, much_memory):
    needs_chip(variant)
    much_memory(10)
    x = torch.zeros(HUGE, dtype=torch.int8, device="cuda")
    places = torch.tensor((0, 2**30, 2**31 - 1, 2**31, HUGE - 1), device="cuda")
    x[places] = 5
    y = torch.ops.treduce.vector_add(x, x, variant.name)
    assert y[places].eq(10).all() and y.count_nonzero() == len(places)


@pytest.mark.slow
@every_matmul_variant
def test_a_product_with_more_than_2_to_the_31_outputs(variant, much_memory):
    needs_dtype(variant, torch.float16)
    needs_chip(variant)
    much_memory(6)
    m = n = 46_351  # m * n is 2^31 and a little
    assert m * n > 2**31
    a, b = (torch.randn(shape, device="cuda").half() for shape in ((m, 3), (3, n)))
    c = product(a, b, variant)
    # By the CPU, or on tensor cores one output at a time, which has the same bits.
    reference = "cpu" if has_cpus_bits(variant, a, b) else "cuda"
    x, y = a.to(reference), b.to(reference)
    g = cases.generator(1)
    rows = torch.cat([torch.tensor([0, m // 2, m - 1]), torch.randint(0, m, (200,), generator=g)])
    columns = torch.cat([torch.tensor([0, n // 2, n - 1]), torch.randint(0, n, (200,), generator=g)])
    for i, j in ((rows, columns), (rows.flip(0), columns)):
        found = c[i.cuda(), j.cuda()].cpu()
        expected = torch.stack(
            [product(x[r : r + 1], y[:, s : s + 1], variant)[0, 0].cpu() for r, s in zip(i, j, strict=True)]
        )
        assert_same_bits(found, expected)
    # The last rows as a whole, which lie past 2^31.
    assert_same_bits(c[-16:].cpu(), product(x[-16:], y, variant).cpu())
    assert_close(c[-16:], a[-16:], b, variant)


@pytest.mark.slow
@every_matmul_variant
def test_operands_with_offsets_past_2_to_the_31(variant, much_memory):
    needs_dtype(variant, torch.float16)
    needs_chip(variant)
    much_memory(6)
    memory = torch.zeros(2**31 + 2**21, dtype=torch.float16, device="cuda")
    # Two matrices, their rows and the batch strides all far apart.
    a = memory.as_strided((2, 2, 8), (2**31, 2**20, 1))
    values = torch.randn(2, 2, 8).half()
    a[0], a[1, 0] = values[0].cuda(), values[1, 0].cuda()
    a = a[:, :1]
    b = torch.randn(8, 5).half()
    reference = "cpu" if has_cpus_bits(variant, a, b.cuda()) else "cuda"
    near = values[:, :1].to(reference), b.to(reference)
    assert_same_bits(product(a, b.cuda(), variant).cpu(), product(*near, variant).cpu())
    far = memory.as_strided((8, 2), (1, 2**31)).t()
    near = far.contiguous().to(reference), b.to(reference)
    assert_same_bits(product(far, b.cuda(), variant).cpu(), product(*near, variant).cpu())
    assert_close(product(far, b.cuda(), variant), far.contiguous(), b, variant)


@every_variant
@every_dtype((torch.float32, torch.int8))
def test_a_reduction_needs_little_memory(dtype, variant, much_memory):
    """Less than 1 % of its input; global_memory aside, whose idea is a copy."""
    needs_chip(variant)
    if variant.name in ("serial", "global_memory"):
        pytest.skip("takes minutes" if variant.name == "serial" else "copies its input, by design")
    x = torch.ones(2**26, dtype=dtype, device="cuda")
    call("sum", x[:1000], variant.name)
    for op in ("sum", "amax"):
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        free = torch.cuda.mem_get_info()[0]
        call(op, x, variant.name)
        torch.cuda.synchronize()
        peak = torch.cuda.max_memory_allocated() - before
        assert peak < 0.01 * x.numel() * x.element_size()
        assert free - torch.cuda.mem_get_info()[0] < 64 * 2**20  # nor behind the allocator's back


def test_nothing_leaks():
    x = torch.randn(1_000_003, device="cuda")
    rows = [v.name for v in tables.WHOLE if v.name != "serial" and can_run(v)]
    for name in rows:
        call("sum", x, name)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated(), torch.cuda.mem_get_info()[0]
    for _ in range(200):
        for name in rows:
            call("sum", x, name)
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() == before[0]
    assert before[1] - torch.cuda.mem_get_info()[0] < 32 * 2**20


# Scratch and outputs that hold garbage.


@every_variant
def test_garbage_in_scratch_and_outputs_does_not_show(variant, poison):
    needs_chip(variant)
    for n in (1, 2, 31, 1025, 300_007):
        if variant.name == "serial" and n > 10_000:
            continue
        x = torch.ones(n, device="cuda")
        y = torch.ones(n, device="cuda", dtype=torch.int32)
        for sizes in sizes_of(variant, (32, 1024), (1, 9)):
            poison()
            for _ in range(3):
                assert call("sum", x, variant.name, **sizes).item() == n
                assert call("amin", x, variant.name, **sizes).item() == 1
                assert call("sum", y, variant.name, **sizes).item() == n


@every_variant
def test_no_element_outside_the_input_is_read_into_it(variant):
    """NaN before and after: a load past either end that is used would show."""
    needs_chip(variant)
    memory = torch.full((400_000,), float("nan"), device="cuda")
    for start, n in ((16, 1), (17, 5), (19, 31), (64, 1024), (65, 1025), (100, 4095), (33, 262_145)):
        if variant.name == "serial" and n > 10_000:
            continue
        x = memory[start : start + n]
        x.fill_(1)
        for sizes in sizes_of(variant, (32, 1024), (3,)):
            assert call("sum", x, variant.name, **sizes).item() == n
            assert call("amax", x, variant.name, **sizes).item() == 1
        x.fill_(float("nan"))


@every_matmul_variant
def test_no_element_outside_the_operands_is_read_into_a_product(variant):
    tables.needs_dtype(variant, torch.float32)
    needs_chip(variant)
    memory = torch.full((200, 200), float("nan"), device="cuda")
    for m, k, n in ((1, 1, 1), (17, 9, 33), (33, 31, 65), (64, 64, 64)):
        other = memory.clone()
        a, b = memory[7 : 7 + m, 9 : 9 + k], other[3 : 3 + k, 5 : 5 + n]
        a.fill_(1)
        b.fill_(2)
        for sizes in tiles_of(variant):
            assert product(a, b, variant, **sizes).eq(2 * k).all()
            assert product(b.t(), a.t(), variant, **sizes).eq(2 * k).all()
        memory.fill_(float("nan"))


# Errors on the GPU.


def test_a_chip_that_is_too_old_is_told_so():
    for variant in tables.WHOLE:
        if not can_run(variant):
            with pytest.raises(NotImplementedError, match=f"{variant.name}.*compute capability"):
                call("sum", torch.ones(10, device="cuda"), variant.name)


def test_num_blocks_that_a_cooperative_launch_cannot_hold():
    """More blocks than are resident at once: the same bits, as everywhere."""
    x = cases.values(100_003, torch.float32, "wide")
    y = x.cuda()
    for blocks in (1, 1000, 5000, 20_000):
        for name in ("cooperative", "vectorized", "single_pass"):
            result = call("sum", y, name, num_blocks=blocks, block_size=1024)
            assert_same_bits(result.cpu(), call("sum", x, name, num_blocks=blocks, block_size=1024), f"{name} {blocks}")


@every_variant
def test_grids_larger_than_the_input(variant):
    needs_chip(variant)
    if not variant.takes_num_blocks:
        pytest.skip("takes no num_blocks")
    x, y = pairs(1000, torch.float32)
    for blocks in (999, 70_000, 300_000):
        for op in ("sum", "amin"):
            result = call(op, y, variant.name, num_blocks=blocks, block_size=32)
            expected = call(op, x, variant.name, num_blocks=blocks, block_size=32)
            if variant.deterministic or op == "amin":
                assert_same_bits(result.cpu(), expected, f"{blocks}")
            else:
                assert_within_bound(result, op, x, variant, {"num_blocks": blocks, "block_size": 32})
