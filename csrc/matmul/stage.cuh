// How the tiles of A and B come to shared memory, for the rungs whose idea is another.
#pragma once

#include <cuda_runtime.h>

#include "../primitives/thread.cuh"
#include "rung.h"

namespace treduce::matmul {

// Accumulators in 16 bytes: what one shared-memory instruction of a thread reads.
template <class T>
constexpr int kFragment = 16 / sizeof(Acc<T>);

// An operand as a tile of C sees it. A line is a row of A, or a column of B: k elements that one row, or one column, of the
// tile's outputs needs. With lines, A and B are the same thing.
template <class T>
struct Lines {
  const T* data;         // element 0 of the tile's first line
  int64_t stride, step;  // from line to line; from element to element, along k
  int64_t count;         // lines from here to the edge: at least one

  TREDUCE_DEVICE const T* at(int64_t line, int64_t l) const { return data + line * stride + l * step; }
};

template <class T>
TREDUCE_DEVICE Lines<T> rows_of(const T* a, const Problem& p, const Offsets& at, int64_t row) {
  return {a + at.a + row * p.a_row, p.a_row, p.a_column, p.m - row};
}
template <class T>
TREDUCE_DEVICE Lines<T> columns_of(const T* b, const Problem& p, const Offsets& at, int64_t column) {
  return {b + at.b + column * p.b_column, p.b_column, p.b_row, p.n - column};
}

// body(l) for l = 0, 1, ... as far as the step of kStep, or the `left` elements, go. The last step is not filled up with
// zeros: adding their products would turn an accumulator of -0, which underflow can leave, into +0.
template <int kStep, class Body>
TREDUCE_DEVICE void along_step(int64_t left, Body body) {
  if (left >= kStep) {
#pragma unroll
    for (int l = 0; l < kStep; ++l) body(l);
  } else {
#pragma unroll 1
    for (int l = 0; l < left; ++l) body(l);
  }
}

// Which neighbours in memory the lanes of a warp read: elements of a line, or the same element of neighbouring lines. One
// at a time, or 16 bytes where strides, alignment and edges allow that.
enum class Way { k, lines, k_vectors, lines_vectors };

template <class T>
TREDUCE_HOST_DEVICE Way way_of(const T* data, int64_t stride, int64_t step, int64_t lines, int64_t batch_multiple) {
  constexpr int kSize = thread::Vector<T>::kSize;
  const bool aligned = thread::is_aligned(data) && batch_multiple % kSize == 0;
  if (step == 1) return aligned && stride % kSize == 0 ? Way::k_vectors : Way::k;
  return aligned && stride == 1 && step % kSize == 0 && lines % kSize == 0 ? Way::lines_vectors : Way::lines;
}

// Copies kLines lines, kStep elements of each, so that element l of a line lies at to[l * kRow + line]: for each l, the
// fragments of neighbouring lines are 16 bytes side by side. kRow is a fragment longer than kLines, so that a warp that reads
// along k and writes down a column of this layout meets other banks with every element.
template <class T, int kLines, int kStep, int kThreads>
struct Stage {
  static constexpr int kRow = kLines + kFragment<T>;
  static constexpr int kSize = kStep * kRow;
  static constexpr int kVector = thread::Vector<T>::kSize;

  Lines<T> from;
  Way way;

  TREDUCE_DEVICE explicit Stage(const Lines<T>& lines)
      : from(lines), way(way_of(lines.data, lines.stride, lines.step, lines.count, 0)) {}

  // All threads call it; who reads `to` synchronises before and after. Lines past the edge and elements past `left` are not
  // copied: what they would give is not stored, or not added.
  TREDUCE_DEVICE void copy(Acc<T>* to, int64_t begin, int64_t left) const {
    const int t = threadIdx.x;
    if (way == Way::k_vectors && left >= kStep) {
      constexpr int kAcross = kStep / kVector;
#pragma unroll
      for (int i = t; i < kLines * kAcross; i += kThreads) {
        const int line = i / kAcross, l = i % kAcross * kVector;
        if (line >= from.count) continue;
        const auto vector = thread::load<true>(from.at(line, begin + l), 0);
#pragma unroll
        for (int e = 0; e < kVector; ++e) to[(l + e) * kRow + line] = static_cast<Acc<T>>(vector.at[e]);
      }
    } else if (way == Way::lines_vectors) {
      constexpr int kAcross = kLines / kVector;
#pragma unroll
      for (int i = t; i < kStep * kAcross; i += kThreads) {
        const int line = i % kAcross * kVector, l = i / kAcross;
        if (line >= from.count || l >= left) continue;
        const auto vector = thread::load<true>(from.at(line, begin + l), 0);
#pragma unroll
        for (int f = 0; f < kVector; f += kFragment<T>) {
          Acc<T> fragment[kFragment<T>];
#pragma unroll
          for (int e = 0; e < kFragment<T>; ++e) fragment[e] = static_cast<Acc<T>>(vector.at[f + e]);
          int4 words;
          memcpy(&words, fragment, sizeof(words));
          *reinterpret_cast<int4*>(to + l * kRow + line + f) = words;
        }
      }
    } else {
      const bool along_k = way == Way::k || way == Way::k_vectors;
#pragma unroll 4
      for (int i = t; i < kLines * kStep; i += kThreads) {
        const int line = along_k ? i / kStep : i % kLines, l = along_k ? i % kStep : i / kLines;
        if (line < from.count && l < left) to[l * kRow + line] = static_cast<Acc<T>>(*from.at(line, begin + l));
      }
    }
  }
};

}  // namespace treduce::matmul
