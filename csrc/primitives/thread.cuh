// What one thread does by itself: index arithmetic in 64 bits, folds in registers, and walking an array in 16-byte loads.
// Any thread may call any of it, alone; results are valid in that thread. Nothing uses shared memory or synchronises.
#pragma once

#include <cuda_runtime.h>

#include "integers.cuh"

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

// The elements of x in 16 bytes.
template <class T>
TREDUCE_DEVICE constexpr int vector_size(const T*) {
  return Vector<T>::kSize;
}
TREDUCE_DEVICE int vector_size(const Integers& x) { return 16 / x.element_size; }

// Integers lie as bytes in a vector.
template <bool kAligned>
TREDUCE_DEVICE Vector<uint8_t> load(const Integers& x, int64_t i) {
  return load<kAligned>(static_cast<const uint8_t*>(x.data), i * x.element_size);
}
TREDUCE_DEVICE bool is_aligned(const Integers& x) { return is_aligned(x.data); }

// The accumulators of a thread that walks vectors. Floats: one a component, so that the order of additions is fixed and no
// addition waits for its neighbour.
template <class Op, class In>
struct Accumulators;

template <class Op, class T>
struct Accumulators<Op, const T*> {
  using Acc = typename Op::Acc;
  static constexpr int kSize = Vector<T>::kSize;
  Acc at[kSize];

  TREDUCE_DEVICE explicit Accumulators(const T*) {
#pragma unroll
    for (int c = 0; c < kSize; ++c) at[c] = Op::identity();
  }

  TREDUCE_DEVICE void take(const Vector<T>& vector) {
#pragma unroll
    for (int c = 0; c < kSize; ++c) at[c] = Op::combine(at[c], widen<Acc>(vector.at[c]));
  }

  // x[i .. n), a vector that the array's end cuts off.
  TREDUCE_DEVICE void take_rest(const T* x, int64_t i, int64_t n) {
#pragma unroll
    for (int c = 0; c < kSize; ++c) {
      if (i + c < n) at[c] = Op::combine(at[c], widen<Acc>(x[i + c]));
    }
  }
};

// Integers are exact in any order: one for all components.
template <class Op>
struct Accumulators<Op, Integers> {
  int64_t at[1];
  DType dtype;

  TREDUCE_DEVICE explicit Accumulators(const Integers& x) : at{Op::identity()}, dtype(x.dtype) {}

  TREDUCE_DEVICE void take(const Vector<uint8_t>& vector) {
    int4 bytes;
    memcpy(&bytes, &vector, sizeof(bytes));
    at[0] = Op::combine(at[0], Integers::fold<Op>(dtype, bytes));
  }

  TREDUCE_DEVICE void take_rest(const Integers& x, int64_t i, int64_t n) {
#pragma unroll 1
    for (; i < n; ++i) at[0] = Op::combine(at[0], x[i]);
  }
};

// acc takes the vectors at i, i + step, i + 2 * step, ... that begin below n, in this order. kLoadsInFlight loads are issued
// before the first of them is used, which changes when the data arrives, not the order of the additions.
template <class Op, bool kAligned, int kLoadsInFlight, class In>
TREDUCE_DEVICE void accumulate_vectors(Accumulators<Op, In>& acc, const In& x, int64_t n, int64_t i, int64_t step) {
  const int size = vector_size(x);
  for (; i + (kLoadsInFlight - 1) * step + size <= n; i += kLoadsInFlight * step) {
    decltype(load<kAligned>(x, i)) row[kLoadsInFlight];
#pragma unroll
    for (int j = 0; j < kLoadsInFlight; ++j) row[j] = load<kAligned>(x, i + j * step);
#pragma unroll
    for (int j = 0; j < kLoadsInFlight; ++j) acc.take(row[j]);
  }
  for (; i + size <= n; i += step) acc.take(load<kAligned>(x, i));
  acc.take_rest(x, i, n);
}

// This thread's share of a grid-stride walk in vectors, folded to one value: vector v of the array belongs to thread
// v mod (blocks * blockDim.x). `block` and `blocks` are parameters, not blockIdx and gridDim, so that a grid can play a larger
// one.
template <class Op, int kLoadsInFlight = 4, class In>
TREDUCE_DEVICE typename Op::Acc reduce_vectors(In x, int64_t n, int64_t block, int64_t blocks) {
  const int size = vector_size(x);
  Accumulators<Op, In> acc(x);
  const int64_t step = blocks * blockDim.x * size;
  const int64_t i = (block * blockDim.x + threadIdx.x) * size;
  // One branch here, not one at each load: the loop stays a run of independent loads.
  if (is_aligned(x)) {
    accumulate_vectors<Op, true, kLoadsInFlight>(acc, x, n, i, step);
  } else {
    accumulate_vectors<Op, false, kLoadsInFlight>(acc, x, n, i, step);
  }
  return fold<Op>(acc.at);
}

}  // namespace treduce::thread
