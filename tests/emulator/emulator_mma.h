// The instructions of a whole warp's matrices for the emulator: what csrc/primitives/ptx/mma.cuh and matrix.cuh get from the
// hardware. Lanes hand over what they hold, and each computes its own outputs.
//
// A product of floats is summed in float64 and rounded once, which no tensor core does: tests use whole numbers, of which
// every sum is exact.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "../../csrc/common/float16.h"
#include "emulator.h"

namespace treduce::ptx {

inline void store_matrices(void* row, const uint32_t (&words)[4], ::emulator::Site site = ::emulator::Site::here()) {
  unsigned char* rows[::emulator::kWarpLanes];
  memcpy(rows, ::emulator::exchange(&row, sizeof(row), ~0u, site), sizeof(rows));
  const int lane = ::emulator::lane();
  for (int i = 0; i < 4; ++i) memcpy(rows[i * 8 + lane / 4] + lane % 4 * 4, words + i, 4);
  ::emulator::warp_barrier(~0u, site);
}

template <bool kTransposed>
void load_matrices(uint32_t (&words)[4], uint32_t address, ::emulator::Site site = ::emulator::Site::here()) {
  const unsigned char* const row = ::emulator::shared_place(address, 16);
  const unsigned char* rows[::emulator::kWarpLanes];
  memcpy(rows, ::emulator::exchange(&row, sizeof(row), ~0u, site), sizeof(rows));
  const int lane = ::emulator::lane();
  for (int i = 0; i < 4; ++i) {
    const unsigned char* const* const matrix = rows + i * 8;
    if constexpr (kTransposed) {
      for (int e = 0; e < 2; ++e) {
        memcpy(reinterpret_cast<char*>(words + i) + e * 2, matrix[lane % 4 * 2 + e] + lane / 4 * 2, 2);
      }
    } else {
      memcpy(words + i, matrix[lane / 4] + lane % 4 * 4, 4);
    }
  }
}

// What all lanes hold of a fragment of kWords words.
template <int kWords>
struct Handed {
  uint32_t words[::emulator::kWarpLanes][kWords];

  Handed(const uint32_t (&mine)[kWords], ::emulator::Site site) {
    static_assert(kWords % 2 == 0);
    for (int w = 0; w < kWords; w += 2) {
      const unsigned char* const of_lane = ::emulator::exchange(mine + w, 8, ~0u, site);
      for (int l = 0; l < ::emulator::kWarpLanes; ++l) memcpy(words[l] + w, of_lane + l * 8, 8);
    }
  }
};

// d += A B: 16 x 8 outputs of 32 bytes of k. T: of the elements, side by side in a word.
template <class T, class Sum>
void multiply(T, Sum (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
              ::emulator::Site site = ::emulator::Site::here()) {
  using Wide = std::conditional_t<std::is_integral_v<Sum>, Sum, double>;
  const Handed<4> of_a(a, site);
  const Handed<2> of_b({b0, b1}, site);
  const int g = ::emulator::lane() / 4, t = ::emulator::lane() % 4;
  for (int i = 0; i < 4; ++i) {
    const int column = t * 2 + i % 2;
    Wide sum = d[i];
    for (int half = 0; half < 2; ++half) {
      for (int word = 0; word < 4; ++word) {
        T x[4 / sizeof(T)], y[4 / sizeof(T)];
        memcpy(x, &of_a.words[g * 4 + word][half * 2 + i / 2], 4);
        memcpy(y, &of_b.words[column * 4 + word][half], 4);
        for (size_t e = 0; e < 4 / sizeof(T); ++e) {
          if constexpr (std::is_integral_v<Sum>) {
            sum += static_cast<Sum>(int{x[e]} * int{y[e]});
          } else {
            sum += double{static_cast<float>(x[e])} * static_cast<float>(y[e]);
          }
        }
      }
    }
    d[i] = static_cast<Sum>(sum);
  }
}

// Of finite numbers.
inline uint32_t round_to_tfloat32(uint32_t word) { return (word + 0x1000u) & ~0x1fffu; }
inline uint32_t round_to_even_tfloat32(uint32_t word) { return (word + 0xfffu + (word >> 13 & 1)) & ~0x1fffu; }

// 16 x 8 outputs of four steps of k, once or several times: fused multiply-adds in order, as the hardware's have been found to be.
template <int kA, int kFours>
void multiply(double (&d)[4], const double (&a)[kA], const double (&b)[kFours],
              ::emulator::Site site = ::emulator::Site::here()) {
  const int g = ::emulator::lane() / 4, t = ::emulator::lane() % 4;
  for (int four = 0; four < kFours; ++four) {
    double of_a[2][::emulator::kWarpLanes], of_b[::emulator::kWarpLanes];
    for (int half = 0; half < 2; ++half) {
      memcpy(of_a[half], ::emulator::exchange(a + four * 2 + half, sizeof(double), ~0u, site), sizeof(of_a[half]));
    }
    memcpy(of_b, ::emulator::exchange(b + four, sizeof(double), ~0u, site), sizeof(of_b));
    for (int i = 0; i < 4; ++i) {
      for (int k = 0; k < 4; ++k) d[i] = std::fma(of_a[i / 2][g * 4 + k], of_b[(t * 2 + i % 2) * 4 + k], d[i]);
    }
  }
}

}  // namespace treduce::ptx
