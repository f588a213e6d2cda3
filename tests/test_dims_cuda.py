"""Reductions along dims on a GPU: the CPU's bits for every geometry, dtype and rung, from any grid, on any stream, in
graphs, past 2^32 elements."""

import collections
import itertools
import math
import threading

import cases
import orders
import pytest
import tables
import torch
from bits import assert_same_bits, bits
from cases import EVERY_DTYPE, REDUCTIONS
from graphs import captured
from tables import attempt, call, every_dtype, every_variant_along_dims

pytestmark = pytest.mark.cuda

AUTO = tables.row("sum", "auto")
RAN = collections.Counter()  # calls that a rung took: what it refuses everywhere has been tested nowhere


def rungs():
    return [v for v in tables.ALONG_DIMS if tables.can_run(tuple(v.capability))]


def slow(variant, n):
    """One thread, or one warp, for so many elements."""
    return n > {"thread": 50_000, "row_warp": 2_000_000}.get(variant.name, math.inf)


def launched(op, x, variant, **arguments):
    result = attempt(op, x, variant, **arguments)
    RAN[variant.name] += result is not None
    return result


def ops_for(dtype, x, dim):
    nothing = 0 in [x.shape[d] for d in orders.dims_of(x, dim)]
    return [op for op in REDUCTIONS if tables.takes(AUTO, op, dtype) and not (op.startswith("a") and nothing)]


def same(a, b):
    """As bits, on the GPU, where comparing costs no copy."""
    if a.is_complex():
        a, b = torch.view_as_real(a), torch.view_as_real(b)
    word = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[a.element_size()]
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a.view(word), b.view(word))


def assert_cpus_bits(op, here, there, dim, variants, what, **arguments):
    """Every rung that takes the geometry, against the CPU's result of the same order."""
    expected = {}
    for variant in variants:
        if slow(variant, here.numel() // max(math.prod(orders.shape_of(here, dim, False)), 1)):
            continue
        result = launched(op, there, variant, dim=dim, **arguments)
        if result is None:
            continue
        if variant.order not in expected:
            expected[variant.order] = call(op, here, variant.name, dim=dim, **arguments)
        known = expected[variant.order]
        known = expected[variant.order] = known if known.is_cuda else known.cuda()
        if not same(result, known):
            assert_same_bits(result.cpu(), known.cpu(), f"{op} {what}, {variant.name}")


# The CPU's bits.


@pytest.mark.parametrize("name", cases.geometries(1))
@every_dtype(EVERY_DTYPE)
def test_every_geometry_has_the_cpus_bits(dtype, name, poisoned):
    for n in cases.ROW_LENGTHS:
        shape, view, dim = cases.geometries(n)[name]
        here, there = (cases.along(shape, view, dtype, device) for device in ("cpu", "cuda"))
        assert here.stride() == there.stride()
        for op in ops_for(dtype, here, dim)[:: 1 if n < 1500 else 2]:  # sum and amax of long rows
            # Nothing is rounded but in sums of floats: the precise rungs differ nowhere else.
            precise = op == "sum" and n < 2000 and (dtype.is_floating_point or dtype.is_complex)
            variants = [v for v in rungs() if v.order == "pairwise" or (precise and tables.takes(v, op, dtype))]
            assert_cpus_bits(op, here, there, dim, variants, f"{name} of {n}")


SOME = (
    "whole",
    "rows",
    "many_rows",
    "columns",
    "many_columns",
    "middle",
    "outer_and_inner",
    "channels_last_batch_norm",
)


@pytest.mark.parametrize("name", SOME)
def test_any_grid_has_the_cpus_bits(name, poisoned):
    """A chip of 1, 7, 66 or 132 multiprocessors, and every block size."""
    for n, dtype in itertools.product((33, 1025, 8191, cases.LONG_ROW), (torch.float32, torch.float16, torch.float64)):
        shape, view, dim = cases.geometries(n)[name]
        here, there = (cases.along(shape, view, dtype, device) for device in ("cpu", "cuda"))
        expected = {order: call("sum", here, v, dim=dim).cuda() for order, v in PRECISION.items()}
        for variant in rungs():
            if slow(variant, n) or (variant.order == "exact" and n > 2000):
                continue
            for block, blocks in itertools.product((None, 32, 128, 1024), (1, 7, 66, 132)):
                result = launched("sum", there, variant, dim=dim, block_size=block, num_blocks=blocks)
                if result is not None:
                    assert same(result, expected[variant.order]), (
                        f"{variant.name}, {name} of {n} {dtype}, {block} {blocks}"
                    )


PRECISION = {"pairwise": "auto", "compensated": "compensated", "exact": "exact"}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8], ids=str)
def test_millions_have_the_cpus_bits_along_dims(dtype):
    for shape, dim in (
        ((6_000_011,), None),
        ((1, 6_000_011), 1),
        ((6_000_011, 1), 0),
        ((2_000_003, 3), 0),
        ((2_000_003, 3), 1),
        ((16, 300_007), 1),
        ((300_007, 16), 0),
        ((2048, 2053), 1),
        ((2053, 2048), 0),
        ((8, 100_003, 7), 1),
        ((64, 16, 65, 63), (0, 2, 3)),
        ((50_257, 96), 0),
        ((500_009, 8), 1),
    ):
        here = cases.values(math.prod(shape), dtype, "uniform").view(shape)
        there = here.cuda()
        for op in ("sum", "amax"):
            variants = [v for v in rungs() if v.order == "pairwise"]
            assert_cpus_bits(op, here, there, dim, variants, f"{shape} along {dim}")


