"""Reductions along dims mean what torch's mean: shapes, dtypes, layouts and values, for every way to say which dims."""

import itertools
import math
import random

import cases
import pytest
import tables
import torch
from bits import assert_same_bits
from bounds import assert_within_bound_along
from cases import COMPLEX, EVERY_DTYPE, FLOAT8, FLOATS, REDUCTIONS
from tables import call, every_classic_variant, every_dtype, every_reduction
from torch.utils._python_dispatch import TorchDispatchMode

import torch_reduce

AUTO = tables.row("sum", "auto")
EXTENTS = (0, 1, 2, 3, 17)


def some_shapes():
    """Every shape of rank 0 to 2, and some of each higher rank."""
    rng = random.Random(0)
    shapes = [shape for rank in range(3) for shape in itertools.product(EXTENTS, repeat=rank)]
    for rank, count in ((3, 10), (4, 6), (5, 5)):
        shapes += [tuple(rng.choices(EXTENTS, (1, 2, 3, 3, 3), k=rank)) for _ in range(count)]
    return shapes


def subsets(rank):
    return itertools.chain.from_iterable(itertools.combinations(range(rank), k) for k in range(rank + 1))


def theirs(op, x, dim, keepdim, **kwargs):
    """torch's result; float8, which torch refuses, in float32."""
    if x.dtype in FLOAT8 and kwargs.get("dtype") is None:
        x = x.float()
    return getattr(torch, op)(x, dim=dim, keepdim=keepdim, **kwargs)


def assert_like(ours, expected, what):
    assert (ours.dtype, ours.shape, ours.stride()) == (expected.dtype, expected.shape, expected.stride()), what


@every_dtype(EVERY_DTYPE)
@every_reduction
def test_every_dim_of_every_shape(op, dtype, device, poisoned):
    if not tables.takes(AUTO, op, dtype):
        return
    for shape in some_shapes():
        x = cases.values(math.prod(shape), dtype, "uniform").view(shape)
        y = x.to(device)
        for dim in subsets(len(shape)):
            reduced = [shape[d] for d in dim or range(len(shape))]
            if op.startswith("a") and 0 in reduced:
                continue
            keepdim = (len(dim) + len(shape)) % 2 == 0
            what = f"{op} of {shape} along {dim}, keepdim={keepdim}"
            ours, expected = call(op, y, dim=dim, keepdim=keepdim), theirs(op, x, dim, keepdim)
            assert_like(ours, expected, what)
            if op.startswith("a") or not (dtype.is_floating_point or dtype.is_complex):
                assert torch.equal(ours.cpu(), expected), what
            else:
                assert_within_bound_along(ours.cpu(), op, x, dim)


@every_reduction
def test_every_way_to_name_dims(op, device):
    x = torch.randn(3, 4, 5, 6, device=device)
    for one in (1, -3, [1], (-3,), torch.Size([1])):
        assert_same_bits(call(op, x, dim=one), call(op, x, dim=1), f"{one}")
    for several in itertools.permutations((0, 2, -1)):
        assert_same_bits(call(op, x, dim=several), call(op, x, dim=(0, 2, 3)), f"{several}")
    for everything in ((), [], (0, 1, 2, 3), (-1, -3, -2, -4)):
        assert_same_bits(call(op, x, dim=everything), call(op, x), f"{everything}")
        kept = call(op, x, dim=everything, keepdim=True)
        assert_same_bits(kept, call(op, x).view(1, 1, 1, 1), f"{everything}")
    assert_same_bits(call(op, x, dim=None, keepdim=True), call(op, x).view(1, 1, 1, 1))


