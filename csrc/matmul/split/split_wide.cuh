// split_fp16 for up to 128 rows or columns of C (X) and very many of the other (W), as attention has them: as split_rows, but the warps
// that multiply split W themselves, in the registers that a warp group multiplies from. So a block has twice the lines of W, reads X
// half as often, and nothing that is split goes through shared memory. Two warp groups have 64 lines of W each and all of X: while
// one splits and adds, the tensor cores are the other's. While a segment is multiplied W's next one is split: of tiles of 128 lines of
// X its scales are found while the first half is multiplied, and its numbers split while the second half is.
//
// What lines of W leave to do is for a second launch, see split_wide_rest.cuh. Lines of a warp group of which the first segments say that all is
// left are only looked through.
#pragma once

#include "split_wide.h"

#include "../../primitives/ptx/opaque.cuh"
#include "split_rows.cuh"
#include "split_source.cuh"

namespace treduce::matmul::split_wide {

using namespace hopper;
using split::kNumbers;
using split::Operand16;
using split::Pieces;
using split::start_segment;
using split::wait_segment;
using split_rows::ReadW;

constexpr int kWarpGroups = split_rows::Shape::kWideGroups, kWarps = kWarpGroups * 4;
constexpr int kLines = kWarpGroups * 64, kWarpLines = kLines / kWarps, kBytesW = kLines * kSegment * 4;
// Lines of X that are multiplied together, and by pairs and by parts in turn, which takes more registers.
constexpr int kPart = 64, kPartOfBoth = 32;
constexpr int kThreads = (kWarpGroups + 1) * kWarpGroup, kCopying = 24, kMultiplying = 240;
static_assert(kWarpGroup * (kCopying + kWarpGroups * kMultiplying) <= 65536);

// X as it is multiplied: a ring of pieces, which are halves or parts of all lines in a segment. Which of them a segment has differs
// from task to task. Beside the first half lie a scale for each line, and of a group's last segment a unit.
template <int kIndex>
struct Tiling {
  static constexpr split_rows::Shape kShape = split_rows::kShapes[kIndex];
  static constexpr int kRows = kShape.rows, kStages = kShape.stages;
  static constexpr int kOutputs = kRows / 2;  // of a thread, of one line of W as of the other
  static constexpr int kPieceBytes = kRows * kRowBytes, kScaleBytes = kRows * 4;
  static constexpr int kSlots = kShape.x_bytes / (kPieceBytes + 2 * kScaleBytes);
  static constexpr int kModes = kSlots / 2 + 2;
  static_assert(kSlots >= 2 + kParts && kRows % kPart == 0 && kRows <= 2 * kPart);
  static_assert(kShape.lines() == kLines && kShape.threads() == kThreads);
  using Mode = split_rows::Mode<kRows, true>;
};

struct Work : split_rows::Work {
  int tasks;      // tiles of W, of all batches, times groups
  bool one_each;  // what is found out about a line of W is one task's
  split::Side side_w, side_x;
  int of_pairs;    // certain_of_pairs
  int few_shares;  // blocks that share out X's lines where few of W are left
};

// Lines of W by all lines of X, a group of k of one product of the batch.
struct Task {
  int first, batch, group, begin, end;  // the last two are segments
  int2 batches;
  int64_t matrix_w, matrix_x;

  // Neighbours have the same lines of X; or where kSpread the same place in other products: what is gathered begins there.
  template <bool kSpread = false>
  TREDUCE_DEVICE static Task of(const Work& work, int index) {
    const int others = kSpread ? work.tasks / work.w_tiles : work.w_tiles;
    const int tile = kSpread ? index / others : index % others, rest = kSpread ? index % others : index / others;
    return {work, tile, rest % work.batches, rest / work.batches};
  }
  TREDUCE_DEVICE Task(const Work& work, int tile, int batch_, int group_) {
    first = tile * kLines;
    batch = batch_;
    group = group_;
    begin = group * kGroupSegments;
    end = min(work.steps, begin + kGroupSegments);
    batches = {batch / work.inner_batches, batch % work.inner_batches};
    matrix_w = work.w.of(batches.x, batches.y);
    matrix_x = work.x.of(batches.x, batches.y);
  }
  TREDUCE_DEVICE const Facts* facts_x(const Operand16& x) const {
    return x.line_facts + matrix_x * x.shape.lines_padded;
  }
};

// What a block's warps share.
template <class S>
struct Shared {
  Ring<S::kStages> w;  // W as it is in memory
  Ring<S::kSlots> x;
  // How X is multiplied in the tasks that its copies are for: who copies may be so many ahead, for each has two pieces or more.
  typename S::Mode modes[S::kModes];
};

// Of a segment, when they are there.
template <int kPieces>
struct PiecesOfX {
  const char* piece[kPieces];
  const char *scales, *units;
};

template <class S>
struct RingOfX {
  Shared<S>& shared;
  char* tiles;
  RingPosition<S::kSlots> position = {};

