// split_fp16 for up to 128 rows or columns of C: the operand with the many lines, which is most of the memory (W), is read
// once and split on its way from shared memory to registers, which then are the first operand of a multiplication. Its 64
// rows are 64 lines of W, its columns the few lines of the other operand (X): the product itself, or transposed.
#pragma once

#include "epilogue.cuh"
#include "split_segment.cuh"

namespace treduce::matmul::split_rows {

using namespace hopper;
using split::Operand16;

// One of the shapes of shapes.h.
template <int kIndex>
struct Tiling {
  static constexpr Shape kShape = kShapes[kIndex];
  static constexpr int kRows = kShape.rows, kStages = kShape.stages, kWarpGroups = kShape.warp_groups,
                       kBlocks = kShape.blocks;
  static constexpr bool kOwnLines = kShape.own_lines;
  static constexpr int kEvery = kOwnLines ? 1 : kWarpGroups;        // a warp group takes every kEvery-th segment
  static constexpr int kLines = kShape.lines();                     // of W
  static constexpr int kReaders = kOwnLines ? kWarpGroups * 4 : 4;  // warps that read a stage
  static constexpr bool kHandOver = kShape.hands_over();
  static_assert(!kHandOver || kBlocks == 1, "a block alone has the registers that are taken");
  static constexpr int kThreads = kShape.threads();
  static constexpr int kPart = kRows < 64 ? kRows : 64;  // lines of X that are multiplied together
  static constexpr int kBytesW = kShape.bytes_w(kSegment), kBytesX = kShape.bytes_x();
  static constexpr int kScaleBytes = kRows * 4;
  static constexpr int kCopiedBytes = kBytesW + 2 * kBytesX + kScaleBytes;
  static constexpr int kStageBytes = kShape.stage_bytes(kSegment);
  static_assert(kCopiedBytes <= kStageBytes);
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
  __shared__ uint64_t may_add[S::kEvery];  // the sums in shared memory are that warp group's
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
    for (int t = 0; t < S::kEvery; ++t) ptx::mbarrier_init(may_add + t, 4);
    ring.init(S::kReaders);
  }
  __syncthreads();

  constexpr int kCopier = S::kWarpGroups * kWarpGroup;
  if (threadIdx.x >= kCopier) {
    if constexpr (S::kHandOver) ptx::release_registers<40>();
    if (threadIdx.x != kCopier) return;
    const int2 batch_w = work.box_w.of(batches);
    const float* const x_scale = x.scale + matrix_x * work.steps * x.shape.lines_padded;
    RingPosition<S::kStages> position;
    for (int step = begin; step < end; ++step, position.next()) {
      ptx::mbarrier_wait(ring.empty + position.stage, position.parity ^ 1);
      uint64_t* const full = ring.full + position.stage;
      char* const to = stages + position.stage * S::kStageBytes;
      ptx::mbarrier_arrive_expect(full, S::kCopiedBytes);
      char* const x_tile = to + S::kBytesW;
      const int k = step * kSegment;
      constexpr int kBoxes = kAlongK ? 2 : S::kLines / 32;
#pragma unroll
      for (int box = 0; box < kBoxes; ++box) {
        const int x = (kAlongK ? k : first) + box * 32, y = kAlongK ? first : k;
        ptx::load_box(to + box * (S::kBytesW / kBoxes), &map_w, {x, y, batch_w.y, batch_w.x}, full);
      }
      // X was split by the launch before this one; W need not wait for that.
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
  // A shuffle tells the compiler that this is the same in all lanes: descriptors are then in uniform registers.
  const int warp_group = __shfl_sync(~0u, static_cast<int>(threadIdx.x / kWarpGroup), 0);
  const int first_step = S::kOwnLines ? 0 : warp_group;
  // This lane has this line of the block, and the one eight further.
  const int mine = (S::kOwnLines ? warp_group * 64 : 0) + thread / 32 * 16 + lane / 4;
  // Four lanes share two lines; the first of them writes the flags of their segments.
  unsigned char* const flags = w.flags + (matrix_w * work.steps + begin) * w.shape.lines_padded + first + mine;
  const bool there[2] = {lane % 4 == 0 && first + mine < lines, lane % 4 == 0 && first + mine + 8 < lines};
  const int padded = static_cast<int>(w.shape.lines_padded);
  float* const sums = reinterpret_cast<float*>(stages + S::kStages * S::kStageBytes);
  unsigned may_add_parity = 0;
  float acc[S::kRows / 2] = {};
  RingPosition<S::kStages> position;
  position.skip(first_step);
  for (int step = begin + first_step; step < end; step += S::kEvery) {
    ptx::mbarrier_wait(ring.full + position.stage, position.parity);
    const char* const stage = stages + position.stage * S::kStageBytes;
    const char* const x_high = stage + S::kBytesW;
    const char* const x_low = x_high + S::kBytesX;
    const float* const x_scale = reinterpret_cast<const float*>(x_low + S::kBytesX);
    const int present = min(kSegment, depth - step * kSegment);

    // Split: the first operands of four multiplications.
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
      // Multiply: high of A by low of B, then low of A by high of B, in one accumulator, high by high in another. The two
      // accumulators alternate, because a multiplication waits for the one before it in the same accumulator.
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
          ptx::mbarrier_wait(may_add + first_step, may_add_parity);
          may_add_parity ^= 1;
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
    if (lane == 0) ptx::mbarrier_arrive(ring.empty + position.stage);
    position.skip(S::kEvery);
    if constexpr (!S::kOwnLines) {
      if (step + 1 == end) break;  // the sums are complete, in this warp group's registers
#pragma unroll
      for (int i = 0; i < S::kRows / 2; ++i) sums[i * kWarpGroup + thread] = acc[i];
      __syncwarp();
      if (lane == 0) ptx::mbarrier_arrive(may_add + (first_step + 1) % S::kEvery);
    }
  }
  if (!S::kOwnLines && first_step != (end - 1 - begin) % S::kEvery) return;
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
  return encode(boxes, kMapType<float16>, kDepth<float16>, lines, map);
}

template <class S, bool kOfA, bool kAlongK>
cudaError_t launch_shape(const Call& call, const Boxes& boxes, const Operand& w, const Operand& x,
                         const Operand16& split_w, const Operand16& split_x, float* partials) {
  const Problem& p = call.problem;
  CUtensorMap map_w, map_x;
  cudaError_t error = encode(boxes, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 32, kAlongK ? S::kLines : kSegment, &map_w);
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
  const auto function = &kernel<S, kOfA, kAlongK>;
  return launch(function, call.step(-2), map_w, map_x, split_x, split_w, work, static_cast<int>(p.k),
                partials != nullptr ? partials : static_cast<float*>(call.c),
                partials != nullptr ? nullptr : static_cast<const float*>(call.bias));
}

// `of_a`: w is A.
inline cudaError_t run(const Call& call, bool of_a, const Operand& w, const Operand& x, const Operand16& split_w,
                       const Operand16& split_x, float* partials) {
  Boxes boxes = (of_a ? call.prepared.view_a : call.prepared.view_b).boxes;
  boxes.data = w.data;
  return with_shape<kShapeCount>(call, [&](auto index) {
    using S = Tiling<index()>;
    const auto function = of_a            ? boxes.along_k ? &launch_shape<S, true, true> : &launch_shape<S, true, false>
                          : boxes.along_k ? &launch_shape<S, false, true>
                                          : &launch_shape<S, false, false>;
    return function(call, boxes, w, x, split_w, split_x, partials);
  });
}

}  // namespace treduce::matmul::split_rows