@every_dtype((torch.float32, torch.float64, torch.float16, torch.int8, torch.complex64))
def test_every_alignment_has_the_cpus_bits(dtype):
    for n in (7, 48, 1030, 9000):
        here = cases.values(7 * n + 40, dtype, "normal")
        there = here.cuda()
        for offset in range(17):
            for size, stride, dim in (((6, n), (n + offset % 2, 1), 1), ((n, 6), (6, 1), 0), ((n,), (1,), None)):
                views = [x.as_strided(size, stride, offset) for x in (here, there)]
                variants = [v for v in rungs() if v.order == "pairwise"]
                assert_cpus_bits("sum", *views, dim, variants, f"{size} at {offset}")


def test_conversions_have_the_cpus_bits():
    for source in EVERY_DTYPE:
        for target in (*cases.DTYPES, *cases.COMPLEX):
            if (source.is_complex and not target.is_complex) or (
                source.is_floating_point and not (target.is_floating_point or target.is_complex)
            ):
                continue
            here = cases.values(7 * 1100, source, "uniform").view(7, 1100)
            for view, dim in ((lambda x: x, 1), (lambda x: x.t().contiguous(), 0), (lambda x: x[:, ::3], 1)):
                variants = [v for v in rungs() if v.order != "exact" and tables.takes(v, "sum", target)]
                what = f"{source} as {target}"
                assert_cpus_bits("sum", view(here), view(here.cuda()), dim, variants, what, dtype=target)


def test_every_rung_ran():
    """The last of the tests that count."""
    if not RAN:
        pytest.skip("runs after the tests above")
    for variant in rungs():
        assert RAN[variant.name] > 50, f"{variant.name} took {RAN[variant.name]} calls"


# Garbage.


@every_variant_along_dims
def test_garbage_in_outputs_and_scratch_does_not_show_along_dims(variant, poison):
    tables.needs_chip(variant)
    for shape, dim in work_of(variant):
        x = torch.ones(shape, device="cuda")
        n = x.numel() // math.prod(s for d, s in enumerate(shape) if d != dim)
        poison()
        for op, expected in (("sum", n), ("amin", 1), ("mean", 1), ("sum", n)):
            result = attempt(op, x, variant, dim=dim)
            if result is not None:
                assert result.eq(expected).all(), f"{op} of {shape} along {dim}"


@every_variant_along_dims
def test_no_element_outside_a_view_is_read_into_it(variant):
    """NaN all around: a load past an end that is used would show."""
    tables.needs_chip(variant)
    for rows, columns in ((1, 5), (7, 3), (40, 33), (130, 64), (5, 1025), (1025, 5), (3, 20_000), (20_000, 3)):
        memory = torch.full((rows + 4, columns + 8), float("nan"), device="cuda")
        for top, left in ((1, 1), (2, 4), (3, 3)):
            x = memory[top : top + rows, left : left + columns]
            x.fill_(1)
            for dim, n in ((0, rows), (1, columns), ((0, 1), rows * columns)):
                for op, expected in (("sum", n), ("amax", 1)):
                    result = attempt(op, x, variant, dim=dim)
                    if result is not None:
                        assert result.eq(expected).all(), f"{op} of {rows} by {columns} at {left} along {dim}"
            memory.fill_(float("nan"))
        flat = torch.full((rows * columns + 64,), float("nan"), device="cuda")
        for offset in (16, 17, 19):
            x = flat[offset : offset + rows * columns].fill_(1).view(rows, columns)
            for dim, n in ((0, rows), (1, columns)):
                result = attempt("sum", x, variant, dim=dim)
                assert result is None or result.eq(n).all(), f"{rows} by {columns} at {offset} along {dim}"
            flat.fill_(float("nan"))


