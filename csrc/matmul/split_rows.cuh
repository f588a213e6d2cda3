// split_fp16 for up to 128 rows or columns of C: the operand with the many lines, which is most of the memory (W), is read
// once and split on its way from shared memory to registers, which then are the first operand of a multiplication. Its 64
// rows are 64 lines of W, its columns the few lines of the other operand (X): the product itself, or transposed.
#pragma once

#include "hopper.cuh"
#include "split.cuh"

namespace treduce::matmul::split_rows {

using namespace hopper;
using split::Operand16;

// kRows: lines of X. The kGroups warp groups of a block either have 64 lines of W each, and share the lines of X
// (kOwnLines); or, where C has too few tiles for that, they take the segments of the same 64 lines by turns: splitting and
// multiplying go on side by side, and only what they add to the sums, which pass from one to the next through shared
// memory, is done in order. kBlocks: on a multiprocessor. Two hide each other's first copies and last stores.
template <int kRows_, int kStages_, int kGroups_, int kBlocks_, bool kOwnLines_>
struct Shape {
  static constexpr int kRows = kRows_, kStages = kStages_, kGroups = kGroups_, kBlocks = kBlocks_;
  static constexpr bool kOwnLines = kOwnLines_;
  static constexpr int kTurns = kOwnLines ? 1 : kGroups;        // from a warp group's segment to its next
  static constexpr int kLines = kOwnLines ? kGroups * 64 : 64;  // of W
  static constexpr int kReaders = kOwnLines ? kGroups * 4 : 4;  // warps that read a stage
  // Who multiply, and who copies: a warp, or where registers are handed over a warp group.
  static constexpr bool kHandOver = kRows == 128;
  static_assert(!kHandOver || kBlocks == 1, "a block alone has the registers that are taken");
  static constexpr int kThreads = kGroups * kWarpGroup + (kHandOver ? kWarpGroup : 32);
  static constexpr int kPart = kRows < 64 ? kRows : 64;  // lines of X that are multiplied together
  static constexpr int kBytesW = kLines * kSegment * 4;  // the float32 tile
  static constexpr int kBytesX = kRows * kRowBytes;      // one half
  static constexpr int kScaleBytes = kRows * 4;
  static constexpr int kCopiedBytes = kBytesW + 2 * kBytesX + kScaleBytes;
  static constexpr int kStageBytes = kBytesW + 2 * kBytesX + kTileAlignment;
  static constexpr int kSumBytes = kOwnLines ? 0 : kWarpGroup * kRows / 2 * 4;
};

// This lane's numbers of line `line` of the float32 tile, in the order of a multiplication's first operand: steps of k
// 16 s + 2 (lane % 4), and one, eight and nine more, for s = 0 to 3. The tile is boxes of 128-byte rows, swizzled.
// kAlongK: 32 steps of k of all lines, twice; else 64 steps of k of 32 lines each.
template <bool kAlongK, int kLines>
TREDUCE_DEVICE void read_line(const char* tile, int line, float (&numbers)[16]) {
  const int q = threadIdx.x % 4;
  if constexpr (kAlongK) {
    // The 16 bytes of k lie at (k / 4 + q / 2) ^ line % 8: exclusive ors with the even k / 4 after those with the rest.
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
  int64_t outputs;                           // from one group's results to the next's
  Broadcast box_w;
  split::Matrices w, x;
};

// kOfA: W is A; else the product is transposed.
template <class S, bool kOfA, bool kAlongK>
__global__ void __launch_bounds__(S::kThreads, S::kBlocks)
    kernel(TREDUCE_GRID_CONSTANT CUtensorMap map_w, TREDUCE_GRID_CONSTANT CUtensorMap map_x, Operand16 x, Operand16 w,
           Work work, int depth, float* c, const float* bias) {
#ifdef TREDUCE_SM90A
  ptx::allow_launch_after();
  using TileX = Tile<float16, S::kRows, true>;
  using Multiply = ptx::WgmmaRegisters<S::kPart>;
  __shared__ Ring<S::kStages> ring;
  __shared__ uint64_t turns[S::kTurns];  // the sums are that warp group's
  char* const stages = aligned_tiles(dynamic_shared<char>());
  const int first = blockIdx.x % work.tiles * S::kLines;
  const int batch = blockIdx.x / work.tiles % work.batches, group = blockIdx.x / work.tiles / work.batches;
  const int2 batches = {batch / work.inner_batches, batch % work.inner_batches};
  const int64_t matrix_w = work.w.of(batches.x, batches.y), matrix_x = work.x.of(batches.x, batches.y);
  const int64_t lines = kOfA ? work.m : work.n;
  const int begin = group * kGroupSegments, end = min(work.steps, begin + kGroupSegments);

  if (threadIdx.x == 0) {
    ptx::prefetch_tensor_map(&map_w);
    ptx::prefetch_tensor_map(&map_x);
    for (int t = 0; t < S::kTurns; ++t) ptx::mbarrier_init(turns + t, 4);
    ring.init(S::kReaders);
  }
  __syncthreads();

  constexpr int kCopier = S::kGroups * kWarpGroup;
  if (threadIdx.x >= kCopier) {
    if constexpr (S::kHandOver) ptx::release_registers<40>();
    if (threadIdx.x != kCopier) return;
    const int2 batch_w = work.box_w.of(batches);
    const float* const x_scale = x.scale + matrix_x * work.steps * x.shape.lines_padded;
    Turn<S::kStages> turn;
    for (int step = begin; step < end; ++step, turn.next()) {
      ptx::mbarrier_wait(ring.empty + turn.stage, turn.parity ^ 1);
      uint64_t* const full = ring.full + turn.stage;
      char* const to = stages + turn.stage * S::kStageBytes;
      ptx::mbarrier_arrive_expect(full, S::kCopiedBytes);
      char* const x_tile = to + S::kBytesW;
      const int k = step * kSegment;
      constexpr int kBoxes = kAlongK ? 2 : S::kLines / 32;
#pragma unroll
      for (int box = 0; box < kBoxes; ++box) {
        const int x = (kAlongK ? k : first) + box * 32, y = kAlongK ? first : k;
        ptx::load_box(to + box * (S::kBytesW / kBoxes), &map_w, {x, y, batch_w.y, batch_w.x}, full);
      }
      // What is split already comes from the launch before; the rest need not wait for that.
      if (step == begin) ptx::wait_for_launch_before();
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        TileX::load(x_tile + half * S::kBytesX, &map_x, 0, k, {half, static_cast<int>(matrix_x)}, full);
      }
      ptx::load_bytes(x_tile + 2 * S::kBytesX, x_scale + step * x.shape.lines_padded, S::kScaleBytes, full);
    }
    return;
  }

  if constexpr (S::kHandOver) ptx::take_registers<232>();
  const int lane = threadIdx.x % 32, thread = threadIdx.x % kWarpGroup;
  // The same for all lanes, which the compiler does not know: descriptors are then uniform registers.
  const int own_group = __shfl_sync(~0u, static_cast<int>(threadIdx.x / kWarpGroup), 0);
  const int own_turn = S::kOwnLines ? 0 : own_group;
  // Of the block's lines: this one, and eight on.
  const int mine = (S::kOwnLines ? own_group * 64 : 0) + thread / 32 * 16 + lane / 4;
  // Lane 0 of four says what the segments of their two lines are like.
  unsigned char* const flags = w.flags + (matrix_w * work.steps + begin) * w.shape.lines_padded + first + mine;
  const bool there[2] = {lane % 4 == 0 && first + mine < lines, lane % 4 == 0 && first + mine + 8 < lines};
  const int padded = static_cast<int>(w.shape.lines_padded);
  float* const sums = reinterpret_cast<float*>(stages + S::kStages * S::kStageBytes);
  unsigned round = 0;  // parity of this warp group's next turn
  float acc[S::kRows / 2] = {};
  Turn<S::kStages> turn;
  turn.skip(own_turn);
  for (int step = begin + own_turn; step < end; step += S::kTurns) {
    ptx::mbarrier_wait(ring.full + turn.stage, turn.parity);
    const char* const stage = stages + turn.stage * S::kStageBytes;
    const char* const x_high = stage + S::kBytesW;
    const char* const x_low = x_high + S::kBytesX;
    const float* const x_scale = reinterpret_cast<const float*>(x_low + S::kBytesX);
    const int present = min(kSegment, depth - step * kSegment);

    // Four multiplications' worth of the two lines.
    uint32_t high_part[4][4], low_part[4][4];
    float scale[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float numbers[16];
      read_line<kAlongK, S::kLines>(stage, mine + half * 8, numbers);
      uint32_t h[8], l[8];
      unsigned char of_segment;
      split::split_segment<16, 4>(numbers, present, h, l, scale[half], of_segment);
      if (there[half]) flags[int64_t(step - begin) * padded + half * 8] = of_segment;
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        high_part[i / 2][i % 2 * 2 + half] = h[i];
        low_part[i / 2][i % 2 * 2 + half] = l[i];
      }
    }

#pragma unroll
    for (int part = 0; part < S::kRows; part += S::kPart) {
      float high[S::kPart / 2], rest[S::kPart / 2];
      ptx::wgmma_touch(high);
      ptx::wgmma_touch(rest);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        ptx::wgmma_touch(high_part[i]);
        ptx::wgmma_touch(low_part[i]);
      }
      ptx::wgmma_fence();
      // High of A by low of B, then low of A by high of B, in one accumulator; high by high, in another, between them: a
      // multiplication waits for the one before it in its accumulator.
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        Multiply::multiply(rest, kOfA ? high_part[i] : low_part[i],
                           TileX::lone_descriptor(kOfA ? x_low : x_high, part, i), i > 0);
        Multiply::multiply(high, high_part[i], TileX::lone_descriptor(x_high, part, i), i > 0);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        Multiply::multiply(rest, kOfA ? low_part[i] : high_part[i],
                           TileX::lone_descriptor(kOfA ? x_high : x_low, part, i), 1);
      }
      ptx::wgmma_commit();
      ptx::wgmma_touch(high);
      ptx::wgmma_touch(rest);
      ptx::wgmma_wait<0>();
      ptx::wgmma_touch(high);
      ptx::wgmma_touch(rest);
      if (!S::kOwnLines && part == 0) {
        if (step > begin) {
          ptx::mbarrier_wait(turns + own_turn, round);
          round ^= 1;
        }
#pragma unroll
        for (int i = 0; i < S::kRows / 2; ++i) acc[i] = step == begin ? 0.0f : sums[i * kWarpGroup + thread];
      }
#pragma unroll
      for (int i = 0; i < S::kPart / 8; ++i) {
        const float2 of_rows = reinterpret_cast<const float2*>(x_scale + part)[i * 4 + lane % 4];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          split::add_segment(acc[part / 2 + i * 4 + j], high[i * 4 + j], rest[i * 4 + j],
                             scale[j / 2] * (j % 2 == 0 ? of_rows.x : of_rows.y));
        }
      }
    }
    __syncwarp();  // every lane has read its scales
    if (lane == 0) ptx::mbarrier_arrive(ring.empty + turn.stage);
    turn.skip(S::kTurns);
    if constexpr (!S::kOwnLines) {
      if (step + 1 == end) break;  // the sums are complete, in this group's registers
#pragma unroll
      for (int i = 0; i < S::kRows / 2; ++i) sums[i * kWarpGroup + thread] = acc[i];
      __syncwarp();
      if (lane == 0) ptx::mbarrier_arrive(turns + (own_turn + 1) % S::kTurns);
    }
  }
  if (!S::kOwnLines && own_turn != (end - 1 - begin) % S::kTurns) return;
  const int line = first + mine - thread / 32 * 16 - lane / 4;  // the first of this warp group
  float* const to = c + group * work.outputs + batch * work.m * work.n;
  if constexpr (kOfA) {
    add_bias(acc, bias, 0, work.n);
    store_registers<float, S::kRows>(acc, to, line, 0, work.m, work.n);
  } else {
    add_bias_transposed(acc, bias, line, work.n);
    store_transposed<float, S::kRows>(acc, to, line, 0, work.m, work.n);
  }
