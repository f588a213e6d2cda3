"""Products on a GPU: tensor cores against exact and float64 products, memory around the result, rows and columns that
do not depend on what lies beside them, streams and graphs, and what `auto` picks."""

import itertools
import math

import orders
import pytest
import tables
import torch
from bits import assert_same_bits
from cases import generator
from graphs import captured
from products import attempt, into_poison, layouts, product, strided_operands
from tables import MATMUL_VARIANTS, ON_CORES

import torch_reduce
from torch_reduce import _C, _check

pytestmark = pytest.mark.cuda

SIDES = (1, 2, 63, 64, 65, 127, 128, 129, 255, 256, 257)
DEPTHS = (0, 1, 7, 8, 15, 16, 17, 63, 64, 65, 127, 128, 129, 4096 + 5)
FEW_ROWS = (1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65)
ROWS = (1, 2, 3, 8, 16, 17, 63, 64, 65, 100, 128, 129, 255, 256, 257, 1000, 4096, 8192)


def of_every_dtype(variants, some=tuple):
    """Parameters: each variant with each dtype that it takes."""
    pairs = [(v, tables.DTYPE_NAMES[name]) for v in variants for name in some(v.dtypes)]
    ids = [f"{v.name}-{str(dtype).removeprefix('torch.')}" for v, dtype in pairs]
    return pytest.mark.parametrize(("variant", "dtype"), pairs, ids=ids)


def floats(dtypes):
    return tuple(name for name in dtypes if "float" in name)


every_core = of_every_dtype(ON_CORES)
every_float_core = of_every_dtype(ON_CORES, floats)
every_pair = of_every_dtype(MATMUL_VARIANTS)


@pytest.fixture(autouse=True)
def needs_chip(request):
    variant = request.node.callspec.params.get("variant") if hasattr(request.node, "callspec") else None
    if variant is not None:
        tables.needs_chip(variant)


BACKEND = torch.backends.cuda.matmul


@pytest.fixture
def as_found():
    """Puts back how torch multiplies float32, by the old setting and the new one."""
    before = BACKEND.fp32_precision
    yield
    BACKEND.allow_tf32 = before == "tf32"
    BACKEND.fp32_precision = before


def by_precision(tfloat32):
    BACKEND.fp32_precision = "tf32" if tfloat32 else "ieee"


def by_permission(tfloat32):
    BACKEND.allow_tf32 = tfloat32


def by_global_precision(tfloat32):
    torch.set_float32_matmul_precision("high" if tfloat32 else "highest")


every_setting = pytest.mark.parametrize("ask", [by_precision, by_permission, by_global_precision])


def random(*shape, dtype, seed=0):
    """Normal numbers, or integers whose products of any depth here stay below 2^31, on the GPU."""
    g = torch.Generator(device="cuda").manual_seed(seed)
    if dtype.is_floating_point:
        return torch.randn(shape, generator=g, device="cuda", dtype=torch.float32).to(dtype)
    return torch.randint(-100, 101, shape, generator=g, device="cuda", dtype=dtype)


def assert_right(result, a, b, variant, what=""):
    checked = _check.check("matmul", variant.name, result, (a, b), _check.truth("matmul", a, b))
    assert checked, f"{what}: {checked.reason}"


def assert_one_order(a, b, one, other):
    """Two variants have the same bits, whatever the layout of the one's operands."""
    expected = product(a, b, other)
    for what, left, right in layouts(a, b):
        assert_same_bits(product(left, right, one), expected, f"{(*a.shape, b.size(1))} {what}")


def assert_same_with_bias(a, b, one, other):
    bias = random(b.size(1), dtype=a.dtype, seed=3)
    found, expected = (torch.ops.treduce.linear(a, b.t(), bias, v.name) for v in (one, other))
    assert_same_bits(found, expected, f"{(*a.shape, b.size(1))}, with a bias")


# Values.


@every_core
def test_small_integers_are_exact(variant, dtype):
    """Every product and every partial sum of them is a number of every format, so any order gives the exact sum."""
    for m, n, k in ((1, 1, 1), (17, 33, 9), (64, 64, 64), (129, 257, 65), (200, 100, 1000), (65, 63, 4101)):
        g = generator(m + n + k)
        a, b = (torch.randint(-8, 9, shape, generator=g).double().cuda() for shape in ((m, k), (k, n)))
        expected = (a @ b + 0.0).to(_check.result_dtype("matmul", dtype))  # + 0: no -0
        a, b = a.to(dtype), b.to(dtype)
        assert_same_bits(into_poison(a, b, variant), expected, f"{(m, n, k)}")
        assert_same_bits(into_poison(a, b.t().contiguous().t(), variant), expected, f"{(m, n, k)}, b^T")


@every_core
def test_values_around_the_edges_of_tiles(variant, dtype, poison):
    poison()
    shapes = [(m, n, 40 + (m + n) % 50) for m, n in itertools.product(SIDES, SIDES)]
    shapes += [(m, n, k) for m, n in ((65, 129), (257, 100)) for k in SIDES]
    for m, n, k in shapes:
        a, b = random(m, k, dtype=dtype, seed=m), random(k, n, dtype=dtype, seed=1000 + n)
        assert_right(into_poison(a, b, variant), a, b, variant, f"{(m, n, k)}")


@every_core
def test_values_of_every_depth(variant, dtype, poison):
    poison()
    for k in DEPTHS:
        for m, n in ((1, 1), (65, 129), (128, 256), (7, 1000)):
            a, b = random(m, k, dtype=dtype, seed=k), random(k, n, dtype=dtype, seed=k + 1)
            result = into_poison(a, b, variant)
            assert_right(result, a, b, variant, f"{(m, n, k)}")
            if k == 0:
                assert_same_bits(result, torch.zeros_like(result))


@every_core
def test_values_of_the_largest_tiles(variant, dtype, poison):
    """With tiles for all multiprocessors and more, blocks form clusters, and the second of two has rows of its own."""
    poison()
    for what, a, b in layouts(random(2304, 200, dtype=dtype), random(200, 3000, dtype=dtype, seed=1)):
        assert_right(into_poison(a, b, variant), a, b, variant, what)


@every_core
def test_layouts_change_no_bit(variant, dtype):
    """An operand that is unaligned, strided or transposed may be read in another way; the additions are the same."""
    for name, (a, b) in strided_operands("cuda", dtype).items():
        result = into_poison(a, b, variant)
        assert_same_bits(result, product(a.contiguous(), b.contiguous(), variant), name)
        assert_right(result, a, b, variant, name)
    base = random(300, 300, dtype=dtype)
    for offset, (m, n, k) in itertools.product((0, 1, 3, 8), ((65, 130, 77), (128, 128, 64), (1, 200, 129))):
        a, b = base[offset : offset + m, 1 : 1 + k], base[2 : 2 + k, offset : offset + n]
        expected = product(a.clone(), b.clone(), variant)
        for left, right in itertools.product((a, a.t().contiguous().t()), (b, b.t().contiguous().t())):
            assert_same_bits(product(left, right, variant), expected, f"{(m, n, k)} at {offset}")


