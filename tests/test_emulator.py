"""The CUDA kernels themselves, on a machine without a GPU: see emulator/emulator.h for how they run.

Each kernel must give the bits of the CPU's op under every seed, which draws the order of threads, warps and blocks; and
the emulator must find the mistakes in emulator/broken/, or its silence would mean nothing.
"""

import dataclasses
import functools
import itertools
import math
import os
import re
import subprocess
from random import Random

import cases
import emulator.build
import orders
import pytest
import row_models
import tables
import torch
from bits import assert_same_bits
from cases import DTYPES
from tables import ADD_VARIANTS, ALONG_DIMS, CLASSIC, MATMUL_VARIANTS, ROW_VARIANTS, call, names, takes

import torch_reduce
from torch_reduce import _check
from torch_reduce._plan import Chip
from torch_reduce._plan_products import plan_product

SEEDS = 3  # a case; each case has its own, for a seed also draws the temper of the scheduler
SANITIZERS = {
    "ASAN_OPTIONS": "detect_leaks=0:quarantine_size_mb=8:malloc_context_size=4:detect_stack_use_after_return=0:"
    "handle_sigill=1",
}


@pytest.fixture(scope="session")
def compiler():
    reason = emulator.build.why_not()
    if reason is not None:
        pytest.skip(reason)


FAMILIES = {
    "reduce": tables.REDUCE_VARIANTS,
    "matmul": MATMUL_VARIANTS,
    "elementwise": ADD_VARIANTS,
    "rows": ROW_VARIANTS,
}
WITHOUT_RUNGS = (
    "test_thread_indices",
    "test_attention",
    "test_segments",
    "test_the_driver_refuses_what_it_does_not_know",
)


def rungs_of(items):
    """The rungs whose kernels these tests run, as pairs of a family and a name; None: all."""
    found = set()
    for item in items:
        if "driver" not in getattr(item, "fixturenames", ()) or item.originalname in WITHOUT_RUNGS:
            continue
        variant = item.callspec.params.get("variant") if hasattr(item, "callspec") else None
        if variant is None:
            return None
        found |= {(family, variant.name) for family, rows in FAMILIES.items() if variant in rows}
    return found


@pytest.fixture(scope="session")
def driver(compiler, request):
    """With the kernels that the chosen tests run: `-k row_warp` compiles one."""
    return emulator.build.build("driver", rungs_of(request.session.items))


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
    """Runs the cases in one process and compares every run of each. Returns how many were not refused: some."""
    lines = []
    for number, case in enumerate(batch):
        lines.append(" ".join(map(str, [*case.words, *range(number * SEEDS, number * SEEDS + case.seeds)])))
    result = run([driver], "\n".join(lines) + "\n")
    answers = result.stdout.splitlines()
    refused = 0
    for case, line, answer in zip(batch, lines, answers, strict=False):
        status, *runs = answer.split(" ")
        if status == "refused" and f"'{case.words[2]}'" in answer:
            refused += 1
            continue
        assert status == "ok", f"{line}: {answer}"
        again = len(runs) // case.seeds  # 2: once more on the counters that the first run left, as in a replayed graph
        assert len(runs) == case.seeds * again and again in (1, 2)
        for number, word in enumerate(runs):
            what = f"{line} (run {number % again} of seed {number // again})"
            if case.bound is None:
                assert_same_bits(parse(word, case.expected), case.expected, what)
            else:
                assert abs(parse(word, case.expected).double() - case.expected.double()).item() <= case.bound, what
    assert len(answers) == len(batch) and result.returncode == 0, (
        f"the driver stopped with status {result.returncode} in\n{lines[len(answers)]}\n{result.stderr[-4000:]}"
    )
    assert refused < len(batch), "every case was refused: nothing was tested"
    return len(batch) - refused


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
        torch.uint8: (0,),
        torch.int16: (1,),
        torch.int32: (0,),
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
        for dtype in (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.bool):
            add(op, 1000, dtype, **some)
        batch.append(reduction(store, op, variant, with_nan, **some))
    return batch


KERNELS = [v for v in CLASSIC if v.has_kernel]


@pytest.mark.parametrize("variant", KERNELS, ids=names(KERNELS))
def test_reduction(driver, stored, variant):
    check(driver, reductions(stored, variant))


# ---- reductions along dims ----

ROWS = (1, 2, 3, 127, 128, 129, 1023, 1024, 1025, 5000)
LONG = 20_000
DTYPES_ALONG = (torch.float32, torch.bfloat16, torch.float64, torch.int8)
NUM_BLOCKS = (0, 1, 3)
CHIPS = (132, 2)  # multiprocessors: the more of them, the more blocks share an output


def memory_of(x):
    """The run of memory that a view reads: its elements, and what lies between them."""
    span = 1 + sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
    return x.as_strided((span,), (1,), x.storage_offset())


def along(store, op, variant, x, dim, block_size=0, num_blocks=0, chip=132, dtype=None, shift=0):
    """A reduction of a view, whose first element lies as far behind a 16-byte boundary as in its storage, and `shift`
    elements more."""
    expected = orders.reduce_dims(op, x, dim, dtype, order=variant.order)
    words = ["along", op, variant.name, dtype_name(x.dtype), dtype_name(expected.dtype), block_size, num_blocks, chip]
    words += [(x.storage_offset() + shift) % 16, store(memory_of(x)), x.dim()]
    reduced = orders.dims_of(x, dim)
    for d in range(x.dim()):
        words += [x.shape[d], x.stride(d), int(d in reduced)]
    return Case(words, expected, seeds=1)


