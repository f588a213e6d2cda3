// split_fp16 for one row or column of C, where the operand with the many lines (W) lies along k: as split_warps, but each block splits
// the other line (X) itself, so what it reads of W is under way from the start. Tasks are taken as they come: of as many blocks some read
// faster than others.
#pragma once

#include "../../common/divider.h"
#include "../../primitives/ptx/atomic.cuh"
#include "../../primitives/ptx/opaque.cuh"
#include "split_pieces.cuh"
#include "split_rows.cuh"

namespace treduce::matmul::split_one {

using namespace hopper;
using split::kNumbers;
using split::line_of_lanes;
using split::multiply_segment;
using split::Operand16;
using split::Pieces;
using split::PiecesX;
constexpr int kQuad = split::kLanes;  // lanes of a line

struct Work {
  Divider groups;
  int steps, w_lines;
  int tasks, blocks;         // of a group
  int given, given_of_last;  // see given_of: in a group, and in the last one
  uint32_t blocks_before;    // of the launch before
  int64_t outputs;           // of a group
  split::Source w, x;
  bool vectors_x;  // four steps of k of X are one aligned load
};

// A thread's share of a group of X, of which a team of four lanes has a segment: its numbers, and the first of the group.
struct Share {
  float numbers[kNumbers];
  split::Sampled first;

