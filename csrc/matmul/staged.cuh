// What mma and mma_f64 share (sm_80 and later): tiles of the operands in shared memory, the ring of stages that cp.async fills,
// and the epilogue. The counterpart of tile.cuh without the copy engine: here threads compute every address.
//
// A tile is rows of 128 bytes, each of eight 16-byte chunks. If an operand is contiguous along k, a row is a line and its chunks
// are steps of k; else a row is a step of k of as many lines as fit into it, a slab. Chunk c of row r lies at c ^ swizzle(r), so
// that neither a row of chunks, as copies write, nor a column, as fragments are read, meets a bank twice.
#pragma once

#include "../primitives/ptx/copy_part.cuh"
#include "../primitives/ptx/matrix.cuh"
#include "../primitives/ptx/mma.cuh"
#include "../primitives/shared.cuh"
#include "pack.h"
#include "rung.h"
#include "staged.h"

namespace treduce::matmul::staged {

constexpr int kChunkBytes = 16;

// k of a tile, and lines of a slab.
template <class T>
constexpr int kDepth = kRowBytes / sizeof(T);

// Loading a fragment reads 16 bytes of each of 8 rows; of float64, 32 bytes of each of 4.
template <class T>
TREDUCE_DEVICE int swizzle(int row) {
  return sizeof(T) == 8 ? row % 4 * 2 : row % 8;
}

// An operand as a kernel reads it: the matrix of batch (x, y) begins at data + x * batch_pitch[0] + y * batch_pitch[1].
struct Source {
  const void* data;
  int lines, depth;
  int64_t pitch, batch_pitch[2];
  bool wide;  // whole chunks at multiples of 16 bytes; else float64 in any rows
};

inline Source source_of(const Boxes& boxes) {
  Source source{boxes.data,
                static_cast<int>(boxes.along_k ? boxes.outer : boxes.inner),
                static_cast<int>(boxes.along_k ? boxes.inner : boxes.outer),
                boxes.pitch,
                {},
                has_whole_chunks(boxes)};
  for (int d = 0; d < 2; ++d) source.batch_pitch[d] = boxes.batch_size[d] == 1 ? 0 : boxes.batch_pitch[d];
  return source;
}

// One thread's share of the copies of a tile, for one step along k after another: chunk threadIdx.x % 8 of every kRowsAtOnce-th
// row. Chunks past an edge become zero; those that lie across it end with zeros in memory, or are copied by elements.
template <class T, int kLines, bool kAlongK, int kThreads>
class Copies {
  static constexpr int kChunk = kChunkBytes / sizeof(T);
  static constexpr int kRowsAtOnce = kThreads / (kRowBytes / kChunkBytes);

 public:
  static constexpr int kBytes = kLines * kRowBytes;  // of a tile
  static constexpr int kCount = kLines / kRowsAtOnce;
  static_assert(kLines % kRowsAtOnce == 0 && kRowsAtOnce % 8 == 0);
  static_assert(kRowsAtOnce % kDepth<T> == 0 || kDepth<T> % kRowsAtOnce == 0);

  // From step `k` on.
  TREDUCE_DEVICE Copies(const Source& source, int64_t line, int64_t batch_x, int64_t batch_y, int k = 0)
      : pitch_(source.pitch), wide_(source.wide) {
    const int chunk = threadIdx.x % 8, row = threadIdx.x / 8;
    to_ = row * kRowBytes + (chunk ^ swizzle<T>(row)) * kChunkBytes;
    const int64_t inner = kAlongK ? chunk * kChunk : line + row / kDepth<T> * kDepth<T> + chunk * kChunk;
    const int64_t outer = kAlongK ? line + row : row % kDepth<T>;
    from_ = static_cast<const T*>(source.data) + batch_x * source.batch_pitch[0] + batch_y * source.batch_pitch[1] +
            outer * source.pitch + inner + k * (kAlongK ? 1 : source.pitch);
    inner_left_ = static_cast<int>((kAlongK ? source.depth - k : source.lines) - inner);
    outer_left_ = static_cast<int>((kAlongK ? source.lines : source.depth - k) - outer);
  }

  // Whether chunks are copied whole.
  TREDUCE_DEVICE bool wide() const { return sizeof(T) < 8 || wide_; }