INT8_CORES = tuple(v for v in ON_CORES if "int8" in v.dtypes)


@pytest.mark.parametrize("variant", INT8_CORES, ids=tables.names(INT8_CORES))
def test_int8_has_the_cpus_bits(variant):
    """Values of the whole range, sums that wrap, in every layout."""
    for m, n, k in ((1, 1, 1), (16, 40, 128), (33, 17, 129), (130, 270, 1000), (64, 256, 4096), (300, 31, 70_001)):
        g = generator(m + n + k)
        a, b = (torch.randint(-128, 128, shape, generator=g, dtype=torch.int8) for shape in ((m, k), (k, n)))
        a[0], b[:, 0] = -128, -128
        expected = product(a, b, None).cuda()
        for what, left, right in layouts(a.cuda(), b.cuda()):
            assert_same_bits(into_poison(left, right, variant), expected, f"{(m, n, k)} {what}")


@every_float_core
def test_nan_and_infinity_stay_in_their_row_and_column(variant, dtype):
    m, n, k = 130, 270, 200
    a, b = random(m, k, dtype=dtype), random(k, n, dtype=dtype, seed=1)
    clean = product(a, b, variant)
    assert clean.isfinite().all()
    for row, column, depth in ((0, 0, 0), (67, 131, 199), (129, 269, 100)):
        for value in (float("nan"), float("inf"), -float("inf")):
            left, right = a.clone(), b.clone()
            left[row, depth] = value
            c = product(left, b, variant)
            expected = left[row].double() @ b.double()
            assert torch.equal(c[row].isnan(), expected.isnan()) and not c[row].isfinite().any()
            assert torch.equal(c[row].isinf() & (c[row] > 0), expected.isinf() & (expected > 0))
            c[row] = clean[row]
            assert_same_bits(c, clean, f"{value} in row {row}")
            right[depth, column] = value
            c = product(a, right, variant)
            assert not c[:, column].isfinite().any()
            c[:, column] = clean[:, column]
            assert_same_bits(c, clean, f"{value} in column {column}")


class Raw:
    """Device memory by its address, as torch.as_tensor reads it."""

    def __init__(self, address, size):
        self.__cuda_array_interface__ = {"data": (address, False), "shape": (size,), "typestr": "|u1", "version": 3}


