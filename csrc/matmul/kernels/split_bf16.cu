// Idea: float32 on tensor cores, whatever the numbers. Each number is the sum of three bfloat16 parts of 8 bits, so nothing is
// lost, and bfloat16 has float32's exponents: numbers of a line may lie far apart, as in a row of softmax. Six products of
// parts make up one of float32; the three smallest are below its last bit.
//
// After:   persistent; a stage holds three parts of both tiles, and there are two accumulators: one for the products of the
//          largest parts, one for the rest. The sums of 64 steps of k are added in float32 registers.
// Mapping: as persistent. Where split_fp16 left outputs to this kernel, warps without other work read which, a tile ahead.
// Bound:   the tensor cores, six products for one. Splitting writes 6 bytes a number.
// Note:    a line is first multiplied by a power of two, so that its numbers have room on both sides. Outputs that are next to nothing
//          beside its largest number, infinities and NaN are computed on the plain cores, line by line (see split.h).
// Next:    split_fp16 needs three products for most data.
// Source:  G. Henry, P. T. P. Tang, A. Heinecke, "Leveraging the bfloat16 Artificial Intelligence Datatype For Higher-Precision
//          Computations": three parts, six products.
#include "../epilogue.cuh"
#include "../hopper.cuh"
#include "../split/split_few.cuh"
#include "../split/split_finish.cuh"
#include "../split/split_group.cuh"
#include "../split/split_parts.cuh"
#include "../split/split_tiles.cuh"
#include "../split/split_whole.cuh"

namespace treduce::matmul::split_bf16 {

using namespace hopper;
using split::LineFacts;
using split::Operand16;
using split::Scales;
using split::Work;

// One of the shapes of shapes.h.
template <int kIndex>
struct Shape {
  static constexpr TileShape kShape = kShapes[kIndex];
  static constexpr int kTileM = kShape.tile_m, kTileN = kShape.tile_n, kStages = kShape.stages;
  static constexpr int kCluster = kShape.cluster;
  static constexpr int kThreads = kShape.threads, kConsumers = kThreads / kWarpGroup - 1;  // of 64 rows
  static constexpr int kBytesA = kTileM * kRowBytes, kBytesB = kTileN * kRowBytes;         // one part
  static constexpr int kScaleBytesA = kTileM * 4, kScaleBytesB = kTileN * 4;               // of units: see LineScales
  static constexpr int kStageBytes = kShape.stage_bytes;
  static_assert(kStageBytes == kParts * (kBytesA + kBytesB) + kTileAlignment);
  static_assert(kConsumers == kTileM / 64 && kDepth<bfloat16> == kSegment);
  // A lone consumer has all that it needs; that setmaxnreg stands there all the same tells the compiler that it is converged.
  static constexpr int kMultiplying = kConsumers == 2 ? 232 : 240, kCopying = kConsumers == 2 ? 40 : 224;
  // Whether a consumer starts the next segment before it adds the sums of this one. In wider tiles registers do not suffice.
  static constexpr bool kAhead = kTileN <= 64;
};

// Where the lines of a launch's tiles lie in the operands: null where they are in order.
struct Order {
  const uint32_t *line_at, *reordered;
  TREDUCE_DEVICE const uint32_t* read() const { return line_at != nullptr && *reordered != 0 ? line_at : nullptr; }
};
TREDUCE_DEVICE int64_t line_of(const uint32_t* line_at, int64_t place) {
  return line_at == nullptr ? place : int64_t(__ldg(line_at + place));
}

// Adds the sums of some of a tile's outputs to C, or stores them; and clears them. wanted(row, column) of the tile; line_of: see
// there.
template <int kN, class Wanted>
TREDUCE_DEVICE void flush_some(float (&acc)[kN / 2], float* c, int64_t row, int64_t column, int64_t m, int64_t n,
                               bool add, const float* bias, const uint32_t* rows, const uint32_t* columns,
                               Wanted wanted) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
  int64_t row_at[2] = {};
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int64_t place = row + warp * 16 + lane / 4 + half * 8;
    if (place < m) row_at[half] = line_of(rows, place);
  }
