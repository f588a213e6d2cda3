// How tensor-core rungs read an operand: as boxes of a tensor with aligned rows, which the copy engine of sm_90 and the 16-byte
// copies of mma can address, where it lies or in a copy in the workspace. Host code, free of torch and CUDA.
#pragma once

#include <algorithm>
#include <cstdint>

#include "problem.h"

namespace treduce::matmul {

constexpr int64_t kBoxAlignment = 16;  // bytes: addresses and strides of a tensor that the copy engine reads
// Bytes that the L2 keeps together, and that it reads together. Rows of copies begin at multiples of the former where that adds little.
constexpr int64_t kCacheLine = 128, kSector = 32;
constexpr int64_t kLongRow = 8 * kCacheLine;
// Where rows begin, one every so many bytes from an aligned address on. Of rows that begin inside sectors all multiprocessors together
// get hardly more than half of the bytes a cycle that they get of others.
enum class RowsBegin { at_lines, at_sectors, inside_sectors };
constexpr RowsBegin rows_begin(int64_t pitch_bytes) {
  return pitch_bytes % kSector != 0      ? RowsBegin::inside_sectors
         : pitch_bytes % kCacheLine != 0 ? RowsBegin::at_sectors
                                         : RowsBegin::at_lines;
}

// One operand of C = A B, seen from the kernel: `lines` (rows of A, columns of B) of `depth` (k) elements each.
struct Operand {
  const void* data;
  int element_bytes;
  int64_t lines, depth;
  int64_t line_stride, depth_stride;       // in elements
  int64_t batch_size[2], batch_stride[2];  // the outer dimension first; where the stride is 0 the size is 1
};

// Behind the last byte of the operand's memory.
inline const char* end_of(const Operand& o) {
  int64_t last = (o.lines - 1) * o.line_stride + (o.depth - 1) * o.depth_stride;
  for (int d = 0; d < 2; ++d) last += (o.batch_size[d] - 1) * o.batch_stride[d];
  return static_cast<const char*>(o.data) + (last + 1) * o.element_bytes;
}

// Matrices along the inner of the two batch dimensions.
inline int64_t inner_batches_of(const Problem& p) { return p.batch_dims > 0 ? p.batch_size[p.batch_dims - 1] : 1; }

inline Operand operand_of(const void* data, int bytes, int64_t lines, int64_t line_stride, const Problem& p,
                          int64_t depth_stride, const int64_t* batch_stride) {
  Operand o{data, bytes, lines, p.k, line_stride, depth_stride, {1, 1}, {0, 0}};
  const int dims = p.batch_dims < 2 ? p.batch_dims : 2;
  for (int d = 0; d < dims; ++d) {
    if (batch_stride[d] == 0) continue;
    o.batch_size[2 - dims + d] = p.batch_size[d];
    o.batch_stride[2 - dims + d] = batch_stride[d];
  }
  return o;
}

inline Operand operand_a(const Problem& p, const void* a, int bytes) {
  return operand_of(a, bytes, p.m, p.a_row, p, p.a_column, p.a_batch);
}
inline Operand operand_b(const Problem& p, const void* b, int bytes) {
  return operand_of(b, bytes, p.n, p.b_column, p, p.b_row, p.b_batch);
}

// Which neighbours in memory the lanes of a warp read: elements of a line, or the same element of neighbouring lines. One
// at a time, or 16 bytes where strides, alignment and edges allow that. any: neighbours of neither, or for
// kernels that are compiled for both directions.
enum class Way { k, lines, k_vectors, lines_vectors, any };

TREDUCE_HOST_DEVICE bool is_along_k(Way way) { return way == Way::k || way == Way::k_vectors; }
TREDUCE_HOST_DEVICE bool is_vectors(Way way) { return way == Way::k_vectors || way == Way::lines_vectors; }

// What the copy engine is told: `inner` contiguous elements, `outer` rows of them.
struct Boxes {
  const void* data;
  int element_bytes;
  bool along_k;  // the contiguous dimension is k
  int64_t inner, outer, pitch;
  int64_t batch_size[2], batch_pitch[2];

  RowsBegin rows_begin() const { return matmul::rows_begin(pitch * element_bytes); }
};

enum class Reading {
  direct,   // boxes of the tensor itself
  rows,     // a copy whose rows are aligned, the contiguous dimension as it is
  gathered  // a copy with k contiguous, from any strides
};

// The kernel that copies.
constexpr int kPackThreads = 256;
constexpr int kPackLines = 64, kPackBytes = 128;  // rows, and bytes of each, that a block turns round at once

struct View {
  Reading reading;
  Boxes boxes;           // `data` is null where a copy will be read: the workspace is not there yet
  int64_t copied_bytes;  // of workspace
  // Of copies that are gathered: whether lines are contiguous where the operand lies, so that rows and columns are exchanged by
  // tiles, and whether these are read 16 bytes at once.
  bool transposed, transposed_by_vectors;

