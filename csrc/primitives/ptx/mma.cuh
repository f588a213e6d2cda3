// Matrix multiply-accumulate by one warp, d += A B, with A, B and d spread over the registers of its lanes (sm_80 and
// later). All 32 lanes call, converged. One wrapper an instruction.
//
// Registers: lane l is g = l / 4, t = l % 4.
//            d, m x 8:  0, 1: row g, columns 2 t and 2 t + 1; 2, 3: row g + 8, the same columns.
//            A, of 32-bit words along k: word 0: row g, word t of the first half of k; 1: row g + 8; 2, 3: the second half.
//            B likewise: word 0: column g, word t of the first half of k; 1: the second half.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "../../common/float16.h"
#include "../../common/macros.h"

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
#define TREDUCE_MMA 1
#endif

#ifdef TREDUCE_EMULATOR
#include "emulator_mma.h"
#else
namespace treduce::ptx {

// 16 x 16 times 16 x 8, two elements a word. mma.m16n8k16.
TREDUCE_DEVICE void multiply([[maybe_unused]] float16 type, float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                             uint32_t b1) {
#ifdef TREDUCE_MMA
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
      "%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#endif
}

TREDUCE_DEVICE void multiply([[maybe_unused]] bfloat16 type, float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                             uint32_t b1) {
#ifdef TREDUCE_MMA
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
      "%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#endif
}

// 16 x 8 times 8 x 8, one float32 a word, of which ten bits of fraction are read: see round_to_tfloat32. mma.m16n8k8.
TREDUCE_DEVICE void multiply([[maybe_unused]] float type, float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                             uint32_t b1) {
#ifdef TREDUCE_MMA
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
      "%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#endif
}

// 16 x 32 times 32 x 8 of int8, four a word; the sums wrap. mma.m16n8k32.s8.
TREDUCE_DEVICE void multiply([[maybe_unused]] int8_t type, uint32_t (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                             uint32_t b1) {
#ifdef TREDUCE_MMA
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
      "%3};"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#endif
}

// Rounds a float32 to the ten bits of fraction that the tensor cores read, to nearest, halves away from zero.
// cvt.rna.tf32.
TREDUCE_DEVICE uint32_t round_to_tfloat32(uint32_t word) {
#ifdef TREDUCE_MMA
  uint32_t rounded;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(rounded) : "f"(__uint_as_float(word)));
  return rounded;
#else
  return word;
#endif
}

// The same, halves to even, as the copy engine rounds. cvt.rn.tf32 (sm_90 and later).
TREDUCE_DEVICE uint32_t round_to_even_tfloat32(uint32_t word) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  uint32_t rounded;
  asm("cvt.rn.tf32.f32 %0, %1;" : "=r"(rounded) : "f"(__uint_as_float(word)));
  return rounded;
#else
  return word;
#endif
}

// 16 x 4 f times 4 f x 8 of float64, for f = 1, 2 or 4. A: 2 i: row g, k 4 i + t; 2 i + 1: row g + 8. B: i: k 4 i + t, column g.
// The more at once the sooner they are done: of 16 steps of k in a chain 137, 100 and 83 cycles on an NVIDIA H200 (2026-11-22), with
// the same bits. mma.m16n8k4.f64, m16n8k8 and m16n8k16 (sm_90 and later), elsewhere mma.m8n8k4.f64.
template <int kA, int kFours>
TREDUCE_DEVICE void multiply(double (&d)[4], const double (&a)[kA], const double (&b)[kFours]) {
  static_assert(kA == 2 * kFours);
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  if constexpr (kFours == 1) {
    asm("mma.sync.aligned.m16n8k4.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+d"(d[0]), "+d"(d[1]), "+d"(d[2]), "+d"(d[3])
        : "d"(a[0]), "d"(a[1]), "d"(b[0]));
  } else if constexpr (kFours == 2) {
    asm("mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
        "%3};"
        : "+d"(d[0]), "+d"(d[1]), "+d"(d[2]), "+d"(d[3])
        : "d"(a[0]), "d"(a[1]), "d"(a[2]), "d"(a[3]), "d"(b[0]), "d"(b[1]));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, {%4, %5, %6, %7, %8, %9, %10, %11}, {%12, "
        "%13, %14, %15}, {%0, %1, %2, %3};"
        : "+d"(d[0]), "+d"(d[1]), "+d"(d[2]), "+d"(d[3])
        : "d"(a[0]), "d"(a[1]), "d"(a[2]), "d"(a[3]), "d"(a[4]), "d"(a[5]), "d"(a[6]), "d"(a[7]), "d"(b[0]), "d"(b[1]),
          "d"(b[2]), "d"(b[3]));
  }
#elif defined(TREDUCE_MMA)
#pragma unroll
  for (int four = 0; four < kFours; ++four) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      asm("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
          : "+d"(d[half * 2]), "+d"(d[half * 2 + 1])
          : "d"(a[four * 2 + half]), "d"(b[four]));
    }
  }
#endif
}

}  // namespace treduce::ptx
#endif
