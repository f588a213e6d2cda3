// Warp-group matrix multiply-accumulate (sm_90a): 128 threads multiply a 64 x k tile by a k x N tile, both in shared
// memory, into N / 2 registers a thread, while the threads go on. One wrapper an instruction.
//
// Registers: warp w of the group holds rows 16 w to 16 w + 15. Register i of lane l is the output of
//            row 16 w + l / 4 + 8 * (i / 2 % 2) and column 8 * (i / 4) + l % 4 * 2 + i % 2.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "../../common/float16.h"
#include "../../common/macros.h"

// Kernels of warp groups have code for sm_90a alone; for other chips they are empty and never launched.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || defined(TREDUCE_EMULATOR)
#define TREDUCE_SM90A 1
#endif

namespace treduce::ptx {

// The element type of float32 operands that are read with ten bits of fraction.
struct tfloat32 {};

}  // namespace treduce::ptx

#ifdef TREDUCE_EMULATOR
#include "emulator_warp_groups.h"
#else
namespace treduce::ptx {

// Before the first multiplication, and whenever other code has written accumulators: orders those writes before it.
TREDUCE_DEVICE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

// Closes a group: the multiplications since the last call. All 128 threads.
TREDUCE_DEVICE void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Waits until at most kPending committed groups are unfinished.
template <int kPending>
TREDUCE_DEVICE void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// Tells the compiler that the registers change here: what waits for wgmma_wait() must not be moved above it.
template <int kCount>
TREDUCE_DEVICE void wgmma_touch(float (&registers)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(registers[i])::"memory");
}

template <int kCount>
TREDUCE_DEVICE void wgmma_touch(uint32_t (&registers)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+r"(registers[i])::"memory");
}

// Gives registers back, or takes some, so that a thread has kRegisters. Who calls: all threads of the warp group.
template <int kRegisters>
TREDUCE_DEVICE void release_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
TREDUCE_DEVICE void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// Whichever of the two changes kNow registers into kRegisters; neither if they are equal.
template <int kRegisters, int kNow>
TREDUCE_DEVICE void set_registers() {
  if constexpr (kRegisters < kNow) release_registers<kRegisters>();
  if constexpr (kRegisters > kNow) take_registers<kRegisters>();
}

#define TREDUCE_R0                                                         \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define TREDUCE_R32                                                                  \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define TREDUCE_R64                                                                  \
  "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
  "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define TREDUCE_R96                                                                              \
  "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
  "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
// R: the constraint of a register, "+f" or "+r".
#define TREDUCE_D4(R, i) R(d[i]), R(d[i + 1]), R(d[i + 2]), R(d[i + 3])
#define TREDUCE_D16(R, i) TREDUCE_D4(R, i), TREDUCE_D4(R, i + 4), TREDUCE_D4(R, i + 8), TREDUCE_D4(R, i + 12)
#define TREDUCE_D32(R, i) TREDUCE_D16(R, i), TREDUCE_D16(R, i + 16)
#define TREDUCE_REGISTERS_8 "%0, %1, %2, %3"
#define TREDUCE_OUTPUTS_8(R) TREDUCE_D4(R, 0)
#define TREDUCE_REGISTERS_16 "%0, %1, %2, %3, %4, %5, %6, %7"
#define TREDUCE_OUTPUTS_16(R) TREDUCE_D4(R, 0), TREDUCE_D4(R, 4)
#define TREDUCE_REGISTERS_24 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11"
#define TREDUCE_OUTPUTS_24(R) TREDUCE_OUTPUTS_16(R), TREDUCE_D4(R, 8)
#define TREDUCE_REGISTERS_32 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define TREDUCE_OUTPUTS_32(R) TREDUCE_D16(R, 0)
#define TREDUCE_REGISTERS_48 TREDUCE_REGISTERS_32 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define TREDUCE_OUTPUTS_48(R) TREDUCE_OUTPUTS_32(R), TREDUCE_D4(R, 16), TREDUCE_D4(R, 20)
#define TREDUCE_REGISTERS_64 TREDUCE_R0
#define TREDUCE_OUTPUTS_64(R) TREDUCE_D32(R, 0)
#define TREDUCE_REGISTERS_80 TREDUCE_R0 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define TREDUCE_OUTPUTS_80(R) TREDUCE_OUTPUTS_64(R), TREDUCE_D4(R, 32), TREDUCE_D4(R, 36)
#define TREDUCE_REGISTERS_96 \
  TREDUCE_R0 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define TREDUCE_OUTPUTS_96(R) TREDUCE_OUTPUTS_64(R), TREDUCE_D16(R, 32)
