// split_fp16 for up to eight rows or columns of C, where the operand with the many lines (W) lies along k: a warp splits segments of
// 16 lines of W in the registers that it multiplies them from, by mma's instruction, whose sums have the bits of a warp group's. Each
// warp has a ring of its own that the copy engine fills, so warps wait for each other once a task only: one row is bound by the bytes
// of W. As in split_rows, X was split before, and what lines of W leave to do is for the launch after this one.
#pragma once

#include "../../common/divider.h"
#include "../../primitives/ptx/opaque.cuh"
#include "split_pieces.cuh"
#include "split_rows.cuh"

namespace treduce::matmul::split_warps {

using namespace hopper;
using split::kNumbers;
using split::line_of_lanes;
using split::multiply_segment;
using split::Operand16;
using split::Pieces;
using split::PiecesX;
using Mode = split_rows::Mode<kRows>;

struct Work {
  int64_t n;
  int64_t w_lines;
  Divider w_tiles, batches, inner_batches;
  int x_lines, steps, tasks, stages;
  uint32_t blocks_before;           // of the launch before
  int64_t matrix_outputs, outputs;  // of one product, and of all
  Broadcast box_w;
  split::Matrices w, x;
  split::Source source;  // W
};

// Lines of W by all lines of X, a group of k of one product of the batch.
struct Task {
  int first, batch, group, begin, steps;
  int2 batches;

