// What one thread does by itself: index arithmetic in 64 bits, folds in registers, and walking an array in 16-byte loads.
// Any thread may call any of it, alone; results are valid in that thread. Nothing uses shared memory or synchronises.
#pragma once

#include <cuda_runtime.h>

#include "functors.h"

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

// Folds v[0 .. kCount) by neighbours and returns the value: (v0 + v1) + (v2 + v3) for four. Missing neighbours are left out.
// Who calls: any thread, alone. Valid in: that thread. Needs: registers, for kCount is known. Nobody synchronises.
template <class Op, int kCount>
TREDUCE_DEVICE typename Op::Acc fold_neighbours(typename Op::Acc (&v)[kCount]) {
#pragma unroll
  for (int s = 1; s < kCount; s *= 2) {
#pragma unroll
    for (int c = 0; c + s < kCount; c += 2 * s) v[c] = Op::combine(v[c], v[c + s]);
  }
  return v[0];
}

// The accumulators of a thread that walks vectors. Floats: one a component, so that the order of additions is fixed and no
// addition waits for its neighbour. Integers are exact in any order: one for all components.
template <class Op, class In>
struct Accumulators {
  using Acc = typename Op::Acc;
  static constexpr int kSize = Vector<In>::kSize;
  static constexpr int kCount = std::is_integral_v<Acc> ? 1 : kSize;
  Acc at[kCount];

  TREDUCE_DEVICE Accumulators() {
#pragma unroll
    for (int c = 0; c < kCount; ++c) at[c] = Op::identity();
  }

  TREDUCE_DEVICE void take(const Vector<In>& vector) {
    if constexpr (kCount == 1 && kSize > 1) {
      // Bytes and shorts fold in 32 bits, which sixteen of them cannot overflow: half the instructions of 64 bits.
      using Narrow = typename Op::template As<std::conditional_t<sizeof(In) <= 2, int32_t, Acc>>;
      typename Narrow::Acc folded = widen<typename Narrow::Acc>(vector.at[0]);
#pragma unroll
      for (int c = 1; c < kSize; ++c) {
        folded = Narrow::combine(folded, widen<typename Narrow::Acc>(vector.at[c]));
      }
      at[0] = Op::combine(at[0], static_cast<Acc>(folded));
    } else {
#pragma unroll
      for (int c = 0; c < kSize; ++c) at[c] = Op::combine(at[c], widen<Acc>(vector.at[c]));
    }
  }

  // One element of a vector that the array's end cuts off.
  TREDUCE_DEVICE void take(In element, int component) {
    Acc& mine = at[kCount == 1 ? 0 : component];
    mine = Op::combine(mine, widen<Acc>(element));
  }
};

// acc takes the vectors at i, i + step, i + 2 * step, ... that begin below n, in this order. kLoadsInFlight loads are issued
// before the first of them is used, which changes when the data arrives, not the order of the additions.
template <class Op, bool kAligned, int kLoadsInFlight, class In>
TREDUCE_DEVICE void accumulate_vectors(Accumulators<Op, In>& acc, const In* x, int64_t n, int64_t i, int64_t step) {
  constexpr int kSize = Vector<In>::kSize;
  for (; i + (kLoadsInFlight - 1) * step + kSize <= n; i += kLoadsInFlight * step) {
    Vector<In> row[kLoadsInFlight];
#pragma unroll
    for (int j = 0; j < kLoadsInFlight; ++j) row[j] = load<kAligned>(x, i + j * step);
#pragma unroll
    for (int j = 0; j < kLoadsInFlight; ++j) acc.take(row[j]);
  }
  for (; i + kSize <= n; i += step) acc.take(load<kAligned>(x, i));
#pragma unroll
  for (int c = 0; c < kSize; ++c) {
    if (i + c < n) acc.take(x[i + c], c);
  }
}

// This thread's share of a grid-stride walk in vectors, folded to one value: vector v of the array belongs to thread
// v mod (blocks * blockDim.x). `block` and `blocks` are parameters, not blockIdx and gridDim, so that a grid can play a larger
// one.
template <class Op, int kLoadsInFlight = 4, class In>
TREDUCE_DEVICE typename Op::Acc reduce_vectors(const In* x, int64_t n, int64_t block, int64_t blocks) {
  constexpr int kSize = Vector<In>::kSize;
  Accumulators<Op, In> acc;
  const int64_t step = blocks * blockDim.x * kSize;
  const int64_t i = (block * blockDim.x + threadIdx.x) * kSize;
  // One branch here, not one at each load: the loop stays a run of independent loads.
  if (is_aligned(x)) {
    accumulate_vectors<Op, true, kLoadsInFlight>(acc, x, n, i, step);
  } else {
    accumulate_vectors<Op, false, kLoadsInFlight>(acc, x, n, i, step);
  }
  return fold<Op>(acc.at);
}

}  // namespace treduce::thread
