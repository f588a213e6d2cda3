// split_fp16 for up to 128 rows or columns of C: the operand with the many lines, which is most of the memory (W), is read once, in
// float32, and split on its way through shared memory. Three kinds of warps work side by side: some copy, some split W, and warp
// groups multiply. The first operand of a multiplication is 64 lines of W, its columns are the few lines of the other operand (X):
// the product itself, or transposed. X is split before, so it is known then which of its lines no pairs suit, and W is split into
// halves, into parts, or into both. (Where the copy engine reads W, split_turns.cuh has the first launch of tiles of few lines of X.)
#pragma once

#include "../../primitives/in_order.cuh"
#include "../epilogue.cuh"
#include "split_group.cuh"
#include "split_launches.h"
#include "split_lines.cuh"
#include "split_segment.cuh"
#include "split_tiles.cuh"

namespace treduce::matmul::split_rows {

using namespace hopper;
using split::Operand16;

// The first launch multiplies halves, and where X has lines that no pairs suit, parts beside them or instead. What lines of W leave
// to do is for the second one.
enum class Pass { first, rest };

// How W is read: as boxes that the copy engine brings, with k or the lines contiguous; or number by number, wherever they lie.
enum class ReadW { along_k, along_lines, numbers };

// One of the shapes of shapes.h.
template <int kIndex, Pass kPass>
struct Tiling {
  static constexpr bool kFirst = kPass == Pass::first;
  static constexpr int kShapeIndex = kIndex;
  static constexpr Shape kShape = kShapes[kIndex];
  static constexpr int kRows = kShape.rows, kTeams = kShape.teams, kStages = kShape.stages;
  static constexpr int kThreads = kShape.threads(), kBlocks = kShape.blocks();
  static constexpr int kPart = kRows <= 64 ? kRows : 64;  // lines of X that are multiplied together
  static constexpr bool kOverlaps = kRows <= 32;          // adds a segment's sums while it multiplies the next one
  static constexpr int kBytesW = kShape.bytes_w(kSegment);
  // Of a thread: all at first, then those who copy, split and multiply. Those who multiply take what the others leave.
  static constexpr int kRegisters = 65536 / (kThreads * kBlocks) / 8 * 8, kCopying = kRows == 64 ? 32 : 24;
  static constexpr int kSplitting = kRows > 64 ? 64 : kTeams == 1 ? 72 : 80;
  static constexpr int kMultiplying =
      kRegisters * (kThreads / kWarpGroup) - kCopying - kTeams * kShape.kTeamWarps / 4 * kSplitting;
  static_assert(kMultiplying <= 256);
  static constexpr bool kMayPart = kFirst && kRows <= kMostPartRows;
};

// In a stage of W split, or of X: halves, parts, and scales of the halves; those that X needs. Found out again where it is needed:
// registers are few. kCount: lines of W or X; kRing: bytes of the ring.
// kTurns: stages are so many, or a multiple.
template <int kCount, int kRing, int kTurns = 1>
struct SplitStage {
  static constexpr int kBytes = kCount * kRowBytes;  // one half, or one part
  static constexpr int kScaleBytes = kCount * 4;
  static_assert((2 + kParts) * kBytes + kTileAlignment <= kRing && kScaleBytes <= kTileAlignment);
  static constexpr int kLeastStages = kRing / ((2 + kParts) * kBytes + kTileAlignment);
  // Of parts alone; halves alone take less.
  static constexpr int kLoneStages = kRing / (kParts * kBytes);
  bool halves, by_parts;

  template <class Mode>
  TREDUCE_DEVICE explicit SplitStage(const Mode& mode) : halves(mode.halves), by_parts(mode.parts) {}
  // Where these begin, and what a stage and the ring have.
  TREDUCE_DEVICE int parts() const { return halves ? 2 * kBytes : 0; }
  TREDUCE_DEVICE int scales() const { return parts() + (by_parts ? kParts * kBytes : 0); }
  TREDUCE_DEVICE int bytes() const { return scales() + (halves ? kTileAlignment : 0); }
  TREDUCE_DEVICE int stages() const {
    constexpr int kOne = 2 * kBytes + kTileAlignment, kOther = kParts * kBytes;
    constexpr int kBoth = kRing / (kOne + kOther), kHalvesAlone = kRing / kOne, kPartsAlone = kRing / kOther;
    const int fit = halves && by_parts ? kBoth : halves ? kHalvesAlone : kPartsAlone;
    return min(kMostStages, fit) / kTurns * kTurns;
  }
};
template <class S>
using StageOfW = SplitStage<kLines, S::kShape.split_bytes>;
template <class S>
using StageOfX = SplitStage<S::kRows, S::kShape.x_bytes>;

// What a block's warps share.
template <class S>
struct Shared {
  Ring<S::kStages> w;            // W as it is in memory
  Ring<kMostStages> split_w, x;  // see SplitStage
  int unit[kLines];              // the exponents of the units of W's lines
};

// This lane's numbers of a line: for i = 0 to 7, steps of k 8 i + 2 (lane % 4), and one more.
TREDUCE_DEVICE int step_of(int i) { return i / 2 * 8 + threadIdx.x % split::kLanes * 2 + i % 2; }

// Which line of a set lanes 4 i to 4 i + 3 have: lanes that read or write shared memory together touch every bank once. Of runs (see
// read_runs) neighbours differ in the last bit, by which their loads go to other banks, and in the third, by which their stores do.
template <ReadW kRead>
TREDUCE_DEVICE int line_in_set(int i) {
  return kRead == ReadW::along_k ? i / 2 ^ i % 2 * 5 : split::line_in_set(i);
}

// Reads them from the float32 tile, which is boxes of swizzled 128-byte rows: along_k two boxes, each of 32 steps of k of all lines;
// along_lines boxes of 32 lines and 64 steps of k. kBoxLines: of a box along_k.
template <ReadW kRead, int kBoxLines = kLines>
TREDUCE_DEVICE void read_line(const char* tile, int line, float (&numbers)[16]) {
  const int q = threadIdx.x % 4;
  if constexpr (kRead == ReadW::along_k) {
    // The 16 bytes of k are chunk (k / 4 + q / 2) ^ line % 8. k / 4 is even here, so its exclusive or may come last.
    const char* const row = tile + line * kRowBytes + q % 2 * 8;
    const int first = (q / 2) ^ line % 8;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float2 pair =
          *reinterpret_cast<const float2*>(row + i / 4 * (kBoxLines * kRowBytes) + (first ^ i % 4 * 2) * 16);
      numbers[i * 2] = pair.x;
      numbers[i * 2 + 1] = pair.y;
    }
  } else {
    // k % 8 is q * 2 or one more, and so is what the exclusive or takes of it: two addresses, and constants.
    const char* const slab = tile + line / 32 * (64 * kRowBytes) + line % 4 * 4 + q * 2 * kRowBytes;
    const int first = (line % 32 / 4 ^ q * 2) * 16;
    const char* const at[2] = {slab + first, slab + kRowBytes + (first ^ 16)};
#pragma unroll
    for (int i = 0; i < 16; ++i) numbers[i] = *reinterpret_cast<const float*>(at[i % 2] + i / 2 * 8 * kRowBytes);
  }
}
// Reads them from a line with any stride; there are `present` steps of k.
TREDUCE_DEVICE void read_numbers(const float* line, int64_t stride, int present, float (&numbers)[16]) {
  const float* at = line + step_of(0) * stride;
#pragma unroll
  for (int i = 0; i < 16; i += 2) {
    numbers[i] = step_of(i) < present ? __ldg(at) : 0.0f;
    numbers[i + 1] = step_of(i + 1) < present ? __ldg(at + stride) : 0.0f;
    at += 8 * stride;
  }
}

