// split_fp16 for up to 256 rows and columns of C, or 128 by 1024, and long k: both operands are split on their way through shared memory,
// as split_rows splits one. A block has 64 x 64 outputs and a run of segments of k: a group, or where these are fewer than the
// multiprocessors, any run, whose sums it leaves to a launch that adds those of a group in their order, then the groups. Where the copy
// engine does not read both operands, those who split load them. What pairs do not suit is multiplied once more, by parts, in a second
// launch.
#pragma once

#include "split_rows.cuh"

namespace treduce::matmul::split_both {

using namespace hopper;
using split::Operand16;
using split_rows::kSetLines;
using split_rows::Pass;
using split_rows::ReadW;

// One operand.
struct Side {
  bool along_k;  // how boxes lie
  Broadcast box;
  split::Matrices matrices;
  split::Source source;
  Facts* facts;  // of lines
  int64_t lines, lines_padded;
  int step;  // lines from tile to tile, whole sets: tiles are as large as one another

  TREDUCE_DEVICE Facts* facts_of(int2 batch, int64_t line) const {
    return facts + matrices.of(batch.x, batch.y) * lines_padded + line;
  }
  // Boxes in which the copy engine brings a tile's lines of a segment, of so many lines each; and the bytes of all.
  TREDUCE_HOST_DEVICE int boxes() const { return along_k ? 2 : ceil_div(step, 32); }
  TREDUCE_HOST_DEVICE int box_lines() const { return along_k ? step : 32; }
  TREDUCE_HOST_DEVICE int box_bytes() const { return boxes() * box_lines() * (along_k ? 32 : kSegment) * 4; }
};

// A warp's numbers of eight lines and a segment, loaded while it splits the segment before.
struct Loads {
  const float* first;  // this lane's of segment 0: of the first line where k is contiguous, else of its own line
  int64_t stride;      // to the next line; or of k
  int further;         // lines that there are beyond the first
  bool along_k;
  float numbers[16];

  // set: the first line, of the matrix. Of lines past the operand's end the last one is loaded.
  TREDUCE_DEVICE Loads(const split::Source& source, const float* matrix, int64_t lines, int64_t set)
      : along_k(source.depth_stride == 1) {
    const int lane = threadIdx.x % 32;
    further = static_cast<int>(min(lines - 1 - set, int64_t(kSetLines - 1)));
    if (along_k) {
      stride = source.line_stride;
      first = matrix + set * stride + lane;
    } else {
      stride = source.depth_stride;
      first = matrix + (set + min(split::line_in_set(lane / split::kLanes), further)) * source.line_stride;
    }
  }
  // present: steps of k; beyond these numbers are zero.
  TREDUCE_DEVICE void load(int step, int present) {
    if (along_k) {
      const float* line = first + int64_t(step) * kSegment;
      const int lane = threadIdx.x % 32;
#pragma unroll
      for (int i = 0; i < kSetLines; ++i) {
        numbers[i * 2] = lane < present ? __ldg(line) : 0.0f;
        numbers[i * 2 + 1] = lane + 32 < present ? __ldg(line + 32) : 0.0f;
        if (i < further) line += stride;
      }
    } else {
      split_rows::read_numbers(first + int64_t(step) * kSegment * stride, stride, present, numbers);
    }
  }
  // Hands each lane those of its line, in the order of read_line: where k is contiguous, by way of `tile`, of which this warp has lines
  // from `set` on.
  TREDUCE_DEVICE void take(char* tile, int set, float (&to)[16]) const {
    if (along_k) {
      const int lane = threadIdx.x % 32;
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        char* const row = tile + i % 2 * (kTile * kRowBytes) + (set + i / 2) * kRowBytes;
        *reinterpret_cast<float*>(row + (lane / 4 ^ i / 2) * 16 + lane % 4 * 4) = numbers[i];
      }
      __syncwarp();
      split_rows::read_line<ReadW::along_k, kTile>(tile, set + split::line_in_set(lane / split::kLanes), to);
    } else {
#pragma unroll
      for (int i = 0; i < 16; ++i) to[i] = numbers[i];
    }
  }
};

