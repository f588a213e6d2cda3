// float32 operands as pairs of float16 for the tensor cores: what lies where in the workspace. Host code, free of torch and
// CUDA.
//
// A line is a row of A or a column of B; a segment is 64 steps of k of a line; a group is 2048 steps. Each segment is scaled by
// a power of two, so that its largest magnitude lies in [2^14, 2^15). A scaled number x becomes high + low / 2^11 with
// high = float16(x) and low = float16((x - high) 2^11): 22 bits and a sign, exact to 2^-22 of x for magnitudes down to
// 2^-28 of the largest.
//
// A group has a unit, a power of two. Where operands are split before they are multiplied, the halves of a segment are shifted
// from the segment's scale to the unit, if that changes only their exponents (see split_segment.cuh). Most segments then need no
// scale when they are added.
#pragma once

#include "operand.h"

namespace treduce::matmul {

constexpr int kSegment = 64;  // steps of k that share a scale; the tensor core sums as many in one accumulator

constexpr int kGroup = 2048;  // steps of k: segments are added in order within a group, then groups are added in order
constexpr int kGroupSegments = kGroup / kSegment;

inline int64_t groups_of(int64_t k) { return k == 0 ? 1 : ceil_div(k, kGroup); }

// Segment flags; a line has a flag if all its segments do.
enum SegmentFlag : unsigned char {
  kClean = 1,  // every nonzero number keeps its 22 bits
  kDense = 2,  // more than half of the numbers are large: their products hide the error of the small ones
  kFew = 4,    // at most two numbers are large: too few products for the errors of pairs to vanish in the sum
  kZero = 8,   // all numbers are zero
};

// Whether pairs make the output of a line of A and a line of B as accurate as float32 does. Where not, it is computed without
// tensor cores. The answer depends on these two lines alone.
TREDUCE_HOST_DEVICE bool pairs_suffice(unsigned a, unsigned b) {
  const bool selects = (a & (kFew | kZero)) == kFew || (b & (kFew | kZero)) == kFew;  // such as a row of the identity
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

constexpr int64_t kScaleLines = 128;  // a tile copies the scales of so many lines at once

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

// A team of kLanes lanes splits a segment. Operands that cannot be read by vectors go through shared memory: a segment of as many
// lines at a time as the block has teams.
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
  float* scale;  // factor of a segment's sum; where groups have units, the factor that brings it to the unit
  float* unit;   // of a group; null: no units
  unsigned char* flags;
};

}  // namespace treduce::matmul
