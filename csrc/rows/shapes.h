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

// Threads of a block at most: a warp holds a chunk of each input, and nothing may spill. Norms load weights beside it, and rows that
// are read element by element take an address for each.
constexpr int most_threads(int inputs, bool has_weight, bool is_double, bool vectors) {
  if (is_double) return 256 / inputs;
  if (!vectors) return 256;
  return has_weight || inputs > 1 ? 512 : 1024;
}
constexpr int kShortThreads = 128;  // where a warp holds several rows

// Of a power of two: a shift where a division by what is known at run time would take twenty instructions.
TREDUCE_HOST_DEVICE constexpr int log2_of(int64_t power) {
  int shift = 0;
  while (int64_t{1} << shift < power) ++shift;
  return shift;
}

constexpr int inputs_of(Op op) { return op >= Op::softmax_backward ? 2 : 1; }
constexpr bool has_weight(Op op) {
  return op == Op::layer_norm || op == Op::rms_norm || op == Op::layer_norm_backward || op == Op::rms_norm_backward;
}

}  // namespace treduce::rows
