"""What cannot work is refused in a sentence, before anything is launched, and harms nothing that comes after."""

import random

import pytest
import tables
import torch
from bits import assert_same_bits
from tables import call, every_classic_variant, every_reduction, names

import torch_reduce

ops = torch.ops.treduce


@every_reduction
@pytest.mark.parametrize(
    ("given", "closest"),
    [
        ("interleaved_modul", "interleaved_modulo"),
        ("V0", "v0"),
        ("warpshuffle", "warp_shuffle"),
        ("vectorised", "vectorized"),
        ("two-pass", "two_pass"),
        ("", "v0"),
        ("auto ", "auto"),
    ],
)
def test_an_unknown_variant_names_the_closest(given, closest, op, device):
    with pytest.raises(ValueError) as error:
        call(op, torch.ones(3, device=device), given)
    assert repr(given) in str(error.value) and f"'{closest}'" in str(error.value)


@pytest.mark.parametrize(("op", "closest"), [("matmul", "tiled"), ("vector_add", "grid_1d")])
def test_an_unknown_variant_of_two_operands_names_the_closest(op, closest, device):
    x = torch.ones(3, 3, device=device)
    with pytest.raises(ValueError, match=closest):
        getattr(ops, op)(x, x, closest + "x")


def test_odd_names(device):
    x = torch.ones(3, device=device)
    for name in ("\0", "x" * 5000, "größe", "%s%n", "v0\n", "{}"):
        with pytest.raises(ValueError, match="unknown variant"):
            call("sum", x, name)
    for name in (None, 3, ["v0"]):
        with pytest.raises((TypeError, RuntimeError)):
            call("sum", x, name)


@tables.every_variant
def test_block_sizes_that_a_variant_does_not_take(variant, device):
    x = torch.ones(100, device=device)
    wrong = {0, -1, -32, 3, 33, 48, 1000, 1025, 2048, 2**31, 2**40, -(2**63), 1, 2, 16} - set(variant.sizes)
    for size in wrong:
        with pytest.raises(ValueError, match="block_size") as error:
            call("sum", x, variant.name, block_size=size)
        if variant.sizes:
            assert str(size) in str(error.value) and str(variant.size_min) in str(error.value)
    for size in variant.sizes:
        if device == "cpu" or tables.can_run(variant.capability):
            call("sum", x, variant.name, block_size=size)
    with pytest.raises((TypeError, RuntimeError)):
        call("sum", x, variant.name, block_size=64.0)


@tables.every_variant
def test_numbers_of_blocks_that_a_variant_does_not_take(variant, device):
    x = torch.ones(100, device=device)
    wrong = (0, -1, -(2**63), 2**31, 2**62) if variant.takes_num_blocks else (1, 0, 2**31)
    for blocks in wrong:
        with pytest.raises(ValueError, match="num_blocks"):
            call("sum", x, variant.name, num_blocks=blocks)


def test_tile_sizes_that_matmul_does_not_take(device):
    x = torch.ones(4, 4, device=device)
    for size in (0, 1, 4, 7, 12, 64, -8, 2**40):
        with pytest.raises(ValueError, match="tile_size"):
            ops.matmul(x, x, "tiled", tile_size=size)
    with pytest.raises(ValueError, match="tile_size"):
        ops.matmul(x, x, "naive", tile_size=16)


def test_block_sizes_that_vector_add_does_not_take(device):
    x = torch.ones(4, device=device)
    for variant in tables.ADD_VARIANTS:
        for size in (0, 1, 16, 33, 2048, -32):
            with pytest.raises(ValueError, match="block_size"):
                ops.vector_add(x, x, variant.name, block_size=size)


