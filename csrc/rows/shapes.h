// Numbers that prepare and the kernels must agree on.
#pragma once

#include "../common/dtypes.h"
#include "../common/round.h"
#include "../reduce/pairwise.h"
#include "ops.h"

namespace treduce::rows {

constexpr int kWarp = 32;
constexpr int kMostClusterBlocks = 8;  // that every chip with clusters takes

// Nodes of warps, of chunks and of blocks, in turn: between two uses of a slot lies a barrier of all who read it.
constexpr int kTurns = 2;

// Elements that a thread moves at once, where rows allow it; of 16 bits, in rows of up to 512, twice as many.
constexpr int vector_of(DType dtype) { return dtype == DType::float64 ? 2 : 4; }
constexpr int kWide = 8;

// Threads that share a stripe of 128 elements, by the size of their vectors, and rows that each holds at once where a row has `stripes`
// of them: 32 elements a thread.
TREDUCE_HOST_DEVICE constexpr int threads_of_stripe(int size) { return size == kWide ? kWarp / 2 : kWarp; }
TREDUCE_HOST_DEVICE constexpr int rows_at_once(int size, int stripes) {
  const int elements = stripes * reduce::Pairwise::kLanes / threads_of_stripe(size);
  return elements < 32 ? 32 / elements : 1;
}

// Threads of a block at most: a warp holds a chunk of each input, and nothing may spill. Norms load weights beside it, and rows that
// are read element by element take an address for each.
constexpr int most_threads(int inputs, bool has_weight, bool is_double, bool vectors) {
  if (is_double) return 256 / inputs;
  if (!vectors) return 256;
  return has_weight || inputs > 1 ? 512 : 1024;
}
constexpr int kShortThreads = 128;  // where a warp holds several rows

// Rows in shared memory: threads of a block at most, chunks that a block holds at most, and bytes that the kernel has of its own.
constexpr int shared_threads(int inputs, bool has_weight, bool is_double) {
  return inputs > 1 || has_weight || is_double ? 256 : 320;
}
constexpr int kMostSharedChunks = 128;
constexpr int64_t kOwnShared = 2 * 1024;

// Blocks of a grid that lets the next launch begin as soon as elements are read: eight an SM of an H200, a hint for other chips. Few blocks
// of the next one would be placed unevenly over SMs.
constexpr int kManyBlocks = 1056;

constexpr int inputs_of(Op op) { return op >= Op::softmax_backward ? 2 : 1; }
constexpr bool has_weight(Op op) {
  return op == Op::layer_norm || op == Op::rms_norm || op == Op::layer_norm_backward || op == Op::rms_norm_backward;
}

}  // namespace treduce::rows
