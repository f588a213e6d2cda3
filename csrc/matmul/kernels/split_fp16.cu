// Idea: float32 on tensor cores. Each operand becomes two float16 numbers, high and low, with a scale for every 64 steps of
// k (see split.h); three products make up one of float32: high high, high low and low high. What the tensor core sums over
// 64 steps of k is added in float32 registers, because the tensor core truncates instead of rounding. Most come in the unit of their
// group, and need no scale.
//
// After:   persistent; a stage holds both halves of both tiles, and two accumulators: one for high high, one for the rest.
// Mapping: as persistent. Each 2048 steps of k (a group) are summed apart and then added to what came before, so that
//          where tiles are few, their groups are the work of several blocks, and the additions are the same.
// Bound:   the tensor cores, three products for one. Splitting reads and writes both operands once more.
// Note:    outputs of lines whose numbers spread too far for pairs are computed by parts (split_bf16), what is infinite or NaN on
//          the plain cores, with the same segments and groups. That is decided a line of A and a line of B at a time, so a row
//          of C does not depend on the others. Warps without other work read a tile ahead what is to be done.
// Next:    split_direct has one launch, for products so small that several take longer than the work.
// Source:  H. Ootomo, R. Yokota, "Recovering single precision accuracy from Tensor Cores while surpassing the FP32
//          theoretical peak performance": the low half scaled by 2^11, sums outside the tensor core.
#include "../epilogue.cuh"
#include "../hopper.cuh"
#include "../split/split_as_read.h"
#include "../split/split_few.cuh"
#include "../split/split_finish.cuh"
#include "../split/split_parts.cuh"
#include "../split/split_rest.cuh"
#include "../split/split_tiles.cuh"
#include "../split/split_whole.cuh"

namespace treduce::matmul::split_fp16 {

using namespace hopper;
using split::LineFacts;
using split::Operand16;
using split::Scales;
using split::SegmentFacts;
using split::Work;

// One of the shapes of shapes.h. Two consumers share a tile, its rows if it has 128, else its columns; a small one has one consumer.
template <int kIndex>
struct Shape {
  static constexpr TileShape kShape = kShapes[kIndex];
  static constexpr int kTileM = kShape.tile_m, kTileN = kShape.tile_n, kStages = kShape.stages;
  static constexpr int kCluster = kShape.cluster;
  static constexpr int kConsumers = kShape.threads / kWarpGroup - 1;
  static constexpr bool kByRows = kTileM == 128;
  static constexpr int kColumns = kByRows ? kTileN : kTileN / kConsumers;  // of a consumer, whose rows are 64
  static constexpr int kThreads = kShape.threads;
  static constexpr int kBytesA = kTileM * kRowBytes, kBytesB = kTileN * kRowBytes;  // one half
  static constexpr int kScaleBytesA = kTileM * 4, kScaleBytesB = kTileN * 4;
  static constexpr int kUnitBytes = kScaleBytesA + kScaleBytesB;  // come with a group's last segment
  static constexpr int kCopiedBytes = 2 * (kBytesA + kBytesB) + kScaleBytesA + kScaleBytesB;
  // The scales fill one more alignment, and so do the units.
  static constexpr int kStageBytes = kShape.stage_bytes;
  static_assert(kStageBytes == 2 * (kBytesA + kBytesB) + 2 * kTileAlignment && kUnitBytes <= kTileAlignment);
  static_assert(kDepth<float16> == kSegment && kThreads == (kConsumers + 1) * kWarpGroup);
  // Whether a block computes what pairs leave of its tiles, see split_rest.cuh. All of its warps then need about as many registers; that
  // setmaxnreg stands there all the same tells the compiler that who multiply are converged.
  static constexpr bool kComputesRest = computes_rest(kIndex);
  static constexpr int kMultiplying = !kComputesRest ? 232 : kConsumers == 1 ? 240 : 168;
  static constexpr int kCopying = !kComputesRest ? 40 : kConsumers == 1 ? 224 : 160;
  // Whether a consumer starts the next segment before it adds the sums of this one. In wider tiles registers do not suffice, or the other
  // consumer keeps the tensor cores busy all the same.
  static constexpr bool kAhead = kColumns <= 80;

