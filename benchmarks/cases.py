"""What the benchmarks measure, and why each case is there. The variants come from the tables of the extension."""

import math
from collections.abc import Iterator
from functools import partial
from random import Random
from typing import NamedTuple


class Ladder(NamedTuple):
    n: int
    block_size: int
    reason: str


class Length(NamedTuple):
    n: int
    reason: str


class Product(NamedTuple):
    m: int
    n: int
    k: int
    reason: str


LADDER = (
    Ladder(
        1 << 20,
        1024,
        "the published comparison of global memory, shared memory and two loads; fits the L2, so it is rotated",
    ),
    Ladder(25_600_000, 256, "the published ladder v0 to v6 on a T4; 102 MB, larger than any L2"),
)

# Each is the last of a step that people compare: in order of the ladder.
SIZES_VARIANTS = (
    "interleaved_modulo",
    "sequential",
    "unrolled",
    "two_pass_unrolled",
    "vectorized",
    "single_pass",
    "cluster",
    "auto",
)
SIZES = (
    Length(1 << 10, "one block: the cost of a launch"),
    Length(1 << 12, "one block with a loop"),
    Length(1 << 14, "one block no longer pays"),
    Length(1 << 16, "a few blocks: how they meet at the end"),
    Length(1 << 18, "a block for each multiprocessor"),
    Length(1 << 20, "the literature's small case"),
    Length(1 << 22, "about the largest that latency governs"),
    Length(1 << 24, "64 MB: about the L2 of a large GPU"),
    Length(1 << 26, "well past the L2"),
    Length(1 << 28, "bandwidth alone"),
    Length(1 << 30, "4 GB: the ceiling"),
)

