// What prepare and the kernels of split_fp16 and split_bf16 share beside split.h and shapes.h: how the work of their small launches is
// cut. Host code, free of torch and CUDA.
#pragma once

#include "../shapes.h"
#include "split.h"

namespace treduce::matmul {

namespace split {

// Few lines are split by a cluster a line: with as many threads as it has segments for, up to kLineThreads and the largest cluster that
// every chip takes. Lines that are contiguous are split kTogether by a cluster, if these fill the chip: loads then bring what lies
// side by side.
constexpr int kTogether = 32 / kLanes;
struct LineBlocks {
  int together, threads, blocks;
  int64_t clusters;
};
inline LineBlocks line_blocks_of(const Halves& h, const Splitting& s, int multiprocessors) {
  const auto blocks_of = [&](int together) {
    LineBlocks l = {together, 64, 1, h.matrices * ceil_div(h.lines, int64_t(together))};
    const int64_t threads = h.segments() * together * kLanes;
    while (l.threads < kLineThreads && l.threads < threads) l.threads *= 2;
    while (l.blocks < 8 && int64_t(l.blocks) * l.threads < threads) l.blocks *= 2;
    return l;
  };
  const LineBlocks several = blocks_of(kTogether);
  return s.along_lines && several.clusters * several.blocks >= multiprocessors ? several : blocks_of(1);
}

// Whether the parts of few lines take so much that a launch is worth it that writes them only if they are needed.
inline bool parts_are_late(const Halves& few) {
  constexpr int64_t kMostBytes = 4 << 20;
  return kParts * 2 * few.values > kMostBytes;
}

// Whether the operand with more lines, W, is A.
inline bool longer_is_a(const Problem& p) { return p.m >= p.n; }

// Rows of a tile that the last launch adds at a time.
constexpr int kFinishRows = kThreads / (kFinishTile / 4);

}  // namespace split

namespace split_rows {

// Blocks may share a group of k, each a part of its segments: they leave the segments' sums, and the units of W's lines, to a launch
// that adds them. The regions are those that an operand split as it is read has no other use for: halves and units.
constexpr int kMostPartRows = 64;  // with more rows registers do not suffice
constexpr int kAddThreads = 128;   // of a block that adds: as many as multiplied a tile, four outputs of each
constexpr int quads_of(int rows) { return kLines * rows / 4 / kAddThreads; }

// What the first launch leaves is mostly a few lines of W, and of each a group of k is a long chain. So several blocks of the second launch
// share out the segments of a group, leave their sums, and the last one adds them. So many groups at most, of a matrix of so many lines:
// in the workspace a bit for each line that may be left, of which a thread reads so many words, then a counter for each group. And bytes of
// a group's sums.
constexpr int kMostSharedGroups = 64, kMostSharedLines = 32768, kWordsOfThread = 4;
TREDUCE_HOST_DEVICE constexpr int64_t line_words(int64_t lines) {
  return round_up(ceil_div(lines, int64_t(32)), int64_t(kWordsOfThread));
}
constexpr int64_t shared_group_bytes(int rows) { return int64_t(kGroupSegments) * kLines * rows * 4; }

}  // namespace split_rows

namespace split_wide {

// So few lines of W that are left of a product are multiplied without X's parts, which are then not written.
constexpr uint32_t kFewLines = 32;

}  // namespace split_wide

// Outputs by parts without tiles. A unit is 16 listed lines by eight others.
namespace split_few {

constexpr int kStored = 16, kOctet = 8, kOutputs = kStored * kOctet;
constexpr int kMostListed = 256;  // of an operand
constexpr int kChunk = 64;        // that a warp multiplies by
struct Lines {
  uint32_t few, count[2], line[2][kMostListed];  // few: whether they are listed
};
inline int64_t lines_bytes(const Problem& p) {
  return static_cast<int64_t>(sizeof(Lines)) +
         4 * kMostListed / kChunk * (ceil_div(p.m, kOctet) + ceil_div(p.n, kOctet));
}
// Of both operands together; and units. Parts and sums of these lie where the halves were, which take four bytes a number: the parts six
// of each listed one, the sums 8 * k of a unit.
TREDUCE_HOST_DEVICE constexpr int64_t most_listed(int64_t lines_a, int64_t lines_b) { return (lines_a + lines_b) / 4; }
TREDUCE_HOST_DEVICE constexpr int64_t most_units(int64_t lines_a, int64_t lines_b) {
  return (lines_a + lines_b) * 5 / 16;
}

}  // namespace split_few

// All that pairs leave of a small product, in the launch that multiplied.
namespace split_rest {

constexpr int kOctet = 8;                         // lines that a warp splits
constexpr int kThreads = 2 * hopper::kWarpGroup;  // those who compute on the plain cores

}  // namespace split_rest

// For up to eight lines of X. A task is 16 lines of W by one group of k; each warp has its own ring and multiplies what it split.
namespace split_warps {

constexpr int kLines = 16, kRows = 8, kWarps = 4, kThreads = kWarps * 32;
constexpr int kBlocks = 4;  // on a multiprocessor
constexpr int kStageBytes = kLines * kSegment * 4, kMostStages = 3;
// Stages of a ring, and the bytes of all and of the sums of a task's segments: so many that four blocks fit.
constexpr int stages_of(int64_t x_lines) { return x_lines <= 3 ? kMostStages : 2; }
constexpr int shared_bytes_of(int64_t x_lines) {
  return kWarps * stages_of(x_lines) * kStageBytes + kGroupSegments * kLines * 4 * static_cast<int>(x_lines) +
         hopper::kTileAlignment;
}

}  // namespace split_warps

// The same for one line of X, which each block splits itself: once, for its tasks are of one group. What the whole line is like, which
// decides how it is multiplied, a block finds out itself where there are few groups; else the launch before does.
namespace split_one {

constexpr int kLines = split_warps::kLines, kWarps = split_warps::kWarps, kThreads = kWarps * 32;
constexpr int kStageBytes = split_warps::kStageBytes, kStages = 2;
constexpr int kMostGroups = kMostTakers, kMostWhole = 2;
constexpr bool suits(int64_t x_lines, int64_t groups, int64_t batches) {
  return x_lines == 1 && groups <= kMostGroups && batches == 1;
}
// Sums of a task's segments, of two tasks; and X, a segment of which is 64 pairs of halves and a scale.
constexpr int kSumsBytes = 2 * kGroupSegments * kLines * 4, kBytesX = kGroupSegments * (kSegment + 1) * 4;
constexpr int kSharedBytes = kWarps * kStages * kStageBytes + kSumsBytes + kBytesX + hopper::kTileAlignment;
// A block's tasks are of one group of k, whose blocks take them as they come: the first ones are given, so many beyond the first.
// Of later ones a block knows the number a task before a ring may have its segments.
constexpr int kTaken = 8;
constexpr int given_of(int segments) { return 1 + (kStages - 1) / (segments < kWarps ? 1 : segments / kWarps); }
static_assert(kStages + 2 <= kTaken);
// As many blocks for each group, of as many as there is room for.
constexpr int64_t grid_of(int64_t tasks_of_group, int64_t groups, int64_t room) {
  return groups * (tasks_of_group < room / groups ? tasks_of_group : room / groups);
}

}  // namespace split_one

// What these leave of a tile, and the launch that computes it.
namespace split_left {

constexpr int kLines = split_warps::kLines, kRows = split_warps::kRows;
// Groups of k whose segments' sums by parts lie in shared memory.
constexpr int kGroupsAtOnce = 4;
constexpr int sums_bytes_of(int64_t x_lines) {
  return kGroupsAtOnce * kGroupSegments * kLines * 4 * static_cast<int>(x_lines);
}

}  // namespace split_left
namespace split_end {

constexpr int kThreads = 384;

}  // namespace split_end

// Few rows and columns, and long k: both operands are split as they are read.
namespace split_both {

// Outputs each way. Warps: those who multiply, those who split, and a warp group of which a thread copies. Two warp groups that multiply
// half of the columns each were slower: the instructions bound this kernel.
constexpr int kTile = 64, kMultiplyWarps = 4, kSplitWarps = 16;
// Whether the copy engine reads both operands; else those who split load them.
inline bool has_boxes(const View& a, const View& b) { return !a.is_copied() && !b.is_copied(); }
constexpr int threads_of(bool boxes) { return (kMultiplyWarps + kSplitWarps + (boxes ? 4 : 0)) * 32; }
// Rings: of both operands as they are in memory, and of both split. Who loads has one stage of the first.
constexpr int kStages = 3, kSplitStages = 3, kWholeBytes = 2 * kTile * kSegment * 4;
constexpr int stages_of(bool boxes) { return boxes ? kStages : 1; }
constexpr int shared_bytes_of(bool boxes, int pieces) {
  return stages_of(boxes) * kWholeBytes + kSplitStages * (2 * pieces * kTile * 128 + hopper::kTileAlignment) +
         hopper::kTileAlignment;
}
// Lines from tile to tile: as few tiles as there can be, and each as large as the others, in the eights that a warp splits.
inline int step_of(int64_t lines) {
  return static_cast<int>(round_up(ceil_div(lines, ceil_div(lines, int64_t(kTile))), int64_t(split_rows::kSetLines)));
}
// Of a tile: threads of those who multiply that have outputs, and the bytes of a segment's sums.
TREDUCE_HOST_DEVICE constexpr int adders_of(int step_m) { return (step_m + 15) / 16 * 32; }
constexpr int64_t sum_bytes_of(int step_m, int step_n) { return int64_t(adders_of(step_m)) * (step_n / 8) * 16; }
// Of the launch that adds: threads of a block, of which each has four outputs and a group; and quads of outputs of a block.
constexpr int kAddThreads = 256;
constexpr int add_quads(int64_t groups) {
  int quads = kAddThreads / 4;  // a thread an output at the end
  while (quads > 8 && quads * groups > kAddThreads) quads /= 2;
  return quads;
}

}  // namespace split_both

// Small products, all in one launch: a block splits both operands of its tile into shared memory, a chunk of segments after another,
// and multiplies from there. Of few tiles a cluster has each, and a block a chunk of every round of segments.
namespace split_direct {

// Of the blocks of a multiprocessor; segments of a chunk; of a cluster's round where there are several, and of rounds whose sums are added
// together; and blocks of a cluster.
constexpr int kSharedBytes = 224 << 10, kMostChunk = kGroupSegments / 2, kMostRound = 64, kMostAdded = 80,
              kMostCluster = 8;
// Eight lines of a segment are split by a warp, which leaves so many bytes, as pairs and as parts.
constexpr int kOctet = 8, kPairBytes = kOctet * kSegment * 4, kPartBytes = kOctet * kSegment * 2 * kParts;

// A tile has lines of F in sixteens, as rows of the instruction, and of S in eights, as columns. A warp multiplies 16 lines of F by `sets`
// eights of S.
struct Shape {
  const char* name;
  int f_lines, s_lines, sets, warps;
  bool of_a;  // F is A

