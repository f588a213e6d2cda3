// float32 operands as pairs of float16, or as three bfloat16 parts, for the tensor cores: what lies where in the workspace. Host
// code, free of torch and CUDA.
//
// A line is a row of A or a column of B; a segment is 64 steps of k of a line; a group is 2048 steps. A group of a line has a
// unit, a power of two near its numbers, so that a line may have any scale.
//
// Pairs: each segment is scaled by a power of two, so that its largest magnitude lies in [2^14, 2^15). A scaled number x becomes
// high + low / 2^11 with high = float16(x) and low = float16((x - high) 2^11): 22 bits and a sign, exact to 2^-22 of x for
// magnitudes down to 2^-28 of the largest. The halves of a segment are shifted from the segment's scale to the unit, if that
// changes only their exponents (see split_segment.cuh). Most segments then need no scale when they are added.
//
// Parts: a number in units is the sum of three bfloat16, each what the ones before it leave: 24 bits, exact. They have the
// exponents of float32, so numbers of a line may lie far apart. Six products of parts make up one of float32.
#pragma once

#include <initializer_list>

#include "../operand.h"

namespace treduce::matmul {

constexpr int kSegment = 64;  // steps of k that share a scale; the tensor core sums as many in one accumulator

constexpr int kGroup = 2048;  // steps of k: segments are added in order within a group, then groups are added in order
constexpr int kGroupSegments = kGroup / kSegment;

inline int64_t groups_of(int64_t k) { return k == 0 ? 1 : ceil_div(k, kGroup); }

// Segment flags; a line has a flag if all its segments do.
enum SegmentFlag : unsigned char {
  kClean = 1,  // every nonzero number keeps its 22 bits
  kDense = 2,  // most of the numbers are large, or it is close: products of these hide the error of small ones
  kFew = 4,    // at most two numbers are large: too few products for the errors of pairs to vanish in the sum
  kZero = 8,   // all numbers are zero
  kDone =
      16,  // of lines that are split as they are read: their products with lines that no pairs suit are done, by parts
  kModerate = 32,  // the scale is what the largest number asks for, and all numbers but zeros are within 2^48 of it
  kClose = 64,  // all numbers are near the largest, or all are zero: their products hide the errors of a moderate line
};

// What is known of a segment or a line, in one word: its flags, and the exponents of its largest magnitude and of its smallest
// nonzero one, as float32 has them (0: subnormal; 255: infinite or NaN, and where no number is nonzero).
using Facts = uint32_t;
TREDUCE_HOST_DEVICE constexpr Facts facts_of(unsigned flags, unsigned most, unsigned least) {
  return flags | most << 8 | least << 16;
}
TREDUCE_HOST_DEVICE constexpr int largest_exponent(Facts x) { return static_cast<int>(x >> 8 & 0xff); }
TREDUCE_HOST_DEVICE constexpr int least_exponent(Facts x) { return static_cast<int>(x >> 16 & 0xff); }
constexpr Facts kNoFacts = facts_of(0xff, 0, 0xff);  // of no segment
// Of lines nobody needs to know more of: pairs suffice for all that they meet.
constexpr Facts kPlainestFacts = facts_of(kClean | kDense | kModerate | kClose, 127, 127);

TREDUCE_HOST_DEVICE Facts join(Facts a, Facts b) {
  const auto most = [](Facts x) { return x & 0xff00; };
  const auto least = [](Facts x) { return x & 0xff0000; };
  return (a & b & 0xff) | (most(a) > most(b) ? most(a) : most(b)) | (least(a) < least(b) ? least(a) : least(b));
}

// What is known of a line of W, once it is known whether it is done: halves say nothing of that.
TREDUCE_HOST_DEVICE Facts with_done(Facts line, bool done) { return done ? line | Facts(kDone) : line & ~Facts(kDone); }

// Parts are taken of a line's numbers times 2^parts_exponent: from 2^-62 to 2^56, so that no sum of a group overflows, and no
// product that counts is below float32's least number.
constexpr int kPartsTop = 56, kPartsBottom = -62;
TREDUCE_HOST_DEVICE int parts_exponent(Facts line) {
  const int most = largest_exponent(line), wanted = kPartsTop - 1 + 127 - (most > 0 ? most : 1);
  return wanted < 126 ? wanted : 126;  // the exponent of a float32
}

// What decides how outputs of a line are computed: five bits. The first three are its kind; 0: no pairs suit it.
enum Code : unsigned {
  kCodeClean = 1,
  kCodeDense = 2,
  kCodeSpread = 4,  // pairs suit it if it meets a close line; if it meets a dense one, they are checked
  kCodeClose = 7,
  kCodeRange = 8,  // how much of the line parts can hold, in the last two bits: see Range
  kCodes = 32,
};

enum Range : unsigned {
  kRangeNothing,  // there is an infinity or a NaN
  kRangeLargest,  // all but numbers that are next to nothing beside the largest
  kRangeAll,
};

// Such as a row of the identity.
TREDUCE_HOST_DEVICE bool selects(Facts line) { return (line & (kFew | kZero)) == kFew; }

TREDUCE_HOST_DEVICE unsigned kind_of(Facts line) {
  if (selects(line)) return 0;
  if ((line & kClose) != 0) return kCodeClose;
  if ((line & (kClean | kModerate)) == 0) return 0;
  const unsigned kind = line & (kClean | kDense);
  return kind == 0 ? unsigned(kCodeSpread) : kind;
}

TREDUCE_HOST_DEVICE unsigned code_of(Facts line) {
  const int most = largest_exponent(line), least = least_exponent(line);
  const int exponent = parts_exponent(line), lowest = least > 0 ? least - 127 : -149;
  const bool near = least == 255 || lowest + exponent >= kPartsBottom;
  const bool topped = most > 0 && most - 127 + exponent == kPartsTop - 1;
  const unsigned range = most == 255 ? kRangeNothing : near ? kRangeAll : topped ? kRangeLargest : kRangeNothing;
  return kind_of(line) | range * kCodeRange;
}

// What is known of a line leaves room for its code, so that it is found once.
constexpr int kCodeAbove = 24;
TREDUCE_HOST_DEVICE Facts with_code(Facts line, unsigned code) { return line | code << kCodeAbove; }
TREDUCE_HOST_DEVICE unsigned code_above(Facts line) { return line >> kCodeAbove; }

// How the output of a line of A and a line of B is computed: by pairs where that is as accurate as float32, else by parts; on the
// plain cores where products of parts could overflow, or are not finite. Where parts lose numbers that are next to nothing, the
// output is checked: if it is itself next to nothing beside the largest product that there could be, these numbers may be all that
// it has, and it is computed again on the plain cores. So are outputs by pairs of a spread line and a dense one, of which pairs lose more.
enum class Arithmetic { pairs, parts, checked_parts, plain, checked_pairs };

// The answer depends on the codes of these two lines alone.
TREDUCE_HOST_DEVICE constexpr Arithmetic arithmetic_of(unsigned a, unsigned b) {
  // A kind in common; being spread does not suffice.
  if ((a & b) % kCodeRange != 0 && (a | b) % kCodeRange != kCodeSpread) return Arithmetic::pairs;
  const auto checked = [](unsigned x, unsigned y) { return x % kCodeRange == kCodeSpread && (y & kCodeDense) != 0; };
  if (checked(a, b) || checked(b, a)) return Arithmetic::checked_pairs;
  const unsigned range_a = a / kCodeRange, range_b = b / kCodeRange, less = range_a < range_b ? range_a : range_b;
  return less == kRangeAll ? Arithmetic::parts : less == kRangeLargest ? Arithmetic::checked_parts : Arithmetic::plain;
}
TREDUCE_HOST_DEVICE bool by_pairs(Arithmetic x) { return x == Arithmetic::pairs || x == Arithmetic::checked_pairs; }
TREDUCE_HOST_DEVICE bool by_parts(Arithmetic x) { return x == Arithmetic::parts || x == Arithmetic::checked_parts; }
TREDUCE_HOST_DEVICE bool is_checked(Arithmetic x) {
  return x == Arithmetic::checked_parts || x == Arithmetic::checked_pairs;
}
TREDUCE_HOST_DEVICE bool at_last(Arithmetic x) { return is_checked(x) || x == Arithmetic::plain; }

// The codes of lines with which one of code `a` has outputs that are computed so, as a set.
TREDUCE_HOST_DEVICE constexpr uint32_t codes_with(unsigned a, Arithmetic x) {
  constexpr uint32_t kOfKind[] = {0xaaaaaa, 0xcccccc, 0xf0f0f0}, kSpread = 0x101010;
  constexpr uint32_t kNothing = 0x0000ff, kLargest = 0x00ff00, kAll = 0xff0000;
  uint32_t pairs = 0;
  for (int bit = 0; bit < 3; ++bit) pairs |= (a >> bit & 1) != 0 ? kOfKind[bit] : 0;
  const bool spread = a % kCodeRange == kCodeSpread;
  if (spread) pairs &= ~kSpread;
  const uint32_t checked = (spread ? kOfKind[1] : (a & kCodeDense) != 0 ? kSpread : 0) & ~pairs;
  const uint32_t others = (kNothing | kLargest | kAll) & ~pairs & ~checked;
  const unsigned range = a / kCodeRange;
  switch (x) {
    case Arithmetic::pairs: return pairs;
    case Arithmetic::checked_pairs: return checked;
    case Arithmetic::parts: return range == kRangeAll ? others & kAll : 0;
    case Arithmetic::checked_parts:
      return others & (range == kRangeAll ? kLargest : range == kRangeLargest ? kLargest | kAll : 0);
    default: return others & (range == kRangeNothing ? ~0u : kNothing);
  }
}
constexpr bool codes_agree() {
  constexpr unsigned kUsed = (kRangeAll + 1) * kCodeRange;
  for (unsigned a = 0; a < kUsed; ++a) {
    for (unsigned b = 0; b < kUsed; ++b) {
      for (const Arithmetic x : {Arithmetic::pairs, Arithmetic::parts, Arithmetic::checked_parts, Arithmetic::plain,
                                 Arithmetic::checked_pairs}) {
        if ((codes_with(a, x) >> b & 1) != (arithmetic_of(a, b) == x)) return false;
      }
    }
  }
  return true;
}
static_assert(codes_agree());
TREDUCE_HOST_DEVICE constexpr uint32_t codes_by_pairs(unsigned a) {
  return codes_with(a, Arithmetic::pairs) | codes_with(a, Arithmetic::checked_pairs);
}
TREDUCE_HOST_DEVICE constexpr uint32_t codes_by_parts(unsigned a) {
  return codes_with(a, Arithmetic::parts) | codes_with(a, Arithmetic::checked_parts);
}
// Of these, those with which its outputs are checked.
struct CheckedCodes {
  uint32_t pairs, parts;
  TREDUCE_HOST_DEVICE constexpr uint32_t any() const { return pairs | parts; }
};
TREDUCE_HOST_DEVICE constexpr CheckedCodes checked_codes(unsigned a) {
  return {codes_with(a, Arithmetic::checked_pairs), codes_with(a, Arithmetic::checked_parts)};
}
TREDUCE_HOST_DEVICE constexpr uint32_t codes_at_last(unsigned a) {
  return checked_codes(a).any() | codes_with(a, Arithmetic::plain);
}

// By how many binary orders a checked output may be smaller than the largest product that there could be: of parts, whose lost numbers are
// then below 2^-36 of the output; and of pairs, whose errors, of all segments, are below 2^-18 (see docs/numerics.md).
constexpr int kCertain = 112, kCertainPairs = 23;
TREDUCE_HOST_DEVICE int certain_of_pairs(int64_t k) {
  int orders = kCertainPairs;
  for (int64_t most = kSegment; most < k; most *= 2) --orders;
  return orders;
}
// Whether an output, as bits, is no smaller than that.
TREDUCE_HOST_DEVICE bool is_certain(uint32_t output, Facts a, Facts b, int orders) {
  const int exponent = static_cast<int>(output >> 23 & 0xff);
  const int largest = largest_exponent(a) - 127 + largest_exponent(b) - 127;
  return exponent > 0 && exponent - 127 + orders >= largest;
}
// The same of one by parts, if of its lines no more is known than the sum of their parts_exponent; false of some that are large enough,
// where that is limited.
TREDUCE_HOST_DEVICE bool is_certain(uint32_t output, int parts_exponents) {
  const int exponent = static_cast<int>(output >> 23 & 0xff), largest = 2 * (kPartsTop - 1) - parts_exponents;
  return exponent > 0 && exponent - 127 + kCertain >= largest;
}

// The exponent of a line's largest number, biased; or more than any, where parts may not hold it all the same.
TREDUCE_HOST_DEVICE int ordinary_most(Facts line) {
  constexpr int kLeastTopped = kPartsTop - 1 + 127 - 126;  // below, parts_exponent is limited
  const int most = largest_exponent(line);
  return most >= kLeastTopped && most < 255 ? most : 1 << 16;
}
// Whether an output stays as it is, however it was computed. Of nearly all that do this is true. a, b: ordinary_most of its lines.
TREDUCE_HOST_DEVICE bool is_sure(uint32_t output, int a, int b, int orders) {
  const int exponent = static_cast<int>(output >> 23 & 0xff);
  return exponent > 0 && exponent + 127 + orders >= a + b;
}

// Lines for which pairs suffice whatever such line they meet: nearly all lines of most data. A line is one if all its parts are.
TREDUCE_HOST_DEVICE bool suits_pairs(Facts line) {
  return (line & (kClean | kDense)) == (kClean | kDense) && !selects(line);
}

// Lines that a line of the other operand meets, of those that pairs may suit. Each part of that line may be asked for itself: what suffices
// for each of them does for the line, and of one with checked outputs some part says so.
struct Others {
  enum Flag : uint32_t {
    kAllSuited = 1,  // clean and dense, or close
    kNoneSpread = 2,
    kNoneDense = 4,  // but such as are close
  };
  uint32_t flags;

