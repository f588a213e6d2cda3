// Idea: the grid-stride loop and the unrolled tree together: a fixed number of blocks, of a size that the compiler knows.
//
// After:   two_pass_last_warp; the same additions, hence the same bits.
// Mapping: as before; a switch on the host picks one of six kernels, for blocks of 1 to 32, of 64, ... and of 1024 threads.
// Bound:   latency of the loads, as before. And the number of blocks, which must be capped near what the chip holds at once: with
//          n / T blocks the loop runs once, and this rung is slower than unrolled, which at least adds a pair.
// Next:    warp_shuffle runs the tree in registers.
// Source:  Mark Harris, Optimizing Parallel Reduction in CUDA (2007), reduction 7; Nicholas Wilt, The CUDA Handbook (2013),
//          Reduction3.
#include "../../primitives/shared.cuh"
#include "../../primitives/thread.cuh"
#include "../../primitives/warp.cuh"
#include "../rung.h"

namespace treduce::reduce::two_pass_unrolled {

template <class O, class In, int kBlock>
__global__ void __launch_bounds__(kBlock) kernel(In x, int64_t n, Output<O> output) {
  using Acc = typename O::Acc;
  Acc* slot = dynamic_shared<Acc>();
  const int t = threadIdx.x;
  Acc value = O::identity();
  for (int64_t i = thread::global_index(); i < n; i += thread::grid_threads()) {
    value = O::combine(value, widen<Acc>(x[i]));
  }
  slot[t] = value;
  __syncthreads();
  // The compiler settles every condition on kBlock: what is left is straight-line code of at most ten additions.
  if constexpr (kBlock >= 1024) {
    if (t < 512) slot[t] = O::combine(slot[t], slot[t + 512]);
    __syncthreads();
  }
  if constexpr (kBlock >= 512) {
    if (t < 256) slot[t] = O::combine(slot[t], slot[t + 256]);
    __syncthreads();
  }
  if constexpr (kBlock >= 256) {
    if (t < 128) slot[t] = O::combine(slot[t], slot[t + 128]);
    __syncthreads();
  }
  if constexpr (kBlock >= 128) {
    if (t < 64) slot[t] = O::combine(slot[t], slot[t + 64]);
    __syncthreads();
  }
  if (t < warp::kLanes) {
    Acc value = slot[t];
#pragma unroll
    for (int s = kBlock >= 64 ? 32 : kBlock / 2; s > 0; s /= 2) {
      if (kBlock == warp::kLanes && s >= static_cast<int>(blockDim.x)) continue;  // a block of less than a warp
      if (t < s) value = O::combine(value, slot[t + s]);
      __syncwarp();
      if (t < s) slot[t] = value;
      __syncwarp();
    }
  }
  if (t == 0) output.store(blockIdx.x, slot[0]);
}

struct Kernels {
  template <class O, class In>
  static auto pick(int block) {
    switch (block) {
      case 1024: return &kernel<O, In, 1024>;
      case 512: return &kernel<O, In, 512>;
      case 256: return &kernel<O, In, 256>;
      case 128: return &kernel<O, In, 128>;
      case 64: return &kernel<O, In, 64>;
      default: return &kernel<O, In, 32>;
    }
  }
};

const Rung<launch_ladder_passes<Kernels>> rung("two_pass_unrolled");

}  // namespace treduce::reduce::two_pass_unrolled