  // Starts copy i of kCount into the tile at `tile`. kWide: the chunk is whole; else two elements, wherever they lie.
  template <bool kWide>
  TREDUCE_DEVICE void start(int i, ptx::SharedAddress tile) const {
    const int rows = i * kRowsAtOnce;
    const int inner = kAlongK ? 0 : rows / kDepth<T> * kDepth<T>;
    const int outer = kAlongK ? rows : rows % kDepth<T>;
    const int left = outer < outer_left_ ? inner_left_ - inner : 0;
    const T* const from = from_ + outer * pitch_ + inner;
    const ptx::SharedAddress to = tile + to_ + rows * kRowBytes;
    if constexpr (kWide || sizeof(T) < 8) {
      ptx::copy_async_or_zero<kChunkBytes>(to, from, left > 0);
    } else {
      ptx::copy_async_or_zero<8>(to, from, left > 0);
      ptx::copy_async_or_zero<8>(to + 8, from + 1, left > 1);
    }
  }

  // On to the next step along k.
  TREDUCE_DEVICE void next() {
    from_ += kAlongK ? kDepth<T> : kDepth<T> * pitch_;
    (kAlongK ? inner_left_ : outer_left_) -= kDepth<T>;
  }

 private:
  const T* from_;
  int64_t pitch_;
  int inner_left_, outer_left_;  // elements and rows from the thread's first chunk to the edges
  uint32_t to_;
  bool wide_;
};

// Adds the bias, if there is one, to the fragments of a warp. `column`: this lane's first, of n.
template <class Acc, int kM, int kN, class Out>
TREDUCE_DEVICE void add_bias(Acc (&acc)[kM][kN][4], const Out* bias, int64_t column, int64_t n) {
  if (bias == nullptr) return;
  const Out* const first = bias + column;
  const int64_t left = n - column;
#pragma unroll
  for (int j = 0; j < kN; ++j) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      if (j * 8 + e >= left) continue;
      const Acc value = static_cast<Acc>(first[j * 8 + e]);
#pragma unroll
      for (int i = 0; i < kM; ++i) {
        acc[i][j][e] += value;
        acc[i][j][2 + e] += value;
      }
    }
  }
}

// Stores one fragment of 16 x 8 outputs (see ptx/mma.cuh). (row, column): of this lane's element 0. Nothing past the edges is
// written.
// `pairs`: pairs of outputs are aligned.
template <class T, class Acc>
TREDUCE_DEVICE void store_fragment(const Acc (&acc)[4], T* c, int64_t row, int64_t column, int64_t m, int64_t n,
                                   bool pairs) {
#pragma unroll
  for (int half = 0; half < 2; ++half, row += 8) {
    if (row >= m || column >= n) return;
    store_pair(c + row * n + column, acc[half * 2], acc[half * 2 + 1], pairs, column + 1 < n);
  }
}

// The ring of stages in shared memory, and this thread's copies into it, which run stages - 1 stages ahead of what is read. A
// stage is a tile of A, then one of B, of one step along k; while it is multiplied its successor's copies are started, in kParts
// parts. kStages: how many stages, where that is known when this is compiled; 0: 2 to 4.
// Who calls: all threads of the block; nobody reads the ring after a barrier that follows.
template <int kParts, int kStages, class CopiesA, class CopiesB>
class CopyRing {
  static constexpr uint32_t kStageBytes = CopiesA::kBytes + CopiesB::kBytes;
  static constexpr int kCopies = CopiesA::kCount + CopiesB::kCount;
  static constexpr int kCopiesAPart = (kCopies + kParts - 1) / kParts;

 public:
  TREDUCE_DEVICE CopyRing(const CopiesA& copies_a, const CopiesB& copies_b, ptx::SharedAddress shared, int stages,
                          int depth_steps)
      : copies_a_(copies_a),
        copies_b_(copies_b),
        shared_(shared),
        stages_(kStages > 0 ? kStages : stages),
        ring_bytes_(stages_ * kStageBytes),
        depth_steps_(depth_steps),
        wide_(copies_a.wide() && copies_b.wide()) {}

  // Starts the copies of all stages but one, and waits for the first.
  TREDUCE_DEVICE void fill() {
    while (filled_ < stages_ - 1) {
      if (filled_ < depth_steps_) {
#pragma unroll
        for (int part = 0; part < kParts; ++part) {
          wide_ ? copy_some(std::true_type{}, part) : copy_some(std::false_type{}, part);
        }
      }
      close();
    }
    wait();
  }