@every_reduction
def test_dtypes_that_a_reduction_does_not_take(op, device):
    for dtype in (torch.uint16, torch.uint32, torch.uint64, torch.complex32) if op.startswith("a") else ():
        for dim in (None, 0):
            with pytest.raises(TypeError, match=f"{op} takes float32"):
                call(op, torch.empty(4, dtype=dtype, device=device), dim=dim)
    for dtype in (torch.complex64, torch.float8_e4m3fn):
        for variant in tables.CLASSIC:
            if op.startswith("a") and dtype.is_complex:
                continue
            with pytest.raises(TypeError, match=f"'{variant.name}' takes float32.*auto"):
                call(op, torch.empty(4, dtype=dtype, device=device), variant.name)


def test_dtypes_that_two_operands_do_not_take(device):
    for dtype in (torch.bool, torch.uint16, torch.complex32, torch.float8_e4m3fn):
        x = torch.zeros(2, 2, dtype=dtype, device=device)
        with pytest.raises(TypeError, match="matmul takes float32"):
            ops.matmul(x, x)
    x = torch.zeros(2, 2, dtype=torch.complex64, device=device)
    with pytest.raises(TypeError, match="vector_add takes float32"):
        ops.vector_add(x, x)
    x, y = torch.zeros(2, 2, device=device), torch.zeros(2, 2, dtype=torch.float64, device=device)
    for op in (ops.matmul, ops.vector_add):
        with pytest.raises(TypeError, match="one dtype"):
            op(x, y)
    for dtype in (torch.int32, torch.int64, torch.float32):
        with pytest.raises(TypeError, match="one dtype, got Char and "):
            ops.matmul(x.to(torch.int8), y.to(dtype))


@pytest.mark.parametrize("dtype", [torch.int8, torch.int32, torch.int64, torch.uint8, torch.bool])
def test_the_mean_of_integers_is_refused_as_torch_refuses_it(dtype, device):
    x = torch.ones(4, dtype=dtype, device=device)
    with pytest.raises(RuntimeError):
        x.mean()
    with pytest.raises(NotImplementedError, match="mean takes floating-point"):
        call("mean", x)
    assert issubclass(NotImplementedError, RuntimeError)


@pytest.mark.parametrize("op", ["amax", "amin"])
def test_the_extremum_of_nothing_is_refused(op, device):
    for shape in ((0,), (3, 0), (0, 0, 2)):
        with pytest.raises(ValueError, match="empty"):
            call(op, torch.empty(shape, device=device))


# Along dims.


@every_reduction
def test_dims_out_of_range_and_named_twice(op, device):
    """torch's errors: IndexError for the one, RuntimeError for the other."""
    x = torch.ones(3, 4, device=device)
    for wrong in (2, -3, (0, 2), (-3,), 2**40):
        with pytest.raises(IndexError, match="Dimension out of range"):
            call(op, x, dim=wrong)
        if abs(wrong if isinstance(wrong, int) else 0) < 2**31:
            with pytest.raises(IndexError, match="Dimension out of range"):
                getattr(torch, op)(x, dim=wrong)
    for twice in ((0, 0), (1, -1), (-2, 0, 1)):
        with pytest.raises(RuntimeError, match="appears multiple times in the list of dims"):
            call(op, x, dim=twice)
        with pytest.raises(RuntimeError, match="appears multiple times in the list of dims"):
            getattr(torch, op)(x, dim=twice)
    for wrong in (1, -2, (0, 1)):
        with pytest.raises(IndexError, match="Dimension out of range"):
            call(op, torch.tensor(1.0, device=device), dim=wrong)
    for wrong in ("rows", 1.5, [None], [[0]]):
        with pytest.raises((TypeError, RuntimeError)):
            call(op, x, dim=wrong)


@every_classic_variant
@every_reduction
def test_classic_rungs_given_a_dim_name_those_that_take_it(op, variant, device):
    x = torch.ones(3, 4, device=device)
    for dim in (0, -1, (0, 1), [1]):
        with pytest.raises(ValueError, match=f"variant '{variant.name}'.*whole tensors.*auto.*row_") as error:
            call(op, x, variant.name, dim=dim)
        assert "column_" in str(error.value)