  TREDUCE_DEVICE void ask(const Work& work, int group) {
    const int segment = group * kGroupSegments + threadIdx.x / kQuad;
    const bool exists = segment < work.steps;
    first = work.x.first_of_group(exists, work.x.data, segment);
    const int64_t k = int64_t(segment) * kSegment + threadIdx.x % kQuad * 4, step = work.x.depth_stride;
    const int left = exists ? static_cast<int>(min(work.x.depth - k, int64_t(kSegment))) : 0;
    const float* const at = work.x.data + k * step;
    if (work.vectors_x) {
#pragma unroll
      for (int i = 0; i < kNumbers; i += 4) {
        const float4 four = i * 4 < left ? __ldg(reinterpret_cast<const float4*>(at + i * 4)) : float4{};
        numbers[i] = four.x, numbers[i + 1] = four.y, numbers[i + 2] = four.z, numbers[i + 3] = four.w;
      }
    } else {
#pragma unroll
      for (int i = 0; i < kNumbers; ++i) {
        const int further = i / 4 * 16 + i % 4;
        numbers[i] = further < left ? __ldg(at + further * step) : 0.0f;
      }
    }
  }
};

// What a block has of X in shared memory: its group, split; and what each warp knows of the line.
struct LineX {
  uint4* halves;  // [segment][4 x 16 steps of k][lane of a team]: four halves, and their rests
  float* scales;  // of segments
  float* unit;
  Facts* of_warp;
};

// Splits X's group, and finds out what is known of the `count` groups from `first` on, whose shares these are. Who calls: all threads of the
// block.
TREDUCE_DEVICE void split_line(const Work& work, Share (&shares)[kMostWhole], const LineX& to, int group, int first,
                               int count) {
  static_assert(kThreads / kQuad == kGroupSegments && kMostWhole == 2);
  const int team = threadIdx.x / kQuad, lane = threadIdx.x % 32;
  Facts known = kNoFacts;
#pragma unroll 1
  for (int other = first; other < first + count; ++other, shares[0] = shares[1]) {
    const int segment = other * kGroupSegments + team;
    const bool exists = segment < work.steps;
    const int unit = work.x.unit(exists, work.x.data, segment, shares[0].first);
    const int present = static_cast<int>(min(work.x.depth - int64_t(segment) * kSegment, int64_t(kSegment)));
    uint32_t high[kNumbers / 2], low[kNumbers / 2];
    int exponent;
    unsigned flags;
    const split::Extremes extremes =
        split::split_segment<kNumbers, kQuad>(shares[0].numbers, present, unit, high, low, exponent, flags);
    if (exists) known = join(known, extremes.facts(flags));
    if (other != group) continue;
    uint4* const halves = to.halves + team * 16 + lane % kQuad;
#pragma unroll
    for (int i = 0; i < 4; ++i) halves[i * 4] = {high[i * 2], high[i * 2 + 1], low[i * 2], low[i * 2 + 1]};
    if (lane % kQuad == 0) to.scales[team] = split::power_of_two(exponent - unit);
    if (threadIdx.x == 0) *to.unit = split::power_of_two(unit);
  }
#pragma unroll
  for (int d = 16; d >= kQuad; d /= 2) known = join(known, __shfl_xor_sync(~0u, known, d));
  if (lane == 0) to.of_warp[threadIdx.x / 32] = known;
}

// kOfA: W is A; else the product is transposed.
template <bool kOfA>
__global__ void __launch_bounds__(kThreads, split_warps::kBlocks)
    kernel(TREDUCE_GRID_CONSTANT CUtensorMap map_w, TREDUCE_GRID_CONSTANT Operand16 x,
           TREDUCE_GRID_CONSTANT Operand16 w, TREDUCE_GRID_CONSTANT Work work, float* c, const float* bias) {
#ifdef TREDUCE_SM90A
  constexpr int kFinder = kWarps - 1, kTaker = (kWarps - 2) * 32;  // who says what was found out of W; who takes tasks
  SHARED_TABLE(uint64_t, full, kWarps, kStages);
  // What is read when a task is done has a place for the next one.
  using FactsOfWarps = Facts[kWarps][kLines];
  SHARED_ARRAY(FactsOfWarps, facts, 2);
  SHARED_TABLE(int, units, 3, kLines);
  SHARED_ARRAY(int, taken, kTaken);
  SHARED_ARRAY(Facts, facts_x, kWarps);
  SHARED(float, unit_x);
  char* const rings = aligned_tiles(dynamic_shared<char>());
  float* const sums =
      reinterpret_cast<float*>(rings + kWarps * kStages * kStageBytes);  // [of two tasks][segment][line]
  float* const scales_x = sums + kSumsBytes / 4;
  const LineX line_x = {reinterpret_cast<uint4*>(scales_x + kGroupSegments), scales_x, &unit_x, facts_x};
  ptx::allow_launch_after();
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x / 32), 0), lane = threadIdx.x % 32;
  const int own = line_of_lanes(lane / kQuad);  // this lane's first line; the other is eight further
  const int groups = static_cast<int>(work.groups.divisor), first_task = work.groups.quotient_of_small(blockIdx.x);
  const int group = static_cast<int>(blockIdx.x) - first_task * groups, begin = group * kGroupSegments,
            steps = min(work.steps - begin, kGroupSegments);
  // Of X first: behind what the rings ask for it would wait.
  const bool whole = groups <= kMostWhole;
  const int first_share = whole ? 0 : group, share_count = whole ? groups : 1;
  Share shares[kMostWhole];
  shares[0].ask(work, first_share);
  if (share_count > 1) shares[1].ask(work, 1);
  if (lane == 0) {
    ptx::prefetch_tensor_map(&map_w);
    for (int i = 0; i < kStages; ++i) ptx::mbarrier_init(full[warp] + i, 1);
    ptx::fence_mbarrier_init();
  }
  __syncwarp();

  // Addresses in shared memory. A shuffle keeps the compiler from computing them anew at each use.
  const auto keep = [&](const void* place) { return __shfl_sync(~0u, ptx::shared_address(place), lane); };
  const uint32_t barriers = keep(full[warp]), ring = keep(rings + warp * kStages * kStageBytes);
  const int given = group + 1 == groups ? work.given_of_last : work.given;
  const auto task_at = [&](int turn) {
    if (turn <= given) return first_task + turn * work.blocks;
    return static_cast<int>(__reduce_max_sync(~0u, static_cast<unsigned>(taken[turn % kTaken])));
  };
  // What is copied next: a segment of a task. A warp that has no segment of one has none of any.
  int turn = 0, next_step = warp, next_line = 0;
  bool more = warp < steps;
  const auto find_next = [&] {
    const int next = task_at(turn);
    next_step = warp;
    next_line = next * kLines;
    more = more && next < work.tasks;
  };
  const auto fetch = [&](int stage) {
    if (next_step >= steps) {
      ++turn;
      find_next();
    }
    if (!more) return;
    if (ptx::elect_one()) {
      const uint32_t barrier = barriers + stage * 8, to = ring + stage * kStageBytes;
      const int k = (begin + next_step) * kSegment;
      ptx::fence_async_proxy();  // copies overtake loads that are under way
      ptx::mbarrier_arrive_expect(barrier, kStageBytes);
      ptx::load_box(to, &map_w, {k, next_line, 0, 0}, barrier);
      ptx::load_box(to + kStageBytes / 2, &map_w, {k + 32, next_line, 0, 0}, barrier);
    }
    next_step += kWarps;
  };
  find_next();