  TREDUCE_HOST_DEVICE static Others none() { return {~0u}; }
  TREDUCE_HOST_DEVICE void add(unsigned kind) {
    constexpr unsigned kSuited = kCodeClean | kCodeDense;
    if ((kind & kSuited) != kSuited) flags &= ~kAllSuited;
    if (kind == kCodeSpread) flags &= ~kNoneSpread;
    if ((kind & kCodeDense) != 0 && kind != kCodeClose) flags &= ~kNoneDense;
  }
  // Whether pairs suffice for all outputs of a line with these, unless they are checked and found wanting.
  TREDUCE_HOST_DEVICE bool pairs_suffice(Facts line) const {
    return (flags & kAllSuited) != 0 ? (line & kModerate) != 0 && !selects(line) : suits_pairs(line);
  }
  // Whether some of these may be checked.
  TREDUCE_HOST_DEVICE bool checks(Facts line) const {
    const bool spread = (line & kModerate) != 0 && !suits_pairs(line);
    const bool dense = (line & (kDense | kClose)) == kDense;
    return (spread && (flags & kNoneDense) == 0) || (dense && (flags & kNoneSpread) == 0);
  }
};

// Lines that have no output by pairs, whatever line they meet.
TREDUCE_HOST_DEVICE bool never_pairs(Facts line) { return kind_of(line) == 0; }
// Whether a line may have some, as far as is known by its segments' flags. Once none may, none does whatever follows.
TREDUCE_HOST_DEVICE bool may_have_pairs(unsigned flags) { return (flags & (kClean | kModerate | kClose)) != 0; }

// Whether a line's parts are those of its own unit, and their products too, if a group is taken in units of 2^unit instead. Its
// products with numbers from kPartsBottom on are then normal float32, and none overflows.
TREDUCE_HOST_DEVICE bool parts_hold(Facts group, int unit) {
  constexpr int kLowestNumber = -40;
  const int most = largest_exponent(group), least = least_exponent(group);
  if (least == 255) return most != 255;  // all are zero
  return most - 127 - unit < kPartsTop && (least > 0 ? least - 127 : -149) - unit >= kLowestNumber;
}

// Of a line with such numbers alone, parts hold all.
TREDUCE_HOST_DEVICE bool is_held(Facts group) {
  constexpr int kLeast = -62, kMost = kLeast + kPartsTop - 1 - kPartsBottom - 1;
  const int most = largest_exponent(group), least = least_exponent(group);
  return most - 127 <= kMost && least - 127 >= kLeast;
}

TREDUCE_HOST_DEVICE bool all_finite(Facts line) { return (line & 0xff00) != 0xff00; }

// Sets of codes, a bit for each.
TREDUCE_HOST_DEVICE uint32_t set_of(unsigned code) { return uint32_t(1) << code; }

// One operand, split. Matrices of the batch one after another.
struct Halves {
  int64_t lines, depth, matrices;  // depth: padded to whole segments
  int64_t lines_padded;  // of the scales and flags, which are [matrix][segment][line]; units: [matrix][group][line]
  int64_t values;        // float16 numbers in `high`, and in `low`
  int64_t scales;        // segments, those of padding included
  int64_t units;         // groups, likewise

