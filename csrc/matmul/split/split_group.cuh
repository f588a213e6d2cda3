// A segment of lines that are split, as a warp group multiplies it: 64 lines of W by lines of X, which lie in shared memory.
#pragma once

#include "../epilogue.cuh"
#include "../tile.cuh"
#include "split_pieces.cuh"

namespace treduce::matmul::split {

// The products of a segment that `rest` adds, from kFirst to before kEnd: multiply(to, piece of W, piece of X, which of four steps,
// accumulate), and beside each of the first product's steps beside(step). of_a: W is A.
template <int kPieces, int kFirst, int kEnd, int kSums, class Multiply, class Beside>
TREDUCE_DEVICE void multiply_rest(float (&rest)[kSums], bool of_a, Multiply multiply, Beside beside) {
#pragma unroll
  for (int product = kFirst; product < kEnd; ++product) {
    const PieceProduct pieces = rest_product<kPieces>(product);
    const int of_w = of_a ? pieces.a : pieces.b, of_x = of_a ? pieces.b : pieces.a;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      multiply(rest, of_w, of_x, i, product + i > 0);
      if (product == kFirst) beside(i);
    }
  }
}
// The same to the end, and those of the largest pieces, which alternate with the first of these: a multiplication waits for the one before
// it in the same accumulator.
template <int kPieces, int kFirst, int kSums, class Multiply>
TREDUCE_DEVICE void multiply_both(float (&high)[kSums], float (&rest)[kSums], bool of_a, Multiply multiply) {
  multiply_rest<kPieces, kFirst, kRestProducts<kPieces>>(rest, of_a, multiply,
                                                         [&](int i) { multiply(high, 0, 0, i, i > 0); });
}

// Starts the multiplications of a segment.
template <int kPieces, int kSums, class Multiply>
TREDUCE_DEVICE void start_products(float (&high)[kSums], float (&rest)[kSums], bool of_a, Multiply multiply) {
  ptx::wgmma_touch(high);
  ptx::wgmma_touch(rest);
  ptx::wgmma_fence();
  multiply_both<kPieces, 0>(high, rest, of_a, multiply);
  ptx::wgmma_commit();
  ptx::wgmma_touch(high);
  ptx::wgmma_touch(rest);
}

// The same in two steps: the first one leaves `high` alone, which may hold what is not yet added.
template <int kPieces, int kSums, class Multiply>
TREDUCE_DEVICE void start_first_products(float (&rest)[kSums], bool of_a, Multiply multiply) {
  ptx::wgmma_touch(rest);
  ptx::wgmma_fence();
  multiply_rest<kPieces, 0, 1>(rest, of_a, multiply, [](int) {});
  ptx::wgmma_commit();
}
template <int kPieces, int kSums, class Multiply>
TREDUCE_DEVICE void start_other_products(float (&high)[kSums], float (&rest)[kSums], bool of_a, Multiply multiply) {
  ptx::wgmma_touch(high);
  ptx::wgmma_fence();
  multiply_both<kPieces, 1>(high, rest, of_a, multiply);
  ptx::wgmma_commit();
}

// Starts the multiplications of a segment of a warp group's lines of W, in registers, by 2 kSums lines of X from `first` on, in shared
// memory.
template <class Piece, bool kOfA, int kPieces, int kSums>
TREDUCE_DEVICE void start_segment(float (&high)[kSums], float (&rest)[kSums], Pieces<kPieces>& w,
                                  const char* const (&x)[kPieces], int first) {
  using Lines = hopper::Tile<Piece, 8, true>;
  const auto multiply = [&](float (&to)[kSums], int of_w, int of_x, int i, int accumulate) {
    const uint32_t words[4] = {w[of_w][0][i * 2], w[of_w][1][i * 2], w[of_w][0][i * 2 + 1], w[of_w][1][i * 2 + 1]};
    ptx::WgmmaHeld<Piece, kSums * 2, false>::multiply(to, words, Lines::lone_descriptor(x[of_x], first, i), accumulate);
  };
#pragma unroll
  for (int piece = 0; piece < kPieces; ++piece) {
    ptx::wgmma_touch(w[piece][0]);
    ptx::wgmma_touch(w[piece][1]);
  }
  start_products<kPieces>(high, rest, kOfA, multiply);
}
template <int kPieces, int kSums>
TREDUCE_DEVICE void wait_segment(float (&high)[kSums], float (&rest)[kSums], Pieces<kPieces>& w) {
  ptx::wgmma_wait<0>();
  ptx::wgmma_touch(high);
  ptx::wgmma_touch(rest);
#pragma unroll
  for (int piece = 0; piece < kPieces; ++piece) {
    ptx::wgmma_touch(w[piece][0]);
    ptx::wgmma_touch(w[piece][1]);
  }
}