// Stores the pairs that a warp's lanes have of a set of lines, in the order of kRead (see line_in_set), in a tile of swizzled 128-byte rows, a
// row a line: eight lines and eight steps of k are a matrix. `half`: of the 64 steps.
template <ReadW kRead = ReadW::numbers>
TREDUCE_DEVICE void store_half(char* tile, int first_line, int half, const uint32_t* pairs) {
  const int lane = threadIdx.x % 32, line = line_in_set<kRead>(lane % 8), chunk = (lane / 8 ^ line) * 16;
  char* const row = tile + (first_line + line) * kRowBytes;
  ptx::store_matrices(row + (chunk ^ half * 64), {pairs[0], pairs[1], pairs[2], pairs[3]});
}
template <ReadW kRead = ReadW::numbers>
TREDUCE_DEVICE void store_pairs(char* tile, int first_line, const uint32_t (&pairs)[8]) {
  store_half<kRead>(tile, first_line, 0, pairs);
  store_half<kRead>(tile, first_line, 1, pairs + 4);
}

// Where k is contiguous, a lane may have two runs of eight steps of k instead, the second 32 steps on: it loads and stores 16 bytes at a
// time. Shared memory takes half as long to store them as the matrices above.
TREDUCE_DEVICE void read_runs(const char* tile, int line, float (&numbers)[16]) {
  const char* const row = tile + line * kRowBytes;
  const int first = (threadIdx.x % 4 * 2 ^ line % 8) * 16;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float4 four = *reinterpret_cast<const float4*>(row + i / 2 * (kLines * kRowBytes) + (first ^ i % 2 * 16));
    numbers[i * 4] = four.x, numbers[i * 4 + 1] = four.y, numbers[i * 4 + 2] = four.z, numbers[i * 4 + 3] = four.w;
  }
}
TREDUCE_DEVICE void store_runs(char* tile, int line, const uint32_t (&pairs)[8]) {
  char* const row = tile + line * kRowBytes;
  const int first = (threadIdx.x % 4 ^ line % 8) * 16;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    *reinterpret_cast<uint4*>(row + (first ^ i * 64)) =
        make_uint4(pairs[i * 4], pairs[i * 4 + 1], pairs[i * 4 + 2], pairs[i * 4 + 3]);
  }
}

struct Work {
  int64_t m, n;
  int64_t w_lines;
  int x_lines;
  int steps, w_tiles, x_tiles, batches, inner_batches;
  TREDUCE_HOST_DEVICE int64_t tiles() const { return int64_t(w_tiles) * x_tiles * batches; }
  int groups, group_parts;  // of k; and blocks that share one
  int64_t outputs;          // from the results of one group of k to those of the next
  // Where group_parts > 1: the sums of segments, four of a thread at a time, [segment][tile][quad][thread], and exponents of the units
  // of lines of W, [group][tile][line].
  float4* segment_sums;
  int* group_units;
  // The groups that blocks of the second launch may share, and their sums, [group][segment][quad][thread].
  int shared_groups;
  float4* shared_sums;
  Broadcast box_w;
  split::Matrices w, x;
  split::Source source;  // W
  bool of_a;             // W is A; else the product is transposed
};

// What a block multiplies: lines of W from `first` on by lines of X from `first_x` on, a group of k of one product of the batch. Found
// out again by each kind of warps, for registers are few; of the second launch it is in shared memory.
template <class S>
struct BlockTask {
  int first, first_x, x_lines;
  int batch, group, tile;
  int begin, end;  // segments of the group
  int2 batches;
  int64_t matrix_w, matrix_x;

  TREDUCE_DEVICE BlockTask(const Work& work, int block) {
    // Blocks that read the same lines of W are neighbours.
    tile = static_cast<int>(block % work.tiles());
    first_x = block % work.x_tiles * S::kRows;
    block /= work.x_tiles;
    first = block % work.w_tiles * kLines;
    block /= work.w_tiles;
    x_lines = min(work.x_lines - first_x, S::kRows);
    batch = block % work.batches;
    block /= work.batches;
    group = block % work.groups;
    const int part = block / work.groups, length = kGroupSegments / work.group_parts;
    begin = group * kGroupSegments + part * length;
    end = min(work.steps, begin + length);
    batches = {batch / work.inner_batches, batch % work.inner_batches};
    matrix_w = work.w.of(batches.x, batches.y);
    matrix_x = work.x.of(batches.x, batches.y);
  }
  BlockTask() = default;
  // A group of k of a tile of the only matrix, or a run of it.
  TREDUCE_DEVICE BlockTask(const Work& work, int tile, int x_tile, int group, int run, int runs) : BlockTask() {
    this->tile = tile, this->group = group;
    first = tile * kLines, first_x = x_tile * S::kRows;
    x_lines = min(work.x_lines - first_x, S::kRows);
    batch = 0, batches = {0, 0}, matrix_w = matrix_x = 0;
    const int length = kGroupSegments / runs;
    begin = group * kGroupSegments + run * length;
    end = min(work.steps, begin + length);
  }
  // Of the matrix, and of the block's lines.
  TREDUCE_DEVICE Facts* all_facts_w(const Operand16& w) const { return w.line_facts + matrix_w * w.shape.lines_padded; }
  TREDUCE_DEVICE Facts* facts_w(const Operand16& w) const { return all_facts_w(w) + first; }
  TREDUCE_DEVICE Facts* facts_x(const Operand16& x) const {
    return x.line_facts + matrix_x * x.shape.lines_padded + first_x;
  }
};

// What a block of the second launch computes, in shared memory: a tile of lines of W, of those that are left or as they lie, by a group of k,
// or a run of its segments.
template <class S>
struct Share {
  static constexpr int kMostWarps = 32;
  static constexpr int kLeastRunsOfTile = 4, kMostRunsOfTile = 8;  // where lines are not listed

  BlockTask<S> task;  // of listed lines that of the first tile
  int runs, group;    // of the groups that may be left
  bool listed;        // the lines are those that are left
  int warps;          // of those who multiply, that have lines: 1, 2 or 4
  int lines[kLines];  // of W; -1: none
  uint32_t found[kMostWarps];
  bool last;

