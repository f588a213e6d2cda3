// Idea: the block that finishes last adds the partials. One launch, and a fixed order: the partials lie in an array by block
// number, and it does not matter who adds them.
//
// After:   atomic, which gave up the order; vectorized, which needed a second launch. The same bits as vectorized.
// Mapping: as vectorized up to the block's value. Each block writes it to partials and counts itself; the one that counts to the
//          end adds all partials.
// Bound:   memory bandwidth for large inputs; for small ones the launch, a trip to memory for the data and one for the counter.
// Next:    cooperative waits for all blocks with a barrier of the grid in place of a counter.
// Note:    the counter wraps to zero by itself, so a captured graph is replayed without a memset. It belongs to one stream or one
//          captured call; see common/counters.h.
// Source:  NVIDIA's threadFenceReduction sample; Nicholas Wilt, The CUDA Handbook (2013), Reduction4.
#include "../../primitives/block.cuh"
#include "../../primitives/ptx/atomic.cuh"
#include "../../primitives/shared.cuh"
#include "../../primitives/thread.cuh"
#include "../rung.h"

namespace treduce::reduce::single_pass {

template <class O, class In>
__global__ void __launch_bounds__(kMaxBlock)
    kernel(In x, int64_t n, typename O::Acc* partials, unsigned* counter, Result result) {
  using Acc = typename O::Acc;
  Acc value = block::reduce<O>(thread::reduce_vectors<O>(x, n, blockIdx.x, gridDim.x));
  if (gridDim.x == 1) {
    if (threadIdx.x == 0) result.store<O>(value);
    return;
  }

  // Write the partial, then count this block. The increment is an acquire-release operation: it releases this block's partial
  // and acquires those of the blocks that counted before. (atomicInc would need a __threadfence() before it and one after.)
  // It returns the count before, and wraps to zero at the last block.
  SHARED_ARRAY(int, last, 1);
  if (threadIdx.x == 0) {
    partials[blockIdx.x] = value;
    last[0] = ptx::increment_acq_rel(counter, gridDim.x - 1) == gridDim.x - 1;
  }
  __syncthreads();
  if (!last[0]) return;

  // The last block adds all partials, in their order. Other blocks wrote them, so they are read past the L1.
  value = O::identity();
  for (int64_t i = threadIdx.x; i < gridDim.x; i += blockDim.x) value = O::combine(value, __ldcg(partials + i));
  value = block::reduce<O>(value);
  if (threadIdx.x == 0) result.store<O>(value);
}

cudaError_t launch_one(const Call& call) {
  return dispatch_op(call, [&](auto op, auto x) {
    using O = decltype(op);
    using In = decltype(x);
    return launch(&kernel<O, In>, call.shape(), x, call.request.geometry.length,
                  call.region<typename O::Acc>("partials"), call.counter, call.result);
  });
}

const Rung<launch_one> rung("single_pass");

}  // namespace treduce::reduce::single_pass
