// A segment of lines that are split, in the registers of a warp that multiplies it by mma's instruction.
#pragma once

#include "../primitives/ptx/mma.cuh"
#include "split_segment.cuh"

namespace treduce::matmul::split {

// A lane has two lines of W, the instruction's rows, eight apart, and of 16 steps of k four that are neighbours. The instruction would
// have two and two: which of 16 steps is which changes no sum, as long as both operands agree.
template <int kPieces>
using Pieces = uint32_t[kPieces][2][kNumbers / 2];

// The same of a line of X, one of the instruction's columns.
template <int kPieces>
using PiecesX = uint32_t[kPieces][kNumbers / 2];

// Splits a lane's numbers into parts, times 2^exponent.
TREDUCE_DEVICE void split_pieces(const float (&numbers)[kNumbers], int exponent, PiecesX<kParts>& pieces) {
  split_all_parts(numbers, power_of_two(exponent), [&](int part, int i, uint32_t pair) { pieces[part][i] = pair; });
}

// Reads a lane's words of a segment from memory: of piece after piece, `step` further each.
template <int kPieces>
TREDUCE_DEVICE void read_words(const uint16_t* from, int64_t step, PiecesX<kPieces>& pieces) {
#pragma unroll
  for (int piece = 0; piece < kPieces; ++piece) {
#pragma unroll
    for (int i = 0; i < kNumbers / 2; i += 2) {
      const uint2 two = *reinterpret_cast<const uint2*>(from + piece * step + i * 8);
      pieces[piece][i] = two.x;
      pieces[piece][i + 1] = two.y;
    }
  }
}

// Pieces of a segment of eight lines lie in shared memory as [16 bytes of a lane][lane]. `at`: this lane's first.
template <int kPieces>
TREDUCE_DEVICE void write_pieces(uint4* at, const PiecesX<kPieces>& words) {
#pragma unroll
  for (int quad = 0; quad < kPieces * 2; ++quad) {
    const uint32_t* const four = words[quad / 2] + quad % 2 * 4;
    at[quad * 32] = make_uint4(four[0], four[1], four[2], four[3]);
  }
}
template <int kPieces>
TREDUCE_DEVICE void read_pieces(const uint4* at, PiecesX<kPieces>& words) {
#pragma unroll
  for (int quad = 0; quad < kPieces * 2; ++quad) {
    const uint4 four = at[quad * 32];
    uint32_t* const to = words[quad / 2] + quad % 2 * 4;
    to[0] = four.x, to[1] = four.y, to[2] = four.z, to[3] = four.w;
  }
}

// Multiplies a segment of 16 lines by eight of X. Adds products of the largest pieces in `high`, all others in `rest`.
template <class Piece, int kPieces, bool kOfA>
TREDUCE_DEVICE void multiply_segment(float (&high)[4], float (&rest)[4], const Pieces<kPieces>& w,
                                     const PiecesX<kPieces>& x) {
  const auto multiply = [&](float (&to)[4], int a, int b) {
    const int of_w = kOfA ? a : b, of_x = kOfA ? b : a;
#pragma unroll
    for (int i = 0; i < kNumbers / 2; i += 2) {
      const uint32_t words[4] = {w[of_w][0][i], w[of_w][1][i], w[of_w][0][i + 1], w[of_w][1][i + 1]};
      ptx::multiply(Piece{}, to, words, x[of_x][i], x[of_x][i + 1]);
    }
  };
  multiply(high, 0, 0);
#pragma unroll
  for (int product = 0; product < kRestProducts<kPieces>; ++product) {
    const PieceProduct pieces = rest_product<kPieces>(product);
    multiply(rest, pieces.a, pieces.b);
  }
}

}  // namespace treduce::matmul::split