  // Takes a share of what may be left. Who calls: all threads of the block. Returns whether there is one. If it is not of listed lines,
  // `lines` are not yet known.
  TREDUCE_DEVICE bool take(const Work& work, const Operand16& w) {
    const int index = static_cast<int>(blockIdx.x);
    uint4 words = {0, 0, 0, 0};
    if (work.shared_groups > 0 && threadIdx.x * kWordsOfThread < line_words(work.w_lines)) {
      words = __ldcg(reinterpret_cast<const uint4*>(w.runs) + threadIdx.x);
    }
    if (*w.codes == 0) return false;
    if (work.shared_groups == 0) {
      if (threadIdx.x == 0) {
        task = BlockTask<S>(work, index);
        group = index, runs = 1, listed = false, warps = kLines / 16;
      }
      __syncthreads();
      return true;
    }
    // Lines left, and above them tiles of these: of this thread's, and of the threads before.
    constexpr int kTilesAbove = 20;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const bool has[2] = {(words.x | words.y) != 0, (words.z | words.w) != 0};
    const uint32_t mine = __popc(words.x) + __popc(words.y) + __popc(words.z) + __popc(words.w) +
                          (uint32_t(has[0] + has[1]) << kTilesAbove);
    uint32_t before = mine;
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
      const uint32_t more = __shfl_up_sync(~0u, before, d);
      if (lane >= d) before += more;
    }
    if (lane == 31) found[warp] = before;
    __syncthreads();
    before -= mine;
    uint32_t all = lane < blockDim.x / 32 ? found[lane] : 0;
    before += __reduce_add_sync(~0u, lane < warp ? all : 0);
    all = __reduce_add_sync(~0u, all);
    const int lines_left = all % (1u << kTilesAbove), tiles = all >> kTilesAbove, blocks = static_cast<int>(gridDim.x);
    const int tiles_of_listed = ceil_div(lines_left, kLines);
    // Lines apart are read by threads, not by the copy engine.
    const bool list =
        2 * lines_left <= tiles * kLines && tiles_of_listed * work.x_tiles * work.groups <= work.shared_groups;
    const int of_k = (list ? tiles_of_listed : tiles) * work.x_tiles, groups = of_k * work.groups;  // of a group of k
    int of_group = groups > work.shared_groups ? 1 : list ? kGroupSegments : kMostRunsOfTile;
    while (of_group > 1 && groups * of_group > blocks) of_group /= 2;
    if (!list && of_group < kLeastRunsOfTile) of_group = 1;
    if (index >= groups * of_group) return false;
    const int run = index / groups, left = index - run * groups, k_group = left / of_k, pair = left - k_group * of_k;
    const int tile = pair / work.x_tiles, x_tile = pair - tile * work.x_tiles;
    if (threadIdx.x == 0) {
      runs = of_group, group = left, listed = list;
      const int present = lines_left - tile * kLines;
      warps = list && present <= 16 ? 1 : list && present <= 32 ? 2 : 4;
      if (list) task = BlockTask<S>(work, 0, x_tile, k_group, run, of_group);
    }
    if (list) {
      int place = static_cast<int>(before % (1u << kTilesAbove)) - tile * kLines;
      const uint32_t each[kWordsOfThread] = {words.x, words.y, words.z, words.w};
#pragma unroll
      for (int i = 0; i < kWordsOfThread; ++i) {
        for (uint32_t some = each[i]; some != 0; some &= some - 1, ++place) {
          if (place >= 0 && place < kLines) lines[place] = (threadIdx.x * kWordsOfThread + i) * 32 + __ffs(some) - 1;
        }
      }
      if (threadIdx.x < kLines && tile * kLines + static_cast<int>(threadIdx.x) >= lines_left) lines[threadIdx.x] = -1;
    } else {
      const int place = tile - static_cast<int>(before >> kTilesAbove);
      if (place >= 0 && place < has[0] + has[1]) {
        task = BlockTask<S>(work, threadIdx.x * 2 + (place == 1 || !has[0] ? 1 : 0), x_tile, k_group, run, of_group);
      }
    }
    __syncthreads();
    return true;
  }
  TREDUCE_DEVICE float4* sums(const Work& work) const {
    return work.shared_sums + int64_t(group) * (kGroupSegments * kLines * S::kRows / 4);
  }
};

// What the second launch knows of the lines of X and W that a block multiplies, in shared memory: a code, and beside it whether
// kDone, of W, and never_pairs, of X; and units of X.
constexpr unsigned char kBeside = kCodes;
template <class S>
struct BlockCodes {
  unsigned char x[S::kRows], w[kLines];
  float unit_x[S::kRows];
};
// Whether an output is left to the second launch.
TREDUCE_DEVICE bool is_left(unsigned w, unsigned x) {
  return by_parts(arithmetic_of(w % kBeside, x % kBeside)) && (w & x & kBeside) == 0;
}

// How lines of X are multiplied. kKnowsMost: `most` is set.
template <int kRows, bool kKnowsMost = false>
struct Mode {
  bool halves, parts;
  bool all_held;                         // parts hold all numbers of X
  int most;                              // the largest exponent of X
  Others others;                         // lines that are multiplied by halves
  uint32_t by_parts[(kRows + 31) / 32];  // lines that no pairs suit, a bit each

  // Who calls: all lanes of a warp.
  TREDUCE_DEVICE static Mode of(const Facts* facts, int lines) {
    return of_each([&](int line) { return facts[line]; }, lines);
  }
  template <class Known>
  TREDUCE_DEVICE static Mode of_each(Known facts_at, int lines) {
    Mode mode;
    mode.halves = mode.parts = false;
    mode.all_held = true;
    if constexpr (kKnowsMost) mode.most = 0;
    Others others = Others::none();
#pragma unroll
    for (int i = 0; i < (kRows + 31) / 32; ++i) {
      const int line = i * 32 + static_cast<int>(threadIdx.x % 32);
      const Facts known = line < lines ? facts_at(line) : kPlainestFacts;
      const bool finite = line < lines && all_finite(known);
      mode.all_held = mode.all_held && __all_sync(~0u, code_of(known) / kCodeRange == kRangeAll);
      if constexpr (kKnowsMost) mode.most = max(mode.most, line < lines ? largest_exponent(known) : 0);
      const unsigned kind = kind_of(known);
      if (kind != 0) others.add(kind);
      mode.by_parts[i] = __ballot_sync(~0u, finite && never_pairs(known));
      mode.parts = mode.parts || mode.by_parts[i] != 0;
      mode.halves = mode.halves || __any_sync(~0u, finite && !never_pairs(known));
    }
    mode.halves = mode.halves || !mode.parts;
    mode.others = split::of_all_lanes(others);
    if constexpr (kKnowsMost) mode.most = __reduce_max_sync(~0u, mode.most);
    return mode;
  }
  // Whether that multiplies all outputs of such a line of W, of which a part is known; and whether the last launch has none to check.
  TREDUCE_DEVICE bool suffices(Facts w) const { return !halves || others.pairs_suffice(w); }
  TREDUCE_DEVICE bool is_held(Facts w) const { return matmul::is_held(w) && !(halves && others.checks(w)); }
  // Whether parts hold it, or who computes them finds out whether they are certain, where all of X is by pairs and all of the line is known.
  TREDUCE_DEVICE bool may_hold(Facts w) const { return all_held && code_of(w) / kCodeRange != kRangeNothing; }
  TREDUCE_DEVICE bool checks(Facts w) const { return !never_pairs(w) && others.checks(w); }
  // The same of a line of which this is known, and the exponent of its group's unit; and what the next launches are to know of it.
  struct Told {
    bool done, held;
    Facts known;
  };
  TREDUCE_DEVICE Told told(Facts w, int unit) const {
    const bool hold = !parts || parts_hold(w, unit);
    return {hold && suffices(w), all_held && is_held(w), with_done(w, hold)};
  }
  TREDUCE_DEVICE Told told_nothing() const { return {true, all_held, 0}; }
  // In the second launch all are.
  TREDUCE_DEVICE static Mode all_by_parts() {
    Mode mode;
    mode.halves = false;
    mode.parts = mode.all_held = true;
    mode.others = Others::none();
#pragma unroll
    for (uint32_t& lines : mode.by_parts) lines = ~0u;
    return mode;
  }
};

// Which of a lane's outputs of a warp group's multiplication are by parts.
template <int kRows>
struct LaneByParts {
  uint32_t bits = 0;  // two for each eight lines of X

  TREDUCE_DEVICE explicit LaneByParts(const Mode<kRows>& mode) {
#pragma unroll
    for (int i = 0; i < kRows / 8; ++i) {
      bits |= (mode.by_parts[i / 4] >> (i % 4 * 8 + threadIdx.x % 32 % 4 * 2) & 3) << i * 2;
    }
  }
  TREDUCE_DEVICE bool operator()(int output) const { return (bits >> (output / 4 * 2 + output % 2) & 1) != 0; }
};

