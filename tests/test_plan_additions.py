"""`torch_reduce.plan` of vector_add: what it says, for any chip, and that it says what the call does."""

import dataclasses
import itertools
import json

import pytest
import torch
from tables import ADD_VARIANTS, names

import torch_reduce
from torch_reduce import _C, cli


def plan(*arguments, device="H200", **named):
    return torch_reduce.plan("vector_add", *arguments, device=device, **named)


@pytest.mark.parametrize(("chip", "bandwidth"), [("H200", 4.8e12), ("A100", 2.039e12)])
def test_what_it_says(chip, bandwidth):
    n = 1_000_000
    p = plan((n,), (n,), device=chip)
    assert (p.op, p.shapes, p.input_dtype, p.result_shape) == ("vector_add", ((n,), (n,)), "float32", (n,))
    assert (p.variant, p.rung, p.order, p.elements) == ("auto", "vectorized", "elementwise", n)
    assert p.vectors and p.copies == (False, False)
    assert p.launches == (torch_reduce._plan.Launch("vectorized", (977, 1), (256, 1), 0),)  # four elements a thread
    assert (p.bytes_read, p.bytes_written) == (8 * n, 4 * n)
    assert p.chip.name == chip and p.bound_us == pytest.approx(12 * n / bandwidth * 1e6)
    text = str(p)
    for words in (
        "vector_add of 1,000,000 and 1,000,000 float32, variant auto", "1,000,000 float32", "vectorized",
        "elementwise: one addition an element", "16-byte loads", "grid 977, block 256",
        "8,000,000 bytes read, 4,000,000 written", f"at {bandwidth / 1e9:,.0f} GB/s",
    ):  # fmt: skip
        assert words in text


def test_grids():
    n = 1_000_003
    assert plan((n,), (n,), variant="grid_1d").launches[0].grid == (3907, 1)
    assert plan((n,), (n,), variant="grid_1d", block_size=1024).launches[0].grid == (977, 1)
    assert plan((n,), (n,), input_dtype=torch.int8).launches[0].grid == (245, 1)  # sixteen elements a thread
    (launch,) = plan((1 << 28,), (1 << 28,), variant="grid_2d").launches  # 2^20 blocks
    assert launch.grid == (61681, 17) and launch.block == (256, 1)
    # What one grid does not cover, the next one does.
    p = plan((1 << 37,), (1 << 37,), variant="grid_1d", block_size=32, input_dtype=torch.int8)
    assert [launch.grid[0] for launch in p.launches] == [2**31 - 1, 2**31 - 1, 2]


def test_operands_that_do_not_begin_at_16_bytes():
    x = torch.empty(1001, device="meta")
    assert plan(x[:-1], (1000,)).vectors and not plan(x[1:], (1000,)).vectors
    assert not plan((1000,), x[1:]).vectors and plan(x[1:].expand(2, 1000), (2, 1000)).vectors  # a copy is aligned
    assert "element by element" in str(plan(x[1:], (1000,)))
    assert not plan((1000,), (1000,), variant="grid_1d").vectors


def test_copies():
    """Their bytes count. An operand of the layout of the result is read where it lies."""
    x = torch.empty(64, 32, device="meta")
    assert plan(x.t(), x.t()).copies == plan(x, (1, 64, 32)).copies == (False, False)
    p = plan((64, 32), (32,))
    assert p.copies == (False, True) and p.result_shape == (64, 32) and "from a copy of the second operand" in str(p)
    assert (p.bytes_read, p.bytes_written) == (4 * (2 * 64 * 32 + 32), 4 * 2 * 64 * 32)
    p = plan(x.t(), (32, 64))
    assert p.copies == (True, False) and p.bytes_read == 3 * 4 * 64 * 32
    p = plan(x[:, :1].expand(64, 32), x[:1])
    assert p.copies == (True, True) and "from a copy of the first and of the second operand" in str(p)
    assert (p.bytes_read, p.bytes_written) == (4 * (2 * 64 * 32 + 64 + 32), 4 * 3 * 64 * 32)
    assert plan(torch._neg_view(x), x).copies == (True, False)