# Streams and graphs.

# One or two shapes for every way of sharing the work: an output a thread, a warp, a block, and many blocks an output.
WORK = (
    ((5000, 7), 1),
    ((3000, 64), 1),
    ((700, 2000), 1),
    ((3, 700_001), 1),
    ((1, 2_000_003), 1),
    ((2000, 700), 0),
    ((300_007, 6), 0),
    ((400_003, 40), 0),
    ((40, 50, 60), 1),
)


def work_of(variant):
    return [(shape, dim) for shape, dim in WORK if not slow(variant, shape[dim])]


@every_variant_along_dims
def test_the_current_stream_is_used_along_dims(variant):
    tables.needs_chip(variant)
    side = torch.cuda.Stream()
    for shape, dim in work_of(variant):
        x = torch.full(shape, -5, device="cuda", dtype=torch.int32)
        if attempt("sum", x, variant, dim=dim) is None:
            continue
        torch.cuda.synchronize()
        with torch.cuda.stream(side):
            torch.cuda._sleep(5_000_000)
            x.fill_(1)
            result = call("sum", x, variant.name, dim=dim)
        side.synchronize()
        assert result.eq(shape[dim]).all(), f"{shape} along {dim}"


@every_variant_along_dims
def test_two_streams_at_once_along_dims(variant):
    """No waiting between them: partials and counters must not be shared."""
    tables.needs_chip(variant)
    streams = [torch.cuda.Stream() for _ in range(2)]
    for shape, dim in work_of(variant):
        inputs = [torch.full(shape, value, device="cuda", dtype=torch.int32) for value in (1, 2)]
        if attempt("sum", inputs[0], variant, dim=dim) is None:
            continue
        torch.cuda.synchronize()
        results = [[], []]
        for _ in range(30):
            for x, stream, found in zip(inputs, streams, results, strict=True):
                with torch.cuda.stream(stream):
                    found.append(call("sum", x, variant.name, dim=dim))
        torch.cuda.synchronize()
        for value, found in zip((1, 2), results, strict=True):
            assert torch.stack(found).eq(value * shape[dim]).all(), f"{shape} along {dim}"


def test_many_threads_each_with_its_stream_along_dims():
    inputs = [(torch.ones(shape, device="cuda"), dim) for shape, dim in WORK]
    torch.cuda.synchronize()
    wrong = []

    def work():
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(20):
                results = [call("sum", x, dim=dim) for x, dim in inputs]
                stream.synchronize()
                for (x, dim), result in zip(inputs, results, strict=True):
                    if not result.eq(x.shape[dim]).all():
                        wrong.append((x.shape, dim))

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@every_variant_along_dims
def test_a_graph_has_the_bits_of_the_cpu_along_dims(variant):
    """Captured once, replayed on new data."""
    tables.needs_chip(variant)
    for shape, dim in (((500, 7), 1), ((70, 2000), 1), ((2, 300_001), 1), ((2000, 70), 0), ((100_003, 6), 0)):
        x = torch.zeros(shape, device="cuda")
        if attempt("sum", x, variant, dim=dim) is None:
            continue
        graph, (total, largest) = captured(
            lambda x=x, dim=dim: (call("sum", x, variant.name, dim=dim), call("amax", x, variant.name, dim=dim))
        )
        for seed in range(4):
            host = cases.values(math.prod(shape), torch.float32, "wide", seed).view(shape)
            x.copy_(host)
            total.fill_(float("nan"))
            graph.replay()
            assert_same_bits(total.cpu(), call("sum", host, variant.name, dim=dim), f"{shape} along {dim}")
            assert_same_bits(largest.cpu(), call("amax", host, dim=dim), f"{shape} along {dim}")