#pragma unroll
  for (int i = 0; i < kN / 2; ++i) {
    const int down = warp * 16 + lane / 4 + i / 2 % 2 * 8, across = i / 4 * 8 + lane % 4 * 2 + i % 2;
    if (row + down < m && column + across < n && wanted(down, across)) {
      const int64_t j = line_of(columns, column + across);
      float* const to = c + row_at[i / 2 % 2] * n + j;
      const float sum = add ? *to + acc[i] : acc[i];
      *to = bias == nullptr ? sum : canonical(sum + __ldg(bias + j));
    }
    acc[i] = 0;
  }
}

// codes_a: null where every output is computed.
template <class S>
__global__ void __launch_bounds__(S::kThreads, 1)
    kernel(TREDUCE_GRID_CONSTANT CUtensorMap map_a, TREDUCE_GRID_CONSTANT CUtensorMap map_b, Scales units_a,
           Scales units_b, TREDUCE_GRID_CONSTANT Work work, TREDUCE_GRID_CONSTANT LineFacts lines_a,
           TREDUCE_GRID_CONSTANT LineFacts lines_b, const uint32_t* codes_a, const uint32_t* codes_b,
           TREDUCE_GRID_CONSTANT Order order_a, TREDUCE_GRID_CONSTANT Order order_b,
           TREDUCE_GRID_CONSTANT split_few::Product few, float* c, const float* bias) {
#ifdef TREDUCE_SM90A
  using TileA = Tile<bfloat16, S::kTileM, true>;
  using TileB = Tile<bfloat16, S::kTileN, true>;
  using PartB = Tile<bfloat16, S::kTileN / S::kCluster, true>;  // what one block of the cluster fetches for all
  using Multiply = ptx::Wgmma<bfloat16, S::kTileN, false, false>;
  using Verdicts = split::Verdicts<S::kTileM * S::kCluster, S::kTileN>;
  SHARED(Ring<S::kStages>, ring);
  SHARED(Verdicts, verdicts);
  char* const stages = aligned_tiles(dynamic_shared<char>());
  ptx::allow_launch_after();
  const Grid& grid = work.grid;
  const int warp_group = threadIdx.x / kWarpGroup;
  const int rank = S::kCluster > 1 ? cluster::rank() : 0;
  const bool all = codes_a == nullptr;
  // This block's `i`th task. Of a cluster its number is read each time: kept, it would take a register of those who multiply.
  const auto task_index = [](int i) {
    const unsigned block = S::kCluster > 1 ? ptx::block_index() : blockIdx.x;
    return int64_t(i) * (gridDim.x / S::kCluster) + block / S::kCluster;
  };

  ptx::wait_for_launch_before();
  if (!all) {
    // All blocks alike.
    if (!split::any_output(*codes_a, *codes_b, &codes_by_parts)) return;
    if (few.are_listed()) {
      if (work.range.first_group == 0) split_few::compute(few, work.outputs, c, bias);
      return;
    }
  }

  if (threadIdx.x == 0) verdicts.init(1 + S::kConsumers * 4);
  begin<S::kCluster, S::kConsumers>(ring, map_a, map_b);

  // ---- producer: the parts of both tiles, and with a group's last segment its units ----
  if (warp_group == 0) {
    ptx::release_registers<S::kCopying>();
    if (threadIdx.x < 32 && ptx::elect_one()) {
      RingPosition<S::kStages> position;
      for (int n = 0; task_index(n) < work.tasks; ++n) {
        if (!all && n > 0 && verdicts.wait(n) == split::kNone) {
          verdicts.done(n);
          continue;
        }
        const auto task = work.task(task_index(n));
        const auto place = grid.place(task.tile, S::kTileM * S::kCluster, S::kTileN);
        const int row = place.row + rank * S::kTileM, column = place.column;
        const int matrix_a = units_a.matrix(place.batch), matrix_b = units_b.matrix(place.batch);
        // A block of the cluster may lie past the last row: it copies the units of row 0, and its outputs are not stored.
        const int unit_row = row < units_a.lines_padded ? row : 0;
        // Of the first tile as many steps as the ring holds are under way before it is known whether it has outputs of this kernel.
        for (int step = task.begin; step < task.end; ++step, position.next()) {
          if (!all && n == 0 && step == task.begin + S::kStages && verdicts.wait(0) == split::kNone) break;
          ptx::mbarrier_wait(ring.empty + position.stage, position.parity ^ 1);
          uint64_t* const full = ring.full + position.stage;
          char* const a = stages + position.stage * S::kStageBytes;
          char* const b = a + kParts * S::kBytesA;
          const bool last = work.ends_group(step);
          constexpr int kCopiedBytes = kParts * (S::kBytesA + S::kBytesB);
          ptx::mbarrier_arrive_expect(full, kCopiedBytes + (last ? S::kScaleBytesA + S::kScaleBytesB : 0));
          const int k = (step - static_cast<int>(work.range.first_segment())) * kSegment;
#pragma unroll
          for (int part = 0; part < kParts; ++part) {
            TileA::load(a + part * S::kBytesA, &map_a, row, k, {part, matrix_a}, full);
            PartB::template load<S::kCluster>(b + part * S::kBytesB + rank * PartB::kBytes, &map_b,
                                              column + rank * (S::kTileN / S::kCluster), k, {part, matrix_b}, full);
          }
          if (last) {
            char* const units = b + kParts * S::kBytesB;
            const int group_of_k = step / kGroupSegments;
            ptx::load_bytes(units, units_a.unit(matrix_a, group_of_k, unit_row), S::kScaleBytesA, full);
            ptx::load_bytes(units + S::kScaleBytesA, units_b.unit(matrix_b, group_of_k, column), S::kScaleBytesB, full);
          }
        }
        if (!all) {
          verdicts.wait(n);
          verdicts.done(n);
        }
      }
    } else if (threadIdx.x >= 32 && !all) {
      // Scouts.
      for (int n = 0; task_index(n) < work.tasks; ++n) {
        const auto place = grid.place(work.task(task_index(n)).tile, S::kTileM * S::kCluster, S::kTileN);
        verdicts.begin(n);
        verdicts.gather(n, place.row, place.column, grid.m, grid.n, [&](bool of_a, int64_t line, int) {
          return (of_a ? lines_a : lines_b).code(line_of((of_a ? order_a : order_b).read(), line), place.batch);
        });
        const uint32_t rows = verdicts.sets[n % 2][0], columns = verdicts.sets[n % 2][1];
        const bool some = split::any_output(rows, columns, &codes_by_parts);
        const bool others = split::any_output(rows, columns, [](unsigned a) { return ~codes_by_parts(a); });
        verdicts.tell(n, !some ? split::kNone : others ? split::kSome : split::kAll);
      }
    }
  } else {
    // ---- consumers: multiply a segment, add its sums to the group's, and the group's to C ----
    ptx::take_registers<S::kMultiplying>();
    // A shuffle tells the compiler that this is the same in all lanes: descriptors are then computed in uniform registers.
    const int consumer = __shfl_sync(~0u, warp_group, 0) - 1;
    // Two consumers multiply alternately: while one adds to its accumulators, the tensor cores are the other's. Named barrier
    // kMayMultiply + consumer lets it.
    constexpr int kMayMultiply = 1;
    if (S::kConsumers == 2 && consumer == 1) named_arrive<2 * kWarpGroup>(kMayMultiply);
    RingPosition<S::kStages> position;
    // Kept, for each segment would compute them anew. Of descriptors the low words, of which those of A and B differ by constants.
    const uint32_t full = ptx::kept_shared_address(ring.full), empty = ptx::kept_shared_address(ring.empty);
    const uint32_t first_a = ptx::kept(TileA::low_word(stages));
    for (int n = 0; task_index(n) < work.tasks; ++n) {
      const auto heard = [&] {
        __syncwarp();
        if (!all && threadIdx.x % 32 == 0) verdicts.done(n);
      };
      const auto has_none = [&] {
        return !all && __shfl_sync(~0u, static_cast<int>(verdicts.wait(n) == split::kNone), 0) != 0;
      };
      if (n > 0 && has_none()) {
        heard();
        continue;
      }
      const auto task = work.task(task_index(n));
      // Found out again for each group of k: there are no registers to keep more.
      const auto flush = [&](float (&acc)[S::kTileN / 2], int group_of_k, const float* bias) {
        const auto place = grid.place(task.tile, S::kTileM * S::kCluster, S::kTileN);
        const int row = place.row + rank * S::kTileM + consumer * 64;
        float* const to = c + place.index * grid.m * grid.n + group_of_k * work.outputs;
        const bool add = work.outputs == 0 && group_of_k > 0;
        const uint32_t *const rows_at = order_a.read(), *const columns_at = order_b.read();
        const bool whole = all || verdicts.verdict[n % 2] == split::kAll;
        if (whole && rows_at == nullptr && columns_at == nullptr) {
          flush_registers<S::kTileN>(acc, to, row, place.column, grid.m, grid.n, add, bias);
        } else {
          flush_some<S::kTileN>(
              acc, to, row, place.column, grid.m, grid.n, add, bias, rows_at, columns_at, [&](int down, int across) {
                return by_parts(arithmetic_of(verdicts.row_code(n, rank * S::kTileM + consumer * 64 + down),
                                              verdicts.column_code(n, across)));
              });
        }
      };
      float acc[S::kTileN / 2] = {}, high[S::kTileN / 2], rest[S::kTileN / 2];
      RingPosition<S::kStages> adding = position;
      // Starts the multiplications of the next segment.
      const auto start = [&] {
        const uint32_t a = __shfl_sync(~0u, first_a + position.stage * (S::kStageBytes >> 4), 0);
        const uint32_t b = a + kParts * (S::kBytesA >> 4);
        ptx::mbarrier_wait(full + position.stage * 8, position.parity);
        if constexpr (S::kConsumers == 2) named_barrier<2 * kWarpGroup>(kMayMultiply + consumer);
        split::start_products<kParts>(
            high, rest, true, [&](float (&to)[S::kTileN / 2], int of_a, int of_b, int i, bool accumulate) {
              Multiply::multiply(to, TileA::descriptor(a + of_a * (S::kBytesA >> 4), consumer * 64, i),
                                 TileB::descriptor(b + of_b * (S::kBytesB >> 4), 0, i), accumulate);
            });
        if constexpr (S::kConsumers == 2) named_arrive<2 * kWarpGroup>(kMayMultiply + 1 - consumer);
        position.next();
      };
      // Adds the sums of the segment that was started last; calls start_next() once they lie in registers of their own.
      const auto add = [&](int step, auto start_next) {
        if (step % kGroupSegments == 0 && step > task.begin) flush(acc, step / kGroupSegments - 1, nullptr);
        const char* const units = stages + adding.stage * S::kStageBytes + kParts * (S::kBytesA + S::kBytesB);
        ptx::wgmma_wait<0>();
        ptx::wgmma_touch(high);
        ptx::wgmma_touch(rest);
        float sums[S::kTileN / 2];
#pragma unroll
        for (int i = 0; i < S::kTileN / 2; ++i) sums[i] = high[i] + rest[i];
        ptx::wgmma_touch(sums);  // else they are added when the next segment is under way
        start_next();
#pragma unroll
        for (int i = 0; i < S::kTileN / 2; ++i) acc[i] += sums[i];
        if (work.ends_group(step)) {
          split::LineScales<S::kTileN>(units, consumer * 64, units + S::kScaleBytesA)
              .for_each([&](int i, float row_unit, float column_unit) {
                acc[i] = split::from_units(acc[i], row_unit, column_unit);
              });
        }
        __syncwarp();  // every lane has read its units
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
      bool none = false;
      for (bool asks = n == 0 && !all;; asks = false) {
        advance_to(asks ? min(task.end, task.begin + S::kStages) : task.end);
        if (asks) none = has_none();
        if (none || step == task.end) break;
      }
      if (!none) flush(acc, (task.end - 1) / kGroupSegments, task.end == work.steps ? bias : nullptr);
      heard();
    }
    if (S::kConsumers == 2 && consumer == 0) named_barrier<2 * kWarpGroup>(kMayMultiply);
  }
  if constexpr (S::kCluster > 1) cluster::sync();
#endif
}

template <class S>
cudaError_t launch_shape(const Call& call, int step, const Operand& a, const Operand& b, const Operand16& split_a,
                         const Operand16& split_b, const PartsRange& range, float* partials) {
  CUtensorMap map_a, map_b;
  cudaError_t error = split::encode_parts(split_a, S::kTileM, &map_a);
  if (error == cudaSuccess) error = split::encode_parts(split_b, S::kTileN / S::kCluster, &map_b);
  if (error != cudaSuccess) return error;
  const auto function = &kernel<S>;
  const Work work = split::work_of(call.problem, S::kTileM * S::kCluster, S::kTileN, split_a.shape.segments(), range,
                                   partials != nullptr);
  const auto results = split::results_of(call, partials);
  return launch(function, call.step(step), map_a, map_b, split::scales_of(a, split_a), split::scales_of(b, split_b),
                work, split::lines_of(a, split_a), split::lines_of(b, split_b),
                static_cast<const uint32_t*>(split_a.codes), static_cast<const uint32_t*>(split_b.codes),
                Order{split_a.line_at, split_a.reordered}, Order{split_b.line_at, split_b.reordered},
                split_few::product_of(call, a, b, split_a, split_b), results.c, results.bias);
}

cudaError_t run(const Call& call, int step, const Operand& a, const Operand& b, const Operand16& split_a,
                const Operand16& split_b, float* partials) {
  const Decisions& prepared = call.prepared;
  Operand16 into_a = split_a, into_b = split_b;
  for (int64_t group = 0; group < prepared.groups; group += prepared.groups_at_once, step += 2) {
    const PartsRange range{group, std::min(prepared.groups_at_once, prepared.groups - group)};
    into_a.parts_depth = into_b.parts_depth = range.segments(split_a.shape.segments()) * kSegment;
    const auto task = [&](const Operand& o, const SplitRegions& regions, const Operand16& into,
                          const Operand16& other) {
      split::IntoParts task{split::task_of(o, regions.splitting, into, range)};
      task.blocks = blocks_of(regions.splitting, o, into.shape, task.segments);
      task.others = other.codes;
      return task;
    };
    cudaError_t error =
        launch(&split::split_into_parts, call.step(step), task(a, prepared.split_a, into_a, into_b),
               task(b, prepared.split_b, into_b, into_a), split_few::product_of(call, a, b, split_a, split_b));
    if (error != cudaSuccess) return error;
    const auto launch_index = [&](auto index) {
      return launch_shape<Shape<index()>>(call, step + 1, a, b, into_a, into_b, range, partials);
    };
    error = with_shape(std::make_integer_sequence<int, kShapeCount>{}, prepared.parts_shape, launch_index);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

cudaError_t launch_one(const Call& call) {
  if (call.launch_count == 0) return clear(call);
  const Decisions& prepared = call.prepared;
  const Operand a = operand_a(call.problem, call.a, 4), b = operand_b(call.problem, call.b, 4);
  const Operand16 split_a = split::place(call, prepared.split_a), split_b = split::place(call, prepared.split_b);
  float* const partials = prepared.apart ? call.region<float>(prepared.partials) : nullptr;
  const PartsRange all{0, prepared.groups};
  cudaError_t error = launch(&split::find_facts, call.step(0),
                             split::IntoFacts{split::task_of(a, prepared.split_a.splitting, split_a, all)},
                             split::IntoFacts{split::task_of(b, prepared.split_b.splitting, split_b, all)});
  if (error == cudaSuccess) error = launch(&split::join_facts, call.step(1), split_a, split_b);
  if (error == cudaSuccess) error = run(call, 2, a, b, split_a, split_b, partials);
  if (error != cudaSuccess) return error;
  return split::run_finish(call, a, b, split_a, split_b, partials);
}

const Rung<launch_one> rung("split_bf16");

}  // namespace treduce::matmul::split_bf16