@every_reduction
def test_the_calling_conventions_of_torch(op, device):
    """What works with torch.sum works with torch_reduce.sum."""
    ours, torchs = getattr(torch_reduce, op), getattr(torch, op)
    # Sums are exact, in any order, and so are means of a power of two of them.
    x = torch.randint(0, 5, (2, 4, 8), device=device).float()
    for args, kwargs in (
        ((), {}),
        ((1,), {}),
        ((-1, True), {}),
        (((0, 2),), {}),
        (([0, 2], True), {}),
        ((), {"dim": 1}),
        ((), {"dim": (0, 1), "keepdim": True}),
        ((2,), {"keepdim": True}),
        ((), {"dim": ()}),
        ((), {"dim": []}),
        ((), {"dim": (), "keepdim": True}),
    ):
        assert_same_bits(ours(x, *args, **kwargs), torchs(x, *args, **kwargs), f"{args} {kwargs}")
    # What torch.sum and mean take, and torch.amax, whose dim is () at first, does not.
    assert_same_bits(ours(x, None), torchs(x))
    assert_same_bits(ours(x, dim=None, keepdim=True), torchs(x).view(1, 1, 1))
    if op in ("sum", "mean"):
        assert_same_bits(ours(x, dtype=torch.float64), torchs(x, dtype=torch.float64))
        assert_same_bits(ours(x, 1, dtype=torch.float64), torchs(x, 1, dtype=torch.float64))
        assert_same_bits(ours(x, 1, True, dtype=torch.float16), torchs(x, 1, True, dtype=torch.float16))
    assert_same_bits(ours(input=x, dim=1), torchs(input=x, dim=1))
    assert_same_bits(ours(x, 1, variant="thread", block_size=64, num_blocks=3), torchs(x, 1))


@every_reduction
def test_a_tensor_without_dims(op, device):
    x = torch.tensor(3.5, device=device)
    for dim in (None, 0, -1, (0,), (-1,), ()):
        for keepdim in (False, True):
            result = call(op, x, dim=dim, keepdim=keepdim)
            assert result.shape == () and result.item() == 3.5 and result.data_ptr() != x.data_ptr()


@every_reduction
def test_the_result_is_never_the_input(op, device):
    """Not even where there is nothing to add."""
    x = torch.randn(4, 1, 3, device=device)
    for dim in (1, (1,)):
        result = call(op, x, dim=dim)
        before = x.clone()
        result.fill_(7)
        assert torch.equal(x, before)


@every_dtype(EVERY_DTYPE)
def test_empty_inputs_and_empty_reductions(dtype, device, poisoned):
    for shape, dim in (((0,), 0), ((3, 0), 1), ((3, 0), 0), ((0, 4), (0, 1)), ((2, 0, 3), 1), ((2, 0, 3), (0, 2))):
        x = torch.zeros(shape, dtype=dtype, device=device)
        for keepdim in (False, True):
            expected = theirs("sum", x.cpu(), dim, keepdim)
            assert_same_bits(call("sum", x, dim=dim, keepdim=keepdim).cpu(), expected, f"{shape} {dim}")
            if tables.takes(AUTO, "mean", dtype):
                result, expected = call("mean", x, dim=dim, keepdim=keepdim), theirs("mean", x.cpu(), dim, keepdim)
                assert_like(result, expected, f"{shape} {dim}")
                assert result.isnan().all()
    if not dtype.is_complex:
        for op in ("amax", "amin"):  # every output has an element, if there were outputs
            result = call(op, torch.zeros(3, 0, dtype=dtype, device=device), dim=0)
            assert result.shape == (0,) and result.dtype == (torch.float32 if dtype in FLOAT8 else dtype)


# dtype=


def pairs_of_dtypes():
    return [
        (source, target)
        for source in EVERY_DTYPE
        for target in EVERY_DTYPE
        if target not in FLOAT8 and not (source.is_complex and not target.is_complex)
    ]


@pytest.mark.parametrize("op", ["sum", "mean"])
def test_dtype_converts_first(op, device, poisoned):
    """The bits of the converted tensor's own reduction, for every pair of dtypes."""
    for source, target in pairs_of_dtypes():
        if op == "mean" and not (target.is_floating_point or target.is_complex):
            continue
        x = cases.values(7 * 40, source, "normal").view(7, 40)
        if target == torch.uint8 and source.is_floating_point:
            x = x.float().abs().to(source)  # what a negative float becomes is the machine's choice
        x = x.to(device)
        for dim in (None, 0, 1):
            result = call(op, x, dim=dim, dtype=target)
            assert result.dtype == target
            expected = call(op, x.to(target), dim=dim, dtype=target)
            assert_same_bits(result, expected, f"{op} of {source} as {target} along {dim}")


@pytest.mark.filterwarnings("ignore:Casting complex values to real")
def test_complex_to_real_keeps_the_real_part(device):
    for source in COMPLEX:
        x = cases.values(60, source).view(6, 10).to(device)
        for target in (torch.float32, torch.float64, torch.float16):
            assert_same_bits(call("sum", x, dim=0, dtype=target), call("sum", x.to(target), dim=0))