@pytest.mark.parametrize("op", ["amax", "amin"])
def test_the_extremum_of_nothing_along_a_dim_is_refused_as_torch_refuses_it(op, device):
    for shape, dim in (((3, 0), 1), ((0, 3), 0), ((2, 0, 3), (0, 1)), ((0,), -1), ((0, 0), 1)):
        x = torch.empty(shape, device=device)
        for refuses in (lambda x=x, dim=dim: call(op, x, dim=dim), lambda x=x, dim=dim: getattr(torch, op)(x, dim=dim)):
            with pytest.raises(IndexError):
                refuses()


@pytest.mark.parametrize("op", ["amax", "amin"])
def test_complex_numbers_have_no_extremum(op, device):
    for dtype in (torch.complex64, torch.complex128):
        for dim in (None, 0):
            with pytest.raises(NotImplementedError, match=f"{op} takes"):
                call(op, torch.ones(3, dtype=dtype, device=device), dim=dim)


@pytest.mark.parametrize("op", ["sum", "mean"])
def test_dtypes_that_a_result_cannot_have(op, device):
    x = torch.ones(3, 4, device=device)
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2, torch.uint16, torch.uint64, torch.complex32):
        for dim in (None, 1):
            with pytest.raises(TypeError, match=f"{op} returns"):
                call(op, x, dim=dim, dtype=dtype)
    with pytest.raises((TypeError, RuntimeError)):
        call(op, x, dtype="float32")


def test_the_mean_of_integers_needs_a_floating_point_dtype(device):
    for dtype in (torch.int8, torch.int64, torch.bool):
        x = torch.ones(3, 4, dtype=dtype, device=device)
        for dim in (0, (0, 1), None):
            with pytest.raises(NotImplementedError, match="mean takes floating-point"):
                call("mean", x, dim=dim)
            assert call("mean", x, dim=dim, dtype=torch.float32).eq(1).all()
    for dtype in (torch.int32, torch.bool):
        with pytest.raises(NotImplementedError, match="mean returns floating-point"):
            call("mean", torch.ones(3, device=device), dtype=dtype)
        with pytest.raises(RuntimeError):
            torch.ones(3).mean(dtype=dtype)


@every_classic_variant
def test_classic_rungs_convert_nothing(variant, device):
    x = torch.ones(10, dtype=torch.float16, device=device)
    with pytest.raises(ValueError, match=f"'{variant.name}'.*auto"):
        call("sum", x, variant.name, dtype=torch.float32)


@tables.every_variant_along_dims
def test_sizes_that_a_rung_along_dims_does_not_take(variant, device):
    x = torch.ones(10, 10, device=device)
    for size in (0, -1, 1, 16, 33, 48, 2048, 2**40):
        for dim in (None, 0, 1):
            with pytest.raises(ValueError, match="block_size"):
                call("sum", x, variant.name, dim=dim, block_size=size)
    for blocks in (0, -1, 2**31, -(2**63)):
        with pytest.raises(ValueError, match="num_blocks"):
            call("sum", x, variant.name, dim=1, num_blocks=blocks)


@tables.every_variant_along_dims
def test_a_refusal_says_what_is_taken(variant, device):
    """A rung that cannot take a geometry never becomes another in silence."""
    if device == "cuda":
        tables.needs_chip(variant)
    for shape, dim in (((5, 3000), 1), ((3000, 5), 0), ((5, 3), 1), ((4, 300, 4), 1), ((2, 3, 4, 5), (0, 2))):
        x = torch.ones(shape, device=device)
        try:
            call("sum", x, variant.name, dim=dim)
        except ValueError as refusal:
            sentence = str(refusal).splitlines()[0]
            assert (
                f"'{variant.name}'" in sentence and 30 < len(sentence) < 300 and variant.name not in ("auto", "thread")
            )


