// The order of additions of every variant, as data. Host code, free of torch and CUDA.
//
// A reduction is a list of passes; each turns n values into one value a block. Within a pass, block b owns `rows` rows of
// `lanes` consecutive values; row j begins at b * block_step + j * row_step, and what lies past n is left out. Lane l adds
// column l of its rows, in row order; a fixed tree then adds the lanes. That is the whole contract: the CUDA kernels and the
// CPU loop are two ways to execute the same list, so they give the same bits.
//
// A plan depends on the length, the dtype and the block size alone: never on the GPU, the pointer, the stream or the run.
#pragma once

#include <cstdint>
#include <string>

#include "../common/dtypes.h"

namespace treduce::reduce {

// How a thread gathers its value before the block's tree.
enum class Load : int8_t {
  serial,       // one lane walks everything
  one,          // a thread, an element
  pair,         // x[i] + x[i + T]
  grid_stride,  // x[i] + x[i + G*T] + ...
  vector,       // grid stride in 16-byte vectors, one accumulator a component
  leaves,       // see pairwise.h: no plan, the length says it all
};

// How the lanes of a block become one value.
enum class Tree : int8_t {
  none,         // one lane
  interleaved,  // strides 1, 2, 4, ...: neighbours first
  sequential,   // strides T/2, T/4, ..., 1: halves first
  warp,         // the components of a thread, then the 32 lanes of a warp, then the warps; each by halves
};

inline const char* name_of(Tree tree) {
  constexpr const char* names[] = {"no", "interleaved", "sequential", "warp"};
  return names[static_cast<int>(tree)];
}

// How the blocks' partial values become one.
enum class Finish : int8_t {
  none,       // one block did it all
  again,      // the same pass over the partials until one is left
  one_block,  // one block: a strided loop over the partials, then its tree
  cluster,    // the eight partials of a cluster by halves, then one_block
};

// An order class: variants of one class give the same bits for the same block size (and number of blocks).
struct Order {
  const char* name;
  Load load;
  Tree tree;
  Finish finish;
  const char* text;
};

struct Pass {
  int64_t n;       // values read
  int64_t blocks;  // values written
  int64_t lanes;   // accumulators of a block
  int64_t vector;  // consecutive lanes that one thread holds
  int64_t rows;
  int64_t block_step;
  int64_t row_step;
  Tree tree;
  bool on_chip;  // the next pass reads the values from shared memory: they need no room in global memory
};

constexpr int64_t kMostBlocks = int64_t{1} << 30;  // that a caller may ask for; a grid holds 2^31 - 1
constexpr int kMaxPasses = 16;
constexpr int kClusterBlocks = 8;  // the largest cluster that every Hopper GPU can place

struct Plan {
  int block = 0;  // threads in a block
  int pass_count = 0;
  Pass passes[kMaxPasses];

  void add(const Pass& pass) { passes[pass_count++] = pass; }
  const Pass& first() const { return passes[0]; }
  int64_t grid() const { return passes[0].blocks; }
  // Where a pass writes its values in global memory: behind those of the passes before.
  int64_t partials_before(int pass) const {
    int64_t count = 0;
    for (int p = 0; p < pass; ++p) count += passes[p].on_chip ? 0 : passes[p].blocks;
    return count;
  }
  // Values that lie there between passes.
  int64_t partials() const { return partials_before(pass_count - 1); }
};

// Elements of a 16-byte load.
inline int64_t vector_width(DType dtype) { return 16 / size_of(dtype); }

// Threads over which a grid-stride loop is spread at most when the caller names no number of blocks. About what fills a
// large GPU (an H200 holds 270,336), yet a constant: the order must not know the chip.
constexpr int64_t kGridThreads = int64_t{1} << 18;

// `num_blocks` 0: the default for this length. Lengths start at 0.
Plan make_plan(const Order& order, DType dtype, int64_t n, int block, int64_t num_blocks);

std::string to_string(const Plan& plan);

}  // namespace treduce::reduce
