// split_rows' first launch for tiles of up to 32 lines of X, where the copy engine reads W: four warp groups take turns. Each has every
// fourth segment of all 64 lines of W, and splits it in the registers that it multiplies from: nothing that is split goes through shared
// memory. In split_rows one warp group starts all multiplications, and waits for issue slots among the sixteen warps that split; that
// bounds it. A segment's sums are added when those before it have been: the sums so far go, through shared memory, from a warp to the
// warp of the next group that has the same lines.
#pragma once

#include "split_rows.cuh"

namespace treduce::matmul::split_turns {

using namespace hopper;
using split::kNumbers;
using split::Operand16;
using split::Pieces;
using split_rows::kLines;
using split_rows::ReadW;
using split_rows::Work;

template <int kIndex>
struct Tiling {
  static constexpr split_rows::Shape kShape = split_rows::kShapes[kIndex];
  static constexpr int kRows = kShape.rows, kTurns = kShape.kTurns, kThreads = kShape.threads_in_turns();
  static constexpr int kStages = 2 * kTurns, kBytesW = kShape.bytes_w(kSegment);
  static constexpr int kRegisters = 65536 / kThreads / 8 * 8, kCopying = 24;
  static constexpr int kMultiplying = (kRegisters * (kTurns + 1) - kCopying) / kTurns / 8 * 8;
  // What is left for X of what split_rows' second launch has.
  static constexpr int kSumsBytes = kLines * kRows * 4;
  static constexpr int kBytesX = kShape.shared_bytes(kSegment) - kTileAlignment - kStages * kBytesW - kSumsBytes;
  using StageOfX = split_rows::SplitStage<kRows, kBytesX, kTurns>;
  static_assert(StageOfX::kLeastStages >= kTurns);  // a stage is always the same warp group's
};

template <class S>
struct Shared {
  Ring<S::kStages> w;
  Ring<split_rows::kMostStages> x;
  uint64_t turn[S::kTurns][kWarpGroup / 32];  // of each warp: the sums so far are its
  uint64_t known_x;                           // the units of X are there
  int unit[kLines];                           // the exponents of the units of W's lines
  float unit_x[S::kRows];
  Facts found[S::kTurns][kLines];
};

// map_x: of the halves; map_x_parts: of the parts. kOfA: W is A; else the product is transposed.
template <class S, bool kOfA, ReadW kRead>
__global__ void __launch_bounds__(S::kThreads, 1)
    kernel(TREDUCE_GRID_CONSTANT CUtensorMap map_w, TREDUCE_GRID_CONSTANT CUtensorMap map_x,
           TREDUCE_GRID_CONSTANT CUtensorMap map_x_parts, TREDUCE_GRID_CONSTANT Operand16 x,
           TREDUCE_GRID_CONSTANT Operand16 w, TREDUCE_GRID_CONSTANT Work work, int depth, float* c, const float* bias) {
#ifdef TREDUCE_SM90A
  using Mode = split_rows::Mode<S::kRows>;
  constexpr int kTurns = S::kTurns, kSums = S::kRows / 2;
  ptx::allow_launch_after();
  SHARED(Shared<S>, shared);
  const split_rows::BlockTask<S> task(work, ptx::block_index());
  if (task.begin >= task.end) return;  // the last group may be short
  char* const tiles = aligned_tiles(dynamic_shared<char>());
  char* const tiles_x = tiles + S::kStages * S::kBytesW;
  float4* const sums = reinterpret_cast<float4*>(tiles_x + S::kBytesX) + threadIdx.x % kWarpGroup;
  if (threadIdx.x == 0) {
    ptx::prefetch_tensor_map(&map_w);
    ptx::prefetch_tensor_map(&map_x);
    ptx::prefetch_tensor_map(&map_x_parts);
    for (auto& of_group : shared.turn) {
      for (uint64_t& of_warp : of_group) ptx::mbarrier_init(&of_warp, 1);
    }
    ptx::mbarrier_init(&shared.known_x, 1);
    shared.w.init(kWarpGroup / 32);
    shared.x.init(kWarpGroup / 32);
  }
  __syncthreads();
  // X was split by a launch before this one; W need not wait for that.
  const auto mode_of_x = [&] {
    ptx::wait_for_launch_before();
    return Mode::of(task.facts_x(x), task.x_lines);
  };
  // A shuffle tells the compiler that this is the same in all lanes: descriptors are then in uniform registers.
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x / 32), 0), lane = threadIdx.x % 32;

  // ---- producers: a warp copies the tiles of W, another what is multiplied of X ----
  constexpr int kFirstCopier = kTurns * (kWarpGroup / 32);
  if (warp >= kFirstCopier) {
    ptx::release_registers<S::kCopying>();
    if (warp == kFirstCopier && ptx::elect_one()) {
      RingPosition<S::kStages> position;
      split_rows::copy_w<kRead, kLines>(shared.w, position, tiles, map_w, work, task);
    } else if (warp == kFirstCopier + 1) {
      const Mode mode = mode_of_x();
      if (ptx::elect_one()) {
        split_rows::copy_x(shared.x, tiles_x, typename S::StageOfX(mode), map_x, map_x_parts, x, work, task);
      }
    } else if (warp == kFirstCopier + 2) {
      ptx::wait_for_launch_before();
      const float* const units =
          x.unit + (task.matrix_x * x.shape.groups() + task.group) * x.shape.lines_padded + task.first_x;
      static_assert(S::kRows <= 32);
      if (lane < task.x_lines) shared.unit_x[lane] = units[lane];
      __syncwarp();
      if (lane == 0) ptx::mbarrier_arrive(&shared.known_x);
    }
    return;
  }

  // ---- consumers: split a segment, multiply it, and add its sums when it is their turn ----
  ptx::set_registers<S::kMultiplying, S::kRegisters>();
  const int group = warp / (kWarpGroup / 32), of_group = warp % (kWarpGroup / 32);
  // Of a warp's sixteen lines a lane has this one, and the one eight further.
  const int own = of_group * 16 + split::line_in_set(lane / split::kLanes);
  bool exists[2];
  int unit[2];
  // Units, from what has arrived if that is where the group begins: asked for apart, they would wait behind all that the ring asks for.
  ptx::mbarrier_wait(shared.w.full, 0);