@every_variant_along_dims
def test_two_graphs_at_once_along_dims(variant):
    """Replayed on two streams without waiting, beside eager calls on a third: what one graph keeps is its own."""
    tables.needs_chip(variant)
    streams = [torch.cuda.Stream() for _ in range(2)]
    for shape, dim in work_of(variant):
        inputs = [torch.full(shape, value, device="cuda", dtype=torch.int32) for value in (1, 2, 3)]
        if attempt("sum", inputs[0], variant, dim=dim) is None:
            continue
        graphs = [captured(lambda x=x, dim=dim: call("sum", x, variant.name, dim=dim)) for x in inputs[:2]]
        torch.cuda.synchronize()
        found = [[], [], []]
        for _ in range(30):
            for (graph, result), stream, results in zip(graphs, streams, found, strict=False):
                with torch.cuda.stream(stream):
                    graph.replay()
                    results.append(result.clone())
            found[2].append(call("sum", inputs[2], variant.name, dim=dim))
        torch.cuda.synchronize()
        for value, results in zip((1, 2, 3), found, strict=True):
            assert torch.stack(results).eq(value * shape[dim]).all(), f"{shape} along {dim}"


@every_variant_along_dims
def test_launches_overlap_and_wait_along_dims(variant):
    """Each reads what the launch before wrote, torch's or ours, and has read it before the next one writes."""
    tables.needs_chip(variant)
    for shape, dim in work_of(variant):
        x = torch.zeros(shape, device="cuda", dtype=torch.int32)
        if attempt("sum", x, variant, dim=dim) is None:
            continue

        def chain(x=x, dim=dim):
            found = []
            for value in range(1, 21):
                x.fill_(value)
                sums = call("sum", x, variant.name, dim=dim)
                found.append((sums, call("sum", sums), call("sum", x, variant.name, dim=dim)))
            return found

        graph, replayed = captured(chain)
        for found in (chain(), graph.replay() or replayed):
            for value, (sums, total, again) in enumerate(found, 1):
                assert sums.eq(value * shape[dim]).all() and same(sums, again), f"{shape} along {dim}, {value}"
                assert total.item() == value * x.numel(), f"{shape} along {dim}, {value}"


def test_a_graph_of_many_calls():
    """Hundreds of calls in one graph, each with counters of its own, replayed again and again."""
    x = torch.ones(2, 300_001, device="cuda", dtype=torch.int32)
    y = torch.ones(200_003, 6, device="cuda", dtype=torch.int32)
    graph, results = captured(
        lambda: [call("sum", x, dim=1) for _ in range(100)] + [call("sum", y, dim=0) for _ in range(100)]
    )
    for value in range(1, 20):
        x.fill_(value)
        y.fill_(value)
        graph.replay()
        assert torch.stack(results[:100]).eq(300_001 * value).all()
        assert torch.stack(results[100:]).eq(200_003 * value).all()


def test_runs_do_not_differ_under_load_along_dims():
    """While another stream keeps the chip busy with other blocks."""
    inputs = [(cases.values(math.prod(shape), torch.float32, "wide").view(shape).cuda(), dim) for shape, dim in WORK]
    expected = {}
    for variant in rungs():
        for i, (x, dim) in enumerate(inputs):
            result = None if slow(variant, x.shape[dim]) else attempt("sum", x, variant, dim=dim)
            if result is not None:
                expected[variant.name, i] = result
    load, here = torch.cuda.Stream(), torch.cuda.Stream()
    big = torch.randn(2048, 2048, device="cuda")
    torch.cuda.synchronize()
    for _ in range(5):
        with torch.cuda.stream(load):
            for _ in range(30):
                big = (big @ big).clamp_(-1, 1)
        with torch.cuda.stream(here):
            results = {key: call("sum", inputs[key[1]][0], key[0], dim=inputs[key[1]][1]) for key in expected}
        here.synchronize()
        for key, result in results.items():
            assert same(result, expected[key]), key
    torch.cuda.synchronize()


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one GPU in this machine")
@every_variant_along_dims
def test_a_device_that_is_not_the_current_one_along_dims(variant):
    tables.needs_chip(variant)
    for shape, dim in work_of(variant):
        x = cases.values(math.prod(shape), torch.float32, "wide").view(shape)
        result = attempt("sum", x.to("cuda:1"), variant, dim=dim)
        assert torch.cuda.current_device() == 0
        if result is not None:
            assert result.device.index == 1
            assert_same_bits(result.cpu(), call("sum", x, variant.name, dim=dim), f"{shape} along {dim}")