  TREDUCE_DEVICE Task(const Work& work, int index) {
    // The rest of a division, which it replaces by the quotient.
    const auto take = [&index](const Divider& by) {
      const int quotient = by.quotient_of_small(index), rest = index - quotient * static_cast<int>(by.divisor);
      index = quotient;
      return rest;
    };
    first = take(work.w_tiles) * kLines;
    batch = take(work.batches);
    group = index;
    begin = group * kGroupSegments;
    steps = min(work.steps - begin, kGroupSegments);
    index = batch;
    batches.y = take(work.inner_batches);
    batches.x = index;
  }
};

// kOfA: W is A; else the product is transposed.
template <bool kOfA>
__global__ void __launch_bounds__(kThreads, kBlocks)
    kernel(TREDUCE_GRID_CONSTANT CUtensorMap map_w, TREDUCE_GRID_CONSTANT Operand16 x,
           TREDUCE_GRID_CONSTANT Operand16 w, TREDUCE_GRID_CONSTANT Work work, float* c, const float* bias) {
#ifdef TREDUCE_SM90A
  constexpr int kQuad = split::kLanes;
  SHARED_TABLE(uint64_t, full, kWarps, kMostStages);
  SHARED_TABLE(Facts, facts, kWarps, kLines);
  SHARED_TABLE(int, units, 2, kLines);  // of two tasks: while one's sums are added, the next one's are found
  char* const rings = aligned_tiles(dynamic_shared<char>());
  float* const sums = reinterpret_cast<float*>(rings + kWarps * work.stages * kStageBytes);
  ptx::allow_launch_after();
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x / 32), 0), lane = threadIdx.x % 32;
  const int quad = lane / kQuad, own = line_of_lanes(quad);
  char* const ring = rings + warp * work.stages * kStageBytes;
  if (lane == 0) {
    ptx::prefetch_tensor_map(&map_w);
    for (int i = 0; i < work.stages; ++i) ptx::mbarrier_init(full[warp] + i, 1);
    ptx::fence_mbarrier_init();
  }
  __syncwarp();

  // What is copied next: a segment of a task.
  int next = blockIdx.x, next_step = warp, next_steps = 0;
  ptx::Coordinates next_at = {};
  RingPosition<kMostStages> to;
  const auto find_next = [&] {
    for (; next < work.tasks; next += gridDim.x, next_step = warp) {
      const Task task(work, next);
      if (next_step >= task.steps) continue;
      const int2 batch = work.box_w.of(task.batches);
      next_steps = task.steps;
      next_at = {(task.begin + next_step) * kSegment, task.first, batch.y, batch.x};
      return;
    }
  };
  const auto fetch = [&] {
    if (next >= work.tasks) return;
    if (ptx::elect_one()) {
      char* const stage = ring + to.stage * kStageBytes;
      uint64_t* const barrier = full[warp] + to.stage;
      ptx::fence_async_proxy();  // copies overtake loads that are under way
      ptx::mbarrier_arrive_expect(barrier, kStageBytes);
      ptx::load_box(stage, &map_w, next_at, barrier);
      ptx::load_box(stage + kStageBytes / 2, &map_w, {next_at.x + 32, next_at.y, next_at.z, next_at.w}, barrier);
    }
    to.next(work.stages);
    next_step += kWarps;
    next_at.x += kWarps * kSegment;
    if (next_step >= next_steps) {
      next += gridDim.x;
      next_step = warp;
      find_next();
    }
  };
  find_next();
  for (int i = 0; i < work.stages; ++i) {
    // X is being split by the launch before this one: its blocks count themselves, which is seen sooner than that it has ended. Until
    // then a stage of each ring is asked for and no more: the other's instructions and numbers would wait behind it.
    if (i == 1) {
      if (lane == 0) split::wait_for_blocks(x, work.blocks_before, blockIdx.x == 0 && warp == 0);
      __syncwarp();
    }
    fetch();
  }

  RingPosition<kMostStages> position;
  // Boxes of 32 steps of k, whose rows of 128 bytes are swizzled.
  const auto read = [&](int l, int i) {
    const int chunk = (lane % kQuad ^ own) ^ i % 8;
    return *reinterpret_cast<const float4*>(ring + position.stage * kStageBytes + i / 8 * (kStageBytes / 2) +
                                            (own + l * 8) * kRowBytes + chunk * 16);
  };
  // Units of a task's lines, from what has arrived: asked for apart, they would wait behind all that the rings ask for.
  const auto find_units = [&](const Task& task, int (&to)[kLines]) {
    ptx::mbarrier_wait(full[0] + position.stage, position.parity);
#pragma unroll 1
    for (int l = 0; l < 2; ++l) {
      const float4 first = read(l, 0);
      const int64_t line = task.first + own + l * 8, matrix = work.w.of(task.batches.x, task.batches.y);
      const bool exists = line < work.w_lines;
      const int unit = work.source.unit(
          exists, work.source.line(static_cast<uint32_t>(matrix), static_cast<uint32_t>(exists ? line : 0)), task.begin,
          {first.x, first.y, first.z, first.w});
      if (lane % kQuad == 0) to[own + l * 8] = unit;
    }
  };
  const auto task_at = [&](int turn) { return static_cast<int>(blockIdx.x + turn * gridDim.x); };
  if (warp == 0 && task_at(0) < work.tasks) find_units(Task(work, task_at(0)), units[0]);

  for (int turn = 0; task_at(turn) < work.tasks; ++turn) {
    const Task task(work, task_at(turn));
    const int64_t matrix_x = work.x.of(task.batches.x, task.batches.y);
    __syncthreads();  // the task before has been added
    const int unit[2] = {units[turn % 2][own], units[turn % 2][own + 8]};
    const Mode mode = Mode::of(x.line_facts + matrix_x * x.shape.lines_padded, work.x_lines);
    if (mode.parts) ptx::wait_for_launch_before();
    // Of this lane's line of X, at its steps of k. There may be fewer than eight: then the last again.
    const int64_t of_x = (matrix_x * work.x_lines + min(quad, work.x_lines - 1)) * x.shape.depth +
                         int64_t(task.begin) * kSegment + lane % kQuad * 4;
    const int depth = static_cast<int>(min(int64_t(kGroup), work.source.depth - int64_t(task.begin) * kSegment));

    Facts known[2] = {kNoFacts, kNoFacts};
    // with_parts: some lines of X need parts.
    const auto walk = [&](auto with_parts) {
      const uint16_t* halves = reinterpret_cast<const uint16_t*>(x.high) + of_x + warp * kSegment;
      const float* scales =
          x.scale + (matrix_x * work.steps + task.begin + warp) * x.shape.lines_padded + lane % kQuad * 2;
      float* to_sums = sums + (warp * work.x_lines + lane % kQuad * 2) * kLines + own;
      for (int step = warp; step < task.steps; step += kWarps, position.next(work.stages)) {
        // Of X, before W has to be waited for.
        PiecesX<2> halves_x;
        float2 of_rows = {};
        if (!with_parts() || mode.halves) {
          split::read_words<2>(halves, x.shape.values, halves_x);
          of_rows = *reinterpret_cast<const float2*>(scales);
        }
        halves += kWarps * kSegment;
        scales += kWarps * x.shape.lines_padded;
        ptx::mbarrier_wait(full[warp] + position.stage, position.parity);
        const auto read_line = [&](int l, float (&numbers)[kNumbers]) {
#pragma unroll
          for (int i = 0; i < kNumbers; i += 4) {
            const float4 four = read(l, i);
            numbers[i] = four.x, numbers[i + 1] = four.y, numbers[i + 2] = four.z, numbers[i + 3] = four.w;
          }
        };
        float value[4] = {};
        if (!with_parts() || mode.halves) {
          Pieces<2> pieces;
          float scale[2];
          const int present = min(kSegment, depth - step * kSegment);
#pragma unroll
          for (int l = 0; l < 2; ++l) {
            float numbers[kNumbers];
            read_line(l, numbers);
            int exponent;
            unsigned found;
            const split::Extremes extremes = split::split_segment<kNumbers, kQuad>(
                numbers, present, unit[l], pieces[0][l], pieces[1][l], exponent, found);
            known[l] = join(known[l], extremes.facts(found));
            scale[l] = split::power_of_two(exponent - unit[l]);
          }
          float high[4] = {}, rest[4] = {};
          multiply_segment<float16, 2, kOfA>(high, rest, pieces, halves_x);
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            split::add_segment(value[i], high[i], rest[i], scale[i / 2] * (i % 2 == 0 ? of_rows.x : of_rows.y));
          }
        }
        if constexpr (with_parts()) {
          Pieces<kParts> pieces;
#pragma unroll
          for (int l = 0; l < 2; ++l) {
            float numbers[kNumbers];
            read_line(l, numbers);
            if (!mode.halves) known[l] = join(known[l], split::Extremes::of<kQuad>(numbers).facts(0xff));
            split::split_pieces(numbers, split::power_of_two(-unit[l]), l, pieces);
          }
          PiecesX<kParts> parts_x;
          split::read_words<kParts>(x.parts + of_x + step * kSegment, x.shape.matrices * x.shape.lines * x.shape.depth,
                                    parts_x);
          float high[4] = {}, rest[4] = {};
          multiply_segment<bfloat16, kParts, kOfA>(high, rest, pieces, parts_x);
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            float sum = 0;
            split::add_parts(sum, high[i], rest[i]);
            if ((mode.by_parts[0] >> (lane % kQuad * 2 + i % 2) & 1) != 0) value[i] = sum;
          }
        }
        // [segment][line of X][line of W]
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if (lane % kQuad * 2 + i % 2 < work.x_lines) to_sums[i % 2 * kLines + i / 2 * 8] = value[i];
        }
        to_sums += kWarps * work.x_lines * kLines;
        // The values were computed from what all lanes read of the stage.
        __syncwarp();
        fetch();
      }
    };
    if (mode.parts) {
      walk(std::true_type{});
    } else {
      walk(std::false_type{});
    }