#pragma unroll
  for (int l = 0; l < 2; ++l) {
    const int line = task.first + own + l * 8;
    exists[l] = line < work.w_lines;
    const float* const from = work.source.line(static_cast<uint32_t>(task.matrix_w), exists[l] ? line : 0);
    float numbers[kNumbers];
    split_rows::read_line<kRead>(tiles, own + l * 8, numbers);
    const split::Sampled sampled = {numbers[0], numbers[1], numbers[2], numbers[3]};
    unit[l] = task.begin % kGroupSegments == 0 ? work.source.unit(exists[l], from, task.begin, sampled)
                                               : work.source.unit(exists[l], from, task.begin);
    if (group == 0 && lane % split::kLanes == 0) shared.unit[own + l * 8] = unit[l];
    // All parts of the group write the same.
    if (work.group_parts > 1 && group == 0 && lane % split::kLanes == 0) {
      work.group_units[(task.group * work.tiles() + task.tile) * kLines + own + l * 8] = unit[l];
    }
  }
  named_barrier<kTurns * kWarpGroup>(1);  // all have read what the first group releases
  const Mode mode = mode_of_x();
  const typename S::StageOfX stage(mode);
  split::Seen seen[2];
  const auto walk = [&](auto by_halves, auto by_parts) {
    const split_rows::LaneByParts<S::kRows> is_by_parts(mode);
    RingPosition<S::kStages> from;
    RingPosition<split_rows::kMostStages> at_x;
    from.skip(group);
    at_x.skip(group, stage.stages());
    unsigned parity = 0;  // of the turn
#pragma unroll 1
    for (int step = task.begin + group; step < task.end; step += kTurns) {
      const char* const tile = tiles + from.stage * S::kBytesW;
      const char* const pieces_x = tiles_x + at_x.stage * stage.bytes();
      ptx::mbarrier_wait(shared.w.full + from.stage, from.parity);
      const auto release_w = [&] {
        __syncwarp();
        if (lane == 0) ptx::mbarrier_arrive(shared.w.empty + from.stage);
      };
      const auto wait_x = [&] { ptx::mbarrier_wait(shared.x.full + at_x.stage, at_x.parity); };
      float of_parts[kSums], of_halves[kSums], scale[2];
      if constexpr (by_parts()) {
        Pieces<kParts> pieces;
#pragma unroll
        for (int l = 0; l < 2; ++l) {
          float numbers[kNumbers];
          split_rows::read_line<kRead>(tile, own + l * 8, numbers);
          if constexpr (!by_halves()) seen[l].add(split::Extremes::of<split::kLanes>(numbers), 0xff);
          split::split_pieces(numbers, split::power_of_two(-unit[l]), l, pieces);
        }
        if constexpr (!by_halves()) release_w();
        wait_x();
        const char* parts_x[kParts];
#pragma unroll
        for (int part = 0; part < kParts; ++part) parts_x[part] = pieces_x + stage.parts() + part * stage.kBytes;
        float rest[kSums];
        split::start_segment<bfloat16, kOfA>(of_parts, rest, pieces, parts_x, 0);
        split::wait_segment(of_parts, rest, pieces);
#pragma unroll
        for (int i = 0; i < kSums; ++i) of_parts[i] += rest[i];
      }
      if constexpr (by_halves()) {
        Pieces<2> pieces;
        float numbers[2][kNumbers];
#pragma unroll
        for (int l = 0; l < 2; ++l) split_rows::read_line<kRead>(tile, own + l * 8, numbers[l]);
        int exponent[2];
        split::split_numbers<2>(numbers, min(kSegment, depth - step * kSegment), unit, pieces[0], pieces[1], exponent,
                                seen);
#pragma unroll
        for (int l = 0; l < 2; ++l) scale[l] = split::power_of_two(exponent[l] - unit[l]);
        release_w();
        wait_x();
        const char* const halves_x[2] = {pieces_x, pieces_x + stage.kBytes};
        float rest[kSums];
        split::start_segment<float16, kOfA>(of_halves, rest, pieces, halves_x, 0);
        split::wait_segment(of_halves, rest, pieces);
#pragma unroll
        for (int i = 0; i < kSums; ++i) of_halves[i] = split::segment_sum(of_halves[i], rest[i]);
      }
      float2 scales_x[S::kRows / 8];
      if constexpr (by_halves()) {
        const float2* const of_x = reinterpret_cast<const float2*>(pieces_x + stage.scales()) + lane % split::kLanes;
#pragma unroll
        for (int i = 0; i < S::kRows / 8; ++i) scales_x[i] = of_x[i * 4];
      }
      // The sums so far, if this block adds them.
      const bool apart = work.group_parts > 1, first = apart || step == task.begin;
      if (!first) {
        ptx::mbarrier_wait(shared.turn[group] + of_group, parity);
        parity ^= 1;
      }
      float acc[kSums];
#pragma unroll
      for (int i = 0; i < kSums / 4; ++i) {
        const float4 four = first ? float4{0, 0, 0, 0} : sums[i * kWarpGroup];
        acc[i * 4] = four.x, acc[i * 4 + 1] = four.y, acc[i * 4 + 2] = four.z, acc[i * 4 + 3] = four.w;
      }
      if constexpr (by_halves()) {
#pragma unroll
        for (int i = 0; i < kSums; ++i) {
          const float of_output = scale[i / 2 % 2] * (i % 2 == 0 ? scales_x[i / 4].x : scales_x[i / 4].y);
          if (!by_parts() || !is_by_parts(i)) split::add_sum(acc[i], of_halves[i], of_output);
        }
      }
      if constexpr (by_parts()) {
#pragma unroll
        for (int i = 0; i < kSums; ++i) {
          if (!by_halves() || is_by_parts(i)) acc[i] += of_parts[i];
        }
      }
      if (apart) {
        // As add_segments reads them: of the thread that would have these lines if they lay in order.
        constexpr int kQuads = kLines * S::kRows / 4;
        float4* const to = work.segment_sums + (step * work.tiles() + task.tile) * kQuads + of_group * 32 +
                           split::line_in_set(lane / split::kLanes) * split::kLanes + lane % split::kLanes;
#pragma unroll
        for (int i = 0; i < kSums / 4; ++i) {
          to[i * split_rows::kAddThreads] = {acc[i * 4], acc[i * 4 + 1], acc[i * 4 + 2], acc[i * 4 + 3]};
        }
      } else {
#pragma unroll
        for (int i = 0; i < kSums / 4; ++i) {
          sums[i * kWarpGroup] = {acc[i * 4], acc[i * 4 + 1], acc[i * 4 + 2], acc[i * 4 + 3]};
        }
      }
      __syncwarp();  // all have read their scales and stored their sums
      if (lane == 0) {
        ptx::mbarrier_arrive(shared.x.empty + at_x.stage);
        if (!apart && step + 1 < task.end) ptx::mbarrier_arrive(shared.turn[(group + 1) % kTurns] + of_group);
      }
      from.skip(kTurns);
      at_x.skip(kTurns, stage.stages());
    }
  };
  if (!mode.parts) {
    walk(std::true_type(), std::false_type());
  } else if (!mode.halves) {
    walk(std::false_type(), std::true_type());
  } else {
    walk(std::true_type(), std::true_type());
  }