  // The first row and column of a consumer in the tile.
  TREDUCE_DEVICE static int first_row(int consumer) { return kByRows ? consumer * 64 : 0; }
  TREDUCE_DEVICE static int first_column(int consumer) { return kByRows ? 0 : consumer * kColumns; }
};

// What is known of an operand's segments, and where it goes what is found out about its lines.
struct OperandFacts {
  SegmentFacts segments;
  LineFacts lines;
  uint32_t* codes;
};

template <class S>
__global__ void __launch_bounds__(S::kThreads, 1)
    kernel(TREDUCE_GRID_CONSTANT CUtensorMap map_a, TREDUCE_GRID_CONSTANT CUtensorMap map_b, Scales scales_a,
           Scales scales_b, TREDUCE_GRID_CONSTANT Work work, TREDUCE_GRID_CONSTANT OperandFacts facts_a,
           TREDUCE_GRID_CONSTANT OperandFacts facts_b, TREDUCE_GRID_CONSTANT split_few::Product few,
           TREDUCE_GRID_CONSTANT split_rest::Work rest, TREDUCE_GRID_CONSTANT CUtensorMap parts_a,
           TREDUCE_GRID_CONSTANT CUtensorMap parts_b, float* c, const float* bias) {
#ifdef TREDUCE_SM90A
  using TileA = Tile<float16, S::kTileM, true>;
  using TileB = Tile<float16, S::kTileN, true>;
  using PartB = Tile<float16, S::kTileN / S::kCluster, true>;  // what one block of the cluster fetches for all
  using Multiply = ptx::Wgmma<float16, S::kColumns, false, false>;
  using Verdicts = split::Verdicts<S::kTileM * S::kCluster, S::kTileN>;
  SHARED(Ring<S::kStages>, ring);
  SHARED(Verdicts, verdicts);
  SHARED(split_rest::Left, left);
  SHARED(uint32_t, told);  // tiles that have outputs by parts, as far as was known before the last sums
  SHARED(split_few::Counts<Verdicts::kScouts / 32>, counts);
  char* const stages = aligned_tiles(dynamic_shared<char>());
  ptx::allow_launch_after();
  const Grid& grid = work.grid;
  // Shuffles tell the compiler what is the same in all lanes: descriptors are then computed in uniform registers.
  const int warp_group = __shfl_sync(~0u, static_cast<int>(threadIdx.x / kWarpGroup), 0);
  const int rank = S::kCluster > 1 ? cluster::rank() : 0;
  // This block's `i`th task.
  const auto task_index = [](int i) { return int64_t(i) * (gridDim.x / S::kCluster) + blockIdx.x / S::kCluster; };

  if (threadIdx.x == 0) {
    verdicts.init(1 + S::kConsumers * 4);
    told = 0;
  }
  left.begin();
  begin<S::kCluster, S::kConsumers>(ring, map_a, map_b);

  // Consumers, too: threads that wait here take no issue slots from the launch before. The others first find their task.
  if (warp_group > 0) ptx::wait_for_launch_before();

  // ---- producer: both halves of both tiles, the scales of the segment, with a group's last segment its units ----
  if (warp_group == 0) {
    ptx::release_registers<S::kCopying>();
    if (threadIdx.x < 32 && ptx::elect_one()) {
      RingPosition<S::kStages> position;
      for (int n = 0; task_index(n) < work.tasks; ++n) {
        const auto task = work.task(task_index(n));
        const auto place = grid.place(task.tile, S::kTileM * S::kCluster, S::kTileN);
        const int row = place.row + rank * S::kTileM, column = place.column;
        const int matrix_a = scales_a.matrix(place.batch), matrix_b = scales_b.matrix(place.batch);
        // A block of the cluster may lie past the last row: it copies the scales of row 0, and its outputs are not stored.
        const int scale_row = row < scales_a.lines_padded ? row : 0;
        const float* scale_a = scales_a.of(matrix_a, task.begin, scale_row);
        const float* scale_b = scales_b.of(matrix_b, task.begin, column);
        if (n == 0) ptx::wait_for_launch_before();
        // Of a tile without outputs of this kernel as many steps are copied as the ring holds: they are under way before that
        // is known.
        for (int step = task.begin; step < task.end; ++step, position.next()) {
          if (step == task.begin + S::kStages && verdicts.wait(n) == split::kNone) break;
          ptx::mbarrier_wait(ring.empty + position.stage, position.parity ^ 1);
          uint64_t* const full = ring.full + position.stage;
          char* const a = stages + position.stage * S::kStageBytes;
          char* const b = a + 2 * S::kBytesA;
          char* const scales = b + 2 * S::kBytesB;
          const bool last = work.ends_group(step);
          ptx::mbarrier_arrive_expect(full, S::kCopiedBytes + (last ? S::kUnitBytes : 0));
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            TileA::load(a + half * S::kBytesA, &map_a, row, step * kSegment, {half, matrix_a}, full);
            PartB::template load<S::kCluster>(b + half * S::kBytesB + rank * PartB::kBytes, &map_b,
                                              column + rank * (S::kTileN / S::kCluster), step * kSegment,
                                              {half, matrix_b}, full);
          }
          ptx::load_bytes(scales, scale_a, S::kScaleBytesA, full);
          ptx::load_bytes(scales + S::kScaleBytesA, scale_b, S::kScaleBytesB, full);
          scale_a += scales_a.lines_padded;
          scale_b += scales_b.lines_padded;
          if (last) {
            char* const units = scales + kTileAlignment;
            const int group_of_k = step / kGroupSegments;
            ptx::load_bytes(units, scales_a.unit(matrix_a, group_of_k, scale_row), S::kScaleBytesA, full);
            ptx::load_bytes(units + S::kScaleBytesA, scales_b.unit(matrix_b, group_of_k, column), S::kScaleBytesB,
                            full);
          }
        }
        verdicts.wait(n);
        verdicts.done(n);
      }
    } else if (threadIdx.x >= 32) {
      // Scouts.
      for (int n = 0; task_index(n) < work.tasks; ++n) {
        const auto place = grid.place(work.task(task_index(n)).tile, S::kTileM * S::kCluster, S::kTileN);
        const uint32_t* const sets = verdicts.sets[n % 2];
        const auto any = [&](auto with) { return split::any_output(sets[0], sets[1], with); };
        if (n == 0) ptx::wait_for_launch_before();
        verdicts.begin(n);
        verdicts.gather_flags(n, facts_a.segments, facts_b.segments, place.row, place.column, place.batch);
        verdicts.gather(n, place.row, place.column, grid.m, grid.n,
                        [&](bool, int64_t, int i) { return code_of(facts_of(verdicts.gathered(n, i), 255, 255)); });
        verdicts.tell(n, any(&codes_by_pairs) ? split::kSome : split::kNone);
        // Nearly always all outputs are the pairs'. If not, more has to be known of the lines, and to be left to other launches:
        // who multiplies need not wait for that.
        if (any([](unsigned a) { return ~codes_with(a, Arithmetic::pairs); })) {
          uint32_t most = 0;  // of columns
          verdicts.gather_facts(n, facts_a.segments, facts_b.segments, place, grid.m, grid.n,
                                [&](bool of_a, int64_t line, Facts facts) {
                                  *(of_a ? facts_a : facts_b).lines.at(line, place.batch) = facts;
                                  if (!of_a) most = max(most, static_cast<uint32_t>(largest_exponent(facts)));
                                });
          if (S::kComputesRest && rest.wanted) {
            const bool parts = any(&codes_by_parts),
                       last = any([](unsigned a) { return codes_with(a, Arithmetic::plain); }),
                       checked = any([](unsigned a) { return codes_with(a, Arithmetic::checked_pairs); });
            if (checked) left.tell_most(n, most);
            if (Verdicts::scout() == 0) {
              left.checked |= uint32_t(checked) << n;
              if (parts) split_rest::tell_left(rest, work.task(task_index(n)).tile);
              left.by_parts |= uint32_t(parts) << n;
              left.at_last |= uint32_t(last) << n;
            }
          } else if (threadIdx.x % 32 == 0) {
            atomicOr(facts_a.codes, sets[0]);
            atomicOr(facts_b.codes, sets[1]);
          }
        }
      }
      // Of the last block to get here they know all of all lines.
      if (few.most > 0) {
        __threadfence();
        Verdicts::sync();
        if (Verdicts::scout() == 0) {
          counts.of_warp[0][0][0] = atomicAdd(facts_a.codes + kWordOfDone - kWordOfCodes, 1u);
        }
        Verdicts::sync();
        const bool last = counts.of_warp[0][0][0] + 1 == gridDim.x;
        Verdicts::sync();
        if (last && __ldcg(facts_a.codes) != 0) split_few::list(few, counts, Verdicts::scout() / 32, &Verdicts::sync);
      }
    }
  } else {
    // ---- consumers: multiply a segment, add its sums to the group's, and the group's to C ----
    ptx::take_registers<S::kMultiplying>();
    const int consumer = warp_group - 1;
    // The two consumers multiply alternately: while one adds to its accumulators, the tensor cores are the other's. Named barrier
    // kMayMultiply + consumer lets it.
    constexpr int kMayMultiply = 1;
    if (S::kConsumers == 2 && consumer == 1) named_arrive<2 * kWarpGroup>(kMayMultiply);
    const int first_row = S::first_row(consumer), first_column = S::first_column(consumer);
    RingPosition<S::kStages> position;
    // Kept, for each segment would compute them anew. Of descriptors the low words, of which those of A and B differ by constants.
    const uint32_t full = ptx::kept_shared_address(ring.full), empty = ptx::kept_shared_address(ring.empty);
    const uint32_t first_a = ptx::kept(TileA::low_word(stages));
    const auto multiply = [&](float (&to)[S::kColumns / 2], uint32_t a, uint32_t b, int step, bool add) {
      Multiply::multiply(to, TileA::descriptor(a, first_row, step), TileB::descriptor(b, first_column, step), add);
    };
    const auto scales_of = [&](const RingPosition<S::kStages>& at) {
      return stages + at.stage * S::kStageBytes + 2 * (S::kBytesA + S::kBytesB);
    };
    const auto line_scales = [&](const char* scales) {
      return split::LineScales<S::kColumns>(scales, first_row, scales + S::kScaleBytesA, first_column);
    };
    const auto look = [&] { return S::kComputesRest && rest.wanted ? split_rest::told_so_far(rest) : 0; };
    for (int n = 0; task_index(n) < work.tasks; ++n) {
      const auto task = work.task(task_index(n));
      const auto place = grid.place(task.tile, S::kTileM * S::kCluster, S::kTileN);
      const int row = place.row + rank * S::kTileM + first_row, column = place.column + first_column;
      float* const matrix = c + place.index * grid.m * grid.n;
      // Stores a group's sums: to the group's own place, or added to those of the groups before it. Meanwhile the tensor cores
      // multiply the next group's first segment.
      const auto flush = [&](float (&acc)[S::kColumns / 2], int group_of_k, const float* bias, auto look) {
        flush_registers<S::kColumns>(acc, matrix + group_of_k * work.outputs, row, column, grid.m, grid.n,
                                     work.outputs == 0 && group_of_k > 0, bias, look);
      };
      const auto has_none = [&] {
        const bool none = verdicts.wait(n) == split::kNone;
        __syncwarp();
        if (threadIdx.x % 32 == 0) verdicts.done(n);
        return __shfl_sync(~0u, static_cast<int>(none), 0) != 0;
      };
      const int copied = min(task.end - task.begin, S::kStages);
      if (n > 0 && has_none()) {
        for (int i = 0; i < copied; ++i) let_pass<S::kCluster>(full, empty, position);
        continue;
      }
      bool none = false;
      float acc[S::kColumns / 2] = {}, high[S::kColumns / 2], rest[S::kColumns / 2];
      const auto touch = [&] {
        ptx::wgmma_touch(high);
        ptx::wgmma_touch(rest);
      };
      RingPosition<S::kStages> adding = position;
      // Loaded before the multiplications: while tensor cores read shared memory each load takes hundreds of cycles.
      typename split::LineScales<S::kColumns>::Held held;
      // Starts the multiplications of the next segment.
      const auto start = [&] {
        const uint32_t a_high = __shfl_sync(~0u, first_a + position.stage * (S::kStageBytes >> 4), 0);
        ptx::mbarrier_wait(full + position.stage * 8, position.parity);
        held = line_scales(scales_of(position)).held();
        const uint32_t a_low = a_high + (S::kBytesA >> 4);
        const uint32_t b_high = a_low + (S::kBytesA >> 4), b_low = b_high + (S::kBytesB >> 4);
        if constexpr (S::kConsumers == 2) named_barrier<2 * kWarpGroup>(kMayMultiply + consumer);
        touch();
        ptx::wgmma_fence();
        // A multiplication waits for the one before it in the same accumulator.
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          multiply(rest, a_high, b_low, i, i > 0);
          multiply(high, a_high, b_high, i, i > 0);
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) multiply(rest, a_low, b_high, i, true);
        ptx::wgmma_commit();
        if constexpr (S::kConsumers == 2) named_arrive<2 * kWarpGroup>(kMayMultiply + 1 - consumer);
        touch();
        position.next();
      };
      // Adds the sums of the segment that was started last; calls start_next() once they lie in registers of their own.
      const auto add = [&](int step, auto start_next) {
        if (step % kGroupSegments == 0 && step > task.begin) flush(acc, step / kGroupSegments - 1, nullptr, NoLook{});
        const char* const scales = scales_of(adding);
        const bool in_units = held.are_one();
        ptx::wgmma_wait<0>();
        touch();
        float sums[S::kColumns / 2];
#pragma unroll
        for (int i = 0; i < S::kColumns / 2; ++i) sums[i] = split::segment_sum(high[i], rest[i]);
        start_next();
        if (in_units) {
#pragma unroll
          for (int i = 0; i < S::kColumns / 2; ++i) acc[i] += sums[i];
        } else {
          line_scales(scales).for_each([&](int i, float row_scale, float column_scale) {
            split::add_sum(acc[i], sums[i], row_scale * column_scale);
          });
        }
        if (work.ends_group(step)) {
          line_scales(scales + kTileAlignment).for_each([&](int i, float row_unit, float column_unit) {
            acc[i] = split::from_units(acc[i], row_unit, column_unit);
          });
        }
        __syncwarp();  // every lane has read its scales
        release<S::kCluster>(empty + adding.stage * 8);
        adding.next();
      };
      // Multiplies and adds the segments up to `end`.
      int step = task.begin;
      const auto advance_to = [&](int end) {
        if constexpr (S::kAhead) {
          start();
#pragma unroll 1
          for (; step + 1 < end; ++step) add(step, start);
          add(step++, [] {});
        } else {
#pragma unroll 1
          for (; step < end; ++step) {
            start();
            add(step, [] {});
          }
        }
      };
      // The first verdict comes later than the numbers: what is copied without it is multiplied without it.
      for (bool asks = n == 0;; asks = false) {
        advance_to(asks ? task.begin + copied : task.end);
        if (asks) none = has_none();
        if (none || step == task.end) break;
      }
      const uint32_t told_now = look();  // arrives while sums are stored
      if (!none) {
        const int last = (task.end - 1) / kGroupSegments;
        if constexpr (S::kComputesRest) {
          uint32_t least[2] = {~0u, ~0u};
          flush(acc, last, bias, [&](int i, float output) { least[i] = min(least[i], __float_as_uint(output) << 1); });
          left.tell_least(n, first_row + threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4, least);
        } else {
          flush(acc, last, bias, NoLook{});
        }
      }
      if (S::kComputesRest && threadIdx.x == kWarpGroup) told = told_now;
    }
    if (S::kConsumers == 2 && consumer == 0) named_barrier<2 * kWarpGroup>(kMayMultiply);
  }
  if constexpr (S::kCluster > 1) cluster::sync();
  if constexpr (S::kComputesRest) {
    if (!rest.wanted) return;
    __syncwarp();
    __syncthreads();  // results were stored, and scouts know what is left: mostly nothing
    split_rest::compute_left<S>(
        rest, parts_a, parts_b, left, told, stages, facts_a.lines, facts_b.lines, warp_group,
        [&](int n) { return work.task(task_index(n)).tile; },
        [&](int64_t tile) {
          const auto place = grid.place(tile, S::kTileM, S::kTileN);
          return split_rest::Place{place, scales_a.matrix(place.batch), scales_b.matrix(place.batch)};
        });
  }
