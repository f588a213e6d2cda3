"""The variant tables as test parameters.

A test of what every rung must do takes its rungs from here, so a new row is tested as it is. Names of rungs stand in
tests of what certain rungs are about; those fail with a sentence where a new rung needs an entry.
"""

import functools

import pytest
import torch
from cases import EVERY_DTYPE, REDUCTIONS

import torch_reduce
from torch_reduce import _C, _check

DTYPE_NAMES = {str(dtype).removeprefix("torch."): dtype for dtype in EVERY_DTYPE}

REDUCE_VARIANTS = tuple(torch_reduce.variants("sum"))
MATMUL_VARIANTS = tuple(torch_reduce.variants("matmul"))
IN_K_ORDER = tuple(v for v in MATMUL_VARIANTS if v.on_cpu)  # on CUDA as on the CPU
ON_CORES = tuple(v for v in MATMUL_VARIANTS if not v.on_cpu)  # tensor cores, and `auto`, which may pick them
ADD_VARIANTS = tuple(torch_reduce.variants("vector_add"))
ROW_VARIANTS = tuple(torch_reduce.variants("softmax"))


def names(variants):
    return [v.name for v in variants]


def row(op, name):
    return next(v for v in torch_reduce.variants(op) if v.name == name)


# The rungs that reduce along dims. Some of them refuse some geometries, in a sentence.
ALONG_DIMS = tuple(v for v in REDUCE_VARIANTS if v.along_dims)
PAIRWISE = tuple(v for v in ALONG_DIMS if v.order == "pairwise")
CLASSIC = tuple(v for v in REDUCE_VARIANTS if not v.along_dims)

# The rungs that take every whole tensor: all but those whose schedules are for certain rows or columns, which have
# tests of their own (test_dims*.py).
WHOLE = tuple(v for v in REDUCE_VARIANTS if v not in PAIRWISE or v.name == "auto")
ORDERED = tuple(v for v in WHOLE if v.deterministic)

every_reduction = pytest.mark.parametrize("op", REDUCTIONS)
every_variant = pytest.mark.parametrize("variant", WHOLE, ids=names(WHOLE))
every_variant_along_dims = pytest.mark.parametrize("variant", ALONG_DIMS, ids=names(ALONG_DIMS))
every_classic_variant = pytest.mark.parametrize("variant", CLASSIC, ids=names(CLASSIC))
every_ordered_variant = pytest.mark.parametrize("variant", ORDERED, ids=names(ORDERED))
every_matmul_variant = pytest.mark.parametrize("variant", MATMUL_VARIANTS, ids=names(MATMUL_VARIANTS))
every_add_variant = pytest.mark.parametrize("variant", ADD_VARIANTS, ids=names(ADD_VARIANTS))


def every_dtype(dtypes):
    return pytest.mark.parametrize("dtype", dtypes, ids=[str(d).removeprefix("torch.") for d in dtypes])


def call(op, x, variant="auto", **sizes):
    """The op itself, below the Python package."""
    return getattr(torch.ops.treduce, op)(x, variant, **sizes)


def attempt(op, x, variant, **arguments):
    """The result of a call, or None where the variant refuses the geometry: in a sentence that names it."""
    try:
        return call(op, x, variant.name, **arguments)
    except ValueError as refusal:
        assert f"'{variant.name}'" in str(refusal), refusal
        return None


def takes(variant, op, dtype):
    """Whether the op of a rung has a meaning for a dtype."""
    rounds = dtype.is_floating_point or dtype.is_complex
    if (op == "mean" and not rounds) or (op in ("amax", "amin") and dtype.is_complex):
        return False
    return str(dtype).removeprefix("torch.") in variant.dtypes


def sizes_of(variant, block_sizes=None, num_blocks=(1, 3, 64)):
    """Keyword arguments to sweep for a variant: its defaults, its block sizes, and a few numbers of blocks."""
    sweep = [{}]
    for size in block_sizes or variant.sizes:
        if size in variant.sizes:
            sweep.append({"block_size": size})
    if variant.takes_num_blocks:
        sweep += [{"num_blocks": blocks} for blocks in num_blocks]
        sweep += [{"block_size": size, "num_blocks": 5} for size in variant.sizes[:: len(variant.sizes) - 1]]
    return sweep


def needs_dtype(variant, dtype):
    if str(dtype).removeprefix("torch.") not in variant.dtypes:
        pytest.skip(f"{variant.name} does not take {dtype}")


@functools.cache
def can_run(capability):
    return torch.cuda.get_device_capability() >= capability


def runs(variant, device, dtype=torch.float32):
    """Whether a variant takes a dtype and runs on this machine's device of that type."""
    if str(dtype).removeprefix("torch.") not in variant.dtypes:
        return False
    return device == "cpu" or variant.runs_on(torch.cuda.get_device_capability())


