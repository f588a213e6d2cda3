// Barriers of some of a block's threads, whole warps, by number: 1 to 15. One wrapper an instruction.
#pragma once

#include <cuda_runtime.h>

#include "../../common/macros.h"

#ifdef TREDUCE_EMULATOR
#include "emulator_barriers.h"
#else
namespace treduce::ptx {

// Waits for the kThreads threads that name the same barrier. bar.sync.
template <int kThreads>
TREDUCE_DEVICE void named_barrier(int id) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "n"(kThreads) : "memory");
}

// The same; whether one of the threads says so. barrier.red.or.
template <int kThreads>
TREDUCE_DEVICE bool named_any(int id, bool x) {
  int any;
  asm volatile(
      "{\n.reg .pred one, any;\n"
      "setp.ne.s32 one, %3, 0;\n"
      "barrier.cta.red.or.pred any, %1, %2, one;\n"
      "selp.s32 %0, 1, 0, any;\n}"
      : "=r"(any)
      : "r"(id), "n"(kThreads), "r"(static_cast<int>(x))
      : "memory");
  return any != 0;
}

// Arrives there without waiting: the other threads wait for these. bar.arrive.
template <int kThreads>
TREDUCE_DEVICE void named_arrive(int id) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "n"(kThreads) : "memory");
}

}  // namespace treduce::ptx
#endif
