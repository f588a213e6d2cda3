// The second launch of split_wide.cuh: what lines of W leave to do. Of many lines of a product a block gathers 128, which it multiplies by parts as
// the first launch does by pairs; a few are multiplied without tiles, and without X's parts. And what launches both.
#pragma once

#include <algorithm>

#include "../../primitives/ptx/copy_part.cuh"
#include "split_source.cuh"
#include "split_wide.cuh"

namespace treduce::matmul::split_wide {

// So many lines of W are looked through by each of the blocks that may have to multiply some of them.
constexpr int kWindow = 4096, kWindowTiles = kWindow / kLines;

// The lines of W that a block multiplies, and what it needs to know of them and of X's.
template <int kRows>
struct Gathered {
  int count[2], next[2];  // lines of this task and of the one before; and the task after each
  int lines[kLines];
  unsigned char w[kLines], x[kRows];  // as split_rows::BlockCodes
  alignas(16) float units_x[kRows];
  // Of a warp's lines of X: codes of those that pairs may suit, and of others; and the largest exponent. And how many lines of W a warp has
  // found, in two rounds.
  uint32_t sets[kRows / 32][2];
  int most[kRows / 32];
  int of_warp[2][kWarps];

  // Of all lines of X.
  TREDUCE_DEVICE uint32_t codes(bool others) const {
    uint32_t all = 0;
#pragma unroll
    for (int i = 0; i < kRows / 32; ++i) all |= sets[i][others];
    return all;
  }
  TREDUCE_DEVICE int largest() const {
    int largest = 0;
#pragma unroll
    for (int i = 0; i < kRows / 32; ++i) largest = max(largest, most[i]);
    return largest;
  }
  // Whether all outputs of a line of W are left.
  TREDUCE_DEVICE bool all_left(unsigned w) const {
    const uint32_t others = codes(true), by_pairs = ~codes_by_parts(w % split_rows::kBeside);
    return (codes(false) & by_pairs) == 0 && ((w & split_rows::kBeside) != 0 ? others == 0 : (others & by_pairs) == 0);
  }
};

// Waits for all threads that multiply; and these and two warps that copy and take tasks for each other.
TREDUCE_DEVICE void sync_consumers() { named_barrier<kWarps * 32>(1); }
template <bool kMultiplies>
TREDUCE_DEVICE void meet_other_role() {
  constexpr int kAll = (kWarps + 2) * 32, kGathered = 2, kTaken = 3;
  if (kMultiplies) {
    named_arrive<kAll>(kGathered);
    named_barrier<kAll>(kTaken);
  } else {
    named_barrier<kAll>(kGathered);
    named_arrive<kAll>(kTaken);
  }
}

// Finds the lines of W that have outputs left, from number `first` of them on, among those of the window. Returns how many.
// Who calls: all threads that multiply; they synchronise afterwards.
template <int kRows>
TREDUCE_DEVICE int gather(Gathered<kRows>& to, const Operand16& w, const Operand16& x, const Work& work,
                          const Task& task, int window, int first) {
  constexpr int kThreads = kWarps * 32, kFour = 4;
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  const Facts* const facts = w.line_facts + task.matrix_w * w.shape.lines_padded;
  const int begin = window * kWindow, end = static_cast<int>(min(work.w_lines, int64_t(begin) + kWindow));
  // Four neighbouring lines a thread: there is room for some past the last.
  const auto four_at = [&](int line) {
    return line < end ? *reinterpret_cast<const uint4*>(facts + line) : uint4{0, 0, 0, 0};
  };
  uint4 four = four_at(begin + thread * kFour);
  const Facts of_x = thread < work.x_lines ? task.facts_x(x)[thread] : kPlainestFacts;
  sync_consumers();  // all that was gathered before has been read
  if (thread < kRows) {
    const bool never = never_pairs(of_x);
    const uint32_t mine = thread < work.x_lines ? set_of(code_of(of_x)) : 0;
    to.x[thread] = static_cast<unsigned char>(code_of(of_x) | (never ? split_rows::kBeside : 0));
    to.units_x[thread] = split::power_of_two(-parts_exponent(of_x));
    const uint32_t pairs = __reduce_or_sync(~0u, never ? 0 : mine), others = __reduce_or_sync(~0u, never ? mine : 0);
    if (lane < 2) to.sets[warp][lane] = lane == 0 ? pairs : others;
    to.most[warp] = __reduce_max_sync(~0u, thread < work.x_lines ? largest_exponent(of_x) : 0);
  }
  sync_consumers();
  const uint32_t sets[2] = {to.codes(false), to.codes(true)};
  int found = 0;
  for (int from = begin, round = 0; from < end && found < first + kLines; from += kThreads * kFour, round ^= 1) {
    const int line = from + thread * kFour;
    if (from > begin) four = four_at(line);
    const Facts known[kFour] = {four.x, four.y, four.z, four.w};
    bool left[kFour];
    int before = 0, all = 0;
#pragma unroll
    for (int i = 0; i < kFour; ++i) {
      const unsigned code = code_of(known[i]);
      left[i] = line + i < end && ((codes_by_parts(code) & sets[0]) != 0 ||
                                   ((known[i] & kDone) == 0 && (codes_by_parts(code) & sets[1]) != 0));
      const uint32_t votes = __ballot_sync(~0u, left[i]);
      before += __popc(votes & ((1u << lane) - 1));
      all += __popc(votes);
    }
    if (lane == 0) to.of_warp[round][warp] = all;
    sync_consumers();
    int at = found + before - first;
#pragma unroll
    for (int i = 0; i < kWarps; ++i) {
      const int more = to.of_warp[round][i];
      if (i < warp) at += more;
      found += more;
    }
#pragma unroll
    for (int i = 0; i < kFour; ++i) {
      if (!left[i]) continue;
      if (at >= 0 && at < kLines) {
        to.lines[at] = line + i;
        to.w[at] = static_cast<unsigned char>(code_of(known[i]) | ((known[i] & kDone) != 0 ? split_rows::kBeside : 0));
      }
      ++at;
    }
  }
  return max(0, min(found - first, kLines));
}

// Lines of W that are multiplied without tiles together, by so many of X, of which no octet waits for another; and lines of X for whose sums of
// segments there is then room.
constexpr int kFew = 16, kFewColumns = 16, kFewOctets = kFewColumns / 8;
template <int kRows>
constexpr int kSummedColumns = kRows > 64 ? 32 : 64;

// Multiplies some gathered lines of W by parts, kFew at a time, by a share of X's lines, kFewColumns of every few_shares times as many: warps
// share out the segments, and split both operands in registers. `sums`: of segments. A call, not to take registers from others. Who calls: all
// threads that multiply. Synchronises.
template <int kRows, bool kOfA>
static __device__ __noinline__ void compute_few(const Work& work, const Task task, const Gathered<kRows>& gathered,
                                                int count, int share, const Facts* facts_w, float* sums, float* c,
                                                const float* bias, uint32_t* codes) {
  constexpr int kColumns = kSummedColumns<kRows>;
  const int warp = threadIdx.x / 32, quad = threadIdx.x % 32 / split::kLanes;
  const float* const matrix_w = work.source.line(static_cast<uint32_t>(task.matrix_w), 0);
  const float* const matrix_x = work.side_x.source.line(static_cast<uint32_t>(task.matrix_x), 0);
  const auto is_mine = [&](int row) { return row / kFewColumns % work.few_shares == share; };
#pragma unroll 1
  for (int first = 0; first < count; first += kFew) {
    int lines[2];
    float factors[2];
#pragma unroll
    for (int l = 0; l < 2; ++l) {
      lines[l] = gathered.lines[min(first + quad + l * 8, count - 1)];
      factors[l] = split::power_of_two(parts_exponent(facts_w[lines[l]]));
    }
#pragma unroll 1
    for (int column = 0; column < work.x_lines; column += kColumns) {
      const int end = min(column + kColumns, work.x_lines);
      const auto next_of = [&](int row) {
        do row += kFewColumns;
        while (row < end && !is_mine(row));
        return row;
      };
      const int begin = next_of(column - kFewColumns);
      if (begin >= end) continue;
#pragma unroll 1
      for (int step = task.begin + warp; step < task.end; step += kWarps) {
        float next[kFewOctets][kNumbers];
        const auto line_x = [&](int row) { return min(row + quad, work.x_lines - 1); };
        const auto read_x = [&](int row) {
#pragma unroll
          for (int i = 0; i < kFewOctets; ++i) {
            split::Line<>(work.side_x, matrix_x, line_x(row + i * 8)).read(work.side_x, step, next[i]);
          }
        };
        Pieces<kParts> pieces;
        float numbers[2][kNumbers];
#pragma unroll
        for (int l = 0; l < 2; ++l) split::Line<>(work.side_w, matrix_w, lines[l]).read(work.side_w, step, numbers[l]);
        read_x(begin);
#pragma unroll
        for (int l = 0; l < 2; ++l) {
          split::split_pieces(numbers[l], factors[l], l, pieces);
        }
#pragma unroll 1
        for (int row = begin; row < end;) {
          split::PiecesX<kParts> pieces_x[kFewOctets];
#pragma unroll
          for (int i = 0; i < kFewOctets; ++i) {
            split::split_pieces(next[i], -split::exponent_of(gathered.units_x[line_x(row + i * 8)]), pieces_x[i]);
          }
          float* const to = sums + ((step - task.begin) * kColumns + row - column + threadIdx.x % 4 * 2) * kFew + quad;
          row = next_of(row);
          if (row < end) read_x(row);
          float high[kFewOctets][4] = {}, rest[kFewOctets][4] = {};
#pragma unroll
          for (int i = 0; i < kFewOctets; ++i) {
            split::multiply_segment<bfloat16, kParts, kOfA>(high[i], rest[i], pieces, pieces_x[i]);
          }
#pragma unroll
          for (int i = 0; i < kFewOctets; ++i) {
#pragma unroll
            for (int j = 0; j < 4; ++j) {
              float sum = 0;
              split::add_parts(sum, high[i][j], rest[i][j]);
              to[(i * 8 + j % 2) * kFew + j / 2 * 8] = sum;
            }
          }
        }
      }
      sync_consumers();
#pragma unroll 1
      for (int i = threadIdx.x; i < kFew * kColumns; i += kWarps * 32) {
        const int place = first + i % kFew, row = column + i / kFew;
        if (place >= count || row >= end || !is_mine(row)) continue;
        if (!split_rows::is_left(gathered.w[place], gathered.x[row])) continue;
        const int64_t line = gathered.lines[place];
        const Facts facts = facts_w[line];
        float sum = 0;
#pragma unroll 8
        for (int step = 0; step < task.end - task.begin; ++step) sum += sums[step * kFew * kColumns + i];
        sum = split::from_units(sum, split::power_of_two(-parts_exponent(facts)), gathered.units_x[row]);
        if (checks_itself(work, bias) && code_of(facts) / kCodeRange == kRangeLargest &&
            !is_sure(__float_as_uint(sum), largest_exponent(facts), gathered.largest(), kCertain)) {
          atomicOr(codes, ~0u);
        }
        if (bias != nullptr) sum = canonical(sum + __ldg(bias + (kOfA ? row : line)));
        c[task.group * work.outputs + task.batch * work.m * work.n +
          (kOfA ? line * work.n + row : row * work.n + line)] = sum;
      }
      sync_consumers();
    }
  }
}

// Each warp has a ring of its own, of its lines of W: copies of these are asked for by the warp itself.
constexpr int kBytesWarp = kBytesW / kWarps, kBoxBytesWarp = kBytesWarp / 2;

// kVectors: k is contiguous in W, and 16 bytes are aligned.
template <class S, bool kOfA, bool kVectors>
__global__ void __launch_bounds__(kThreads, 1)
    kernel_rest(TREDUCE_GRID_CONSTANT CUtensorMap map_x_parts, TREDUCE_GRID_CONSTANT Operand16 x,
                TREDUCE_GRID_CONSTANT Operand16 w, TREDUCE_GRID_CONSTANT Work work, int depth, float* c,
                const float* bias) {
#ifdef TREDUCE_SM90A
  ptx::allow_launch_after();
  constexpr int kStages = S::kStages, kRows = S::kRows;
  SHARED(Shared<S>, shared);
  SHARED(Gathered<kRows>, gathered);
  char* const tiles = aligned_tiles(dynamic_shared<char>());
  RingOfX<S> ring_x{shared, tiles + kStages * kBytesW};
  // The launch before has found out which lines need this one: of most data, none.
  ptx::wait_for_launch_before();
  if (*w.codes == 0) return;
  if (threadIdx.x == 0) {
    ptx::prefetch_tensor_map(&map_x_parts);
    shared.x.init(kWarps);
  }
  __syncthreads();
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x / 32), 0), lane = threadIdx.x % 32;
  int turn = 0;  // of `count` and `next`
  // Of few lines of a product all blocks that compute some gather all.
  const auto tile_of_window = [](const Task& task) { return task.first / kLines % kWindowTiles; };
  const auto are_few = [&](const Task& task) { return split::parts_wanted(x)[task.matrix_x] <= kFewLines; };
  const auto may_have_lines = [&](const Task& task) {
    const int lines = static_cast<int>(split::parts_wanted(x)[task.matrix_x]), tile = tile_of_window(task);
    return lines > 0 && (are_few(task) ? tile < work.few_shares : tile * kLines < lines);
  };
  if (warp >= kWarps) {
    ptx::release_registers<kCopying>();
    if (warp > kWarps + 1) return;
    for (int index = blockIdx.x, next; index < work.tasks; index = next, turn ^= 1) {
      // Tasks are taken as blocks get free: most have no lines.
      if (warp > kWarps && threadIdx.x == (kWarps + 1) * 32) {
        do {
          next = static_cast<int>(gridDim.x + atomicAdd(split::next_task(x), 1));
        } while (next < work.tasks && !may_have_lines(Task::of<true>(work, next)));
        gathered.next[turn] = next;
      }
      __syncwarp();
      meet_other_role<false>();  // its lines are gathered
      next = gathered.next[turn];
      if (warp > kWarps || gathered.count[turn] == 0 || !ptx::elect_one()) continue;
      const auto task = Task::of<true>(work, index);
      if (are_few(task)) continue;
      for (int step = task.begin; step < task.end; ++step) {
        ring_x.template copy<bfloat16, kParts>(map_x_parts, step, static_cast<int>(task.matrix_x), nullptr, nullptr);
      }
    }
    return;
  }

  ptx::take_registers<kMultiplying>();
  const int own = warp * kWarpLines + own_line();  // of the block's lines
  char* const ring = tiles + warp * kStages * kBytesWarp;
  for (int index = blockIdx.x, next; index < work.tasks; index = next, turn ^= 1) {
    const auto task = Task::of<true>(work, index);
    const bool few = are_few(task);
    const int tile = tile_of_window(task);
    const int count =
        may_have_lines(task) ? gather(gathered, w, x, work, task, task.first / kWindow, few ? 0 : tile * kLines) : 0;
    if (threadIdx.x == 0) gathered.count[turn] = count;
    meet_other_role<true>();
    next = gathered.next[turn];
    if (count == 0) continue;
    if (few) {
      static_assert(kGroupSegments * kSummedColumns<kRows> * kFew * 4 <= kStages * kBytesW);
      compute_few<kRows, kOfA>(work, task, gathered, count, tile, w.line_facts + task.matrix_w * w.shape.lines_padded,
                               reinterpret_cast<float*>(tiles), c, bias, x.codes);
      continue;
    }
    const float* const matrix = work.source.line(static_cast<uint32_t>(task.matrix_w), 0);
    // Where there is none, the first again: its outputs are not stored.
    const auto line_at = [&](int place) { return int64_t(gathered.lines[place < count ? place : 0]); };
    // This lane copies a chunk of every other line, or every other number of a line.
    constexpr int kCopies = kVectors ? kWarpLines / 2 : 1;
    const int first_k = kVectors ? lane % 16 * 4 : lane / kWarpLines;
    const float* from[kCopies];
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      const int place = warp * kWarpLines + (kVectors ? i * 2 + lane / 16 : lane % kWarpLines);
      from[i] = matrix + line_at(place) * work.source.line_stride + first_k * work.source.depth_stride;
    }
    const auto fetch = [&](int step, int stage) {
      if (step < task.end) {
        char* const to = ring + stage * kBytesWarp;
        // Swizzled as the copy engine does.
        const auto place = [&](int line, int k) {
          return ptx::shared_address(to + k / 32 * kBoxBytesWarp + line * kRowBytes + (k % 32 / 4 ^ line % 8) * 16 +
                                     k % 4 * 4);
        };
        const int begin = step * kSegment;
        if constexpr (kVectors) {
          const int bytes = max(0, min(depth - begin - first_k, 4)) * 4;
#pragma unroll
          for (int i = 0; i < kCopies; ++i) {
            ptx::copy_async_part<16>(place(i * 2 + lane / 16, first_k), bytes > 0 ? from[i] + begin : matrix, bytes);
          }
        } else {
          const float* at = from[0] + begin * work.source.depth_stride;
#pragma unroll 8
          for (int i = 0; i < kSegment / 2; ++i, at += 2 * work.source.depth_stride) {
            const int k = i * 2 + first_k;
            const bool there = begin + k < depth;
            ptx::copy_async_part<4>(place(lane % kWarpLines, k), there ? at : matrix, there ? 4 : 0);
          }
        }
      }
      ptx::commit_copies();
    };
    const bool some = warp / 4 * 64 < count;  // lines are this warp group's
    for (int i = 0; i < kStages && some; ++i) fetch(task.begin + i, i);
    const auto facts_at = [&](int l) {
      return w.line_facts[task.matrix_w * w.shape.lines_padded + line_at(own + l * 8)];
    };
    int unit[2];