#endif
}

// Describes both halves of an operand for copies of `lines` lines and a segment of k.
inline cudaError_t encode_halves(const Operand16& o, int lines, CUtensorMap* map) {
  const Halves& h = o.shape;
  const Boxes boxes{o.high, 2, true, h.depth, h.lines, h.depth, {2, h.matrices}, {h.values, h.lines * h.depth}};
  return encode(boxes, kMapType<float16>, kDepth<float16>, lines, true, map);
}

template <class S, bool kOfA, bool kAlongK>
cudaError_t launch_shape(const Call& call, const Boxes& boxes, const Operand& w, const Operand& x,
                         const Operand16& split_w, const Operand16& split_x, float* partials) {
  const Problem& p = call.problem;
  CUtensorMap map_w, map_x;
  cudaError_t error = encode(boxes, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 32, kAlongK ? S::kLines : kSegment, true, &map_w);
  if (error != cudaSuccess) return error;
  error = encode_halves(split_x, S::kRows, &map_x);
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
  Launch shape;
  shape.block = S::kThreads;
  shape.grid = work.tiles * p.batches * groups_of(p.k);
  shape.shared_bytes = S::kStages * S::kStageBytes + S::kSumBytes + kTileAlignment;
  shape.stream = call.stream;
  shape.overlapping = true;
  const auto function = &kernel<S, kOfA, kAlongK>;
  return launch(function, shape, map_w, map_x, split_x, split_w, work, static_cast<int>(p.k),
                partials != nullptr ? partials : static_cast<float*>(call.c),
                partials != nullptr ? nullptr : static_cast<const float*>(call.bias));
}

