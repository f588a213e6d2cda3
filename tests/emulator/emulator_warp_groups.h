// Multiplications of warp groups for the emulator: what csrc/primitives/ptx/wgmma.cuh gets from the hardware. A thread computes its own
// outputs where it waits for them, from what then lies in shared memory.
//
// Sums are those of emulator_mma.h.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "../../csrc/common/float16.h"
#include "asynchronous.h"
#include "emulator.h"
#include "emulator_copies.h"
#include "emulator_mma.h"

namespace treduce::ptx {

// A warp executes these together: what one lane says afterwards is true of all.
inline void wgmma_fence(::emulator::Site site = ::emulator::Site::here()) { ::emulator::warp_barrier(~0u, site); }
inline void wgmma_commit() { ::emulator::multiplications().close(); }
template <int kPending>
void wgmma_wait(::emulator::Site site = ::emulator::Site::here()) {
  ::emulator::multiplications().finish(kPending);
  ::emulator::warp_barrier(~0u, site);
}
template <class Register, int kCount>
void wgmma_touch(Register (&)[kCount]) {}
template <int kRegisters>
void release_registers() {}
template <int kRegisters>
void take_registers() {}
template <int kRegisters, int kNow>
void set_registers() {}

// An element as the tensor cores read it.
template <class T>
struct Multiplied {
  static constexpr int kBytes = sizeof(T);
  static double read(const unsigned char* from) {
    T value;
    memcpy(&value, from, sizeof(value));
    return static_cast<double>(static_cast<float>(value));
  }
};
template <>
struct Multiplied<tfloat32> {
  static constexpr int kBytes = 4;
  static double read(const unsigned char* from) {
    uint32_t word;
    memcpy(&word, from, sizeof(word));
    return static_cast<double>(__uint_as_float(word & ~0x1fffu));
  }
};

// An operand in shared memory: 32 bytes of k of its lines. PTX ISA, "Matrix descriptor".
template <class T, bool kTransposed>
class Described {
 public:
  static constexpr int kDepth = 32 / Multiplied<T>::kBytes;

  explicit Described(uint64_t descriptor)
      : start_((descriptor & 0x3fff) << 4),
        leading_((descriptor >> 16 & 0x3fff) << 4),
        stride_((descriptor >> 32 & 0x3fff) << 4),
        bits_(4 - static_cast<int>(descriptor >> 62)) {
    if (bits_ == 4) ::emulator::fail("multiplies a matrix whose rows are not swizzled", {"wgmma", 0});
    if (!kTransposed && bits_ != 3) {
      ::emulator::fail("multiplies a matrix whose lines are not swizzled by 128 bytes", {"wgmma", 0});
    }
  }
  double at(int line, int k) const {
    constexpr int kBytes = Multiplied<T>::kBytes;
    const int row = 16 << bits_, lines = row / kBytes;
    const uint32_t place = kTransposed ? line / lines * leading_ + k / 8 * stride_ + k % 8 * row + line % lines * kBytes
                                       : line / 8 * stride_ + line % 8 * 128 + k * kBytes;
    return Multiplied<T>::read(::emulator::shared_place(swizzled(start_ + place, bits_), kBytes));
  }

 private:
  uint32_t start_, leading_, stride_;
  int bits_;
};

// Begins d = A B, or d += A B where `accumulate` is not zero. of_a(row of the thread's two, k): A's elements.
template <class T, int kN, bool kTransposeB, class Sum, class OfA>
void begin_multiplication(Sum (&d)[kN / 2], OfA of_a, uint64_t b, int accumulate) {
  ::emulator::multiplications().add([&d, of_a, b = Described<T, kTransposeB>(b), accumulate] {
    constexpr int kDepth = Described<T, kTransposeB>::kDepth;
    const int t = ::emulator::lane() % 4;
    double rows[2][kDepth];
    for (int half = 0; half < 2; ++half) {
      for (int k = 0; k < kDepth; ++k) rows[half][k] = of_a(half, k);
    }
    for (int column = 0; column < kN / 4; ++column) {  // of this thread
      double of_b[kDepth];
      for (int k = 0; k < kDepth; ++k) of_b[k] = b.at(column / 2 * 8 + t * 2 + column % 2, k);
      for (int half = 0; half < 2; ++half) {
        Sum& to = d[column / 2 * 4 + half * 2 + column % 2];
        double sum = 0;
        for (int k = 0; k < kDepth; ++k) sum += rows[half][k] * of_b[k];
        if constexpr (std::is_integral_v<Sum>) {
          to = (accumulate != 0 ? to : 0) + static_cast<Sum>(static_cast<int64_t>(sum));
        } else {
          to = static_cast<Sum>((accumulate != 0 ? static_cast<double>(to) : 0.0) + sum);
        }
      }
    }
  });
}

template <class T, int kN, bool kTransposeA, bool kTransposeB>
struct Wgmma {
  template <class Sum>
  static void multiply(Sum (&d)[kN / 2], uint64_t a, uint64_t b, int accumulate) {
    const int row = static_cast<int>(threadIdx.x / 32 % 4 * 16) + ::emulator::lane() / 4;
    const auto of_a = [row, a = Described<T, kTransposeA>(a)](int half, int k) { return a.at(row + half * 8, k); };
    begin_multiplication<T, kN, kTransposeB>(d, of_a, b, accumulate);
  }
};

// A in registers: a warp's 16 rows. Words of lanes of a row follow one another along k.
template <class T, int kN, bool kTransposeB, class Sum>
void multiply_registers(Sum (&d)[kN / 2], const uint32_t (&a)[4], uint64_t b, int accumulate, ::emulator::Site site) {
  const Handed<4> held(a, site);
  const auto of_a = [held, g = ::emulator::lane() / 4](int half, int k) {
    constexpr int kBytes = Multiplied<T>::kBytes;
    const int byte = k * kBytes, word = byte / 4 % 4, half_of_k = byte / 16;
    return Multiplied<T>::read(reinterpret_cast<const unsigned char*>(held.words[g * 4 + word] + half_of_k * 2 + half) +
                               byte % 4);
  };
  begin_multiplication<T, kN, kTransposeB>(d, of_a, b, accumulate);
}

template <class T, int kN>
struct WgmmaRegisters {
  static void multiply(float (&d)[kN / 2], const uint32_t (&a)[4], uint64_t b, int accumulate,
                       ::emulator::Site site = ::emulator::Site::here()) {
    multiply_registers<T, kN, false>(d, a, b, accumulate, site);
  }
};
template <class T, int kN, bool kTransposeB>
struct WgmmaHeld {
  static void multiply(float (&d)[kN / 2], const uint32_t (&a)[4], uint64_t b, int accumulate,
                       ::emulator::Site site = ::emulator::Site::here()) {
    multiply_registers<T, kN, kTransposeB>(d, a, b, accumulate, site);
  }
};

}  // namespace treduce::ptx