@every_pair
def test_nothing_is_written_beside_the_result(variant, dtype):
    """The result lies between two blocks of 0xff, in a block of 0xff: NaN in every format, which nobody computes."""
    for m, n, k in ((1, 1, 3), (5, 7, 70), (63, 65, 33), (64, 64, 64), (129, 127, 100), (200, 257, 65)):
        a, b = random(m, k, dtype=dtype), random(k, n, dtype=dtype, seed=1)
        expected = product(a, b, variant).clone()
        size = m * n * _check.result_dtype("matmul", dtype).itemsize
        room = -(-size // 512) * 512  # what the allocator gives out
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        blocks = memory = c = None  # of the shape before: no holes of that size
        # So many blocks that other holes of that size are filled.
        blocks = [torch.empty(room, dtype=torch.uint8, device="cuda") for _ in range(100)]
        blocks.sort(key=torch.Tensor.data_ptr)
        places = [block.data_ptr() for block in blocks]
        middle = next(i for i in range(1, 99) if places[i + 1] - places[i - 1] == 2 * room)
        memory = torch.as_tensor(Raw(places[middle - 1], 3 * room), device="cuda")
        assert memory.data_ptr() == places[middle - 1]
        memory.fill_(0xFF)
        blocks[middle] = None  # free: the next tensor of its size lies there
        c = product(a, b, variant)
        assert c.data_ptr() == places[middle], "the allocator took other memory"
        assert_same_bits(c, expected, f"{(m, n, k)}")
        assert memory[:room].eq(0xFF).all(), f"{(m, n, k)}: written before the result"
        assert memory[room + size :].eq(0xFF).all(), f"{(m, n, k)}: written behind the result"


# A bias.


def integers(*shape, most, dtype, seed):
    """From -most to most."""
    g = torch.Generator(device="cuda").manual_seed(seed)
    return torch.randint(-most, most + 1, shape, generator=g, device="cuda").to(dtype)


@every_pair
def test_a_bias_is_added_before_the_one_rounding(variant, dtype):
    """Every sum is exact in the accumulator, in any order, and has more bits than 16-bit floats; the bias has quarters.

    Shapes for every tile that a rung may pick, aligned and not, and k in several groups, side by side and in turn.
    """
    most, out = 32 if dtype.is_floating_point else 100, _check.result_dtype("matmul", dtype)
    sizes = [(1, 1, 40), (1, 1000, 200), (5, 257, 129), (16, 264, 4101), (30, 131, 200), (64, 72, 4101), (100, 1, 200)]
    sizes += [(100, 16, 200), (257, 31, 200), (300, 70, 200), (129, 257, 65), (512, 512, 72), (700, 1001, 40)]
    sizes += [(1000, 3000, 64), (3000, 2000, 64), (1536, 1408, 4101), (1536, 1409, 4101)]
    for (m, n, k), start in itertools.product(sizes, (0, 1)):
        if m * n * k > 1e9 and (start == 1 or not dtype.is_floating_point or variant.on_cpu):
            continue
        a, weight = integers(m, k, most=most, dtype=dtype, seed=m), integers(n, k, most=most, dtype=dtype, seed=n)
        base = integers(n + 1, most=127, dtype=out, seed=k)
        bias = (base / 4 if dtype.is_floating_point else base)[start : start + n]
        expected = (a.double() @ weight.double().t() + bias.double()).to(out)
        with _check.poisoned():
            result = torch.ops.treduce.linear(a, weight, bias, variant.name)
        assert_same_bits(result, expected, f"{(m, n, k)}, bias at {start}")
    bias = integers(65, most=127, dtype=out, seed=2)
    a, weight = torch.empty(3, 0, device="cuda", dtype=dtype), torch.empty(65, 0, device="cuda", dtype=dtype)
    assert_same_bits(torch.ops.treduce.linear(a, weight, bias, variant.name), bias.expand(3, 65).contiguous())


@every_pair
def test_a_bias_has_the_bits_of_the_cpu(variant, dtype, poisoned):
    if not variant.on_cpu:
        pytest.skip("an order of its own")
    for m, n, k in ((1, 300, 200), (130, 1, 70), (33, 257, 600), (200, 264, 129)):
        a, weight = random(m, k, dtype=dtype, seed=n), random(n, k, dtype=dtype, seed=n)
        bias = random(n + 1, dtype=_check.result_dtype("matmul", dtype), seed=n)
        result = torch.ops.treduce.linear(a, weight, bias[1:], variant.name)
        expected = torch.ops.treduce.linear(a.cpu(), weight.cpu(), bias[1:].cpu(), variant.name)
        assert_same_bits(result.cpu(), expected, f"{(m, n, k)}")


def test_a_bias_where_pairs_do_not_suffice():
    """split_fp16 computes some rows without tensor cores, after all groups; and NaN is the one NaN of the format."""
    if not tables.runs(tables.row("matmul", "split_fp16"), "cuda"):
        pytest.skip("needs another chip")
    for m, n, k in ((100, 200, 300), (100, 200, 5000), (200, 300, 5000), (1536, 1408, 4200), (1536, 1409, 4200)):
        a, weight = random(m, k, dtype=torch.float32), random(n, k, dtype=torch.float32, seed=1)
        a[::7] *= torch.logspace(-30, 30, k, device="cuda", dtype=torch.float64).exp2().float()
        a[3, 5] = float("inf")
        bias = random(n, dtype=torch.float32, seed=2)
        bias[9], bias[11], bias[n - 1] = float("nan"), float("inf"), -float("inf")
        result = torch.ops.treduce.linear(a, weight, bias, "split_fp16")
        sums = torch.ops.treduce.matmul(a, weight.t(), "split_fp16") + bias
        nan = torch.tensor(float("nan"), device="cuda")
        assert_same_bits(result, torch.where(sums.isnan(), nan, sums), f"{(m, n, k)}")


# Independence of the batch.


@every_pair
def test_rows_do_not_depend_on_the_rows_beside_them(variant, dtype, poisoned):
    for k in (200, 4101):
        a, b = random(max(ROWS) + 40, k, dtype=dtype), random(k, 96, dtype=dtype, seed=1)
        whole = product(a, b, variant)
        for m, start in itertools.product(ROWS, (0, 37)):
            part = product(a[start : start + m], b, variant)
            assert_same_bits(part, whole[start : start + m], f"rows {start} to {start + m}, k {k}")


@every_pair
def test_columns_do_not_depend_on_the_columns_beside_them(variant, dtype, poisoned):
    for k in (200, 4101):
        a, b = random(96, k, dtype=dtype), random(k, max(ROWS) + 40, dtype=dtype, seed=1)
        whole = product(a, b, variant)
        for n, start in itertools.product(ROWS, (0, 37)):
            part = product(a, b[:, start : start + n], variant)
            assert_same_bits(part, whole[:, start : start + n].contiguous(), f"columns {start} to {start + n}, k {k}")


@every_float_core
def test_few_rows_have_the_bits_of_many(variant, dtype, poisoned):
    """Few rows may have another kernel, with other instructions and tiles, for each layout of B."""
    for n, k in ((1, 65), (15, 8), (33, 200), (64, 136), (100, 1000), (333, 1001), (4096, 72), (12289, 200)):
        base, b = random(300, k + 3, dtype=dtype), random(k, n, dtype=dtype, seed=1)
        for a in (base[:, :k].contiguous(), base[:, 3:]):
            whole = product(a, b, variant)
            for m, start in itertools.product(FEW_ROWS, (0, 5)):
                for right in (b, b.t().contiguous().t()):
                    part = product(a[start : start + m], right, variant)
                    assert_same_bits(part, whole[start : start + m], f"rows {start} to {start + m} of {(n, k)}")


@every_float_core
def test_few_rows_have_the_bits_of_many_whatever_the_values(variant, dtype, poisoned):
    """Underflow, zeros of both signs, numbers of very different size, infinities and NaN."""
    n, k = 100, 200
    a, b = random(300, k, dtype=dtype), random(k, n, dtype=dtype, seed=1)
    root = torch.finfo(dtype).tiny ** 0.5
    powers = random(300, k, dtype=dtype, seed=2).mul(3).round().exp2()
    zeros = torch.where(random(300, k, dtype=dtype, seed=3) > 1, a, torch.copysign(torch.zeros_like(a), a))
    special = torch.where(random(300, k, dtype=dtype, seed=4) > 2.5, float("inf") * a, a)
    special[::7, 3] = float("nan")
    for left, right in ((a * root, b * root), (a * powers, b), (zeros, b), (zeros, zeros[:k, :n]), (special, b)):
        whole = product(left, right, variant)
        for m, b_layout in itertools.product(FEW_ROWS, (right, right.t().contiguous().t())):
            assert_same_bits(product(left[3 : 3 + m], b_layout, variant), whole[3 : 3 + m], f"{m} rows")


@every_float_core
def test_few_columns_have_the_bits_of_many(variant, dtype, poisoned):
    """Likewise, with a bias, where the transposed product has few rows."""
    for m, k in ((1, 65), (100, 1000), (333, 1001), (3001, 2056), (4096, 72), (700, 9000)):
        a, b, bias = random(m, k, dtype=dtype), random(k, 300, dtype=dtype, seed=1), random(300, dtype=dtype, seed=2)
        whole = torch.ops.treduce.linear(a, b.t(), bias, variant.name)
        for left in (a, a.t().contiguous().t()):
            for n in FEW_ROWS:
                part = b[:, 5 : 5 + n].t().contiguous()
                found = torch.ops.treduce.linear(left, part, bias[5 : 5 + n].contiguous(), variant.name)
                assert_same_bits(found, whole[:, 5 : 5 + n].contiguous(), f"{n} columns of {(m, k)}")


@every_pair
def test_one_row_of_a_large_product(variant, dtype, poisoned):
    """Where a rung cuts k to fill the chip for one row, and does not for many."""
    k, n = 8192 + 24, 1000
    a, b = random(300, k, dtype=dtype), random(k, n, dtype=dtype, seed=1)
    whole = product(a, b, variant)
    for i in (0, 150, 299):
        assert_same_bits(product(a[i], b, variant), whole[i], f"row {i}")
        assert_same_bits(product(a[i : i + 1], b, variant)[0], whole[i], f"row {i}")
    for j in (0, 500, 999):
        assert_same_bits(product(a, b[:, j].contiguous(), variant), whole[:, j].contiguous(), f"column {j}")


@pytest.mark.parametrize("variant", [v for v in ON_CORES if v.name == "persistent"], ids=["persistent"])
def test_operands_in_registers_have_the_bits_of_those_in_shared_memory(variant, poisoned):
    """float32: B across k comes from registers, B along k from shared memory where rows are not few; A across
    k and B along it the other way round. With a bias."""
    for n, k in ((60, 200), (100, 1001), (1000, 64), (4096, 520), (3001, 2053), (700, 9000)):
        a, b = random(2100, k + 4, dtype=torch.float32)[:, 4:], random(k, n, dtype=torch.float32, seed=1)
        bias = random(n, dtype=torch.float32, seed=2)
        along = b.t().contiguous().t()
        whole, with_bias = product(a, along, variant), torch.ops.treduce.linear(a, along.t(), bias, variant.name)
        for m in (1, 3, 8, 13, 32, 64, 65, 100, 128, 200, 256, 300, 600, 1024, 2100):
            assert_same_bits(product(a[:m], b, variant), whole[:m], f"{(m, n, k)}")
            assert_same_bits(product(a[:m], along, variant), whole[:m], f"{(m, n, k)}, B along k")
            across = a[:m].t().contiguous().t()
            assert_same_bits(product(across, along, variant), whole[:m], f"{(m, n, k)}, A across k, B along k")
            for left, right in ((a[:m], b), (across, along)):
                result = torch.ops.treduce.linear(left, right.t(), bias, variant.name)
                assert_same_bits(result, with_bias[:m], f"{(m, n, k)}, with a bias")
    a, b = random(7, 20, 100, dtype=torch.float32), random(7, 100, 36, dtype=torch.float32, seed=1)
    whole = product(a, b.mT.contiguous().mT, variant)
    assert_same_bits(product(a, b, variant), whole)
    assert_same_bits(product(a, b[3], variant), product(a, b[3].t().contiguous().t(), variant))
    for i in range(7):
        assert_same_bits(product(a[i], b[i], variant), whole[i])


def as_boxes(x):
    """The same values in rows that the copy engine can address, with numbers beside them that no product may see."""
    room = x.new_full((*x.shape[:-1], -(-x.size(-1) // 16) * 16), float("nan"))
    room[..., : x.size(-1)] = x
    return room[..., : x.size(-1)]


IN_PLACE = (  # batch, m, n, k: tiles of each shape, their edges, and k around a stage's, of one stage and of many
    (1, 33, 31, 7),
    (40, 77, 65, 77),
    (300, 100, 20, 130),
    (30, 197, 64, 197),
    (3, 1000, 33, 129),
    (20, 129, 70, 255),
    (1, 300, 201, 999),
    (5, 30, 30, 64),
    (2000, 31, 29, 33),
    (2, 257, 257, 2051),
    (1, 114, 18, 20037),  # groups of k
    (2, 30, 45, 8195),
    (1, 301, 44, 24005),
)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_operands_read_in_place_have_the_bits_of_boxes(dtype, poisoned):
    """Where rows begin inside 16 bytes, threads copy them: of every alignment and direction, with a bias, and of
    matrices that a batch shares."""
    variant = tables.row("matmul", "persistent")
    tables.needs_chip(variant)
    for batch, m, n, k in IN_PLACE:
        a, b = random(batch, m, k, dtype=dtype), random(batch, k, n, dtype=dtype, seed=1)
        padded = as_boxes(torch.nn.functional.pad(b, (0, -n % 16)))
        expected = product(as_boxes(a), padded, variant)[..., :n].contiguous()
        bias = random(n, dtype=dtype, seed=2)
        views = (lambda x: x, lambda x: x.mT.contiguous().mT, lambda x: odd(x, 1), lambda x: odd(x, 2))
        for i, j in itertools.product(range(4), repeat=2):
            left, right, what = views[i](a), views[j](b), f"{(batch, m, n, k)}, views {i} and {j}"
            assert_same_bits(product(left, right, variant), expected, what)
            if batch == 1:
                found = torch.ops.treduce.linear(left[0], right[0].t(), bias, variant.name)
                boxes = torch.ops.treduce.linear(as_boxes(a)[0], as_boxes(b)[0].t(), bias, variant.name)
                assert_same_bits(found, boxes, f"{what}, with a bias")
        shared = product(a, b[0], variant)
        assert_same_bits(shared, product(a, b[:1].expand(batch, k, n).contiguous(), variant), "a shared B")
        assert_same_bits(
            shared[batch // 2], product(as_boxes(a[batch // 2]), as_boxes(b[0]), variant), "one of a batch"
        )


def odd(x, by):
    """The same values from an address on that is `by` elements past an aligned one."""
    return torch.cat([x.new_zeros(by), x.flatten()])[by:].view(x.shape)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_what_no_number_is_stays_in_its_row_in_place(dtype, poisoned):
    """Zeros past the edges meet no operand: NaN and infinity beside them change nothing else."""
    variant = tables.row("matmul", "persistent")
    tables.needs_chip(variant)
    a, b = random(40, 77, 131, dtype=dtype), random(40, 131, 77, dtype=dtype, seed=1)
    expected = product(a, b, variant)
    a[3, 70, 130], b[5, 0, 76] = float("nan"), float("inf")
    found = product(a, b, variant)
    assert found[3, 70].isnan().all() and not found[5, :, 76].isfinite().any()
    found[3, 70], found[5, :, 76] = expected[3, 70], expected[5, :, 76]
    assert_same_bits(found, expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_small_matrices_have_the_bits_of_large_tiles(dtype, poisoned):
    """A warp a tile, from any layout; in every comparison its instruction has the bits of warp groups."""
    small, large = tables.row("matmul", "persistent"), tables.row("matmul", "warp_specialized")
    tables.needs_chip(small)
    shapes = [
        (m, n, k)
        for m, n, k in itertools.product((1, 2, 9, 16, 17, 31, 32), (1, 3, 8, 15, 16, 25, 32), (1, 5, 16, 33, 128))
    ]
    for m, n, k in [*shapes, (1000, 3, 3), (70, 300, 1), (16, 1000, 15), (333, 16, 16)]:
        a, b = random(m, k, dtype=dtype, seed=m), random(k, n, dtype=dtype, seed=1000 + n)
        for what, left, right in layouts(a, b) if m * n % 7 == 0 or k == 3 else (("N, N", a, b),):
            assert_same_bits(product(left, right, small), product(a, b, large), f"{(m, n, k)} {what}")
        assert_same_with_bias(a, b, small, large)
    for size in (16, 7):
        a, b = random(500, 3, size, 20, dtype=dtype), random(3, 20, size, dtype=dtype, seed=1)
        assert_same_bits(product(a, b, small), product(a, b, large), f"a batch of {size}")


def test_short_k_has_one_order(poisoned):
    """Every shape of its tiles, in any layout, at edges and at every part of a step of k, has the bits of `tiled`."""
    short, other = tables.row("matmul", "pipelined"), tables.row("matmul", "tiled")
    sizes = (
        (1, 1, 1),
        (1, 5, 700),
        (600, 3, 30),
        (2000, 30, 15),
        (600, 47, 18),
        (70, 90, 31),
        (40, 1, 500),
        (9, 300, 200),
    )
    sizes = (
        *sizes,
        (300, 130, 70),
        (1, 700, 1100),
        (1, 1700, 9),
        (64, 100, 33),
        (20, 1000, 28),
        (300, 77, 77),
        (32, 320, 40),
    )
    tiles = set()
    for batches, m, n in sizes:
        for k in (0, 1, 2, 3, 4, 7, 8, 31, 33, 64, 77, 127):
            a, b = (
                random(batches, m, k, dtype=torch.float32, seed=m),
                random(batches, k, n, dtype=torch.float32, seed=n),
            )
            expected = product(a, b, other)
            for left, right in itertools.product((a, a.mT.contiguous().mT), (b, b.mT.contiguous().mT)):
                assert_same_bits(product(left, right, short), expected, f"{(batches, m, n, k)}")
                plan = torch_reduce.plan("matmul", left, right, variant="pipelined")
                tiles.update(launch.kernel for launch in plan.launches)
    assert len(tiles) == 9, tiles  # every shape of shapes.h
    for m, n, k in ((5, 7, 9), (40, 36, 64), (130, 66, 100)):
        a, b = random(m, k, dtype=torch.float32, seed=m), random(k, n, dtype=torch.float32, seed=n)
        assert_one_order(a, b, short, other)
        assert_same_with_bias(a, b, short, other)
        apart = random(2 * m, 2 * k, dtype=torch.float32)[::2, ::2], random(2 * k, 3 * n, dtype=torch.float32)[::2, ::3]
        assert_same_bits(product(*apart, short), product(*apart, other), "neighbours in no direction")
    a, b = random(600, 20, 20, dtype=torch.float32), random(20, 24, dtype=torch.float32)
    assert_same_bits(product(a, b, short), product(a, b, other), "a shared B")
    a, b = random(3, 5, 70, 60, dtype=torch.float32), random(5, 3, 40, 60, dtype=torch.float32).permute(1, 0, 3, 2)
    assert_same_bits(product(a, b, short), product(a, b, other), "two dimensions of matrices")


def test_short_k_keeps_signs_of_zero_and_one_nan(poisoned):
    """What k is filled up with changes no -0, and every NaN is the quiet one."""
    short = tables.row("matmul", "pipelined")
    for k in (1, 2, 3, 5, 9, 63):
        a, b = torch.full((70, k), -1e-30, device="cuda"), torch.full((k, 90), 1e-30, device="cuda")
        assert_same_bits(product(a, b, short), torch.full((70, 90), -0.0, device="cuda"))
        a[3, 0], b[0, 5] = float("nan"), float("inf")
        b[0, 6] = -b[0, 5]
        found = product(a, b, short)
        nan = torch.tensor(0x7FC00000, dtype=torch.int32, device="cuda").view(torch.float32)
        assert_same_bits(found[3], nan.expand(90))
        assert (found[:3, 5] == -torch.inf).all() and (found[:3, 6] == torch.inf).all()
        assert (found[:3, 7:].signbit() & (found[:3, 7:] == 0)).all()


def test_float64_has_one_order(poisoned):
    """Tiles by the copy engine have the bits of those that threads copy, whatever the tile and the layout."""
    boxes, copies = tables.row("matmul", "specialized_f64"), tables.row("matmul", "mma_f64")
    tables.needs_chip(boxes)
    shapes = (
        (1, 1, 1),
        (17, 33, 5),
        (100, 200, 300),
        (513, 1025, 777),
        (64, 11008, 96),
        (128, 11008, 64),
        (64, 4096, 96),
    )
    for m, n, k in (*shapes, (700, 1100, 500), (1000, 3000, 40), (97, 101, 8300), (300, 300, 9000), (2000, 1800, 8200)):
        # Thirds: numbers of all 53 bits.
        a, b = random(m, k, dtype=torch.float64) / 3, random(k, n, dtype=torch.float64, seed=1) / 3
        assert_one_order(a, b, boxes, copies)
        assert_same_with_bias(a, b, boxes, copies)
    a, b = random(5, 3, 70, 90, dtype=torch.float64), random(3, 90, 50, dtype=torch.float64, seed=1)
    assert_same_bits(product(a, b, boxes), product(a, b, copies), "a batch")


# float64 products whose tasks fill no round of 132 multiprocessors' blocks: one group of k, of an even and an odd
# number of steps; two to five in a task; groups apart, the last of which is shorter; rows that are copied.
DEALT = [
    *((1100, 1100, 2000), (900, 1300, 1001), (3000, 3000, 3000), (128, 11008, 4096), (1500, 900, 8190)),
    *((128, 3000, 5000), (681, 3801, 2784), (2000, 1800, 8200), (64, 11008, 4096)),
]


def test_tasks_dealt_out_have_one_order(poisoned):
    """A block that goes on from another one's accumulators gets the bits of one that does all."""
    boxes, copies = tables.row("matmul", "specialized_f64"), tables.row("matmul", "mma_f64")
    tables.needs_chip(boxes)
    seen = set()
    for m, n, k in DEALT:
        a, b = random(m, k, dtype=torch.float64) / 3, random(k, n, dtype=torch.float64, seed=1) / 3
        for left, right in ((a, b), (a, b.mT.contiguous().mT), (a.mT.contiguous().mT, b)):
            plan = torch_reduce.plan("matmul", left, right, variant="specialized_f64")
            if plan.tasks_dealt:
                seen.add(plan.launches[-2 if plan.groups_apart else -1].kernel)
            assert_same_bits(product(left, right, boxes), product(left, right, copies), f"{(m, n, k)}, {plan.tile}")
        assert_same_with_bias(a, b, boxes, copies)
    if torch.cuda.get_device_properties(0).multi_processor_count == 132:
        assert len(seen) >= 5, seen
    a, b = random(3, 1100, 700, dtype=torch.float64), random(3, 700, 900, dtype=torch.float64, seed=1)
    assert_same_bits(product(a, b, boxes), product(a, b, copies), "a batch")


def test_tasks_dealt_out_at_once(poisoned):
    """Two streams whose blocks wait for each other's multiprocessors, and graphs: each has flags of its own."""
    boxes, copies = tables.row("matmul", "specialized_f64"), tables.row("matmul", "mma_f64")
    tables.needs_chip(boxes)
    pairs = [
        (random(m, k, dtype=torch.float64, seed=m), random(k, n, dtype=torch.float64, seed=n))
        for m, n, k in ((1100, 1100, 2000), (1500, 900, 4096))
    ]
    expected = [product(a, b, copies) for a, b in pairs]
    streams = [torch.cuda.Stream() for _ in pairs]
    torch.cuda.synchronize()
    found = [[] for _ in pairs]
    for _ in range(20):
        for i, (stream, (a, b)) in enumerate(zip(streams, pairs, strict=True)):
            with torch.cuda.stream(stream):
                found[i].append(torch_reduce.matmul(a, b, variant="specialized_f64"))
    torch.cuda.synchronize()
    for i, results in enumerate(found):
        for result in results:
            assert_same_bits(result, expected[i], f"stream {i}")
    graphs = []
    for a, b in pairs:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = torch_reduce.matmul(a, b, variant="specialized_f64")
        graphs.append((graph, result))
    for _ in range(5):
        for _, result in graphs:
            result.fill_(float("nan"))
        torch.cuda.synchronize()
        for stream, (graph, _) in zip(streams, graphs, strict=True):
            with torch.cuda.stream(stream):
                graph.replay()
        torch.cuda.synchronize()
        for (_, result), right in zip(graphs, expected, strict=True):
            assert_same_bits(result, right, "a graph")


def test_small_tiles_of_float64_have_one_order(poisoned):
    """Each shape of small_f64.cu: even and odd rows, k of parts of a stage and of several groups, batches."""
    small, copies = tables.row("matmul", "specialized_f64"), tables.row("matmul", "mma_f64")
    tables.needs_chip(small)
    seen = set()
    for m, n, k in (
        *(
            (1, 768, 3072),
            (8, 33, 2048),
            (8, 33, 2049),
            (90, 70, 4101),
            (33, 7, 5000),
            (30, 19, 17),
            (100, 31, 64),
            (79, 973, 1043),
            (73, 2665, 300),
        ),
        *((1009, 89, 371), (501, 503, 505), (2665, 73, 41), (64, 46, 313), (35, 35, 9001), (3, 5, 1), (600, 601, 65)),
        *((2252, 208, 257), (1245, 408, 415)),
        *((17, 1001, 999), (999, 5, 999), (1001, 1003, 63), (41, 1301, 601), (1301, 41, 601), (2665, 73, 301)),
    ):
        p = torch_reduce.plan("matmul", (m, k), (k, n), input_dtype=torch.float64, variant="specialized_f64")
        seen.update(launch.kernel for launch in p.launches if "small" in launch.kernel)
        a, b = random(m, k, dtype=torch.float64) / 3, random(k, n, dtype=torch.float64, seed=1) / 3
        assert_one_order(a, b, small, copies)
        assert_same_with_bias(a, b, small, copies)
    for batch, m, n, k in ((192, 25, 137, 255), (2000, 31, 31, 31), (300, 47, 18, 65), (7, 64, 46, 313)):
        a, b = random(batch, k, m, dtype=torch.float64).mT, random(batch, k, n, dtype=torch.float64, seed=1)
        assert_same_bits(product(a, b, small), product(a, b, copies), f"{batch} of {m} x {n} x {k}")
    assert len(seen) == 6, seen


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_tiles_of_every_width_have_one_order(dtype, poisoned):
    """Widths of which the last columns fill no box; rows of C that begin at multiples of 16 bytes and others."""
    wide, narrow = tables.row("matmul", "persistent"), tables.row("matmul", "warp_specialized")
    tables.needs_chip(wide)
    for m, n, k in (
        (512, 11008, 96),
        (511, 11007, 96),
        (1536, 1536, 200),
        (128, 11008, 64),
        (600, 14336, 72),
        (600, 14335, 72),
    ):
        a, b = random(m, k, dtype=dtype), random(k, n, dtype=dtype, seed=1)
        assert_one_order(a, b, wide, narrow)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_clusters_and_narrow_tiles_have_one_order(dtype, poisoned):
    """Rows inside cache lines, for which blocks of a cluster fetch parts of what they share; and few outputs."""
    shared, alone = tables.row("matmul", "persistent"), tables.row("matmul", "warp_specialized")
    tables.needs_chip(shared)
    for m, n, k in (
        (1000, 1000, 1000),
        (1504, 1000, 3000),
        (512, 3000, 1000),
        (128, 3000, 5000),
        (70, 2504, 1000),
        (200, 1000, 3000),
        (100, 500, 4000),
        (300, 300, 3000),
        (1400, 1400, 1400),
    ):
        a, b = random(m, k, dtype=dtype), random(k, n, dtype=dtype, seed=1)
        assert_one_order(a, b, shared, alone)
        assert_same_with_bias(a, b.t().contiguous().t(), shared, alone)
    a, b = random(3, 500, 1000, dtype=dtype), random(3, 1000, 1000, dtype=dtype, seed=1)
    assert_same_bits(product(a, b, shared), product(a, b, alone), "a batch")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_few_outputs_across_k_have_one_order(dtype, poisoned):
    """With a bias as well, and with an infinity and a NaN, which tiles past the edge must not spread."""
    shared, alone = tables.row("matmul", "persistent"), tables.row("matmul", "warp_specialized")
    tables.needs_chip(shared)
    narrow = "multiply narrow tiles of "
    for m, n, k in tables.FEW_OUTPUTS_ACROSS:
        a, b = random(m, k, dtype=dtype), random(k, n, dtype=dtype, seed=1)
        for x, y in ((a, b), (b.mT, a.mT)):
            assert torch_reduce.plan("matmul", x, y, variant="persistent").launches[0].kernel.startswith(narrow)
            assert_one_order(x, y, shared, alone)
            assert_same_with_bias(x, y, shared, alone)
        a[m // 2, k // 2], b[k - 1, n - 1] = math.inf, math.nan
        assert_one_order(a, b, shared, alone)
    # Groups of k.
    a, b = random(16, 9000, dtype=dtype), random(9000, 1120, dtype=dtype, seed=1)
    plan = torch_reduce.plan("matmul", a, b, variant="persistent")
    assert plan.launches[0].kernel.startswith(narrow) and plan.groups == 5
    assert_one_order(a, b, shared, shared)


def test_few_outputs_from_registers_have_one_order(poisoned):
    """In every layout, with a bias as well, and with an infinity and a NaN, which tiles past the edge must not spread.
    Of long k the same numbers are a part of a large product, which other kernels compute."""
    few, alone = tables.row("matmul", "persistent"), tables.row("matmul", "warp_specialized")
    tables.needs_chip(few)
    dtype, seen = torch.float32, set()
    for m, n, k in tables.NARROW_PRODUCTS:
        a, b = random(m, k, dtype=dtype), random(k, n, dtype=dtype, seed=1)
        ways = list(itertools.product((a, a.mT.contiguous().mT), (b, b.mT.contiguous().mT)))
        plans = [torch_reduce.plan("matmul", x, y, variant="persistent") for x, y in ways]
        names = {launch.kernel for p in plans for launch in p.launches if "multiply narrow" in launch.kernel}
        assert names, (m, n, k)
        seen |= names
        if k <= 8192:
            assert_one_order(a, b, few, alone)
            for x, y in ways:
                assert_same_with_bias(x, y, few, alone)
            a[m // 2, k // 2], b[k - 1, n - 1] = math.inf, math.nan
            assert_one_order(a, b, few, alone)
        else:
            rows, columns = random(1500, k, dtype=dtype, seed=2), random(k, 1000, dtype=dtype, seed=3)
            large = product(torch.cat((a, rows)), torch.cat((b, columns), 1), few)
            for x, y in ways:
                what = f"{(m, n, k)}, strides {x.stride()} and {y.stride()}"
                assert_same_bits(product(x, y, few), large[:m, :n].contiguous(), what)
            bias = random(n, dtype=dtype, seed=4)
            found = torch.ops.treduce.linear(a, b.mT, bias, few.name)
            assert_same_bits(found, large[:m, :n] + bias, f"{(m, n, k)}, with a bias")
    of_registers = {name for name in seen if " tiles of " not in name}
    assert len(of_registers) == 7, seen


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_every_way_in_which_blocks_of_a_cluster_lie_has_one_order(dtype, poisoned):
    shared, alone = tables.row("matmul", "persistent"), tables.row("matmul", "warp_specialized")
    tables.needs_chip(shared)
    for m, n, k in tables.CLUSTERED_PRODUCTS:
        a, b = random(m, k, dtype=dtype), random(k, n, dtype=dtype, seed=1)
        assert_one_order(a, b, shared, alone)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.int8])
def test_strips_of_smaller_tiles_have_one_order(dtype, poisoned):
    """Each launch alone has the same bits, and so has whoever reads the result while it waits for the last one."""
    variant = tables.row("matmul", "persistent")
    tables.needs_chip(variant)
    strips = 0
    for batch, m, n, k in tables.STRIP_PRODUCTS:
        a, b = random(batch, m, k, dtype=dtype), random(batch, k, n, dtype=dtype, seed=1)
        for left, right in itertools.product((a, a.mT.contiguous().mT), (b, b.mT.contiguous().mT)):
            plan = torch_reduce.plan("matmul", left, right, variant="persistent")
            strips += any(plan.strip)
            whole = product(left, right, variant)
            copy = whole.clone()  # reads what both launches wrote
            for rows, columns in (
                (slice(0, 70), slice(0, n)),
                (slice(m - 70, m), slice(0, n)),
                (slice(0, m), slice(n - 70, n)),
            ):
                part = product(left[-1, rows], right[-1, :, columns], variant)
                assert_same_bits(part, whole[-1, rows, columns].contiguous(), f"{(batch, m, n, k)} {rows} {columns}")
            assert_same_bits(copy, whole, "a copy")
    if torch.cuda.get_device_properties(0).multi_processor_count == 132:
        assert strips > len(tables.STRIP_PRODUCTS)


LONG = tuple(v for v in ON_CORES if v.order in ("warp_group_long", "tensor_core_f64"))
every_long = of_every_dtype(LONG)


@every_long
def test_long_k_in_groups_whatever_the_shape(variant, dtype, poisoned):
    """Groups of k are added in registers, by a second launch, or are one: of every tile, the same bits."""
    for k in (1024, 1025, 3000, 8192, 8193, 10240, 12289 + 64, 40000):
        a, b = random(300, k, dtype=dtype), random(k, 2500, dtype=dtype, seed=1)
        whole = product(a, b, variant)
        for m, n in ((1, 1), (1, 2500), (3, 40), (8, 700), (16, 2500), (17, 300), (31, 2500), (64, 64), (64, 2500)):
            for right in (b, b.t().contiguous().t()):
                part = product(a[5 : 5 + m], right[:, 9 : 9 + n - (9 if n == 2500 else 0)], variant)
                assert_same_bits(part, whole[5 : 5 + m, 9 : 9 + part.size(1)].contiguous(), f"{(m, n, k)}")
        for m, n in ((100, 100), (128, 256), (129, 1000), (300, 33), (300, 7), (200, 2500)):
            left = a.t().contiguous().t()
            part = product(left[:m], b[:, :n], variant)
            assert_same_bits(part, whole[:m, :n].contiguous(), f"{(m, n, k)}, a^T")
    a, b = random(2, 3, 70, 9000, dtype=dtype), random(3, 9000, 65, dtype=dtype, seed=1)
    whole = product(a, b, variant)
    for i, j in itertools.product(range(2), range(3)):
        assert_same_bits(whole[i, j], product(a[i, j], b[j], variant), f"{(i, j)}")


@every_long
def test_long_k_is_exact_where_sums_are(variant, dtype, poisoned):
    """With a bias, in tiles of every kind."""
    out = _check.result_dtype("matmul", dtype)
    for m, n, k in ((1, 1, 100_000), (100, 100, 100_000), (5, 2000, 9000), (64, 64, 65_536), (300, 70, 20_001),
                    (30, 5000, 8200), (1000, 1500, 8193), (100, 8000, 16_384)):  # fmt: skip
        a, weight = integers(m, k, most=2, dtype=dtype, seed=m), integers(n, k, most=2, dtype=dtype, seed=n)
        bias = integers(n, most=127, dtype=out, seed=k)
        expected = (a.double() @ weight.double().t() + bias.double()).to(out)
        assert_same_bits(torch.ops.treduce.linear(a, weight, bias, variant.name), expected, f"{(m, n, k)}")


@pytest.mark.parametrize("variant", LONG, ids=tables.names(LONG))
def test_long_k_has_the_bits_of_the_model(variant, poisoned):
    """The sums of groups, each the product of its own steps of k, added one after another."""
    for m, n, k in ((40, 60, 2048), (40, 60, 2056), (64, 500, 4096), (40, 60, 8192), (40, 60, 8200), (1, 3000, 16_384),
                    (300, 200, 30_001), (1000, 2000, 12_288)):  # fmt: skip
        dtype = torch.float32 if "float32" in variant.dtypes else torch.float64
        a, b = random(m, k, dtype=dtype), random(k, n, dtype=dtype, seed=1)
        expected = orders.long_matmul(a, b, lambda x, y: product(x, y, variant))
        assert_same_bits(product(a, b, variant), expected, f"{(m, n, k)}")


@every_pair
def test_a_matrix_does_not_depend_on_its_batch(variant, dtype, poisoned):
    a, b = random(3, 5, 70, 90, dtype=dtype), random(5, 90, 65, dtype=dtype, seed=1)
    whole = product(a, b, variant)
    for i, j in itertools.product(range(3), range(5)):
        assert_same_bits(whole[i, j], product(a[i, j], b[j], variant), f"{(i, j)}")
    shared = product(a, b[0], variant)
    for i, j in itertools.product(range(3), range(5)):
        assert_same_bits(shared[i, j], product(a[i, j], b[0], variant), f"{(i, j)}, shared")
    stacked = attempt(a.transpose(0, 1), b[:, None], variant)
    if stacked is not None:
        assert_same_bits(stacked.transpose(0, 1).contiguous(), whole)


# Streams, load, graphs.


@every_pair
def test_runs_do_not_differ_under_load(variant, dtype):
    """Two streams of products at once, beside torch's."""
    shapes = ((300, 260, 1000), (3, 700, 5000))
    pairs = [(random(m, k, dtype=dtype), random(k, n, dtype=dtype, seed=1)) for m, n, k in shapes]
    expected = [product(a, b, variant) for a, b in pairs]
    streams = [torch.cuda.Stream() for _ in pairs]
    load = torch.cuda.Stream()
    big = torch.randn(2048, 2048, device="cuda")
    torch.cuda.synchronize()
    for _ in range(5):
        with torch.cuda.stream(load):
            for _ in range(5):
                big = (big @ big).clamp_(-1, 1)
        results = [[], []]
        for _ in range(10):
            for (a, b), stream, found in zip(pairs, streams, results, strict=True):
                with torch.cuda.stream(stream):
                    found.append(product(a, b, variant))
        torch.cuda.synchronize()
        for one, found in zip(expected, results, strict=True):
            for result in found:
                assert_same_bits(result, one)


@every_pair
def test_the_current_stream_is_used(variant, dtype):
    side = torch.cuda.Stream()
    source, other = random(130, 70, dtype=dtype), random(70, 60, dtype=dtype, seed=1)
    expected = product(source, other, variant)
    x = torch.zeros_like(source)
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(20_000_000)
        x.copy_(source)
        result = product(x, other, variant)
    side.synchronize()
    assert_same_bits(result, expected)


@every_pair
def test_a_graph_has_the_bits_of_a_call(variant, dtype):
    """Captured once, replayed with other values: what a rung keeps beside the operands is written anew each time."""
    x = [(random(130, 200, dtype=dtype), random(200, 70, dtype=dtype)) for _ in range(2)]
    x[1] = x[1][0][:, :199], random(70, 199, dtype=dtype).t()  # through copies, where a rung makes them
    graph, results = captured(lambda: [product(a, b, variant) for a, b in x])
    for seed in range(4):
        x[0][0].copy_(random(130, 200, dtype=dtype, seed=seed))
        graph.replay()
        for (a, b), replayed in zip(x, results, strict=True):
            assert_same_bits(replayed, product(a, b, variant), f"replay {seed}")


def test_linear_in_a_graph_and_its_gradients():
    x, w = torch.randn(33, 70, device="cuda"), torch.randn(50, 70, device="cuda", requires_grad=True)
    bias = torch.randn(50, device="cuda", requires_grad=True)

    def step():
        loss = torch.ops.treduce.mean(torch.ops.treduce.linear(x, w, bias).square())
        return torch.autograd.grad(loss, (w, bias))

    graph, grads = captured(step)
    for _ in range(3):
        x.normal_()
        graph.replay()
        for replayed, eager in zip(grads, step(), strict=True):
            assert_same_bits(replayed, eager)


# What `auto` picks.


def picked(dtype, m=64, n=64, k=64, tfloat32=False):
    major, minor = torch.cuda.get_device_capability()
    name = _C.matmul_choice(str(dtype).removeprefix("torch."), m, n, k, 10 * major + minor, tfloat32)
    return tables.row("matmul", name)


@pytest.mark.parametrize("tfloat32", [False, True])
def test_auto_has_the_bits_of_what_it_picks(tfloat32, as_found):
    by_precision(tfloat32)
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.int32, torch.int64):
        for m, n, k in ((1, 1, 1), (3, 5, 0), (64, 64, 64), (1, 300, 200), (300, 257, 129), (1000, 70, 1000)):
            row = picked(dtype, m, n, k, tfloat32)
            assert tables.runs(row, "cuda", dtype)
            a, b = random(m, k, dtype=dtype), random(k, n, dtype=dtype, seed=1)
            assert_same_bits(product(a, b, None), product(a, b, row), f"{row.name} of {dtype} {(m, n, k)}")


@every_setting
def test_auto_keeps_float32_accurate_unless_tfloat32_is_asked_for(ask, as_found):
    a, b = random(200, 300, dtype=torch.float32), random(300, 100, dtype=torch.float32, seed=1)
    truth = a.double() @ b.double()
    scale = a.double().abs() @ b.double().abs()
    accurate, fast = (picked(torch.float32, 200, 100, 300, tfloat32) for tfloat32 in (False, True))
    named = {}
    for tfloat32, row in ((False, accurate), (True, fast), (False, accurate)):
        ask(tfloat32)
        result = product(a, b, None)
        assert_same_bits(result, product(a, b, row), f"{row.name}, tfloat32 {tfloat32}")
        error = ((result.double() - truth).abs() / scale).max().item()
        if not tfloat32:
            assert error < 2e-6
        elif fast.float32_bits == 11:
            assert 1e-5 < error < 2e-3
        # A rung that is named wins over the setting.
        for variant in MATMUL_VARIANTS[:-1]:
            if tables.runs(variant, "cuda"):
                found = product(a, b, variant)
                assert_same_bits(found, named.setdefault(variant.name, found), variant.name)
        # So does linear.
        bias = torch.ones(100, device="cuda")
        assert_same_bits(torch.ops.treduce.linear(a, b.t(), bias), result + bias)


def test_a_chip_that_does_not_run_a_rung_is_told_so():
    """Before anything is launched, with the capability that it needs."""
    x = torch.ones(16, 16, device="cuda", dtype=torch.float16)
    for row in MATMUL_VARIANTS:
        if not row.runs_on(torch.cuda.get_device_capability()):
            need = f"{row.capability[0]}.{row.capability[1]}"
            with pytest.raises(NotImplementedError, match=f"'{row.name}' needs a GPU of compute capability {need}"):
                product(x, x, row)


def test_auto_takes_what_a_rung_refuses():
    """Batch dimensions that do not merge go to a rung that takes them, in silence; the named rung says so."""
    a = torch.randn(2, 1, 3, 1, 2, 20, 30, device="cuda", dtype=torch.float16)
    b = torch.randn(1, 2, 1, 3, 1, 30, 25, device="cuda", dtype=torch.float16)
    assert_right(product(a, b, None), a, b, MATMUL_VARIANTS[-1])
    for row in MATMUL_VARIANTS:
        if tables.runs(row, "cuda", torch.float16):
            result = attempt(a, b, row)
            assert result is not None or not row.on_cpu
            if result is not None:
                assert_right(result, a, b, row, row.name)
