// split_fp16 for up to 128 rows or columns of C: the operand with the many lines, which is most of the memory (W), is split on its
// way from shared memory to registers, which then are the first operand of a multiplication. Its 64 rows are 64 lines of W, its
// columns the few lines of the other operand (X): the product itself, or transposed. X is split before, so it is known then which of
// its lines no pairs suit: W is read once, whatever X is.
#pragma once

#include "epilogue.cuh"
#include "split_operands.cuh"
#include "split_segment.cuh"
#include "split_tiles.cuh"

namespace treduce::matmul::split_rows {

using namespace hopper;
using split::Operand16;

// The first launch multiplies halves, and where X has lines that no pairs suit, parts beside them or instead (if shapes.h has room
// for both). What lines of W leave to do is for the second one.
enum class Pass { first, rest };

// One of the shapes of shapes.h.
template <int kIndex, Pass kPass>
struct Tiling {
  static constexpr bool kFirst = kPass == Pass::first;
  static constexpr Shape kShape = kFirst ? kShapes[kIndex] : kPartsShapes[kIndex];
  static constexpr int kRows = kShape.rows, kStages = kShape.stages, kWarpGroups = kShape.warp_groups,
                       kBlocks = kShape.blocks;
  static constexpr bool kByParts = !kFirst || has_both(kRows);
  static constexpr bool kOwnLines = kShape.own_lines;
  static constexpr int kEvery = kOwnLines ? 1 : kWarpGroups;        // a warp group takes every kEvery-th segment
  static constexpr int kLines = kShape.lines();                     // of W
  static constexpr int kReaders = kOwnLines ? kWarpGroups * 4 : 4;  // warps that read a stage
  static constexpr bool kHandOver = kShape.hands_over();
  static_assert(!kHandOver || kBlocks == 1, "a block alone has the registers that are taken");
  static constexpr int kThreads = kShape.threads();
  static constexpr int kPart = kRows < 64 ? kRows : 64;  // lines of X that are multiplied together
  static constexpr int kBytesW = kShape.bytes_w(kSegment), kBytesX = kShape.bytes_x();
  static constexpr int kRingX = kShape.x_bytes, kScaleBytes = kRows * 4;
  static constexpr int kMostBytesX = (kFirst ? 2 * kBytesX + kTileAlignment : 0) + (kByParts ? kParts * kBytesX : 0);
  static_assert(2 * kMostBytesX <= kRingX && kScaleBytes <= kTileAlignment);
};

// Reads this lane's numbers of one line of the float32 tile, in the order in which a multiplication has its first operand in
// registers: for s = 0 to 3 the steps of k 16 s + 2 (lane % 4), and one, eight and nine more. The tile is boxes of swizzled
// 128-byte rows: if kAlongK two boxes, each of 32 steps of k of all lines; else boxes of 32 lines and 64 steps of k.
template <bool kAlongK, int kLines>
TREDUCE_DEVICE void read_line(const char* tile, int line, float (&numbers)[16]) {
  const int q = threadIdx.x % 4;
  if constexpr (kAlongK) {
    // The 16 bytes of k are chunk (k / 4 + q / 2) ^ line % 8. k / 4 is even here, so its exclusive or may come last.
    const char* const row = tile + line * kRowBytes + q % 2 * 8;
    const int first = (q / 2) ^ line % 8;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float2 pair =
          *reinterpret_cast<const float2*>(row + i / 4 * (kLines * kRowBytes) + (first ^ i % 4 * 2) * 16);
      numbers[i * 2] = pair.x;
      numbers[i * 2 + 1] = pair.y;
    }
  } else {
    const char* const slab = tile + line / 32 * (64 * kRowBytes) + line % 4 * 4;
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const int k = i / 2 * 8 + q * 2 + i % 2;
      numbers[i] = *reinterpret_cast<const float*>(slab + k * kRowBytes + ((line % 32 / 4) ^ k % 8) * 16);
    }
  }
}

