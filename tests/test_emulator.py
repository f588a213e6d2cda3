"""The CUDA kernels themselves, on a machine without a GPU: see emulator/emulator.h for how they run.

Each kernel must give the bits of the CPU's op under every seed, which draws the order of threads, warps and blocks; and
the emulator must find the mistakes in emulator/broken/, or its silence would mean nothing.
"""

import dataclasses
import math
import os
import re
import subprocess

import cases
import emulator.build
import pytest
import torch
from bits import assert_same_bits
from cases import DTYPES
from tables import ADD_VARIANTS, CLASSIC, MATMUL_VARIANTS, call, names

SEEDS = 3  # a case; each case has its own, for a seed also draws the temper of the scheduler
RUNS_A_SEED = 2  # the second one on the counter that the first one left, as in a replayed graph
SANITIZERS = {
    "ASAN_OPTIONS": "detect_leaks=0:quarantine_size_mb=8:malloc_context_size=4:detect_stack_use_after_return=0",
    "UBSAN_OPTIONS": "print_stacktrace=1",
}


@pytest.fixture(scope="module")
def compiler():
    reason = emulator.build.why_not()
    if reason is not None:
        pytest.skip(reason)


@pytest.fixture(scope="module")
def driver(compiler):
    return emulator.build.build("driver")


@pytest.fixture(scope="module")
def broken(compiler):
    return emulator.build.build("broken")


def run(command, text=""):
    env = os.environ | SANITIZERS
    return subprocess.run(command, input=text, capture_output=True, text=True, env=env, timeout=300)


@dataclasses.dataclass(frozen=True)
class Case:
    words: list
    expected: torch.Tensor
    seeds: int = SEEDS
    bound: float | None = None  # None: bit for bit


def parse(word, like):
    return torch.frombuffer(bytearray.fromhex(word), dtype=like.dtype).view(like.shape)


def check(driver, batch):
    """Runs the cases in one process and compares every run of each."""
    lines = []
    for number, case in enumerate(batch):
        lines.append(" ".join(map(str, [*case.words, *range(number * SEEDS, number * SEEDS + case.seeds)])))
    result = run([driver], "\n".join(lines) + "\n")
    answers = result.stdout.splitlines()
    for case, line, answer in zip(batch, lines, answers, strict=False):
        status, *runs = answer.split(" ")
        assert status == "ok", f"{line}: {answer}"
        assert len(runs) == case.seeds * RUNS_A_SEED
        for number, word in enumerate(runs):
            what = f"{line} (run {number % RUNS_A_SEED} of seed {number // RUNS_A_SEED})"
            if case.bound is None:
                assert_same_bits(parse(word, case.expected), case.expected, what)
            else:
                assert abs(parse(word, case.expected).double() - case.expected.double()).item() <= case.bound, what
    assert len(answers) == len(batch) and result.returncode == 0, (
        f"the driver stopped with status {result.returncode} in\n{lines[len(answers)]}\n{result.stderr[-4000:]}"
    )


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """The name of a file with the bytes of a contiguous tensor."""
    folder = tmp_path_factory.mktemp("inputs")
    seen = {}

    def store(x):
        data = x.contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        if data not in seen:
            seen[data] = folder / str(len(seen))
            seen[data].write_bytes(data)
        return seen[data]

    return store


def dtype_name(dtype):
    return str(dtype).removeprefix("torch.")


# ---- reductions ----


def reduction(store, op, variant, x, offset=0, seeds=SEEDS, **sizes):
    words = [op, variant.name, dtype_name(x.dtype), x.numel(), sizes.get("block_size", 0), sizes.get("num_blocks", 0)]
    words += [offset, store(x)]
    bound = None
    if not variant.deterministic and op in ("sum", "mean") and x.is_floating_point():
        # Partials in another order: each of the additions may round otherwise, and so may the result.
        unit = torch.finfo(torch.float64 if x.dtype == torch.float64 else torch.float32).eps
        magnitude = x.double().abs().sum().item() / (x.numel() if op == "mean" and x.numel() else 1)
        bound = magnitude * (x.numel() * unit + 2 * torch.finfo(x.dtype).eps)
        if op == "mean" and x.numel() == 0:
            bound = None  # NaN
    return Case(words, call(op, x, variant.name, **sizes), seeds, bound)