// Multiplies a piece of 64 lines of W by one of kPart lines of X, both in shared memory, in one of four steps.
template <class Piece, int kPart>
TREDUCE_DEVICE void multiply_pieces(float (&to)[kPart / 2], const char* w, const char* x, int i, int accumulate) {
  using Lines = Tile<Piece, 8, true>;
  ptx::Wgmma<Piece, kPart, false, false>::multiply(to, Lines::lone_descriptor(w, 0, i), Lines::lone_descriptor(x, 0, i),
                                                   accumulate);
}

// Starts the multiplications of a segment. `w`, `x`: the first pieces of these lines; others lie bytes_w and bytes_x apart.
template <class Piece, int kPieces, int kPart>
TREDUCE_DEVICE void start_segment(float (&high)[kPart / 2], float (&rest)[kPart / 2], const char* w, int bytes_w,
                                  const char* x, int bytes_x, bool of_a) {
  const auto multiply = [&](float (&to)[kPart / 2], int of_w, int of_x, int i, int accumulate) {
    multiply_pieces<Piece, kPart>(to, w + of_w * bytes_w, x + of_x * bytes_x, i, accumulate);
  };
  split::start_products<kPieces>(high, rest, of_a, multiply);
}

// Multiplies a segment of all lines of X, and calls add(first line, high, rest) of kPart lines after another.
template <class Piece, int kPieces, class S, class Add>
TREDUCE_DEVICE void multiply_segment(const char* w, int bytes_w, const char* x, int bytes_x, bool of_a, Add add) {
#pragma unroll
  for (int first = 0; first < S::kRows; first += S::kPart) {
    float high[S::kPart / 2], rest[S::kPart / 2];
    start_segment<Piece, kPieces, S::kPart>(high, rest, w, bytes_w, x + first * kRowBytes, bytes_x, of_a);
    ptx::wgmma_wait<0>();
    ptx::wgmma_touch(high);
    ptx::wgmma_touch(rest);
    add(first, high, rest);
  }
}

// The scales of a segment's sums: of a lane's two lines of W, and of all lines of X, two a word.
template <int kPart>
struct Scales {
  float w[2];
  const float2* x;

  // Calls add(output, its scale) of the outputs that the lane has of kPart lines of X from `first` on.
  template <class Add>
  TREDUCE_DEVICE void for_each(int first, Add add) const {
#pragma unroll
    for (int i = 0; i < kPart / 8; ++i) {
      const float2 two = x[first / 2 + i * 4 + threadIdx.x % 32 % 4];
#pragma unroll
      for (int j = 0; j < 4; ++j) add(i * 4 + j, w[j / 2] * (j % 2 == 0 ? two.x : two.y));
    }
  }
};

// Copies the tiles of kLines of W that a task has. Who calls: one thread.
template <ReadW kRead, int kLines, int kStages, class Task>
TREDUCE_DEVICE void copy_w(Ring<kStages>& ring, RingPosition<kStages>& position, char* tiles, const CUtensorMap& map_w,
                           const Work& work, const Task& task) {
  constexpr bool kAlongK = kRead == ReadW::along_k;
  constexpr int kBytes = kLines * kSegment * 4, kBoxes = kAlongK ? 2 : kLines / 32;
  const int2 batch_w = work.box_w.of(task.batches);
  const int first = task.first, end = task.end;
  for (int step = task.begin; step < end; ++step, position.next()) {
    wait_to_overwrite<ptx::kLongPause>(ring.empty + position.stage, position.parity ^ 1);
    uint64_t* const full = ring.full + position.stage;
    char* const to = tiles + position.stage * kBytes;
    ptx::mbarrier_arrive_expect(full, kBytes);
#pragma unroll
    for (int box = 0; box < kBoxes; ++box) {
      const int x = (kAlongK ? step * kSegment : first) + box * 32, y = kAlongK ? first : step * kSegment;
      ptx::load_box(to + box * (kBytes / kBoxes), &map_w, {x, y, batch_w.y, batch_w.x}, full);
    }
  }
}

// Copies the pieces and scales of X that the block multiplies. Who calls: one thread.
template <class S, class Stage>
TREDUCE_DEVICE void copy_x(Ring<kMostStages>& ring, char* tiles, const Stage& stage, const CUtensorMap& map_x,
                           const CUtensorMap& map_x_parts, const Operand16& x, const Work& work,
                           const BlockTask<S>& task) {
  const int copied =
      (stage.halves ? 2 * stage.kBytes + stage.kScaleBytes : 0) + (stage.by_parts ? kParts * stage.kBytes : 0);
  const float* scale = x.scale + (task.matrix_x * work.steps + task.begin) * x.shape.lines_padded + task.first_x;
  const int matrix = static_cast<int>(task.matrix_x);
  RingPosition<kMostStages> position;
  for (int step = task.begin; step < task.end; ++step, position.next(stage.stages())) {
    wait_to_overwrite<ptx::kLongPause>(ring.empty + position.stage, position.parity ^ 1);
    uint64_t* const full = ring.full + position.stage;
    char* const to = tiles + position.stage * stage.bytes();
    ptx::mbarrier_arrive_expect(full, copied);
    const int k = step * kSegment;
    if (stage.halves) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        Tile<float16, S::kRows, true>::load(to + half * stage.kBytes, &map_x, task.first_x, k, {half, matrix}, full);
      }
      ptx::load_bytes(to + stage.scales(), scale, stage.kScaleBytes, full);
      scale += x.shape.lines_padded;
    }
    if (stage.by_parts) {
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        Tile<bfloat16, S::kRows, true>::load(to + stage.parts() + part * stage.kBytes, &map_x_parts, task.first_x, k,
                                             {part, matrix}, full);
      }
    }
  }
}