  // The offset in shared memory of the stage to read.
  TREDUCE_DEVICE uint32_t reading() const { return reading_; }

  // On to the next stage, when it is there, and all warps have what they need of this one: the copies that follow overwrite it.
  TREDUCE_DEVICE void advance() {
    wait();
    reading_ = after(reading_);
  }

  // Starts a part of the copies, if there are so many parts. All of them come before the next advance().
  TREDUCE_DEVICE void copy_part(int part) {
    if (part >= kParts) return;
    if (filled_ < depth_steps_) {
      // One branch for all of them.
      wide_ ? copy_some(std::true_type{}, part) : copy_some(std::false_type{}, part);
    }
    if (part == kParts - 1) close();
  }

 private:
  TREDUCE_DEVICE uint32_t after(uint32_t stage) const {
    return stage + kStageBytes == ring_bytes_ ? 0 : stage + kStageBytes;
  }
  template <bool kWide>
  TREDUCE_DEVICE void copy_some(std::bool_constant<kWide>, int part) {
#pragma unroll
    for (int i = part * kCopiesAPart; i < min((part + 1) * kCopiesAPart, kCopies); ++i) {
      if (i < CopiesA::kCount) {
        copies_a_.template start<kWide>(i, shared_ + filling_);
      } else {
        copies_b_.template start<kWide>(i - CopiesA::kCount, shared_ + filling_ + CopiesA::kBytes);
      }
    }
  }
  // A group of copies a stage, empty past the end of k, so that waiting may count them.
  TREDUCE_DEVICE void close() {
    copies_a_.next();
    copies_b_.next();
    ptx::commit_copies();
    filling_ = after(filling_);
    ++filled_;
  }
  // For all but the youngest stages - 2 groups of copies, those of all threads.
  TREDUCE_DEVICE void wait() {
    if constexpr (kStages > 0) {
      ptx::wait_copies<kStages - 2>();
    } else if (stages_ == 4) {
      ptx::wait_copies<2>();
    } else if (stages_ == 3) {
      ptx::wait_copies<1>();
    } else {
      ptx::wait_copies<0>();
    }
    __syncthreads();
  }

  CopiesA copies_a_;
  CopiesB copies_b_;
  ptx::SharedAddress shared_;
  int stages_;
  uint32_t ring_bytes_;
  int depth_steps_, filled_ = 0;
  bool wide_;
  uint32_t filling_ = 0, reading_ = 0;  // the stages that copies go to and fragments come from
};

// Calls body(kAAlongK, kBAlongK, source of A, source of B), the first two constants, which launches the kernel: the sources
// are where the operands lie, or copies that are made in the call's workspace.
template <class T, class Body>
cudaError_t launch_layout(const Call& call, Body&& body) {
  Boxes boxes_a, boxes_b;
  const cudaError_t error = pack_operands(call, boxes_a, boxes_b);
  if (error != cudaSuccess) return error;
  const Source a = source_of(boxes_a), b = source_of(boxes_b);
  return with_directions<staged_any_direction(sizeof(T))>(
      boxes_a.along_k, boxes_b.along_k,
      [&](auto a_along_k, auto b_along_k) { return body(a_along_k, b_along_k, a, b); });
}

// Launches a kernel with a block a tile, the prepared launch `step`. kernel_of(kAAlongK, kBAlongK) is the kernel; `more`: its last
// arguments.
template <class Shape, class T, class KernelOf, class... More>
cudaError_t launch_stages(const Call& call, int step, KernelOf&& kernel_of, const More&... more) {
  const Problem& p = call.problem;
  return launch_layout<T>(call, [&](auto a_along_k, auto b_along_k, const Source& a, const Source& b) {
    return launch(kernel_of(a_along_k, b_along_k), call.step(step), a, b, static_cast<Result<T>*>(call.c),
                  static_cast<const Result<T>*>(call.bias), p.m, p.n, static_cast<int>(inner_batches_of(p)),
                  call.prepared.stages, Tiles<Shape::kTileM, Shape::kTileN>(p), more...);
  });
}

}  // namespace treduce::matmul::staged