def reductions(store, variant):
    def add(op, n, dtype=torch.float32, kind="wide", **rest):
        batch.append(reduction(store, op, variant, cases.values(n, dtype, kind), **rest))

    batch = []
    some = {"block_size": 64} if variant.sizes else {}
    for n in (0, 1, 2, 31, 33, 63, 64, 65, 127, 128, 129, 1000, 4099):
        add("sum", n, **some)
    for block_size in variant.sizes:
        for n in (1000, block_size + 1):
            add("sum", n, block_size=block_size, seeds=1)
    if variant.takes_num_blocks:
        for num_blocks in (1, 2, 7, 50):
            add("sum", 4099, block_size=64, num_blocks=num_blocks)
    add("sum", 20_011, seeds=1)
    for dtype, offsets in {
        torch.float32: (1, 3),
        torch.float64: (0, 1),
        torch.float16: (0, 1, 7),
        torch.bfloat16: (0,),
        torch.int8: (0, 5),
        torch.int64: (0,),
        torch.bool: (0, 3),
    }.items():
        for offset in offsets:
            for n in (33, 1000):
                add("sum", n, dtype, "normal", offset=offset, **some)
    for n in (0, 1000):
        add("mean", n, torch.float32, **some)
        add("mean", n, torch.float16, "normal", **some)
    with_nan = cases.values(1000, torch.float32)
    with_nan[777] = float("nan")
    for op in ("amax", "amin"):
        add(op, 1, **some)
        add(op, 1000, offset=1, **some)
        add(op, 1000, torch.float16, "normal", **some)
        add(op, 1000, torch.int8, **some)
        add(op, 1000, torch.bool, **some)
        batch.append(reduction(store, op, variant, with_nan, **some))
    return batch


KERNELS = [v for v in CLASSIC if v.has_kernel]


@pytest.mark.parametrize("variant", KERNELS, ids=names(KERNELS))
def test_reduction(driver, stored, variant):
    check(driver, reductions(stored, variant))


# ---- matmul ----


def strides(x, batches):
    """Row, column and batch stride of an operand; the batch stride is 0 where it is shared."""
    batch = x.stride(0) if x.dim() == 3 and x.size(0) == batches else 0
    return x.stride(-2), x.stride(-1), batch


def product(store, variant, a, b, a_view=lambda x: x, b_view=lambda x: x, **sizes):
    """One product of two views of contiguous tensors."""
    left, right = a_view(a), b_view(b)
    expected = torch.ops.treduce.matmul(left, right, variant.name, **sizes)
    batches = expected.size(0) if expected.dim() == 3 else 1
    words = ["matmul", variant.name, dtype_name(a.dtype), sizes.get("tile_size", 0)]
    words += [left.size(-2), right.size(-1), left.size(-1), batches, *strides(left, batches), *strides(right, batches)]
    return Case([*words, store(a), store(b)], expected)


def products(store, variant):
    def matrix(rows, columns, dtype=torch.float32, batches=()):
        shape = (*batches, rows, columns)
        return cases.values(rows * columns * max(1, *batches, 1), dtype, seed=rows).view(shape)

    def transposed(x):
        return x.transpose(-2, -1)

    batch = []
    for sizes in [{}, *({variant.size_name: size} for size in variant.sizes)]:
        for m, n, k in ((1, 1, 1), (3, 5, 7), (16, 16, 16), (17, 33, 9), (40, 24, 35), (5, 3, 0)):
            batch.append(product(store, variant, matrix(m, k), matrix(k, n), **sizes))
        batch.append(product(store, variant, matrix(9, 17), matrix(21, 9), transposed, transposed, **sizes))
    for dtype in (torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64):
        batch.append(product(store, variant, matrix(17, 20, dtype), matrix(20, 19, dtype)))
    batch.append(product(store, variant, matrix(9, 17, batches=(3,)), matrix(17, 5, batches=(3,))))
    batch.append(product(store, variant, matrix(9, 17, batches=(3,)), matrix(17, 5)))
    return batch


MATMUL_KERNELS = [v for v in MATMUL_VARIANTS if v.has_kernel]


@pytest.mark.parametrize("variant", MATMUL_KERNELS, ids=names(MATMUL_KERNELS))
def test_matmul(driver, stored, variant):
    check(driver, products(stored, variant))