struct Work {
  Side sides[2];  // A, B
  int steps, down, across, batches, inner_batches, groups;
  int length, runs;  // segments of a block, of a group where there are no `sums`; and blocks of a tile
  int64_t outputs;   // from the results of one group of k to those of the next
  // The sums of segments, four of a thread at a time, [segment][tile][eight columns][thread], of those who have some; and exponents of the
  // units of the lines, [group][tile][of A, then of B].
  float4* sums;
  int* units;
  // What the blocks of the first pass have found out: of each line, [tile][line][run]; and whether pairs do not suit it, [run][tile], a
  // byte for each warp that splits. Many blocks joining what they know of the same lines would wait for each other.
  Facts* known;
  uint4* unsuited;
  // Whether there are lines that pairs do not suit; and outputs that are left to the last launch, which counts its blocks.
  uint32_t *some_parts, *some_plain, *done;

  TREDUCE_DEVICE int tiles() const { return down * across * batches; }
  TREDUCE_DEVICE int adders() const { return adders_of(sides[0].step); }
  TREDUCE_DEVICE int quads() const { return adders() * sides[1].step / 8; }
  TREDUCE_DEVICE float4* sums_of(int step, int tile) const { return sums + (int64_t(step) * tiles() + tile) * quads(); }
  TREDUCE_DEVICE int* units_of(int group, int tile) const {
    return units + (int64_t(group) * tiles() + tile) * 2 * kTile;
  }
};

// Where a tile lies: its first output, how many it has, and of which matrix.
struct Place {
  int tile, row, column, rows, columns, matrix;
  int2 batch;

  TREDUCE_DEVICE Place(const Work& work, int index) {
    const auto lines_from = [](const Side& side, int first) {
      return static_cast<int>(min(side.lines - first, int64_t(side.step)));
    };
    tile = index;
    column = index % work.across * work.sides[1].step;
    columns = lines_from(work.sides[1], column);
    index /= work.across;
    row = index % work.down * work.sides[0].step;
    rows = lines_from(work.sides[0], row);
    matrix = index / work.down;
    batch = {matrix / work.inner_batches, matrix % work.inner_batches};
  }
  TREDUCE_DEVICE int first(bool of_b) const { return of_b ? column : row; }
  TREDUCE_DEVICE int lines(bool of_b) const { return of_b ? columns : rows; }
  // Warps that split lines of one operand: a set each.
  TREDUCE_DEVICE int splitters(bool of_b) const { return ceil_div(lines(of_b), kSetLines); }
};

// What is known of a tile's lines: rows, then columns.
struct TileFacts {
  Facts of[2 * kTile];

  // Who calls: all threads of a block, before a barrier. Returns whether pairs do not suit a line, at least.
  TREDUCE_DEVICE bool read(const Work& work, const Place& at) {
    uint32_t some = 0;
    for (int run = threadIdx.x; run < work.runs; run += static_cast<int>(blockDim.x)) {
      const uint4 found = work.unsuited[int64_t(run) * work.tiles() + at.tile];
      some |= found.x | found.y | found.z | found.w;
    }
    if (__syncthreads_or(some != 0) == 0) return false;
    constexpr int kLanes = 4;
    const int line = threadIdx.x / kLanes;
    if (line < 2 * kTile) {
      const Facts* const from = work.known + (int64_t(at.tile) * 2 * kTile + line) * work.runs;
      Facts facts = kNoFacts;
      for (int run = threadIdx.x % kLanes; run < work.runs; run += kLanes) facts = join(facts, from[run]);
#pragma unroll
      for (int d = 1; d < kLanes; d *= 2) facts = join(facts, __shfl_xor_sync(~0u, facts, d));
      if (threadIdx.x % kLanes == 0) of[line] = facts;
    }
    return true;
  }
  TREDUCE_DEVICE Arithmetic at(int row, int column) const {
    return arithmetic_of(code_of(of[row]), code_of(of[kTile + column]));
  }
};

struct Shared {
  Ring<kStages> whole;        // as they are in memory: A, then B; where the copy engine reads them
  Ring<kSplitStages> pieces;  // halves and scales, or parts
  int unit[2 * kTile];        // exponents of the lines' units, of A, then of B
  TileFacts facts;
};