def in_turn(*choices):
    """Endless tuples of one of each, which come round shifted, so that every combination comes up in time."""
    common = math.lcm(*map(len, choices))
    for number in itertools.count():
        yield [choice[(number + place * (number // common)) % len(choice)] for place, choice in enumerate(choices)]


def kind_of(dtype):
    return "wide" if dtype.is_floating_point and dtype.itemsize >= 4 else "normal"


def is_work(variant, shape, n):
    """What is worth a fiber for each thread; and the model of `exact` adds Python's integers."""
    return math.prod(shape) <= (5000 if variant.order == "exact" else 40_000) and (n == 3 or math.prod(shape) // n <= 8)


def geometries_along_dims(store, variant):
    """Every geometry at every length: dtype, op, grid and chip take turns."""
    batch = []
    turns = in_turn(DTYPES_ALONG, NUM_BLOCKS, ("sum", "sum", "amax", "sum", "mean"), CHIPS)
    for n in ROWS:
        for shape, view, dim in cases.geometries(n).values():
            if not is_work(variant, shape, n):
                continue
            dtype, num_blocks, op, chip = next(turns)
            x = cases.along(shape, view, dtype, kind=kind_of(dtype))
            op = op if takes(variant, op, dtype) else "sum"
            batch.append(along(store, op, variant, x, dim, num_blocks=num_blocks, chip=chip))
    return batch


def long_along_dims(store, variant):
    """Outputs that several blocks share, and blocks that walk several tiles, from every grid."""
    # A cluster for each output is two thousand threads: some outputs ask what many do.
    most = 24 if variant.capability >= (9, 0) else 2000
    batch = []
    turns = in_turn(DTYPES_ALONG, (0, 0, 32, 128, 1024), CHIPS)
    shapes = (((LONG,), None), ((2, LONG), 1), ((LONG, 3), 0), ((LONG, 16), 0), ((2, LONG // 2, 2), 1))
    for (shape, dim), num_blocks in itertools.product(shapes, NUM_BLOCKS):
        dtype, block_size, chip = next(turns)
        x = cases.values(math.prod(shape), dtype, kind_of(dtype)).view(shape)
        batch.append(along(store, "sum", variant, x, dim, block_size, num_blocks, chip))
    # More outputs than a block takes at once.
    for shape, dtype, dim in (
        ((min(60, most), 127), torch.float64, 1),
        ((200, min(72, most)), torch.float32, 0),
        ((129, min(71, most)), torch.float32, 0),
        ((100, min(72, most)), torch.float64, 0),
    ):
        x = cases.values(math.prod(shape), dtype, "wide").view(shape)
        batch.append(along(store, "sum", variant, x, dim, num_blocks=1))
    if variant.order != "pairwise":
        return batch
    # So many partials, and threads so few, that each folds a run longer than it loads at once.
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        x = cases.values(LONG * 4, dtype, kind_of(dtype)).view(LONG, 4)
        batch.append(along(store, "sum", variant, x, 0, block_size=32))
    # Several rows a vector, and what is left of one; two stripes of columns; many columns that fit no vector.
    turns = in_turn(("sum", "amax"))
    several = [((min(131, most), n), 1) for n in (2, 4, 8, 5)]
    for shape, dim in (*several, ((256, 24), 0), ((1100, min(35, most)), 0)):
        for dtype in (torch.float32, torch.bfloat16, torch.int8):
            x = cases.values(math.prod(shape), dtype, kind_of(dtype)).view(shape)
            batch.append(along(store, *next(turns), variant, x, dim))
    # Whole tensors: one block, several, and blocks of fewer teams than they have chunks.
    turns = in_turn((torch.float32, torch.bfloat16, torch.float64, torch.float16), (0, 0, 64), CHIPS)
    for n in (16, 19, 128, 1003, 1024, 1025, 3000, 12_345, 17_500, 40_001) * 2:
        dtype, block_size, chip = next(turns)
        x = cases.values(n, dtype, kind_of(dtype))
        batch.append(along(store, "sum", variant, x, None, block_size, chip=chip))
    # Columns that fill no power of two of threads; a few chunks, which blocks of half the threads share.
    for (n, columns), dtype in (((1100, 52), torch.float32), ((1500, 26), torch.float64), ((2100, 32), torch.float32)):
        shape = (n, min(columns, most))
        x = cases.values(math.prod(shape), dtype, "wide").view(shape)
        batch.append(along(store, "sum", variant, x, 0, chip=2))
    # Many rows in vectors, of one to eight stripes.
    turns = in_turn((torch.float32, torch.bfloat16, torch.float64), (0, 1, 3), (0, 64, 0))
    for rows, n in ((300, 40), (70, 88), (40, 96), (99, 128), (99, 200), (67, 256), (50, 304), (33, 760)):
        shape = (min(rows, most), n)
        dtype, num_blocks, block_size = next(turns)
        x = cases.values(math.prod(shape), dtype, kind_of(dtype)).view(shape)
        batch.append(along(store, "sum", variant, x, 1, block_size, num_blocks, chip=2))
    # Short rows that fit no vectors, of whole words and others, wherever they begin: many tiles a block, few, and one
    # that ends within 16 bytes.
    turns = in_turn((1, 3, 0), (0, 1, 6), ("sum", "sum", "amax"))
    for rows, n in ((1700, 3), (600, 12), (500, 9), (150, 49), (120, 100), (5, 1), (2, 3)):
        shape = (min(rows, most), n)
        for dtype in (torch.float32, torch.bfloat16, torch.int8):
            num_blocks, shift, op = next(turns)
            x = cases.values(math.prod(shape), dtype, kind_of(dtype)).view(shape)
            batch.append(along(store, op, variant, x, 1, num_blocks=num_blocks, chip=2, shift=shift))
    return batch


def dtypes_along_dims(store, variant):
    """Every dtype, op and conversion, with vectors and without."""
    batch = []
    views = in_turn(
        (
            lambda n: ((3, n), lambda x: x, 1),
            lambda n: ((n, 16), lambda x: x, 0),
            lambda n: ((3, n + 1), lambda x: x[:, 1:], 1),
            lambda n: ((n, 5), lambda x: x, 0),
            lambda n: ((2, n, 3), lambda x: x[::, ::2], 1),
        )
    )
    for dtype in cases.EVERY_DTYPE:
        for op, n in itertools.product(cases.REDUCTIONS, (64, 1040)):
            if takes(variant, op, dtype):
                shape, view, dim = next(views)[0](n)
                batch.append(along(store, op, variant, cases.along(shape, view, dtype), dim, chip=2))
    for source, target in (
        (torch.float32, torch.float64),
        (torch.float64, torch.float32),
        (torch.float32, torch.bfloat16),
        (torch.bfloat16, torch.float32),
        (torch.int8, torch.float16),
        (torch.int64, torch.bool),
        (torch.float16, torch.complex64),
    ):
        for n in (64, 1040):
            shape, view, dim = next(views)[0](n)
            batch.append(along(store, "sum", variant, cases.along(shape, view, source), dim, dtype=target))
    return batch


def places_along_dims(store, variant):
    """Every alignment of the first element, and special values at the edges."""
    batch = []
    turns = in_turn(DTYPES_ALONG, (((3, 100), 1), ((100, 4), 0), ((1030,), None), ((3, 1032), 1), ((130, 16), 0)))
    for shift in (*range(17), *range(1, 16, 2)):
        dtype, (shape, dim) = next(turns)
        x = cases.values(math.prod(shape), dtype, kind_of(dtype)).view(shape)
        batch.append(along(store, "sum", variant, x, dim, shift=shift))
    for n in (1, 5, 128, 1030):
        for value, place in ((-0.0, None), (math.nan, n - 1), (math.inf, 0), (-math.inf, n // 2)):
            x = torch.full((2, n), -0.0)
            if place is not None:
                x[0, place] = value
            for view, dim in ((x, 1), (x.t().contiguous(), 0)):
                for op in ("sum", "amax", "amin"):
                    batch.append(along(store, op, variant, view, dim))
    # What no order changes is read from the first aligned vector on.
    turns = in_turn(
        (torch.float32, torch.bfloat16, torch.uint8, torch.bool, torch.int64, torch.float64),
        ("amax", "amin", "sum"),
        ((2, 1030), (3, 9), (1, 2048)),
    )
    for shift in range(1, 16):
        dtype, op, shape = next(turns)
        op = op if takes(variant, op, dtype) else "sum"
        x = cases.values(math.prod(shape), dtype, kind_of(dtype)).view(shape)
        batch.append(along(store, op, variant, x, 1, shift=shift))
    return batch


def random_along_dims(store, variant):
    """Shapes, steps, orders of dims, sets of reduced dims, block sizes and grids at random; the rung takes them."""
    random = Random(variant.name)
    batch = []
    for _ in range(10_000):
        if len(batch) == 30:
            break
        shape = [random.choice((1, 2, 3, 4, 7, 8, 16, 33, 130, 1100)) for _ in range(random.randint(1, 4))]
        steps = [random.choice((1, 1, 1, 2, 3)) for _ in shape]
        starts = [random.randrange(2) for _ in shape]
        memory = [start + size * step for start, size, step in zip(starts, shape, steps, strict=True)]
        dims = [d for d in range(len(shape)) if random.random() < 0.5] or [0]
        outputs = math.prod(size for d, size in enumerate(shape) if d not in dims)
        if math.prod(memory) > 20_000 or outputs > 4:
            continue
        dtype = random.choice(DTYPES_ALONG)
        x = cases.values(math.prod(memory), dtype, kind_of(dtype), len(batch)).view(memory)
        x = x[tuple(map(slice, starts, memory, steps))].permute(random.sample(range(len(shape)), len(shape)))
        expanded = random.randrange(4)
        if expanded < x.dim() and x.shape[expanded] == 1 and x.numel() < 5000:
            x = x.expand([3 if d == expanded else size for d, size in enumerate(x.shape)])
        sizes = {"block_size": random.choice((0, 0, 32, 128)), "num_blocks": random.choice((0, 0, 1, 2, 5))}
        try:
            torch_reduce.plan("sum", x, dims, variant=variant.name, device="H200", **sizes)
        except ValueError:
            continue
        batch.append(along(store, "sum", variant, x, dims, **sizes, chip=random.choice(CHIPS)))
    return batch


ALONG_KERNELS = [v for v in ALONG_DIMS if v.has_kernel]
BATCHES = (geometries_along_dims, long_along_dims, dtypes_along_dims, places_along_dims, random_along_dims)


@pytest.mark.parametrize("batch", BATCHES, ids=[batch.__name__.removesuffix("_along_dims") for batch in BATCHES])
@pytest.mark.parametrize("variant", ALONG_KERNELS, ids=names(ALONG_KERNELS))
def test_reduction_along_dims(driver, stored, variant, batch):
    taken = check(driver, batch(stored, variant))
    assert taken > 10 or batch is not geometries_along_dims  # what is refused everywhere has been tested nowhere


# ---- what plan() says is what is launched ----

PLANNED = (
    # op, dtype, shape, dims, and how the elements lie
    ("sum", torch.float32, (1,), None),
    ("mean", torch.bfloat16, (5000,), None),
    ("sum", torch.float32, (20_000,), None),
    ("amax", torch.int8, (3000,), None),
    ("sum", torch.float64, (3, 4100), 1),
    ("sum", torch.float16, (40, 100), 1),
    ("amin", torch.float32, (70, 3), 1),
    ("mean", torch.float32, (1100, 8), 0),
    ("sum", torch.int8, (300, 40), 0),
    ("sum", torch.float32, (4200, 3), 0),
    ("sum", torch.bfloat16, (3, 16, 130), (0, 2)),
)
CHIPS_BY_NAME = {"H200": 132, "H100 PCIe": 114}


def as_word(launch):
    x, y = launch.grid
    threads_x, threads_y = launch.block
    flags = (int(launch.cooperative), int(launch.overlapping))
    words = (launch.kernel, x, y, threads_x, threads_y, launch.shared_bytes, launch.cluster, *flags)
    return ",".join(map(str, words))


@pytest.mark.parametrize("variant", [*KERNELS, *ALONG_KERNELS], ids=names([*KERNELS, *ALONG_KERNELS]))
def test_a_plan_says_what_is_launched(driver, stored, variant):
    lines, plans = [], []
    sizes = [{}, {"block_size": 64}] if variant.sizes else [{}]
    sizes += [{"block_size": 32, "num_blocks": 3}] if variant.takes_num_blocks else []
    chips = CHIPS_BY_NAME if variant.along_dims else ["H200"]
    for (op, dtype, shape, dim), some, chip in itertools.product(PLANNED, sizes, chips):
        if not takes(variant, op, dtype) or (dim is not None and not variant.along_dims):
            continue
        if variant.order == "exact" and math.prod(shape) > 5000:
            continue
        x = cases.values(math.prod(shape), dtype, kind_of(dtype)).view(shape)
        if variant.along_dims:
            words = along(stored, op, variant, x, dim, **some, chip=CHIPS_BY_NAME[chip]).words
        else:
            words = reduction(stored, op, variant, x, **some).words
        try:
            p = torch_reduce.plan(op, x, dim, variant=variant.name, device=chip, **some)
        except ValueError as refusal:
            plans.append(f"refused {refusal}")
        else:
            if variant.along_dims and p.schedule.shapes[0].kernel != variant.name:
                continue  # nothing rounds: the kernel is another rung's, which has this test too
            plans.append(" ".join(["ok", *map(as_word, p.schedule.shapes)]))
        lines.append(" ".join(map(str, ["launches", *words, 0])))
    result = run([driver], "\n".join(lines) + "\n")
    assert result.returncode == 0, result.stderr[-4000:]
    for line, planned, launched in zip(lines, plans, result.stdout.splitlines(), strict=True):
        if ",1,0" in launched and "cooperative" in line:  # as many blocks as the machine holds
            launched = re.sub(r"(cooperative),\d+,", rf"\1,{planned.split(',')[1]},", launched)
        assert launched == planned, line
    assert sum(plan.startswith("ok") for plan in plans) > 3


# ---- matmul ----


def strides(x, batches):
    """Row, column and batch stride of an operand; the batch stride is 0 where it is shared."""
    batch = x.stride(0) if x.dim() == 3 and x.size(0) == batches else 0
    return x.stride(-2), x.stride(-1), batch


def same(x):
    return x


def transposed(x):
    return x.transpose(-2, -1)


def in_every_layout(matrix, *shapes):
    """Operands of these (m, n, k) that matrix(rows, columns) makes, and the views in which they are multiplied."""
    for a_view, b_view in itertools.product((same, transposed), repeat=2):
        for m, n, k in shapes:
            a = matrix(m, k) if a_view is same else matrix(k, m)
            b = matrix(k, n) if b_view is same else matrix(n, k)
            yield a, b, a_view, b_view


PROCESSORS = 3  # kProcessors of emulator.h


def product(
    store,
    variant,
    a,
    b,
    a_view=same,
    b_view=same,
    seeds=SEEDS,
    bias=None,
    shift=0,
    twin=None,
    processors=PROCESSORS,
    shifts=(0, 0),
    **sizes,
):
    """One product of two views of contiguous tensors.

    `twin`: the rung of the same bits that the CPU has; `shift`, `shifts`: how many elements behind a 16-byte boundary
    a bias and the operands lie; `processors`: for so many it is decided what to launch."""
    left, right = a_view(a), b_view(b)
    twin = twin or variant.name
    if bias is None:
        expected = torch.ops.treduce.matmul(left, right, twin, **sizes)
    else:
        expected = torch.ops.treduce.linear(left, right.t(), bias, twin)  # every tile size has these bits
    batches = expected.size(0) if expected.dim() == 3 else 1
    words = ["matmul", variant.name, dtype_name(a.dtype), sizes.get("tile_size", 0), processors]
    words += [left.size(-2), right.size(-1), left.size(-1), batches, *strides(left, batches), *strides(right, batches)]
    words += [shifts[0], store(a), shifts[1], store(b), shift, "none" if bias is None else store(bias)]
    return Case(words, expected, seeds)


def products(store, variant):
    def matrix(rows, columns, dtype=torch.float32, batches=()):
        shape = (*batches, rows, columns)
        return cases.values(rows * columns * max(1, *batches, 1), dtype, seed=rows).view(shape)

    batch = []
    for sizes in [{}, *({variant.size_name: size} for size in variant.sizes)]:
        for m, n, k in ((1, 1, 1), (3, 5, 7), (16, 16, 16), (17, 33, 9), (40, 24, 35), (5, 3, 0)):
            batch.append(product(store, variant, matrix(m, k), matrix(k, n), **sizes))
        batch.append(product(store, variant, matrix(9, 17), matrix(21, 9), transposed, transposed, **sizes))
        # Every layout, where 16 bytes may be read at once (80 = 5 * 16), and where not; several steps along k.
        for operands in in_every_layout(matrix, (40, 72, 80), (35, 69, 83)):
            batch.append(product(store, variant, *operands, seeds=1, **sizes))
        for dtype in (torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.int32, torch.int64):
            batch.append(product(store, variant, matrix(17, 20, dtype), matrix(20, 19, dtype), **sizes))
            a, b = matrix(48, 40, dtype), matrix(72, 48, dtype)
            batch.append(product(store, variant, a, b, transposed, transposed, seeds=1, **sizes))
        # A bias, unaligned too; n odd, a vector of outputs either way, whole vectors.
        for i, dtype in enumerate(tables.DTYPE_NAMES[name] for name in variant.dtypes):
            for m, n, k in ((17, 19, 20), (1, 33, 9), (9, 1, 17), (40, 72, 33)):
                bias = cases.values(n, _check.result_dtype("matmul", dtype), seed=n)
                b = matrix(k, n, dtype)
                batch.append(product(store, variant, matrix(m, k, dtype), b, seeds=1, bias=bias, shift=i % 3, **sizes))
        # Bytes by 16 at once, in either direction; a k that ends within 16.
        for a_strides, b_strides in itertools.product(((48, 1), (1, 48)), ((80, 1), (1, 48))):
            a_view = functools.partial(torch.as_strided, size=(48, 40), stride=a_strides)
            b_view = functools.partial(torch.as_strided, size=(40, 80), stride=b_strides)
            a, b = matrix(48, 48, torch.int8), matrix(80, 80, torch.int8)
            batch.append(product(store, variant, a, b, a_view, b_view, seeds=1, **sizes))
        # A step in every direction, none, and the same element again.
        for a_strides, b_strides in (((80, 2), (132, 2)), ((41, 1), (133, 1)), ((0, 1), (132, 0)), ((40, 0), (0, 1))):
            a_view = functools.partial(torch.as_strided, size=(36, 40), stride=a_strides)
            b_view = functools.partial(torch.as_strided, size=(40, 66), stride=b_strides)
            batch.append(product(store, variant, matrix(36, 82), matrix(41, 133), a_view, b_view, seeds=1, **sizes))
        # Products that vanish, of both signs: -0 must stay, past the end of k too.
        for tiny in (1e-30, -1e-30):
            batch.append(product(store, variant, torch.full((3, 21), tiny), torch.full((21, 5), 1e-30), **sizes))
    batch.append(product(store, variant, matrix(9, 17, batches=(3,)), matrix(17, 5, batches=(3,))))
    batch.append(product(store, variant, matrix(9, 17, batches=(3,)), matrix(17, 5)))
    columns = functools.partial(torch.permute, dims=(2, 0, 1))  # do not merge with the rows
    batch.append(product(store, variant, matrix(9, 17, batches=(3,)), matrix(9, 5), columns, bias=matrix(1, 5)[0]))
    batch.append(product(store, variant, matrix(40, 32, batches=(3,)), matrix(32, 68, batches=(3,))))
    batch.append(product(store, variant, matrix(130, 7), matrix(7, 3)))
    batch.append(product(store, variant, matrix(3, 7), matrix(7, 130), bias=matrix(1, 130)[0]))
    if variant.name == "pipelined":  # of so many small matrices each is a warp's
        of_each = functools.partial(matrix, batches=(512,))
        for operands in in_every_layout(of_each, (5, 3, 7), (16, 12, 8), (17, 31, 33), (32, 32, 36)):
            batch.append(product(store, variant, *operands, seeds=1))
        batch.append(product(store, variant, of_each(9, 17), matrix(17, 5), bias=matrix(1, 5)[0], shift=1, seeds=1))
    return batch


MATMUL_KERNELS = [v for v in MATMUL_VARIANTS if v.has_kernel and v.on_cpu]


@pytest.mark.parametrize("variant", MATMUL_KERNELS, ids=names(MATMUL_KERNELS))
def test_matmul(driver, stored, variant):
    check(driver, products(stored, variant))


def products_of_fragments(store, variant):
    """Sums that are exact in any order; but those of float64 are in k order."""
    twin = functools.partial(product, store, variant, twin="naive", seeds=1)
    batch = []
    for dtype in (tables.DTYPE_NAMES[name] for name in variant.dtypes):

        def whole(*shape, dtype=dtype):
            return torch.randint(-4, 5, shape, generator=cases.generator(shape[-1])).to(dtype)

        def matrix(*shape, dtype=dtype):
            if dtype == torch.float64:
                return cases.values(math.prod(shape), dtype, seed=shape[-1]).view(shape)
            return whole(*shape, dtype=dtype)

        for m, n, k in ((1, 1, 1), (5, 3, 0), (35, 69, 83)):
            batch.append(twin(matrix(m, k), matrix(k, n)))
        # Straight from where the operands lie, and through aligned copies, turned round where k must be contiguous.
        batch += [twin(*operands) for operands in in_every_layout(matrix, (17, 33, 9), (40, 72, 80))]
        batch.append(twin(matrix(140, 40), matrix(40, 264)))  # several tiles
        batch.append(twin(matrix(3, 9, 20), matrix(3, 20, 12)))
        batch.append(twin(matrix(3, 9, 16), matrix(16, 5)))
        every_other = functools.partial(torch.as_strided, size=(36, 40), stride=(80, 2))
        batch.append(twin(matrix(36, 82), matrix(40, 24), every_other))
        if dtype == torch.float64:  # long k in groups, of numbers whose sums are exact in any order
            batch.append(twin(whole(5, 8210), whole(8210, 3), bias=matrix(3)))
        for m, n, k in ((17, 19, 20), (40, 72, 33)):
            bias = matrix(n, dtype=_check.result_dtype("matmul", dtype))
            batch.append(twin(matrix(m, k), matrix(k, n), bias=bias, shift=1))
        if variant.name in MANY_KERNELS:
            batch += [twin(*operands, processors=chip) for chip, *operands in products_of_every_kind(whole, dtype)]
    return batch


MANY_KERNELS = ("persistent", "specialized_f64")  # rungs that have kernels for many kinds of products


def products_of_every_kind(matrix, dtype):
    """A chip's multiprocessors, operands and views, for kernels that are chosen by shape, layout and chip."""
    long = 2056 if dtype == torch.float64 else 8200  # just so many that k is cut in groups
    for chip, m, n, k in (
        (3, 300, 280, 136),  # large tiles, of a cluster too
        (132, 200, 168, 72),  # small ones
        (3, 77, 91, 133),  # lines that begin anywhere
        (132, 77, 91, 133),
        (132, 70, 33, 300),
        (132, 1, 200, 96),  # few rows
        (132, 16, 136, 264),
        (132, 120, 5, 96),  # few columns
        (132, 24, 40, long),  # few outputs
        (132, 21, 19, long + 1),
    ):
        # Of a long k one layout of those with kernels of their own: these take time.
        views = list(itertools.product((same, transposed), repeat=2))
        for a_view, b_view in views[1:3] if k > 300 else views:
            a = matrix(m, k) if a_view is same else matrix(k, m)
            b = matrix(k, n) if b_view is same else matrix(n, k)
            yield chip, a, b, a_view, b_view
    if dtype.itemsize == 2:
        for m, n, k in tables.FEW_OUTPUTS_ACROSS[:2]:
            yield 132, matrix(m, k), matrix(k, n), same, same
            yield 132, matrix(k, n), matrix(m, k), transposed, transposed
        for chip, m, n, k in tables.CLUSTERED_ON_SMALL_CHIPS:
            yield chip, matrix(m, k), matrix(k, n), same, same
            yield chip, matrix(k, m), matrix(n, k), transposed, transposed
    if dtype == torch.float32:
        for m, n, k in tables.NARROW_PRODUCTS[:2]:
            for a_view, b_view in views:
                a = matrix(m, k) if a_view is same else matrix(k, m)
                yield 132, a, matrix(k, n) if b_view is same else matrix(n, k), a_view, b_view
        for chip, m, n, k in tables.NARROW_ON_SMALL_CHIPS:
            yield chip, matrix(k, m), matrix(k, n), transposed, same
    if dtype == torch.float16:
        for chip, m, n, k in tables.STRIPS_ON_SMALL_CHIPS:
            yield chip, matrix(m, k), matrix(k, n), same, same
    yield 132, matrix(40, 16, 12), matrix(40, 12, 20)  # many small ones
    yield 132, matrix(7, 33, 21), matrix(7, 21, 18), same, same


def numbers_of_kind(kind, rows, columns, has_kind, seed=0):
    """Whole numbers of float32, whose products have exact sums. `has_kind`: else this operand is ordinary."""
    generator = cases.generator(rows * columns + seed)
    x = torch.randint(-4, 5, (rows, columns), generator=generator).float()
    some = torch.rand(x.shape, generator=generator)
    if kind == "close" or not (has_kind or kind == "far on both sides"):
        return x
    if kind in ("one-hot", "few one-hot"):
        ones = torch.nn.functional.one_hot(torch.randint(columns, (rows,), generator=generator), columns).float()
        return ones if kind == "one-hot" else torch.where(torch.arange(rows)[:, None] % 40 == 1, ones, x)
    if kind == "zeros":
        return x * (some < 0.03)
    far = 2.0**16 if kind == "far" else 2.0**8  # sums stay below 2^24
    return torch.where(some < 0.02, x * far, torch.where(some < 0.5, x, 0.0))


KINDS_OF_NUMBERS = ("close", "far", "few one-hot", "zeros", "one-hot", "far on both sides")
# Shapes and chips for which float32 by pairs has kernels of its own. (multiprocessors, m, n, k)
SPLIT_SHAPES = {
    "split_fp16": (
        (3, 140, 150, 130),  # large tiles
        (132, 140, 150, 130),  # small ones
        (3, 20, 300, 200),
        (3, 1, 40, 130),  # few rows, or columns
        (3, 3, 33, 64),
        (3, 60, 5, 64),
        (3, 100, 5, 130),
        (3, 140, 5, 64),
        (132, 12, 33, 2100),  # few outputs
        (132, 10, 270, 2100),  # in one direction
        (3, 70, 300, 512),  # one operand is split as it is read
        (3, 200, 33, 512),
        (3, 200, 520, 200),  # lines are ordered
    ),
    "split_direct": (
        (3, 1, 5, 64),
        (3, 1, 33, 64),
        (3, 1, 100, 64),
        (3, 12, 33, 130),
        (3, 33, 40, 130),
        (3, 100, 5, 64),
        (3, 300, 20, 130),  # one operand is held in shared memory
        # In clusters, in several rounds.
        (132, 16, 16, 7000),
        (132, 30, 12, 7000),
        (132, 12, 20, 7000),
        (132, 20, 12, 7000),
    ),
    "split_bf16": ((3, 40, 72, 130), (132, 140, 150, 70), (3, 140, 300, 130)),
}


def products_of_kinds(store, variant):
    """Kinds of numbers, for which float32 by pairs has ways of its own, take turns, and so do layouts."""
    turns = in_turn(KINDS_OF_NUMBERS, (same, transposed), (same, same, transposed, transposed))
    for processors, m, n, k in SPLIT_SHAPES[variant.name]:
        for _ in range(3 if k < 500 else 1):
            kind, a_view, b_view = next(turns)
            a, b = numbers_of_kind(kind, m, k, True), numbers_of_kind(kind, k, n, False)
            a, b = a_view(a).contiguous(), b_view(b).contiguous()
            yield product(store, variant, a, b, a_view, b_view, 1, twin="naive", processors=processors)


SPLITS = [variant for variant in MATMUL_VARIANTS if variant.name in SPLIT_SHAPES]


@pytest.mark.parametrize("variant", SPLITS, ids=names(SPLITS))
def test_matmul_by_pairs(driver, stored, variant):
    check(driver, list(products_of_kinds(stored, variant)))


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("variant", SPLITS, ids=names(SPLITS))
def test_matmul_of_next_to_nothing(driver, stored, variant, biased):
    """Parts lose numbers that are 2^120 below the largest; outputs that have no others are computed anew."""

    def products():
        for processors, m, n, k in ((3, 300, 20, 130), (3, 20, 140, 200), (132, 40, 50, 130)):
            a, b = (numbers_of_kind("close", *shape, False).abs() + 1 for shape in ((m, k), (k, n)))
            a[:, k // 2 :] *= 2.0**-120
            b[: k // 2, ::3] = 0
            bias = torch.arange(n) % 2 * 5.0 if biased else None
            yield product(stored, variant, a, b, twin="naive", bias=bias, processors=processors)

    check(driver, list(products()))


def has_twin(variant):
    return emulator.build.has_twin(emulator.build.ROOT / f"csrc/matmul/kernels/{variant.name}.cu")


FRAGMENTS = [v for v in MATMUL_VARIANTS if v.has_kernel and not v.on_cpu and has_twin(v)]


@pytest.mark.parametrize("variant", FRAGMENTS, ids=names(FRAGMENTS))
def test_matmul_by_fragments(driver, stored, variant):
    check(driver, products_of_fragments(stored, variant))


def drawn_products(store, variant, random):
    """Endless products of whole numbers, drawn: shapes, layouts, where rows begin, batches, chips and kinds."""

    def size(most):
        sizes = (1, 8, 16, 64, 65, 128, 129)
        return round(2 ** random.uniform(0, most)) if random.random() < 0.8 else random.choice(sizes)

    while True:
        dtype = tables.DTYPE_NAMES[random.choice(variant.dtypes)]
        m, n, k, batches = size(8), size(8), size(10), random.choice((1, 1, 1, 2, 3))
        if random.random() < 0.1:
            k = random.choice((2049, 2112, 2300))
        if batches * m * n * k > 3_000_000:
            continue
        kind = random.choice(KINDS_OF_NUMBERS if variant in SPLITS else ["close"])
        operands, views = [], []
        for rows, columns, has_kind in ((m, k, True), (k, n, False)):
            x = torch.stack([numbers_of_kind(kind, rows, columns, has_kind, seed) for seed in range(batches)])
            turned, pad = random.random() < 0.5, random.choice((0, 0, 1, 3, 4))
            x = x.mT if turned else x
            operands.append(torch.nn.functional.pad(x, (0, pad)).squeeze(0).to(dtype).contiguous())
            views.append(functools.partial(view_of, columns=x.size(-1), turned=turned))
        bias = None
        if batches == 1 and random.random() < 0.3:
            whole = torch.randint(-4, 5, (n,), generator=cases.generator(n))
            bias = whole.to(_check.result_dtype("matmul", dtype))
        yield product(
            store,
            variant,
            *operands,
            *views,
            seeds=1,
            bias=bias,
            shift=random.randrange(3),
            shifts=random.choices((0, 0, 0, 1, 2, 4), k=2),
            twin="naive",
            processors=random.choice((3, 132)),
        )


def view_of(x, columns, turned):
    return x[..., :columns].mT if turned else x[..., :columns]


@pytest.mark.nightly
@pytest.mark.parametrize("part", range(5))
@pytest.mark.parametrize("variant", FRAGMENTS, ids=names(FRAGMENTS))
def test_matmul_drawn_at_random(driver, stored, variant, part):
    drawn = drawn_products(stored, variant, Random(f"{variant.name} {part}"))
    check(driver, list(itertools.islice(drawn, 20)))


IN_EMULATOR = [*MATMUL_KERNELS, *FRAGMENTS]


@pytest.mark.parametrize("variant", IN_EMULATOR, ids=names(IN_EMULATOR))
def test_a_plan_says_what_a_product_launches(driver, stored, variant):
    chip = Chip("emulated", PROCESSORS, (9, 0), None, "")
    lines, plans = [], []
    for dtype in (tables.DTYPE_NAMES[name] for name in variant.dtypes):

        def matrix(rows, columns, dtype=dtype):
            return torch.ones(rows, columns, dtype=dtype)

        for operands in in_every_layout(matrix, (17, 33, 9), (70, 140, 16)):
            case = product(stored, variant, *operands, twin="naive")
            a, b, a_view, b_view = operands
            p = plan_product("matmul", a_view(a), b_view(b), variant=variant.name, device=chip)
            plans.append(" ".join(["ok", *map(as_word, p.launches)]))
            lines.append(" ".join(map(str, ["launches", *case.words, 0])))
    result = run([driver], "\n".join(lines) + "\n")
    assert result.returncode == 0, result.stderr[-4000:]
    for line, planned, launched in zip(lines, plans, result.stdout.splitlines(), strict=True):
        assert launched == planned, line
    assert len(plans) >= 8


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


@pytest.mark.parametrize("variant", ADD_KERNELS, ids=names(ADD_KERNELS))
def test_a_plan_says_what_an_addition_launches(driver, stored, variant):
    batch = additions(stored, variant)
    plans = []
    for case in batch:
        _, name, dtype, n, block_size, *offsets = case.words[:8]
        a, b = (torch.empty(n + 3, dtype=tables.DTYPE_NAMES[dtype])[offset:][:n] for offset in offsets[:2])
        p = torch_reduce.plan("vector_add", a, b, variant=name, block_size=block_size or None, device="H200")
        plans.append(" ".join(["ok", *map(as_word, p.launches)]))
    result = run([driver], "\n".join(" ".join(map(str, ["launches", *case.words, 0])) for case in batch) + "\n")
    assert result.returncode == 0, result.stderr[-4000:]
    assert result.stdout.splitlines() == plans


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


@pytest.mark.parametrize("kernel", ["correct", "correct_ring"])
def test_a_correct_kernel_gives_its_sum_under_every_seed(broken, kernel):
    result = run([broken, kernel, *MANY_SEEDS])
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == [SUM] * len(MANY_SEEDS)


@pytest.mark.parametrize("kernel", ["removed_barrier", "removed_warp_barrier", "reused_slot", "released_early"])
def test_a_race_changes_the_result(broken, kernel):
    result = run([broken, kernel, *MANY_SEEDS])
    assert result.returncode == 0, result.stderr
    sums = result.stdout.split()
    assert len(sums) == len(MANY_SEEDS)
    assert len(set(sums)) > 1
    assert sums.count(SUM) < len(sums)


@pytest.mark.parametrize("kernel", ["unawaited_copy", "unawaited_product"])
def test_what_nobody_waited_for_is_not_there(broken, kernel):
    result = run([broken, kernel, *MANY_SEEDS])
    assert result.returncode == 0, result.stderr
    sums = result.stdout.split()
    assert len(sums) == len(MANY_SEEDS) and SUM not in sums


@pytest.mark.parametrize(
    ("kernel", "sentence"),
    [
        ("skipped_barrier", "threads have left the kernel"),
        ("divergent_barrier", r"64 threads wait at .*divergent_barrier.cu"),
        ("deadlock", "no thread of the grid can go on"),
        ("missing_arrival", "no thread of the grid can go on"),
        ("uninitialised_barrier", "that nobody has initialised"),
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


@pytest.mark.parametrize(
    ("kernel", "sentence"),
    [
        ("past_a_stage", "names 4 bytes of shared memory that are not in one of its arrays"),
        ("unread_store", "left the kernel before what it stores was read"),
    ],
)
def test_a_copy_that_must_not_be_is_reported(broken, kernel, sentence):
    result = run([broken, kernel, "1"])
    assert result.returncode == 3
    assert re.search(rf"of broken::{kernel}\(.*{sentence}", result.stderr), result.stderr


def test_a_misaligned_load_is_reported(broken):
    result = run([broken, "misaligned_load", "1"])
    assert result.returncode != 0
    assert re.search(r"ILL on .*\n.*in broken::misaligned_load\(.*misaligned_load\.cu:8", result.stderr), result.stderr


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


# ---- row operations ----


ROW_DTYPES = (torch.float32, torch.bfloat16, torch.float64, torch.float16)
BACKWARD = {"softmax_backward": "softmax", "log_softmax_backward": "log_softmax"}


def row_operation(store, op, variant, x, dim, capability=90, shift=0, weighted=True):
    """An op along `dim` of a view of three dims, whose elements lie where the view has them, `shift` further on."""
    outer, n, inner = x.shape if dim == 1 else (*x.shape[:1], x.shape[2], x.shape[1])
    row = x if dim == 2 else x.movedim(1, 2)  # (outer, inner, n)
    rows = row.reshape(-1, n)
    g = torch.randn(rows.shape, dtype=torch.float64).to(x.dtype)
    w, b = (torch.randn(n, dtype=torch.float64).to(x.dtype) if weighted else None for _ in "wb")
    strides = (row.stride(0), row.stride(1), row.stride(2))
    reads = [(shift + x.storage_offset(), *strides, store(memory_of(x)))]
    contiguous = (0, inner * n, n, 1)
    weights, values = ["none", "none"], ["none", "none"]
    eps = 1e-5
    if op in BACKWARD:
        y = getattr(row_models, BACKWARD[op])(rows)
        expected = [getattr(row_models, op)(g, y, order=variant.order)]
        reads = [(*contiguous, store(g)), (*contiguous, store(y))]
    elif op.endswith("backward"):
        norm = row_models.layer_norm if op.startswith("layer") else row_models.rms_norm
        _, *of_rows = norm(rows)
        expected = [getattr(row_models, op)(g, rows, *of_rows, w, order=variant.order)]
        reads = [(*contiguous, store(g)), *reads]
        weights = [store(w) if weighted else "none", "none"]
        values = [store(v) for v in of_rows] + ["none"] * (2 - len(of_rows))
    elif op.endswith("norm"):
        arguments = (w, b) if op == "layer_norm" else (w,)
        expected = list(getattr(row_models, op)(rows, *arguments, order=variant.order))
        weights = [store(v) if v is not None else "none" for v in (*arguments, None)][:2]
    else:
        expected = [getattr(row_models, op)(rows, order=variant.order)]
    # Contiguous, the row's dim where it was; values of rows behind multiples of 16 bytes.
    first = expected[0].view(outer, inner, -1)
    parts = [first.transpose(1, 2), *expected[1:]] if inner > 1 else [first, *expected[1:]]
    text = b""
    for part in parts:
        text += part.contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        text += b"\xff" * (-len(text) % 16)
    words = [
        "rows",
        op,
        variant.name,
        dtype_name(x.dtype),
        132,
        capability,
        outer,
        inner,
        n,
        eps,
        len(reads),
    ]
    words += [word for read in reads for word in read] + weights + values
    return Case(words, torch.frombuffer(bytearray(text), dtype=torch.uint8), 1)


ROW_OPS = ("softmax", "log_softmax", "logsumexp", "layer_norm", "rms_norm")
ROW_OPS += ("softmax_backward", "log_softmax_backward", "layer_norm_backward", "rms_norm_backward")
ROW_KERNELS = [v for v in ROW_VARIANTS if v.has_kernel]


def row_operations(store, op, variant):
    batch = []
    dtypes = in_turn(ROW_DTYPES)
    for n in (1, 4, 40, 64, 100, 128, 200, 256, 500, 512, 1000, 1024, 1025, 2048, 5000, 20_000):
        for rows in (1, 3, 37)[: 3 if n <= 128 else 2 if n <= 1100 else 1]:
            (dtype,) = next(dtypes)
            x = (torch.randn(rows, 1, n, dtype=torch.float64) * 3).to(dtype)
            batch.append(row_operation(store, op, variant, x, 2, weighted=rows != 3))
    for dtype in ROW_DTYPES:
        # Vectors of every width; rows that begin anywhere; a middle dim; every second element.
        base = (torch.randn(3, 130, 4, dtype=torch.float64) * 3).to(dtype)
        batch.append(row_operation(store, op, variant, base, 1))
        batch.append(row_operation(store, op, variant, base.transpose(1, 2), 2, shift=1))
        batch.append(row_operation(store, op, variant, base[:, ::2, 1:], 1))
        # Every place in a vector that a row may begin at; the first case is cut in the last stripe.
        for n in (1023, 1539):
            x = (torch.randn(4, 1, n, dtype=torch.float64) * 3).to(dtype)
            batch.append(row_operation(store, op, variant, x, 2))
        for n in (68, 260, 1028):
            x = (torch.randn(2, 1, n + 1, dtype=torch.float64) * 3).to(dtype)
            batch.append(row_operation(store, op, variant, x[:, :, 1:], 2))
            batch.append(row_operation(store, op, variant, x[:, :, 1:].contiguous(), 2, shift=4))
        # Elements far below the maximum, for which exp takes other steps; rows of one to four packs; rows that begin
        # anywhere, whose last elements lie in a stripe of their own.
        for n in (20, 33, 77, 127, 260, 1151, 1500, 3071):
            x = torch.randn(6, 1, n, dtype=torch.float64)
            x[1:3] *= 60
            if op in ("softmax", "log_softmax", "logsumexp"):
                x[2, 0, ::3] = -torch.inf
            batch.append(row_operation(store, op, variant, x.to(dtype), 2))
    if variant.name == "row_cluster":
        # Smaller blocks than of other dtypes, and more of them.
        batch.append(row_operation(store, op, variant, torch.randn(1, 1, 12_289, dtype=torch.float64), 2))
    return batch


@pytest.mark.parametrize("op", ROW_OPS)
@pytest.mark.parametrize("variant", ROW_KERNELS, ids=names(ROW_KERNELS))
def test_row_operation(driver, stored, op, variant):
    assert check(driver, row_operations(stored, op, variant)) > 20


# ---- attention ----


def attention(driver, store, capability, operands, mask=None, causal=False, seeds=(1, 2)):
    """Results and gradients of query, key and value, by the kernels of a chip; the same bits from every run."""
    q, k, v, g = operands
    batch, heads, length, width = q.shape
    sizes = [batch, heads, heads // k.shape[1], length, k.shape[2], width, v.shape[3], int(causal), 0.25]
    words = ["attention", capability, dtype_name(q.dtype), *sizes, *map(store, operands)]
    words += ["none", "none"] if mask is None else [dtype_name(mask.dtype), store(mask)]
    result = run([driver], " ".join(map(str, [*words, *seeds])) + "\n")
    status, *runs = result.stdout.split(" ")
    assert status == "ok" and len(runs) == len(seeds), result.stdout[:200] + result.stderr[-4000:]
    assert len(set(word.strip() for word in runs)) == 1
    everything = torch.frombuffer(bytearray.fromhex(runs[0]), dtype=q.dtype)
    parts = everything.split([g.numel(), q.numel(), k.numel(), v.numel()])
    return [part.view(like.shape) for part, like in zip(parts, (g, q, k, v), strict=True)]


# heads, heads of keys, length, keys, width, value width, and the mask
ATTENTION = {
    "groups": (4, 2, 40, 70, 24, 40, "causal"),
    "wide": (1, 1, 20, 130, 128, 72, "none"),
    "more queries than keys": (1, 1, 130, 40, 16, 16, "causal"),
    "bool": (2, 1, 20, 70, 16, 24, "bool"),
    "float32": (2, 2, 20, 40, 64, 8, "float32"),
    "several pieces": (1, 1, 18, 530, 24, 24, "none"),
    "few queries": (1, 1, 3, 530, 128, 72, "none"),
    "few queries, bool": (1, 1, 5, 530, 40, 24, "bool"),
    "one query": (3, 1, 1, 530, 64, 64, "none"),
}


@pytest.mark.parametrize("capability", [80, 90])  # 90: by warp groups
@pytest.mark.parametrize("case", ATTENTION)
def test_attention(driver, stored, case, capability):
    heads, shared, length, keys, width, value_width, mask = ATTENTION[case]
    dtype = torch.float16 if mask in ("none", "bool") else torch.bfloat16
    shapes = [(heads, length, width), (shared, keys, width), (shared, keys, value_width), (heads, length, value_width)]
    batch = 2 if mask == "bool" else 1
    operands = [torch.randn(batch, *shape, dtype=torch.float64).to(dtype) for shape in shapes]
    masks = {"bool": torch.rand(length, keys) > 0.4, "float32": torch.randn(length, keys)}
    if mask == "bool":
        masks["bool"][3] = False
    actual = attention(driver, stored, capability, operands, masks.get(mask), mask == "causal")
    seen = torch.ones(length, keys, dtype=torch.bool)
    seen = masks["bool"] if mask == "bool" else seen.tril() if mask == "causal" else seen
    wide = [x.double().requires_grad_() for x in operands[:3]]
    q, k, v = wide[0], *(x.repeat_interleave(heads // shared, 1) for x in wide[1:])
    scores = 0.25 * q @ k.mT + (masks[mask] if mask == "float32" else 0)
    expected = torch.softmax(scores.masked_fill(~seen, -1e30), -1) * seen @ v
    grads = torch.autograd.grad(expected, wide, operands[3].double())
    unit = torch.finfo(dtype).eps
    for a, e in zip(actual, (expected, *grads), strict=True):
        torch.testing.assert_close(a.double(), e, rtol=0, atol=4 * unit * e.abs().max().item())
    # The last query that attends few keys, with a cache.
    if mask == "causal" and length <= keys:
        n = length - 3
        alone = [operands[0][:, :, n - 1 : n], *(x[:, :, :n] for x in operands[1:3]), operands[3][:, :, n - 1 : n]]
        result, *_ = attention(driver, stored, capability, alone)
        assert_same_bits(result, actual[0][:, :, n - 1 : n])


# ---- rows that meet in a place ----


@pytest.mark.parametrize("dtype", ROW_DTYPES, ids=dtype_name)
def test_segments(driver, stored, dtype):
    batch = []
    for count, width, places, shift, mean in (
        (1, 4, 3, 0, 0),
        (50, 8, 60, 0, 1),
        (70, 12, 3, 1, 0),
        (41, 5, 7, 0, 0),
        (37, 4, 1, 0, 1),
        (128, 4, 1, 0, 0),
        (300, 5, 2, 0, 0),
        (333, 8, 3, 0, 1),
        (2500, 2, 2, 0, 0),
    ):
        index = torch.randint(0, places, (count,))
        source, before = torch.randn(count, width).to(dtype), torch.randn(places, width).to(dtype)
        ascending, order = index.sort(stable=True)
        expected = before.clone()
        torch.ops.treduce.add_segments_(expected, ascending, order, source, bool(mean))
        words = ["segments", dtype_name(dtype), count, width, places, mean, shift]
        words += map(stored, (ascending, order, source, before))
        batch.append(Case(words, expected))
    check(driver, batch)