#pragma unroll
  for (int l = 0; l < 2; ++l) {
    const Facts known = seen[l].facts();
    if (lane % split::kLanes == 0) shared.found[group][own + l * 8] = known;
  }
  named_barrier<kTurns * kWarpGroup>(1);  // facts are known, and sums stored
  // The group with the last turn stores the results, the next one tells what is known.
  const int storer = (task.end - 1 - task.begin) % kTurns;
  if (group == storer && work.group_parts == 1) {
    // In a loop: instructions that are executed once have to be fetched first, while others read all of W.
    ptx::mbarrier_wait(&shared.known_x, 0);
    const float* const all = reinterpret_cast<const float*>(tiles_x + S::kBytesX);
    float* const to = c + task.group * work.outputs + task.batch * work.m * work.n;
#pragma unroll 2
    for (int i = threadIdx.x % kWarpGroup; i < kLines * S::kRows; i += kWarpGroup) {
      const int row = kOfA ? i % S::kRows : i / kLines, of_w = kOfA ? i / S::kRows : i % kLines;
      // Which lane of the warp has these sums, and where.
      const int lanes = of_w % 8 / 2 + of_w % 2 * 4, thread = of_w / 16 * 32 + lanes * split::kLanes + row % 8 / 2;
      const float sum = all[(row / 8 * kWarpGroup + thread) * 4 + of_w % 16 / 8 * 2 + row % 2];
      const int64_t line = task.first + of_w, m = kOfA ? line : task.first_x + row,
                    n = kOfA ? task.first_x + row : line;
      if (line >= work.w_lines || row >= task.x_lines) continue;
      const float result = split::from_units(sum, split::power_of_two(shared.unit[of_w]), shared.unit_x[row]);
      to[m * work.n + n] = bias == nullptr ? result : canonical(result + __ldg(bias + n));
    }
  }
  if (group == (storer + 1) % kTurns && of_group < kLines / 32) {
    // What is known of W now: whether the next launch has something to do, and the last one.
    const int line = of_group * 32 + lane;
    auto told = mode.told_nothing();
    if (task.first + line < work.w_lines) {
      Facts known = shared.found[0][line];
#pragma unroll
      for (int i = 1; i < kTurns; ++i) known = join(known, shared.found[i][line]);
      told = mode.told(known, shared.unit[line]);
      split::add_facts(task.facts_w(w) + line, told.known);
    }
    split::tell_left(w, x, task.matrix_x, task.first + line, told.done, told.held);
  }
#endif
}

template <int kIndex>
cudaError_t run(const Call& call, const Boxes& boxes, bool of_a, const Operand& w, const Operand& x,
                const Operand16& split_w, const Operand16& split_x, float* partials) {
  using S = Tiling<kIndex>;
  using Launched = split_rows::Tiling<kIndex, split_rows::Pass::first>;
  const auto launch = [&](auto read) {
    constexpr ReadW kRead = read();
    return split_rows::launch_kernel<Launched, kRead>(of_a ? &kernel<S, true, kRead> : &kernel<S, false, kRead>, call,
                                                      boxes, of_a, w, x, split_w, split_x, partials);
  };
  return boxes.along_k ? launch(std::integral_constant<ReadW, ReadW::along_k>())
                       : launch(std::integral_constant<ReadW, ReadW::along_lines>());
}

}  // namespace treduce::matmul::split_turns