// kBoxes: the copy engine reads both operands.
template <Pass kPass, bool kBoxes>
__global__ void __launch_bounds__(threads_of(kBoxes), 1)
    kernel(TREDUCE_GRID_CONSTANT CUtensorMap map_a, TREDUCE_GRID_CONSTANT CUtensorMap map_b,
           TREDUCE_GRID_CONSTANT Work work, float* c) {
#ifdef TREDUCE_SM90A
  constexpr bool kFirst = kPass == Pass::first;
  constexpr int kThreads = threads_of(kBoxes), kStages = stages_of(kBoxes);
  // Of a thread: all at first, then those who copy, split and multiply.
  constexpr int kRegisters = 65536 / kThreads / 8 * 8, kCopying = 32, kSplitting = kBoxes ? 80 : 88;
  constexpr int kMultiplying = kThreads / kWarpGroup * kRegisters - (kBoxes ? kCopying : 0) - 4 * kSplitting;
  constexpr int kPieces = kFirst ? 2 : kParts, kBytes = kTile * kRowBytes;  // of a piece of one operand
  constexpr int kStageBytes = 2 * kPieces * kBytes + (kFirst ? kTileAlignment : 0);
  static_assert(kStages * kWholeBytes + kSplitStages * kStageBytes + kTileAlignment <=
                shared_bytes_of(kBoxes, kPieces));
  static_assert(2 * kTile * 4 <= kTileAlignment);
  using Piece = std::conditional_t<kFirst, float16, bfloat16>;
  ptx::allow_launch_after();
  SHARED(Shared, shared);
  char* const tiles = aligned_tiles(dynamic_shared<char>());
  char* const tiles_split = tiles + kStages * kWholeBytes;
  const Place at(work, blockIdx.x % work.tiles());
  const int begin = static_cast<int>(blockIdx.x) / work.tiles() * work.length,
            end = min(work.steps, begin + work.length);
  ptx::wait_for_launch_before();
  if constexpr (!kFirst) {
    // Of most data, no line needs this launch.
    if (!shared.facts.read(work, at)) return;
    __syncthreads();
    if (begin == 0) {
      for (int i = threadIdx.x; i < 2 * kTile; i += kThreads) {
        const Side& side = work.sides[i / kTile];
        const int line = i % kTile;
        if (line < at.lines(i >= kTile)) *side.facts_of(at.batch, at.first(i >= kTile) + line) = shared.facts.of[i];
      }
      if (threadIdx.x == 0) atomicOr(work.some_parts, ~0u);
    }
    bool parts = false, plain = false;
    for (int i = threadIdx.x; i < kTile * kTile; i += kThreads) {
      const int row = i / kTile, column = i % kTile;
      if (row >= at.rows || column >= at.columns) continue;
      const Arithmetic arithmetic = shared.facts.at(row, column);
      parts |= by_parts(arithmetic);
      plain |= at_last(arithmetic);
    }
    if (__any_sync(~0u, plain) && threadIdx.x % 32 == 0) atomicOr(work.some_plain, ~0u);
    if (__syncthreads_or(parts) == 0) return;
  } else if (blockIdx.x == 0) {
    if (threadIdx.x == 0) *work.some_parts = *work.some_plain = 0;
    for (int i = threadIdx.x; i < work.tiles(); i += kThreads) work.done[i] = 0;
  }
  const int splitters = at.splitters(false) + at.splitters(true);
  if (threadIdx.x == 0) {
    if constexpr (kBoxes) {
      ptx::prefetch_tensor_map(&map_a);
      ptx::prefetch_tensor_map(&map_b);
      shared.whole.init(splitters);
    }
    shared.pieces.init(kMultiplyWarps, kSplitStages, splitters);
  }
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x / 32), 0), lane = threadIdx.x % 32;
  // Of a warp that splits eight lines of one operand.
  const int splitter = warp - kMultiplyWarps, of_b = splitter / (kSplitWarps / 2);
  const int set = splitter % (kSplitWarps / 2) * kSetLines;
  const int own_line = set + split::line_in_set(lane / split::kLanes);  // of the tile
  const bool may_split = splitter >= 0 && splitter < kSplitWarps;
  const Side& side = work.sides[may_split ? of_b : 0];
  const bool splits = may_split && splitter % (kSplitWarps / 2) < at.splitters(of_b);
  const int64_t own = at.first(of_b) + own_line;
  const bool exists = splits && own_line < at.lines(of_b);
  const uint32_t matrix = static_cast<uint32_t>(side.matrices.of(at.batch.x, at.batch.y));
  const float* const line = side.source.line(matrix, static_cast<uint32_t>(exists ? own : 0));
  // The numbers that give the first unit. Asked for later, they would wait behind the first copies.
  [[maybe_unused]] split::Sampled sampled;
  if constexpr (kFirst) {
    if (splits) sampled = side.source.first_of_group(exists, line, begin);
  }
  __syncthreads();

  // ---- producer ----
  if (warp >= kMultiplyWarps + kSplitWarps) {
    ptx::set_registers<kCopying, kRegisters>();
    if (!kBoxes || warp > kMultiplyWarps + kSplitWarps || !ptx::elect_one()) return;
    const int2 batch_a = work.sides[0].box.of(at.batch), batch_b = work.sides[1].box.of(at.batch);
    const bool a_along_k = work.sides[0].along_k, b_along_k = work.sides[1].along_k;
    const int boxes_a = work.sides[0].boxes(), boxes_b = work.sides[1].boxes();
    const int bytes = work.sides[0].box_bytes() + work.sides[1].box_bytes();
    RingPosition<kStages> position;
    for (int step = begin; step < end; ++step, position.next()) {
      wait_to_overwrite(shared.whole.empty + position.stage, position.parity ^ 1);
      uint64_t* const full = shared.whole.full + position.stage;
      char* const to = tiles + position.stage * kWholeBytes;
      ptx::mbarrier_arrive_expect(full, bytes);
      const auto load = [&](char* to, const CUtensorMap* map, bool along_k, int boxes, int first, int2 batch) {
        for (int box = 0; box < boxes; ++box) {
          const int x = (along_k ? step * kSegment : first) + box * 32, y = along_k ? first : step * kSegment;
          ptx::load_box(to + box * (kWholeBytes / 4), map, {x, y, batch.y, batch.x}, full);
        }
      };
      load(to, &map_a, a_along_k, boxes_a, at.row, batch_a);
      load(to + kWholeBytes / 2, &map_b, b_along_k, boxes_b, at.column, batch_b);
    }
    return;
  }

  // ---- splitters: eight lines of one operand ----
  if (warp >= kMultiplyWarps) {
    ptx::set_registers<kSplitting, kRegisters>();
    const bool first_lane = lane % split::kLanes == 0, along_k = side.along_k;
    const int mine = own_line;
    char* const whole = tiles + of_b * (kWholeBytes / 2);
    char* const split_to = tiles_split + of_b * kPieces * kBytes;
    const auto present_in = [&](int step) {
      return static_cast<int>(min(int64_t(kSegment), side.source.depth - int64_t(step) * kSegment));
    };
    Loads loads(side.source, side.source.line(matrix, 0), side.lines, at.first(of_b) + set);
    if constexpr (!kBoxes) {
      if (splits) loads.load(begin, present_in(begin));
    }
    int unit = 0;
    if constexpr (!kFirst) {
      if (exists) unit = -parts_exponent(shared.facts.of[of_b * kTile + mine]);
      if (first_lane) shared.unit[of_b * kTile + mine] = unit;
    }
    split::Seen seen;
    RingPosition<kStages> from;
    RingPosition<kSplitStages> to;
    for (int step = splits ? begin : end; step < end; ++step, from.next(), to.next()) {
      if constexpr (kFirst) {
        // A group begins, or the block does.
        if (step == begin || step % kGroupSegments == 0) {
          if (step > begin) sampled = side.source.first_of_group(exists, line, step);
          unit = side.source.unit(exists, line, step, sampled);
          if (first_lane) {
            if (work.sums != nullptr) {
              // All blocks of the group write the same.
              work.units_of(step / kGroupSegments, at.tile)[of_b * kTile + mine] = unit;
            } else {
              shared.unit[of_b * kTile + mine] = unit;
            }
          }
        }
      }
      float numbers[16];
      const auto wait_for_stage = [&] { ptx::mbarrier_wait(shared.pieces.empty + to.stage, to.parity ^ 1); };
      if constexpr (kBoxes) {
        ptx::mbarrier_wait(shared.whole.full + from.stage, from.parity);
        const char* const tile = whole + from.stage * kWholeBytes;
        if (along_k) {
          split_rows::read_line<ReadW::along_k>(tile, mine, numbers);
        } else {
          split_rows::read_line<ReadW::along_lines>(tile, mine, numbers);
        }
      } else {
        loads.take(whole, set, numbers);
        if (step + 1 < end) loads.load(step + 1, present_in(step + 1));
      }
      char* const pieces = split_to + to.stage * kStageBytes;
      if constexpr (kFirst) {
        uint32_t high[8], low[8];
        const int exponent = split::split_numbers(numbers, present_in(step), unit, high, low, seen);
        wait_for_stage();
        split_rows::store_pairs(pieces, set, high);
        split_rows::store_pairs(pieces + kBytes, set, low);
        if (first_lane) {
          float* const scales = reinterpret_cast<float*>(tiles_split + to.stage * kStageBytes + 2 * kPieces * kBytes);
          scales[of_b * kTile + mine] = split::power_of_two(exponent - unit);
        }
      } else {
        const float factor = split::power_of_two(-unit);
        wait_for_stage();
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          uint32_t parts[kParts][4];
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            uint32_t both[kParts];
            const int at = half * 8 + i * 2;
            split::split_parts(numbers[at] * factor, numbers[at + 1] * factor, both);
#pragma unroll
            for (int part = 0; part < kParts; ++part) parts[part][i] = both[part];
          }
#pragma unroll
          for (int part = 0; part < kParts; ++part) {
            split_rows::store_half(pieces + part * kBytes, set, half, parts[part]);
          }
        }
      }
      ptx::fence_async_proxy();
      __syncwarp();
      if (lane == 0) {
        if constexpr (kBoxes) ptx::mbarrier_arrive(shared.whole.empty + from.stage);
        ptx::mbarrier_arrive(shared.pieces.full + to.stage);
      }
    }
    if constexpr (kFirst) {
      const Facts found = seen.facts(), known = exists ? found : kPlainestFacts;
      if (first_lane) {
        work.known[(int64_t(at.tile) * 2 * kTile + of_b * kTile + mine) * work.runs + begin / work.length] = known;
        if (begin == 0 && exists)
          *side.facts_of(at.batch, own) = kPlainestFacts;  // unless the next launch knows better
      }
      const bool unsuited = __any_sync(~0u, !suits_pairs(known));
      if (lane == 0) reinterpret_cast<unsigned char*>(work.unsuited + blockIdx.x)[splitter] = unsuited;
    }
    return;
  }

  // ---- consumers: multiply a segment, add its sums to the group's, or leave them ----
  ptx::set_registers<kMultiplying, kRegisters>();
  const int mine = warp * 16 + lane / 4;  // this lane has this row of the tile, and the one eight further
  const auto column_of = [&](int i) { return i / 4 * 8 + lane % 4 * 2 + i % 2; };
  // Of this lane's outputs: those of this pass.
  uint32_t wanted = ~0u;
  if constexpr (!kFirst) {
#pragma unroll 1  // else each is kept in a register of its own
    for (int i = 0; i < kTile / 2; ++i) {
      if (!by_parts(shared.facts.at(mine + i / 2 % 2 * 8, column_of(i)))) wanted &= ~(1u << i);
    }
  }
  float acc[kTile / 2] = {};
  RingPosition<kSplitStages> position;
  for (int step = begin; step < end; ++step, position.next()) {
    ptx::mbarrier_wait(shared.pieces.full + position.stage, position.parity);
    const char* const a = tiles_split + position.stage * kStageBytes;
    const char* const b = a + kPieces * kBytes;
    float high[kTile / 2], rest[kTile / 2];
    split_rows::start_segment<Piece, kPieces, kTile>(high, rest, a, kBytes, b, kBytes, true);
    float scale[2];
    const float* const scales = reinterpret_cast<const float*>(b + kPieces * kBytes);
    if constexpr (kFirst) scale[0] = scales[mine], scale[1] = scales[mine + 8];
    ptx::wgmma_wait<0>();
    ptx::wgmma_touch(high);
    ptx::wgmma_touch(rest);
#pragma unroll
    for (int i = 0; i < kTile / 8; ++i) {
      if (i >= at.splitters(true)) break;
      if constexpr (kFirst) {
        const float2 of_columns = *reinterpret_cast<const float2*>(scales + kTile + column_of(i * 4));
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          split::add_segment(acc[i * 4 + j], high[i * 4 + j], rest[i * 4 + j],
                             scale[j / 2] * (j % 2 == 0 ? of_columns.x : of_columns.y));
        }
      } else {
#pragma unroll
        for (int j = 0; j < 4; ++j) split::add_parts(acc[i * 4 + j], high[i * 4 + j], rest[i * 4 + j]);
      }
    }
    __syncwarp();  // every lane has read its scales
    if (lane == 0) ptx::mbarrier_arrive(shared.pieces.empty + position.stage);
    if (work.sums != nullptr && warp * 16 < at.rows) {
      float4* const to = work.sums_of(step, at.tile) + threadIdx.x;
#pragma unroll
      for (int i = 0; i < kTile / 8; ++i) {
        if (i >= at.splitters(true)) break;
        float4* const place = to + i * work.adders();
        float4 sums = {acc[i * 4], acc[i * 4 + 1], acc[i * 4 + 2], acc[i * 4 + 3]};
        const uint32_t four = wanted >> i * 4 & 15;
        if (!kFirst && four != 15) {
          const float4 there = *place;
          sums = {(four & 1) != 0 ? sums.x : there.x, (four & 2) != 0 ? sums.y : there.y,
                  (four & 4) != 0 ? sums.z : there.z, (four & 8) != 0 ? sums.w : there.w};
        }
        *place = sums;
        acc[i * 4] = acc[i * 4 + 1] = acc[i * 4 + 2] = acc[i * 4 + 3] = 0;
      }
    }
  }
  if (work.sums != nullptr) return;
  const int64_t m = work.sides[0].lines, n = work.sides[1].lines;
  float* const to = c + begin / kGroupSegments * work.outputs + at.matrix * (m * n);
