// Idea: keep many bytes in flight. A load takes 16 bytes, and four loads are issued before the first is used: memory answers
// after some 600 cycles, and the bytes requested meanwhile set the bandwidth.
//
// After:   warp_shuffle, whose loads have one element. The tree (block::reduce) is the same, now a primitive.
// Mapping: thread g of G * T takes vectors g, g + GT, ... of 16 bytes. Each component of a vector has an accumulator of its own,
//          folded by halves at the end. A pointer that is not 16-byte aligned is read element by element into the same
//          accumulators: slower, the same bits.
// Bound:   memory bandwidth for large inputs; for small ones the second launch.
// Next:    atomic needs no second launch for the partials.
// Source:  Justin Luitjens, CUDA Pro Tip: Increase Performance with Vectorized Memory Access (2013).
#include "../../primitives/block.cuh"
#include "../../primitives/thread.cuh"
#include "../rung.h"

namespace treduce::reduce::vectorized {

// Sixteen bytes of x from element i on: one load where x is aligned, else one an element.
template <bool kAligned, class T>
TREDUCE_DEVICE thread::Vector<T> load(const T* x, int64_t i) {
  thread::Vector<T> vector;
  if constexpr (kAligned) {
    const int4 words = __ldg(reinterpret_cast<const int4*>(x + i));
    memcpy(&vector, &words, sizeof(vector));
  } else {
#pragma unroll
    for (int c = 0; c < thread::Vector<T>::kSize; ++c) vector.at[c] = x[i + c];
  }
  return vector;
}
template <bool kAligned>
TREDUCE_DEVICE auto load(const Integers& x, int64_t i) {
  return thread::load<kAligned>(x, i);
}

// Adds the vectors of x at i, i + step, i + 2 * step, ... to acc: four loads, then four additions.
template <bool kAligned, class O, class In>
TREDUCE_DEVICE void add_vectors(thread::Accumulators<O, In>& acc, In x, int64_t n, int64_t i, int64_t step) {
  const int size = thread::vector_size(x);  // elements in 16 bytes: 4 of float32
  constexpr int kInFlight = 4;
  for (; i + (kInFlight - 1) * step + size <= n; i += kInFlight * step) {
    decltype(load<kAligned>(x, i)) vector[kInFlight];
#pragma unroll
    for (int j = 0; j < kInFlight; ++j) vector[j] = load<kAligned>(x, i + j * step);
#pragma unroll
    for (int j = 0; j < kInFlight; ++j) acc.take(vector[j]);
  }
  for (; i + size <= n; i += step) acc.take(load<kAligned>(x, i));
  acc.take_rest(x, i, n);  // the tail, fewer elements than a vector: one thread has it
}

// What this thread of the grid adds up.
template <class O, class In>
TREDUCE_DEVICE typename O::Acc sum_of_thread(In x, int64_t n, int64_t block, int64_t blocks) {
  const int size = thread::vector_size(x);
  thread::Accumulators<O, In> acc(x);  // one for each component of a vector
  const int64_t step = blocks * blockDim.x * size;
  const int64_t i = (block * blockDim.x + threadIdx.x) * size;
  if (thread::is_aligned(x)) {  // one branch here, not one a load
    add_vectors<true>(acc, x, n, i, step);
  } else {
    add_vectors<false>(acc, x, n, i, step);
  }
  return thread::fold<O>(acc.at);
}

// Blocks a multiprocessor; 0 leaves it to the compiler, which for float16 would spill registers to local memory.
template <class In>
constexpr int kBlocks = std::is_same_v<In, const float16*> ? 1 : 0;

template <class O, class In>
__global__ void __launch_bounds__(kMaxBlock, kBlocks<In>) kernel(In x, int64_t n, Output<O> output) {
  const auto value = block::reduce<O>(sum_of_thread<O>(x, n, blockIdx.x, gridDim.x));
  if (threadIdx.x == 0) output.store(blockIdx.x, value);
}

template <class O>
__global__ void __launch_bounds__(kMaxBlock)
    second_pass(const typename O::Acc* partials, int64_t count, Output<O> output) {
  const auto value = block::reduce_partials<O>(partials, count);
  if (threadIdx.x == 0) output.store(0, value);
}

cudaError_t launch_both(const Call& call) {
  return dispatch_op(call, [&](auto op, auto x) {
    using O = decltype(op);
    using In = decltype(x);
    const Plan& plan = call.prepared.plan;
    auto* partials = call.region<typename O::Acc>("partials");
    const bool one_block = plan.grid() == 1;
    const cudaError_t error = launch(&kernel<O, In>, call.shape(0), x, call.request.geometry.length,
                                     Output<O>{one_block ? nullptr : partials, call.result});
    if (error != cudaSuccess || one_block) return error;
    return launch(&second_pass<O>, call.shape(1), partials, plan.grid(), Output<O>{nullptr, call.result});
  });
}

const Rung<launch_both> rung("vectorized");

}  // namespace treduce::reduce::vectorized