#endif
}

template <class S>
cudaError_t launch_shape(const Call& call, const Operand& a, const Operand& b, const Operand16& split_a,
                         const Operand16& split_b, float* partials) {
  const Problem& p = call.problem;
  CUtensorMap map_a, map_b;
  cudaError_t error = split::encode_halves(split_a, S::kTileM, &map_a);
  if (error == cudaSuccess) error = split::encode_halves(split_b, S::kTileN / S::kCluster, &map_b);
  if (error != cudaSuccess) return error;
  const auto function = &kernel<S>;
  const Halves& shape = split_a.shape;
  const Work work =
      split::work_of(p, S::kTileM * S::kCluster, S::kTileN, shape.segments(), {0, shape.groups()}, partials != nullptr);
  const auto facts = [](const Operand& o, const Operand16& split) {
    return OperandFacts{split::segments_of(o, split), split::lines_of(o, split), split.codes};
  };
  CUtensorMap parts_a = {}, parts_b = {};
  if (S::kComputesRest && call.prepared.rest_in_one) {
    error = split::encode_parts(split_a, S::kTileM, &parts_a);
    if (error == cudaSuccess) error = split::encode_parts(split_b, S::kTileN, &parts_b);
    if (error != cudaSuccess) return error;
  }
  const auto results = split::results_of(call, partials);
  return launch(function, call.step(1), map_a, map_b, split::scales_of(a, split_a), split::scales_of(b, split_b), work,
                facts(a, split_a), facts(b, split_b), split_few::product_of(call, a, b, split_a, split_b),
                split_rest::work_of(call, a, b, split_a, split_b), parts_a, parts_b, results.c, results.bias);
}