struct Work {
  int64_t m, n;
  int steps, tiles, batches, inner_batches;  // tiles: of W
  int64_t outputs;                           // from the results of one group of k to those of the next
  Broadcast box_w;
  split::Matrices w, x;
  split::Source source;  // W
};

// What a block multiplies: lines of W from `first` on, a group of k of one product of the batch.
template <class S>
struct BlockTask {
  int first, batch, group;
  int2 batches;
  int64_t matrix_w, matrix_x;

  TREDUCE_DEVICE BlockTask(const Work& work, int block)
      : first(block % work.tiles * S::kLines),
        batch(block / work.tiles % work.batches),
        group(block / work.tiles / work.batches),
        batches{batch / work.inner_batches, batch % work.inner_batches},
        matrix_w(work.w.of(batches.x, batches.y)),
        matrix_x(work.x.of(batches.x, batches.y)) {}
  TREDUCE_DEVICE Facts* facts_w(const Operand16& w) const {
    return w.line_facts + matrix_w * w.shape.lines_padded + first;
  }
  TREDUCE_DEVICE Facts* facts_x(const Operand16& x) const { return x.line_facts + matrix_x * x.shape.lines_padded; }
};

// What the second launch reads of the lines of X and W that a block multiplies, in shared memory: a code, and beside it whether
// kDone, of W, and never_pairs, of X.
constexpr unsigned char kBeside = kCodes;
template <class S>
struct BlockCodes {
  unsigned char x[S::kRows], w[S::kLines];
};
// Whether an output is left to the second launch.
TREDUCE_DEVICE bool is_left(unsigned w, unsigned x) {
  return by_parts(arithmetic_of(w % kBeside, x % kBeside)) && (w & x & kBeside) == 0;
}

// How lines of X are multiplied.
struct Mode {
  bool halves = false, parts = false;
  bool all_held = true;           // parts hold all numbers of X
  bool some_never = false;        // there are lines that no pairs suit
  uint32_t by_parts[2] = {0, 0};  // these, a bit each, if they are multiplied by parts

  // Who calls: all lanes of a warp. kBoth: parts may be multiplied in this launch.
  template <int kRows, bool kBoth>
  TREDUCE_DEVICE static Mode of(const Facts* facts, int lines) {
    Mode mode;
#pragma unroll
    for (int i = 0; i < (kRows + 31) / 32; ++i) {
      const int line = i * 32 + static_cast<int>(threadIdx.x % 32);
      const Facts known = line < lines ? facts[line] : kPlainestFacts;
      const bool finite = line < lines && all_finite(known);
      mode.all_held = mode.all_held && __all_sync(~0u, code_of(known) / kCodeRange == kRangeAll);
      const uint32_t never = __ballot_sync(~0u, finite && never_pairs(known));
      mode.some_never = mode.some_never || never != 0;
      if constexpr (kBoth) mode.by_parts[i] = never;
      mode.halves = mode.halves || __any_sync(~0u, finite && !(kBoth && never_pairs(known)));
    }
    mode.parts = (mode.by_parts[0] | mode.by_parts[1]) != 0;
    mode.halves = mode.halves || !mode.parts;
    return mode;
  }
};

// How X lies in its ring: in a stage halves, parts, and scales of the halves. Found out again where it is needed: registers are few.
template <class S>
struct StageOfX {
  bool halves, by_parts;

  TREDUCE_DEVICE explicit StageOfX(const Mode& mode)
      : halves(S::kFirst && mode.halves), by_parts(S::kByParts && mode.parts) {}
  // Where these begin, and what a stage and the ring have.
  TREDUCE_DEVICE int parts() const { return halves ? 2 * S::kBytesX : 0; }
  TREDUCE_DEVICE int scales() const { return parts() + (by_parts ? kParts * S::kBytesX : 0); }
  TREDUCE_DEVICE int bytes() const { return scales() + (halves ? kTileAlignment : 0); }
  TREDUCE_DEVICE int stages() const {
    constexpr int kOne = 2 * S::kBytesX + kTileAlignment, kOther = kParts * S::kBytesX, kRing = S::kRingX;
    constexpr int kBoth = kRing / (kOne + kOther), kHalvesAlone = kRing / kOne, kPartsAlone = kRing / kOther;
    const int fit = halves && by_parts ? kBoth : halves ? kHalvesAlone : kPartsAlone;
    return min(kMostXStages, fit);
  }
};