#pragma unroll
    for (int l = 0; l < 2; ++l) unit[l] = -parts_exponent(facts_at(l));
    float acc[S::kOutputs] = {};
    RingPosition<kStages> at_w;
    if (!some) {
      for (int step = task.begin; step < task.end; ++step) {
        ring_x.template wait<kParts>();
        ring_x.template release<kParts>();
      }
      continue;
    }
#pragma unroll 1
    for (int step = task.begin; step < task.end; ++step, at_w.next()) {
      ptx::wait_copies<kStages - 1>();
      __syncwarp();
      Pieces<kParts> pieces;
#pragma unroll
      for (int l = 0; l < 2; ++l) {
        float numbers[kNumbers];
        split_rows::read_line<ReadW::along_k, kWarpLines>(ring + at_w.stage * kBytesWarp, own % kWarpLines + l * 8,
                                                          numbers);
        split::split_pieces(numbers, split::power_of_two(-unit[l]), l, pieces);
      }
      __syncwarp();
      const auto segment = ring_x.template wait<kParts>();
#pragma unroll
      for (int part = 0; part < kRows / kPart; ++part) {
        float high[kPart / 2], rest[kPart / 2];
        start_segment<bfloat16, kOfA>(high, rest, pieces, segment.piece, part * kPart);
        if (part == 0) fetch(step + kStages, at_w.stage);
        wait_segment(high, rest, pieces);
        add_parts(acc, part * kPart, high, rest, kAll);
      }
      ring_x.template release<kParts>();
    }
    split::from_units(acc, unit, reinterpret_cast<const char*>(gathered.units_x), work.x_lines);
    const int64_t lines[2] = {own < count ? line_at(own) : work.w_lines,
                              own + 8 < count ? line_at(own + 8) : work.w_lines};
    bool all = true, sure = true;
