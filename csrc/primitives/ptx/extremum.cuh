// The maximum and minimum of IEEE 754-2019, of floats: NaN wins, and +0 is above -0. One instruction where C++ takes five.
#pragma once

#include "../../common/macros.h"

namespace treduce::ptx {

// max.NaN.f32 and min.NaN.f32 (sm_80 and later). Other devices, hosts and the emulator compute it otherwise: see functors.h.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
#define TREDUCE_HAS_EXTREMUM 1
template <bool kMax>
TREDUCE_DEVICE float extremum(float a, float b) {
  float result;
  if constexpr (kMax) {
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
  } else {
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
  }
  return result;
}
#else
#define TREDUCE_HAS_EXTREMUM 0
#endif

}  // namespace treduce::ptx
