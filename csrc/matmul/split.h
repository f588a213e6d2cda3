// float32 operands as pairs of float16 for the tensor cores: what lies where in the workspace. Host code, free of torch and
// CUDA.
//
// Each run of 64 steps of k of a line is scaled by a power of two of its own, so that its largest magnitude lies in
// [2^14, 2^15), and each scaled number x becomes high + low / 2^11 with high = float16(x), low = float16((x - high) 2^11):
// 22 bits and a sign, exact to 2^-22 of x for magnitudes down to 2^-28 of the largest.
//
// Where all of k is split before it is multiplied, the halves of a segment are brought to its group's unit where that
// changes nothing but their exponents (see split.cuh): most segments then need no scale when they are added.
#pragma once

#include "operand.h"

namespace treduce::matmul {

constexpr int kSegment = 64;  // steps of k that share a scale, and that one accumulator of the tensor core sums

constexpr int kGroup = 2048;  // steps of k whose segments are added one after another; then groups are
constexpr int kGroupSegments = kGroup / kSegment;

inline int64_t groups_of(int64_t k) { return std::max<int64_t>(ceil_div(k, kGroup), 1); }

// What a segment says of itself, and a line by what all its segments say.
enum SegmentFlag : unsigned char {
  kClean = 1,  // every number but zero kept its 22 bits
  kDense = 2,  // more than half of the numbers are large: what small ones lose, the products of large ones hide
  kFew = 4,    // at most two numbers are large: no sum in which the errors of pairs would vanish
  kZero = 8,   // all are zero
};

// Whether the output of a line of A and a line of B is as accurate from pairs as in float32. Else it is computed without
// tensor cores: a question of the two lines alone.
TREDUCE_HOST_DEVICE bool pairs_suffice(unsigned a, unsigned b) {
  const bool selects = (a & (kFew | kZero)) == kFew || (b & (kFew | kZero)) == kFew;  // as rows of the identity do
  return (a & b & (kClean | kDense)) != 0 && !selects;
}

// One operand, split. Matrices of the batch one after another.
struct Halves {
  int64_t lines, depth, matrices;  // depth: padded to whole segments
  int64_t lines_padded;  // of the scales and flags, which are [matrix][segment][line]; units: [matrix][group][line]
  int64_t values;        // float16 numbers in `high`, and in `low`
  int64_t scales;        // segments, those of padding included
  int64_t units;         // groups, likewise

  TREDUCE_HOST_DEVICE int64_t segments() const { return depth / kSegment; }
  TREDUCE_HOST_DEVICE int64_t groups() const { return ceil_div(depth, kGroup); }
  int64_t flag_bytes() const { return round_up(scales, 16); }
  int64_t bytes() const { return 4 * values + 4 * scales + 4 * units + flag_bytes(); }
};

constexpr int64_t kScaleLines = 128;  // scales come to a tile in runs of so many

inline Halves halves_of(const Operand& o) {
  Halves h;
  h.lines = o.lines;
  h.depth = round_up(o.depth, kSegment);
  h.matrices = o.batch_size[0] * o.batch_size[1];
  h.lines_padded = round_up(o.lines, kScaleLines);
  h.values = h.matrices * h.lines * h.depth;
  h.scales = h.matrices * h.segments() * h.lines_padded;
  h.units = h.matrices * h.groups() * h.lines_padded;
  return h;
}

constexpr int64_t kRound = 132;     // tiles that an H200 computes side by side; on another chip a guess
constexpr int64_t kFewLines = 128;  // with so few rows or columns of C: a kernel of their own

// Which operand is split on its way to the tensor cores, where the other has few lines: most of the memory is then read
// once. It must be one that the copy engine can read.
enum class AsRead { neither, a, b };

inline AsRead split_as_read(const Problem& p, const Operand& a, const Operand& b) {
  const bool of_a = p.m > kFewLines;
  if (of_a && p.n > kFewLines) return AsRead::neither;
  const int64_t blocks = ceil_div(of_a ? p.m : p.n, 64) * p.batches * groups_of(p.k);
  if (blocks > INT32_MAX || view_of(of_a ? a : b, true).reading != Reading::direct) return AsRead::neither;
  return of_a ? AsRead::a : AsRead::b;
}

// Of 128 x 128 outputs.
inline int64_t tiles_of(const Problem& p) { return ceil_div(p.m, 128) * ceil_div(p.n, 128) * p.batches; }

// Groups that are computed side by side and added afterwards have a place each in the workspace.
inline bool groups_apart(const Problem& p) {
  const int64_t groups = groups_of(p.k);
  if (groups == 1) return false;
  if (p.m <= kFewLines || p.n <= kFewLines) return true;
  // Where that leaves the chip idle for less of the time; of many tiles the sums would cost more to add than that.
  const int64_t tiles = tiles_of(p), rounds = ceil_div(tiles, kRound);
  return tiles < 4 * kRound && ceil_div(tiles * groups, kRound) < rounds * groups;
}

inline int64_t partials_bytes(const Problem& p) {
  return groups_apart(p) ? round_up(groups_of(p.k) * p.batches * p.m * p.n * 4, 16) : 0;
}

inline int64_t split_workspace(const Problem& p, DType, const void* a, const void* b) {
  const Operand operands[2] = {operand_a(p, a, 4), operand_b(p, b, 4)};
  const AsRead as_read = split_as_read(p, operands[0], operands[1]);
  const Halves halves_a = halves_of(operands[0]), halves_b = halves_of(operands[1]);
  return (as_read == AsRead::a ? halves_a.flag_bytes() : halves_a.bytes()) +
         (as_read == AsRead::b ? halves_b.flag_bytes() : halves_b.bytes()) + partials_bytes(p);
}

// Where the parts of a split operand lie.
template <class Half>
struct SplitOperand {
  Halves shape;
  Half* high;
  Half* low;
  float* scale;  // what the sum of a segment is multiplied by, for a sum in units where there are any
  float* unit;   // of a group; null: one
  unsigned char* flags;
};

}  // namespace treduce::matmul
