// What wmma.cu needs beside its idea: the types of its fragments, tiles of the operands in shared memory, and the way of the sums
// to C through shared memory.
#pragma once

#include <mma.h>

#include "../primitives/shared.cuh"
#include "rung.h"

// bfloat16 and tfloat32 came with sm_80; for an older chip the kernel is empty.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
#define TREDUCE_WMMA 1
#endif

namespace treduce::matmul::wmma {

using nvcuda::wmma::fill_fragment;
using nvcuda::wmma::load_matrix_sync;
using nvcuda::wmma::mma_sync;
using nvcuda::wmma::store_matrix_sync;

// How a fragment names the element type, and its k.
template <class T>
struct Kind;
template <>
struct Kind<float16> {
  using Element = __half;
  using Precision = __half;
  static constexpr int kDepth = 16;
};
template <>
struct Kind<bfloat16> {
  using Element = __nv_bfloat16;
  using Precision = __nv_bfloat16;
  static constexpr int kDepth = 16;
};
template <>
struct Kind<float> {  // read with ten bits of fraction
  using Element = float;
#ifdef TREDUCE_WMMA
  using Precision = nvcuda::wmma::precision::tf32;
#else
  using Precision = float;
#endif
  static constexpr int kDepth = 8;
};

constexpr int kSide = 16;  // rows and columns of sums in a fragment

// kAlongK: k is what is contiguous in the tile.
template <class T, bool kAlongK>
using FragmentA =
    nvcuda::wmma::fragment<nvcuda::wmma::matrix_a, kSide, kSide, Kind<T>::kDepth, typename Kind<T>::Precision,
                           std::conditional_t<kAlongK, nvcuda::wmma::row_major, nvcuda::wmma::col_major>>;
template <class T, bool kAlongK>
using FragmentB =
    nvcuda::wmma::fragment<nvcuda::wmma::matrix_b, kSide, kSide, Kind<T>::kDepth, typename Kind<T>::Precision,
                           std::conditional_t<kAlongK, nvcuda::wmma::col_major, nvcuda::wmma::row_major>>;
template <class T>
using SumFragment = nvcuda::wmma::fragment<nvcuda::wmma::accumulator, kSide, kSide, Kind<T>::kDepth, float>;

constexpr int kAlignment = 32;  // bytes: of every fragment in shared memory
struct alignas(kAlignment) Unit {
  char bytes[kAlignment];
};

// As the tensor core reads an element: of float32 it takes ten bits of the fraction.
TREDUCE_DEVICE float rounded(float value) {
#ifdef TREDUCE_WMMA
  return nvcuda::wmma::__float_to_tf32(value);
#else
  return value;
#endif
}
TREDUCE_DEVICE float16 rounded(float16 value) { return value; }
TREDUCE_DEVICE bfloat16 rounded(bfloat16 value) { return value; }

// One operand of a matrix product. Lines are rows of A, columns of B.
template <class T>
struct Source {
  const T* data;
  int64_t line_stride, depth_stride;
  bool wide;  // chunks of 16 bytes, at multiples of kChunk along the unit stride, may be read at once
};

// kLines lines of kDepth elements in shared memory. What is contiguous in memory, k or the lines, is contiguous here.
template <class T, int kLines, int kDepth, int kThreads, bool kAlongK>
struct Tile {
  static constexpr int kChunk = 16 / sizeof(T);
  static constexpr int kInner = kAlongK ? kDepth : kLines, kOuter = kAlongK ? kLines : kDepth;
  static constexpr int kPitch = kInner + kChunk;
  static constexpr int kBytes = kOuter * kPitch * static_cast<int>(sizeof(T));
  static_assert(kBytes % kAlignment == 0);

  // Where a fragment begins.
  TREDUCE_DEVICE static const typename Kind<T>::Element* at(const T* tile, int line, int k) {
    return reinterpret_cast<const typename Kind<T>::Element*>(tile + (kAlongK ? line * kPitch + k : k * kPitch + line));
  }

  // The rows of chunks that the block's threads copy at once, and this thread's place among them.
  static constexpr int kChunksARow = kInner / kChunk, kRowsAtOnce = kThreads / kChunksARow;
  TREDUCE_DEVICE static int inner() { return threadIdx.x % kChunksARow * kChunk; }
  TREDUCE_DEVICE static int outer() { return threadIdx.x / kChunksARow; }

  // Where this thread reads first, of the lines that begin at `line`.
  TREDUCE_DEVICE static const T* first(const Source<T>& source, int64_t matrix, int64_t line) {
    return source.data + matrix + (line + (kAlongK ? outer() : inner())) * source.line_stride +
           (kAlongK ? inner() : outer()) * source.depth_stride;
  }

  // All threads of the block fill the tile; zeros where no `lines` or `depth` are left.
  TREDUCE_DEVICE static void load(T* tile, const T* from, const Source<T>& source, int lines, int64_t depth_left) {
    const int depth = static_cast<int>(min(depth_left, int64_t(kDepth)));
    const int64_t inner_stride = kAlongK ? source.depth_stride : source.line_stride;
    const int64_t outer_stride = kAlongK ? source.line_stride : source.depth_stride;
    const int inner_left = (kAlongK ? depth : lines) - inner();
    const int outer_left = (kAlongK ? lines : depth) - outer();
    T* to = tile + outer() * kPitch + inner();
    if (source.wide && lines == kLines && depth == kDepth) {
      alignas(16) T values[kOuter / kRowsAtOnce][kChunk];
#pragma unroll
      for (auto& chunk : values) {
        *reinterpret_cast<uint4*>(chunk) = *reinterpret_cast<const uint4*>(from);
        from += kRowsAtOnce * outer_stride;
      }
#pragma unroll
      for (auto& chunk : values) {
#pragma unroll
        for (T& value : chunk) value = rounded(value);
        *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(chunk);
        to += kRowsAtOnce * kPitch;
      }
    } else {
#pragma unroll 1
      for (int row = 0; row < kOuter; row += kRowsAtOnce) {
        const int left = row < outer_left ? inner_left : 0;
        const T* at = from;
#pragma unroll
        for (int i = 0; i < kChunk; ++i, at += inner_stride) to[i] = i < left ? rounded(*at) : T{};
        from += kRowsAtOnce * outer_stride;
        to += kRowsAtOnce * kPitch;
      }
    }
  }
};

// The sums leave by way of shared memory, which has the layout that fragments hide: a patch of kSide x kSide a warp.
struct Patch {
  static constexpr int kPitch = kSide + 4;
  static constexpr int kBytes = kSide * kPitch * static_cast<int>(sizeof(float));

  // Writes the patch to C from (row, column) of the tile on, whose first output is `to`; nothing past its `rows` and `columns`.
  // Who calls: every lane of the warp that filled it, after __syncwarp().
  template <class T>
  TREDUCE_DEVICE static void store(const float* patch, T* to, int64_t pitch, const T* bias, int row, int column,
                                   int rows, int columns) {
    const int lane = threadIdx.x % 32;
    column += lane % kSide;
    const bool adds = bias != nullptr && column < columns;
    const float value = adds ? static_cast<float>(bias[column]) : 0.0f;
#pragma unroll
    for (int r = lane / kSide; r < kSide; r += 32 / kSide) {
      if (row + r < rows && column < columns) {
        const float sum = patch[r * kPitch + lane % kSide];
        to[(row + r) * pitch + column] = round_to<T>(adds ? sum + value : sum);
      }
    }
  }
};

}  // namespace treduce::matmul::wmma
