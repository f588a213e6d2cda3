// What one thread does by itself: index arithmetic in 64 bits, and walking an array in 16-byte loads.
#pragma once

#include <cuda_runtime.h>

#include "../reduce/functors.h"

namespace treduce::thread {

// The global index of this thread in a 1-D grid. 64 bits: a grid can hold more than 2^31 threads.
TREDUCE_DEVICE int64_t global_index() { return static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; }
TREDUCE_DEVICE int64_t grid_threads() { return static_cast<int64_t>(gridDim.x) * blockDim.x; }

// Sixteen bytes of consecutive elements in registers.
template <class T>
struct Vector {
  static constexpr int kSize = 16 / sizeof(T);
  T at[kSize];
};

// Loads x[i .. i + kSize). kAligned says that x + i lies on a 16-byte boundary: one 128-bit load then, single loads otherwise.
template <bool kAligned, class T>
TREDUCE_DEVICE Vector<T> load(const T* x, int64_t i) {
  Vector<T> vector;
  if constexpr (kAligned) {
    const int4 words = __ldg(reinterpret_cast<const int4*>(x + i));
    memcpy(&vector, &words, sizeof(vector));
  } else {
#pragma unroll
    for (int c = 0; c < Vector<T>::kSize; ++c) vector.at[c] = x[i + c];
  }
  return vector;
}

template <class T>
TREDUCE_HOST_DEVICE bool is_aligned(const T* x) {
  return reinterpret_cast<uintptr_t>(x) % 16 == 0;
}

// Folds v[0 .. kCount) by halves and returns the value: (v0 + v2) + (v1 + v3) for four.
template <class Op, int kCount>
TREDUCE_DEVICE typename Op::Acc fold(typename Op::Acc (&v)[kCount]) {
#pragma unroll
  for (int s = kCount / 2; s > 0; s /= 2) {
#pragma unroll
    for (int c = 0; c < s; ++c) v[c] = Op::combine(v[c], v[c + s]);
  }
  return v[0];
}

// acc[c] takes component c of the vectors at i, i + step, i + 2 * step, ... that begin below n, in this order. kLoadsInFlight
// loads are issued before the first of them is used, which changes when the data arrives, not the order of the additions.
template <class Op, bool kAligned, int kLoadsInFlight, class In>
TREDUCE_DEVICE void accumulate_vectors(typename Op::Acc (&acc)[Vector<In>::kSize], const In* x, int64_t n, int64_t i,
                                       int64_t step) {
  using Acc = typename Op::Acc;
  constexpr int kSize = Vector<In>::kSize;
  for (; i + (kLoadsInFlight - 1) * step + kSize <= n; i += kLoadsInFlight * step) {
    Vector<In> row[kLoadsInFlight];
#pragma unroll
    for (int j = 0; j < kLoadsInFlight; ++j) row[j] = load<kAligned>(x, i + j * step);
#pragma unroll
    for (int j = 0; j < kLoadsInFlight; ++j) {
#pragma unroll
      for (int c = 0; c < kSize; ++c) acc[c] = Op::combine(acc[c], reduce::widen<Acc>(row[j].at[c]));
    }
  }
  for (; i + kSize <= n; i += step) {
    const Vector<In> row = load<kAligned>(x, i);
#pragma unroll
    for (int c = 0; c < kSize; ++c) acc[c] = Op::combine(acc[c], reduce::widen<Acc>(row.at[c]));
  }
#pragma unroll
  for (int c = 0; c < kSize; ++c) {
    if (i + c < n) acc[c] = Op::combine(acc[c], reduce::widen<Acc>(x[i + c]));
  }
}

// This thread's share of a grid-stride walk in vectors, an accumulator a component, folded to one value: vector v of the array
// belongs to thread v mod (blocks * blockDim.x). `block` and `blocks` are parameters, not blockIdx and gridDim, so that a grid
// can play a larger one.
template <class Op, int kLoadsInFlight = 4, class In>
TREDUCE_DEVICE typename Op::Acc reduce_vectors(const In* x, int64_t n, int64_t block, int64_t blocks) {
  constexpr int kSize = Vector<In>::kSize;
  typename Op::Acc acc[kSize];
#pragma unroll
  for (int c = 0; c < kSize; ++c) acc[c] = Op::identity();

  const int64_t step = blocks * blockDim.x * kSize;
  const int64_t i = (block * blockDim.x + threadIdx.x) * kSize;
  // One branch here, not one at each load: the loop stays a run of independent loads.
  if (is_aligned(x)) {
    accumulate_vectors<Op, true, kLoadsInFlight>(acc, x, n, i, step);
  } else {
    accumulate_vectors<Op, false, kLoadsInFlight>(acc, x, n, i, step);
  }
  return fold<Op>(acc);
}

}  // namespace treduce::thread