#pragma unroll
  for (int i = 0; i < kStages; ++i) fetch(i);

  RingPosition<kStages> position;
  // Of this lane. Boxes of 32 steps of k, whose rows of 128 bytes are swizzled: four steps further is the chunk of that number ^ 4.
  const uint32_t numbers_at = keep(rings + warp * kStages * kStageBytes + own * kRowBytes + (lane % kQuad ^ own) * 16);
  const auto read = [&](int l, int i) {
    const uint32_t at = (numbers_at + position.stage * kStageBytes) ^ i % 8 * 16;
    return ptx::load_shared<float4>(at + i / 8 * (kStageBytes / 2) + l * 8 * kRowBytes);
  };
  // Units of a task's lines, from what has arrived: asked for apart, they would wait behind all that the rings ask for.
  const auto find_units = [&](int index, int (&to)[kLines]) {
    ptx::mbarrier_wait(barriers + position.stage * 8, position.parity);
#pragma unroll 1
    for (int l = 0; l < 2; ++l) {
      const float4 first = read(l, 0);
      const int line = index * kLines + own + l * 8;
      const bool exists = line < work.w_lines;
      const int unit =
          work.w.unit(exists, work.w.line(0, exists ? line : 0), begin, {first.x, first.y, first.z, first.w});
      if (lane % kQuad == 0) to[own + l * 8] = unit;
    }
  };
  split_line(work, shares, line_x, group, first_share, share_count);
  if (warp == 0) find_units(first_task, units[0]);
  // The launch before begins what is known.
  const auto wait_for_blocks = [&] {
    if (lane == 0) split::wait_for_blocks(x, work.blocks_before, blockIdx.x == 0 && warp == kFinder);
    __syncwarp();
  };
  if (!whole) wait_for_blocks();
  __syncthreads();
  const auto known_of_x = [&] {
    if (!whole) return *x.line_facts;
    Facts known = facts_x[0];
#pragma unroll
    for (int i = 1; i < kWarps; ++i) known = join(known, facts_x[i]);
    return known;
  };
  const bool by_parts = never_pairs(known_of_x());
  if (by_parts) {
    ptx::wait_for_launch_before();  // has the parts
    if (threadIdx.x == 0) unit_x = x.unit[group * x.shape.lines_padded];
  }
  const int depth = static_cast<int>(min(int64_t(kGroup), work.w.depth - int64_t(begin) * kSegment));

  int buffer = 0, place = 0;  // of sums and facts; of units
  for (int now = 0;; ++now, buffer ^= 1, place = place == 2 ? 0 : place + 1) {
    if (task_at(now) >= work.tasks) break;
    unsigned later = 0;
    if (threadIdx.x == kTaker) later = ptx::increment(split::next_task(x) + group);
    const int unit[2] = {units[place][own], units[place][own + 8]};
    split::KnownLines known;
    const auto walk = [&](auto with_parts) {
      const uint4* halves = line_x.halves + warp * 16 + lane % kQuad;
      const float* scales = line_x.scales + warp;
      float* to_sums = sums + (buffer * kGroupSegments + warp) * kLines + own;
      for (int step = warp; step < steps; step += kWarps) {
        ptx::mbarrier_wait(barriers + position.stage * 8, position.parity);
        float numbers[2][kNumbers];
#pragma unroll
        for (int l = 0; l < 2; ++l) {
#pragma unroll
          for (int i = 0; i < kNumbers; i += 4) {
            const float4 four = read(l, i);
            numbers[l][i] = four.x, numbers[l][i + 1] = four.y, numbers[l][i + 2] = four.z, numbers[l][i + 3] = four.w;
          }
        }
        // Of the instruction's columns all are X; the first one is kept, whose values are these of every fourth lane.
        float high[4] = {}, rest[4] = {}, value[2] = {};
        if constexpr (with_parts()) {
          Pieces<kParts> pieces;
          PiecesX<kParts> parts_x;
#pragma unroll
          for (int l = 0; l < 2; ++l) {
            known.join(l, split::Extremes::of<kQuad>(numbers[l]));
            split::split_pieces(numbers[l], split::power_of_two(-unit[l]), l, pieces);
          }
          split::read_words<kParts>(x.parts + int64_t(begin + step) * kSegment + lane % kQuad * 4,
                                    x.shape.lines * x.shape.depth, parts_x);
          multiply_segment<bfloat16, kParts, kOfA>(high, rest, pieces, parts_x);
#pragma unroll
          for (int l = 0; l < 2; ++l) split::add_parts(value[l], high[l * 2], rest[l * 2]);
        } else {
          Pieces<2> pieces;
          PiecesX<2> halves_x;
          float scale[2];
          split::split_two_lines(numbers, min(kSegment, depth - step * kSegment), unit, pieces, scale, known);
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const uint4 four = halves[i * 4];
            halves_x[0][i * 2] = four.x, halves_x[0][i * 2 + 1] = four.y;
            halves_x[1][i * 2] = four.z, halves_x[1][i * 2 + 1] = four.w;
          }
          multiply_segment<float16, 2, kOfA>(high, rest, pieces, halves_x);
#pragma unroll
          for (int l = 0; l < 2; ++l) split::add_segment(value[l], high[l * 2], rest[l * 2], scale[l] * *scales);
        }
        if (lane % kQuad == 0) {
          to_sums[0] = value[0];
          to_sums[8] = value[1];
        }
        halves += kWarps * 16;
        scales += kWarps;
        to_sums += kWarps * kLines;
        // The values were computed from what all lanes read of the stage.
        __syncwarp();
        fetch(position.stage);
        position.next();
      }
    };
    if (by_parts) {
      walk(std::true_type{});
    } else {
      walk(std::false_type{});
    }
