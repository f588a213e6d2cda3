// Reductions within a warp. All 32 lanes must call, converged.
#pragma once

#include <cuda_runtime.h>

#include "../common/macros.h"

namespace treduce::warp {

constexpr int kLanes = 32;
constexpr unsigned kFullMask = 0xffffffffu;

// Tree by halves over the registers of `kWidth` consecutive lanes. Valid in lane 0 of each group. No shared memory.
template <class Op, int kWidth = kLanes>
TREDUCE_DEVICE typename Op::Acc reduce(typename Op::Acc value) {
#pragma unroll
  for (int s = kWidth / 2; s > 0; s /= 2) {
    value = Op::combine(value, __shfl_down_sync(kFullMask, value, s, kWidth));
  }
  return value;
}

}  // namespace treduce::warp