# Size. Elements past 2^31 and 2^32 in each role: as batch, as what is reduced, as a stride.


def big_ones(shape, dtype=torch.int8):
    return torch.ones(shape, dtype=dtype, device="cuda")


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["auto", "row_block", "exact", "compensated"])
def test_reducing_more_than_2_to_the_32_elements(variant, much_memory):
    much_memory(6)
    variant = tables.row("sum", variant)
    n = 2**32 + 5
    x = big_ones(n)
    for i, place in enumerate((0, 2**31 - 1, 2**31, 2**32 - 1, 2**32, n - 1)):
        x[place] = 10 + i
    expected = n + sum(9 + i for i in range(6))
    half = 2**31 + 2
    # As they are, and converted while they are read. Sums of integers are plain, so the precise rungs get floats alone.
    for dtype in [{}, {"dtype": torch.float64}] if variant.order == "pairwise" else [{"dtype": torch.float64}]:
        for view, dim in ((x, None), (x.view(1, n), 1), (x.view(n, 1), 0)):
            result = attempt("sum", view, variant, dim=dim, **dtype)
            if result is not None:
                assert result.item() == expected
                assert call("amax", view, variant.name, dim=dim).item() == 15
        result = attempt("sum", x[: 2 * half].view(2, half), variant, dim=1, **dtype)
        if result is not None:
            assert result.tolist() == [half + 9 + 10 + 11, half + 12 + 13]


@pytest.mark.slow
def test_reduced_columns_past_2_to_the_32(much_memory):
    much_memory(6)
    for columns in (2, 9, 70, 4096):
        rows = 2**32 // columns + 3
        x = big_ones((rows, columns))
        x[rows - 1, columns - 1] = 7
        x[rows - 2, 0] = 5
        for variant in rungs():
            if variant.order != "pairwise" or slow(variant, rows):
                continue
            result = attempt("sum", x, variant, dim=0)
            if result is not None:
                expected = torch.full((columns,), rows, device="cuda")
                expected[0] += 4
                expected[columns - 1] += 6
                assert torch.equal(result, expected), f"{variant.name}, {columns} columns"
        del x


