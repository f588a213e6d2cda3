// Idea: a tree. In step s = 1, 2, 4, ... every 2s-th thread adds the value s further on, so T values take log2 T steps. The
// values stay in global memory, in a scratch copy, because the tree overwrites what it adds and the input must not change.
//
// After:   serial, which added one element at a time.
// Mapping: thread t of block b owns element bT + t of the scratch. The block's sum ends up in its first element, and the same
//          kernel runs on the blocks' sums until one is left.
// Bound:   memory traffic: a copy of the whole input, then log2 T steps that read and write through L1 and L2.
// Next:    interleaved_modulo keeps the tree in shared memory.
// Note:    the only rung whose scratch is as large as its input: one accumulator an element.
// Source:  Mark Harris, Optimizing Parallel Reduction in CUDA (2007).
#include "../../primitives/thread.cuh"
#include "../rung.h"

namespace treduce::reduce::global_memory {

template <class Acc, class In>
__global__ void __launch_bounds__(kMaxBlock) copy(In x, int64_t n, Acc* scratch) {
  const int64_t i = thread::global_index();
  if (i < n) scratch[i] = widen<Acc>(x[i]);
}

template <class O>
__global__ void __launch_bounds__(kMaxBlock) kernel(typename O::Acc* x, int64_t n, Output<O> output) {
  const int t = threadIdx.x;
  const int block = blockDim.x;
  const int64_t i = thread::global_index();

  for (int s = 1; s < block; s *= 2) {
    if (t % (2 * s) == 0 && i + s < n) x[i] = O::combine(x[i], x[i + s]);
    __syncthreads();
  }
  if (t == 0) output.store(blockIdx.x, n > 0 ? x[i] : O::identity());
}

cudaError_t launch_all(const Call& call) {
  return dispatch_op(call, [&](auto op, auto x) {
    using O = decltype(op);
    using In = decltype(x);
    using Acc = typename O::Acc;
    const Plan& plan = call.prepared.plan;
    Acc* values = call.region<Acc>("copy");
    cudaError_t error = launch(&copy<Acc, In>, call.shape(0), x, call.request.geometry.length, values);
    for (int p = 0; p < plan.pass_count && error == cudaSuccess; ++p) {
      const bool last = p + 1 == plan.pass_count;
      Acc* const partials = call.region<Acc>("partials") + plan.partials_before(p);
      const Output<O> output{last ? nullptr : partials, call.result};
      error = launch(&kernel<O>, call.shape(1 + p), values, plan.passes[p].n, output);
      values = partials;
    }
    return error;
  });
}

const Rung<launch_all> rung("global_memory");

}  // namespace treduce::reduce::global_memory