#pragma unroll
    for (int l = 0; l < 2; ++l) {
      if (lane % kQuad == 0) facts[buffer][warp][own + l * 8] = known.facts(l);
    }
    const int next = task_at(now + 1);
    if (warp == 0 && next < work.tasks) find_units(next, units[place == 2 ? 0 : place + 1]);
    if (threadIdx.x == kTaker) taken[(now + given + 1) % kTaken] = (given + 1) * work.blocks + later;
    __syncthreads();

    // The task is found out anew: the walk has no registers for it.
    const int first = task_at(ptx::kept(now)) * kLines;
    if (warp == kFinder) {
      // What was found out of W: whether the next launch has something to do, and the last one.
      if (now == 0 && whole) wait_for_blocks();
      const int mine = lane % kLines;
      Facts of_line = facts[buffer][0][mine];
#pragma unroll
      for (int i = 1; i < kWarps; ++i) of_line = join(of_line, facts[buffer][i][mine]);
      const auto mode = split_rows::Mode<split_warps::kRows>::of_each([&](int) { return known_of_x(); }, 1);
      bool done = true, held = mode.all_held;
      if (lane < kLines && first + lane < work.w_lines) {
        const bool hold = !mode.parts || parts_hold(of_line, units[place][mine]);
        done = hold && mode.suffices(of_line);
        held = held && mode.is_held(of_line);
        Facts* const to = w.line_facts + first + lane;
        if (groups == 1) {
          *to = with_done(of_line, hold);
        } else {
          split::add_facts(to, with_done(of_line, hold));
        }
      }
      split::tell_left(w, x, 0, first + lane, done, held);
    }
    // A thread an output: the sums of its segments, in their order.
    if (threadIdx.x < kLines && first + static_cast<int>(threadIdx.x) < work.w_lines) {
      float sum = 0;
      const float* const from = sums + buffer * kGroupSegments * kLines + threadIdx.x;
#pragma unroll 8
      for (int i = 0; i < steps; ++i) sum += from[i * kLines];
      sum = split::from_units(sum, split::power_of_two(units[place][threadIdx.x]), unit_x);
      const int line = first + static_cast<int>(threadIdx.x);
      // Of one column all have the same bias.
      c[group * work.outputs + line] = bias == nullptr ? sum : canonical(sum + __ldg(bias + (kOfA ? 0 : line)));
    }
  }
  // Who waits for this launch then has waited for that one.
  ptx::wait_for_launch_before();
#endif
}

inline Work work_of(const Call& call, const Operand& w, const Operand& x, const Halves& split_x) {
  const Problem& p = call.problem;
  const int64_t groups = call.prepared.groups;
  Work work;
  work.groups = Divider(groups);
  work.steps = static_cast<int>(split_x.segments());
  work.w_lines = static_cast<int>(w.lines);
  work.tasks = static_cast<int>(ceil_div(w.lines, int64_t(kLines)));
  work.blocks = static_cast<int>(call.step(1).grid / groups);
  work.given = given_of(kGroupSegments);
  work.given_of_last = given_of(work.steps - static_cast<int>(groups - 1) * kGroupSegments);
  work.blocks_before = static_cast<uint32_t>(call.step(0).grid);
  work.outputs = p.m * p.n;
  work.w = split::source_of(w);
  work.x = split::source_of(x);
  work.vectors_x = splitting_of(x, split_x).vectors;
  return work;
}

}  // namespace treduce::matmul::split_one
