// Values that lie apart, one after another, with many loads in flight. Any thread may call it, alone; nobody synchronises.
#pragma once

#include <cuda_runtime.h>

#include "ptx/opaque.cuh"

namespace treduce::thread {

// Calls use(value) for `count` values, one at least, from *from on, `step` apart, in their order. kAtOnce are asked for before the first of
// them is used, if the kernel's launch bounds say how many blocks share a multiprocessor: else the compiler saves registers, and waits for
// a load or two at a time.
template <int kAtOnce, class T, class Use>
TREDUCE_DEVICE void for_each_in_order(const T* from, int64_t step, int count, Use use) {
#pragma unroll 1
  for (int first = 0; first < count; first += kAtOnce) {
    T values[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      values[i] = *from;
      if (first + i + 1 < count) from += step;  // past the last one the last again: without a branch
    }
    const int left = ptx::kept(count - first);  // compared anew: there are not as many predicates
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (i < left) use(values[i]);
    }
  }
}

}  // namespace treduce::thread
