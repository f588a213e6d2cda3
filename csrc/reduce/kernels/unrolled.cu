// Idea: the block size is a template argument. The compiler unrolls the whole tree and drops the steps that a smaller block does
// not have; a switch on the host picks one of six kernels.
//
// After:   last_warp; the same additions, hence the same bits.
// Mapping: as before.
// Bound:   the number of blocks. A thread still handles two elements: 2^26 elements launch 131,072 blocks of 256 threads, whose
//          start, drain and partials cost more than their additions.
// Next:    two_pass launches a fixed number of blocks and gives each thread many elements.
// Source:  Mark Harris, Optimizing Parallel Reduction in CUDA (2007), reduction 6.
#include "../../primitives/shared.cuh"
#include "../../primitives/thread.cuh"
#include "../../primitives/warp.cuh"
#include "../rung.h"

namespace treduce::reduce::unrolled {

template <class O, class In, int kBlock>
__global__ void __launch_bounds__(kBlock) kernel(In x, int64_t n, Output<O> output) {
  using Acc = typename O::Acc;
  Acc* slot = dynamic_shared<Acc>();
  const int t = threadIdx.x;
  const int64_t i = static_cast<int64_t>(blockIdx.x) * 2 * kBlock + t;

  Acc value = i < n ? widen<Acc>(x[i]) : O::identity();
  if (i + kBlock < n) value = O::combine(value, widen<Acc>(x[i + kBlock]));
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

const Rung<launch_ladder_passes<Kernels>> rung("unrolled");

}  // namespace treduce::reduce::unrolled
