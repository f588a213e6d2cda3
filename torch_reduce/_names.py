"""The names of the variants as types, for editors and type checkers.

Written by benchmarks/ladders.py from the tables of the extension: `make report` brings it up to date.
"""

from typing import Literal

OpName = Literal[
    "sum",
    "mean",
    "amax",
    "amin",
    "matmul",
    "linear",
    "vector_add",
    "softmax",
    "log_softmax",
    "logsumexp",
    "layer_norm",
    "rms_norm",
]

ReductionName = Literal[
    "auto",
    "serial",
    "global_memory",
    "interleaved_modulo",
    "interleaved_bitmask",
    "interleaved_strided",
    "sequential",
    "interleaved_first_add",
    "first_add",
    "last_warp",
    "unrolled",
    "two_pass",
    "two_pass_last_warp",
    "two_pass_unrolled",
    "warp_shuffle",
    "vectorized",
    "atomic",
    "single_pass",
    "cooperative",
    "cluster",
    "thread",
    "row_tile",
    "row_lanes",
    "row_warp",
    "row_block",
    "row_cluster",
    "column_thread",
    "column_block",
    "column_narrow",
    "compensated",
    "exact",
    # names that the literature knows
    "cg",
    "global",
    "reduction1",
    "reduction2",
    "reduction3",
    "reduction4",
    "reduction5",
    "shared",
    "two_loads",
    "v0",
    "v1",
    "v2",
    "v3",
    "v4",
    "v5",
    "v6",
]

MatmulName = Literal[
    "auto",
    "naive",
    "tiled",
    "tiled_1d",
    "tiled_2d",
    "vectorized",
    "warp_tiled",
    "pipelined",
    "wmma",
    "mma",
    "mma_f64",
    "wgmma",
    "warp_specialized",
    "specialized_f64",
    "persistent",
    "split_bf16",
    "split_fp16",
    "split_direct",
]

VectorAddName = Literal[
    "auto",
    "grid_1d",
    "grid_2d",
    "vectorized",
]

RowName = Literal[
    "auto",
    "three_pass",
    "online",
    "row_registers",
    "row_cluster",
    "row_shared",
]