// Brings sums from the units of two lines of W, of which these are the exponents, and of X's lines: as from_units, by one factor
// where that is a normal number for all. kFewer: X mostly has fewer lines than there is room for. Who calls: all lanes of a warp.
template <bool kFewer = false, int kOutputs>
TREDUCE_DEVICE void from_units(float (&acc)[kOutputs], const int (&unit)[2], const char* units_x, int x_lines) {
  const int first = static_cast<int>(threadIdx.x) % 4 * 2;
  const int2* const of_x = reinterpret_cast<const int2*>(units_x) + threadIdx.x % 4;
  // Powers of two, as bits.
  constexpr int kOne = 127 << 23;
  int least = kOne, most = kOne;
#pragma unroll
  for (int i = 0; i < kOutputs / 4; ++i) {
    const int2 two = of_x[i * 4];
    const int x = i * 8 + first < x_lines ? two.x : kOne, y = i * 8 + first + 1 < x_lines ? two.y : kOne;
    least = min(least, min(x, y));
    most = max(most, max(x, y));
  }
  const int lowest = (least >> 23) + min(unit[0], unit[1]), highest = (most >> 23) + max(unit[0], unit[1]);
  if (__all_sync(~0u, lowest > 0 && highest < 255)) {
#pragma unroll
    for (int i = 0; i < kOutputs / 4; ++i) {
      if (kFewer && i * 8 >= x_lines) break;
      const int2 two = of_x[i * 4];
#pragma unroll
      for (int j = 0; j < 4; ++j) acc[i * 4 + j] *= __int_as_float((j % 2 == 0 ? two.x : two.y) + (unit[j / 2] << 23));
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < kOutputs / 4; ++i) {
    const int2 two = of_x[i * 4];
    const int exponents[2] = {(two.x >> 23) - 127, (two.y >> 23) - 127};
#pragma unroll
    for (int j = 0; j < 4; ++j) acc[i * 4 + j] = from_units(acc[i * 4 + j], unit[j / 2], exponents[j % 2]);
  }
}

struct EveryOutput {
  TREDUCE_DEVICE bool operator()(int, int) const { return true; }
};

// Stores this lane's outputs of two lines of W, where wanted(which of the lines, row of X) is. `to`: the product. Lines from w_lines on
// do not exist.
template <bool kOfA, bool kFewer = false, int kOutputs, class Wanted>
TREDUCE_DEVICE void store(const float (&acc)[kOutputs], float* to, int64_t n, const int64_t (&line)[2], int64_t w_lines,
                          int x_lines, const float* bias, Wanted wanted) {
  const int first = static_cast<int>(threadIdx.x) % 4 * 2;
  float* at[2];
#pragma unroll
  for (int l = 0; l < 2; ++l) at[l] = to + (kOfA ? line[l] * n + first : first * n + line[l]);
  const auto with_bias = [&](float sum, int l, int row) {
    return bias == nullptr ? sum : canonical(sum + __ldg(bias + (kOfA ? row : line[l])));
  };
  const bool pairs = kOfA && aligned_pairs(to, n);
  if constexpr (std::is_same_v<Wanted, EveryOutput>) {
    // Most tiles.
    if (x_lines == 2 * kOutputs && bias == nullptr && (pairs || !kOfA)) {
#pragma unroll
      for (int l = 0; l < 2; ++l) {
        if (line[l] >= w_lines) continue;
        float* here = at[l];
#pragma unroll
        for (int i = 0; i < kOutputs / 4; ++i, here += kOfA ? 8 : 8 * n) {
          const float2 sums = {acc[i * 4 + l * 2], acc[i * 4 + l * 2 + 1]};
          if constexpr (kOfA) {
            *reinterpret_cast<float2*>(here) = sums;
          } else {
            here[0] = sums.x;
            here[n] = sums.y;
          }
        }
      }
      return;
    }
  }
#pragma unroll
  for (int l = 0; l < 2; ++l) {
    if (line[l] >= w_lines) continue;
#pragma unroll
    for (int i = 0; i < kOutputs / 4; ++i) {
      if (kFewer && i * 8 >= x_lines) break;
      const int row = i * 8 + first;
      const float sum[2] = {acc[i * 4 + l * 2], acc[i * 4 + l * 2 + 1]};
      const bool want[2] = {row < x_lines && wanted(l, row), row + 1 < x_lines && wanted(l, row + 1)};
      float* const here = at[l] + i * (kOfA ? 8 : 8 * n);
      if (pairs && want[0] && want[1]) {
        *reinterpret_cast<float2*>(here) = {with_bias(sum[0], l, row), with_bias(sum[1], l, row + 1)};
      } else {
        if (want[0]) here[0] = with_bias(sum[0], l, row);
        if (want[1]) here[kOfA ? 1 : n] = with_bias(sum[1], l, row + 1);
      }
    }
  }
}

}  // namespace treduce::matmul::split
