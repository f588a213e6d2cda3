// A segment of lines that are split, in the registers of a warp that multiplies it by mma's instruction.
#pragma once

#include "../../primitives/ptx/mma.cuh"
#include "split_segment.cuh"

namespace treduce::matmul::split {

// A lane has two lines of W, the instruction's rows, eight apart, and of 16 steps of k four that are neighbours. The instruction would
// have two and two: which of 16 steps is which changes no sum, as long as both operands agree.
template <int kPieces>
using Pieces = uint32_t[kPieces][2][kNumbers / 2];

// The same of a line of X, one of the instruction's columns.
template <int kPieces>
using PiecesX = uint32_t[kPieces][kNumbers / 2];

// The first of the lines of lane 4 i, of a tile in swizzled rows of 128 bytes: lanes that read shared memory together touch every bank
// once.
TREDUCE_DEVICE int line_of_lanes(int i) { return i % 2 * 4 + i / 2; }

// Four lanes split a line, a warp a set of lines. Line `i` of a set is split by lanes 4 i to 4 i + 3; the order of the lines is such
// that lanes that read or write shared memory together touch every bank once.
TREDUCE_DEVICE int line_in_set(int i) { return i % 4 * 2 + i / 4; }

// Splits a lane's numbers into parts, times 2^exponent.
TREDUCE_DEVICE void split_pieces(const float (&numbers)[kNumbers], int exponent, PiecesX<kParts>& pieces) {
  split_all_parts(numbers, power_of_two(exponent), [&](int part, int i, uint32_t pair) { pieces[part][i] = pair; });
}

// The same of one of a lane's two lines of W, times `factor`.
TREDUCE_DEVICE void split_pieces(const float (&numbers)[kNumbers], float factor, int l, Pieces<kParts>& pieces) {
  split_all_parts(numbers, factor, [&](int part, int i, uint32_t pair) { pieces[part][l][i] = pair; });
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

// ---- splitting two lines of W, which a lane has numbers of, into halves ----

// What is known of a lane's two lines.
struct KnownLines {
  Tops tops[2] = {};
  uint32_t flags = 0xffff;  // those of the second line above

  TREDUCE_DEVICE void join(int l, const Extremes& e) { tops[l] = larger_of(tops[l], tops_of(e)); }
  TREDUCE_DEVICE void join(int l, unsigned flags_of_segment) {
    flags &= flags_of_segment << l * 8 | (l == 0 ? 0xff00u : 0xffu);
  }
  TREDUCE_DEVICE Facts facts(int l) const {
    return facts_of(flags_of(l), (tops[l] & 0x7f80) >> 7, min(least_of(tops[l]) >> 7, 255u));
  }
  // As Seen has them.
  TREDUCE_DEVICE uint32_t most(int l) const { return (tops[l] & 0x7f80) << 16; }
  TREDUCE_DEVICE uint32_t least(int l) const { return least_of(tops[l]) << 16; }
  TREDUCE_DEVICE unsigned flags_of(int l) const { return flags >> l * 8 & 0xff; }
};

// Splits two lines as split_segment does, with fewer instructions: numbers that are zero, or next to nothing, are looked for by their
// first 16 bits; if there are such, the extremes are found anew; and large ones are counted by the tensor cores. kAnyNumbers: the extremes are
// found at once, for such numbers are as likely as others. `scale`: the factor that brings the segment's sum to the unit. Who calls: all
// lanes of a warp.
template <bool kAnyNumbers = false>
TREDUCE_DEVICE void split_two_lines(const float (&x)[2][kNumbers], int present, const int (&unit)[2], Pieces<2>& pieces,
                                    float (&scale)[2], KnownLines& known) {
  Tops tops[2];
  SegmentScale s[2];
  bool close[2], rare = kAnyNumbers;
  if (!kAnyNumbers) {
#pragma unroll
    for (int l = 0; l < 2; ++l) {
      tops[l] = all_tops_of(x[l]);
      s[l] = scale_of(extremes_of(tops[l]), unit[l]);
      const uint32_t least = least_of(tops[l]), bound = near_bound(s[l]);
      close[l] = least > bound;
      rare |= least == 0 || least == bound;
    }
    rare = __any_sync(~0u, rare);
  }
  if (rare) {
#pragma unroll
    for (int l = 0; l < 2; ++l) {
      const Extremes extremes = Extremes::of<kLanes>(x[l]);
      tops[l] = tops_of(extremes);
      s[l] = scale_of(extremes, unit[l]);
    }
  }
#pragma unroll
  for (int l = 0; l < 2; ++l) {
    halve<kNumbers>(x[l], s[l], pieces[0][l], pieces[1][l]);
    scale[l] = power_of_two(s[l].exponent - unit[l]);
    known.tops[l] = larger_of(known.tops[l], tops[l]);
  }
  // How many numbers of each line are at least so large.
  const auto count = [&](float least, float (&of_line)[2]) {
    constexpr uint32_t kOnes = 0x3c003c00;
    float sums[4] = {};
    const auto are = [&](uint32_t word) {
      __half2 two;
      memcpy(&two, &word, 4);
      two = __hge2(__habs2(two), __float2half2_rn(least));
      memcpy(&word, &two, 4);
      return word;
    };
#pragma unroll
    for (int i = 0; i < kNumbers / 2; i += 2) {
      const uint32_t words[4] = {are(pieces[0][0][i]), are(pieces[0][1][i]), are(pieces[0][0][i + 1]),
                                 are(pieces[0][1][i + 1])};
      ptx::multiply(float16{}, sums, words, kOnes, kOnes);
    }
    of_line[0] = sums[0];
    of_line[1] = sums[2];
  };
  float large[2];
  count(kLarge, large);
  if (rare) {
    float near[2];
    count(kNear, near);
    close[0] = near[0] == static_cast<float>(present);
    close[1] = near[1] == static_cast<float>(present);
  }
  uint32_t flags = 0;
#pragma unroll
  for (int l = 0; l < 2; ++l) {
    flags |= flags_of(s[l], 2 * large[l] > static_cast<float>(present), close[l], large[l] <= 2) << l * 8;
  }
  known.flags &= flags;
}

}  // namespace treduce::matmul::split