  bool is_copied() const { return reading != Reading::direct; }
  // What is walked to copy it: chunks of 16 bytes of the copy, by threads; or where rows and columns are exchanged tiles, by blocks.
  struct Walk {
    int64_t of_row, of_matrix;
  };
  Walk walk() const {
    const int64_t chunks = boxes.pitch * boxes.element_bytes / kBoxAlignment;
    if (!transposed) return {chunks, chunks * boxes.outer};
    const int64_t across = ceil_div(boxes.outer, int64_t(kPackLines));
    return {across, across * ceil_div(boxes.inner * boxes.element_bytes, int64_t(kPackBytes))};
  }
  int64_t copy_blocks() const {
    if (!is_copied()) return 0;
    const int64_t all = walk().of_matrix * boxes.batch_size[0] * boxes.batch_size[1];
    const int64_t blocks = transposed ? all : ceil_div(all, int64_t(kPackThreads));
    return std::max<int64_t>(1, std::min<int64_t>(blocks, INT32_MAX / 2));  // where k is 0 there is nothing to copy
  }
};

// `any_direction`: boxes may be contiguous along the lines (16-bit types, whole slabs of 64 lines). `whole`: rows must be
// whole chunks of 16 bytes, for readers that touch no less.
inline View view_of(const Operand& o, bool any_direction, bool whole = false) {
  const auto aligned = [&](int64_t stride) { return stride > 0 && stride * o.element_bytes % kBoxAlignment == 0; };
  const bool k_unit = o.depth_stride == 1 || o.depth == 1;
  const bool line_unit = o.line_stride == 1 || o.lines == 1;
  const bool along_k = k_unit || !(line_unit && any_direction);
  View view;
  Boxes& boxes = view.boxes;
  boxes = {o.data, o.element_bytes, along_k, along_k ? o.depth : o.lines, along_k ? o.lines : o.depth, 0, {}, {}};
  const bool unit = along_k ? k_unit : line_unit;
  const int64_t step = along_k ? o.line_stride : o.depth_stride;
  const int64_t per_alignment = kBoxAlignment / o.element_bytes;
  const int64_t dense = round_up(boxes.inner, per_alignment);
  boxes.pitch = boxes.outer == 1 ? dense : step;  // nobody steps from the only row
  bool direct = unit && (!whole || boxes.inner == dense) && aligned(boxes.pitch) &&
                reinterpret_cast<uint64_t>(o.data) % kBoxAlignment == 0;
  for (int d = 0; d < 2; ++d) {
    boxes.batch_size[d] = o.batch_size[d];
    boxes.batch_pitch[d] = o.batch_size[d] == 1 ? dense : o.batch_stride[d];
    direct = direct && aligned(boxes.batch_pitch[d]);
  }
  view.reading = direct ? Reading::direct : unit ? Reading::rows : Reading::gathered;
  view.copied_bytes = 0;
  view.transposed = view.transposed_by_vectors = false;
  if (!direct) {
    const int64_t inner_stride = along_k ? o.depth_stride : o.line_stride;
    const auto whole_vectors = [&](int64_t stride) { return stride * o.element_bytes % 16 == 0; };
    view.transposed = inner_stride != 1 && (along_k ? o.line_stride : o.depth_stride) == 1;
    view.transposed_by_vectors = view.transposed && reinterpret_cast<uint64_t>(o.data) % 16 == 0 &&
                                 whole_vectors(inner_stride) && whole_vectors(o.batch_stride[0]) &&
                                 whole_vectors(o.batch_stride[1]);
    boxes.data = nullptr;
    boxes.pitch = dense * o.element_bytes < kLongRow ? dense : round_up(dense, kCacheLine / o.element_bytes);
    boxes.batch_pitch[1] = boxes.pitch * boxes.outer;
    boxes.batch_pitch[0] = boxes.batch_pitch[1] * boxes.batch_size[1];
    view.copied_bytes = round_up(boxes.batch_pitch[0] * boxes.batch_size[0] * o.element_bytes, kCacheLine);
  }
  return view;
}

// How threads may read an operand where it lies: in which direction it is contiguous, and the most bytes, up to 16, of which every row
// is a multiple and at a multiple of which every row begins; 0: it is contiguous in neither direction.
struct Access {
  bool along_k;
  int width;
};
inline Access access_of(const Operand& o) {
  const bool along_k = o.depth_stride == 1 || o.depth == 1;
  if (!along_k && o.line_stride != 1 && o.lines != 1) return {along_k, 0};
  const bool rows = (along_k ? o.lines : o.depth) > 1;  // nobody steps from the only one
  const int64_t pitch = rows ? (along_k ? o.line_stride : o.depth_stride) : 0;
  // The lowest bit of all says it.
  const int64_t steps =
      ((along_k ? o.depth : o.lines) | pitch | o.batch_stride[0] | o.batch_stride[1]) * o.element_bytes;
  const int64_t all = steps | static_cast<int64_t>(reinterpret_cast<uint64_t>(o.data)) | kBoxAlignment;
  return {along_k, static_cast<int>(all & -all)};
}

// Slabs of 64 lines are contiguous along the lines; tiles of fewer lines read k.
constexpr int64_t kSlabLines = 64;

inline View view_a(const Problem& p, const void* a, int bytes) {
  return view_of(operand_a(p, a, bytes), bytes == 2 && p.m >= kSlabLines);
}
inline View view_b(const Problem& p, const void* b, int bytes) {
  return view_of(operand_b(p, b, bytes), bytes == 2 && p.n >= kSlabLines);
}

constexpr int kBoxBatchDims = 2;  // that an Operand has

// Boxes are found by 32-bit coordinates.
inline const char* boxes_refusal(const Problem& p) {
  const bool fits = p.m <= INT32_MAX && p.n <= INT32_MAX && p.k <= INT32_MAX && p.batches <= INT32_MAX;
  return fits ? nullptr : "sizes below 2^31";
}

}  // namespace treduce::matmul
