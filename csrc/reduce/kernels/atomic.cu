// Idea: no partials. Each block adds its value to one accumulator in global memory with an atomic operation.
//
// After:   vectorized, whose second launch only adds the partials. The loop over vectors is now a primitive.
// Mapping: as vectorized up to the block's value; then one atomicAdd a block (a compare-and-swap loop for amax and amin).
// Bound:   memory bandwidth; the atomics of some hundred blocks hide behind the loads.
// Flaw:    blocks finish in any order and float addition is not associative, so two runs may differ in the last bits. (Integers,
//          amax and amin are exact in any order.) And the accumulator needs the identity before and rounding to the result after:
//          two more launches, of one thread each.
// Note:    the hardware's float32 atomicAdd takes subnormal operands and results for zero (PTX ISA, atom.add.f32).
// Next:    single_pass has one launch and a fixed order.
// Source:  Nicholas Wilt, The CUDA Handbook (2013).
#include "../../primitives/atomic.cuh"
#include "../../primitives/block.cuh"
#include "../../primitives/thread.cuh"
#include "../rung.h"

namespace treduce::reduce::atomic {

template <class O>
__global__ void begin(typename O::Acc* total) {
  *total = O::identity();
}

template <class O, class In>
__global__ void __launch_bounds__(kMaxBlock, 1) kernel(In x, int64_t n, typename O::Acc* total) {
  const auto value = block::reduce<O>(thread::reduce_vectors<O>(x, n, blockIdx.x, gridDim.x));
  if (threadIdx.x == 0) treduce::atomic::combine<O>(total, value);
}

template <class O>
__global__ void end(const typename O::Acc* total, Result result) {
  result.store<O>(*total);
}

cudaError_t launch_three(const Call& call) {
  return dispatch_op(call, [&](auto op, auto x) {
    using O = decltype(op);
    using In = decltype(x);
    auto* total = call.region<typename O::Acc>("total");
    cudaError_t error = launch(&begin<O>, call.shape(0), total);
    if (error == cudaSuccess) {
      error = launch(&kernel<O, In>, call.shape(1), x, call.request.geometry.length, total);
    }
    if (error == cudaSuccess) error = launch(&end<O>, call.shape(2), total, call.result);
    return error;
  });
}

const Rung<launch_three> rung("atomic");

}  // namespace treduce::reduce::atomic