  constexpr int tile_m() const { return of_a ? f_lines : s_lines; }
  constexpr int tile_n() const { return of_a ? s_lines : f_lines; }
  constexpr int threads() const { return warps * 32; }
  constexpr int blocks() const { return 16 / warps; }  // on a multiprocessor
  constexpr int octets() const { return (f_lines + s_lines) / kOctet; }
  // A warp has eight lines. Warps beyond split the next segments.
  constexpr int segments_at_once() const {
    int at_once = warps;
    while (at_once * octets() > warps) at_once /= 2;
    return at_once;
  }
  // What warps multiply. If it is as many as there are warps, sums stay in their registers; else they share out the segments.
  constexpr int warp_tiles() const { return f_lines / 16 * (s_lines / (8 * sets)); }
  constexpr bool own() const { return warp_tiles() == warps; }
  // Only sums in shared memory can be a cluster's.
  constexpr int most_cluster() const { return own() ? 1 : kMostCluster; }
  // Of a segment: what was split, scales, sums. Of a cluster each block has the sums of all its blocks' segments, for its share of outputs.
  constexpr int sum_bytes() const { return own() ? 0 : f_lines * s_lines * 4; }
  constexpr int segment_bytes(int octet_bytes) const { return octets() * (octet_bytes + kOctet * 4) + sum_bytes(); }
  // Who finds facts of a line: those warps, and the blocks of a cluster. And groups whose units are known at a time: those that end in segments
  // whose sums are added, in as many that other blocks have by then, and in the round after these.
  constexpr int finders() const { return segments_at_once() + (own() ? 0 : kMostCluster); }
  static constexpr int kUnitGroups = 8;
  static_assert(2 * kMostAdded + kMostRound < kUnitGroups * kGroupSegments);
  constexpr int unit_groups() const { return own() ? 2 : kUnitGroups; }
  // Of lines: all that, and their facts. And a word of each block of a cluster.
  constexpr int known_bytes() const {
    return octets() * kOctet * 4 * (finders() + 1 + unit_groups()) + kMostCluster * 4;
  }
  // Of so many segments that a block has: of a chunk all, or two chunks lie in shared memory; and those of a cluster whose sums are added
  // together, some rounds, of which each has a chunk of each block.
  struct Chunks {
    int chunk, added;
  };
  constexpr Chunks chunks(int segments, int octet_bytes, int shared_bytes, int cluster) const {
    const int bytes = shared_bytes - known_bytes(), fits = bytes / segment_bytes(octet_bytes),
              at_once = segments_at_once();
    if (segments <= (fits < kMostChunk ? fits : kMostChunk)) return {segments, segments * cluster};
    const int most = cluster == 1 ? kMostChunk : kMostRound / kMostCluster;
    const int chunk = (fits / 2 < most ? fits / 2 : most) / at_once * at_once, round = chunk * cluster;
    if (cluster == 1) return {chunk, chunk};
    const int sums = (bytes - 2 * chunk * (segment_bytes(octet_bytes) - sum_bytes())) / sum_bytes() * cluster;
    return {chunk, (sums < kMostAdded ? sums : kMostAdded) / round * round};
  }
  // Of a block that has so many segments.
  constexpr int shared_bytes(int64_t segments) const {
    const int least = (segments > 1 ? 2 * segments_at_once() : 1) * segment_bytes(kPartBytes);
    const int most = kSharedBytes / blocks() - known_bytes();
    const int pairs = static_cast<int>(segments < kMostChunk ? segments : 2 * kMostChunk) * segment_bytes(kPairBytes);
    return known_bytes() + (pairs < least ? least : pairs < most ? pairs : most);
  }
};
enum Index { k64x64, k64x32, k32x32, kDeep32x32, k16x16, kDeep16x16, k16x8, kDeep16x8, k8x16, kDeep8x16, kShapeCount };
constexpr Shape kShapes[kShapeCount] = {
    {"multiply 64 x 64 tiles", 64, 64, 2, 16, true}, {"multiply 64 x 32 tiles", 64, 32, 1, 16, true},
    {"multiply 32 x 32 tiles", 32, 32, 1, 8, true},  {"multiply 32 x 32 tiles", 32, 32, 2, 16, true},
    {"multiply 16 x 16 tiles", 16, 16, 2, 8, true},  {"multiply 16 x 16 tiles", 16, 16, 2, 16, true},
    {"multiply 16 x 8 tiles", 16, 8, 1, 8, true},    {"multiply 16 x 8 tiles", 16, 8, 1, 16, true},
    {"multiply 8 x 16 tiles", 16, 8, 1, 8, false},   {"multiply 8 x 16 tiles", 16, 8, 1, 16, false}};

}  // namespace split_direct

// Of split_direct, too: few lines of X, short k, and many lines of W. A block, a warp group, splits X into shared memory, and walks W.
namespace split_held {

// Lines of X of a block, and of a warp that splits some; of W of a warp; a block's warps, and its tiles of W, of a warp each; and the lines
// of W that it multiplies at a time.
constexpr int kRows = 64, kOctet = 8, kTile = 16, kWarps = 4, kThreads = kWarps * 32, kMostTiles = 64,
              kLines = kWarps * kTile;
constexpr int kPart = 32;  // of X's lines, that are multiplied at a time; or of W's, if these are few
// The longest k, of so many lines of X: a line has one unit; and longer was not measured.
constexpr int64_t most_k(int64_t lines) { return lines <= kOctet ? kGroup : 640; }
// What is known of lines: of X's; of W's that pairs do not suit.
constexpr int kSharedBytes = kRows * 9 + kMostTiles * kTile * 6 + 64;
// Lines of X that a block has room for: of up to an octet there is a kernel of its own. And blocks of a multiprocessor.
constexpr int held_of(int64_t lines) { return lines <= kOctet ? kOctet : lines <= kPart ? kPart : kRows; }
constexpr int blocks_of(int64_t lines) { return lines <= kOctet ? 4 : 3; }
// Of X's halves, of all segments. There are parts of up to kPart lines, of as many segments as fit there, and of two at least.
constexpr int part_bytes(int held) { return kParts * (held < kPart ? held : kPart) * hopper::kRowBytes; }
constexpr int piece_bytes(int64_t segments, int held) {
  const int all = static_cast<int>(segments);
  const int halves = 2 * all * held * hopper::kRowBytes, parts = (all < 2 ? all : 2) * part_bytes(held);
  return halves > parts ? halves : parts;
}
constexpr int segments_of_parts(int64_t segments, int held) { return piece_bytes(segments, held) / part_bytes(held); }
// And a scale and facts for each line of a segment.
constexpr int shared_bytes(int64_t segments, int64_t lines) {
  return hopper::kTileAlignment + piece_bytes(segments, held_of(lines)) + kSharedBytes +
         held_of(lines) * 8 * static_cast<int>(segments);
}
// Tiles of X, of all products.
inline int64_t x_tiles_of(const Problem& p) { return p.batches * ceil_div(p.m < p.n ? p.m : p.n, int64_t(kRows)); }

}  // namespace split_held

// Of split_direct, too: some lines of X, long k, and up to a few thousand lines of W. A cluster has a tile, and a block a run of its segments.
namespace split_some {

// A tile has up to kMostSets sixteens of lines of W, of which a warp multiplies one at a time, and up to kMostOctets eights of X.
constexpr int kSet = 16, kOctet = 8, kMostSets = 8, kMostOctets = 8, kWarps = 16, kThreads = kWarps * 32,
              kMostCluster = 8;
constexpr int kMostGroups = 8;      // of k
constexpr int kMostPartOctets = 4;  // that are multiplied by parts at a time
// Of X, 16 bytes each: a segment of so many octets, as pairs or as parts.
TREDUCE_HOST_DEVICE constexpr int piece_quads(int octets) {
  const int parts = (octets < kMostPartOctets ? octets : kMostPartOctets) * split_direct::kPartBytes;
  const int pairs = octets * split_direct::kPairBytes;
  return (pairs > parts ? pairs : parts) / 16;
}
// What is known of lines; and all of it: that, of a block's segments X and its scales, of all segments its share of the sums.
constexpr int kKnownBytes = 29 << 10;
constexpr int64_t shared_bytes(int64_t segments, int sets, int octets, int cluster) {
  const int64_t each = ceil_div(segments, int64_t(cluster));
  return kKnownBytes + each * (piece_quads(octets) * 16 + octets * kOctet * 4) +
         segments * sets * octets * 32 * 16 / cluster;
}

}  // namespace split_some

// Of split_direct, too: one line of X, and W along k. A cluster has 16 lines of W, and a block a run of their segments: it splits X's for
// all its warps, and each warp splits segments of W in the registers that it multiplies from.
namespace split_single {

constexpr int kLines = split_left::kLines, kWarps = 8, kThreads = kWarps * 32, kBlocks = 2, kMostCluster = 8;
constexpr int64_t kMostSegments = 512;
// Of a segment of X: halves and a scale. Of a block all of them; and of all segments of k sums, and of groups units.
constexpr int kBytesX = kSegment * 4 + 4;
constexpr int shared_bytes(int64_t segments, int cluster) {
  const int64_t bytes = ceil_div(segments, int64_t(cluster)) * kBytesX + segments * kLines * 4 +
                        ceil_div(segments, int64_t(kGroupSegments)) * (kLines + 1) * 4;
  return static_cast<int>(bytes > split_left::sums_bytes_of(1) ? bytes : split_left::sums_bytes_of(1));
}

}  // namespace split_single

}  // namespace treduce::matmul