// map_x: of the halves; map_x_parts: of the parts.
template <class S, ReadW kRead>
__global__ void __launch_bounds__(S::kThreads, S::kBlocks)
    kernel(TREDUCE_GRID_CONSTANT CUtensorMap map_w, TREDUCE_GRID_CONSTANT CUtensorMap map_x,
           TREDUCE_GRID_CONSTANT CUtensorMap map_x_parts, TREDUCE_GRID_CONSTANT Operand16 x,
           TREDUCE_GRID_CONSTANT Operand16 w, TREDUCE_GRID_CONSTANT Work work, int depth, float* c, const float* bias) {
#ifdef TREDUCE_SM90A
  using Mode = split_rows::Mode<S::kRows>;
  using Task = BlockTask<S>;
  ptx::allow_launch_after();
  SHARED(Shared<S>, shared);
  [[maybe_unused]] SHARED(BlockCodes<S>, codes);
  [[maybe_unused]] SHARED(Share<S>, share);
  const auto own_task = [&]() -> decltype(auto) {
    if constexpr (S::kFirst) {
      return Task(work, ptx::block_index());
    } else {
      return (share.task);
    }
  };
  // W as it is in memory, W split, then X.
  char* const tiles = aligned_tiles(dynamic_shared<char>());
  char* const tiles_split = tiles + (kRead == ReadW::numbers ? 0 : S::kStages * S::kBytesW);
  char* const tiles_x = tiles_split + S::kShape.split_bytes;
  if constexpr (!S::kFirst) {
    // The launch before has found out which lines need this one: of most data, none.
    ptx::wait_for_launch_before();
    if (!share.take(work, w)) return;
    const Task& task = own_task();
    if (task.begin >= task.end) return;  // the last group may be short
    const Facts *const facts_w = task.all_facts_w(w), *const facts_x = task.facts_x(x);
    for (int i = threadIdx.x; i < kLines; i += S::kThreads) {
      if (!share.listed) share.lines[i] = task.first + i < work.w_lines ? task.first + i : -1;
      const Facts known = share.lines[i] >= 0 ? facts_w[share.lines[i]] : 0;
      codes.w[i] = static_cast<unsigned char>(code_of(known) | ((known & kDone) != 0 ? kBeside : 0));
    }
    for (int i = threadIdx.x; i < task.x_lines; i += S::kThreads) {
      const Facts known = facts_x[i];
      codes.x[i] = static_cast<unsigned char>(code_of(known) | (never_pairs(known) ? kBeside : 0));
      codes.unit_x[i] = split::power_of_two(-parts_exponent(known));
    }
    __syncthreads();
    bool some = false;
    for (int i = threadIdx.x; i < kLines * task.x_lines; i += S::kThreads) {
      some |= share.lines[i % kLines] >= 0 && is_left(codes.w[i % kLines], codes.x[i / kLines]);
    }
    if (__syncthreads_or(some) == 0) return;
  }
  if constexpr (S::kMayPart) {
    if (work.group_parts > 1) {
      const Task task(work, ptx::block_index());
      if (task.begin >= task.end) return;  // the last group may be short
    }
  }
  if (threadIdx.x == 0) {
    if constexpr (kRead != ReadW::numbers) ptx::prefetch_tensor_map(&map_w);
    if constexpr (S::kFirst) ptx::prefetch_tensor_map(&map_x);
    ptx::prefetch_tensor_map(&map_x_parts);
    shared.w.init(S::kShape.kTeamWarps);
    shared.split_w.init(S::kShape.kMultiplyWarps, kMostStages, S::kShape.kTeamWarps);
    shared.x.init(S::kShape.kMultiplyWarps);
  }
  __syncthreads();
  // X was split by a launch before this one; W need not wait for that.
  const auto mode_of_x = [&](const Task& task) {
    if constexpr (!S::kFirst) return Mode::all_by_parts();
    ptx::wait_for_launch_before();
    return Mode::of(task.facts_x(x), task.x_lines);
  };
  // A shuffle tells the compiler that this is the same in all lanes: descriptors are then in uniform registers.
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x / 32), 0);
  constexpr int kFirstSplitter = S::kShape.kMultiplyWarps,
                kFirstCopier = kFirstSplitter + S::kTeams * S::kShape.kTeamWarps;

  // The end of the second launch. Who multiply have left the sums of the group, or of its segments: then the last block adds these in their
  // order, as one block does. Results leave in a loop: instructions that are hardly ever executed have to be fetched first, which takes longer
  // than to execute them. Who calls: those who split W.
  constexpr int kMultipliersBarrier = 1, kSumsBarrier = 2, kStorersBarrier = 3;
  constexpr int kStorers = S::kTeams * S::kShape.kTeamWarps * 32, kLeavers = kStorers + S::kShape.kMultiplyWarps * 32;
  static_assert(kLines * S::kRows * 4 <= S::kShape.split_bytes);
  [[maybe_unused]] const auto store_left = [&] {
    constexpr int kSums = kLines * S::kRows / 2, kOfWarp = 64;  // pairs of sums
    const Task& task = own_task();
    const int thread = threadIdx.x - kFirstSplitter * 32,
              count = min(kGroupSegments, work.steps - task.group * kGroupSegments);
    const bool add = share.runs > 1;
    named_barrier<kLeavers>(kSumsBarrier);
    if (add) {
      if (thread == 0) {
        __threadfence();
        const uint32_t all = ceil_div(count, kGroupSegments / share.runs);
        share.last = atomicAdd(w.runs + line_words(work.w_lines) + share.group, 1u) + 1 == all;
        __threadfence();
      }
      named_barrier<kStorers>(kStorersBarrier);
      if (!share.last) return;
    }
    const float2* const from =
        add ? reinterpret_cast<const float2*>(share.sums(work)) : reinterpret_cast<const float2*>(tiles_split);
    float* const to = c + task.group * work.outputs + task.batch * work.m * work.n;
    const int of_quad = share.warps * kOfWarp, shift = __ffs(of_quad) - 1;
#pragma unroll 1
    for (int i = thread; i < S::kRows / 8 * of_quad; i += kStorers) {
      const int of_tile = i & (of_quad - 1), at = (i >> shift) * (2 * kAddThreads) + of_tile;
      float2 sum = {0, 0};
      if (add) {
#pragma unroll 16
        for (int step = 0; step < count; ++step) {
          const float2 more = __ldcg(from + step * kSums + at);
          sum = {sum.x + more.x, sum.y + more.y};
        }
      } else {
        sum = from[at];
      }
      const int here = of_tile / kOfWarp * 16 + of_tile % kOfWarp / 8 + of_tile % 2 * 8,
                first_row = (i >> shift) * 8 + of_tile / 2 % 4 * 2;
      const int64_t of_w = share.lines[here];
      const float unit_w = split::power_of_two(shared.unit[here]), of_two[2] = {sum.x, sum.y};
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int row = first_row + j;
        if (of_w < 0 || row >= task.x_lines || !is_left(codes.w[here], codes.x[row])) continue;
        const int64_t of_x = task.first_x + row, m = work.of_a ? of_w : of_x, n = work.of_a ? of_x : of_w;
        const float result = split::from_units(of_two[j], unit_w, codes.unit_x[row]);
        to[m * work.n + n] = bias == nullptr ? result : canonical(result + __ldg(bias + n));
      }
    }
  };

  // ---- producers: a warp copies the tiles of W, another what is multiplied of X ----
  if (warp >= kFirstCopier) {
    ptx::set_registers<S::kCopying, S::kRegisters>();
    const Task& task = own_task();
    const bool copies_w = kRead != ReadW::numbers && (S::kFirst || !share.listed);
    if (copies_w && warp == kFirstCopier && ptx::elect_one()) {
      RingPosition<S::kStages> position;
      copy_w<kRead, kLines>(shared.w, position, tiles, map_w, work, task);
    } else if (warp == kFirstCopier + 1) {
      const Mode mode = mode_of_x(task);
      if (ptx::elect_one()) copy_x(shared.x, tiles_x, StageOfX<S>(mode), map_x, map_x_parts, x, work, task);
    }
    return;
  }

  // ---- splitters: read a segment of a set of lines, write its pieces and scales, and find out what pairs suit ----
  if (warp >= kFirstSplitter) {
    ptx::set_registers<S::kSplitting, S::kRegisters>();
    const int lane = threadIdx.x % 32;
    const Task& task = own_task();
    const int team = (warp - kFirstSplitter) / S::kShape.kTeamWarps;
    const int set = (warp - kFirstSplitter) % S::kShape.kTeamWarps * kSetLines;  // its first line of the block
    const int mine = set + line_in_set<kRead>(lane / split::kLanes);
    const int index = S::kFirst ? task.first + mine : share.lines[mine];  // in the matrix
    const bool exists = S::kFirst ? index < work.w_lines : index >= 0;
    const float* const line = work.source.line(static_cast<uint32_t>(task.matrix_w), exists ? index : 0);
    // The exponent of the unit of its group; where the whole line is known, that of its parts.
    int unit;
    if constexpr (S::kFirst) {
      unit = work.source.unit(exists, line, task.begin);
    } else {
      unit = exists ? -parts_exponent(task.all_facts_w(w)[index]) : 0;
    }
    if (team == 0 && lane % split::kLanes == 0) {
      shared.unit[mine] = unit;
      if constexpr (S::kMayPart) {
        // All parts of the group write the same.
        if (work.group_parts > 1) work.group_units[(task.group * work.tiles() + task.tile) * kLines + mine] = unit;
      }
    }
    const Mode mode = mode_of_x(task);
    const StageOfW<S> stage(mode);
    // A stage of W is always the same team's: a team that waited for one whose last tile is another's could miss a phase.
    constexpr int kTeams = S::kTeams;
    static_assert(S::kStages % kTeams == 0 && stage.kLeastStages >= kTeams);
    split::Seen seen;  // of the line, in the segments of this block
    RingPosition<S::kStages> from;
    RingPosition<kMostStages> to;
    from.skip(team);
    to.skip(team, stage.stages());
    const uint32_t rings = ptx::kept_shared_address(&shared);
    const auto barrier = [&](uint32_t ring, int stage) { return rings + ring + stage * 8; };
    const auto walk = [&](auto by_numbers) {
      for (int step = task.begin + team; step < task.end; step += kTeams) {
        const char* const tile = tiles + from.stage * S::kBytesW;
        char* const pieces = tiles_split + to.stage * stage.bytes();
        const int present = min(kSegment, depth - step * kSegment);
        float numbers[16];
        if constexpr (by_numbers()) {
          const float* const segment = line + int64_t(step) * kSegment * work.source.depth_stride;
          read_numbers(segment, work.source.depth_stride, exists ? present : 0, numbers);
        } else {
          ptx::mbarrier_wait(barrier(offsetof(Shared<S>, w.full), from.stage), from.parity);
          if constexpr (kRead == ReadW::along_k) {
            read_runs(tile, mine, numbers);
          } else {
            read_line<kRead>(tile, mine, numbers);
          }
        }
        const auto store_pieces = [&](char* to, const uint32_t (&pairs)[8]) {
          if constexpr (kRead == ReadW::along_k && !by_numbers()) {
            store_runs(to, mine, pairs);
          } else {
            store_pairs<kRead>(to, set, pairs);
          }
        };
        ptx::mbarrier_wait(barrier(offsetof(Shared<S>, split_w.empty), to.stage), to.parity ^ 1);
        if (stage.halves) {
          uint32_t high[8], low[8];
          const int exponent = split::split_numbers(numbers, present, unit, high, low, seen);
          store_pieces(pieces, high);
          store_pieces(pieces + stage.kBytes, low);
          if (lane % split::kLanes == 0) {
            reinterpret_cast<float*>(pieces + stage.scales())[mine] = split::power_of_two(exponent - unit);
          }
        } else if constexpr (S::kFirst) {
          seen.add(split::Extremes::of<split::kLanes>(numbers), 0xff);
        }
        if (stage.by_parts) {
          uint32_t parts[kParts][8];
          split::split_all_parts(numbers, split::power_of_two(-unit),
                                 [&](int part, int i, uint32_t pair) { parts[part][i] = pair; });
#pragma unroll
          for (int part = 0; part < kParts; ++part) {
            store_pieces(pieces + stage.parts() + part * stage.kBytes, parts[part]);
          }
        }
        ptx::fence_async_proxy();
        __syncwarp();
        if (lane == 0) {
          if constexpr (!by_numbers()) ptx::mbarrier_arrive(barrier(offsetof(Shared<S>, w.empty), from.stage));
          ptx::mbarrier_arrive(barrier(offsetof(Shared<S>, split_w.full), to.stage));
        }
        from.skip(kTeams);
        to.skip(kTeams, stage.stages());
      }
    };
    if constexpr (S::kFirst || kRead == ReadW::numbers) {
      walk(std::bool_constant<kRead == ReadW::numbers>());
    } else if (share.listed) {
      walk(std::true_type());
    } else {
      walk(std::false_type());
    }
    if constexpr (S::kFirst) {
      // What is known of W now: whether the next launch has something to do, and the last one.
      auto told = mode.told_nothing();
      const Facts known = seen.facts();
      if (lane % split::kLanes == 0 && exists) {
        told = mode.told(known, unit);
        split::add_facts(task.facts_w(w) + mine, told.known);
      }
      split::tell_left(w, x, task.matrix_x, task.first + mine, told.done, told.held);
    } else {
      store_left();
    }
    return;
  }

  // ---- consumers: multiply a segment, add its sums to the group's ----
  ptx::set_registers<S::kMultiplying, S::kRegisters>();
  const int lane = threadIdx.x % 32;
  const Task& task = own_task();
  const int mine = warp * 16 + lane / 4;  // this lane has this line of the block, and the one eight further
  const Mode mode = mode_of_x(task);
  const StageOfW<S> stage_w(mode);
  const StageOfX<S> stage_x(mode);
  // Of this lane's outputs, those by parts: two bits for each eight lines of X.
  uint32_t by_parts_here = 0;
