// Numbers and conditions that a schedule (host) and its kernel (device) must agree on. Free of torch and CUDA.
#pragma once

#include <cstdint>

#include "../common/dtypes.h"
#include "geometry.h"
#include "pairwise.h"

namespace treduce::reduce {

// The floats that most tensors hold: their sums have kernels for every access.
constexpr bool is_common_float(DType dtype) {
  return dtype == DType::float32 || dtype == DType::float64 || dtype == DType::float16 || dtype == DType::bfloat16;
}
constexpr bool is_byte(DType dtype) { return dtype == DType::int8 || dtype == DType::uint8 || dtype == DType::boolean; }

// Which kernels a rung is compiled with. What it lacks looks its dtype up at each element.
enum class Kernels : int8_t {
  every,        // of the rungs that `auto` takes for many inputs
  short_rows,   // of row_lanes, which has several kernels for each: all but 8-bit floats and complex128
  cluster,      // of row_cluster: what `auto` gives it, elements of up to two bytes, and the sums of common floats
  compensated,  // of compensated: the sums of common floats along one dim, in vectors; of float32 also single elements
};

// Whether there are kernels that read 16 bytes at once, for this dtype and for an extremum or a sum.
constexpr bool has_vectors(Kernels kernels, DType dtype, bool extremum) {
  switch (kernels) {
    case Kernels::every: return !extremum || !is_float8(dtype);
    case Kernels::short_rows:
      return has_vectors(Kernels::every, dtype, extremum) && !is_float8(dtype) && dtype != DType::complex128;
    case Kernels::cluster:
      return is_byte(dtype) ||
             (extremum ? dtype == DType::float16 || dtype == DType::bfloat16 : is_common_float(dtype));
    default: return !extremum && is_common_float(dtype);
  }
}
// Whether there are kernels that read sums of common floats of that many bytes element by element along one dim.
constexpr bool has_singles(Kernels kernels, int64_t element_size) {
  return kernels != Kernels::compensated || element_size == 4;
}
// Whether there are kernels for sums of common floats whose rows begin anywhere, and for those along several dims.
constexpr bool has_shifted(Kernels kernels) { return kernels != Kernels::compensated; }
constexpr bool has_several_dims(Kernels kernels) { return kernels == Kernels::every || kernels == Kernels::short_rows; }

// A team of threads computes a chunk: lanes in vectors of `vector` elements, a warp of threads at the most.
constexpr int kWarp = 32;
constexpr int team_threads(int64_t vector) {
  return Pairwise::kLanes / vector < kWarp ? static_cast<int>(Pairwise::kLanes / vector) : kWarp;
}

// Whether up to two dims can be walked by steps of 32 bits: those of a chunk, and one more.
inline bool has_short_steps(const Extents& reduced) {
  const int64_t outer = reduced.stride[0], size = reduced.count > 1 ? reduced.size[1].divisor : 1;
  const int64_t runs = 2 * Pairwise::kChunk / size + 2, most = INT32_MAX;
  return reduced.count <= 2 && outer <= most / runs / 2 && size <= most / 2 / (reduced.stride[1] + 1);
}

// Rows: threads of a block that row_block, row_warp and row_cluster are compiled for.
constexpr int kRowThreads = 256;

// row_block, one long row: blocks that a warp folds as a group, and as many groups at the most; blocks an SM.
constexpr int kRowGroup = 8 * kWarp;
constexpr int kLongResident = 4;
// Its partials: those of blocks, then those of groups. Its counters: one of the groups, then one of each group's blocks.
template <class Int>
TREDUCE_HOST_DEVICE constexpr Int row_groups(Int blocks) {
  return (blocks + kRowGroup - 1) / kRowGroup;
}
template <class Int>
TREDUCE_HOST_DEVICE constexpr Int group_partial(Int blocks, Int group) {
  return blocks + group;
}
template <class Int>
TREDUCE_HOST_DEVICE constexpr Int group_counter(Int group) {
  return 1 + group;
}

// row_block, a row at once: elements that a thread takes as one vector, short ones, so that a warp takes a chunk and no thread has many
// instructions; and threads of a block at the most, for an accumulator of that many bytes. Wider ones would not fit registers.
constexpr int block_row_vector(int64_t element_size) {
  return element_size >= 4 ? static_cast<int>(16 / element_size) : 4;
}
constexpr int block_row_threads(int64_t accumulator) { return accumulator <= 4 ? 1024 : 512; }
constexpr int kElementsThreads = 512;  // of a block whose rows have any strides
constexpr bool has_kernel_at_once(int64_t element_size) { return element_size <= 4; }

// row_block, where several blocks share all there is, one row of a common float that vectors fit: threads of a block at the most, the
// elements that its offsets count, and the chunks of a block or the blocks that a warp folds. Where elements have not four bytes, a
// thread needs more registers.
constexpr int whole_threads(int64_t element_size) { return element_size == 4 ? 1024 : 512; }
constexpr int kWholeClusterThreads = 512;  // of row_cluster
constexpr int64_t kWholeMost = 1 << 30;
constexpr int kWholeValues = 8 * kWarp;

// row_lanes: rows that a team takes at once, of up to one stripe, two (the common floats alone) and four; vectors that a thread takes
// where each holds several rows.
constexpr int kLanesRows = 4, kLanesRowsOfTwo = 4, kLanesRowsOfFour = 2;
constexpr bool lanes_take_two_stripes(int64_t length, bool common_sum) {
  return common_sum && length <= 2 * Pairwise::kLanes;
}
constexpr int packs_a_thread(bool wide) { return wide ? 2 : 4; }
// Elements of such a vector: of sums of integers, whose results are wide, two rows, so that a warp's results are one run as well.
constexpr int packed_elements(int64_t length, int64_t element_size, bool wide) {
  const int64_t all = 16 / element_size;
  return static_cast<int>(wide && 2 * length < all ? 2 * length : all);
}
// Rows of up to one stripe: whether a power of two of lanes would leave a quarter of them without a vector or more. A quarter as many
// take three vectors each then. (The common floats alone, of which a stripe is no more than a warp's vectors.)
inline bool lanes_take_three(int64_t vectors) {
  int64_t lanes = 16;  // fewer than four for a row would read less than 64 bytes side by side
  while (lanes < vectors) lanes *= 2;
  return 2 * vectors > lanes && 4 * vectors <= 3 * lanes;
}

// row_tile: threads of a block at the most, and bytes of shared memory for a tile that begins anywhere.
constexpr int kTileThreads = 256;
constexpr int64_t tile_shared_bytes(int64_t tile_bytes) { return (tile_bytes + 15) / 16 * 16 + 16; }

// Columns: bytes that a thread takes as one vector; at most eight columns, for each needs accumulators.
constexpr int64_t column_bytes(int64_t element_size) { return element_size == 1 ? 8 : 16; }
// Columns that a thread takes one by one where vectors do not fit; one where a dtype is looked up.
constexpr int single_columns(int64_t element_size) { return element_size > 4 ? 2 : 4; }

// How nodes of columns meet in shared memory: so many neighbours at a time, and room for the nodes with that of their first fold.
constexpr int kFoldRadix = 8;
constexpr int64_t with_fold_room(int64_t nodes) { return nodes + (nodes < kFoldRadix ? 1 : nodes / kFoldRadix); }

// column_block: a thread takes groups of neighbouring leaves, 16 rows in flight. Short columns have one stripe, so a leaf is an
// element; columns of up to kLowRows take more leaves at once, where a thread's columns leave it registers for them.
constexpr int kShortGroup = 8, kLowGroup = 8, kTallGroup = 4;  // leaves
constexpr int kLowRows = 2 * Pairwise::kLanes;
constexpr bool takes_low_groups(int64_t columns_of_thread) { return columns_of_thread > 1 && columns_of_thread <= 4; }
constexpr int kColumnBlockThreads = 256, kColumnBlocksAnSm = 2;

// column_thread: columns that a thread takes one by one at the most, because more threads an SM hide more than more loads a thread.
constexpr int kColumnThreadSingles = 2;
constexpr int kColumnThreadThreads = 128;

// column_narrow.
constexpr int kNarrowThreads = 512;

}  // namespace treduce::reduce