#define TREDUCE_REGISTERS_112 TREDUCE_REGISTERS_96 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define TREDUCE_OUTPUTS_112(R) TREDUCE_OUTPUTS_96(R), TREDUCE_D4(R, 48), TREDUCE_D4(R, 52)
#define TREDUCE_REGISTERS_128 TREDUCE_R0 ", " TREDUCE_R32
#define TREDUCE_OUTPUTS_128(R) TREDUCE_OUTPUTS_64(R), TREDUCE_D32(R, 32)
#define TREDUCE_REGISTERS_176                                                                                        \
  TREDUCE_REGISTERS_128                                                                                              \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, " \
  "%86, %87"
#define TREDUCE_OUTPUTS_176(R) TREDUCE_OUTPUTS_128(R), TREDUCE_D16(R, 64), TREDUCE_D4(R, 80), TREDUCE_D4(R, 84)
#define TREDUCE_REGISTERS_192 TREDUCE_REGISTERS_128 ", " TREDUCE_R64
#define TREDUCE_OUTPUTS_192(R) TREDUCE_OUTPUTS_128(R), TREDUCE_D32(R, 64)
#define TREDUCE_REGISTERS_224 \
  TREDUCE_REGISTERS_192       \
  ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111"
#define TREDUCE_OUTPUTS_224(R) TREDUCE_OUTPUTS_192(R), TREDUCE_D16(R, 96)
#define TREDUCE_REGISTERS_256 TREDUCE_REGISTERS_192 ", " TREDUCE_R96
#define TREDUCE_OUTPUTS_256(R) TREDUCE_OUTPUTS_192(R), TREDUCE_D32(R, 96)

// d = A B, or d += A B where `accumulate` is not zero, for the operands that the descriptors describe. kTransposeA and
// kTransposeB: the operand's lines, not k, are contiguous (16-bit types alone).
template <class T, int kN, bool kTransposeA, bool kTransposeB>
struct Wgmma;

