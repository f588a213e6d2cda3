// The two 16-bit float formats as storage types, with conversions that give the same bits on the host and on the device.
//
// Arithmetic never happens in 16 bits here: values are widened to float32 (exact) and a result is rounded once, to nearest
// even, when it is stored. Every NaN is stored as the one quiet NaN of its format, because x86 and NVIDIA GPUs disagree on
// the sign and payload of a NaN that arithmetic makes.
#pragma once

#include <cstdint>
#include <cstring>

#include "macros.h"

#ifdef __CUDACC__
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#endif

namespace treduce {

template <class To, class From>
TREDUCE_HOST_DEVICE To bit_cast(const From& from) {
  static_assert(sizeof(To) == sizeof(From), "bit_cast needs equal sizes");
  To to;
  memcpy(&to, &from, sizeof(To));
  return to;
}

struct float16 {
  uint16_t bits;

  TREDUCE_HOST_DEVICE explicit operator float() const {
#ifdef __CUDA_ARCH__
    return __half2float(__ushort_as_half(bits));
#else
    // Shift exponent and mantissa into float32's place, then scale by 2^112: exact, and it handles subnormals.
    float scaled = bit_cast<float>(static_cast<uint32_t>(bits & 0x7fffu) << 13) * 0x1p112f;
    uint32_t magnitude = bit_cast<uint32_t>(scaled);
    magnitude |= (bits & 0x7c00u) == 0x7c00u ? 0x7f800000u : 0u;
    return bit_cast<float>(magnitude | static_cast<uint32_t>(bits & 0x8000u) << 16);
#endif
  }

  TREDUCE_HOST_DEVICE static float16 from(float value) {
    if (value != value) return {0x7e00u};
#ifdef __CUDA_ARCH__
    return {__half_as_ushort(__float2half_rn(value))};
#else
    const uint32_t word = bit_cast<uint32_t>(value);
    const uint32_t sign = word >> 16 & 0x8000u;
    uint32_t magnitude = word & 0x7fffffffu;
    if (magnitude >= 0x47800000u) return {static_cast<uint16_t>(sign | 0x7c00u)};  // 2^16 and above
    if (magnitude < 0x38800000u) {
      // Subnormal: adding 0.5 puts float16's last place at float32's last place, so the addition rounds for us.
      const float rounded = bit_cast<float>(magnitude) + 0.5f;
      return {static_cast<uint16_t>(sign | (bit_cast<uint32_t>(rounded) - 0x3f000000u))};
    }
    magnitude += 0xfffu + (magnitude >> 13 & 1u);  // half of a last place, ties to even
    return {static_cast<uint16_t>(sign | ((magnitude - 0x38000000u) >> 13))};
#endif
  }
};

struct bfloat16 {
  uint16_t bits;

  TREDUCE_HOST_DEVICE explicit operator float() const { return bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

  TREDUCE_HOST_DEVICE static bfloat16 from(float value) {
    if (value != value) return {0x7fc0u};
#ifdef __CUDA_ARCH__
    return {__bfloat16_as_ushort(__float2bfloat16_rn(value))};
#else
    const uint32_t word = bit_cast<uint32_t>(value);
    return {static_cast<uint16_t>((word + 0x7fffu + (word >> 16 & 1u)) >> 16)};
#endif
  }
};

// The two 8-bit floats, as inputs: they are widened and never written.
struct float8_e4m3fn {  // exponents to 8, no infinity; 0x7f and 0xff are NaN
  uint8_t bits;
  TREDUCE_HOST_DEVICE explicit operator float() const {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    // One instruction to float16, which holds every value.
    return static_cast<float>(float16{__nv_cvt_fp8_to_halfraw(bits, __NV_E4M3).x});
#endif
    const uint32_t magnitude = bits & 0x7fu, sign = static_cast<uint32_t>(bits & 0x80u) << 24;
    if (magnitude == 0x7fu) return bit_cast<float>(sign | 0x7fc00000u);
    // Exponent and mantissa move to float32's place; the difference of the biases is 120. Exact, subnormals too.
    return bit_cast<float>(bit_cast<uint32_t>(bit_cast<float>(magnitude << 20) * 0x1p120f) | sign);
  }
};

struct float8_e5m2 {  // the upper half of a float16
  uint8_t bits;
  TREDUCE_HOST_DEVICE explicit operator float() const {
    return static_cast<float>(float16{static_cast<uint16_t>(bits << 8)});
  }
};

}  // namespace treduce