#pragma unroll
    for (int l = 0; l < 2; ++l) {
      if (lines[l] == work.w_lines) continue;
      const unsigned code = gathered.w[own + l * 8];
      all = all && gathered.all_left(code);
      if (checks_itself(work, bias) && code % split_rows::kBeside / kCodeRange == kRangeLargest) {
        sure =
            sure && are_sure<kRows>(acc, l, work.x_lines, largest_exponent(facts_at(l)), gathered.largest(), kCertain);
      }
    }
    if (!sure) atomicOr(x.codes, ~0u);
    float* const to = c + task.group * work.outputs + task.batch * work.m * work.n;
    if (__all_sync(~0u, all)) {
      split::store<kOfA>(acc, to, work.n, lines, work.w_lines, work.x_lines, bias, split::EveryOutput{});
    } else {
      split::store<kOfA>(acc, to, work.n, lines, work.w_lines, work.x_lines, bias,
                         [&](int l, int row) { return split_rows::is_left(gathered.w[own + l * 8], gathered.x[row]); });
    }
  }
#endif
}

template <int kIndex>
cudaError_t run_shape(const Call& call, bool of_a, const Boxes& boxes, const Operand& w, const Operand& x,
                      const Operand16& split_w, const Operand16& split_x, float* partials, bool first) {
  using S = Tiling<kIndex>;
  const Problem& p = call.problem;
  CUtensorMap map_w = {}, map_x = {}, map_x_parts;
  cudaError_t error = split::encode_parts(split_x, S::kRows, &map_x_parts);
  if (error == cudaSuccess && first) error = split::encode_halves(split_x, S::kRows, &map_x);
  if (error == cudaSuccess && first) {
    error = encode(boxes, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 32, boxes.along_k ? kLines : kSegment, &map_w);
  }
  if (error != cudaSuccess) return error;
  Work work;
  static_cast<split_rows::Work&>(work) = split_rows::work_of(call, S::kShape, of_a, boxes, w, x, split_x, false);
  work.tasks = static_cast<int>(work.w_tiles * p.batches * work.groups);
  work.one_each = work.groups == 1 && split_w.shape.matrices == p.batches;
  work.side_w = split::side_of(w);
  work.side_x = split::side_of(x);
  work.of_pairs = certain_of_pairs(p.k);
  const int64_t windows = ceil_div(work.w_lines, int64_t(kWindow)),
                blocks = call.step(-2).grid / (p.batches * work.groups * windows);
  const int64_t tiles = work.w_tiles - (windows - 1) * kWindowTiles;  // of the last window
  work.few_shares = static_cast<int>(
      std::max(std::min({blocks, tiles, ceil_div(int64_t(work.x_lines), int64_t(kFewColumns))}), int64_t(1)));
  const auto results = split::results_of(call, partials);
  const int depth = static_cast<int>(p.k);
  const auto of = [&](auto is_a) {
    constexpr bool kOfA = is_a();
    if (first) {
      const auto function = boxes.along_k ? &kernel<S, kOfA, ReadW::along_k> : &kernel<S, kOfA, ReadW::along_lines>;
      return launch(function, call.step(1), map_w, map_x, map_x_parts, split_x, split_w, work, depth, results.c,
                    results.bias);
    }
    const auto function = boxes.along_k ? &kernel_rest<S, kOfA, true> : &kernel_rest<S, kOfA, false>;
    return launch(function, call.step(-2), map_x_parts, split_x, split_w, work, depth, results.c, results.bias);
  };
  return of_a ? of(std::true_type{}) : of(std::false_type{});
}

}  // namespace treduce::matmul::split_wide