#pragma unroll
  for (int i = 0; i < S::kRows / 8; ++i) {
    by_parts_here |= (mode.by_parts[i / 4] >> (i % 4 * 8 + lane % 4 * 2) & 3) << i * 2;
  }
  const auto is_by_parts = [&](int i) { return (by_parts_here >> (i / 4 * 2 + i % 2) & 1) != 0; };
  float acc[S::kRows / 2] = {};
  RingPosition<kMostStages> at_w, at_x;
  const auto wait = [&] {
    ptx::mbarrier_wait(shared.x.full + at_x.stage, at_x.parity);
    ptx::mbarrier_wait(shared.split_w.full + at_w.stage, at_w.parity);
  };
  const auto release = [&](int of_w, int of_x) {
    __syncwarp();  // every lane has read its scales
    if (lane == 0) {
      ptx::mbarrier_arrive(shared.split_w.empty + of_w);
      ptx::mbarrier_arrive(shared.x.empty + of_x);
    }
  };
  const auto scales_of = [&](int of_w, int of_x) {
    const float* const w =
        reinterpret_cast<const float*>(tiles_split + of_w * stage_w.bytes() + stage_w.scales()) + mine;
    return Scales<S::kPart>{{w[0], w[8]},
                            reinterpret_cast<const float2*>(tiles_x + of_x * stage_x.bytes() + stage_x.scales())};
  };
  const auto leave = [&](float4* to) {
#pragma unroll
    for (int i = 0; i < S::kRows / 8; ++i) {
      to[threadIdx.x + i * kAddThreads] = {acc[i * 4], acc[i * 4 + 1], acc[i * 4 + 2], acc[i * 4 + 3]};
      acc[i * 4] = acc[i * 4 + 1] = acc[i * 4 + 2] = acc[i * 4 + 3] = 0;
    }
  };
  // Once a segment's sums are added: where several blocks share a group, they are added later.
  const auto leave_segment = [&](int step) {
    constexpr int kQuads = kLines * S::kRows / 4;
    if constexpr (S::kMayPart) {
      if (work.group_parts > 1) leave(work.segment_sums + (step * work.tiles() + task.tile) * kQuads);
    }
    if constexpr (!S::kFirst) {
      if (share.runs > 1 && warp < share.warps) leave(share.sums(work) + step % kGroupSegments * kQuads);
    }
  };
  // Halves alone, or parts alone: the next segment is multiplied while this one's sums are added.
  [[maybe_unused]] const auto multiply_lone = [&](auto piece, auto count) {
    using Piece = decltype(piece);
    constexpr int kPieces = count();
    float high[S::kRows / 2], rest[S::kRows / 2];
    // A segment is held until its sums are added.
    static_assert(!S::kOverlaps || (stage_w.kLoneStages >= 2 && stage_x.kLoneStages >= 2));
    const auto multiply = [&](float (&to)[S::kRows / 2], int of_w, int of_x, int i, int accumulate) {
      const char* const w = tiles_split + at_w.stage * stage_w.bytes() + of_w * stage_w.kBytes;
      const char* const x = tiles_x + at_x.stage * stage_x.bytes() + of_x * stage_x.kBytes;
      multiply_pieces<Piece, S::kRows>(to, w, x, i, accumulate);
    };
    const auto join = [&] {
      ptx::wgmma_wait<0>();
      ptx::wgmma_touch(high);
      ptx::wgmma_touch(rest);
#pragma unroll
      for (int i = 0; i < S::kRows / 2; ++i) {
        high[i] = kPieces == kParts ? high[i] + rest[i] : split::segment_sum(high[i], rest[i]);
      }
    };
    const auto add = [&](int step, int of_w, int of_x) {  // stages
      if constexpr (kPieces == kParts) {
#pragma unroll
        for (int i = 0; i < S::kRows / 2; ++i) acc[i] += high[i];
      } else {
        scales_of(of_w, of_x).for_each(0, [&](int i, float scale) { split::add_sum(acc[i], high[i], scale); });
      }
      release(of_w, of_x);
      leave_segment(step);
    };
    wait();
    split::start_first_products<kPieces>(rest, work.of_a, multiply);
    split::start_other_products<kPieces>(high, rest, work.of_a, multiply);
    int step = task.begin;
    for (; step + 1 < task.end; ++step) {
      const int of_w = at_w.stage, of_x = at_x.stage;
      join();
      at_w.next(stage_w.stages()), at_x.next(stage_x.stages());
      wait();
      split::start_first_products<kPieces>(rest, work.of_a, multiply);
      add(step, of_w, of_x);
      split::start_other_products<kPieces>(high, rest, work.of_a, multiply);
    }
    join();
    add(step, at_w.stage, at_x.stage);
  };
  const auto multiply_any = [&] {
    for (int step = task.begin; step < task.end; ++step, at_w.next(stage_w.stages()), at_x.next(stage_x.stages())) {
      wait();
      const char* const pieces_w = tiles_split + at_w.stage * stage_w.bytes();
      const char* const pieces_x = tiles_x + at_x.stage * stage_x.bytes();
      if (stage_w.halves) {
        const auto scales = scales_of(at_w.stage, at_x.stage);
        const auto add = [&](int first, const auto& high, const auto& rest) {
          const auto add_wanted = [&](auto wanted) {
            scales.for_each(first, [&](int i, float scale) {
              float sum = acc[first / 2 + i];
              split::add_segment(sum, high[i], rest[i], scale);
              if (wanted(first / 2 + i)) acc[first / 2 + i] = sum;
            });
          };
          if (stage_w.by_parts) {
            add_wanted([&](int at) { return !is_by_parts(at); });
          } else {
            add_wanted([](int) { return true; });
          }
        };
        multiply_segment<float16, 2, S>(pieces_w, stage_w.kBytes, pieces_x, stage_x.kBytes, work.of_a, add);
      }
      if (stage_w.by_parts) {
        const auto add = [&](int first, const auto& high, const auto& rest) {
          const auto add_wanted = [&](auto wanted) {
#pragma unroll
            for (int i = 0; i < S::kPart / 2; ++i) {
              if (wanted(first / 2 + i)) split::add_parts(acc[first / 2 + i], high[i], rest[i]);
            }
          };
          if (stage_w.halves) {
            add_wanted(is_by_parts);
          } else {
            add_wanted([](int) { return true; });
          }
        };
        multiply_segment<bfloat16, kParts, S>(pieces_w + stage_w.parts(), stage_w.kBytes, pieces_x + stage_x.parts(),
                                              stage_x.kBytes, work.of_a, add);
      }
      release(at_w.stage, at_x.stage);
      leave_segment(step);
    }
  };
  if constexpr (S::kOverlaps) {
    if constexpr (!S::kFirst) {
      multiply_lone(bfloat16(), std::integral_constant<int, kParts>());
    } else if (!stage_w.by_parts) {
      multiply_lone(float16(), std::integral_constant<int, 2>());
    } else if (!stage_w.halves) {
      multiply_lone(bfloat16(), std::integral_constant<int, kParts>());
    } else {
      multiply_any();
    }
  } else {
    multiply_any();
  }
  if constexpr (S::kMayPart) {
    if (work.group_parts > 1) return;
  }

  // ---- and store them ----
  if constexpr (!S::kFirst) {
    if (share.runs > 1) {
      __threadfence();
    } else {
      named_barrier<kWarpGroup>(kMultipliersBarrier);  // all have multiplied
#pragma unroll
      for (int i = 0; i < S::kRows / 8; ++i) {
        reinterpret_cast<float4*>(tiles_split)[threadIdx.x + i * kAddThreads] = {acc[i * 4], acc[i * 4 + 1],
                                                                                 acc[i * 4 + 2], acc[i * 4 + 3]};
      }
    }
    named_arrive<kLeavers>(kSumsBarrier);
    return;
  }
  const Task& now = own_task();  // found out anew: the loop has no registers for it
  const auto row_of = [&](int i) { return i / 4 * 8 + static_cast<int>(threadIdx.x) % 4 * 2 + i % 2; };
  const auto in_units = [&](int i, float unit_x) {
    return split::from_units(acc[i], split::power_of_two(shared.unit[mine + i / 2 % 2 * 8]), unit_x);
  };
  float* const to = c + now.group * work.outputs + now.batch * work.m * work.n;
  const int64_t group_x = now.matrix_x * x.shape.groups() + now.group;
  const float* const x_units = x.unit + group_x * x.shape.lines_padded + now.first_x;