def test_dtype_against_torch(device):
    for source, target in (
        (torch.float16, torch.float32),
        (torch.bfloat16, torch.float64),
        (torch.float32, torch.bfloat16),
        (torch.float64, torch.float16),
        (torch.float32, torch.complex64),
        (torch.int32, torch.float16),
    ):
        x = cases.values(33 * 17, source, "normal").view(33, 17)
        if not source.is_floating_point:
            x = x % 100
        for dim in (0, 1, None):
            ours = call("sum", x.to(device), dim=dim, dtype=target)
            assert_like(ours, torch.sum(x, dim=dim, dtype=target) if dim is not None else x.sum(dtype=target), "dtype")
            assert_within_bound_along(ours.cpu(), "sum", x, dim, target)
    for source, target in itertools.product(cases.INTEGERS, (*cases.INTEGERS, torch.bool)):
        x = cases.values(33 * 17, source).view(33, 17)
        for dim in (0, 1):
            expected = x.to(target).sum(dim).to(target) if target != torch.bool else x.to(torch.bool).any(dim)
            assert_same_bits(call("sum", x.to(device), dim=dim, dtype=target).cpu(), expected, f"{source} {target}")


def test_dtype_makes_no_copy_of_the_input(device):
    """A tensor of float64 would be eight times the input: none is allocated."""

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            if isinstance(result, torch.Tensor):
                made.append((str(func), result.numel()))
            return result

    made = []
    x = torch.ones(1000, 1000, dtype=torch.int8, device=device)
    with Watch():
        call("sum", x, dim=1, dtype=torch.float64)
        call("sum", x.t(), dim=1)
    assert all(numel <= 1000 or "transpose" in name or name.startswith("aten.t.") for name, numel in made), made


# What the classic rungs take.


@every_classic_variant
@every_reduction
def test_classic_rungs_keep_their_dims(op, variant, device):
    """keepdim without dim is a view of the whole tensor's result."""
    if device == "cuda":
        tables.needs_chip(variant)
    x = cases.values(600, torch.int32, device=device).view(4, 5, 30)
    if op != "mean":
        kept = call(op, x, variant.name, keepdim=True)
        assert_same_bits(kept, call(op, x, variant.name).view(1, 1, 1))


# Lazy views.


def test_lazy_conjugation_and_negation_are_seen(device):
    for dtype in COMPLEX:
        x = cases.values(60, dtype).view(6, 10).to(device)
        for dim in (None, 0, 1):
            for view in (x.conj(), x.conj().imag, x.t().conj()):
                resolved = view.resolve_conj().resolve_neg()
                assert_same_bits(call("sum", view, dim=dim), call("sum", resolved, dim=dim), f"{dim}")
        assert_same_bits(call("sum", x.conj(), dim=0), call("sum", x, dim=0).conj().resolve_conj())


@every_dtype((*FLOATS, torch.int8))
@every_reduction
def test_the_input_is_never_changed(op, dtype, device):
    if not tables.takes(AUTO, op, dtype):
        return
    x = cases.values(3000, dtype, device=device).view(30, 10, 10)
    before, version = x.clone(), x._version
    for dim in (None, 0, 1, 2, (0, 2)):
        call(op, x, dim=dim)
        call(op, x.permute(2, 0, 1), dim=dim)
    assert torch.equal(x, before) and x._version == version


def test_ranks_above_those_of_a_plan(device):
    """Eight dims that nothing collapses, of either kind: copied, if need be, and right."""
    memory = cases.values(3**9, torch.float32, "whole", device=device).view((3,) * 9)
    x = memory[..., ::2].permute(0, 2, 4, 6, 8, 1, 3, 5, 7)
    for dim in ((0, 2, 4, 6, 8), (1, 3, 5, 7), tuple(range(8)), (0,), tuple(range(1, 9))):
        for op in REDUCTIONS:
            expected = theirs(op, x.cpu(), dim, False)
            torch.testing.assert_close(call(op, x, dim=dim).cpu(), expected, rtol=1e-6, atol=1e-6)
    gaps = torch.zeros((4,) * 8, device=device)[(slice(None, None, 2),) * 8]
    gaps.copy_(cases.values(2**8, torch.float32, "whole").view((2,) * 8))
    assert torch.equal(call("sum", gaps, dim=tuple(range(7))), gaps.sum(tuple(range(7))))
    assert torch.equal(call("amax", gaps, dim=0), gaps.amax(0))
