// How vectorized and warp_tiled copy tiles of A and B to shared memory.
#pragma once

#include <cuda_runtime.h>

#include "../primitives/thread.cuh"
#include "rung.h"

namespace treduce::matmul {

// Accumulators in 16 bytes, which a thread reads with one shared-memory instruction.
template <class T>
constexpr int kFragment = 16 / sizeof(Acc<T>);

// The part of an operand that a tile of C needs. A line is a row of A or a column of B: the k elements that a row, or a column,
// of outputs needs. In terms of lines, A and B are the same thing.
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

// Calls body(l) for l = 0, 1, ... up to kStep, or to `left` if fewer elements are left. The last step is not padded with zeros:
// adding their products would turn an accumulator of -0, which underflow can leave, into +0.
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

template <class T>
TREDUCE_HOST_DEVICE Way way_of(const T* data, int64_t stride, int64_t step, int64_t lines, int64_t batch_multiple) {
  constexpr int kSize = thread::Vector<T>::kSize;
  const bool aligned = thread::is_aligned(data) && batch_multiple % kSize == 0;
  if (step == 1) return aligned && stride % kSize == 0 ? Way::k_vectors : Way::k;
  return aligned && stride == 1 && step % kSize == 0 && lines % kSize == 0 ? Way::lines_vectors : Way::lines;
}

// Elements along k of a step: at least one 16-byte load of a line.
template <class T>
constexpr int kVectorStep = sizeof(T) == 1 ? 16 : 8;

// Copies kLines lines, kStep elements of each, so that element l of a line lies at to[l * kRow + line]: for each l, the
// fragments of neighbouring lines are 16 bytes side by side. kRow is a fragment longer than kLines, so that a warp that reads
// along k and writes down a column of this layout meets other banks with every element.
template <class T, int kLines, int kStep, int kThreads>
class Stage {
 public:
  static constexpr int kRow = kLines + kFragment<T>;
  static constexpr int kSize = kStep * kRow;

 private:
  static constexpr int kVector = thread::Vector<T>::kSize;
  static_assert(kStep % kVector == 0 && kLines % kVector == 0);

  // One walk for all ways: a thread begins at (line_, l_) of the tile and hops on until the tile is done. The hops are variables;
  // as constants of each way they would take more registers, because the compiler would keep those of all ways.
  Way way_;
  int line_, l_, line_hop_, l_hop_;
  int64_t hop_;    // both of them in memory
  int64_t step_;   // to the next tile
  const T* next_;  // what this thread reads first there

 public:
  const int count;  // lines of the tile up to the edge

  TREDUCE_DEVICE explicit Stage(const Lines<T>& lines)
      : way_(way_of(lines.data, lines.stride, lines.step, lines.count, 0)),
        count(static_cast<int>(lines.count < kLines ? lines.count : kLines)) {
    const bool along_k = way_ == Way::k || way_ == Way::k_vectors;
    const int width = way_ == Way::k || way_ == Way::lines ? 1 : kVector;
    const int across = (along_k ? kStep : kLines) / width;  // threads side by side
    const int x = threadIdx.x % across * width, y = threadIdx.x / across, down = kThreads / across;
    line_ = along_k ? y : x;
    l_ = along_k ? x : y;
    line_hop_ = along_k ? down : 0;
    l_hop_ = along_k ? 0 : down;
    hop_ = along_k ? down * lines.stride : down * lines.step;
    step_ = kStep * lines.step;
    next_ = lines.at(line_, l_);
  }

  // Copies the next step. Lines past the edge and elements past `left` are not copied: their outputs are not stored, or their
  // products not added.
  // Who calls: all threads of the block; the caller synchronises before and after.
  TREDUCE_DEVICE void copy(Acc<T>* to, int64_t left) {
    const int limit = static_cast<int>(left < kStep ? left : kStep);
    const bool vectors = way_ == Way::lines_vectors || (way_ == Way::k_vectors && limit == kStep);
    if (vectors) {
      walk<kVector>([&](const T* from, int line, int l) {
        if (line >= count || l >= limit) return;
        const auto vector = thread::load<true>(from, 0);
        if (way_ == Way::k_vectors) {
#pragma unroll
          for (int e = 0; e < kVector; ++e) to[(l + e) * kRow + line] = static_cast<Acc<T>>(vector.at[e]);
        } else {
#pragma unroll
          for (int f = 0; f < kVector; f += kFragment<T>) store_fragment(to + l * kRow + line + f, vector.at + f);
        }
      });
    } else if (way_ == Way::k_vectors) {
      // The last step may end within a vector.
      walk<kVector>([&](const T* from, int line, int l) {
        for (int e = 0; line < count && l + e < limit && e < kVector; ++e) {
          to[(l + e) * kRow + line] = static_cast<Acc<T>>(from[e]);
        }
      });
    } else {
      walk<1>([&](const T* from, int line, int l) {
        if (line < count && l < limit) to[l * kRow + line] = static_cast<Acc<T>>(*from);
      });
    }
    next_ += step_;
  }

 private:
  // Calls body(address, line, l) for everything that this thread copies, kWidth elements at a time.
  template <int kWidth, class Body>
  TREDUCE_DEVICE void walk(Body body) const {
    constexpr int kCopies = (kLines * kStep / kWidth + kThreads - 1) / kThreads;
    const T* from = next_;
    int line = line_, l = l_;
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      body(from, line, l);
      from += hop_;
      line += line_hop_;
      l += l_hop_;
    }
  }

  TREDUCE_DEVICE static void store_fragment(Acc<T>* to, const T* elements) {
    Acc<T> fragment[kFragment<T>];
#pragma unroll
    for (int e = 0; e < kFragment<T>; ++e) fragment[e] = static_cast<Acc<T>>(elements[e]);
    int4 words;
    memcpy(&words, fragment, sizeof(words));
    *reinterpret_cast<int4*>(to) = words;
  }
};

}  // namespace treduce::matmul