#pragma unroll
  for (int i = 0; i < kTile / 2; ++i) {
    const int row = mine + i / 2 % 2 * 8, column = column_of(i);
    const int64_t r = at.row + row, j = at.column + column;
    if (row >= at.rows || column >= at.columns || (wanted >> i & 1) == 0) continue;
    to[r * n + j] = split::from_units(acc[i], split::power_of_two(shared.unit[row]),
                                      split::power_of_two(shared.unit[kTile + column]));
  }
#endif
}

// Adds the sums of the segments of each group in their order, if they were left, then the groups: a thread four outputs and a group, of as
// many groups at a time as the block has threads for. quads: that a block adds, neighbours. of_whole: the sums of groups, [group][output].
static __global__ void __launch_bounds__(kAddThreads, 2)
    add_segments(TREDUCE_GRID_CONSTANT Work work, int quads, const float* of_whole, float* c, const float* bias) {
  ptx::allow_launch_after();
  SHARED_ARRAY(float, of_groups, 4 * kAddThreads);
  const int lane = static_cast<int>(threadIdx.x) % quads, slot = static_cast<int>(threadIdx.x) / quads;
  const int adders = work.adders(), all = work.quads(), blocks = ceil_div(all, quads);  // of a tile
  const int at_once = kAddThreads / quads;                                              // groups
  const int first = static_cast<int>(blockIdx.x) % blocks * quads;
  const Place at(work, static_cast<int>(blockIdx.x) / blocks);
  // The place in the tile of an output of a quad, as the kernel above leaves them.
  const auto row_of = [&](int quad, int i) { return quad % adders / 32 * 16 + quad % 32 / 4 + i / 2 * 8; };
  const auto column_of = [&](int quad, int i) { return quad / adders * 8 + quad % 4 * 2 + i % 2; };
  const int64_t m = work.sides[0].lines, n = work.sides[1].lines, step = int64_t(work.tiles()) * all;
  ptx::wait_for_launch_before();
  const bool some_parts = *work.some_parts != 0;
  float total = 0;
  for (int begin = 0; begin < work.groups; begin += at_once) {
    const int group = begin + slot, quad = first + lane;
    if (group < work.groups && quad < all && of_whole != nullptr) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = row_of(quad, i), column = column_of(quad, i);
        const int64_t output = at.matrix * (m * n) + (at.row + row) * n + at.column + column;
        if (row < at.rows && column < at.columns)
          of_groups[threadIdx.x * 4 + i] = of_whole[group * work.outputs + output];
      }
    } else if (group < work.groups && quad < all) {
      const int* const units = work.units_of(group, at.tile);
      const int count = min(work.steps - group * kGroupSegments, kGroupSegments);
      constexpr int kAtOnce = kGroupSegments / 2;
      float sums[4] = {};
      thread::for_each_in_order<kAtOnce>(
          work.sums_of(group * kGroupSegments, at.tile) + quad, step, count,
          [&](float4 more) { sums[0] += more.x, sums[1] += more.y, sums[2] += more.z, sums[3] += more.w; });
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = row_of(quad, i), column = column_of(quad, i);
        int unit_a = units[row], unit_b = units[kTile + column];
        if (some_parts && row < at.rows && column < at.columns) {
          const Facts a = *work.sides[0].facts_of(at.batch, at.row + row);
          const Facts b = *work.sides[1].facts_of(at.batch, at.column + column);
          if (by_parts(arithmetic_of(code_of(a), code_of(b)))) unit_a = -parts_exponent(a), unit_b = -parts_exponent(b);
        }
        of_groups[threadIdx.x * 4 + i] =
            split::from_units(sums[i], split::power_of_two(unit_a), split::power_of_two(unit_b));
      }
    }
    __syncthreads();
    if (threadIdx.x < 4 * quads) {
      const int count = min(work.groups - begin, at_once);
      if (begin == 0) total = of_groups[threadIdx.x];
      for (int i = begin == 0; i < count; ++i) total += of_groups[i * 4 * quads + threadIdx.x];
    }
    __syncthreads();
  }
  if (threadIdx.x >= 4 * quads) return;
  const int quad = first + static_cast<int>(threadIdx.x) / 4, i = threadIdx.x % 4;
  if (quad >= all) return;
  const int row = row_of(quad, i), column = column_of(quad, i);
  if (row >= at.rows || column >= at.columns) return;
  const int64_t r = at.row + row, j = at.column + column;
  c[at.matrix * (m * n) + r * n + j] = bias == nullptr ? total : canonical(total + __ldg(bias + j));
}