  TREDUCE_DEVICE char* piece() const { return tiles + position.stage * S::kPieceBytes; }
  TREDUCE_DEVICE char* scales() const {
    return tiles + S::kSlots * S::kPieceBytes + position.stage * 2 * S::kScaleBytes;
  }

  // Copies a segment's pieces; scales and units where they are not null. Who calls: one thread.
  template <class Piece, int kPieces>
  TREDUCE_DEVICE void copy(const CUtensorMap& map, int step, int matrix, const float* scale, const float* unit) {
#pragma unroll
    for (int i = 0; i < kPieces; ++i, position.next()) {
      uint64_t* const full = shared.x.full + position.stage;
      wait_to_overwrite<ptx::kLongPause>(shared.x.empty + position.stage, position.parity ^ 1);
      const bool scaled = i == 0 && scale != nullptr, with_units = i == 0 && unit != nullptr;
      ptx::mbarrier_arrive_expect(full,
                                  S::kPieceBytes + (scaled ? S::kScaleBytes : 0) + (with_units ? S::kScaleBytes : 0));
      Tile<Piece, S::kRows, true>::load(piece(), &map, 0, step * kSegment, {i, matrix}, full);
      if (scaled) ptx::load_bytes(scales(), scale, S::kScaleBytes, full);
      if (with_units) ptx::load_bytes(scales() + S::kScaleBytes, unit, S::kScaleBytes, full);
    }
  }
  // Waits for the next piece, whichever it is.
  TREDUCE_DEVICE void wait_any() const { ptx::mbarrier_wait(shared.x.full + position.stage, position.parity); }
  template <int kPieces>
  TREDUCE_DEVICE PiecesOfX<kPieces> wait() const {
    PiecesOfX<kPieces> segment;
    segment.scales = scales();
    segment.units = scales() + S::kScaleBytes;
    RingOfX at = *this;
#pragma unroll
    for (int i = 0; i < kPieces; ++i, at.position.next()) {
      ptx::mbarrier_wait(shared.x.full + at.position.stage, at.position.parity);
      segment.piece[i] = at.piece();
    }
    return segment;
  }
  template <int kPieces>
  TREDUCE_DEVICE void release() {
    __syncwarp();  // every lane has read its scales
#pragma unroll
    for (int i = 0; i < kPieces; ++i, position.next()) {
      if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(shared.x.empty + position.stage);
    }
  }
};

// Of a warp's sixteen lines a lane has this one, as row lane / 4 of the instruction, and the one eight further. The order is such that
// lanes that read shared memory together touch every bank once.
TREDUCE_DEVICE int own_line() { return split::line_in_set(static_cast<int>(threadIdx.x) % 32 / split::kLanes); }

// Whether these launches find out themselves that outputs are certain, which the last one then need not look at: they have all of each output.
TREDUCE_DEVICE bool checks_itself(const Work& work, const float* bias) { return work.one_each && bias == nullptr; }

// Whether all of a lane's outputs of a line of W are surely certain, by their least one. most_w, most_x: the largest exponents.
template <int kRows>
TREDUCE_DEVICE bool are_sure(const float (&acc)[kRows / 2], int l, int x_lines, int most_w, int most_x, int orders) {
  uint32_t least = ~0u;
#pragma unroll
  for (int i = 0; i < kRows / 8; ++i) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const uint32_t output = __float_as_uint(acc[i * 4 + l * 2 + j]) << 1;
      if (i * 8 + static_cast<int>(threadIdx.x) % 4 * 2 + j < x_lines) least = min(least, output);
    }
  }
  return is_sure(least >> 1, most_w, most_x, orders);
}