cudaError_t launch_one(const Call& call) {
  const Decisions& prepared = call.prepared;
  if (call.launch_count == 0) return clear(call);
  const Operand a = operand_a(call.problem, call.a, 4), b = operand_b(call.problem, call.b, 4);
  const SplitRegions &regions_a = prepared.split_a, &regions_b = prepared.split_b;
  const Operand16 split_a = split::place(call, regions_a), split_b = split::place(call, regions_b);
  float* const partials = prepared.apart && !prepared.segment_sums ? call.region<float>(prepared.partials) : nullptr;
  cudaError_t error;
  if (prepared.few) {
    error = split_as_read::run(call, a, b, split_a, split_b, partials);
    if (prepared.small) return error;
  } else {
    const PartsRange all{0, prepared.groups};
    error = launch(&split::split_into_halves, call.step(0),
                   split::IntoHalves{split::task_of(a, regions_a.splitting, split_a, all), split_a.shape.lines_padded},
                   split::IntoHalves{split::task_of(b, regions_b.splitting, split_b, all), split_b.shape.lines_padded},
                   split_a.runs, static_cast<int>(prepared.left_words));
    if (error != cudaSuccess) return error;
    error = with_shape<kShapeCount>(
        call, [&](auto index) { return launch_shape<Shape<index()>>(call, a, b, split_a, split_b, partials); });
    if (prepared.rest_in_one) return error;
    const bool ordered = regions_a.ordered;
    if (error == cudaSuccess && ordered) {
      error = launch(&split::order_lines, call.step(2), split_a, split_b,
                     split_few::product_of(call, a, b, split_a, split_b));
    }
    if (error == cudaSuccess) error = split_bf16::run(call, ordered ? 3 : 2, a, b, split_a, split_b, partials);
  }
  if (error != cudaSuccess) return error;
  return split::run_finish(call, a, b, split_a, split_b, partials);
}

const Rung<launch_one> rung("split_fp16");

}  // namespace treduce::matmul::split_fp16