// `of_a`: w is A.
inline cudaError_t run(const Call& call, bool of_a, const Operand& w, const Operand& x, const Operand16& split_w,
                       const Operand16& split_x, float* partials) {
  const Boxes boxes = view_of(w, true).boxes;
  const auto launch = [&](auto shape) {
    using S = decltype(shape);
    const auto function = of_a            ? boxes.along_k ? &launch_shape<S, true, true> : &launch_shape<S, true, false>
                          : boxes.along_k ? &launch_shape<S, false, true>
                                          : &launch_shape<S, false, false>;
    return function(call, boxes, w, x, split_w, split_x, partials);
  };
  // How long blocks of so many lines of W take, `at_once` on a multiprocessor, where all of these need `round`. Rounds were
  // measured beside that of one block of 64 lines (1 to 128 x 8192 x 28672 on an NVIDIA H200, 2026-11-21).
  const auto time = [&](int lines, int at_once, double round) {
    const int64_t blocks = ceil_div(w.lines, lines) * call.problem.batches * groups_of(call.problem.k);
    const int64_t together = int64_t(at_once) * call.multiprocessors;
    return round * static_cast<double>(ceil_div(blocks, together));
  };
  const double alone = time(64, 1, 1.0);
  const bool two = time(64, 2, 1.9) < alone;
  if (x.lines <= 8) return two ? launch(Shape<8, 4, 2, 2, false>{}) : launch(Shape<8, 8, 4, 1, false>{});
  if (x.lines <= 16) return two ? launch(Shape<16, 4, 2, 2, false>{}) : launch(Shape<16, 8, 3, 1, false>{});
  if (x.lines <= 32) return two ? launch(Shape<32, 3, 2, 2, false>{}) : launch(Shape<32, 6, 3, 1, false>{});
  const bool own_lines = time(128, 1, x.lines <= 64 ? 1.9 : 1.65) < alone;
  if (x.lines <= 64) return own_lines ? launch(Shape<64, 4, 2, 1, true>{}) : launch(Shape<64, 5, 2, 1, false>{});
  return own_lines ? launch(Shape<128, 3, 2, 1, true>{}) : launch(Shape<128, 3, 2, 1, false>{});
}

}  // namespace treduce::matmul::split_rows