def has_cpus_bits(variant, a, b):
    """Whether a variant of matmul promises the CPU's bits for these operands; `auto` by what it picks."""
    return not a.is_cuda or not a.is_floating_point() or _check.chosen(variant.name, a, b).on_cpu


def needs_chip(variant):
    """Skips a CUDA test of a variant that does not run on this GPU."""
    if not variant.runs_on(torch.cuda.get_device_capability()):
        pytest.skip(f"{variant.name} needs compute capability {variant.capability[0]}.{variant.capability[1]}")


def plan(variant, dtype, n, **sizes):
    """What runs of a classic rung for this length and dtype, and its passes."""
    return _C.reduce_plan(variant, str(dtype).removeprefix("torch."), n, **sizes)


# m, n and k of 16 bits: a product for each way in which blocks of a cluster lie that is chosen (csrc/matmul/shapes.h).
CLUSTERED_PRODUCTS = (
    (3912, 128, 3048),
    (136, 2024, 648),
    (264, 1064, 648),
    (80, 3128, 664),
    (992, 392, 1040),
    (1168, 72, 808),
    (3680, 136, 648),
    (72, 3624, 648),
    (72, 4040, 696),
    (4032, 72, 712),
    (1832, 136, 648),
    (272, 2920, 648),
    (136, 3720, 680),
    (1304, 520, 648),
    (264, 2200, 680),
    (272, 1992, 680),
    (1856, 296, 648),
    (1048, 392, 648),
    (536, 2112, 664),
    (264, 3360, 680),
    (2712, 520, 648),
    (2080, 392, 680),
    (2848, 272, 664),
    (4536, 200, 656),
    (4368, 136, 640),
    (560, 2568, 648),
    (272, 3720, 680),
    (2600, 584, 648),
    (4304, 200, 648),
    (1552, 808, 664),
    (3904, 296, 680),
    (304, 3480, 648),
    (528, 4584, 664),
    (552, 3552, 664),
    (4320, 400, 648),
    (560, 3424, 648),
    (656, 2840, 648),
    (4504, 392, 680),
    (400, 4376, 656),
    (776, 4264, 640),
    (1088, 2736, 3304),
    (4264, 584, 648),
    (648, 4520, 776),
    (1552, 1944, 648),
    (1904, 1576, 648),
    (3376, 776, 664),
)
# The same on chips of so many multiprocessors, in more steps of k than there are stages.
CLUSTERED_ON_SMALL_CHIPS = (
    (4, 64, 72, 840),
    (4, 64, 136, 840),
    (6, 264, 72, 840),
    (8, 64, 72, 840),
    (4, 72, 136, 840),
    (4, 264, 72, 840),
    (4, 136, 72, 840),
)
# m, n and k: few outputs, of 16 bits, of which an H200 reads B where it lies across k, or A of the transposed product.
# Some have several tiles below each other, and tiles past the edge. (AcrossK in csrc/matmul/few_outputs.cuh.)
FEW_OUTPUTS_ACROSS = (
    (8, 72, 520),
    (40, 64, 776),
    (201, 104, 2048),
    (8, 744, 2048),
    (33, 280, 1736),
    (152, 528, 8072),
    (7, 4096, 1024),
)
# m, n and k: few outputs, which an H200 computes as tfloat32 with an operand in registers, in most layouts; of the last
# ones k has groups, and of the very last a block has several tasks. (csrc/matmul/narrow.cu.)
NARROW_PRODUCTS = (
    (8, 72, 520),
    (40, 64, 776),
    (200, 104, 2048),
    (152, 528, 8072),
    (7, 4096, 1024),
    (77, 316, 1732),
    (640, 96, 1600),
    (300, 304, 5000),
    (16, 1120, 9000),
    (36, 20, 8236),
    (24, 200, 30_000),
    (1536, 24, 19_268),
)
# The same of both operands across k, on chips of so many multiprocessors: a block has several tiles, or groups.
NARROW_ON_SMALL_CHIPS = ((2, 136, 8, 8260), (8, 160, 8, 8260))
# Matrices, m, n and k: products of which an H200 computes the last rows, or columns, in smaller tiles, in some dtype
# and layout; of long k with groups. (Strip in csrc/matmul/decisions.h.)
STRIP_PRODUCTS = (
    (1, 1408, 3328, 1664),
    (1, 1409, 3333, 1664),
    (1, 3072, 1664, 2688),
    (1, 4096, 2432, 2048),
    (1, 6400, 2048, 1664),
    (1, 4040, 7264, 1840),
    (2, 2048, 2560, 2560),
    (4, 1024, 1664, 1664),
    (1, 1024, 5120, 10_240),
    (1, 4096, 2432, 9216),
)
# The same on chips of so many multiprocessors, of 16 bits: rows, and columns.
STRIPS_ON_SMALL_CHIPS = ((8, 1032, 136, 1544), (7, 384, 640, 2048))