// Starts a segment's multiplications. `pieces` of W are in registers, those of X lie at `x`, kBytesX apart. kOfA: W is A.
template <class S, class Piece, int kPieces, bool kOfA>
TREDUCE_DEVICE void multiply_segment(float (&high)[S::kPart / 2], float (&rest)[S::kPart / 2],
                                     uint32_t (&pieces)[kPieces][4][4], const char* x, int part) {
  using TileX = Tile<Piece, S::kRows, true>;
  using Multiply = ptx::WgmmaRegisters<Piece, S::kPart>;
  const auto multiply = [&](float (&to)[S::kPart / 2], int of_w, int of_x, int i, int accumulate) {
    Multiply::multiply(to, pieces[of_w][i], TileX::lone_descriptor(x + of_x * S::kBytesX, part, i), accumulate);
  };
  // Pairs of pieces (of A, of B) in the order in which `rest` adds them.
  constexpr int kPairs[][2] = {{0, 1}, {1, 0}}, kOfParts[][2] = {{1, 1}, {0, 2}, {2, 0}, {0, 1}, {1, 0}};
  constexpr bool kThree = kPieces == kParts;
  constexpr int kProducts = kThree ? 5 : 2;
  ptx::wgmma_touch(high);
  ptx::wgmma_touch(rest);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) ptx::wgmma_touch(pieces[piece][i]);
  }
  ptx::wgmma_fence();
  // Products of the largest pieces alternate with the first of the others: a multiplication waits for the one before it in the
  // same accumulator.
#pragma unroll
  for (int product = 0; product < kProducts; ++product) {
    const int of_a = kThree ? kOfParts[product][0] : kPairs[product % 2][0];
    const int of_b = kThree ? kOfParts[product][1] : kPairs[product % 2][1];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      multiply(rest, kOfA ? of_a : of_b, kOfA ? of_b : of_a, i, product + i > 0);
      if (product == 0) multiply(high, 0, 0, i, i > 0);
    }
  }
  ptx::wgmma_commit();
  ptx::wgmma_touch(high);
  ptx::wgmma_touch(rest);
  ptx::wgmma_wait<0>();
  ptx::wgmma_touch(high);
  ptx::wgmma_touch(rest);
}

