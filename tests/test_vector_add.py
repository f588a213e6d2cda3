"""vector_add: torch.add's values, bit for bit, on every layout."""

import cases
import pytest
import tables
import torch
from bits import assert_same_bits
from cases import DTYPES
from orders import canonical
from tables import every_add_variant, every_dtype


def runnable(variant, device):
    if device == "cuda":
        tables.needs_chip(variant)


def add(a, b, variant, **sizes):
    return torch.ops.treduce.vector_add(a, b, variant.name, **sizes)


def pair(n, dtype, kind="wide"):
    return cases.values(n, dtype, kind, seed=1), cases.values(n, dtype, kind, seed=2)


@every_add_variant
@every_dtype(DTYPES)
def test_every_length_has_torchs_bits(dtype, variant, device, poisoned):
    runnable(variant, device)
    for n in cases.LENGTHS:
        a, b = pair(n, dtype)
        expected = canonical(a + b)  # float16 has infinities of both signs here
        assert_same_bits(add(a.to(device), b.to(device), variant).cpu(), expected, f"{n}")


@every_add_variant
def test_every_block_size(variant, device):
    runnable(variant, device)
    for size in variant.sizes:
        for n in (0, 1, 1023, 10_007):
            a, b = pair(n, torch.float32)
            assert_same_bits(add(a.to(device), b.to(device), variant, block_size=size).cpu(), a + b, f"{n}, {size}")


@every_add_variant
def test_millions(variant, device):
    runnable(variant, device)
    for dtype in (torch.float32, torch.int8):
        a, b = pair(6_000_011, dtype)
        assert_same_bits(add(a.to(device), b.to(device), variant).cpu(), a + b)


@every_add_variant
@every_dtype((torch.float32, torch.float16, torch.int8, torch.float64))
def test_slices_at_every_offset(dtype, variant, device):
    runnable(variant, device)
    a, b = (x.to(device) for x in pair(1100, dtype, "uniform"))
    for i in range(17):
        for j in (0, 1, 3, i):
            x, y = a[i : i + 1037], b[j : j + 1037]
            assert_same_bits(add(x, y, variant), (x.cpu() + y.cpu()).to(device), f"offsets {i} and {j}")


@every_add_variant
def test_layouts_and_broadcasting(variant, device):
    runnable(variant, device)
    x = torch.randn(6, 8, 10, device=device)
    y = torch.randn(6, 8, 10, device=device)
    pairs = {
        "same": (x, y),
        "both_transposed": (x.mT, y.mT),
        "one_transposed": (x.mT, y.mT.contiguous()),
        "permuted": (x.permute(2, 0, 1), y.permute(2, 0, 1)),
        "sliced": (x[:, ::2], y[:, 1::2]),
        "channels_last": tuple(t[None].contiguous(memory_format=torch.channels_last) for t in (x, y)),
        "row": (x, y[0, 0]),
        "column": (x[:, :, :1], y),
        "scalar": (x, y[0, 0, 0]),
        "outer": (x[:, :1, :1], y[:1, :, :1]),
        "expanded": (x[:1].expand(6, 8, 10), y),
        "both_expanded": (x[:1].expand(6, 8, 10), y[:1].expand(6, 8, 10)),
        "flipped": (x.flip(0), y),
        "empty": (x[:0], y[:0]),
        "empty_broadcast": (x[:, :0], y[0, 0]),
        "zero_d": (x[0, 0, 0], y[0, 0, 0]),
    }
    for name, (a, b) in pairs.items():
        assert_same_bits(add(a, b, variant), a + b, name)
        assert_same_bits(add(b, a, variant), b + a, name)


@every_add_variant
@every_dtype(cases.FLOATS)
def test_special_values(dtype, variant, device):
    runnable(variant, device)
    special = torch.tensor([0.0, -0.0, 1.0, -1.0, float("inf"), -float("inf"), float("nan"), 6e4, 1e-7]).to(dtype)
    a, b = special.repeat_interleave(len(special)), special.repeat(len(special))
    assert_same_bits(add(a.to(device), b.to(device), variant).cpu(), canonical(a + b))


@every_add_variant
def test_integers_wrap(variant, device):
    runnable(variant, device)
    for dtype in cases.INTEGERS:
        info = torch.iinfo(dtype)
        a = torch.tensor([info.max, info.min, info.max], dtype=dtype)
        b = torch.tensor([1, -1 if info.min else 255, info.max], dtype=dtype)
        assert_same_bits(add(a.to(device), b.to(device), variant).cpu(), a + b)


@every_add_variant
def test_operands_are_not_changed_and_may_be_the_same(variant, device):
    runnable(variant, device)
    x = torch.randn(1000, device=device)
    before = x.clone()
    assert_same_bits(add(x, x, variant), before * 2)
    assert torch.equal(x, before)


# The first lesson.


def test_thread_indices_of_a_line(device):
    out = torch.full((6, 7), -1, dtype=torch.int64, device=device)
    torch.ops.treduce.thread_indices_(out, [2], [3])
    assert out.cpu()[:, 0].eq(0).all()
    assert out.cpu()[:, 1].tolist() == [0, 0, 0, 1, 1, 1]
    assert out.cpu()[:, 3].tolist() == [0, 1, 2, 0, 1, 2]
    assert out.cpu()[:, 6].tolist() == list(range(6))


def test_thread_indices_of_a_rectangle(device):
    out = torch.full((2 * 3 * 4 * 2, 7), -1, dtype=torch.int64, device=device)
    torch.ops.treduce.thread_indices_(out, [2, 3], [4, 2])  # x first
    table = out.cpu()
    block_y, block_x, thread_y, thread_x, y, x, index = table.unbind(1)
    assert torch.equal(y, block_y * 2 + thread_y) and torch.equal(x, block_x * 4 + thread_x)
    assert torch.equal(index, y * 8 + x) and torch.equal(index, torch.arange(48))
    assert (block_x.max(), block_y.max(), thread_x.max(), thread_y.max()) == (1, 2, 3, 1)


@pytest.mark.parametrize(
    ("grid", "block"),
    [([2], [3, 1]), ([], []), ([1, 1, 1], [1, 1, 1]), ([0], [3]), ([2], [1025]), ([2], [-3]), ([1, 70000], [1, 1])],
)
def test_thread_indices_of_impossible_launches(grid, block, device):
    with pytest.raises(ValueError):
        torch.ops.treduce.thread_indices_(torch.zeros(6, 7, dtype=torch.int64, device=device), grid, block)


def test_thread_indices_checks_its_table(device):
    for shape in ((5, 7), (6, 6), (42,)):
        with pytest.raises(ValueError):
            torch.ops.treduce.thread_indices_(torch.zeros(shape, dtype=torch.int64, device=device), [2], [3])
    with pytest.raises(ValueError):
        torch.ops.treduce.thread_indices_(torch.zeros(7, 6, dtype=torch.int64, device=device).t(), [2], [3])
    with pytest.raises(TypeError):
        torch.ops.treduce.thread_indices_(torch.zeros(6, 7, device=device), [2], [3])
