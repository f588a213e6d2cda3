// Idea: 16 bytes a load and a store: a quarter of the instructions for float32, a sixteenth for int8.
//
// After:   grid_1d and grid_2d.
// Mapping: thread g of G takes vectors g, g + G, g + 2G, ... The loop runs once unless the grid is at its limit: several waves of
//          blocks overlap reads and writes, which a grid capped at what the chip holds does not. Arrays that do not begin on
//          16-byte boundaries are accessed element by element. The tail after the last whole vector goes to the thread whose vector
//          it would begin.
// Bound:   memory bandwidth. This is the benchmark's ceiling for reading two arrays and writing one.
// Source:  Justin Luitjens, CUDA Pro Tip: Increase Performance with Vectorized Memory Access (2013).
#include "../../primitives/thread.cuh"
#include "../rung.h"

namespace treduce::elementwise::vectorized {

template <bool kAligned, class T>
TREDUCE_DEVICE void store(T* c, int64_t i, const thread::Vector<T>& vector) {
  if constexpr (kAligned) {
    int4 words;
    memcpy(&words, &vector, sizeof(words));
    *reinterpret_cast<int4*>(c + i) = words;
  } else {
#pragma unroll
    for (int e = 0; e < thread::Vector<T>::kSize; ++e) c[i + e] = vector.at[e];
  }
}

template <class T, bool kAligned>
__global__ void __launch_bounds__(kMaxBlock) kernel(const T* a, const T* b, T* c, int64_t n) {
  constexpr int kSize = thread::Vector<T>::kSize;
  const int64_t step = thread::grid_threads() * kSize;
  int64_t i = thread::global_index() * kSize;
  for (; i + kSize <= n; i += step) {
    const thread::Vector<T> x = thread::load<kAligned>(a, i);
    const thread::Vector<T> y = thread::load<kAligned>(b, i);
    thread::Vector<T> sum;
#pragma unroll
    for (int e = 0; e < kSize; ++e) sum.at[e] = add(x.at[e], y.at[e]);
    store<kAligned>(c, i, sum);
  }
  for (; i < n; ++i) {
    c[i] = add(a[i], b[i]);  // the tail, fewer elements than a vector: one thread has it
  }
}

cudaError_t launch_one(const Call& call) {
  return launch_parts(call, [&](const Launch& shape, auto* a, auto* b, auto* c, int64_t) {
    using T = std::decay_t<decltype(*c)>;
    return launch(call.prepared.vectors ? &kernel<T, true> : &kernel<T, false>, shape, a, b, c, call.request.n);
  });
}

const Rung<launch_one> rung("vectorized");

}  // namespace treduce::elementwise::vectorized
