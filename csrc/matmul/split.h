// float32 operands as pairs of float16 for the tensor cores: what lies where in the workspace. Host code, free of torch and
// CUDA.
//
// Each run of 64 steps of k of a line is scaled by a power of two of its own, so that its largest magnitude lies in
// [2^14, 2^15), and each scaled number x becomes high + low / 2^11 with high = float16(x), low = float16((x - high) 2^11):
// 22 bits and a sign, exact to 2^-22 of x for magnitudes down to 2^-28 of the largest.
//
// Where all of k is split before it is multiplied, the halves of a segment are brought to its group's unit where that
// changes nothing but their exponents (see split_segment.cuh): most segments then need no scale when they are added.
#pragma once

#include "operand.h"

namespace treduce::matmul {

constexpr int kSegment = 64;  // steps of k that share a scale, and that one accumulator of the tensor core sums

constexpr int kGroup = 2048;  // steps of k whose segments are added one after another; then groups are
constexpr int kGroupSegments = kGroup / kSegment;

inline int64_t groups_of(int64_t k) { return k == 0 ? 1 : ceil_div(k, kGroup); }

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

// Which operand is split as it is read; then the other has few lines.
enum class AsRead { neither, a, b };

namespace split {

// A segment is split by a team of kLanes lanes. What cannot be read by vectors goes through shared memory, a segment of as many
// lines as there are teams at a time.
constexpr int kThreads = 256, kLanes = 4, kTeams = kThreads / kLanes, kSplitLines = kTeams;

}  // namespace split

// How the splitting kernel reads an operand.
struct Splitting {
  bool vectors;      // four steps of k are one aligned load
  bool along_lines;  // lines are contiguous
  int64_t blocks;
};

inline Splitting splitting_of(const Operand& o, const Halves& h) {
  Splitting s;
  s.vectors = o.depth_stride == 1 && o.depth % 4 == 0 && reinterpret_cast<uint64_t>(o.data) % 16 == 0 &&
              o.line_stride % 4 == 0 && o.batch_stride[0] % 4 == 0 && o.batch_stride[1] % 4 == 0;
  s.along_lines = o.depth_stride != 1 && o.line_stride == 1;
  s.blocks = s.vectors ? ceil_div(h.matrices * o.lines * h.segments(), split::kTeams)
                       : h.matrices * h.segments() * ceil_div(o.lines, split::kSplitLines);
  return s;
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
