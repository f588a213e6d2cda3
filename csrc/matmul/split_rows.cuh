// split_fp16 for up to 128 rows or columns of C: the operand with the many lines, which is most of the memory (W), is split on its
// way from shared memory to registers, which then are the first operand of a multiplication. Its 64 rows are 64 lines of W, its
// columns the few lines of the other operand (X): the product itself, or transposed. One launch multiplies halves, the next one
// parts, where outputs are left to these.
#pragma once

#include "epilogue.cuh"
#include "split_operands.cuh"
#include "split_segment.cuh"
#include "split_tiles.cuh"

namespace treduce::matmul::split_rows {

using namespace hopper;
using split::Operand16;

// One of the shapes of shapes.h. kByParts: numbers are three parts, not two halves.
template <int kIndex, bool kByParts_>
struct Tiling {
  static constexpr bool kByParts = kByParts_;
  static constexpr Shape kShape = kByParts ? kPartsShapes[kIndex] : kShapes[kIndex];
  static constexpr int kPieces = kByParts ? kParts : 2;
  using Piece = std::conditional_t<kByParts, bfloat16, float16>;
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
  static constexpr int kScaleBytes = kByParts ? 0 : kRows * 4;
  static constexpr int kCopiedBytes = kBytesW + kPieces * kBytesX + kScaleBytes;
  static constexpr int kStageBytes = kShape.stage_bytes(kSegment, kPieces);
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
  split::Source source;  // W
};

// Codes of the lines of X and W that a block multiplies, in shared memory.
template <class S>
struct BlockCodes {
  unsigned char x[S::kRows], w[S::kLines];
};

// Starts a segment's multiplications. `pieces` of W are in registers, those of X lie at `x`, kBytesX apart. kOfA: W is A.
template <class S, bool kOfA>
TREDUCE_DEVICE void multiply_segment(float (&high)[S::kPart / 2], float (&rest)[S::kPart / 2],
                                     const uint32_t (&pieces)[S::kPieces][4][4], const char* x, int part) {
  using TileX = Tile<typename S::Piece, S::kRows, true>;
  using Multiply = ptx::WgmmaRegisters<typename S::Piece, S::kPart>;
  const auto multiply = [&](float (&to)[S::kPart / 2], int of_w, int of_x, int i, int accumulate) {
    Multiply::multiply(to, pieces[of_w][i], TileX::lone_descriptor(x + of_x * S::kBytesX, part, i), accumulate);
  };
  // Pairs of pieces (of A, of B) in the order in which `rest` adds them.
  constexpr int kPairs[][2] = {{0, 1}, {1, 0}}, kOfParts[][2] = {{1, 1}, {0, 2}, {2, 0}, {0, 1}, {1, 0}};
  constexpr int kProducts = S::kByParts ? 5 : 2;
  // Products of the largest pieces alternate with the first of the others: a multiplication waits for the one before it in the
  // same accumulator.
#pragma unroll
  for (int product = 0; product < kProducts; ++product) {
    const int of_a = S::kByParts ? kOfParts[product][0] : kPairs[product % 2][0];
    const int of_b = S::kByParts ? kOfParts[product][1] : kPairs[product % 2][1];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      multiply(rest, kOfA ? of_a : of_b, kOfA ? of_b : of_a, i, product + i > 0);
      if (product == 0) multiply(high, 0, 0, i, i > 0);
    }
  }
}