  TREDUCE_HOST_DEVICE int64_t segments() const { return depth / kSegment; }
  TREDUCE_HOST_DEVICE int64_t groups() const { return ceil_div(depth, kGroup); }
  TREDUCE_HOST_DEVICE int64_t all_lines() const { return matrices * lines_padded; }
};

// The words behind the facts of lines: which codes there are, as a set; of lines that are split while another launch waits, how many
// blocks are done, and that these may count themselves; the next task of a launch (split_wide.cuh), or of each of kMostTakers groups of k
// (split_one.cuh); and of each matrix of few lines, whether its parts are wanted (see split_lines.cuh).
constexpr int kMostTakers = 16;
enum LineWord { kWordOfCodes, kWordOfDone, kWordOfBegun, kWordOfNext, kLineWords = kWordOfNext + kMostTakers };

constexpr int kParts = 3;

// Lines that blocks split into parts together, while they multiply (split_rest.cuh), an octet and a segment at a time: so many are a run,
// which has two counters, of what has been taken and of what is done.
constexpr int kRunLines = 32;
TREDUCE_HOST_DEVICE constexpr int64_t runs_of(int64_t lines) { return ceil_div(lines, int64_t(kRunLines)); }

// Pieces are halves or parts. Two accumulators add a segment's products of pieces: one those of the largest, another the rest, which
// are these, in this order.
struct PieceProduct {
  int a, b;
};
template <int kPieces>
constexpr int kRestProducts = kPieces == kParts ? 5 : 2;
template <int kPieces>
TREDUCE_HOST_DEVICE constexpr PieceProduct rest_product(int i) {
  constexpr PieceProduct kOfHalves[] = {{0, 1}, {1, 0}}, kOfParts[] = {{1, 1}, {0, 2}, {2, 0}, {0, 1}, {1, 0}};
  return kPieces == kParts ? kOfParts[i] : kOfHalves[i % 2];
}

// The groups of k whose parts lie in the workspace together.
struct PartsRange {
  int64_t first_group, groups;
  TREDUCE_HOST_DEVICE int64_t first_segment() const { return first_group * kGroupSegments; }
  TREDUCE_HOST_DEVICE int64_t segments(int64_t all) const {
    const int64_t left = all - first_segment(), most = groups * kGroupSegments;
    return left < most ? left : most;
  }
};

// A tile copies the scales of so many lines at once, at most; the last one may begin just before the last line.
constexpr int64_t kScaleLines = 128;

inline Halves halves_of(const Operand& o) {
  Halves h;
  h.lines = o.lines;
  h.depth = round_up(o.depth, kSegment);
  h.matrices = o.batch_size[0] * o.batch_size[1];
  h.lines_padded = round_up(o.lines + kScaleLines - 1, kScaleLines);
  h.values = h.matrices * h.lines * h.depth;
  h.scales = h.matrices * h.segments() * h.lines_padded;
  h.units = h.matrices * h.groups() * h.lines_padded;
  return h;
}

// Which operand is split as it is read; if one is, the other has few lines.
enum class AsRead { neither, a, b, both };

namespace split {

// A team of kLanes lanes splits a segment. Operands that cannot be read by vectors go through shared memory: a segment of as many
// lines at a time as the block has teams. Blocks that split have 128 threads: in place of 256, 56 products take 0.93 to 1.02 of their
// time, 0.992 in the mean (NVIDIA H200, 2026-11-29).
constexpr int kThreads = 256, kSplitThreads = 128, kLanes = 4, kTeams = kSplitThreads / kLanes, kSplitLines = kTeams;
constexpr int kOrderThreads = 1024;
constexpr int kLineThreads = 1024;  // of a block that splits a line
constexpr int kFinishTile = 64;     // outputs each way, of a block of the last launch

}  // namespace split

// How the splitting kernel reads an operand.
struct Splitting {
  bool vectors;      // four steps of k are one aligned load
  bool along_lines;  // lines are contiguous
  int64_t blocks;
};

// Blocks that split so many segments of each line.
inline int64_t blocks_of(const Splitting& s, const Operand& o, const Halves& h, int64_t segments) {
  return s.vectors ? ceil_div(h.matrices * o.lines * segments, split::kTeams)
                   : h.matrices * segments * ceil_div(o.lines, split::kSplitLines);
}

inline Splitting splitting_of(const Operand& o, const Halves& h) {
  Splitting s;
  s.vectors = o.depth_stride == 1 && o.depth % 4 == 0 && reinterpret_cast<uint64_t>(o.data) % 16 == 0 &&
              o.line_stride % 4 == 0 && o.batch_stride[0] % 4 == 0 && o.batch_stride[1] % 4 == 0;
  s.along_lines = o.depth_stride != 1 && o.line_stride == 1;
  s.blocks = blocks_of(s, o, h, h.segments());
  return s;
}

// Where what an operand is split into lies.
template <class Half>
struct SplitOperand {
  Halves shape;
  Half* high;
  Half* low;
  float* scale;                         // the factor that brings a segment's sum to the unit of its group
  float* unit;                          // of a group: of pairs, and where these are done of parts
  unsigned char *flags, *most, *least;  // of a segment: its facts
  Facts* line_facts;
  uint32_t* codes;  // which lines have, as a set; null: not known
  uint32_t* runs;   // [matrix][run][taken, done]; of few rows, see split_rows.cuh; null: there are none
  // The order in which the lines' parts lie: first lines with outputs by parts, so that tiles of parts have few other outputs. From
  // places to lines, and from lines to places; `reordered` is whether it is not that of the lines. Null: theirs.
  uint32_t *line_at, *place_of, *reordered;
  uint16_t* parts;      // bfloat16, [part][matrix][line][step of the range]
  int64_t parts_depth;  // of the range
};

}  // namespace treduce::matmul