@pytest.mark.slow
def test_batches_past_2_to_the_32(much_memory):
    much_memory(10)
    for columns in (3, 64, 1000, 4096):
        rows = 2**32 // columns + 3
        x = big_ones((rows, columns))
        x[rows - 1, columns - 1] = 7
        x[rows // 2, 0] = 5
        for variant in rungs():
            if variant.order != "pairwise":
                continue
            op = "amax" if columns == 3 else "sum"  # whose outputs are small
            result = attempt(op, x, variant, dim=1)
            if result is None:
                continue
            plain = 1 if op == "amax" else columns
            others = {"amax": (7, 5), "sum": (columns + 6, columns + 4)}[op]
            assert (result[rows - 1].item(), result[rows // 2].item()) == others, f"{variant.name}, {columns} columns"
            assert result.ne(plain).sum().item() == 2, f"{variant.name}, {columns} columns"
            del result
        del x


@pytest.mark.slow
def test_more_than_2_to_the_31_outputs(much_memory):
    much_memory(9)
    outputs = 2**31 + 7
    for shape, dim in (((outputs, 2), 1), ((2, outputs), 0)):
        x = big_ones(shape)
        flat = x.view(-1)
        flat[-1] = 3
        flat[2**31 + 1] = 4
        expected = flat.view(shape)
        result = call("amax", x, dim=dim)
        assert result[-1].item() == 3 and result.shape == (outputs,)
        assert result.ne(1).sum().item() == expected.ne(1).sum().item() == 2
        del x, flat, result, expected


@pytest.mark.slow
def test_strides_past_2_to_the_32(much_memory):
    """Small tensors whose rows, columns or batches lie billions of elements apart."""
    much_memory(10)
    memory = torch.zeros(2**33 + 2**16, dtype=torch.int8, device="cuda")
    for size, stride in (
        ((3, 50), (2**32, 1)),
        ((3, 50), (2**31 + 1, 1)),
        ((50, 3), (1, 2**32)),
        ((2, 5, 3), (2**32 + 3, 7, 2**31)),
        ((2, 2, 200), (2**31, 2**32, 1)),
        ((2, 200, 2), (2**32, 2, 1)),
    ):
        x = memory.as_strided(size, stride)
        host = cases.values(math.prod(size), torch.int8).view(size)
        x.copy_(host)
        for dim in (*range(len(size)), tuple(range(len(size)))):
            for op, variant in itertools.product(("sum", "amin"), rungs()):
                result = attempt(op, x, variant, dim=dim)
                if result is not None:
                    expected = call(op, host, dim=dim)
                    assert_same_bits(result.cpu(), expected, f"{variant.name} {op} of {size} by {stride} along {dim}")


@pytest.mark.slow
def test_halves_past_2_to_the_31_have_the_bits_of_their_rows(much_memory):
    much_memory(10)
    n = 2**31 + 11
    x = torch.empty(2, n, dtype=torch.float16, device="cuda")
    for part in x.view(-1).split(2**28):
        part.uniform_(-1, 1)
    rows = call("sum", x, dim=1)
    assert_same_bits(rows[0], call("sum", x[0]))
    assert_same_bits(rows[1], call("sum", x[1]))
    wide = call("sum", x[1], dtype=torch.float32)  # float16 would overflow: rounding leaves uniform_ a small mean
    torch.testing.assert_close(wide.double(), x[1].sum(dtype=torch.float64), rtol=1e-4, atol=100.0)
    assert_same_bits(rows[1], wide.half())
    wide = torch.as_strided(x, (5, 2**28 + 1), (2**28 + 3, 1))
    for i, result in enumerate(call("sum", wide, dim=1)):
        assert_same_bits(result, call("sum", wide[i]), f"row {i}")


def test_expanded_past_2_to_the_32():
    """Lengths without memory: strides of zero."""
    one = torch.full((1,), 3, dtype=torch.int8, device="cuda")
    n = 2**32 + 9
    assert call("sum", one.expand(n)).item() == 3 * n
    assert call("sum", one.view(1, 1).expand(n, 2), dim=0).tolist() == [3 * n] * 2
    assert call("amax", one.view(1, 1).expand(2, n), dim=1).tolist() == [3, 3]


# Memory.


@every_variant_along_dims
def test_a_reduction_along_dims_needs_little_memory(variant, much_memory):
    """Less than 1 % of the input beside the output."""
    tables.needs_chip(variant)
    for shape, dim in (
        ((1, 2**26), 1),
        ((64, 2**20), 1),
        ((2**20, 64), 0),
        ((2**22, 16), 0),
        ((2**22, 16), 1),
        ((2**26,), None),
    ):
        x = big_ones(shape)
        if slow(variant, shape[dim or 0]):
            continue
        first = attempt("sum", x, variant, dim=dim)
        if first is None:
            continue
        output = 8 * first.numel()
        del first
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        call("sum", x, variant.name, dim=dim)
        torch.cuda.synchronize()
        peak = torch.cuda.max_memory_allocated() - before - output
        assert peak <= 0.01 * x.numel() + 4096, f"{peak} bytes for {shape} along {dim}"


def test_nothing_leaks_along_dims():
    inputs = [(torch.ones(shape, device="cuda"), dim) for shape, dim in WORK]
    for x, dim in inputs:
        call("sum", x, dim=dim)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated(), torch.cuda.mem_get_info()[0]
    for _ in range(100):
        for x, dim in inputs:
            call("sum", x, dim=dim)
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() == before[0]
    assert before[1] - torch.cuda.mem_get_info()[0] < 32 * 2**20


# Training.


def test_a_small_training_has_one_loss_curve():
    """Bias gradients, a norm and a loss, all ours: the same curve twice, for a batch in two parts, and on the CPU."""

    def train(device, parts=1):
        g = cases.generator(2)
        x, y = (torch.randn(64, 33, generator=g).to(device) for _ in range(2))
        bias, scale = torch.zeros(33, device=device), torch.ones(33, device=device)
        curve = []
        for _ in range(20):
            centred = x - call("mean", x, dim=1, keepdim=True)
            error = centred * scale + bias - y
            rows = torch.cat([call("sum", part * part, dim=1) for part in error.chunk(parts)])
            curve.append(call("mean", rows).cpu())
            bias = bias - 0.01 * call("mean", error, dim=0)
            scale = scale - 0.01 * call("mean", error * centred, dim=0)
        return torch.stack(curve)

    first = train("cuda")
    assert first[-1] < first[0]
    for other in (train("cuda"), train("cuda", 2), train("cpu")):
        assert torch.equal(bits(other), bits(first))
