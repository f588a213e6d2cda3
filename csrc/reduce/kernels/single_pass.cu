// Idea: the block that finishes last adds the partials. One launch, and still a fixed order, because the partials lie in an
// array by block number and it does not matter who reads them.
//
// After:   atomic, which gave up the order; vectorized, which needed a second launch. The same bits as vectorized.
// Mapping: as vectorized; then each block writes its partial, makes it visible (__threadfence) and counts itself. The one that
//          counts to the end reduces all partials with a block-wide loop and tree.
// Bound:   memory bandwidth for large inputs; for small ones the launch, one trip to memory and one more for the counter.
// Note:    the counter wraps back to zero by itself, so a captured graph can be replayed without a memset. It belongs to one
//          stream or one captured call; see common/counters.h.
// Source:  NVIDIA's threadFenceReduction sample; Nicholas Wilt, The CUDA Handbook (2013), Reduction4.
#include "../../primitives/block.cuh"
#include "../../primitives/grid.cuh"
#include "../../primitives/thread.cuh"
#include "../rung.h"

namespace treduce::reduce::single_pass {

template <class O, class In>
__global__ void __launch_bounds__(kMaxBlock)
    kernel(const In* x, int64_t n, typename O::Acc* partials, unsigned* counter, Result result) {
  auto value = block::reduce<O>(thread::reduce_vectors<O>(x, n, blockIdx.x, gridDim.x));
  if (gridDim.x == 1) {
    if (threadIdx.x == 0) result.store<O>(value);
    return;
  }
  if (threadIdx.x == 0) partials[blockIdx.x] = value;
  if (!grid::arrive_last(counter, gridDim.x)) return;
  value = block::reduce_partials<O>(partials, gridDim.x);
  if (threadIdx.x == 0) result.store<O>(value);
}

cudaError_t launch_one(const Call& call) {
  return dispatch_op(call, [&](auto op, auto type) {
    using O = decltype(op);
    using In = typename decltype(type)::type;
    Launch shape;
    shape.grid = call.plan->grid();
    shape.block = call.plan->block;
    shape.stream = call.stream;
    return launch(&kernel<O, In>, shape, static_cast<const In*>(call.input), call.n,
                  static_cast<typename O::Acc*>(call.workspace), call.counter, call.result);
  });
}

const Rung<launch_one> rung("single_pass");

}  // namespace treduce::reduce::single_pass