// kOfA: W is A; else the product is transposed.
template <class S, bool kOfA, bool kAlongK>
__global__ void __launch_bounds__(S::kThreads, S::kBlocks)
    kernel(TREDUCE_GRID_CONSTANT CUtensorMap map_w, TREDUCE_GRID_CONSTANT CUtensorMap map_x,
           TREDUCE_GRID_CONSTANT Operand16 x, TREDUCE_GRID_CONSTANT Operand16 w, TREDUCE_GRID_CONSTANT Work work,
           int depth, float* c, const float* bias) {
#ifdef TREDUCE_SM90A
  ptx::allow_launch_after();
  using TileX = Tile<typename S::Piece, S::kRows, true>;
  __shared__ Ring<S::kStages> ring;
  __shared__ uint64_t may_add[S::kEvery];  // the sums in shared memory are that warp group's
  [[maybe_unused]] __shared__ BlockCodes<S> codes;
  char* const stages = aligned_tiles(dynamic_shared<char>());
  const int first = blockIdx.x % work.tiles * S::kLines;
  const int batch = blockIdx.x / work.tiles % work.batches, group = blockIdx.x / work.tiles / work.batches;
  const int2 batches = {batch / work.inner_batches, batch % work.inner_batches};
  const int64_t matrix_w = work.w.of(batches.x, batches.y), matrix_x = work.x.of(batches.x, batches.y);
  const int64_t lines = kOfA ? work.m : work.n;
  const int x_lines = static_cast<int>(kOfA ? work.n : work.m);
  const int begin = group * kGroupSegments, end = min(work.steps, begin + kGroupSegments);
  Facts* const facts_w = w.line_facts + matrix_w * w.shape.lines_padded + first;
  Facts* const facts_x = x.line_facts + matrix_x * x.shape.lines_padded;

  if constexpr (S::kByParts) {
    // Launches before have found out which lines need this one: of most data, none.
    ptx::wait_for_launch_before();
    if (*w.codes == 0) return;
    for (int i = threadIdx.x; i < S::kLines; i += S::kThreads) {
      codes.w[i] = first + i < lines ? static_cast<unsigned char>(code_of(facts_w[i])) : 0;
    }
    for (int i = threadIdx.x; i < x_lines; i += S::kThreads)
      codes.x[i] = static_cast<unsigned char>(code_of(facts_x[i]));
    __syncthreads();
    uint32_t of_w = 0, of_x = 0;
    for (int i = threadIdx.x % 32; i < S::kLines; i += 32) of_w |= first + i < lines ? set_of(codes.w[i]) : 0;
    for (int i = threadIdx.x % 32; i < x_lines; i += 32) of_x |= set_of(codes.x[i]);
    of_w = __reduce_or_sync(~0u, of_w);
    of_x = __reduce_or_sync(~0u, of_x);
    if (!split::any_output(of_w, of_x, &by_parts)) return;  // all warps alike
  }
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
      // X was split by a launch before this one; W need not wait for that.
      if (step == begin) ptx::wait_for_launch_before();
#pragma unroll
      for (int piece = 0; piece < S::kPieces; ++piece) {
        TileX::load(x_tile + piece * S::kBytesX, &map_x, 0, k, {piece, static_cast<int>(matrix_x)}, full);
      }
      if constexpr (!S::kByParts) {
        const int64_t row = matrix_x * work.steps + step;
        ptx::load_bytes(x_tile + S::kPieces * S::kBytesX, x.scale + row * x.shape.lines_padded, S::kScaleBytes, full);
      }
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
  const bool exists[2] = {first + mine < lines, first + mine + 8 < lines};
  // The exponent of the unit of its group; of parts, of the whole line.
  int unit[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if constexpr (S::kByParts) {
      unit[half] = exists[half] ? -parts_exponent(facts_w[mine + half * 8]) : 0;
    } else {
      const uint32_t line = exists[half] ? first + mine + half * 8 : 0;
      unit[half] = work.source.unit(exists[half], work.source.line(static_cast<uint32_t>(matrix_w), line), begin);
    }
  }

  float* const sums = reinterpret_cast<float*>(stages + S::kStages * S::kStageBytes);
  unsigned may_add_parity = 0;
  // Of the lines, in the segments that this lane splits.
  [[maybe_unused]] unsigned kept = ~0u;  // flags, a byte a line
  [[maybe_unused]] split::PackedExponents exponents[2];
  float acc[S::kRows / 2] = {};
  RingPosition<S::kStages> position;
  position.skip(first_step);
  for (int step = begin + first_step; step < end; step += S::kEvery) {
    ptx::mbarrier_wait(ring.full + position.stage, position.parity);
    const char* const stage = stages + position.stage * S::kStageBytes;
    const char* const x_pieces = stage + S::kBytesW;
    const float* const x_scale = reinterpret_cast<const float*>(x_pieces + S::kPieces * S::kBytesX);

    // Split: the first operands of four multiplications.
    uint32_t pieces[S::kPieces][4][4];
    [[maybe_unused]] float scale[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float numbers[16];
      read_line<kAlongK, S::kLines>(stage, mine + half * 8, numbers);
      if constexpr (S::kByParts) {
        const float factor = split::power_of_two(-unit[half]);
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          uint32_t parts[kParts];
          split::split_parts(numbers[i * 2] * factor, numbers[i * 2 + 1] * factor, parts);
#pragma unroll
          for (int piece = 0; piece < kParts; ++piece) pieces[piece][i / 2][i % 2 * 2 + half] = parts[piece];
        }
      } else {
        const int present = min(kSegment, depth - step * kSegment);
        uint32_t h[8], l[8];
        int exponent;
        unsigned flags;
        exponents[half].add(split::split_segment<16, 4>(numbers, present, unit[half], h, l, exponent, flags));
        scale[half] = split::power_of_two(exponent - unit[half]);
        kept &= flags << half * 8 | ~(0xffu << half * 8);
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          pieces[0][i / 2][i % 2 * 2 + half] = h[i];
          pieces[1][i / 2][i % 2 * 2 + half] = l[i];
        }
      }
    }