def test_shapes_that_do_not_fit(device):
    def ones(*shape):
        return torch.ones(shape, device=device)

    for a, b in (
        (ones(2, 3), ones(4, 5)),
        (ones(3), ones(4)),
        (ones(2, 3), ones(2)),
        (ones(2, 3, 4), ones(3, 4, 5)),
        (ones(), ones(3)),
        (ones(3), ones()),
        (ones(2, 2, 3), ones(3, 3, 2)),
        (ones(2, 0), ones(1, 2)),
    ):
        with pytest.raises(ValueError, match="matmul") as error:
            ops.matmul(a, b)
        for shape in (a.shape, b.shape):
            assert str(list(shape)) in str(error.value)
    for a, b in ((ones(2, 3), ones(2, 4)), (ones(3), ones(4)), (ones(2, 1, 3), ones(3, 2, 2)), (ones(0), ones(2))):
        with pytest.raises(ValueError, match="vector_add") as error:
            ops.vector_add(a, b)
        for shape in (a.shape, b.shape):
            assert str(list(shape)) in str(error.value)


@every_reduction
def test_layouts_that_are_not_dense(op, device):
    dense = torch.eye(3, device=device)
    for x in (dense.to_sparse(), dense.to_sparse_csr()):
        with pytest.raises((NotImplementedError, TypeError)):
            call(op, x)
        with pytest.raises((NotImplementedError, TypeError)):
            ops.matmul(x, dense)
        with pytest.raises((NotImplementedError, TypeError)):
            ops.vector_add(dense, x)


@every_reduction
def test_quantised_tensors(op):
    x = torch.quantize_per_tensor(torch.randn(4), 0.1, 0, torch.qint8)
    with pytest.raises((NotImplementedError, TypeError)):
        call(op, x)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_other_kinds_of_tensors(device):
    nested = torch.nested.nested_tensor([torch.ones(2, device=device), torch.ones(3, device=device)])
    with pytest.raises((NotImplementedError, TypeError, RuntimeError)):
        call("sum", nested)
    with pytest.raises((TypeError, RuntimeError)):
        call("sum", [1.0, 2.0])
    with pytest.raises((TypeError, RuntimeError)):
        call("sum", None)


def test_tensors_on_two_devices():
    x, elsewhere = torch.ones(2, 2), torch.ones(2, 2, device="meta")
    for op in (ops.matmul, ops.vector_add):
        for pair in ((x, elsewhere), (elsewhere, x)):
            with pytest.raises((ValueError, NotImplementedError), match=r"device|meta"):
                op(*pair)


@pytest.mark.cuda
def test_a_cpu_tensor_beside_a_cuda_tensor():
    x = torch.ones(2, 2)
    for op in (ops.matmul, ops.vector_add):
        for pair in ((x, x.cuda()), (x.cuda(), x)):
            with pytest.raises(ValueError, match=r"one device.*(cpu|cuda)"):
                op(*pair)


def test_a_cuda_tensor_in_a_build_without_cuda():
    if torch_reduce.cuda_built() or not torch.cuda.is_available():
        pytest.skip("needs a GPU and a build without CUDA")
    with pytest.raises(NotImplementedError, match="built without CUDA"):
        call("sum", torch.ones(3, device="cuda"))


EXPECTED = (ValueError, TypeError, NotImplementedError, IndexError)


