// 2^x and the logarithm to base 2 of float32 in one instruction each, within two units in the last place. For softmax whose exponentials
// are rounded to 16 bits: elementary.h has functions with the same bits on every chip.
#pragma once

#include <cmath>

#include "../../common/macros.h"

namespace treduce::ptx {

// exp2(0) is 1, exp2(-infinity) is 0, and subnormal results become 0. ex2.approx.ftz.f32.
TREDUCE_DEVICE float exp2(float x) {
#ifdef __CUDA_ARCH__
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
#else
  return ::exp2f(x);
#endif
}

// log2(1) is 0. lg2.approx.f32.
TREDUCE_DEVICE float log2(float x) {
#ifdef __CUDA_ARCH__
  float result;
  asm("lg2.approx.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
#else
  return ::log2f(x);
#endif
}

}  // namespace treduce::ptx