// kOfA: W is A; else the product is transposed. map_x: of the halves, or in the second launch of the parts.
template <class S, bool kOfA, bool kAlongK>
__global__ void __launch_bounds__(S::kThreads, S::kBlocks)
    kernel(TREDUCE_GRID_CONSTANT CUtensorMap map_w, TREDUCE_GRID_CONSTANT CUtensorMap map_x,
           TREDUCE_GRID_CONSTANT CUtensorMap map_x_parts, TREDUCE_GRID_CONSTANT Operand16 x,
           TREDUCE_GRID_CONSTANT Operand16 w, TREDUCE_GRID_CONSTANT Work work, int depth, float* c, const float* bias) {
#ifdef TREDUCE_SM90A
  ptx::allow_launch_after();
  __shared__ Ring<S::kStages> ring_w;
  __shared__ Ring<kMostXStages> ring_x;
  __shared__ uint64_t may_add[S::kEvery];  // the sums in shared memory are that warp group's
  [[maybe_unused]] __shared__ BlockCodes<S> codes;
  char* const stages = aligned_tiles(dynamic_shared<char>());  // of W, then of X, then the sums
  char* const stages_x = stages + S::kStages * S::kBytesW;
  const BlockTask<S> task(work, static_cast<int>(blockIdx.x));
  const int first = task.first;
  const int64_t lines = kOfA ? work.m : work.n;
  const int x_lines = static_cast<int>(kOfA ? work.n : work.m);
  const int begin = task.group * kGroupSegments, end = min(work.steps, begin + kGroupSegments);
  Facts *const facts_w = task.facts_w(w), *const facts_x = task.facts_x(x);

  if constexpr (!S::kFirst) {
    // The launch before has found out which lines need this one: of most data, none.
    ptx::wait_for_launch_before();
    if (*w.codes == 0) return;
    for (int i = threadIdx.x; i < S::kLines; i += S::kThreads) {
      const Facts known = first + i < lines ? facts_w[i] : 0;
      codes.w[i] = static_cast<unsigned char>(code_of(known) | ((known & kDone) != 0 ? kBeside : 0));
    }
    for (int i = threadIdx.x; i < x_lines; i += S::kThreads) {
      codes.x[i] = static_cast<unsigned char>(code_of(facts_x[i]) | (never_pairs(facts_x[i]) ? kBeside : 0));
    }
    __syncthreads();
    bool some = false;
    for (int i = threadIdx.x; i < S::kLines * x_lines; i += S::kThreads) {
      some |= is_left(codes.w[i % S::kLines], codes.x[i / S::kLines]);
    }
    if (__syncthreads_or(some) == 0) return;
  }
  if (threadIdx.x == 0) {
    ptx::prefetch_tensor_map(&map_w);
    ptx::prefetch_tensor_map(&map_x);
    if constexpr (S::kFirst && S::kByParts) ptx::prefetch_tensor_map(&map_x_parts);
    for (int t = 0; t < S::kEvery; ++t) ptx::mbarrier_init(may_add + t, 4);
    ring_w.init(S::kReaders);
    ring_x.init(S::kReaders);
  }
  __syncthreads();
  // X was split by a launch before this one; W need not wait for that.
  const auto mode_of_x = [&] {
    if constexpr (!S::kFirst) return Mode{false, true, false, true, {~0u, ~0u}};
    ptx::wait_for_launch_before();
    return Mode::of<S::kRows, S::kByParts>(facts_x, x_lines);
  };

  // ---- who copies: a warp the tiles of W, another what is multiplied of X ----
  constexpr int kCopier = S::kWarpGroups * kWarpGroup;
  if (threadIdx.x >= kCopier) {
    if constexpr (S::kHandOver) ptx::release_registers<40>();
    if (threadIdx.x == kCopier) {
      const int2 batch_w = work.box_w.of(task.batches);
      RingPosition<S::kStages> position;
      for (int step = begin; step < end; ++step, position.next()) {
        ptx::mbarrier_wait(ring_w.empty + position.stage, position.parity ^ 1);
        uint64_t* const full = ring_w.full + position.stage;
        char* const to = stages + position.stage * S::kBytesW;
        ptx::mbarrier_arrive_expect(full, S::kBytesW);
        constexpr int kBoxes = kAlongK ? 2 : S::kLines / 32;
#pragma unroll
        for (int box = 0; box < kBoxes; ++box) {
          const int x = (kAlongK ? step * kSegment : first) + box * 32, y = kAlongK ? first : step * kSegment;
          ptx::load_box(to + box * (S::kBytesW / kBoxes), &map_w, {x, y, batch_w.y, batch_w.x}, full);
        }
      }
    } else if (threadIdx.x / 32 == kCopier / 32 + 1) {
      const Mode mode = mode_of_x();
      if (threadIdx.x % 32 != 0) return;
      const StageOfX<S> x_stage(mode);
      const bool halves = S::kFirst && mode.halves, parts = S::kByParts && mode.parts;
      const int copied = (halves ? 2 * S::kBytesX + S::kScaleBytes : 0) + (parts ? kParts * S::kBytesX : 0);
      RingPosition<kMostXStages> position;
      for (int step = begin; step < end; ++step, position.next(x_stage.stages())) {
        ptx::mbarrier_wait(ring_x.empty + position.stage, position.parity ^ 1);
        uint64_t* const full = ring_x.full + position.stage;
        char* const to = stages_x + position.stage * x_stage.bytes();
        ptx::mbarrier_arrive_expect(full, copied);
        const int k = step * kSegment;
        if (halves) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            Tile<float16, S::kRows, true>::load(to + half * S::kBytesX, &map_x, 0, k,
                                                {half, static_cast<int>(task.matrix_x)}, full);
          }
          const int64_t row = task.matrix_x * work.steps + step;
          ptx::load_bytes(to + x_stage.scales(), x.scale + row * x.shape.lines_padded, S::kScaleBytes, full);
        }
        if (parts) {
#pragma unroll
          for (int part = 0; part < kParts; ++part) {
            Tile<bfloat16, S::kRows, true>::load(to + x_stage.parts() + part * S::kBytesX,
                                                 S::kFirst ? &map_x_parts : &map_x, 0, k,
                                                 {part, static_cast<int>(task.matrix_x)}, full);
          }
        }
      }
    }
    return;
  }

  // ---- who multiply: split a segment of W in registers, multiply it, add its sums to the group's ----
  if constexpr (S::kHandOver) ptx::take_registers<232>();
  const int lane = threadIdx.x % 32, thread = threadIdx.x % kWarpGroup;
  // A shuffle tells the compiler that this is the same in all lanes: descriptors are then in uniform registers.
  const int warp_group = __shfl_sync(~0u, static_cast<int>(threadIdx.x / kWarpGroup), 0);
  const int first_step = S::kOwnLines ? 0 : warp_group;
  // This lane has this line of the block, and the one eight further.
  const int mine = (S::kOwnLines ? warp_group * 64 : 0) + thread / 32 * 16 + lane / 4;
  const bool exists[2] = {first + mine < lines, first + mine + 8 < lines};
  // The exponent of the unit of its group; where the whole line is known, that of its parts.
  int unit[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if constexpr (!S::kFirst) {
      unit[half] = exists[half] ? -parts_exponent(facts_w[mine + half * 8]) : 0;
    } else {
      const uint32_t line = exists[half] ? first + mine + half * 8 : 0;
      unit[half] = work.source.unit(exists[half], work.source.line(static_cast<uint32_t>(task.matrix_w), line), begin);
    }
  }
  const Mode mode = mode_of_x();
  // Of this lane's outputs, those by parts: two bits for each eight lines of X.
  [[maybe_unused]] uint32_t by_parts_here = 0;
  if constexpr (S::kFirst && S::kByParts) {
#pragma unroll
    for (int i = 0; i < S::kRows / 8; ++i) {
      by_parts_here |= (mode.by_parts[i / 4] >> (i % 4 * 8 + lane % 4 * 2) & 3) << i * 2;
    }
  }
  const auto is_by_parts = [&](int i) { return (by_parts_here >> (i / 4 * 2 + i % 2) & 1) != 0; };
  const StageOfX<S> x_stage(mode);

  float4* const sums = reinterpret_cast<float4*>(stages_x + S::kRingX);
  unsigned may_add_parity = 0;
  // Of the lines, in the segments that this lane splits.
  // Flags, a byte a line; and beside them whether parts hold all numbers of X.
  constexpr unsigned kHeld = 1 << 16;
  [[maybe_unused]] unsigned kept = mode.all_held ? ~0u : ~kHeld;
  [[maybe_unused]] split::PackedExponents exponents[2];
  float acc[S::kRows / 2] = {};
  RingPosition<S::kStages> at_w;
  RingPosition<kMostXStages> at_x;
  at_w.skip(first_step);
  for (int i = 0; i < first_step; ++i) at_x.next(x_stage.stages());
  for (int step = begin + first_step; step < end; step += S::kEvery) {
    ptx::mbarrier_wait(ring_w.full + at_w.stage, at_w.parity);
    const char* const tile_w = stages + at_w.stage * S::kBytesW;
    // This warp has read its numbers.
    const auto release_w = [&] {
      __syncwarp();
      if (lane == 0) ptx::mbarrier_arrive(ring_w.empty + at_w.stage);
    };
    const char* const x_pieces = stages_x + at_x.stage * x_stage.bytes();
    const auto wait_for_x = [&] { ptx::mbarrier_wait(ring_x.full + at_x.stage, at_x.parity); };
    // Takes the sums so far from the warp group that had the segment before.
    const auto take_sums = [&] {
      if constexpr (S::kOwnLines) return;
      if (step > begin) {
        ptx::mbarrier_wait(may_add + first_step, may_add_parity);
        may_add_parity ^= 1;
      }
#pragma unroll
      for (int i = 0; i < S::kRows / 2; i += 4) {
        const float4 four = step == begin ? float4{0, 0, 0, 0} : sums[i / 4 * kWarpGroup + thread];
        acc[i] = four.x, acc[i + 1] = four.y, acc[i + 2] = four.z, acc[i + 3] = four.w;
      }
    };

    if (S::kFirst && mode.halves) {
      const float* const x_scale = reinterpret_cast<const float*>(x_pieces + x_stage.scales());
      const int present = min(kSegment, depth - step * kSegment);
      uint32_t halves[2][4][4];  // the first operands of four multiplications
      float scale[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float numbers[16];
        read_line<kAlongK, S::kLines>(tile_w, mine + half * 8, numbers);
        uint32_t h[8], l[8];
        int exponent;
        unsigned flags;
        exponents[half].add(split::split_segment<16, 4>(numbers, present, unit[half], h, l, exponent, flags));
        scale[half] = split::power_of_two(exponent - unit[half]);
        kept &= flags << half * 8 | ~(0xffu << half * 8);
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          halves[0][i / 2][i % 2 * 2 + half] = h[i];
          halves[1][i / 2][i % 2 * 2 + half] = l[i];
        }
      }
      if (!S::kByParts || !mode.parts) release_w();
      wait_for_x();
#pragma unroll
      for (int part = 0; part < S::kRows; part += S::kPart) {
        float high[S::kPart / 2], rest[S::kPart / 2];
        multiply_segment<S, float16, 2, kOfA>(high, rest, halves, x_pieces, part);
        if (part == 0) take_sums();
        const auto add = [&](auto wanted) {
#pragma unroll
          for (int i = 0; i < S::kPart / 8; ++i) {
            const float2 of_rows = reinterpret_cast<const float2*>(x_scale + part)[i * 4 + lane % 4];
#pragma unroll
            for (int j = 0; j < 4; ++j) {
              const int at = part / 2 + i * 4 + j;
              float sum = acc[at];
              split::add_segment(sum, high[i * 4 + j], rest[i * 4 + j],
                                 scale[j / 2] * (j % 2 == 0 ? of_rows.x : of_rows.y));
              if (wanted(at)) acc[at] = sum;
            }
          }
        };
        if (S::kByParts && mode.parts) {
          add([&](int at) { return !is_by_parts(at); });
        } else {
          add([](int) { return true; });
        }
      }
    }
    if (S::kByParts && mode.parts) {
      uint32_t parts[kParts][4][4];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float numbers[16];
        read_line<kAlongK, S::kLines>(tile_w, mine + half * 8, numbers);
        if (S::kFirst && !mode.halves) exponents[half].add(split::Extremes::of<4>(numbers));
        const float factor = split::power_of_two(-unit[half]);
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          uint32_t both[kParts];
          split::split_parts(numbers[i * 2] * factor, numbers[i * 2 + 1] * factor, both);
#pragma unroll
          for (int piece = 0; piece < kParts; ++piece) parts[piece][i / 2][i % 2 * 2 + half] = both[piece];
        }
      }
      release_w();
      if (!S::kFirst || !mode.halves) wait_for_x();