def test_empty():
    p = plan((0, 5), (5,))
    assert p.launches == () and p.result_shape == (0, 5) and "none" in str(p)
    assert p.bytes_read == p.bytes_written == 0


def test_tensors_of_the_cpu_and_one_shape():
    x = torch.ones(3, 5, dtype=torch.float16)
    for p in (plan(x, x[0]), plan(x, (5,)), plan((3, 5), x[:1])):
        assert p.input_dtype == "float16" and p.result_shape == (3, 5)


@pytest.mark.parametrize("variant", ADD_VARIANTS, ids=names(ADD_VARIANTS))
def test_every_rung(variant):
    for name in variant.dtypes:
        dtype = getattr(torch, name)
        p = plan((300, 7), (300, 7), variant=variant.name, input_dtype=dtype)
        assert p.variant == variant.name and p.rung == (variant.name if variant.has_kernel else "vectorized")
        assert len(p.launches) == 1 and p.bytes_read == 2 * 2100 * dtype.itemsize and p.bound_us > 0
        assert p.rung in str(p)


def test_it_refuses_what_the_call_refuses():
    x = torch.ones(3, 4)
    for a, b, named in (
        (x, torch.ones(3), {}),
        (x, x.double(), {}),
        (x.to(torch.complex64), x.to(torch.complex64), {}),
        (x, torch.ones(3, 4, device="meta"), {}),
        (x, x, {"variant": "fast"}),
        (x, x, {"block_size": 48}),
        (x, x.to_sparse(), {}),
    ):
        with pytest.raises((ValueError, TypeError, NotImplementedError)) as of_call:
            torch_reduce.vector_add(a, b, **named)
        with pytest.raises(of_call.type) as of_plan:
            plan(a, b, **named)
        assert a.is_sparse or b.is_sparse or str(of_plan.value) == str(of_call.value)
    with pytest.raises(ValueError, match="a plan is of a GPU"):
        plan(x, x, device="cpu")
    with pytest.raises(ValueError, match="sizes start at 0"):
        plan((3,), (-3,))
    with pytest.raises(TypeError, match="two operands"):
        plan((3,))


def test_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan((5,), (5,)).rung = "auto"


def test_command_line(capsys, tmp_path):
    file = tmp_path / "plan.json"
    words = ["plan", "vector_add", "1000000", "1000000", "--dtype", "float32", "--device", "H200"]
    assert cli.main([*words, "--json", str(file)]) == 0
    assert "grid 977, block 256" in capsys.readouterr().out
    written = json.loads(file.read_text())
    assert set(written) == {f.name for f in dataclasses.fields(torch_reduce.AdditionPlan)} | {"bound_us"}
    assert cli.main([*words, "--variant", "grid_1d", "--block-size", "512"]) == 0
    assert "grid 1,954, block 512" in capsys.readouterr().out
    for more in (["--dim", "0"], ["--num-blocks", "3"], ["--bias"], ["--tile-size", "8"], ["--keepdim"]):
        assert cli.main([*words, *more]) == 2
        assert "vector_add takes no" in capsys.readouterr().err
    assert cli.main(["plan", "vector_add", "5", "--device", "H200"]) == 2
    assert "takes two shapes" in capsys.readouterr().err


@pytest.mark.cuda
@pytest.mark.parametrize("variant", ADD_VARIANTS, ids=names(ADD_VARIANTS))
def test_a_plan_says_what_is_launched(variant):
    """The same, without a GPU: test_emulator.py."""
    for dtype in (torch.float32, torch.bfloat16, torch.int8):
        x = torch.ones(70_001, 33, device="cuda", dtype=dtype)
        whole = x[:-1]
        pairs = ((x, x), (x[0, 0], x[0, 0]), (whole, x[1:]), (whole, x[0]), (whole.t(), whole.t()), (x[:0], x[0]))
        for (a, b), sizes in itertools.product(pairs, ({}, {"block_size": 64})):
            p = torch_reduce.plan("vector_add", a, b, variant=variant.name, **sizes)
            launched = _C.record_launches(lambda: torch_reduce.vector_add(a, b, variant=variant.name, **sizes))  # noqa: B023
            assert launched == [dataclasses.asdict(launch) for launch in p.launches], (dtype, a.shape, b.shape)