// Sets the pieces that are multiplied next. The compiler may not know that the numbers are the same: it would take their registers while
// these are multiplied, and let no multiplication overlap the splitting (ptxas of CUDA 13.0 warns of it).
TREDUCE_DEVICE void take(Pieces<2>& pieces, const Pieces<2>& next) {
  const uint32_t zero = blockIdx.y;  // the grid has one dimension
#pragma unroll
  for (int i = 0; i < 2; ++i) {
#pragma unroll
    for (int l = 0; l < 2; ++l) {
#pragma unroll
      for (int j = 0; j < kNumbers / 2; ++j) pieces[i][l][j] = next[i][l][j] ^ zero;
    }
  }
}

// Whether X has no scales to be added with: nearly always. Who calls: all lanes of a warp.
template <int kRows>
TREDUCE_DEVICE bool are_one(const char* scales_x) {
  const float4 four = reinterpret_cast<const float4*>(scales_x)[threadIdx.x % (kRows / 4)];
  return __all_sync(~0u, four.x == 1.0f && four.y == 1.0f && four.z == 1.0f && four.w == 1.0f);
}

// Adds a segment's sums of pairs where X has no scales.
template <int kOutputs, int kSums>
TREDUCE_DEVICE void add_pairs(float (&acc)[kOutputs], int first, const float (&high)[kSums], const float (&rest)[kSums],
                              const float (&scale)[2]) {
#pragma unroll
  for (int i = 0; i < kSums; ++i) split::add_segment(acc[first / 2 + i], high[i], rest[i], scale[i / 2 % 2]);
}
// Adds a segment's sums of pairs, or of parts, of X's lines from `first` on, where wanted(i) is.
template <int kOutputs, int kSums, class Wanted>
TREDUCE_DEVICE void add_pairs(float (&acc)[kOutputs], int first, const float (&high)[kSums], const float (&rest)[kSums],
                              const float (&scale)[2], const char* scales_x, Wanted wanted) {
  const float2* const of_x = reinterpret_cast<const float2*>(scales_x) + threadIdx.x % 4;
#pragma unroll
  for (int i = 0; i < kSums / 4; ++i) {
    const float2 of_rows = of_x[first / 2 + i * 4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int at = first / 2 + i * 4 + j;
      float sum = acc[at];
      split::add_segment(sum, high[i * 4 + j], rest[i * 4 + j], scale[j / 2] * (j % 2 == 0 ? of_rows.x : of_rows.y));
      if (wanted(at)) acc[at] = sum;
    }
  }
}
template <int kOutputs, int kSums, class Wanted>
TREDUCE_DEVICE void add_parts(float (&acc)[kOutputs], int first, const float (&high)[kSums], const float (&rest)[kSums],
                              Wanted wanted) {
#pragma unroll
  for (int i = 0; i < kSums; ++i) {
    if (wanted(first / 2 + i)) split::add_parts(acc[first / 2 + i], high[i], rest[i]);
  }
}
constexpr auto kAll = [](int) { return true; };