def bad_calls(device, count=100):
    """Calls that must fail, at random."""
    rng = random.Random(0)

    def tensor(dtype=None):
        shape = [rng.randint(0, 5) for _ in range(rng.randint(0, 4))]
        return torch.zeros(shape, dtype=dtype or rng.choice([torch.float32, torch.float64, torch.int32]), device=device)

    variants, classic = (names(v) for v in (tables.REDUCE_VARIANTS, tables.CLASSIC))
    makers = [
        lambda: call(rng.choice(tables.REDUCTIONS), tensor(), "v" + str(rng.randint(7, 10**9))),
        lambda: call("sum", tensor(), rng.choice(variants), block_size=rng.choice([-5, 0, 3, 7, 4096, 2**60])),
        lambda: call("sum", tensor(), rng.choice(variants), num_blocks=rng.choice([-5, 0, 2**31, 2**60])),
        lambda: call("mean", tensor(torch.int64)),
        lambda: call("amax", tensor()[None][:0]),
        lambda: call("amax", tensor(torch.uint16)),
        lambda: call("amin", tensor(torch.complex64)),
        lambda: call("sum", tensor(), rng.choice(classic), dim=0),
        lambda: call("sum", tensor(), dim=rng.choice([4, -5, 9, 2**40])),
        lambda: call("sum", tensor(torch.int32), "serial", dtype=torch.float32),
        lambda: call("sum", tensor(), dtype=rng.choice([torch.float8_e5m2, torch.uint32])),
        lambda: call("mean", tensor(), dtype=torch.int32),
        lambda: call("amax", torch.zeros(3, 0, device=device), dim=1),
        lambda: ops.matmul(torch.zeros(2, rng.randint(3, 9), device=device), torch.zeros(2, 2, device=device)),
        lambda: ops.matmul(tensor(torch.bool), tensor(torch.bool)),
        lambda: ops.matmul(
            torch.zeros(2, 2, device=device), torch.zeros(2, 2, device=device), tile_size=rng.choice([3, 99])
        ),
        lambda: ops.vector_add(torch.zeros(rng.randint(2, 9), device=device), torch.zeros(10, device=device)),
        lambda: ops.vector_add(tensor(torch.float32), tensor(torch.float64)),
        lambda: ops.thread_indices_(torch.zeros(3, 7, dtype=torch.int64, device=device), [rng.randint(-3, 0)], [4]),
        lambda: call("sum", torch.eye(3, device=device).to_sparse()),
    ]
    return [rng.choice(makers) for _ in range(count)]


def test_a_hundred_bad_calls_and_then_a_good_one(device):
    x = torch.randn(100_003, device=device)
    matrix = torch.randn(40, 40, device=device)
    before = [call(op, x, "single_pass") for op in tables.REDUCTIONS], ops.matmul(matrix, matrix)
    for bad in bad_calls(device):
        with pytest.raises(EXPECTED):
            bad()
    if device == "cuda":
        torch.cuda.synchronize()
    after = [call(op, x, "single_pass") for op in tables.REDUCTIONS], ops.matmul(matrix, matrix)
    for a, b in zip((*before[0], before[1]), (*after[0], after[1]), strict=True):
        assert_same_bits(a, b)


@every_reduction
def test_arguments_in_the_place_of_others(op, device):
    reduce, x = getattr(torch_reduce, op), torch.ones(3, 4, device=device)
    for wrong, match in (
        (lambda: reduce(x, "v0"), rf"a rung is named: {op}\(x, variant='v0'\)"),
        (lambda: reduce(x, 0, "v0"), r"got 'v0' for keepdim"),
        (lambda: reduce(x, True), rf"keepdim is named: {op}\(x, keepdim=True\)"),
        (lambda: reduce(x, 1.5), "got 1.5 for dim, which is an int or ints"),
        (lambda: reduce([1.0]), f"{op} takes a Tensor, got a list"),
    ):
        with pytest.raises(TypeError, match=match):
            wrong()


