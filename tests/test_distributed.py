"""torch_reduce.distributed: DTensors and collectives, on gloo with 2, 3 and 4 processes, on NCCL with GPUs.

What runs on the ranks are the functions named `on_...`; `ranks` starts the processes once.
"""

import collections
import contextlib
import datetime
import functools
import importlib.util
import itertools
import math
import subprocess
import sys

import cases
import pytest
import torch
import torch.distributed as dist
from bits import assert_same_bits
from ranks import Ranks
from torch.distributed import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, init_device_mesh
from torch.distributed.tensor.debug import CommDebugMode

import torch_reduce
import torch_reduce.distributed as treduce
from torch_reduce.distributed import _exchange, _rules, _sharded, _tree

MOST = 4


@pytest.fixture(scope="module")
def gloo():
    ranks = Ranks(MOST, "gloo")
    yield ranks
    ranks.close()


@pytest.fixture(scope="module")
def nccl():
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    ranks = Ranks(min(torch.cuda.device_count(), MOST), "nccl")
    yield ranks
    ranks.close()


@pytest.fixture(params=["gloo-2", "gloo-3", "gloo-4", pytest.param("nccl", marks=pytest.mark.cuda)])
def together(request):
    """Calls a function on so many ranks, with the type of their device."""
    backend, _, count = request.param.partition("-")
    ranks = request.getfixturevalue(backend)
    count = int(count or len(ranks.processes))
    call = functools.partial(ranks.run, count, device="cuda" if backend == "nccl" else "cpu")
    call.ranks = count
    return call


# DTensor: reductions.

SHAPES = {
    (8192,): "each of 2 or 4 ranks has an aligned run: one node",
    (9216,): "aligned for 3 ranks, in chunks",
    (5001,): "chunks are cut",
    (1500,): "chunks are cut twice by 4 ranks",
    (3,): "a rank has nothing",
    (0,): "nothing",
    (4096, 6): "columns, aligned",
    (4099, 5): "columns, cut",
    (6, 4096): "rows; as a whole, runs of aligned nodes",
    (5, 2050): "rows, cut; as a whole, elements must move",
    (4, 1024, 3): "a middle dim; runs are multiples of a chunk",
    (7, 5, 300): "nothing is aligned",
    (1, 1301, 2): "the outermost dim has one index",
}


def line(device):
    """A mesh of one dim."""
    return init_device_mesh(device, (dist.get_world_size(),))


def placed(x, mesh, *placements):
    """A DTensor, of a tensor that every rank has."""
    part = x
    for i, p in enumerate(placements):
        if p.is_shard():
            size = -(-part.shape[p.dim] // mesh.size(i))
            begin = min(mesh.get_local_rank(i) * size, part.shape[p.dim])
            part = part.narrow(p.dim, begin, min(size, part.shape[p.dim] - begin))
    return DTensor.from_local(part, mesh, placements, shape=x.shape, stride=x.stride())


def assert_placed(actual, expected, what):
    """The same bits as the whole tensor, with nothing left to add."""
    assert isinstance(actual, DTensor), what
    assert not any(p.is_partial() for p in actual.placements), what
    assert actual.shape == expected.shape, what
    local = placed(expected, actual.device_mesh, *actual.placements).to_local()
    assert_same_bits(actual.to_local(), local, f"{what} to {actual.placements}")


def reduced_dims(rank):
    return [None, *(d for k in range(1, rank + 1) for d in itertools.combinations(range(rank), k))]


def on_every_placement(device, dtype):
    mesh = line(device)
    for shape in SHAPES:
        x = cases.values(math.prod(shape), dtype, "wide", device=device).view(shape)
        for placement in (Replicate(), *map(Shard, range(len(shape)))):
            shard = placed(x, mesh, placement)
            for dim, op in itertools.product(reduced_dims(len(shape)), cases.REDUCTIONS):
                if (op in ("amax", "amin") and x.numel() == 0) or (op == "mean" and not dtype.is_floating_point):
                    continue
                for keepdim in (False, True):
                    actual = getattr(torch_reduce, op)(shard, dim, keepdim)
                    expected = getattr(torch_reduce, op)(x, dim, keepdim)
                    assert_placed(actual, expected, f"{op} {shape} {placement} along {dim}")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32], ids=str)
def test_reductions_of_every_placement(together, dtype):
    together(on_every_placement, dtype)