// map_x: of the halves; map_x_parts: of the parts. kOfA: W is A; else the product is transposed.
template <class S, bool kOfA, ReadW kRead>
__global__ void __launch_bounds__(kThreads, 1)
    kernel(TREDUCE_GRID_CONSTANT CUtensorMap map_w, TREDUCE_GRID_CONSTANT CUtensorMap map_x,
           TREDUCE_GRID_CONSTANT CUtensorMap map_x_parts, TREDUCE_GRID_CONSTANT Operand16 x,
           TREDUCE_GRID_CONSTANT Operand16 w, TREDUCE_GRID_CONSTANT Work work, int depth, float* c, const float* bias) {
#ifdef TREDUCE_SM90A
  ptx::allow_launch_after();
  constexpr int kStages = S::kStages, kRows = S::kRows;
  SHARED(Shared<S>, shared);
  char* const tiles = aligned_tiles(dynamic_shared<char>());
  RingOfX<S> ring_x{shared, tiles + kStages * kBytesW};
  if (threadIdx.x == 0) {
    ptx::prefetch_tensor_map(&map_w);
    ptx::prefetch_tensor_map(&map_x);
    ptx::prefetch_tensor_map(&map_x_parts);
    shared.w.init(kWarps);
    shared.x.init(kWarps);
  }
  __syncthreads();
  // A shuffle tells the compiler that this is the same in all lanes: descriptors are then in uniform registers.
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x / 32), 0), lane = threadIdx.x % 32;

  // ---- producers: a warp copies the tiles of W, another what is multiplied of X ----
  if (warp >= kWarps) {
    ptx::release_registers<kCopying>();
    if (warp == kWarps && ptx::elect_one()) {
      RingPosition<kStages> position;
      for (int index = blockIdx.x; index < work.tasks; index += gridDim.x) {
        split_rows::copy_w<kRead, kLines>(shared.w, position, tiles, map_w, work, Task::of(work, index));
      }
    } else if (warp == kWarps + 1) {
      ptx::wait_for_launch_before();
      RingPosition<S::kModes> turn;
      for (int index = blockIdx.x; index < work.tasks; index += gridDim.x, turn.next()) {
        const auto task = Task::of(work, index);
        const auto mode = S::Mode::of(task.facts_x(x), work.x_lines);
        if (ptx::elect_one()) {
          shared.modes[turn.stage] = mode;  // before the arrival at the first piece's barrier
          const float* scale = x.scale + (task.matrix_x * work.steps + task.begin) * x.shape.lines_padded;
          const float* const units = x.unit + (task.matrix_x * x.shape.groups() + task.group) * x.shape.lines_padded;
          const int matrix = static_cast<int>(task.matrix_x);
          for (int step = task.begin; step < task.end; ++step, scale += x.shape.lines_padded) {
            const float* const unit = step + 1 == task.end ? units : nullptr;
            if (mode.halves) ring_x.template copy<float16, 2>(map_x, step, matrix, scale, unit);
            if (mode.parts) ring_x.template copy<bfloat16, kParts>(map_x_parts, step, matrix, nullptr, unit);
          }
        }
        __syncwarp();
      }
    }
    return;
  }

  // ---- consumers: split a segment, multiply it, add its sums to the group's ----
  ptx::take_registers<kMultiplying>();
  const int own = warp * kWarpLines + own_line();  // of the block's lines
  RingPosition<kStages> at_w;
  RingPosition<S::kModes> turn;  // of modes
  for (int index = blockIdx.x; index < work.tasks; index += gridDim.x, turn.next()) {
    const auto task = Task::of(work, index);
    const auto read = [&](int l, float (&numbers)[kNumbers]) {
      split_rows::read_line<kRead, kLines>(tiles + at_w.stage * kBytesW, own + l * 8, numbers);
    };
    const auto wait_w = [&] { ptx::mbarrier_wait(shared.w.full + at_w.stage, at_w.parity); };
    const auto release_w = [&] {
      __syncwarp();
      if (lane == 0) ptx::mbarrier_arrive(shared.w.empty + at_w.stage);
      at_w.next();
    };
    // Units, from what has arrived: asked for apart, they would wait behind all that the ring asks for.
    int unit[2];
    wait_w();
#pragma unroll
    for (int l = 0; l < 2; ++l) {
      float numbers[kNumbers];
      read(l, numbers);
      const int64_t line = task.first + own + l * 8;
      const bool exists = line < work.w_lines;
      unit[l] = work.source.unit(
          exists, work.source.line(static_cast<uint32_t>(task.matrix_w), static_cast<uint32_t>(exists ? line : 0)),
          task.begin, {numbers[0], numbers[1], numbers[2], numbers[3]});
    }
    float acc[S::kOutputs] = {};
    split::KnownLines known;
    const auto present = [&](int step) { return min(kSegment, depth - step * kSegment); };
    // Splits a segment of both lines.
    const auto split_lines = [&](int step, Pieces<2>& pieces, float (&scale)[2], split::KnownLines& found) {
      float numbers[2][kNumbers];
#pragma unroll
      for (int l = 0; l < 2; ++l) read(l, numbers[l]);
      split::split_two_lines<true>(numbers, present(step), unit, pieces, scale, found);
    };
    // The same a line at a time, in two steps, which takes fewer registers. real: not of the segment after the last, which is split to spare
    // registers that a branch would take, and not multiplied.
    const auto scale_line = [&](int l, bool real) {
      float numbers[kNumbers];
      read(l, numbers);
      const auto found = split::Extremes::of<split::kLanes>(numbers);
      if (real) known.join(l, found);
      return split::scale_of(found, unit[l]);
    };
    const auto halve_line = [&](int l, int step, const split::SegmentScale& scaling, bool real, Pieces<2>& pieces) {
      float numbers[kNumbers];
      read(l, numbers);
      const unsigned found =
          split::halve_segment<kNumbers, split::kLanes>(numbers, present(step), scaling, pieces[0][l], pieces[1][l]);
      if (real) known.join(l, found);
    };
    const auto set_scales = [&](const split::SegmentScale(&found)[2], float (&scale)[2]) {
#pragma unroll
      for (int l = 0; l < 2; ++l) scale[l] = split::power_of_two(found[l].exponent - unit[l]);
    };
    // The first segment, before it is known how X is multiplied: nearly always by pairs alone.
    Pieces<2> pieces;
    float scale[2];
    split_lines(task.begin, pieces, scale, known);
    ring_x.wait_any();
    const auto mode = shared.modes[turn.stage];
    // Whether some lines may have outputs by pairs. If the first segments say that none has, the others are only looked through.
    bool some = true;
    if (!mode.parts) {
      release_w();
      int step = task.begin;
      Pieces<2> next;
#pragma unroll 1
      for (; some && step < task.end; ++step) {
        const bool more = step + 1 < task.end;
        const auto segment = ring_x.template wait<2>();
        float high[kPart / 2], rest[kPart / 2];
        start_segment<float16, kOfA>(high, rest, pieces, segment.piece, 0);
        const bool plain = are_one<kRows>(segment.scales);
        const auto add = [&](int first) {
          if (plain) {
            add_pairs(acc, first, high, rest, scale);
          } else {
            add_pairs(acc, first, high, rest, scale, segment.scales, kAll);
          }
        };
        if (more) wait_w();
        float next_scale[2];
        if constexpr (kRows > kPart) {
          split::SegmentScale found[2];
#pragma unroll
          for (int l = 0; l < 2; ++l) found[l] = scale_line(l, more);
          wait_segment(high, rest, pieces);
          add(0);
          start_segment<float16, kOfA>(high, rest, pieces, segment.piece, kPart);
          // Read again: registers are few.
#pragma unroll
          for (int l = 0; l < 2; ++l) halve_line(l, step + 1, found[l], more, next);
          set_scales(found, next_scale);
        } else {
          split::KnownLines found = known;
          split_lines(step + 1, next, next_scale, found);
          if (more) known = found;
        }
        if (more) release_w();
        wait_segment(high, rest, pieces);
        add(kRows - kPart);
        if (!more) split::from_units(acc, unit, segment.units, work.x_lines);
        ring_x.template release<2>();
        take(pieces, next);
        scale[0] = next_scale[0], scale[1] = next_scale[1];
        if (step == task.begin) {
          const bool may = may_have_pairs(known.flags_of(0)) || may_have_pairs(known.flags_of(1));
          some = named_any<kWarpGroup>(1 + warp / 4, may);
        }
      }
      if (!some) {
        split::Extremes others[2];
        bool read_before = true;  // the next segment has been split
#pragma unroll 1
        for (; step < task.end; ++step, read_before = false) {
          if (!read_before) {
            wait_w();
#pragma unroll
            for (int l = 0; l < 2; ++l) {
              float numbers[kNumbers];
              read(l, numbers);
              others[l].join(split::Extremes::of<1>(numbers));
            }
            release_w();
          }
          ring_x.template wait<2>();
          ring_x.template release<2>();
        }
#pragma unroll
        for (int l = 0; l < 2; ++l) {
          others[l].join_lanes<split::kLanes>();
          known.join(l, others[l]);
        }
      }
    } else {
      if (!mode.halves) known.flags = 0xffff;  // as if no segment had been halved
      // Of this lane's outputs, those by parts: two bits for each eight lines of X.
      uint32_t by_parts_here = 0;
#pragma unroll
      for (int i = 0; i < kRows / 8; ++i) {
        by_parts_here |= (mode.by_parts[i / 4] >> (i % 4 * 8 + lane % 4 * 2) & 3) << i * 2;
      }
      const auto is_by_parts = [&](int i) { return (by_parts_here >> (i / 4 * 2 + i % 2) & 1) != 0; };
#pragma unroll 1
      for (int step = task.begin; step < task.end; ++step) {
        if (step > task.begin) wait_w();
        if (mode.halves) {
          const auto segment = ring_x.template wait<2>();
          split::SegmentScale found[2];
#pragma unroll
          for (int l = 0; l < 2; ++l) {
            found[l] = scale_line(l, true);
            halve_line(l, step, found[l], true, pieces);
          }
          set_scales(found, scale);
#pragma unroll
          for (int first = 0; first < kRows; first += kPartOfBoth) {
            float high[kPartOfBoth / 2], rest[kPartOfBoth / 2];
            start_segment<float16, kOfA>(high, rest, pieces, segment.piece, first);
            wait_segment(high, rest, pieces);
            add_pairs(acc, first, high, rest, scale, segment.scales, [&](int i) { return !is_by_parts(i); });
          }
          ring_x.template release<2>();
        }
        Pieces<kParts> parts;
#pragma unroll
        for (int l = 0; l < 2; ++l) {
          float numbers[kNumbers];
          read(l, numbers);
          if (!mode.halves) known.join(l, split::Extremes::of<split::kLanes>(numbers));
          split::split_pieces(numbers, split::power_of_two(-unit[l]), l, parts);
        }
        release_w();
        const auto segment = ring_x.template wait<kParts>();
#pragma unroll
        for (int first = 0; first < kRows; first += kPartOfBoth) {
          float high[kPartOfBoth / 2], rest[kPartOfBoth / 2];
          start_segment<bfloat16, kOfA>(high, rest, parts, segment.piece, first);
          wait_segment(high, rest, parts);
          add_parts(acc, first, high, rest, is_by_parts);
        }
        if (step + 1 == task.end) split::from_units(acc, unit, segment.units, work.x_lines);
        ring_x.template release<kParts>();
      }
    }

    const auto now = Task::of(work, ptx::kept(index));  // found out again: registers are few
    // What is known of W now: whether the next launch has something to do, and the last one.
    unsigned left = 0;
    bool held = mode.all_held;
    const bool looks = !mode.parts && checks_itself(work, bias);
#pragma unroll
    for (int l = 0; l < 2; ++l) {
      const int64_t line = now.first + own + l * 8;
      if (line >= work.w_lines) continue;
      const Facts of_line = known.facts(l);
      if (held && !mode.is_held(of_line)) {
        held = looks && mode.may_hold(of_line) &&
               (!mode.checks(of_line) ||
                are_sure<kRows>(acc, l, work.x_lines, largest_exponent(of_line), mode.most, work.of_pairs));
      }
      if (lane % split::kLanes != 0) continue;
      const bool by_parts = !mode.parts || parts_hold(of_line, unit[l]);
      left += !by_parts || !mode.suffices(of_line);
      const Facts more = with_done(of_line, by_parts);
      Facts* const to = w.line_facts + now.matrix_w * w.shape.lines_padded + line;
      if (work.one_each) {
        *to = more;
      } else {
        split::add_facts(to, more);
      }
    }
    split::count_left(w, x, now.matrix_x, now.first + own, left, held);

    if (!some) continue;
    const int64_t lines[2] = {now.first + own, now.first + own + 8};
    split::store<kOfA>(acc, c + now.group * work.outputs + now.batch * work.m * work.n, work.n, lines, work.w_lines,
                       work.x_lines, bias, split::EveryOutput{});
  }
#endif
}

}  // namespace treduce::matmul::split_wide