# ---- vector_add ----


def additions(store, variant):
    def add(n, dtype=torch.float32, offsets=(0, 0, 0), **sizes):
        a, b = cases.values(n, dtype), cases.values(n, dtype, seed=1)
        words = ["vector_add", variant.name, dtype_name(dtype), n, sizes.get(variant.size_name, 0), *offsets]
        expected = torch.ops.treduce.vector_add(a, b, variant.name, **sizes)
        batch.append(Case([*words, store(a), store(b)], expected, seeds=1))

    batch = []
    for n in (1, 2, 31, 33, 63, 64, 65, 1000, 4099):
        add(n, **{variant.size_name: variant.sizes[0]})
    for size in variant.sizes:
        add(1001, **{variant.size_name: size})
    add(4099)
    for dtype in DTYPES:
        for offsets in ((0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (3, 3, 3)):
            add(77, dtype, offsets, **{variant.size_name: variant.sizes[0]})
    return batch


ADD_KERNELS = [v for v in ADD_VARIANTS if v.has_kernel]


@pytest.mark.parametrize("variant", ADD_KERNELS, ids=names(ADD_KERNELS))
def test_vector_add(driver, stored, variant):
    check(driver, additions(stored, variant))


# ---- lessons ----


def test_thread_indices(driver):
    def launch(grid, block):
        out = torch.empty(math.prod(grid) * math.prod(block), 7, dtype=torch.int64)
        torch.ops.treduce.thread_indices_(out, grid, block)
        return Case(["thread_indices", *grid, *block], out)

    check(driver, [launch((1, 1), (1, 1)), launch((2, 2), (4, 2)), launch((3, 5), (7, 2)), launch((2, 3), (64, 3))])


# ---- the emulator itself ----

MANY_SEEDS = [str(seed) for seed in range(20)]
SUM = "5050"  # of 1, 2, ..., 100, which is exact in any order


def test_a_correct_kernel_gives_its_sum_under_every_seed(broken):
    result = run([broken, "correct", *MANY_SEEDS])
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == [SUM] * len(MANY_SEEDS)


@pytest.mark.parametrize("kernel", ["removed_barrier", "removed_warp_barrier", "reused_slot"])
def test_a_race_changes_the_result(broken, kernel):
    result = run([broken, kernel, *MANY_SEEDS])
    assert result.returncode == 0, result.stderr
    sums = result.stdout.split()
    assert len(sums) == len(MANY_SEEDS)
    assert len(set(sums)) > 1
    assert sums.count(SUM) < len(sums)


@pytest.mark.parametrize(
    ("kernel", "sentence"),
    [
        ("skipped_barrier", "threads have left the kernel"),
        ("divergent_barrier", r"64 threads wait at .*divergent_barrier.cu"),
        ("deadlock", "no thread of the grid can go on"),
    ],
)
def test_a_barrier_that_some_threads_skip_is_reported(broken, kernel, sentence):
    result = run([broken, kernel, "1"])
    assert result.returncode == 3
    assert result.stdout == ""
    pattern = rf"{kernel}\.cu:\d+: block \(0, 0, 0\), thread \(\d+, 0, 0\) of broken::{kernel}\(.*{sentence}"
    assert re.search(pattern, result.stderr), result.stderr


@pytest.mark.parametrize("kernel", ["off_by_one_load", "small_dynamic_shared", "small_static_shared"])
def test_an_access_past_an_array_is_reported(broken, kernel):
    result = run([broken, kernel, "1"])
    assert result.returncode != 0
    assert "heap-buffer-overflow" in result.stderr
    assert f"in broken::{kernel}(" in result.stderr


def test_an_unsupported_launch_attribute_is_refused(broken):
    result = run([broken, "unsupported_attribute", "1"])
    assert result.returncode == 1
    assert "not supported" in result.stdout


def test_the_driver_refuses_what_it_does_not_know(driver):
    result = run([driver], "product sequential\nsum fast float32 0 0 0 0 none\nsum sequential float32 0 48 0 0 none\n")
    errors = result.stdout.splitlines()
    assert [line.split()[0] for line in errors] == ["error"] * 3
    assert "no op product" in errors[0]
    assert "unknown variant 'fast'" in errors[1]
    assert "power of two" in errors[2]
