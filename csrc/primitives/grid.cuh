// Cooperation between the blocks of one launch.
#pragma once

#include <cuda_runtime.h>

#include "ptx/atomic.cuh"
#include "shared.cuh"
#include "warp.cuh"

namespace treduce::grid {

// Prefetches a counter to the L2, so that the atomic at the end does not wait for memory.
// Who calls: every thread of the block, before its loads; thread (0, 0) alone does it. Nobody synchronises.
TREDUCE_DEVICE void expect_arrival(const unsigned* counter) {
  if (threadIdx.x == 0 && threadIdx.y == 0) ptx::prefetch_l2(counter);
}

// True in every thread of the block that arrives last of `arrivals`, false in the others. The last block sees what each block's
// thread (0, 0) wrote to global memory before the call, and what its other threads wrote before a barrier that precedes the call.
// Who calls: every thread of each arriving block. Shared memory: one int, static. Synchronises the block once, after the atomic.
// `counter` is zero before the launch and zero again after it: the increment wraps, so a replay needs no memset.
TREDUCE_DEVICE bool arrive_last(unsigned* counter, unsigned arrivals) {
  SHARED_ARRAY(int, last, 1);
  if (threadIdx.x == 0 && threadIdx.y == 0) last[0] = ptx::increment_acq_rel(counter, arrivals - 1) == arrivals - 1;
  __syncthreads();
  return last[0] != 0;
}

// The same for one warp of each block: the lanes of the last warp see what each thread 0 wrote before the call.
// Who calls: the 32 lanes of the warp that thread 0 is in.
TREDUCE_DEVICE bool arrive_last_warp(unsigned* counter, int64_t arrivals) {
  const unsigned limit = static_cast<unsigned>(arrivals) - 1;
  unsigned before = 0;
  if (threadIdx.x == 0) before = ptx::increment_acq_rel(counter, limit);
  before = warp::from(before, 0);
  __syncwarp();  // the others may read what thread 0 acquired
  return before == limit;
}

}  // namespace treduce::grid