#pragma unroll
    for (int part = 0; part < S::kRows; part += S::kPart) {
      float high[S::kPart / 2], rest[S::kPart / 2];
      ptx::wgmma_touch(high);
      ptx::wgmma_touch(rest);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int piece = 0; piece < S::kPieces; ++piece) ptx::wgmma_touch(pieces[piece][i]);
      }
      ptx::wgmma_fence();
      multiply_segment<S, kOfA>(high, rest, pieces, x_pieces, part);
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
      if constexpr (S::kByParts) {
#pragma unroll
        for (int i = 0; i < S::kPart / 2; ++i) split::add_parts(acc[part / 2 + i], high[i], rest[i]);
      } else {
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
  if constexpr (!S::kByParts) {
    // Where some line does not suit pairs, the next launches look closer.
    ptx::wait_for_launch_before();
    bool suits = true;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (lane % 4 != 0 || !exists[half] || begin + first_step >= end) continue;  // four lanes share two lines
      const unsigned flags = kept >> half * 8 & 0xff;
      suits = suits && suits_pairs(flags);
      split::add_facts(facts_w + mine + half * 8, exponents[half].facts(flags));
    }
    // The blocks of the first lines of W add what is known of X.
    if (first == 0) {
      constexpr int kShares = S::kWarpGroups * kWarpGroup / S::kRows;
      const int line = threadIdx.x % S::kRows, share = threadIdx.x / S::kRows;
      if (line < x_lines && share < kShares) {
        Facts known = kNoFacts;
        for (int s = begin + share; s < end; s += kShares) {
          const int64_t at = (matrix_x * work.steps + s) * x.shape.lines_padded + line;
          known = join(known, facts_of(x.flags[at], x.most[at], x.least[at]));
        }
        suits = suits && suits_pairs(known);
        split::add_facts(facts_x + line, known);
      }
    }
    if (__any_sync(~0u, !suits) && lane == 0) {
      atomicOr(w.codes, ~0u);
      atomicOr(x.codes, ~0u);
    }
  }
  if (!S::kOwnLines && first_step != (end - 1 - begin) % S::kEvery) return;

  const float* const x_units = x.unit + (matrix_x * x.shape.groups() + group) * x.shape.lines_padded;
#pragma unroll
  for (int i = 0; i < S::kRows / 2; ++i) {
    const int row = i / 4 * 8 + lane % 4 * 2 + i % 2;
    const float unit_w = split::power_of_two(unit[i / 2 % 2]), unit_x = row < x_lines ? x_units[row] : 1.0f;
    acc[i] = split::from_units(acc[i], unit_w, unit_x);
  }
  const int line = first + mine - thread / 32 * 16 - lane / 4;  // the first of this warp group
  float* const to = c + group * work.outputs + batch * work.m * work.n;
  if constexpr (S::kByParts) {
#pragma unroll
    for (int i = 0; i < S::kRows / 2; ++i) {
      const int half = i / 2 % 2, row = i / 4 * 8 + lane % 4 * 2 + i % 2;
      const int64_t of_w = first + mine + half * 8, m = kOfA ? of_w : row, n = kOfA ? row : of_w;
      if (!exists[half] || row >= x_lines) continue;
      if (!by_parts(arithmetic_of(codes.w[mine + half * 8], codes.x[row]))) continue;
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
  CUtensorMap map_w, map_x;
  cudaError_t error = encode(boxes, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 32, kAlongK ? S::kLines : kSegment, &map_w);
  if (error != cudaSuccess) return error;
  error =
      S::kByParts ? split::encode_parts(split_x, S::kRows, &map_x) : split::encode_halves(split_x, S::kRows, &map_x);
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
  return launch(function, call.step(S::kByParts ? 3 : 1), map_w, map_x, split_x, split_w, work, static_cast<int>(p.k),
                partials != nullptr ? partials : static_cast<float*>(call.c),
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
  cudaError_t error = with_shape<kShapeCount>(call, [&](auto index) { return run_tiling(Tiling<index(), false>{}); });
  if (error != cudaSuccess) return error;
  const auto task = [&](const Operand& o, const Operand16& own, const Operand16& other, const SplitRegions& regions) {
    return split::IntoParts{split::task_of(o, regions.splitting, own, {0, call.prepared.groups}), other.codes};
  };
  const SplitRegions &regions_w = of_a ? call.prepared.split_a : call.prepared.split_b,
                     &regions_x = of_a ? call.prepared.split_b : call.prepared.split_a;
  error = launch(&split::split_into_parts, call.step(2), task(w, split_w, split_x, regions_w),
                 task(x, split_x, split_w, regions_x));
  if (error != cudaSuccess) return error;
  return with_shape(std::make_integer_sequence<int, kPartsShapeCount>{}, call.prepared.parts_shape,
                    [&](auto index) { return run_tiling(Tiling<index(), true>{}); });
}

}  // namespace treduce::matmul::split_rows