#pragma unroll
      for (int part = 0; part < S::kRows; part += S::kPart) {
        float high[S::kPart / 2], rest[S::kPart / 2];
        multiply_segment<S, bfloat16, kParts, kOfA>(high, rest, parts, x_pieces + x_stage.parts(), part);
        if (part == 0 && (!S::kFirst || !mode.halves)) take_sums();
        const auto add = [&](auto wanted) {
#pragma unroll
          for (int i = 0; i < S::kPart / 2; ++i) {
            if (wanted(part / 2 + i)) split::add_parts(acc[part / 2 + i], high[i], rest[i]);
          }
        };
        if (S::kFirst && mode.halves) {
          add(is_by_parts);
        } else {
          add([](int) { return true; });
        }
      }
    }
    __syncwarp();  // every lane has read its scales
    if (lane == 0) ptx::mbarrier_arrive(ring_x.empty + at_x.stage);
    at_w.skip(S::kEvery);
    at_x.skip(S::kEvery, x_stage.stages());
    if constexpr (!S::kOwnLines) {
      if (step + 1 == end) break;  // the sums are complete, in this warp group's registers
#pragma unroll
      for (int i = 0; i < S::kRows / 2; i += 4) {
        sums[i / 4 * kWarpGroup + thread] = {acc[i], acc[i + 1], acc[i + 2], acc[i + 3]};
      }
      __syncwarp();
      if (lane == 0) ptx::mbarrier_arrive(may_add + (first_step + 1) % S::kEvery);
    }
  }
  // Found out anew: the loop has no registers for it.
  const BlockTask<S> now(work, ptx::block_index());
  if constexpr (S::kFirst) {
    // What is known of W now: whether the next launch has something to do, and the last one.
    bool done = true, held = (kept & kHeld) != 0;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (lane % 4 != 0 || !exists[half] || begin + first_step >= end) continue;  // four lanes share two lines
      const unsigned flags = kept >> half * 8 & 0xff;
      const Facts known = exponents[half].facts(flags);
      const bool by_parts = mode.parts && parts_hold(known, unit[half]);
      const bool others = S::kByParts ? mode.parts : mode.some_never;  // outputs that pairs do not suit
      done = done && (by_parts || !others) && (!mode.halves || suits_pairs(flags));
      held = held && is_moderate(known);
      split::add_facts(now.facts_w(w) + mine + half * 8, by_parts ? known : known & ~Facts(kDone));
    }
    done = __all_sync(~0u, done);
    held = __all_sync(~0u, held);
    if (lane == 0 && !done) atomicOr(w.codes, ~0u);
    if (lane == 0 && !held) atomicOr(x.codes, ~0u);
  }
  if (!S::kOwnLines && first_step != (end - 1 - begin) % S::kEvery) return;

  const float* const x_units = x.unit + (now.matrix_x * x.shape.groups() + now.group) * x.shape.lines_padded;