@contextlib.contextmanager
def limits(module, **values):
    """Other limits than those of the machine that was measured, so that small tensors go where large ones do."""
    before = {name: getattr(module, name) for name in values}
    _rules._known.clear()
    for name, value in values.items():
        setattr(module, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(module, name, value)
        _rules._known.clear()


def on_nodes(device):
    """What has a way of its own: nodes in one exchange, of whole parts and of parts that are cut anywhere."""
    mesh = line(device)
    ways = collections.Counter()

    def counted(way):
        def found(call):
            run = way(call)
            ways[way.__name__] += run is not None
            return run

        return found

    names = ("_of_elements", "_of_one_node", "_of_parts_of_runs", "_of_packed_nodes", "_of_blocks")
    every = {name: counted(getattr(_sharded, name)) for name in names}
    shapes = (
        (8192,),
        (1 << 15,),
        (12_289,),
        (24_575,),
        (3 * 4096,),
        (13 * 1024 + 1,),
        (16_385, 3),
        (5, 8192),
        (8192, 5),
    )
    with limits(_exchange, FEW_ELEMENTS=0), limits(_sharded, MOST_BLOCKS=16, **every):
        for shape, dtype in itertools.product(shapes, (torch.float32, torch.float16)):
            x = cases.values(math.prod(shape), dtype, "wide", device=device).view(shape)
            for cut, dim, op in itertools.product(range(len(shape)), reduced_dims(len(shape)), ("sum", "mean")):
                actual = getattr(torch_reduce, op)(placed(x, mesh, Shard(cut)), dim)
                assert_placed(actual, getattr(torch_reduce, op)(x, dim), f"{op} {dtype} {shape} {cut} along {dim}")
        for n in (1_200_007, 1024 * 1203):
            x = cases.values(n, torch.float32, "wide", device=device)
            assert_placed(torch_reduce.sum(placed(x, mesh, Shard(0))), torch_reduce.sum(x), f"{n}")
    long = (
        ((300_001,), torch.float32),
        ((300_001,), torch.bfloat16),
        ((1024 * 301,), torch.float32),
        ((150_001, 2), torch.bfloat16),
        ((140_000, 3), torch.float32),
        ((1500, 3), torch.float64),
        ((5001, 16), torch.float32),
        ((5001, 8), torch.float16),
        ((5400, 8), torch.float32),
        ((9800, 4), torch.bfloat16),
    )
    with limits(_exchange, FEW_ELEMENTS=0), limits(_sharded, MOST_SENT=0, _of_blocks=every["_of_blocks"]):
        before = ways["_of_blocks"]
        for shape, dtype in long:
            x = cases.values(math.prod(shape), dtype, "wide", device=device).view(shape)
            for op in ("sum", "mean"):
                actual = getattr(torch_reduce, op)(placed(x, mesh, Shard(0)), 0)
                assert_placed(actual, getattr(torch_reduce, op)(x, 0), f"{op} {dtype} {shape}, block by block")
        assert ways["_of_blocks"] == before + 2 * len(long)
        across = cases.values(1501 * 6, torch.float32, "wide", device=device).view(6, 1501).t()
        assert_placed(torch_reduce.sum(placed(across, mesh, Shard(0)), 0), torch_reduce.sum(across, 0), "across")
    few = {name for name in names[1:] if not ways[name]}
    assert not few - ({"_of_parts_of_runs", "_of_one_node"} if mesh.size() == 3 else set()), ways


def test_nodes_of_sharded_sums(together):
    together(on_nodes)


def on_two_exchanges(device):
    """What takes a share of many outputs, with few; what folds many nodes before they are gathered, with fewer."""
    with limits(_exchange, OF_ALL=0, MANY=0, FEW_ELEMENTS=0):
        mesh = line(device)
        for shape, dtype in itertools.product(
            ((8192, 5), (5001, 7), (9, 4100), (1500, 64)), (torch.float16, torch.complex64)
        ):
            x = cases.values(math.prod(shape), dtype, "normal", device=device).view(shape)
            for cut, dim, op in itertools.product((0, 1), (None, 0, 1), ("sum", "mean")):
                actual = getattr(torch_reduce, op)(placed(x, mesh, Shard(cut)), dim)
                assert_placed(actual, getattr(torch_reduce, op)(x, dim), f"{op} {dtype} {shape} {cut} along {dim}")
        for n in (1, 1000, 4097):
            each = [cases.values(n, torch.float32, "wide", r, device) for r in range(dist.get_world_size())]
            x = each[dist.get_rank()].clone()
            assert_same_bits(treduce.all_reduce(x), torch_reduce.sum(torch.stack(each), 0), f"all_reduce of {n}")
        for n in (1_200_007, 1024 * 1203, 600_000):
            x = cases.values(n, torch.float32, "wide", device=device)
            assert_placed(torch_reduce.sum(placed(x, mesh, Shard(0))), torch_reduce.sum(x), f"{n}")
        x = cases.values(2 * 555_555, torch.float32, "wide", device=device).view(-1, 2)
        assert_placed(torch_reduce.sum(placed(x, mesh, Shard(0)), 0), torch_reduce.sum(x, 0), "columns of 555,555")


def test_shares_of_many_outputs(together):
    together(on_two_exchanges)


def square():
    """The sides of a mesh of two dims with all ranks."""
    ranks = dist.get_world_size()
    return (2, ranks // 2) if ranks % 2 == 0 else (ranks, 1)


def on_two_mesh_dims(device):
    mesh = init_device_mesh(device, square())
    for shape in ((8192, 4), (4100, 6), (4, 2048, 2), (7, 5, 300)):
        x = cases.values(math.prod(shape), torch.float32, "wide", device=device).view(shape)
        options = [Replicate(), *map(Shard, range(len(shape)))]
        for placements in itertools.product(options, options):
            shard = placed(x, mesh, *placements)
            for dim in reduced_dims(len(shape)):
                actual = torch_reduce.sum(shard, dim)
                assert_placed(actual, torch_reduce.sum(x, dim), f"{shape} {placements} along {dim}")


def test_meshes_of_two_dims(together):
    together(on_two_mesh_dims)


def on_other_calls(device):
    """Conversions, strides, named variants, dtypes with rules of their own."""
    mesh = line(device)

    def check(x, placement, call, what):
        assert_placed(call(placed(x, mesh, placement)), call(x), what)

    for n in (8192, 5001):
        for dtype in (torch.float64, torch.float16, torch.int8, torch.bool, torch.complex64, torch.float8_e5m2):
            x = cases.values(n * 2, dtype, device=device).view(n, 2)
            check(x, Shard(0), lambda x: torch_reduce.sum(x, 0), f"{dtype} {n}")
            if dtype in (torch.float16, torch.complex64):
                check(x, Shard(0), lambda x: torch_reduce.mean(x), f"mean of {dtype} {n}")
        x = cases.values(n * 2, torch.float32, "wide", device=device).view(n, 2)
        for to in (torch.float16, torch.float64, torch.int32, torch.int64, torch.complex64):
            check(x, Shard(0), lambda x, to=to: torch_reduce.sum(x, 0, dtype=to), f"float32 to {to}")
        check(x, Shard(0), lambda x: torch_reduce.sum(x.t(), 1), "transposed, along one dim")
        check(x, Shard(0), lambda x: torch_reduce.sum(x.t()), "transposed, as a whole")
        strided = x.t().contiguous().t()
        other = DTensor.from_local(x, mesh, [Replicate()], shape=x.shape, stride=strided.stride())
        assert_placed(torch_reduce.sum(other), torch_reduce.sum(strided), "the strides that the DTensor has count")
        for variant in ("exact", "compensated", "thread", "sequential", "vectorized"):
            check(x, Shard(0), lambda x, v=variant: torch_reduce.sum(x, variant=v), variant)
    special = torch.tensor([math.nan, -0.0, math.inf, -math.inf, 0.0], device=device)
    for value in special:
        x = torch.full((6000, 2), -0.0, device=device)
        x[4321, 0] = value
        for op in cases.REDUCTIONS:
            check(x, Shard(0), lambda x, op=op: getattr(torch_reduce, op)(x, 0), f"{op} with {value}")


def test_other_calls(together):
    together(on_other_calls)


def on_some_ranks(device):
    """A mesh that some ranks are not in, and inference mode."""
    mesh = DeviceMesh(device, [0, 1])
    x = cases.values(6000, torch.float32, "wide", device=device).view(2000, 3)
    inside = mesh.get_coordinate() is not None
    shard = (
        placed(x, mesh, Shard(0)) if inside else DTensor.from_local(x, mesh, [Shard(0)], shape=x.shape, stride=(3, 1))
    )
    with torch.inference_mode():
        for call in (
            lambda x: torch_reduce.sum(x, 0),
            lambda x: torch_reduce.amax(x),
            lambda x: torch_reduce.vector_add(x, x),
            lambda x: torch_reduce.rms_norm(x, (3,)),
        ):
            actual, expected = call(shard), call(x)
            if inside:
                assert_placed(actual, expected, "on two ranks")
            else:
                assert actual.shape == expected.shape and actual.to_local().numel() == 0


def test_some_ranks(together):
    together(on_some_ranks)


def on_partial_inputs(device):
    """What torch has not added yet is added as a tree over ranks."""
    mesh = line(device)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    for op, ours in (("sum", "sum"), ("avg", "mean"), ("max", "max"), ("min", "min")):
        parts = [cases.values(6000, torch.float32, "wide", r, device).view(2000, 3) for r in range(ranks)]
        partial = DTensor.from_local(parts[rank], mesh, [Partial(op)])
        whole = _tree.combine({"max": "amax", "min": "amin"}.get(ours, ours), torch.stack(parts))
        assert_placed(torch_reduce.sum(partial, 0), torch_reduce.sum(whole, 0), op)


def test_partial_inputs(together):
    together(on_partial_inputs)


def on_refusals(device):
    mesh = line(device)
    x = placed(torch.zeros(0, 4, device=device), mesh, Shard(0))
    with pytest.raises(IndexError, match="empty"):
        torch_reduce.amax(x, 0)
    with pytest.raises(IndexError):
        torch_reduce.sum(x, 2)
    with pytest.raises(ValueError, match="unknown variant"):
        torch_reduce.sum(x, variant="nonsense")
    with pytest.raises(NotImplementedError, match="floating-point"):
        torch_reduce.mean(placed(torch.zeros(8, 4, dtype=torch.int32, device=device), mesh, Shard(0)))
    with pytest.raises(RuntimeError, match="distribute it first"):
        torch_reduce.matmul(x, torch.zeros(4, 4, device=device))
    with pytest.raises(ValueError):
        torch_reduce.matmul(x, x)


def test_refusals(together):
    together(on_refusals)


# DTensor: products and sums of two.


def on_products(device, dtype):
    mesh = line(device)

    def operand(shape, seed):
        x = cases.values(math.prod(shape), dtype, "normal", seed, device).view(shape)
        return [(placed(x, mesh, p), x) for p in (Replicate(), *map(Shard, range(len(shape))))]

    def check(call, *operands):
        for chosen in itertools.product(*operands):
            what = str([(shard.placements, tuple(shard.shape)) for shard, _ in chosen])
            assert_placed(call(*(shard for shard, _ in chosen)), call(*(whole for _, whole in chosen)), what)

    for a, b in (
        ((9, 64), (64, 10)),
        ((40, 256), (256, 24)),
        ((64,), (64, 5)),
        ((6, 64), (64,)),
        ((64,), (64,)),
        ((4, 6, 33), (4, 33, 5)),
        ((4, 6, 33), (33, 5)),
        ((1, 6, 16), (4, 1, 16, 5)),
    ):
        check(torch_reduce.matmul, operand(a, 0), operand(b, 1))
    for x, weight, bias in (
        ((7, 32), (5, 32), (5,)),
        ((2, 3, 32), (8, 32), (8,)),
        ((32,), (8, 32), (8,)),
        ((7, 32), (32,), ()),
    ):
        if bias:
            check(torch_reduce.linear, operand(x, 0), operand(weight, 1), operand(bias, 2))
        check(torch_reduce.linear, operand(x, 0), operand(weight, 1))
    for a, b in (((10, 6), (10, 6)), ((10, 6), (6,)), ((10, 1), (1, 6)), ((3, 10, 6), (10, 6))):
        check(torch_reduce.vector_add, operand(a, 0), operand(b, 1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_products(together, dtype):
    together(on_products, dtype)


def on_batches(device):
    """Batched products on a mesh of two dims: batches, rows, columns and k, each on either of its dims."""
    mesh = init_device_mesh(device, square())
    a, b = (
        cases.values(math.prod(s), torch.float32, "normal", i, device).view(s)
        for i, s in enumerate(((4, 6, 32), (4, 32, 8)))
    )
    expected = torch_reduce.matmul(a, b)
    options = (Replicate(), Shard(0), Shard(1), Shard(2))
    for of_a in itertools.product(options, options):
        for of_b in ((Replicate(), Replicate()), (Shard(0), Shard(2)), (Shard(1), Shard(0)), (Shard(0), Shard(0))):
            actual = torch_reduce.matmul(placed(a, mesh, *of_a), placed(b, mesh, *of_b))
            assert_placed(actual, expected, f"{of_a} {of_b}")
            if of_a == of_b == (Shard(0), Shard(0)):
                assert actual.placements == of_a


def test_batches_on_two_mesh_dims(together):
    together(on_batches)


def on_attention(device):
    """Forward and backward, every placement of all operands."""
    mesh = line(device)
    ranks = dist.get_world_size()

    def check(query, key, mask=None, **arguments):
        shapes = [query, key, key, *([] if mask is None else [mask])]
        whole = [cases.values(math.prod(s), torch.float32, "normal", i, device).view(s) for i, s in enumerate(shapes)]
        if mask is not None:
            whole[3] = whole[3] > 0

        def run(query, key, value, *mask):
            leaves = [x.detach().requires_grad_() for x in (query, key, value)]
            y = torch_reduce.scaled_dot_product_attention(*leaves, *mask, **arguments)
            return [y.detach(), *torch.autograd.grad(torch_reduce.sum(y * y), leaves)]

        expected = run(*whole)
        options = [Replicate(), *map(Shard, range(len(query)))]
        for placements in itertools.product(options, options[:3]):
            q, kv = placements
            parts = [placed(x, mesh, p) for x, p in zip(whole, (q, kv, kv, Replicate()), strict=False)]
            for actual, e in zip(run(*parts), expected, strict=True):
                assert_placed(actual, e, f"{query} {key} {mask} {arguments} {placements}")

    check((4, 4, 10, 8), (4, 4, 12, 8))
    check((4, 4, 12, 8), (4, 4, 12, 8), is_causal=True)
    check((2, 2 * ranks, 5, 8), (2, ranks, 6, 8), enable_gqa=True)
    check((2, 2, 5, 8), (2, 1, 6, 8))
    check((3, 2, 5, 8), (3, 2, 6, 8), (3, 1, 5, 6))
    check((3, 2, 5, 8), (3, 2, 6, 8), (5, 6))
    check((3, 5, 8), (3, 6, 8))
    check((5, 8), (6, 8))
    check((3, 5, 8), (3, 6, 8), (3, 5, 6))


def test_attention(together):
    together(on_attention)


def on_row_operations(device):
    """Forward and backward, every placement of the input."""
    mesh = line(device)

    def check(call, *shapes):
        whole = [cases.values(math.prod(s), torch.float32, "normal", i, device).view(s) for i, s in enumerate(shapes)]

        def run(*tensors):
            leaves = [x.detach().requires_grad_() for x in tensors]
            y = call(*leaves)
            return [y.detach(), *torch.autograd.grad(torch_reduce.sum(y * y), leaves)]

        expected = run(*whole)
        for first in (Replicate(), *map(Shard, range(len(shapes[0])))):
            others = [Replicate(), Shard(0)][: len(shapes)]
            for rest in others:
                placements = [first, *[rest] * (len(shapes) - 1)]
                actual = run(*(placed(x, mesh, p) for x, p in zip(whole, placements, strict=True)))
                for a, e in zip(actual, expected, strict=True):
                    assert_placed(a, e, f"{shapes} {placements}")

    shape = (6, 5, 40)
    for dim in (0, 1, -1):
        check(lambda x, dim=dim: torch_reduce.softmax(x, dim), shape)
        check(lambda x, dim=dim: torch_reduce.log_softmax(x, dim), shape)
        for keepdim in (False, True):
            check(lambda x, dim=dim, keepdim=keepdim: torch_reduce.logsumexp(x, dim, keepdim), shape)
    for normalized in ((40,), (5, 40), shape):
        check(lambda x, w, b, n=normalized: torch_reduce.layer_norm(x, n, w, b), shape, normalized, normalized)
        check(lambda x, w, n=normalized: torch_reduce.rms_norm(x, n, w), shape, normalized)
        check(lambda x, n=normalized: torch_reduce.rms_norm(x, n), shape)


def test_row_operations(together):
    together(on_row_operations)


def on_repeated_calls(device):
    """What a layout determines is remembered: the same layout with other values, other arguments, and a gradient."""
    mesh = line(device)
    shapes = ((6, 40), (40, 40), (40,))
    calls = [
        lambda x, w, b: torch_reduce.matmul(x, w),
        lambda x, w, b: torch_reduce.linear(x, w, b),
        lambda x, w, b: torch_reduce.linear(x, w),
        lambda x, w, b: torch_reduce.vector_add(x, b),
        lambda x, w, b: torch_reduce.softmax(x, 0),
        lambda x, w, b: torch_reduce.softmax(x, 1),
        lambda x, w, b: torch_reduce.layer_norm(x, (40,), b, b),
        lambda x, w, b: torch_reduce.layer_norm(x, (40,), b, b, 1e-2),
        lambda x, w, b: torch_reduce.rms_norm(x, [40], b, 1e-2),
        lambda x, w, b: torch_reduce.scaled_dot_product_attention(x, w, w),
        lambda x, w, b: torch_reduce.scaled_dot_product_attention(x, w, w, is_causal=True),
        lambda x, w, b: torch_reduce.sum(x, 1),
        lambda x, w, b: torch_reduce.sum(x, [1]),
        lambda x, w, b: torch_reduce.sum(x, 1, True, dtype=torch.float64),
        lambda x, w, b: torch_reduce.sum(x, 1, variant="row_warp"),
        lambda x, w, b: torch_reduce.amin(x, (0, 1)),
    ]
    for seed, placement in itertools.product(range(3), (Shard(0), Shard(1), Replicate())):
        whole = [
            cases.values(math.prod(s), torch.float32, "normal", seed + i, device).view(s) for i, s in enumerate(shapes)
        ]
        parts = [placed(x, mesh, placement if i == 0 else Replicate()) for i, x in enumerate(whole)]
        for number, call in enumerate(calls):
            assert_placed(call(*parts), call(*whole), f"{number} {placement}")
        for number, call in enumerate(calls):
            if number in (14, 15):
                continue
            found = []
            for operands in (whole, parts):
                leaves = [x.detach().requires_grad_() for x in operands]
                found.append(torch.autograd.grad(torch_reduce.sum(call(*leaves)), leaves, allow_unused=True))
            for e, a in zip(*found, strict=True):
                assert (a is None) == (e is None)
                if e is not None:
                    assert_placed(a, e, f"gradient of {number} {placement}")
    before = dict(_rules._known_calls), dict(_rules._known)
    assert any(before[0]) and any(before[1])
    x = placed(whole[0], mesh, Shard(0))
    with pytest.raises(ValueError, match="unknown variant"):
        torch_reduce.sum(x, 1, variant="fastest")
    with pytest.raises(IndexError):
        torch_reduce.sum(x, 2)
    with CommDebugMode() as comms:
        torch_reduce.sum(placed(whole[0], mesh, Shard(1)), 1)
    assert comms.get_total_counts() > 0


def test_repeated_calls(together):
    together(on_repeated_calls)


def test_every_op_has_a_rule():
    names = {name.removeprefix("treduce::") for name in torch._C._dispatch_get_all_op_names() if "treduce::" in name}
    missing = (
        {name for name in names if "." not in name}  # the other overloads raise
        - _rules.RULES.keys()
        - {
            "thread_indices_",
            "row_sums_",
            "reduce_to_",
            "matmul_to_",
            "reduce_ranks_",
            "add_segments_",
            "sum_to_",
            "pack_parts_",
            "fold_parts_",
        }
    )
    assert not missing, (
        f"{', '.join(sorted(missing))}: RULES in torch_reduce/distributed/_rules.py says what DTensors do"
    )


def on_gradients(device):
    """Forward and backward of a layer: the bits of one rank, whatever is sharded."""
    mesh = line(device)
    whole = [
        cases.values(math.prod(s), torch.float32, "normal", i, device).view(s)
        for i, s in enumerate(((48, 16), (8, 16), (8,)))
    ]

    def run(*tensors):
        x, weight, bias = (t.detach().requires_grad_() for t in tensors)
        y = torch_reduce.linear(x, weight, bias, variant="tiled")
        loss = torch_reduce.sum(torch_reduce.mean(y * y, 0)) + torch_reduce.amax(
            torch_reduce.matmul(y, y.t(), variant="tiled")
        )
        loss.backward()
        return [loss.detach(), x.grad, weight.grad, bias.grad]

    expected = run(*whole)
    for placements in itertools.product(
        (Replicate(), Shard(0), Shard(1)), (Replicate(), Shard(0), Shard(1)), (Replicate(), Shard(0))
    ):
        actual = run(*(placed(x, mesh, p) for x, p in zip(whole, placements, strict=True)))
        for a, e in zip(actual, expected, strict=True):
            assert_placed(a, e, str(placements))


def test_gradients(together):
    together(on_gradients)


def on_compiled(device):
    mesh = line(device)

    def step(x, weight):
        y = torch_reduce.matmul(x * 2, weight, variant="tiled")
        return torch_reduce.sum(y * y, 0) + torch_reduce.amax(y)

    compiled = torch.compile(step, backend="aot_eager", fullgraph=True)
    for rows, placement in ((4096, Shard(0)), (5001, Shard(0)), (4096, Shard(1))):
        whole = [cases.values(rows * 16, torch.float32, "normal", 0, device).view(rows, 16)]
        whole.append(cases.values(16 * 6, torch.float32, "normal", 1, device).view(16, 6))
        found = []
        for call, operands in (
            (step, whole),
            (compiled, [placed(x, mesh, p) for x, p in zip(whole, (placement, Replicate()), strict=True)]),
        ):
            leaves = [x.detach().requires_grad_() for x in operands]
            y = call(*leaves)
            found.append([y.detach(), *torch.autograd.grad(y.sum(), leaves)])
        for expected, actual in zip(*found, strict=True):
            assert_placed(actual, expected, f"{rows} {placement}")


def test_compiled(together):
    if together.ranks > 2:
        pytest.skip("compiled on two ranks: more have the same graphs")
    together(on_compiled)


# Collectives.


def on_collectives(device):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    for dtype in (torch.float32, torch.bfloat16, torch.float64, torch.int16, torch.int64, torch.bool, torch.complex64):
        for shape in ((), (0,), (7,), (ranks * 3, 5), (ranks, 400_001)):
            each = [cases.values(math.prod(shape), dtype, "normal", r, device).view(shape) for r in range(ranks)]
            for op, ours in (("sum", "sum"), ("mean", "mean"), ("max", "amax"), ("min", "amin")):
                if (op == "mean" and not (dtype.is_floating_point or dtype.is_complex)) or (
                    ours != op and dtype.is_complex
                ):
                    with pytest.raises(NotImplementedError):
                        treduce.all_reduce(each[rank].clone(), op)
                    continue
                arguments = {"dtype": dtype} if op == "sum" else {}
                whole = torch.stack(each)
                expected = whole[0] if whole.numel() == 0 else getattr(torch_reduce, ours)(whole, 0, **arguments)
                x = each[rank].clone()
                assert treduce.all_reduce(x, op, check=True) is x
                assert_same_bits(x, expected, f"{op} {dtype} {shape}")
                if shape and shape[0] % ranks == 0:
                    assert_same_bits(
                        treduce.reduce_scatter(each[rank], op), expected.chunk(ranks)[rank] if shape[0] else expected
                    )
    strided = torch.zeros(6, 4, device=device)[:, 1]
    treduce.all_reduce(strided.add_(1))
    assert strided.tolist() == [ranks] * 6


def test_collectives(together):
    together(on_collectives)


def on_swapped_tensors(device):
    """What two ranks send each other, on one stream after another."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    streams = [torch.cuda.Stream() for _ in "ab"] if device == "cuda" else [None]
    for dtype, op, count in itertools.product(
        (torch.float32, torch.bfloat16, torch.int64), ("sum", "mean", "max"), (1, 300_007)
    ):
        if op == "mean" and not dtype.is_floating_point:
            continue
        each = [cases.values(count + 3, dtype, "wide", r, device)[3:] for r in range(ranks)]
        arguments = {} if op == "max" else {"dtype": dtype}
        expected = getattr(torch_reduce, "amax" if op == "max" else op)(torch.stack(each), 0, **arguments)
        with limits(_exchange, SWAPPED_LEAST=1):
            for stream in streams:
                with torch.cuda.stream(stream):  # what the others made is there: they are compared on the host
                    for shift in (0, 1):
                        room = torch.empty(count + shift, dtype=dtype, device=device)
                        x = room[shift:].copy_(each[rank])
                        assert_same_bits(treduce.all_reduce(x, op), expected, f"{dtype} {op} {count} {shift}")


def test_swapped_tensors(together):
    together(on_swapped_tensors)


def on_graphs(device):
    """A graph that exchanges and adds, replayed with other values."""
    ranks, rank, mesh = dist.get_world_size(), dist.get_rank(), line(device)
    whole, each = torch.zeros(1 << 20, device=device), torch.zeros(ranks, 5000, device=device)
    shard, x = placed(whole, mesh, Shard(0)), torch.zeros(5000, device=device)

    def step():
        treduce.all_reduce(x)
        return torch_reduce.sum(shard).to_local()

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        step()  # what is remembered must be found before the capture
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        total = step()
    for seed in range(3):
        whole.copy_(cases.values(len(whole), torch.float32, "wide", seed, device))
        each.copy_(cases.values(each.numel(), torch.float32, "wide", seed, device).view(each.shape))
        x.copy_(each[rank])
        graph.replay()
        torch.cuda.synchronize()
        assert_same_bits(total, torch_reduce.sum(whole), "sum")
        assert_same_bits(x, torch_reduce.sum(each, 0), "all_reduce")


@pytest.mark.cuda
def test_graphs(nccl):
    nccl.run(2, on_graphs, device="cuda")


def on_mismatches(device):
    rank = dist.get_rank()
    with pytest.raises(ValueError, match=r"rank 0: torch.float32 \(3,\), op 'sum'; rank"):
        treduce.all_reduce(torch.zeros(3 + (rank > 0), device=device), check=True)
    with pytest.raises(ValueError, match="same shape, dtype and op on every rank"):
        treduce.all_reduce(torch.zeros(3, dtype=torch.float64 if rank else torch.float32, device=device), check=True)
    with pytest.raises(ValueError, match="op 'max'"):
        treduce.all_reduce(torch.zeros(3, device=device), "max" if rank else "sum", check=True)
    with pytest.raises(ValueError, match="divide evenly"):
        treduce.reduce_scatter(torch.zeros(dist.get_world_size() + 1, device=device))
    with pytest.raises(ValueError, match="unknown op 'product'"):
        treduce.all_reduce(torch.zeros(3, device=device), "product")
    with pytest.raises(TypeError, match="8-bit"):
        treduce.all_reduce(torch.zeros(3, device=device).to(torch.float8_e5m2))
    x = torch.zeros(3, device=device)
    for wrong, match in (
        (placed(x, line(device), Shard(0)), "a DTensor; pass its to_local"),
        ([1.0], "got a list"),
        (torch.eye(3, device=device).to_sparse(), "layout torch.sparse_coo"),
    ):
        for call in (treduce.all_reduce, treduce.reduce_scatter):
            with pytest.raises(TypeError, match=match):
                call(wrong)
    group = dist.new_group([0])
    if dist.get_rank() > 0:
        with pytest.raises(ValueError, match="this rank is not in the group"):
            treduce.all_reduce(x, group=group)
    treduce.all_reduce(x, check=True)  # and ranks still agree


def test_ranks_that_disagree(together):
    together(on_mismatches)


def on_an_absent_rank(device):
    group = dist.new_group(timeout=datetime.timedelta(seconds=1))
    if dist.get_rank() == 0:
        with pytest.raises(RuntimeError, match=r"(?i)time"):
            treduce.all_reduce(torch.zeros(3, device=device), group=group)
        mesh = DeviceMesh.from_group(group, device)
        x = DTensor.from_local(torch.zeros(3, device=device), mesh, [Shard(0)])
        with pytest.raises(RuntimeError):
            torch_reduce.sum(x)


def test_a_rank_that_does_not_come(gloo):
    """torch's error, at the latest when the group's time is over; NCCL ends the process then."""
    gloo.run(2, on_an_absent_rank, device="cpu")


def on_ddp(device):
    ranks, rank = dist.get_world_size(), dist.get_rank()
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(30, 40), torch.nn.Linear(40, 5)).to(device)
    inputs = [cases.values(8 * 30, torch.float32, "normal", r, device).view(8, 30) for r in range(ranks)]
    each = []
    for x in inputs:
        each.append(torch.autograd.grad(model(x).square().sum(), tuple(model.parameters())))
    expected = [torch_reduce.mean(torch.stack(grads), 0) for grads in zip(*each, strict=True)]
    for megabytes in (25, 0.001):
        parallel = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=megabytes)
        parallel.register_comm_hook(None, treduce.ddp_hook)
        for _ in range(2):
            model.zero_grad()
            parallel(inputs[rank]).square().sum().backward()
            for p, e in zip(model.parameters(), expected, strict=True):
                assert_same_bits(p.grad, e, f"buckets of {megabytes} MB")


def test_ddp(together):
    together(on_ddp)


def on_the_mode(device):
    """DistributedDataParallel and FSDP2 in batch_invariant: a rank's results as alone, and the mean of gradients."""
    ranks, rank = dist.get_world_size(), dist.get_rank()

    def model():
        torch.manual_seed(1)
        layers = (torch.nn.Linear(24, 40), torch.nn.LayerNorm(40), torch.nn.SiLU(), torch.nn.Linear(40, 8))
        return torch.nn.Sequential(*layers, torch.nn.Softmax(-1)).to(device)

    inputs = [cases.values(6 * 24, torch.float32, "normal", r, device).view(6, 24) for r in range(ranks)]
    with torch_reduce.batch_invariant(strict=True):
        alone = model()
        each = [torch.autograd.grad(alone(x).square().sum(), tuple(alone.parameters())) for x in inputs]
        parallel = torch.nn.parallel.DistributedDataParallel(model())
        sharded = fully_shard(model(), mesh=init_device_mesh(device, (ranks,)))
        for step in range(2):
            for wrapped in (parallel, sharded):
                wrapped.zero_grad()
                result = wrapped(inputs[rank])
                assert_same_bits(result, alone(inputs[rank]))
                result.square().sum().backward()
                for p, grads in zip(wrapped.parameters(), zip(*each, strict=True), strict=True):
                    grad = p.grad.full_tensor() if isinstance(p.grad, DTensor) else p.grad
                    expected = torch.stack(grads).double().mean(0).float()
                    if ranks == 2:  # the order of two is no matter
                        assert_same_bits(grad, (grads[0] + grads[1]) / 2, f"{type(wrapped).__name__}, step {step}")
                    torch.testing.assert_close(grad, expected)


def test_the_mode(together):
    if together.ranks == 4:
        pytest.skip("2 and 3 ranks have run it")
    together(on_the_mode)


# Training on any number of ranks.


def neighbours(values):
    """A tree of neighbours along dim 0, as plain as can be."""
    while len(values) > 1:
        if len(values) % 2:
            values = torch.cat([values, torch.zeros_like(values[:1])])
        values = values[0::2] + values[1::2]
    return values[0]


def on_micro_batches(device):
    ranks = dist.get_world_size()
    for count in (ranks, 4 * ranks):
        parts = treduce.MicroBatches(count)
        for dtype in (torch.float32, torch.bfloat16, torch.complex64, torch.int64):
            each = [cases.values(30, dtype, "normal", n, device).view(5, 6) for n in range(count)]
            expected = neighbours(torch.stack(each).to(_tree.accumulator(dtype))).to(dtype)
            for number in parts:
                parts.add(each[number], each[number][:, 1], torch.tensor(1.0, device=device))
            total, column, ones = parts.sums()
            assert_same_bits(total, expected, f"{count} {dtype}")
            assert_same_bits(column, expected[:, 1].contiguous(), f"{count} {dtype}")
            assert ones == count
    for count in (ranks + 1, 3 * ranks, 0):
        with pytest.raises(ValueError, match="a power of two"):
            treduce.MicroBatches(count)
    parts = treduce.MicroBatches(2 * ranks)
    parts.add(each[0])
    with pytest.raises(ValueError, match="2 micro-batches, and 1 were added"):
        parts.sums()
    parts.add(each[0])
    with pytest.raises(ValueError, match="all of them were added"):
        parts.add(each[0])


def test_micro_batches(together):
    together(on_micro_batches)


@pytest.mark.parametrize("count", [1, 2, 3, 5, 7, 8])
def test_micro_batches_of_one_process(count):
    parts = treduce.MicroBatches(count)
    each = [cases.values(50, torch.float32, "wide", n) for n in range(count)]
    for number in parts:
        parts.add(each[number])
    assert_same_bits(parts.sums()[0], neighbours(torch.stack(each)) + 0.0)


def on_the_example(device, root, counts):
    spec = importlib.util.spec_from_file_location("train", root / "examples" / "train.py")
    train = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(train)
    digests = []
    for count in counts:
        losses, parameters = train.train(device, 6, functools.partial(train.step_in_parts, count))
        digests.append(train.digest([losses, *parameters.values()]))
    return digests


def test_the_example_trains_alike_on_any_number_of_ranks(together, root):
    """And on any device: one process on the CPU gives the digests that all must have."""
    counts = (12, 24) if together.ranks == 3 else (4, 8)
    digests = together(on_the_example, root, counts)
    assert digests == [on_the_example("cpu", root, counts)] * together.ranks


def test_torchrun(root):
    """The command of the documents: the output of one rank, the same as without torchrun."""
    arguments = ["-m", "examples.train", "--micro-batches", "4", "--steps", "2", "--device", "cpu"]
    torchrun = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    alone, two = (
        subprocess.run([sys.executable, *command], capture_output=True, text=True, cwd=root, timeout=120)
        for command in (arguments, torchrun + arguments)
    )
    assert (alone.returncode, two.returncode) == (0, 0), alone.stderr + two.stderr
    assert two.stdout == alone.stdout


@pytest.mark.parametrize("op", cases.REDUCTIONS)
def test_ranks_are_reduced_in_place(op, device):
    for dtype in (torch.float32, torch.bfloat16, torch.int8):
        if op == "mean" and dtype == torch.int8:
            continue
        values = cases.values(4 * 300, dtype, "wide", device=device).view(4, 300)
        arguments = {"dtype": dtype} if op in ("sum", "mean") else {}
        out = torch.zeros(2, 300, dtype=dtype, device=device)
        torch.ops.treduce.reduce_ranks_(out[1], values, op)
        assert_same_bits(out[1], getattr(torch_reduce, op)(values, 0, **arguments), f"{op} {dtype}")
        assert not out[0].any()
    with pytest.raises(ValueError, match="takes op sum, mean, amax or amin, got 'product'"):
        torch.ops.treduce.reduce_ranks_(values[0], values, "product")
    for wrong in (values[0, :-1], torch.zeros(300, 2, dtype=dtype, device=device)[:, 0]):
        with pytest.raises(ValueError, match="writes to a contiguous tensor of shape"):
            torch.ops.treduce.reduce_ranks_(wrong, values, "amax")


JOINED = {
    (905, 119, 64): "columns, most of them in the first tensor",
    (512, 512, 64): "as many",
    (119, 905, 64): "as one tensor, of a copy",
    (905, 119, 3): "columns that fit no vector",
    (900, 100, 1): "one column",
    (2000, 96, 40): "more than a chunk",
    (3, 2, 5): "short columns",
    (1, 1, 7): "one entry",
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.complex64], ids=str)
def test_two_tensors_are_summed_as_one(dtype, device):
    for (first, second, columns), what in JOINED.items():
        for shift in (0, 1):  # where vectors are aligned, and where they are not
            values = cases.values((first + second) * columns, dtype, "wide", device=device).view(-1, columns)
            parts = [
                torch.cat([part.new_zeros(shift), part.reshape(-1)])[shift:].view(-1, columns)
                for part in (values[:first], values[first:])
            ]
            out = torch.zeros(2, columns, dtype=_tree.accumulator(dtype), device=device)
            expected = torch_reduce.sum(values, 0, dtype=out.dtype)
            for order in (parts, [part.t().contiguous().t() for part in parts]):
                torch.ops.treduce.sum_to_(out[1], *order, 0)
                assert_same_bits(out[1], expected, f"{dtype} {what}, {shift}")
            torch.ops.treduce.sum_to_(out[1], values, None, 0)
            assert_same_bits(out[1], expected, f"{dtype} {what}, one tensor")
            assert not out[0].any()
    x = torch.zeros(4, 3, device=device)
    for second, dim in ((torch.zeros(4, 2, device=device), 0), (x, 1)):
        with pytest.raises(ValueError, match="differ along dim 0 alone"):
            torch.ops.treduce.sum_to_(x[0], x, second, dim)


def parts_of_a_run(x, cuts, chunks):
    """What ranks send of `x`, which they cut at `cuts`, in blocks of so many chunks; and how much of each kind."""
    block, messages, parts = chunks * _tree.CHUNK, [], []
    for begin, end in itertools.pairwise([0, *cuts, len(x)]):
        whole = -(-begin // block) * block, end // block * block
        inner = -(-begin // _tree.CHUNK) * _tree.CHUNK, end // _tree.CHUNK * _tree.CHUNK

        def nodes(begin, end, length):
            return [torch_reduce.sum(x[i : min(i + length, end)], 0) for i in range(begin, end, length)]

        kinds = [
            nodes(*whole, block),
            nodes(inner[0], whole[0], _tree.CHUNK),
            nodes(whole[1], inner[1], _tree.CHUNK),
            list(x[begin : inner[0]]),
            list(x[inner[1] : end]),
        ]
        parts.append([len(kind) for kind in kinds])
        messages.append(torch.stack(list(itertools.chain(*kinds))))
    values = torch.full((len(parts), max(map(len, messages)), *x.shape[1:]), math.nan, dtype=x.dtype, device=x.device)
    for room, message in zip(values, messages, strict=True):
        room[: len(message)] = message
    return values, torch.tensor(parts, dtype=torch.int32, device=x.device)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_parts_are_folded(dtype, device):
    for length, cuts, chunks, columns in (
        (9000, (), 2, 1),
        (9001, (3000, 6100), 2, 3),
        (40_000, (5000, 9217, 20_480, 30_001), 4, 2),
        (300_000, (111_111,), 16, 1),
        (40_000, tuple(range(2049, 38_000, 2049)), 2, 1),
        (3_000_000, (1_234_567,), 1, 1),
    ):
        x = cases.values(length * columns, dtype, "wide", device=device).view(length, columns)
        values, parts = parts_of_a_run(x, cuts, chunks)
        out = torch.zeros(columns, dtype=dtype, device=device)
        torch.ops.treduce.fold_parts_(out, values, parts, None)
        assert_same_bits(out, torch_reduce.sum(x, 0), f"{length} cut at {cuts}")
        torch.ops.treduce.fold_parts_(out, values, parts, length)
        assert_same_bits(out, torch_reduce.mean(x, 0), f"mean of {length} cut at {cuts}")
    with pytest.raises(ValueError, match="an int32 row of 5 for each"):
        torch.ops.treduce.fold_parts_(out, values, parts[1:], None)
    with pytest.raises(TypeError, match="fold_parts_ takes float32"):
        torch.ops.treduce.fold_parts_(out.to(torch.int32), values, parts, None)


PACKED = {
    "one after another": lambda values: values,
    "columns": lambda values: values.view(-1, 5),
    "rows": lambda values: values.view(5, -1).t(),
    "a middle dim": lambda values: values.view(5, -1, 4).transpose(0, 1),
    "a view of four dims": lambda values: values.view(2, -1, 5, 2).transpose(0, 1),
    "strides of no two dims": lambda values: values.view(2, -1, 5, 2).permute(1, 3, 0, 2),
    "spread": lambda values: values[::3],
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int16, torch.uint32], ids=str)
def test_parts_are_packed(dtype, device):
    for what, view in PACKED.items():
        x = view(cases.values(100_000, torch.float32, "wide", device=device).to(dtype))
        acc = torch.float64 if dtype == torch.float64 else torch.float32
        chunk, shape, read = _tree.CHUNK, x.shape[1:], x.to(acc)
        message = torch.full((20, *shape), math.nan, dtype=acc, device=device)
        torch.ops.treduce.pack_parts_(
            message, x, (7, 11, 2, 1, 2500, 3, 1, 1, 30, 0, 2, 2, 0, 5, 6, 0, len(x) - 3, 15, 3, 0)
        )
        expected = torch.full_like(message, math.nan)
        for at, begin in ((11, 7), (12, 7 + chunk), (3, 2500)):
            expected[at] = torch_reduce.sum(read[begin : begin + chunk], 0)
        for at, begin in ((0, 30), (1, 30 + 2 * chunk)):
            expected[at] = torch_reduce.sum(read[begin : begin + 2 * chunk], 0)
        expected[5:11], expected[15:18] = read[:6], read[-3:]
        assert_same_bits(message, expected, f"{dtype} {what}")
        with pytest.raises(ValueError, match="takes groups of the entries"):
            torch.ops.treduce.pack_parts_(message, x, (len(x) - chunk + 1, 0, 1, 1))
        with pytest.raises(ValueError, match="takes groups of the entries"):
            torch.ops.treduce.pack_parts_(message, x, (0, 19, 2, 0))
    with pytest.raises(TypeError, match="writes float32 or float64"):
        torch.ops.treduce.pack_parts_(message.to(torch.int32), x, (0, 0, 1, 0))


def test_many_ranks():
    """The tree over more ranks than this machine has processes."""
    for ranks in (1, 2, 5, 127, 128, 129, 300, 1024):
        for dtype in (torch.float32, torch.bfloat16, torch.complex64, torch.int32):
            x = cases.values(ranks * 3, dtype, "wide").view(ranks, 3)
            expected = neighbours(x.to(_tree.accumulator(dtype))).to(dtype)
            assert_same_bits(_tree.combine("sum", x), expected, f"{ranks} ranks, {dtype}")
