"""What the benchmarks measure, and why each case is there. The variants come from the tables of the extension."""

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

# Milliseconds for 25.6 million floats on a T4, as published with the names v0 to v6.
PUBLISHED_T4_MS = {"v0": 3.835, "v1": 2.825, "v2": 2.300, "v3": 1.147, "v4": 0.694, "v5": 0.656, "v6": 1.815}