inline cudaError_t run(const Call& call, const Operand& a, const Operand& b, const Operand16& split_a,
                       const Operand16& split_b, float* partials) {
  const Problem& p = call.problem;
  const Decisions& prepared = call.prepared;
  CUtensorMap maps[2] = {};
  Work work;
  const bool boxed = has_boxes(prepared.view_a, prepared.view_b);
  const auto fill = [&](Side& side, CUtensorMap* map, const View& view, const Operand& o, const Operand16& split) {
    Boxes boxes = view.boxes;
    boxes.data = o.data;
    side = {boxes.along_k, broadcast_of(boxes),      split::matrices_of(o), split::source_of(o), split.line_facts,
            o.lines,       split.shape.lines_padded, step_of(o.lines)};
    if (!boxed) return cudaSuccess;
    return encode(boxes, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 32, boxes.along_k ? side.step : kSegment, map);
  };
  cudaError_t error = fill(work.sides[0], maps, prepared.view_a, a, split_a);
  if (error == cudaSuccess) error = fill(work.sides[1], maps + 1, prepared.view_b, b, split_b);
  if (error != cudaSuccess) return error;
  work.steps = static_cast<int>(split_a.shape.segments());
  work.down = static_cast<int>(ceil_div(p.m, int64_t(kTile)));
  work.across = static_cast<int>(ceil_div(p.n, int64_t(kTile)));
  work.batches = static_cast<int>(p.batches);
  work.inner_batches = static_cast<int>(inner_batches_of(p));
  work.groups = static_cast<int>(prepared.groups);
  work.length = prepared.block_segments;
  work.runs = static_cast<int>(ceil_div(int64_t(work.steps), int64_t(work.length)));
  work.outputs = p.batches * p.m * p.n;
  const bool adds = prepared.segment_sums;
  work.sums = adds ? call.region<float4>(prepared.split_a.halves) : nullptr;
  work.units = adds ? call.region<int>(prepared.split_a.units) : nullptr;
  work.known = call.region<Facts>(prepared.split_a.facts);
  work.unsuited = call.region<uint4>(prepared.split_b.facts);
  work.some_parts = split_a.codes;
  work.some_plain = split_b.codes;
  work.done = call.region<uint32_t>(prepared.split_b.units);
  const auto first = boxed ? &kernel<Pass::first, true> : &kernel<Pass::first, false>;
  error = launch(first, call.step(0), maps[0], maps[1], work, partials);
  if (error == cudaSuccess) error = launch(&kernel<Pass::rest, false>, call.step(1), maps[0], maps[1], work, partials);
  if (error != cudaSuccess) return error;
  return launch(&add_segments, call.step(2), work, add_quads(prepared.groups), static_cast<const float*>(partials),
                static_cast<float*>(call.c), static_cast<const float*>(call.bias));
}

}  // namespace treduce::matmul::split_both