#pragma unroll
    for (int l = 0; l < 2; ++l) {
      if (lane % kQuad == 0) facts[warp][own + l * 8] = known[l];
    }
    // The task is found out anew: the walk has no registers for it.
    const int kept = ptx::kept(turn), next = task_at(kept + 1);
    const Task now(work, task_at(kept));
    const int (&units_now)[kLines] = units[kept % 2];
    if (warp == 0 && next < work.tasks) find_units(Task(work, next), units[(kept + 1) % 2]);
    const int64_t now_x = work.x.of(now.batches.x, now.batches.y), now_w = work.w.of(now.batches.x, now.batches.y);
    // Of this thread's output.
    const int mine = threadIdx.x % kLines, row = threadIdx.x / kLines;
    const bool exists = now.first + mine < work.w_lines && row < work.x_lines;
    float unit_x = 1;
    if (exists) unit_x = x.unit[(now_x * x.shape.groups() + now.group) * x.shape.lines_padded + row];
    __syncthreads();

    // What is known of W now: whether the next launch has something to do, and the last one.
    if (warp == kWarps - 1) {
      Facts known = facts[0][mine];
#pragma unroll
      for (int i = 1; i < kWarps; ++i) known = join(known, facts[i][mine]);
      bool done = true, held = mode.all_held;
      if (lane < kLines && now.first + lane < work.w_lines) {
        const bool by_parts = !mode.parts || parts_hold(known, units_now[mine]);
        done = by_parts && mode.suffices(known);
        held = held && mode.is_held(known);
        split::add_facts(w.line_facts + now_w * w.shape.lines_padded + now.first + lane, with_done(known, by_parts));
      }
      split::tell_left(w, x, now_x, now.first + lane, done, held);
    }
    // A thread an output: the sums of its segments, in their order.
    if (exists) {
      float sum = 0;
      const float* const from = sums + row * kLines + mine;
#pragma unroll 8
      for (int i = 0; i < now.steps; ++i) sum += from[i * work.x_lines * kLines];
      sum = split::from_units(sum, split::power_of_two(units_now[mine]), unit_x);
      const int64_t i = kOfA ? now.first + mine : row, j = kOfA ? row : now.first + mine;
      c[now.group * work.outputs + now.batch * work.matrix_outputs + i * work.n + j] =
          bias == nullptr ? sum : canonical(sum + __ldg(bias + j));
    }
  }
  // Who waits for this launch then has waited for that one.
  ptx::wait_for_launch_before();
#endif
}

// boxes: of W.
inline Work work_of(const Call& call, const Boxes& boxes, const Operand& w, const Operand& x, const Halves& split_x) {
  const Problem& p = call.problem;
  Work work;
  work.n = p.n;
  work.w_lines = w.lines;
  work.x_lines = static_cast<int>(x.lines);
  work.steps = static_cast<int>(split_x.segments());
  const int64_t w_tiles = ceil_div(w.lines, int64_t(kLines));
  work.w_tiles = Divider(w_tiles);
  work.batches = Divider(p.batches);
  work.inner_batches = Divider(inner_batches_of(p));
  work.tasks = static_cast<int>(w_tiles * p.batches * call.prepared.groups);
  work.stages = stages_of(work.x_lines);
  work.blocks_before = static_cast<uint32_t>(call.step(0).grid);
  work.matrix_outputs = p.m * p.n;
  work.outputs = p.batches * p.m * p.n;
  work.box_w = broadcast_of(boxes);
  work.w = split::matrices_of(w);
  work.x = split::matrices_of(x);
  work.source = split::source_of(w);
  return work;
}

}  // namespace treduce::matmul::split_warps