#pragma unroll
  for (int i = 0; i < S::kRows / 2; ++i) {
    const int row = i / 4 * 8 + lane % 4 * 2 + i % 2;
    const float unit_w = split::power_of_two(unit[i / 2 % 2]);
    const float unit_x = row >= x_lines ? 1.0f
                         : S::kFirst    ? x_units[row]
                                        : split::power_of_two(-parts_exponent(now.facts_x(x)[row]));
    acc[i] = split::from_units(acc[i], unit_w, unit_x);
  }
  const int line = now.first + mine - thread / 32 * 16 - lane / 4;  // the first of this warp group
  float* const to = c + now.group * work.outputs + now.batch * work.m * work.n;
  if constexpr (!S::kFirst) {
#pragma unroll
    for (int i = 0; i < S::kRows / 2; ++i) {
      const int half = i / 2 % 2, row = i / 4 * 8 + lane % 4 * 2 + i % 2;
      const int64_t of_w = now.first + mine + half * 8, m = kOfA ? of_w : row, n = kOfA ? row : of_w;
      if (!exists[half] || row >= x_lines || !is_left(codes.w[mine + half * 8], codes.x[row])) continue;
      to[m * work.n + n] = bias == nullptr ? acc[i] : canonical(acc[i] + __ldg(bias + n));
    }
  } else if constexpr (kOfA) {
    add_bias(acc, bias, 0, work.n);
    store_registers<float, S::kRows>(acc, to, line, 0, work.m, work.n);
  } else {
    add_bias_transposed(acc, bias, line, work.n);
    store_transposed<float, S::kRows>(acc, to, line, 0, work.m, work.n);
  }