// P, A, B, X and Y are the numbers of the operands after the N / 2 registers.
#define TREDUCE_WGMMA16(N, TYPE, NAME, A, B, P, X, Y)                                                                  \
  template <bool kTransposeA, bool kTransposeB>                                                                        \
  struct Wgmma<TYPE, N, kTransposeA, kTransposeB> {                                                                    \
    TREDUCE_DEVICE static void multiply(float (&d)[N / 2], uint64_t a, uint64_t b, int accumulate) {                   \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" P ", 0;\nwgmma.mma_async.sync.aligned.m64n" #N "k16.f32." NAME \
                   "." NAME " {" TREDUCE_REGISTERS_##N "}, %" A ", %" B ", p, 1, 1, %" X ", %" Y ";\n}"                \
                   : TREDUCE_OUTPUTS_##N("+f")                                                                         \
                   : "l"(a), "l"(b), "r"(accumulate), "n"(int(kTransposeA)), "n"(int(kTransposeB)));                   \
    }                                                                                                                  \
  };
#define TREDUCE_WGMMA32(N, A, B, P)                                                                    \
  template <>                                                                                          \
  struct Wgmma<tfloat32, N, false, false> {                                                            \
    TREDUCE_DEVICE static void multiply(float (&d)[N / 2], uint64_t a, uint64_t b, int accumulate) {   \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" P ", 0;\nwgmma.mma_async.sync.aligned.m64n" #N \
                   "k8.f32.tf32.tf32 {" TREDUCE_REGISTERS_##N "}, %" A ", %" B ", p, 1, 1;\n}"         \
                   : TREDUCE_OUTPUTS_##N("+f")                                                         \
                   : "l"(a), "l"(b), "r"(accumulate));                                                 \
    }                                                                                                  \
  };
// Sums of int8 wrap.
#define TREDUCE_WGMMA8(N, A, B, P)                                                                      \
  template <>                                                                                           \
  struct Wgmma<int8_t, N, false, false> {                                                               \
    TREDUCE_DEVICE static void multiply(uint32_t (&d)[N / 2], uint64_t a, uint64_t b, int accumulate) { \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" P ", 0;\nwgmma.mma_async.sync.aligned.m64n" #N  \
                   "k32.s32.s8.s8 {" TREDUCE_REGISTERS_##N "}, %" A ", %" B ", p;\n}"                   \
                   : TREDUCE_OUTPUTS_##N("+r")                                                          \
                   : "l"(a), "l"(b), "r"(accumulate));                                                  \
    }                                                                                                   \
  };
#define TREDUCE_WGMMA(N, A, B, P, X, Y)               \
  TREDUCE_WGMMA16(N, float16, "f16", A, B, P, X, Y)   \
  TREDUCE_WGMMA16(N, bfloat16, "bf16", A, B, P, X, Y) \
  TREDUCE_WGMMA32(N, A, B, P)                         \
  TREDUCE_WGMMA8(N, A, B, P)

TREDUCE_WGMMA(8, "4", "5", "6", "7", "8")
TREDUCE_WGMMA(16, "8", "9", "10", "11", "12")
TREDUCE_WGMMA(24, "12", "13", "14", "15", "16")
TREDUCE_WGMMA(32, "16", "17", "18", "19", "20")
TREDUCE_WGMMA(48, "24", "25", "26", "27", "28")
TREDUCE_WGMMA(64, "32", "33", "34", "35", "36")
TREDUCE_WGMMA(80, "40", "41", "42", "43", "44")
TREDUCE_WGMMA(96, "48", "49", "50", "51", "52")
TREDUCE_WGMMA(112, "56", "57", "58", "59", "60")
TREDUCE_WGMMA(128, "64", "65", "66", "67", "68")
TREDUCE_WGMMA(176, "88", "89", "90", "91", "92")
TREDUCE_WGMMA(192, "96", "97", "98", "99", "100")
TREDUCE_WGMMA(224, "112", "113", "114", "115", "116")
TREDUCE_WGMMA(256, "128", "129", "130", "131", "132")

// The same of tfloat32 with A in registers, as mma.sync has it: a[0] is row l / 4 of the warp's 16 and step l % 4 of k, a[1] eight
// rows on, a[2] and a[3] four steps of k on. B has k contiguous.
template <class T, int kN>
struct WgmmaRegisters;

#define TREDUCE_WGMMA_REGISTERS(N, A0, A1, A2, A3, B, P)                                                         \
  template <>                                                                                                    \
  struct WgmmaRegisters<tfloat32, N> {                                                                           \
    TREDUCE_DEVICE static void multiply(float (&d)[N / 2], const uint32_t (&a)[4], uint64_t b, int accumulate) { \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" P ", 0;\nwgmma.mma_async.sync.aligned.m64n" #N           \
                   "k8.f32.tf32.tf32 {" TREDUCE_REGISTERS_##N "}, {%" A0 ", %" A1 ", %" A2 ", %" A3 "}, %" B     \
                                                              ", p, 1, 1;\n}"                                    \
                   : TREDUCE_OUTPUTS_##N("+f")                                                                   \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate));                       \
    }                                                                                                            \
  };
TREDUCE_WGMMA_REGISTERS(8, "4", "5", "6", "7", "8", "9")
TREDUCE_WGMMA_REGISTERS(16, "8", "9", "10", "11", "12", "13")
TREDUCE_WGMMA_REGISTERS(32, "16", "17", "18", "19", "20", "21")
TREDUCE_WGMMA_REGISTERS(64, "32", "33", "34", "35", "36", "37")
TREDUCE_WGMMA_REGISTERS(128, "64", "65", "66", "67", "68", "69")
TREDUCE_WGMMA_REGISTERS(256, "128", "129", "130", "131", "132", "133")

// d += A B of 16-bit types with A in registers likewise: a[0] is row l / 4 of the warp's 16 and steps of k l % 4 * 2 and one more, a[1]
// eight rows on, a[2] and a[3] eight steps of k on. kTransposeB: the lines of B are contiguous, not k.
template <class T, int kN, bool kTransposeB>
struct WgmmaHeld;

#define TREDUCE_WGMMA_HELD_OF(TYPE, NAME, N, A0, A1, A2, A3, B, P, Y)                                                  \
  template <bool kTransposeB>                                                                                          \
  struct WgmmaHeld<TYPE, N, kTransposeB> {                                                                             \
    TREDUCE_DEVICE static void multiply(float (&d)[N / 2], const uint32_t (&a)[4], uint64_t b, int accumulate) {       \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" P ", 0;\nwgmma.mma_async.sync.aligned.m64n" #N "k16.f32." NAME \
                   "." NAME " {" TREDUCE_REGISTERS_##N "}, {%" A0 ", %" A1 ", %" A2 ", %" A3 "}, %" B ", p, 1, 1, %" Y \
                                                       ";\n}"                                                          \
                   : TREDUCE_OUTPUTS_##N("+f")                                                                         \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate), "n"(int(kTransposeB)));      \
    }                                                                                                                  \
  };
#define TREDUCE_WGMMA_HELD(N, A0, A1, A2, A3, B, P, Y)              \
  TREDUCE_WGMMA_HELD_OF(float16, "f16", N, A0, A1, A2, A3, B, P, Y) \
  TREDUCE_WGMMA_HELD_OF(bfloat16, "bf16", N, A0, A1, A2, A3, B, P, Y)
TREDUCE_WGMMA_HELD(8, "4", "5", "6", "7", "8", "9", "10")
TREDUCE_WGMMA_HELD(16, "8", "9", "10", "11", "12", "13", "14")
TREDUCE_WGMMA_HELD(32, "16", "17", "18", "19", "20", "21", "22")
TREDUCE_WGMMA_HELD(64, "32", "33", "34", "35", "36", "37", "38")
TREDUCE_WGMMA_HELD(128, "64", "65", "66", "67", "68", "69", "70")

#undef TREDUCE_WGMMA_HELD
#undef TREDUCE_WGMMA_HELD_OF
#undef TREDUCE_WGMMA_REGISTERS
#undef TREDUCE_WGMMA
#undef TREDUCE_WGMMA16
#undef TREDUCE_WGMMA32
#undef TREDUCE_WGMMA8
#undef TREDUCE_REGISTERS_8
#undef TREDUCE_OUTPUTS_8
#undef TREDUCE_REGISTERS_16
#undef TREDUCE_OUTPUTS_16
#undef TREDUCE_REGISTERS_32
#undef TREDUCE_OUTPUTS_32
#undef TREDUCE_REGISTERS_64
#undef TREDUCE_OUTPUTS_64
#undef TREDUCE_REGISTERS_128
#undef TREDUCE_OUTPUTS_128
#undef TREDUCE_REGISTERS_192
#undef TREDUCE_OUTPUTS_192
#undef TREDUCE_REGISTERS_256
#undef TREDUCE_OUTPUTS_256
#undef TREDUCE_D4
#undef TREDUCE_D16
#undef TREDUCE_D32
#undef TREDUCE_R0
#undef TREDUCE_R32
#undef TREDUCE_R64
#undef TREDUCE_R96

}  // namespace treduce::ptx
#endif