BLOCKS_LENGTH = Length(25_600_000, "the length of the published ladder")
# For two_pass_unrolled with 256 threads; the last is a block for every 256 elements, where the loop runs once.
NUM_BLOCKS_VARIANT, NUM_BLOCKS_BLOCK = "two_pass_unrolled", 256
NUM_BLOCKS = (32, 132, 264, 528, 1024, 2048, 4096, 16_384, 25_600_000 // 256)

DTYPES = ("float32", "float64", "float16", "bfloat16", "int8", "uint8", "int16", "int32", "int64", "bool")
DTYPES_LENGTHS = (
    Length(1 << 20, "latency"),
    Length(1 << 24, "between"),
    Length(1 << 28, "bandwidth, or, for narrow dtypes, instructions"),
)

MATMUL = (
    Product(256, 256, 256, "a few tiles"),
    Product(512, 512, 512, "from here tiled must beat naive"),
    Product(1024, 1024, 1024, "the size that tutorials show"),
    Product(2048, 2048, 2048, "a full chip"),
    Product(4096, 4096, 4096, "a full chip, for long"),
    Product(1000, 1000, 1000, "not a multiple of a tile"),
    Product(4095, 4097, 4099, "odd in every dimension: unaligned rows, edges everywhere"),
)

VECTOR_ADD = (
    Length(1 << 20, "latency"),
    Length(1 << 24, "192 MB of traffic: past the L2"),
    Length(1 << 28, "bandwidth"),
)

CALLS_LENGTH = Length(1 << 10, "so small that only the call counts")


class Call(NamedTuple):
    """Arguments as a user writes them, behind the tensor."""

    op: str
    arguments: str
    reason: str


CALLS = (
    Call("sum", "", "the whole tensor"),
    Call("sum", "0", "a dim"),
    Call("sum", "-1, keepdim=True", "a dim that stays"),
    Call("sum", "(0, 1)", "dims in a tuple"),
    Call("mean", "0", "another op"),
    Call("amax", "0", "another op, with another gradient"),
)
CALLS_SHAPE = (32, 32)

# Milliseconds for 25.6 million floats on a T4, as published with the names v0 to v6.
PUBLISHED_T4_MS = {"v0": 3.835, "v1": 2.825, "v2": 2.300, "v3": 1.147, "v4": 0.694, "v5": 0.656, "v6": 1.815}


class Point(NamedTuple):
    """A reduction of the grid, timed as `auto` beside its peers."""

    kind: str
    shape: tuple[int, ...]
    dim: tuple[int, ...] | None
    reason: str
    dtype: str = "float32"
    op: str = "sum"
    layout: str = "contiguous"
    """In memory; `grid.LAYOUTS` says what each is."""
    compiled: bool = False
    """Also timed beside torch.compile, which takes seconds to compile each."""
    predicted: float | None = None
    """Microseconds on an H200 that bytes, launches and waves had promised before the kernels were written."""


KINDS = {
    "whole": "whole tensors, by length",
    "bytes": "whole tensors: 64 MB, 256 MB and 1 GB of every dtype",
    "rows": "the last dim",
    "columns": "the first dim",
    "middle": "a middle dim",
    "several": "several dims at once",
    "models": "reductions of common models",
    "odd": "odd sizes",
    "layouts": "views: unaligned, sliced, transposed, permuted, channels_last",
    "ops": "mean, amax and amin",
    "untuned": "shapes that nothing was tuned for",
}
INNER, OUTER = (-1,), (0,)

# torch takes no float8: those points have no ratio.
EVERY_DTYPE = (
    "float32", "float64", "float16", "bfloat16", "int8", "uint8", "int16", "int32", "int64", "bool", "complex64",
    "complex128", "float8_e4m3fn", "float8_e5m2",
)  # fmt: skip
WIDTHS = dict(zip(EVERY_DTYPE, (4, 8, 2, 2, 1, 1, 2, 4, 8, 1, 8, 16, 1, 1), strict=True))

_SHORT_REASONS = {
    1 << 10: "one block: what a launch and one trip to memory take",
    1 << 16: "between: a few blocks and how they meet",
    1 << 20: "the whole chip, for a moment",
}
_WHOLE = (
    *(
        Point("whole", (1 << k,), None, "every power of two", compiled=k in (10, 12, 14, 16, 18, 20, 22, 24, 28, 30))
        for k in range(32)
    ),
    *(
        Point("whole", (n,), None, reason, dtype, compiled=dtype in ("bfloat16", "int32"))
        for dtype in EVERY_DTYPE[1:]
        for n, reason in _SHORT_REASONS.items()
    ),
    Point("whole", (1 << 32,), None, "more elements than 32 bits count", "int8"),
)
_BYTES = tuple(
    Point("bytes", (megabytes * 2**20 // WIDTHS[dtype],), None, reason, dtype, compiled=compiled and dtype in some)
    for megabytes, reason, compiled, some in (
        (64, "about the L2 of a large GPU", True, ("bfloat16", "int8")),
        (256, "well past the L2", True, ("bfloat16", "float64", "int8", "complex64")),
        (1024, "bandwidth alone", False, ()),
    )
    for dtype in EVERY_DTYPE
    if dtype != "float32"  # among the whole ones
)
_ROWS = (
    Point("rows", (16, 1 << 22), INNER, "few long rows: several blocks must share each", compiled=True),
    Point("rows", (64, 1 << 20), INNER, "fewer rows than multiprocessors"),
    Point("rows", (256, 1 << 18), INNER, "twice as many rows as multiprocessors: the second wave is not full"),
    Point("rows", (1024, 1 << 16), INNER, "long rows, a block for each"),
    Point("rows", (4096, 16384), INNER, "a block a row", compiled=True),
    Point("rows", (16384, 4096), INNER, "rows of a hidden layer", compiled=True),
    Point("rows", (65536, 1024), INNER, "rows of one chunk", compiled=True),
    Point("rows", (1 << 18, 256), INNER, "rows shorter than a block"),
    Point("rows", (1 << 20, 64), INNER, "rows shorter than a warp's load", compiled=True),
    Point("rows", (1 << 21, 32), INNER, "one element a lane"),
    Point("rows", (1 << 22, 16), INNER, "four 16-byte loads a row", compiled=True),
    Point("rows", (1 << 23, 8), INNER, "two 16-byte loads a row"),
    Point("rows", (1 << 24, 4), INNER, "one 16-byte load a row; a fifth of the traffic is output", compiled=True),
    Point("rows", (1 << 25, 2), INNER, "one addition a row"),
    Point("rows", (1, 1 << 20), INNER, "a batch of one: as the whole tensor"),
    Point("rows", (8, 1024), INNER, "small: latency"),
    Point("rows", (128, 128), INNER, "small: latency", compiled=True),
    Point("rows", (32, 4096), INNER, "small: a batch of hidden states", compiled=True),
    Point("rows", (1024, 1024), INNER, "4 MB: between latency and bandwidth", compiled=True),
    Point("rows", (8, 1 << 17), INNER, "4 MB in few rows"),
    Point("rows", (65536, 16), INNER, "4 MB in short rows"),
    Point("rows", (132, 16384), INNER, "a row for each multiprocessor of an H200"),
    Point("rows", (133, 16384), INNER, "and one row more"),
    Point("rows", (1 << 24, 4), INNER, "rows of 8 bytes", "bfloat16", compiled=True),
    Point("rows", (1 << 20, 64), INNER, "rows of a head", "bfloat16"),
    Point("rows", (65536, 1024), INNER, "rows of one chunk", "bfloat16", compiled=True),
    Point("rows", (4096, 16384), INNER, "a block a row", "bfloat16"),
    Point("rows", (16, 1 << 22), INNER, "few long rows", "bfloat16", compiled=True),
    Point("rows", (65536, 1024), INNER, "rows of one chunk", "float16"),
    Point("rows", (32768, 1024), INNER, "rows of one chunk", "float64"),
    Point("rows", (1 << 22, 8), INNER, "short rows", "float64"),
    Point("rows", (65536, 1024), INNER, "torch widens int8 to int64 in memory first", "int8", compiled=True),
    Point("rows", (1 << 24, 4), INNER, "four bytes a row, eight of output", "int8"),
    Point("rows", (65536, 1024), INNER, "torch widens int32 too", "int32"),
    Point("rows", (32768, 1024), INNER, "torch's own integer", "int64"),
    Point("rows", (65536, 1024), INNER, "counting", "bool"),
    Point("rows", (16384, 1024), INNER, "two sums side by side", "complex64"),
    Point("rows", (65536, 1024), INNER, "torch refuses", "float8_e4m3fn"),
)
_COLUMNS = (
    Point("columns", (16, 1 << 22), OUTER, "16 rows to add, each of 16 MB", compiled=True),
    Point("columns", (64, 1 << 20), OUTER, "short columns, plenty of them"),
    Point("columns", (256, 1 << 18), OUTER, "a block for a few columns"),
    Point("columns", (1024, 1 << 16), OUTER, "columns of one chunk"),
    Point("columns", (4096, 16384), OUTER, "columns of four chunks"),
    Point("columns", (16384, 4096), OUTER, "a weight's gradient", compiled=True),
    Point("columns", (65536, 1024), OUTER, "columns must be shared between blocks", compiled=True),
    Point("columns", (1 << 18, 256), OUTER, "few columns"),
    Point("columns", (1 << 20, 64), OUTER, "few long columns", compiled=True),
    Point("columns", (1 << 21, 32), OUTER, "a row is 128 bytes"),
    Point("columns", (1 << 22, 16), OUTER, "narrower than a warp: read as contiguous memory", compiled=True),
    Point("columns", (1 << 23, 8), OUTER, "narrower still"),
    Point("columns", (1 << 24, 4), OUTER, "a 16-byte load is a row", compiled=True),
    Point("columns", (1 << 25, 2), OUTER, "two columns"),
    Point("columns", (1 << 26, 1), OUTER, "one column: the whole tensor in disguise"),
    Point("columns", (1024, 8), OUTER, "small: latency"),
    Point("columns", (128, 128), OUTER, "small: latency", compiled=True),
    Point("columns", (4096, 32), OUTER, "small: few columns"),
    Point("columns", (1024, 1024), OUTER, "4 MB: between latency and bandwidth", compiled=True),
    Point("columns", (16, 65536), OUTER, "4 MB in short columns"),
    Point("columns", (65536, 16), OUTER, "4 MB in narrow rows"),
    Point("columns", (1 << 20, 64), OUTER, "few long columns", "bfloat16", compiled=True),
    Point("columns", (65536, 1024), OUTER, "a bias gradient", "bfloat16", compiled=True),
    Point("columns", (1 << 24, 4), OUTER, "a row is 8 bytes", "bfloat16"),
    Point("columns", (16, 1 << 22), OUTER, "short columns", "bfloat16"),
    Point("columns", (16384, 4096), OUTER, "a weight's gradient", "float16"),
    Point("columns", (65536, 512), OUTER, "columns of doubles", "float64"),
    Point("columns", (65536, 1024), OUTER, "columns of bytes", "int8"),
    Point("columns", (65536, 1024), OUTER, "columns of integers", "int32"),
    Point("columns", (65536, 512), OUTER, "torch's own integer", "int64"),
    Point("columns", (65536, 1024), OUTER, "counting by column", "bool"),
    Point("columns", (16384, 1024), OUTER, "complex columns", "complex64"),
    Point("columns", (65536, 1024), OUTER, "torch refuses", "float8_e5m2"),
)
_MIDDLE = (
    Point("middle", (64, 1024, 1024), (1,), "as many outer as inner", compiled=True),
    Point("middle", (1024, 64, 1024), (1,), "short columns in many blocks"),
    Point("middle", (65536, 16, 64), (1,), "very short columns of narrow rows"),
    Point("middle", (16, 65536, 64), (1,), "long columns of narrow rows"),
    Point("middle", (4, 1 << 20, 16), (1,), "long columns of rows narrower than a warp"),
    Point("middle", (256, 2048, 3), (1,), "three columns in each"),
    Point("middle", (8, 2048, 4096), (1,), "pooling over a sequence", "bfloat16", compiled=True),
    Point("middle", (512, 512, 64), (1,), "attention values, small", "bfloat16"),
    Point("middle", (32, 3, 224 * 224), (1,), "grey from colour: three rows to add"),
    Point("middle", (64, 256, 1024), (1,), "integers", "int32"),
    Point("middle", (2, 16, 8), (1,), "a handful: latency"),
)
_SEVERAL = (
    Point("several", (32, 64, 112, 112), (0, 2, 3), "batch norm, early layer", compiled=True),
    Point("several", (32, 64, 112, 112), (0, 2, 3), "batch norm, early layer", "bfloat16", compiled=True),
    Point("several", (32, 64, 112, 112), (0, 2, 3), "batch norm, channels last", "float32", "sum", "channels_last"),
    Point(
        "several", (32, 64, 112, 112), (0, 2, 3), "batch norm, channels last", "bfloat16", "sum", "channels_last", True
    ),
    Point("several", (256, 256, 14, 14), (0, 2, 3), "batch norm, late layer", compiled=True),
    Point("several", (128, 2048, 7, 7), (0, 2, 3), "batch norm, last layer: 49 elements at a time"),
    Point("several", (16, 3, 224, 224), (0, 2, 3), "mean colour: three outputs", compiled=True),
    Point("several", (128, 197, 768), (0, 1), "layer norm's parameter gradients, ViT", compiled=True),
    Point("several", (128, 197, 768), (0, 1), "layer norm's parameter gradients, ViT", "bfloat16", compiled=True),
    Point("several", (8, 1024, 4096), (0, 1), "layer norm's parameter gradients, large", "bfloat16"),
    Point("several", (32, 32, 8, 3136), (2, 3), "group norm: contiguous groups"),
    Point("several", (128, 2048, 7, 7), (2, 3), "global average pooling", op="mean", compiled=True),
    Point("several", (128, 2048, 7, 7), (2, 3), "global average pooling", "bfloat16", "mean"),
    Point("several", (128, 2048, 7, 7), (2, 3), "global average pooling, channels last", "float32", "mean",
          "channels_last"),
    Point("several", (64, 512, 512), (0, 2), "an outer and an inner dim", compiled=True),
    Point("several", (32, 64, 64, 128), (1, 3), "every second dim"),
    Point("several", (32, 64, 64, 128), (0, 2), "the others"),
    Point("several", (8, 64, 16, 56, 56), (0, 2, 3, 4), "batch norm of video"),
    Point("several", (64, 1000, 1000), (1, 2), "contiguous, of odd length"),
    Point("several", (2, 3, 4, 5), (0, 2), "a handful: latency"),
)  # fmt: skip
_MODELS = (
    Point("models", (8192, 4096), OUTER, "bias gradient", "bfloat16", compiled=True),
    Point("models", (4096, 11008), OUTER, "bias gradient of a feed-forward layer", "bfloat16"),
    Point("models", (16384, 768), OUTER, "bias gradient", compiled=True),
    Point("models", (256, 1000), OUTER, "bias gradient of a classifier", compiled=True),
    Point("models", (512,), None, "loss of a batch", op="mean", compiled=True),
    Point("models", (32768,), None, "loss of a batch of tokens", op="mean", compiled=True),
    Point("models", (8192,), None, "loss of a batch of tokens", "bfloat16", "mean"),
    Point("models", (16, 2048), INNER, "loss by sequence", op="mean"),
    Point("models", (16, 3, 512, 512), None, "loss of images", op="mean", compiled=True),
    Point("models", (16, 16, 1024, 1024), INNER, "attention scores: the softmax's sum", compiled=True),
    Point("models", (16, 16, 1024, 1024), INNER, "attention scores: the softmax's maximum", op="amax", compiled=True),
    Point("models", (16, 16, 1024, 1024), INNER, "attention scores", "bfloat16", "sum"),
    Point("models", (16, 16, 1024, 1024), INNER, "attention scores", "bfloat16", "amax", compiled=True),
    Point("models", (4096, 50257), INNER, "softmax over a vocabulary", compiled=True),
    Point("models", (4096, 50257), INNER, "softmax over a vocabulary", op="amax"),
    Point("models", (1024, 128256), INNER, "softmax over a larger one", "bfloat16", "amax"),
    Point("models", (65536, 64), OUTER, "tokens an expert", "int32", compiled=True),
    Point("models", (65536, 64), OUTER, "tokens an expert", "bool", compiled=True),
    Point("models", (65536, 8), INNER, "gates of the chosen experts"),
    Point("models", (16384, 64), OUTER, "load of the experts", op="mean"),
    Point("models", (50257, 768), OUTER, "embedding gradient", compiled=True),
    Point("models", (50257, 768), INNER, "norms of the embeddings", compiled=True),
    Point("models", (50257, 768), OUTER, "embedding gradient", "bfloat16"),
    Point("models", (8192, 4096), INNER, "RMS norm: the mean square", op="mean", compiled=True),
    Point("models", (8192, 4096), INNER, "RMS norm", "bfloat16", "mean"),
    Point("models", (64, 4096), INNER, "lengths from a mask", "bool", compiled=True),
    Point("models", (124_439_808,), None, "norm of a gradient: the parameters of GPT-2"),
    Point("models", (4096, 4096), INNER, "scales of int8 weights: maximum by row", "bfloat16", "amax", compiled=True),
    Point("models", (1, 4096), INNER, "one token: latency", "bfloat16", "mean"),
    Point("models", (32, 1024), INNER, "a batch of one token each: latency", "bfloat16", "mean", compiled=True),
)
_ODD = (
    Point("odd", (25_600_000,), None, "the published length", compiled=True),
    Point("odd", (1_000_003,), None, "prime", compiled=True),
    Point("odd", (50257,), None, "a vocabulary"),
    Point("odd", (4097,), None, "one past a power of two"),
    Point("odd", (999_999_937,), None, "a large prime", "bfloat16"),
    Point("odd", (4096, 4097), INNER, "every row but some unaligned", compiled=True),
    Point("odd", (4097, 4096), OUTER, "a chunk with one row"),
    Point("odd", (4097, 4097), OUTER, "unaligned rows as columns", compiled=True),
    Point("odd", (4096, 4097), INNER, "unaligned half words", "bfloat16", compiled=True),
    Point("odd", (4096, 4097), INNER, "unaligned bytes", "int8"),
    Point("odd", ((1 << 24) + 1, 3), OUTER, "three columns: 12-byte rows", compiled=True),
    Point("odd", (3, (1 << 22) + 1), INNER, "three long rows, unaligned"),
    Point("odd", (3, (1 << 22) + 1), OUTER, "three rows to add, unaligned"),
    Point("odd", (10_000_000, 3), INNER, "rows of three", compiled=True),
    Point("odd", (10_000_000, 3), INNER, "rows of three", "bfloat16"),
    Point("odd", (9_000_000, 5), INNER, "rows of five"),
    Point("odd", (1 << 22, 7), INNER, "rows of seven", compiled=True),
    Point("odd", (1 << 22, 7), INNER, "rows of seven", "float16"),
    Point("odd", (3_000_000, 12), INNER, "rows of three 16-byte loads"),
    Point("odd", (1_000_000, 33), INNER, "rows of a warp and one"),
    Point("odd", (900_000, 49), INNER, "rows of 7 x 7", compiled=True),
    Point("odd", (300_000, 100), INNER, "rows of a hundred"),
    Point("odd", (100_000, 300), INNER, "rows of three hundred"),
    Point("odd", (7, 1_000_003), INNER, "seven long rows", compiled=True),
    Point("odd", (7, 1_000_003), OUTER, "seven rows to add"),
    Point("odd", (33, 1_000_000), OUTER, "33 rows to add"),
    Point("odd", (100_003, 49), OUTER, "49 columns", compiled=True),
    Point("odd", (100_000, 200), OUTER, "200 columns"),
    Point("odd", (1_000_003, 7), OUTER, "seven columns"),
    Point("odd", (12_345, 77, 13), (1,), "nothing divides anything", compiled=True),
    Point("odd", (12_345, 13, 77), (1,), "13 rows to add, in many places"),
    Point("odd", (77, 12_345, 13), (0, 2), "an outer and a narrow inner dim"),
)
_LAYOUTS = (
    Point("layouts", (1 << 26,), None, "one element past a boundary", layout="unaligned", compiled=True),
    Point("layouts", (1 << 26,), None, "one element past a boundary", "bfloat16", layout="unaligned"),
    Point("layouts", (1 << 16,), None, "one element past a boundary, short", layout="unaligned"),
    Point("layouts", (65536, 1024), INNER, "every row unaligned alike", layout="unaligned", compiled=True),
    Point("layouts", (65536, 1024), INNER, "every row unaligned alike", "bfloat16", layout="unaligned"),
    Point("layouts", (65536, 1024), OUTER, "columns, unaligned", layout="unaligned"),
    Point("layouts", (65536, 1000), INNER, "1000 of 1024 columns", layout="sliced", compiled=True),
    Point("layouts", (65536, 1000), OUTER, "1000 of 1024 columns", layout="sliced", compiled=True),
    Point("layouts", (65536, 1000), None, "1000 of 1024 columns", layout="sliced"),
    Point("layouts", (32768, 1024), INNER, "every second element", layout="every_second"),
    Point("layouts", (32768, 1024), OUTER, "every second column", layout="every_second"),
    Point("layouts", (4096, 16384), INNER, "rows that are columns in memory", layout="transposed", compiled=True),
    Point("layouts", (4096, 16384), OUTER, "columns that are rows in memory", layout="transposed", compiled=True),
    Point("layouts", (8192, 8192), None, "dense, in another order", layout="transposed", compiled=True),
    Point("layouts", (8192, 8192), None, "dense, in another order", "bfloat16", layout="transposed"),
    Point("layouts", (32, 64, 112, 112), (1,), "over the channels", layout="channels_last", compiled=True),
    Point("layouts", (32, 64, 112, 112), (2, 3), "over the pixels", layout="channels_last"),
    Point("layouts", (32, 64, 112, 112), None, "all of an image batch", layout="channels_last", compiled=True),
    Point("layouts", (32, 3, 224, 224), (1,), "grey from colour", layout="channels_last"),
    Point("layouts", (16, 16, 1024, 128), INNER, "heads split off by a view", "bfloat16", layout="heads"),
    Point("layouts", (16, 16, 1024, 128), (2,), "over the sequence, of a view", "bfloat16", layout="heads",
          compiled=True),
    Point("layouts", (16, 16, 1024, 128), (0, 2), "over batch and sequence, of a view", layout="heads"),
)  # fmt: skip
_OPS = (
    *(
        Point("ops", (n,), None, reason, op=op, compiled=n == 1 << 20 and op != "amin")
        for op in ("mean", "amax", "amin")
        for n, reason in ((1 << 12, "one block"), (1 << 20, "the whole chip"), (1 << 28, "bandwidth"))
    ),
    *(
        Point("ops", shape, dim, reason, op=op, compiled=op == "amax")
        for op in ("mean", "amax", "amin")
        for shape, dim, reason in (
            ((65536, 1024), INNER, "rows"),
            ((65536, 1024), OUTER, "columns"),
            ((1 << 22, 16), INNER, "short rows"),
        )
        if (op, dim) != ("amin", OUTER)
    ),
    Point("ops", (32, 64, 112, 112), (0, 2, 3), "batch norm's mean", op="mean", compiled=True),
    Point("ops", (1 << 26,), None, "the largest weight", "bfloat16", "amax"),
    Point("ops", (65536, 1024), INNER, "rows", "bfloat16", "mean"),
    Point("ops", (65536, 1024), OUTER, "columns", "bfloat16", "amax", compiled=True),
    Point("ops", (65536, 1024), INNER, "rows", "float16", "amin"),
    Point("ops", (65536, 512), OUTER, "columns of doubles", "float64", "amax"),
    Point("ops", (1 << 26,), None, "bytes", "int8", "amax"),
    Point("ops", (65536, 1024), INNER, "rows of bytes", "int8", "amax", compiled=True),
    Point("ops", (65536, 1024), INNER, "rows of integers", "int32", "amin"),
    Point("ops", (65536, 1024), OUTER, "columns of bytes", "uint8", "amin"),
    Point("ops", (1 << 20, 64), INNER, "any, of short rows", "bool", "amax"),
)
GRID: tuple[Point, ...] = (
    *_WHOLE, *_BYTES, *_ROWS, *_COLUMNS, *_MIDDLE, *_SEVERAL, *_MODELS, *_ODD, *_LAYOUTS, *_OPS
)  # fmt: skip

# Shapes that no schedule was tuned for, mostly multiples of nothing. Each is timed beside every peer in one run.
UNTUNED: tuple[Point, ...] = (
    Point("untuned", (100,), None, "less than a stripe", predicted=1.35),
    Point("untuned", (3000,), None, "three chunks, the last of them ragged", predicted=1.55),
    Point("untuned", (12_345,), None, "thirteen chunks: one block or several", predicted=1.9),
    Point("untuned", (99_991,), None, "how blocks meet, over a prime", predicted=2.4),
    Point("untuned", (300_000,), None, "two or three chunks an SM", predicted=2.7),
    Point("untuned", (777_777,), None, "six", predicted=3.6),
    Point("untuned", (2_500_000,), None, "10 MB: latency still counts", predicted=5.5),
    Point("untuned", (20_000_000,), None, "80 MB: past the L2", predicted=21.7),
    Point("untuned", (3_000_000,), None, "6 MB", "bfloat16", predicted=4.6),
    Point("untuned", (3_000_000, 12), INNER, "rows of 24 bytes, which vectors do not fit", "bfloat16", predicted=20),
    Point("untuned", (9_000_000, 5), INNER, "rows of five", predicted=51),
    Point("untuned", (128, 128, 128, 9), (3,), "rows of nine", predicted=22),
    Point("untuned", (900_000, 48), INNER, "rows of twelve vectors", predicted=42),
    Point("untuned", (100_000, 200), INNER, "rows of 50 vectors", predicted=20.5),
    Point("untuned", (30_000, 768), INNER, "three quarters of a chunk", predicted=22.8),
    Point("untuned", (30_000, 768), INNER, "three quarters of a chunk", "bfloat16", predicted=13.5),
    Point("untuned", (900_000, 48), OUTER, "48 columns", predicted=44),
    Point("untuned", (100_000, 200), OUTER, "columns that fill no power of two of threads", predicted=23),
    Point("untuned", (100_000, 200), OUTER, "columns that fill no power of two of threads", "bfloat16", predicted=14.5),
    Point("untuned", (5000, 5000), OUTER, "five chunks: no power of two of them", predicted=26),
    Point("untuned", (96, 700, 900), (1,), "part of a chunk of rows, in many places", predicted=58.5),
    Point("untuned", (20, 30, 40, 500), (0, 2), "two outer dims of rows", predicted=15),
    Point("untuned", (256, 50, 1024), (0, 1), "dims that join", predicted=15),
)

# Sums of a few microseconds, of which a launch is a large part.
OVERLAP: tuple[Point, ...] = (
    Point("overlap", (1 << 8,), None, "1 KB: a launch"),
    Point("overlap", (1 << 14,), None, "64 KB: a few blocks"),
    Point("overlap", (1 << 18,), None, "1 MB: blocks that meet"),
    Point("overlap", (1 << 20,), None, "4 MB: the whole chip, for a moment"),
    Point("overlap", (1 << 22,), None, "16 MB: several blocks an SM"),
    Point("overlap", (1024, 1024), INNER, "4 MB in rows"),
    Point("overlap", (4096, 1024), INNER, "16 MB in rows"),
    Point("overlap", (1024, 1024), OUTER, "4 MB in columns"),
    Point("overlap", (4096, 1024), OUTER, "16 MB in columns"),
)


class Geometry(NamedTuple):
    shape: tuple[int, ...]
    dim: tuple[int, ...] | None
    reason: str


# Where the rungs that reduce along dims are compared with each other.
RUNGS = (
    Geometry((1 << 12,), None, "one block's work"),
    Geometry((1 << 20,), None, "the whole chip, for a moment"),
    Geometry((1 << 26,), None, "bandwidth"),
    Geometry((16, 1 << 22), INNER, "few long rows"),
    Geometry((4096, 16384), INNER, "a block a row"),
    Geometry((65536, 1024), INNER, "a warp a row"),
    Geometry((1 << 22, 16), INNER, "a few lanes a row"),
    Geometry((900_000, 49), INNER, "odd short rows"),
    Geometry((16, 1 << 22), OUTER, "short columns"),
    Geometry((65536, 1024), OUTER, "long columns"),
    Geometry((1 << 22, 16), OUTER, "narrow rows as columns"),
)
# Rungs with one thread an output are left out where an output is longer: it would take seconds.
RUNGS_THREAD_LENGTH = 1 << 17

# A length for the tables of errors; the second on a GPU alone.
ACCURACY_LENGTHS = (Length(1 << 20, "math.fsum can follow"), Length(1 << 28, "where errors have had room to grow"))

# What float32 may mean to a caller, and the other dtypes; `products.precision` tells torch and us.
MATMUL_KINDS = {
    "float32": "float32 at full precision",
    "tf32": "float32 read as tfloat32",
    "float16": "float16",
    "bfloat16": "bfloat16",
    "float64": "float64",
}
MATMUL_LADDER_KINDS = ("float32", "tf32", "bfloat16", "float64")
MATMUL_LADDER = (
    Length(256, "four tiles of 128: latency"),
    Length(512, "16 tiles: an eighth of the chip"),
    Length(1024, "64 tiles: half of the chip, unless tiles shrink"),
    Length(2048, "256 tiles: two rounds, the second not full"),
    Length(4096, "a full chip, for long; the ladder's headline"),
    Length(8192, "operands larger than the L2: the order of tiles counts"),
)
# The plain rungs would take seconds there, and float64 shows nothing new.
MATMUL_LADDER_FLOAT64 = 4096
# A rung is left out where its time at the size before says that a call would take longer.
MATMUL_LADDER_MS = 30.0


class MatmulPoint(NamedTuple):
    """A product of the matmul grid, timed as `auto` beside torch."""

    kind: str
    m: int
    n: int
    k: int
    reason: str
    layout: str = "NN"
    """In memory; `products.LAYOUTS` says what each is."""
    batch: tuple[int, ...] = ()
    dtypes: tuple[str, ...] = tuple(MATMUL_KINDS)


MATMUL_GROUPS = {
    "squares": "squares",
    "tokens": "transformer layers, m = 128 to 8192",
    "few rows": "transformer layers, m = 1 to 64",
    "small": "small",
    "odd": "odd and misaligned",
    "layouts": "transposed operands",
    "batched": "batches",
    "search": "some vectors by very many",
    "long": "few outputs, long k",
    "untuned": "shapes that nothing was tuned for",
    "drawn": "drawn at random",
    "hundreds": "hundreds of rows and columns, drawn at random",
    "thousands": "up to thousands of rows and columns, drawn at random",
    "integers": "integers",
}
_WEIGHTS = (
    (4096, 4096, "attention's projections"),
    (11008, 4096, "a feed-forward layer of 7 billion parameters' model"),
    (14336, 4096, "a feed-forward layer of 8 billion parameters' model"),
    (8192, 28672, "back from the feed-forward layer of 70 billion parameters' model: long k"),
    (50257, 768, "the head over an odd vocabulary: short k, rows of C that begin anywhere"),
)
_ROWS_OF_X = (1, 16, 64, 128, 512, 2048, 8192)
_DIRECTIONS = ("NN", "NT", "TN", "TT")


def _size(random: Random, least: int, most: int) -> int:
    return round(math.exp(random.uniform(math.log(least), math.log(most))))


def _drawn(count: int, seed: int) -> Iterator[MatmulPoint]:
    """Products of up to a gigabyte of float32, two thirds of them batches of small matrices: sizes that no round number
    suits, in any layout, and half of them with a k that models have."""
    random = Random(seed)
    size = partial(_size, random)
    while count > 0:
        batch = (size(4, 2000),) if random.random() < 2 / 3 else ()
        m, n, k = (
            (size(16, 400), size(8, 400), size(16, 400)) if batch else (size(8, 20_000), size(8, 3000), size(16, 3000))
        )
        if random.random() < 0.5:
            k = random.choice((64, 80, 128, 256))
        layout = random.choice(_DIRECTIONS)
        if math.prod(batch) * (m * k + k * n + m * n) <= 1 << 28:
            count -= 1
            yield MatmulPoint("drawn", m, n, k, "a shape that nobody chose", layout, batch)


def _sizes(
    kind: str, reason: str, count: int, seed: int, *ranges: tuple[int, int], rounded: float
) -> Iterator[MatmulPoint]:
    """Single products whose m, n and k are drawn from `ranges`; of the share `rounded` they are multiples of 8."""
    random = Random(seed)
    for _ in range(count):
        m, n, k = (_size(random, *ends) for ends in ranges)
        if random.random() < rounded:
            m, n, k = m // 8 * 8, n // 8 * 8, k // 8 * 8
        yield MatmulPoint(kind, m, n, k, reason, random.choice(_DIRECTIONS))


MATMUL_GRID = (
    *(
        MatmulPoint("squares", n, n, n, reason)
        for n, reason in (
            (1024, "half of the chip"), (2048, "two rounds of tiles"), (4096, "a full chip"),
            (8192, "past the L2, and so warm that clocks fall"),
        )
    ),
    *(
        MatmulPoint(
            "few rows" if m <= 64 else "tokens", m, n, k, reason, "NT",
            # Torch alone would take 75 ms a call there, in float32 as in float64.
            dtypes=("tf32", "float16", "bfloat16") if (m, k) == (8192, 28672) else tuple(MATMUL_KINDS),
        )
        for n, k, reason in _WEIGHTS
        for m in _ROWS_OF_X
    ),
    *(
        MatmulPoint("small", m, n, k, reason, layout, batch)
        for m, n, k, layout, batch, reason in (
            (128, 128, 128, "NN", (), "a launch is most of it"),
            (256, 256, 256, "NN", (), "the smallest square of tutorials"),
            (512, 512, 512, "NN", (), "an eighth of the chip"),
            (768, 768, 768, "NN", (), "tiles for a quarter of the chip"),
            (1, 1024, 1024, "NT", (), "a row, all of it in the L2"),
            (16, 1024, 1024, "NT", (), "a few rows, all in the L2"),
            (128, 768, 768, "NT", (), "a small transformer's layer"),
            (300, 200, 400, "TN", (), "no round number of tiles"),
            (128, 128, 128, "NN", (16,), "a small batch"),
        )
    ),
    MatmulPoint("odd", 4095, 4097, 4099, "odd in every dimension: unaligned rows, edges everywhere"),
    MatmulPoint("odd", 4096, 4096, 4096, "round, but every row begins at an odd element", "sliced"),
    *(
        MatmulPoint("layouts", 4096, 4096, 4096, f"{layout}: which operand is transposed", layout)
        for layout in _DIRECTIONS
    ),
    MatmulPoint("batched", 128, 128, 64, "many small products", batch=(512,)),
    MatmulPoint("batched", 1024, 1024, 64, "attention's scores of (batch, sequence, heads, size)", "scores", (32, 16)),
    MatmulPoint("batched", 1024, 64, 1024, "attention's values", "values", (32, 16)),
    *(
        MatmulPoint("search", m, n, k, reason, layout, batch)
        for m, n, k, layout, batch, reason in (
            (1, 1_000_000, 128, "NT", (), "a vector among a million"),
            (8, 1_000_000, 128, "NT", (), "eight of them"),
            (64, 100_000, 256, "NT", (), "more, and longer, among fewer"),
            (100, 20, 130, "NT", (1000,), "a thousand small searches, in rows that are not aligned"),
        )
    ),
    MatmulPoint("long", 64, 64, 65536, "one tile: only k can be shared"),
    MatmulPoint("long", 100, 100, 100_000, "four tiles, of edges"),
    *_sizes("long", "a shape that nobody chose", 10, 22, (16, 256), (16, 256), (4096, 60_000), rounded=1 / 2),
    *(
        MatmulPoint("untuned", m, n, k, reason, layout)
        for m, n, k, layout, reason in (
            (1, 768, 3072, "NT", "a row through a small layer"),
            (8, 2048, 8192, "NT", "one chain of multiplications over all of k"),
            (24, 2048, 8192, "NT", "the same, of more rows"),
            (32, 1024, 4096, "NT", "tiles for a few multiprocessors"),
            (64, 1024, 4096, "NT", "the same, of more rows"),
            (17, 3000, 5000, "NT", "rows past a tile of 16"),
            (64, 768, 3072, "NT", "some rows through a small layer"),
            (39, 482, 3010, "NT", "the same, of no round size"),
            (34, 822, 3573, "NN", "the same, of rows that are not aligned"),
            (100, 500, 4000, "NT", "few outputs, k not long enough for groups"),
            (200, 3072, 1024, "NT", "a tile and a half of rows"),
            (400, 1536, 6144, "NT", "one round of tiles, and long to wait for"),
            (1600, 3108, 1600, "NT", "a layer of no round width"),
            (1000, 1000, 1000, "NN", "rows that begin inside cache lines"),
            (1400, 1400, 1400, "NN", "the same, of more tiles"),
            (3000, 3000, 3000, "NN", "the same, of several rounds of tiles"),
            (128, 3000, 5000, "NT", "the same, of two tiles of rows"),
            (2049, 2047, 2051, "NN", "one row and some columns beyond the tiles"),
        )
    ),
    *_drawn(30, seed=20),
    *_sizes(
        "hundreds", "too small to hide its launches", 12, 21, (130, 1200), (130, 1200), (128, 2048), rounded=1 / 2
    ),
    *_sizes("thousands", "a shape that nobody chose", 12, 23, *[(128, 4096)] * 3, rounded=2 / 3),
    MatmulPoint("integers", 1024, 1024, 1024, "torch refuses integers on CUDA", dtypes=("int32", "int64")),
    *(
        MatmulPoint("integers", m, n, k, reason, layout, dtypes=("int8",))
        for m, n, k, layout, reason in (
            (1024, 1024, 1024, "NT", "int8 beside torch._int_mm"),
            (4096, 4096, 4096, "NT", "a full chip"),
            (8192, 8192, 8192, "NT", "as long as the power lasts"),
            (4096, 4096, 4096, "NN", "bytes are read along k alone: the second operand is copied first"),
            (16, 4096, 4096, "NT", "few rows, which torch._int_mm refuses"),
            (64, 4096, 4096, "NT", "few rows: the weights"),
            (2048, 4096, 4096, "NT", "a layer"),
        )
    ),
)  # fmt: skip

# On a CPU, beside the grid's points that are not too large.
CPU_ROWS = Point("rows", (4096, 1000), INNER, "rows that are no multiple of a chunk")
CPU_PRODUCTS = tuple(
    MatmulPoint("few rows", 1, 4096, 4096, f"one row: {reason}", layout, dtypes=("float32", "bfloat16", "float64"))
    for layout, reason in (("NT", "B contiguous along k, as in linear"), ("NN", "B contiguous along n"))
)

# What Nsight Compute looks at beside the products that are furthest behind (products_behind.counted): one of each kind
# that is not, and what the documents speak of.
_FLOAT, _HALF, _DOUBLE = ("float32",), ("bfloat16",), ("float64",)
COUNTED_PRODUCTS = (
    MatmulPoint("squares", 4096, 4096, 4096, "a full chip", dtypes=("float32", "tf32", "bfloat16", "float64")),
    MatmulPoint("squares", 1024, 1024, 1024, "half of the chip", dtypes=("float32", "tf32", "bfloat16", "float64")),
    MatmulPoint("tokens", 512, 4096, 4096, "splitting the weights", "NT", dtypes=_FLOAT),
    MatmulPoint("tokens", 128, 8192, 28672, "rounds of tiles", "NT", dtypes=_HALF),
    MatmulPoint("few rows", 1, 4096, 4096, "the weights alone", "NT", dtypes=_FLOAT + _HALF),
    MatmulPoint("few rows", 64, 4096, 4096, "the weights alone", "NT", dtypes=_FLOAT + _HALF + _DOUBLE),
    MatmulPoint("few rows", 1, 50257, 768, "short chains", "NT", dtypes=_HALF),
    MatmulPoint("odd", 4095, 4097, 4099, "unaligned", dtypes=("float32", "tf32", "bfloat16")),
    MatmulPoint("batched", 1024, 64, 1024, "attention's values", "values", (32, 16), dtypes=_FLOAT),
    MatmulPoint("long", 64, 64, 65536, "one tile", dtypes=_FLOAT + _HALF),
)


class Errors(NamedTuple):
    """Operands whose product's errors are compared; `product_errors.DISTRIBUTIONS` makes them."""

    distribution: str
    k: int
    reason: str


MATMUL_ACCURACY_SIDE = 1024
MATMUL_ACCURACY = (
    Errors("normal", 1, "one product: rounded once, if all bits are there"),
    Errors("normal", 8, "less than a step of the tensor core"),
    Errors("normal", 64, "one segment"),
    Errors("normal", 128, "from here auto splits"),
    Errors("normal", 256, "a few segments"),
    Errors("normal", 4096, "a hidden layer"),
    Errors("normal", 65536, "as long as k gets"),
    Errors("uniform (0, 1)", 256, "nothing cancels: sums grow, and what is cut adds up"),
    Errors("uniform (0, 1)", 4096, "longer"),
    Errors("uniform (0, 1)", 65536, "a chain of 65536 roundings in k order"),
    Errors("relu of normal", 2048, "half zeros, nothing negative: an activation"),
    Errors("rows and columns x 2^U(-30, 30)", 2048, "lines of very different scale"),
    Errors("x 2^U(-10, 10)", 2048, "spread within a line, yet every number keeps its bits"),
    Errors("x 2^U(-30, 30)", 2048, "spread too far within a line: computed without tensor cores"),
    Errors("every exponent of float32", 2048, "A spans the whole range"),
    Errors("[X, X] [Y; -Y + Z / 4096]", 2048, "heavy cancellation"),
    Errors("subnormal", 2048, "A has subnormal numbers alone"),
    Errors("integers to 1024", 16, "exact in float32 in any order: no error is allowed"),
    Errors("integers to 1024", 2048, "sums that pass 2^24"),
)


class ProductCall(NamedTuple):
    side: int
    dtype: str
    reason: str


MATMUL_CALLS = (
    ProductCall(64, "bfloat16", "one tile: the call is all"),
    ProductCall(64, "float32", "as bfloat16, on plain cores"),
    ProductCall(1024, "bfloat16", "the call hides behind 6 µs of work, or does not"),
    ProductCall(1024, "float32", "three launches and a workspace"),
)