#endif
}

template <class S, bool kOfA, bool kAlongK>
cudaError_t launch_shape(const Call& call, const Boxes& boxes, const Operand& w, const Operand& x,
                         const Operand16& split_w, const Operand16& split_x, float* partials) {
  const Problem& p = call.problem;
  CUtensorMap map_w, map_x, map_x_parts;
  cudaError_t error = encode(boxes, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 32, kAlongK ? S::kLines : kSegment, &map_w);
  if (error == cudaSuccess) error = split::encode_parts(split_x, S::kRows, &map_x_parts);
  map_x = map_x_parts;
  if (error == cudaSuccess && S::kFirst) error = split::encode_halves(split_x, S::kRows, &map_x);
  if (error != cudaSuccess) return error;
  Work work;
  work.m = p.m;
  work.n = p.n;
  work.steps = static_cast<int>(split_x.shape.segments());
  work.tiles = static_cast<int>(ceil_div(w.lines, S::kLines));
  work.batches = static_cast<int>(p.batches);
  work.inner_batches = static_cast<int>(inner_batches_of(p));
  work.outputs = p.batches * p.m * p.n;
  work.box_w = broadcast_of(boxes);
  work.w = split::matrices_of(w);
  work.x = split::matrices_of(x);
  work.source = split::source_of(w);
  const auto function = &kernel<S, kOfA, kAlongK>;
  return launch(function, call.step(S::kFirst ? 1 : 2), map_w, map_x, map_x_parts, split_x, split_w, work,
                static_cast<int>(p.k), partials != nullptr ? partials : static_cast<float*>(call.c),
                partials != nullptr ? nullptr : static_cast<const float*>(call.bias));
}

