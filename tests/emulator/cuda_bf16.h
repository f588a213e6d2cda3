// Pairs of 16-bit floats, as far as kernels compute with them.
#pragma once

#include <cmath>
#include <cstdint>

#include "../../csrc/common/float16.h"
#include "vector_types.h"

struct alignas(4) __half2 {
  treduce::float16 x, y;
};
struct alignas(4) __nv_bfloat162 {
  treduce::bfloat16 x, y;
};

namespace emulator {

// The same of both; each is rounded once.
template <class Of>
__half2 of_each(Of of) {
  return {treduce::float16::from(of(0)), treduce::float16::from(of(1))};
}
inline float half_of(const __half2& pair, int i) { return static_cast<float>(i == 0 ? pair.x : pair.y); }

}  // namespace emulator

inline treduce::float16 __ushort_as_half(unsigned short bits) { return {bits}; }
inline __half2 __floats2half2_rn(float x, float y) {
  return emulator::of_each([=](int i) { return i == 0 ? x : y; });
}
inline __half2 __float2half2_rn(float x) { return __floats2half2_rn(x, x); }
inline __half2 __half2half2(treduce::float16 x) { return {x, x}; }
inline float __low2float(__half2 pair) { return emulator::half_of(pair, 0); }
inline float __high2float(__half2 pair) { return emulator::half_of(pair, 1); }
inline float2 __half22float2(__half2 pair) { return {__low2float(pair), __high2float(pair)}; }
inline __half2 __habs2(__half2 a) {
  return {{static_cast<uint16_t>(a.x.bits & 0x7fff)}, {static_cast<uint16_t>(a.y.bits & 0x7fff)}};
}
inline __half2 __hadd2(__half2 a, __half2 b) {
  return emulator::of_each([=](int i) { return emulator::half_of(a, i) + emulator::half_of(b, i); });
}
inline __half2 __hmul2(__half2 a, __half2 b) {
  return emulator::of_each([=](int i) { return emulator::half_of(a, i) * emulator::half_of(b, i); });
}
// Of small whole numbers, whose products and sums float32 holds.
inline __half2 __hfma2(__half2 a, __half2 b, __half2 c) {
  return emulator::of_each(
      [=](int i) { return emulator::half_of(a, i) * emulator::half_of(b, i) + emulator::half_of(c, i); });
}
inline __half2 __hge2(__half2 a, __half2 b) {
  return emulator::of_each([=](int i) { return emulator::half_of(a, i) >= emulator::half_of(b, i) ? 1.0f : 0.0f; });
}

inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) {
  return {treduce::bfloat16::from(x), treduce::bfloat16::from(y)};
}
