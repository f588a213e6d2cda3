// Numbers that prepare and the kernels must agree on.
#pragma once

#include "../common/dtypes.h"
#include "../reduce/pairwise.h"
#include "ops.h"

namespace treduce::rows {

constexpr int kWarp = 32;
constexpr int kMostClusterBlocks = 8;  // that every chip with clusters takes

// Elements that a thread moves at once, where rows allow it.
constexpr int vector_of(DType dtype) { return dtype == DType::float64 ? 2 : 4; }

// Threads of a block at most: a warp holds a chunk of each input, and nothing may spill.
constexpr int most_threads(int inputs, bool is_double) { return 1024 / (inputs * (is_double ? 4 : 1)); }
constexpr int kShortThreads = 128;  // where a warp holds several rows

constexpr int inputs_of(Op op) { return op >= Op::softmax_backward ? 2 : 1; }

}  // namespace treduce::rows