// `of_a`: w is A.
inline cudaError_t run(const Call& call, bool of_a, const Operand& w, const Operand& x, const Operand16& split_w,
                       const Operand16& split_x, float* partials) {
  Boxes boxes = (of_a ? call.prepared.view_a : call.prepared.view_b).boxes;
  boxes.data = w.data;
  const auto run_tiling = [&](auto tiling) {
    using S = decltype(tiling);
    const auto function = of_a            ? boxes.along_k ? &launch_shape<S, true, true> : &launch_shape<S, true, false>
                          : boxes.along_k ? &launch_shape<S, false, true>
                                          : &launch_shape<S, false, false>;
    return function(call, boxes, w, x, split_w, split_x, partials);
  };
  const SplitRegions& regions_x = of_a ? call.prepared.split_b : call.prepared.split_a;
  const split::Task split_all = split::task_of(x, regions_x.splitting, split_x, {0, call.prepared.groups});
  cudaError_t error = launch(&split::split_lines, call.step(0), split::IntoHalves{split_all, false},
                             split::IntoParts{split_all, nullptr}, split_w);
  if (error == cudaSuccess) {
    error = with_shape<kShapeCount>(call, [&](auto index) { return run_tiling(Tiling<index(), Pass::first>{}); });
  }
  if (error != cudaSuccess) return error;
  return with_shape(std::make_integer_sequence<int, kPartsShapeCount>{}, call.prepared.parts_shape,
                    [&](auto index) { return run_tiling(Tiling<index(), Pass::rest>{}); });
}

}  // namespace treduce::matmul::split_rows