@every_reduction
def test_a_dim_in_the_place_of_a_rung(op, device):
    """As torch's functions have it; the op says what it takes, whoever calls it."""
    reduce, x = getattr(ops, op), torch.ones(3, 4, device=device)
    for given, written in (((1,), "1"), (((0, -1),), r"\(0, -1\)"), (([1], True), "1"), ((None,), "None")):
        with pytest.raises(
            TypeError, match=rf"for variant, .*dims are named: torch.ops.treduce.{op}\(x, dim={written}\)"
        ):
            reduce(x, *given)
    for wrong in (
        lambda t: reduce(t, 1, block_size=64),
        lambda t: reduce(t.to("meta"), 0),
        torch.func.grad(lambda t: reduce(t, 0)),
    ):
        with pytest.raises(TypeError, match="dims are named"):
            wrong(x)
    with pytest.raises(Exception, match="dims are named"):
        torch.compile(lambda t: reduce(t, 1), backend="aot_eager")(x)
    assert_same_bits(reduce(x, dim=1), getattr(torch_reduce, op)(x, 1))


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda x: torch_reduce.var(x, True), r"var: got True for dim.*keepdim is named: var\(x, keepdim=True\)"),
        (lambda x: torch_reduce.std(x, "v0"), "std: got 'v0' for dim, which is an int or ints"),
        (lambda x: torch_reduce.norm(x, 2, True), "norm: got True for dim"),
        (lambda x: torch_reduce.norm(x, (0, 1)), r"norm: ord is a number, got \(0, 1\); dims are the third argument"),
        (lambda x: torch_reduce.norm(x, dtype=torch.float16), "norm: dtype is at least as wide .*torch.float32, got"),
        (lambda x: torch_reduce.norm([1.0]), "norm takes a Tensor, got a list"),
        (lambda x: torch_reduce.softmax(x, True), "softmax: dim is an int, got True"),
        (lambda x: torch_reduce.logsumexp(x, True), "logsumexp: dim is an int, got True"),
        (lambda x: torch_reduce.logsumexp(x, None), "logsumexp: dim is an int or ints, got None"),
        (lambda x: torch_reduce.cross_entropy(x, 3), "cross_entropy: target is a Tensor, got int"),
    ],
    ids=range(10),
)
def test_the_function_that_was_called_is_named(call, says, device):
    with pytest.raises(TypeError, match=says):
        call(torch.ones(3, 4, device=device))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("name", ["var", "std", "norm", "cross_entropy"])
def test_composed_functions_of_tensors_that_are_not_dense(name, device):
    function = getattr(torch_reduce, name)
    for layout in (torch.strided, torch.jagged):
        nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], device=device, layout=layout)
        with pytest.raises(NotImplementedError, match=f"^{name} takes no nested tensors"):
            function(nested, nested) if name == "cross_entropy" else function(nested)
    x = torch.eye(3, device=device).to_sparse()
    with pytest.raises(NotImplementedError, match=f"^{name} takes dense tensors, got one of layout torch.sparse_coo"):
        function(x, x) if name == "cross_entropy" else function(x)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda x: torch_reduce.matmul(x, 3), "matmul: other is a Tensor, got int"),
        (lambda x: torch_reduce.linear(x, None), "linear: weight is a Tensor, got NoneType"),
        (lambda x: torch_reduce.vector_add([1.0], x), "vector_add: input is a Tensor, got list"),
        (lambda x: torch_reduce.scaled_dot_product_attention(x, x, 1), "value is a Tensor, got int"),
        (lambda x: torch_reduce.softmax(x, (0, 1)), r"softmax: dim is an int, got \(0, 1\)"),
        (lambda x: torch_reduce.log_softmax(x, None), "log_softmax: dim is an int, got None"),
        (lambda x: torch_reduce.logsumexp(3, 0), "logsumexp: input is a Tensor, got int"),
        (lambda x: torch_reduce.layer_norm(3, (4,)), "layer_norm: input is a Tensor, got int"),
        (lambda x: torch_reduce.rms_norm([x], (4,)), "rms_norm: input is a Tensor, got list"),
    ],
    ids=range(9),
)
def test_what_is_no_tensor(call, says, device):
    with pytest.raises(TypeError, match=says):
        call(torch.ones(3, 4, device=device))


@pytest.mark.parametrize("op", ["sum", "mean"])
def test_a_dtype_is_not_a_name(op, device):
    with pytest.raises(TypeError, match="got 'float32' for dtype, which is a torch"):
        getattr(torch_reduce, op)(torch.ones(3, device=device), dtype="float32")


def test_messages_are_sentences(device):
    """One paragraph, without C++ in it."""
    for bad in bad_calls(device, 40):
        with pytest.raises(EXPECTED) as error:
            bad()
        first = str(error.value).splitlines()[0]
        assert 20 < len(first) < 400 and "csrc" not in first and "INTERNAL ASSERT" not in first, first
