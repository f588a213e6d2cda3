// Idea: a barrier for the whole grid. All blocks write their partials, the grid synchronises, block 0 adds them.
//
// After:   single_pass, which counted blocks. The same bits as vectorized.
// Mapping: a grid barrier needs every block resident, and the plan may have more blocks than the chip holds. So the launch has as
//          many as fit, P, and block p executes the plan's blocks p, p + P, p + 2P, ...: who executes a block changes no bit.
// Bound:   as single_pass; but every block waits for the slowest, and a cooperative launch costs a little more.
// Next:    cluster synchronises eight blocks, in hardware.
// Source:  Mark Harris and Kyrylo Perelygin, Cooperative Groups: Flexible CUDA Thread Programming (2017).
#include <algorithm>

#include "../../primitives/block.cuh"
#include "../../primitives/grid_sync.cuh"
#include "../../primitives/thread.cuh"
#include "../rung.h"

namespace treduce::reduce::cooperative {

template <class O, class In>
__global__ void __launch_bounds__(kMaxBlock)
    kernel(In x, int64_t n, int64_t blocks, typename O::Acc* partials, Result result) {
  for (int64_t b = blockIdx.x; b < blocks; b += gridDim.x) {
    const auto value = block::reduce<O>(thread::reduce_vectors<O>(x, n, b, blocks));
    if (threadIdx.x == 0) partials[b] = value;
    __syncthreads();  // block::reduce's shared slots are free again
  }
  grid::sync();
  if (blockIdx.x > 0) return;
  const auto value = blocks == 1 ? partials[0] : block::reduce_partials<O>(partials, blocks);
  if (threadIdx.x == 0) result.store<O>(value);
}

// How many blocks of this kernel the current device holds at once.
template <class Kernel>
cudaError_t resident_blocks(Kernel kernel, int block, int64_t* count) {
  int device = 0, processors = 0, each = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) error = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  if (error == cudaSuccess) error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, kernel, block, 0);
  *count = static_cast<int64_t>(each) * processors;
  return error;
}

cudaError_t launch_one(const Call& call) {
  return dispatch_op(call, [&](auto op, auto x) -> cudaError_t {
    using O = decltype(op);
    using In = decltype(x);
    // The one launch that is not as prepared: how many blocks fit is known to the driver alone.
    Launch shape = call.shape();
    int64_t resident = 0;
    const cudaError_t error = resident_blocks(&kernel<O, In>, shape.block, &resident);
    if (error != cudaSuccess) return error;
    shape.grid = std::min(shape.grid, resident);
    return launch(&kernel<O, In>, shape, x, call.request.geometry.length, call.prepared.plan.grid(),
                  call.region<typename O::Acc>("partials"), call.result);
  });
}

const Rung<launch_one> rung("cooperative");

}  // namespace treduce::reduce::cooperative