#pragma unroll
  for (int i = 0; i < S::kRows / 2; ++i) acc[i] = in_units(i, row_of(i) < now.x_lines ? x_units[row_of(i)] : 1.0f);
  if (work.of_a) {
    add_bias(acc, bias, now.first_x, work.n);
    store_registers<float, S::kRows>(acc, to, now.first, now.first_x, work.m, work.n);
  } else {
    add_bias_transposed(acc, bias, now.first, work.n);
    store_transposed<float, S::kRows>(acc, to, now.first, now.first_x, work.m, work.n);
  }
#endif
}

// Adds the sums of segments of a group, where several blocks computed them, in their order: as one block does. A block does a quad
// of the threads of a tile.
template <int kRows>
__global__ void __launch_bounds__(kAddThreads, 3)
    add_segments(TREDUCE_GRID_CONSTANT Work work, TREDUCE_GRID_CONSTANT Operand16 x, float* partials) {
  ptx::allow_launch_after();
  constexpr int kQuads = quads_of(kRows);
  const int quad = blockIdx.x % kQuads, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int tiles = static_cast<int>(work.tiles()), block = blockIdx.x / kQuads, tile = block % tiles,
            group = block / tiles;
  const int begin = group * kGroupSegments, count = min(work.steps - begin, kGroupSegments);
  const int first_x = tile % work.x_tiles * kRows, first = tile / work.x_tiles % work.w_tiles * kLines;
  const int batch = tile / work.x_tiles / work.w_tiles;
  const int64_t matrix_x = work.x.of(batch / work.inner_batches, batch % work.inner_batches);
  const float* const x_units = x.unit + (matrix_x * x.shape.groups() + group) * x.shape.lines_padded;
  const int* const w_units = work.group_units + (int64_t(group) * tiles + tile) * kLines;
  float* const to = partials + group * work.outputs + batch * work.m * work.n;
  const int64_t step = int64_t(tiles) * (kLines * kRows / 4);
  const float4* const from =
      work.segment_sums + begin * step + tile * (kLines * kRows / 4) + quad * kAddThreads + threadIdx.x;
  ptx::wait_for_launch_before();
  const int mine = warp * 16 + lane / 4, of_x = first_x + quad * 8 + lane % 4 * 2;
  const int units_w[2] = {w_units[mine], w_units[mine + 8]};
  const float units_x[2] = {x_units[min(of_x, work.x_lines - 1)], x_units[min(of_x + 1, work.x_lines - 1)]};
  float sum[4] = {};
  thread::for_each_in_order<kGroupSegments>(
      from, step, count, [&](float4 more) { sum[0] += more.x, sum[1] += more.y, sum[2] += more.z, sum[3] += more.w; });
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int line_w = first + mine + i / 2 * 8, line_x = of_x + i % 2;
    if (line_w >= work.w_lines || line_x >= work.x_lines) continue;
    const int64_t at = work.of_a ? line_w * work.n + line_x : line_x * work.n + line_w;
    to[at] = split::from_units(sum[i], split::power_of_two(units_w[i / 2]), units_x[i % 2]);
  }
}

