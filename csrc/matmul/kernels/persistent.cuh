// The kernel of persistent.cu, which says what it does. Compiled for float16 and bfloat16 in files of their own, because all of it takes
// long.
#pragma once

#include "../../primitives/ptx/opaque.cuh"
#include "../epilogue.cuh"
#include "../few_rows.cuh"
#include "../groups.cuh"
#include "../hopper.cuh"
#include "../in_place.h"
#include "../narrow.h"
#include "../register_operand.h"
#include "../small_tiles.cuh"

namespace treduce::matmul::persistent {

using namespace hopper;

// Blocks of a cluster that lie below each other share their part of B, those beside each other their part of A. So many, as powers of two; and
// those below the first, or beside it, with that, a bit each.
struct Sharing {
  int below_bits, beside_bits;
  uint16_t all_below, all_beside;

  TREDUCE_HOST_DEVICE int below() const { return 1 << below_bits; }
  TREDUCE_HOST_DEVICE int beside() const { return 1 << beside_bits; }
  TREDUCE_HOST_DEVICE int cluster_bits() const { return below_bits + beside_bits; }
  TREDUCE_HOST_DEVICE int sharers() const { return below() + beside() - 1; }  // of a block, which is one
};
constexpr Sharing sharing_of(const TileShape& s) {
  Sharing sharing = {log2_of(s.below()), log2_of(s.beside), 0, 0};
  for (int i = 0; i < s.below(); ++i) sharing.all_below |= 1 << i;
  for (int i = 0; i < s.beside; ++i) sharing.all_beside |= 1 << i * s.below();
  return sharing;
}

// What a launch computes: all outputs, those before a strip (see decisions.h), or the strip. A strip begins on multiprocessors that the launch
// before it has left, and reads nothing of it. Whatever that launch waits for has ended then, for it waits before it lets others begin.
enum class Role { all, before_strip, strip };

// A kernel's, see shapes.h.
template <int kKernel>
struct Shape {
  static constexpr int kIndex = kKernel;
  static constexpr TileShape kShape = kKernels[kIndex];
  static constexpr int kTileM = kShape.tile_m, kTileN = kShape.tile_n, kStages = kShape.stages;
  static constexpr bool kClustered = kShape.cluster > 1;
  static constexpr bool kIsTold = is_told(kIndex);  // how its clusters lie; else as here
  static constexpr Sharing kSharing = sharing_of(kShape);
  // Tiles of the transposed product, for few rows: columns of C fill the 64 rows that a multiplication has.
  static constexpr bool kTransposed = kShape.transposed;
  static constexpr int kConsumers = kTileM / 64;
  static constexpr int kThreads = kShape.threads;
  static constexpr int kStageBytes = kShape.stage_bytes;
  static constexpr bool kBoxesC = stages_results(kTileN, kTransposed);
  template <class Out>
  static constexpr bool kAddsGroups = adds_groups(kIndex) && has_groups(kDType<Out>);
  static constexpr bool kGroupsApart = takes_groups_apart(kIndex);
  static constexpr int kKept = kept_sums(kIndex), kInRegisters = kTileN / 2 - kKept;  // sums of groups, a thread
  // Of a consumer beside the ring: where results are staged, and before that sums of groups are kept.
  static constexpr int kOwnBytes = kKept > 0 ? kWarpGroup * kKept * 4 : kStagingBytes;
  static constexpr int kBlocks = kShape.blocks;                // a multiprocessor
  static constexpr int kRegisters = kBlocks == 2 ? 216 : 232;  // of a consumer; what 40 a producer leave
  static_assert(kThreads == (kConsumers + 1) * kWarpGroup);
};

template <class T, class Out, class S, bool kAAlongK, bool kBAlongK>
__global__ void __launch_bounds__(S::kThreads, S::kBlocks)
    kernel(TREDUCE_GRID_CONSTANT CUtensorMap map_a, TREDUCE_GRID_CONSTANT CUtensorMap map_b,
           TREDUCE_GRID_CONSTANT CUtensorMap map_c, bool boxes_c, Grid grid, KGroups groups, Sharing sharing,
           Broadcast broadcast_a, Broadcast broadcast_b, Out* c, const Out* bias, int2 first_output, Role role) {
#ifdef TREDUCE_SM90A
  if (role == Role::before_strip) ptx::wait_for_launch_before();
  ptx::allow_launch_after();
  const bool waits = !may_be_strip(S::kIndex) || role != Role::strip;
  using TileA = Tile<T, S::kTileM, kAAlongK>;
  using TileB = Tile<T, fetched_columns(S::kTileN, kBAlongK), kBAlongK>;
  SHARED(Ring<S::kStages>, ring);
  char* const stages = aligned_tiles(dynamic_shared<char>());
  const int warp_group = threadIdx.x / kWarpGroup;
  if constexpr (!S::kIsTold) sharing = S::kSharing;
  // This block's place in the cluster. Each role asks: what both know would be kept in memory, for a producer has few registers.
  const auto lies = [&] {
    const int rank = S::kClustered ? cluster::rank() : 0;
    return int2{rank >> sharing.below_bits, rank & (sharing.below() - 1)};  // beside, below
  };
  const int steps = (grid.depth + kDepth<T> - 1) / kDepth<T>;
  const int64_t first = blockIdx.x >> sharing.cluster_bits(), stride = gridDim.x >> sharing.cluster_bits();
  // Tasks: tiles, or groups of k of tiles. Who is told of its clusters has no such groups, and no register for the product.
  const int64_t tasks = S::kIsTold ? grid.count : grid.count * groups.apart;
  static_assert(!S::kIsTold || !S::kGroupsApart);
  // Divided where that is so alone: it would delay a tile's first copies.
  const auto group_of = [&](int64_t task) { return S::kGroupsApart && groups.apart > 1 ? task / grid.count : 0; };
  const auto place_of = [&](int64_t task) {
    auto place = grid.place(task - group_of(task) * grid.count, S::kTileM << sharing.below_bits,
                            S::kTileN << sharing.beside_bits);
    if constexpr (may_be_strip(S::kIndex)) {
      place.row += first_output.x;
      place.column += first_output.y;
    }
    return place;
  };
  const auto range_of = [&](int64_t task) {
    const int begin = static_cast<int>(group_of(task)) * groups.steps;
    return int2{begin, S::kGroupsApart && groups.apart > 1 ? min(begin + groups.steps, steps) : steps};
  };

  begin<S::kClustered ? 2 : 1, S::kConsumers>(ring, map_a, map_b, sharing.sharers());
  if (warp_group > 0 && waits) ptx::wait_for_launch_before();  // the producer first finds its tile

  // ---- producer: copies the tiles of one step of k after another, tile of C after tile of C ----
  if (warp_group == 0) {
    ptx::release_registers<40>();
    if (threadIdx.x < 32 && ptx::elect_one()) {
      RingPosition<S::kStages> position;
      const auto [beside, below] = lies();
      for (int64_t task = first; task < tasks; task += stride) {
        const auto place = place_of(task);
        const int2 range = range_of(task);
        const int2 batch_a = broadcast_a.of(place.batch), batch_b = broadcast_b.of(place.batch);
        // Kept: else the compiler divides behind the wait.
        const int row = ptx::kept(place.row + below * S::kTileM), column = ptx::kept(place.column + beside * S::kTileN);
        if (task == first && waits) ptx::wait_for_launch_before();
        for (int step = range.x; step < range.y; ++step, position.next()) {
          ptx::mbarrier_wait(ring.empty + position.stage, position.parity ^ 1);
          uint64_t* const full = ring.full + position.stage;
          char* const tile_a = stages + position.stage * S::kStageBytes;
          char* const tile_b = tile_a + TileA::kBytes;
          ptx::mbarrier_arrive_expect(full, TileA::kBytes + TileB::kBytes);
          const int k = step * kDepth<T>;
          if (S::kClustered && sharing.beside_bits > 0) {
            TileA::load_part(tile_a, &map_a, row, k, batch_a, full, (TileA::kBoxOuter >> sharing.beside_bits) * beside,
                             sharing.all_beside << below);
          } else {
            TileA::load(tile_a, &map_a, row, k, batch_a, full);
          }
          if (S::kClustered && sharing.below_bits > 0) {
            TileB::load_part(tile_b, &map_b, column, k, batch_b, full, (TileB::kBoxOuter >> sharing.below_bits) * below,
                             sharing.all_below << (beside << sharing.below_bits));
          } else {
            TileB::load(tile_b, &map_b, column, k, batch_b, full);
          }
        }
      }
    }
  } else {
    // ---- consumers: multiply a tile, then store it, while the producer fills the ring for the next ----
    ptx::take_registers<S::kRegisters>();
    // A shuffle tells the compiler that this is the same in all lanes.
    const int consumer = __shfl_sync(~0u, warp_group, 0) - 1;
    RingPosition<S::kStages> position;
    const uint32_t full = ptx::kept_shared_address(ring.full), empty = ptx::kept_shared_address(ring.empty);
    const uint32_t first_a = TileA::low_word(stages), first_b = TileB::low_word(stages + TileA::kBytes);
    [[maybe_unused]] Acc<T> total[S::template kAddsGroups<Out> ? S::kInRegisters : 1] = {};
    char* const own = stages + S::kStages * S::kStageBytes + consumer * S::kOwnBytes;
    int done = 0;  // steps of this task: one group of k after another
    // Tells each block that fills this block's stages: a lane tells one of those below each other, or of the others beside.
    const int lane = threadIdx.x % 32;
    const auto [beside, below] = lies();
    const int beyond = lane - sharing.below();
    const int peer = beyond < 0 ? (beside << sharing.below_bits) + lane
                                : ((beyond < beside ? beyond : beyond + 1) << sharing.below_bits) + below;
    const int sharers = sharing.sharers();
    const auto release_stage = [&](uint32_t stage_empty) {
      if constexpr (S::kClustered) {
        if (lane < sharers) ptx::mbarrier_arrive_at(stage_empty, peer);
      } else {
        release<1>(stage_empty);
      }
    };
    for (int64_t task = first; task < tasks;) {
      const int2 range = range_of(task);
      const int begin = range.x + done,
                end = S::template kAddsGroups<Out> ? min(begin + groups.steps, range.y) : range.y;
      const auto place = place_of(task);  // its divisions overlap the first copies
      Acc<T> acc[S::kTileN / 2];
      int last = -1;
      for (int step = begin; step < end; ++step, position.next()) {
        ptx::mbarrier_wait(full + position.stage * 8, position.parity);
        const uint32_t stage = position.stage * (S::kStageBytes >> 4);
        multiply_stage<TileA, TileB>(acc, first_a + stage, first_b + stage, consumer * 64, step - begin);
        ptx::wgmma_wait<1>();
        if (last >= 0) release_stage(empty + last * 8);
        last = position.stage;
      }
      ptx::wgmma_wait<0>();
      ptx::wgmma_touch(acc);
      release_stage(empty + last * 8);
      if constexpr (S::template kAddsGroups<Out>) {
        if (range.y - range.x > groups.steps) {
          if constexpr (S::kKept > 0) {
            if (done == 0) {  // the results of the task before have left
              if (threadIdx.x % kWarpGroup == 0) ptx::wait_stores_read<0>();
              named_barrier<kWarpGroup>(warp_group);
            }
            add_group_kept<S::kInRegisters, kWarpGroup>(acc, reinterpret_cast<Acc<T>*>(own), done > 0, end < range.y);
          }
          add_group(total, acc);
          done += groups.steps;
          if (end < range.y) continue;
          done = 0;
        }
#pragma unroll
        for (Acc<T>& sum : total) sum = 0;  // for the next task
      }
      [[maybe_unused]] const int64_t group_of_k = group_of(task);
      task += stride;

      // ---- epilogue ----
      const int row = place.row + below * S::kTileM + consumer * 64, column = place.column + beside * S::kTileN;
      if constexpr (S::kGroupsApart) {
        if (groups.apart > 1) {
          using Sum = GroupSum<T>;
          Sum* const to = static_cast<Sum*>(groups.sums) + group_of_k * groups.outputs;
          store_registers<Sum, S::kTileN>(acc, to + place.index * grid.m * grid.n, row, column, grid.m, grid.n);
          continue;
        }
      }
      Out* const matrix = c + place.index * grid.m * grid.n;
      if constexpr (S::kTransposed) {
        add_bias_transposed(acc, bias, row, grid.m);
      } else {
        add_bias(acc, bias, column, grid.n);
      }
      if constexpr (!std::is_same_v<Out, int32_t> && S::kBoxesC) {
        store_staged<Out, S::kTileN>(acc, boxes_c, &map_c, matrix, own, row, column, grid.m, grid.n,
                                     static_cast<int>(place.index), warp_group);
      } else if constexpr (S::kTransposed) {
        store_transposed<Out, S::kTileN>(acc, matrix, row, column, grid.n, grid.m);
      } else {
        store_registers<Out, S::kTileN>(acc, matrix, row, column, grid.m, grid.n);
      }
    }
    ptx::wait_stores_read<0>();  // a block must not exit before the copy engine has read its results from shared memory
  }
  if (!waits) ptx::wait_for_launch_before();  // so that whoever waits for the strip waits for both
  // A block must not exit while others copy into its shared memory or arrive at its barriers.
  if constexpr (S::kClustered) cluster::sync();
#endif
}

// What one launch computes, outputs from a first one on, in tiles of kShapes[shape]. step: of the call.
struct Part {
  Problem problem;
  int shape, step;
  Role role;
  int first_row, first_column;
};

// `a` and `b`: the operands of the kernel, swapped if it computes the transposed product.
template <class T, class Out, class S, bool kAAlongK, bool kBAlongK>
cudaError_t launch_shape(const Call& call, const Part& part, const Boxes& a, const Boxes& b) {
  using TileA = Tile<T, S::kTileM, kAAlongK>;
  using TileB = Tile<T, fetched_columns(S::kTileN, kBAlongK), kBAlongK>;
  static_assert(TileA::kBytes + TileB::kBytes <= S::kStageBytes);
  CUtensorMap map_a, map_b;
  const TileShape& shape = kShapes[part.shape];
  const Sharing sharing = sharing_of(shape);
  cudaError_t error = encode(a, kMapType<T>, TileA::kBoxInner, TileA::kBoxOuter >> sharing.beside_bits, &map_a);
  if (error == cudaSuccess) {
    error = encode(b, kMapType<T>, TileB::kBoxInner, TileB::kBoxOuter >> sharing.below_bits, &map_b);
  }
  if (error != cudaSuccess) return error;

  const Problem& p = call.problem;
  Problem shown = part.problem;
  if (S::kTransposed) std::swap(shown.m, shown.n);
  Grid grid = grid_of(shown, shape.cluster_m(), shape.cluster_n());
  // Of all of C: where its rows begin, and where it ends.
  grid.m = S::kTransposed ? p.n : p.m;
  grid.n = S::kTransposed ? p.m : p.n;

  CUtensorMap map_c = map_a;
  const bool boxes_c = call.prepared.boxes_c;
  if (boxes_c) {
    const Boxes c{call.c, sizeof(Out), true, p.n, p.m, p.n, {1, p.batches}, {p.n, p.m * p.n}};
    error = encode(c, kResultMapType<Out>, kStagedColumns<Out>, 64, &map_c);
    if (error != cudaSuccess) return error;
  }
  const bool apart = call.prepared.apart;
  const KGroups groups = groups_for(call, S::template kAddsGroups<Out>, kDepth<T>);
  const auto function = &kernel<T, Out, S, kAAlongK, kBAlongK>;
  error = launch(function, call.step(part.step), map_a, map_b, map_c, boxes_c, grid, groups, sharing, broadcast_of(a),
                 broadcast_of(b), static_cast<Out*>(call.c), static_cast<const Out*>(call.bias),
                 int2{part.first_row, part.first_column}, part.role);
  return error != cudaSuccess || !apart ? error : add_groups_apart<T, Out>(call, groups);
}

template <class Form, class S>
cudaError_t launch_layout(const Call& call, const Part& part, const Boxes& a, const Boxes& b) {
  using T = typename Form::T;
  using Out = typename Form::Out;
  if constexpr (S::kTransposed) {
    return launch_shape<T, Out, S, Form::kBAlongK, true>(call, part, b, a);
  } else {
    return launch_shape < T, Out, S, Form::kAAlongK, Form::kBAlongK || S::kTileN<kSlabLines>(call, part, a, b);
  }
}

template <class Form>
cudaError_t launch_prepared(const Call& call, const Boxes& a, const Boxes& b) {
  if constexpr (few_rows::takes<Form>) {
    if (call.prepared.few) return few_rows::run<Form>(call, a, b);
  }
  if constexpr (std::is_same_v<typename Form::T, ptx::tfloat32>) {
    if (call.prepared.registers) return register_operand::run(call, a, b);
    if (call.prepared.narrow) return narrow::run(call, a, b);
  }
  const auto launch_part = [&](const Part& part) {
    return with_shape(std::make_integer_sequence<int, kShapeCount>{}, part.shape, [&](auto index) {
      constexpr int kKernel = kernel_of(index());
      using S = Shape<kKernel>;
      constexpr bool kForGroupsAlone = kKernel == kLong && !has_groups(kDType<typename Form::Out>);
      constexpr bool kForOthers = for_16_bits_alone(kKernel) && kElementBytes<typename Form::T> != 2;
      if constexpr (kForGroupsAlone || kForOthers || (S::kTransposed && !Form::kAAlongK)) {
        return cudaErrorInvalidValue;  // never prepared
      } else {
        return launch_layout<Form, S>(call, part, a, b);
      }
    });
  };
  const Decisions& d = call.prepared;
  const Problem& p = call.problem;
  const Strip& strip = d.strip;
  const bool cut = strip.exists();
  const cudaError_t error =
      launch_part(Part{strip.before(p), d.shape, d.apart || cut ? -2 : -1, cut ? Role::before_strip : Role::all, 0, 0});
  if (error != cudaSuccess || !cut) return error;
  const int first = static_cast<int>(strip.first);
  return launch_part(
      Part{strip.alone(p), strip.shape, -1, Role::strip, strip.of_rows ? first : 0, strip.of_rows ? 0 : first});
}

// For operands of one type.
template <class T, class Out>
cudaError_t launch_type(const Call& call) {
  if constexpr (kElementBytes<T> == 2) {
    if (call.prepared.small) return small_tiles::run<T>(call);
  }
  if (call.launch_count == 0) return clear(call);
  if (call.prepared.in_place) return in_place::run(call);
  return launch_with_type<T, Out>(
      call, [&](auto form, const Boxes& a, const Boxes& b) { return launch_prepared<decltype(form)>(call, a, b); });
}

cudaError_t launch_float16(const Call& call);
cudaError_t launch_bfloat16(const Call& call);

}  // namespace treduce::matmul::persistent