inline Work work_of(const Call& call, const Shape& shape, bool of_a, const Boxes& boxes, const Operand& w,
                    const Operand& x, const Operand16& split_x, bool may_part) {
  const Problem& p = call.problem;
  Work work;
  work.m = p.m;
  work.n = p.n;
  work.w_lines = w.lines;
  work.x_lines = static_cast<int>(x.lines);
  work.steps = static_cast<int>(split_x.shape.segments());
  work.w_tiles = static_cast<int>(ceil_div(w.lines, int64_t(shape.lines())));
  work.x_tiles = static_cast<int>(ceil_div(x.lines, int64_t(shape.rows)));
  work.batches = static_cast<int>(p.batches);
  work.inner_batches = static_cast<int>(inner_batches_of(p));
  work.outputs = p.batches * p.m * p.n;
  work.groups = static_cast<int>(call.prepared.groups);
  work.group_parts = may_part ? static_cast<int>(call.step(1).grid / (work.tiles() * work.groups)) : 1;
  const SplitRegions& regions_w = of_a ? call.prepared.split_a : call.prepared.split_b;
  work.segment_sums = call.region<float4>(regions_w.halves);
  work.group_units = call.region<int>(regions_w.units);
  work.shared_groups = static_cast<int>(call.prepared.shared_groups);
  work.shared_sums = call.region<float4>(call.prepared.shared_sums);
  work.box_w = broadcast_of(boxes);
  work.w = split::matrices_of(w);
  work.x = split::matrices_of(x);
  work.source = split::source_of(w);
  work.of_a = of_a;
  return work;
}

template <class S, ReadW kRead, class Kernel>
cudaError_t launch_kernel(Kernel function, const Call& call, const Boxes& boxes, bool of_a, const Operand& w,
                          const Operand& x, const Operand16& split_w, const Operand16& split_x, float* partials) {
  CUtensorMap map_w = {}, map_x, map_x_parts;
  cudaError_t error = split::encode_parts(split_x, S::kRows, &map_x_parts);
  if (error == cudaSuccess) error = split::encode_halves(split_x, S::kRows, &map_x);
  if (error == cudaSuccess && kRead != ReadW::numbers) {
    // Along k both lines of a pair are asked for at once.
    constexpr bool kAlongK = kRead == ReadW::along_k;
    error = encode(boxes, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 32, kAlongK ? kLines : kSegment, &map_w,
                   kAlongK ? Fetch::lines : Fetch::pairs);
  }
  if (error != cudaSuccess) return error;
  const Work work = work_of(call, S::kShape, of_a, boxes, w, x, split_x, S::kFirst);
  const auto results = split::results_of(call, partials);
  error = launch(function, call.step(S::kFirst ? 1 : -2), map_w, map_x, map_x_parts, split_x, split_w, work,
                 static_cast<int>(call.problem.k), results.c, results.bias);
  if (error != cudaSuccess) return error;
  if constexpr (S::kMayPart) {
    if (work.group_parts > 1) return launch(&add_segments<S::kRows>, call.step(2), work, split_x, partials);
  }
  return cudaSuccess;
}

template <class S, ReadW kRead>
cudaError_t launch_shape(const Call& call, const Boxes& boxes, bool of_a, const Operand& w, const Operand& x,
                         const Operand16& split_w, const Operand16& split_x, float* partials) {
  return launch_kernel<S, kRead>(&kernel<S, kRead>, call, boxes, of_a, w, x, split_w, split_x, partials);
}

// `of_a`: w is A. first(boxes of w) launches the first pass, of up to eight lines the only one here; turns(shape, boxes of w) that of shapes
// that take turns; wide(boxes of w, whether the first) either, where they are kernels of other files.
template <class First, class Turns, class Wide>
cudaError_t run(const Call& call, bool of_a, const Operand& w, const Operand& x, const Operand16& split_w,
                const Operand16& split_x, float* partials, First first, Turns turns, Wide wide) {
  const View& view = of_a ? call.prepared.view_a : call.prepared.view_b;
  Boxes boxes = view.boxes;
  boxes.data = w.data;
  const auto run_pass = [&](auto pass) {
    if (is_wide(call.prepared.shape)) return wide(boxes, pass() == Pass::first);
    return with_shape<kWide64>(call, [&](auto index) {
      using S = Tiling<index(), pass()>;
      if constexpr (S::kShapeIndex <= kMostByNumbers) {
        if (view.reading != Reading::direct) {
          return launch_shape<S, ReadW::numbers>(call, boxes, of_a, w, x, split_w, split_x, partials);
        }
      }
      if constexpr (S::kFirst && S::kShape.in_turns) {
        return turns(index, boxes);
      } else {
        const auto function = boxes.along_k ? &launch_shape<S, ReadW::along_k> : &launch_shape<S, ReadW::along_lines>;
        return function(call, boxes, of_a, w, x, split_w, split_x, partials);
      }
    });
  };
  const SplitRegions& regions_x = of_a ? call.prepared.split_b : call.prepared.split_a;
  const split::Task split_all = split::task_of(x, regions_x.splitting, split_x, {0, call.prepared.groups});
  const bool wide_tiles = !call.prepared.small && is_wide(call.prepared.shape);
  const bool late = split::parts_are_late(split_x.shape);
  const int64_t scales = call.prepared.small ? split_warps::kRows : wide_tiles ? kShapes[call.prepared.shape].rows : 0;
  cudaError_t error =
      launch(regions_x.together == 1 ? &split::split_lines<1> : &split::split_lines<split::kTogether>, call.step(0),
             split::IntoHalves{split_all, scales}, split::IntoParts{split_all, nullptr}, split_w, call.step(0).cluster,
             late, call.prepared.small, static_cast<int>(call.prepared.left_words));
  if (error == cudaSuccess) {
    error = call.prepared.small ? first(boxes) : run_pass(std::integral_constant<Pass, Pass::first>{});
  }
  if (error == cudaSuccess && late) {
    error = launch(&split::split_late_parts, call.step(call.prepared.small ? -2 : -3),
                   split::IntoLateParts{split_all, nullptr, wide_tiles ? split_wide::kFewLines : 0},
                   static_cast<const uint32_t*>(split_w.codes));
  }
  if (error != cudaSuccess || call.prepared.small) return error;
  return run_pass(std::integral_constant<Pass, Pass::rest>{});
}

}  // namespace treduce::matmul::split_rows
