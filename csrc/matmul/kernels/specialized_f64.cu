// Idea: mma_f64 with the copy engine. One thread asks for tiles, and the warps that multiply do nothing else but load
// fragments.
//
// After:   mma_f64 and warp_specialized; the fused multiply-adds of mma_f64 in the same order, hence the same bits. There all
//          warps of a block copy, and wait for each other at every stage: they load at the same time, and then multiply at
//          the same time. Here a warp waits for the stage alone, so one loads while others multiply.
// Mapping: persistent blocks of 4 or 8 warps of up to 64 x 32 outputs and a warp group that copies. A stage holds 16 steps of k.
//          Each fragment is loaded again right after the last multiplication that needs it, so that loads lie between
//          multiplications and few registers hold factors.
// Bound:   the tensor cores: 128 multiply-adds a cycle and multiprocessor. In small tiles fragments come close: 64 x 32 outputs
//          take 256 cycles of multiplications for 16 steps of k, and 288 of shared memory.
// Note:    lines are permuted over lanes so that 16 lanes read swizzled tiles without bank conflicts. Long k in groups of
//          2048: their sums are added to C, which the same threads wrote, or groups are tasks of their own. Tasks that fill no round
//          of blocks are dealt out by steps of k: stream_k.cuh. Few outputs, and rows that begin where the copy engine cannot
//          read them: small_f64.cu.
// Next:    persistent, for the narrower dtypes: blocks of a cluster share what they fetch.
// Source:  NVIDIA, PTX ISA: mma for float64; V. Thakkar et al., CUTLASS 3; M. Osama et al., Stream-K.
#include "../../primitives/ptx/mma.cuh"
#include "../../primitives/ptx/opaque.cuh"
#include "../groups.cuh"
#include "../hopper.cuh"
#include "../small_f64.h"
#include "../stream_k.cuh"

namespace treduce::matmul::specialized_f64 {

using namespace hopper;

constexpr int kStageDepth = kRowBytes / sizeof(double);  // steps of k
constexpr int kFragmentLines = 8;

// One of the shapes of shapes.h.
template <int kIndex>
struct Tiling {
  static constexpr Shape kShape = kShapes[kIndex];
  static constexpr int kTileM = kShape.tile_m, kTileN = kShape.tile_n;
  static constexpr int kWarpM = kShape.warp_m, kWarpN = kShape.warp_n;
  static constexpr int kM = kWarpM / 16, kN = kWarpN / 8;  // multiplications of a warp
  static constexpr int kWarps = kTileM / kWarpM * (kTileN / kWarpN);
  static constexpr int kConsumers = kWarps * 32;
  static constexpr int kThreads = kShape.threads, kBlocks = kShape.blocks, kStages = kShape.stages;
  static constexpr int kFours = kShape.fours, kSteps = 4 / kFours;  // multiplications along the k of a stage
  static constexpr int kStageBytes = kShape.stage_bytes;
  // Whether the lane that asks for copies is elected. An elected one asks sooner, but then looks more often whether a stage is free, which
  // is in the way of the consumers' loads: 4 % of the time of the largest tiles, half of it if it pauses (NVIDIA H200, 2026-11-27).
  static constexpr bool kElects = kTileM * kTileN < 128 * 128;
  static constexpr int kRegisters = kBlocks == 2 ? 216 : 232;  // of a consumer; what 40 a producer leave
  static_assert(kThreads == kConsumers + kWarpGroup);
  // Small tiles have registers for the fragments of two stages: the loads of one do not wait for the multiplications of the other.
  static constexpr int kSets = kSteps == 1 && (2 * kM + kN) * kFours <= 24 ? 2 : 1;
};

// An operand in shared memory, as the copy engine swizzles it. kAlongK: a row of 128 bytes is a line; else it is a step of k of 16
// lines, and 16 such rows are a slab. A fragment is kFragmentLines lines; line(f, i) is the tile's line that is the i-th of
// fragment f. In this order 16 lanes, four lines and four steps of k, meet every bank once.
template <bool kAlongK, int kLines>
struct Operand {
  static constexpr int kSlab = 16;
  static constexpr int kBytes = kLines * kRowBytes;
  static constexpr int kBoxes = kAlongK ? 1 : kLines / kSlab;
  static constexpr int kBoxOuter = kAlongK ? kLines : kStageDepth;

  TREDUCE_DEVICE static int line(int fragment, int i) {
    return kAlongK ? fragment * kFragmentLines + i % 4 * 2 + i / 4
                   : fragment / 2 * kSlab + fragment % 2 * 4 + i / 2 % 2 * 8 + i / 4 * 2 + i % 2;
  }

  // Where this lane's element is (line l / 4, k l % 4) of the first fragment.
  TREDUCE_DEVICE static uint32_t place_of_lane() {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const int row = kAlongK ? line(0, g) : t, at = kAlongK ? t : line(0, g);
    return row * kRowBytes + (at / 2 ^ row) * 16 + at % 2 * 8;
  }

  // The same of another fragment, and 4 `four` steps of k further.
  TREDUCE_DEVICE static double load(const char* tile, uint32_t place, int fragment, int four) {
    const int turn = kAlongK ? four * 32 : fragment % 2 * 32 ^ four % 2 * 64;
    const int further =
        kAlongK ? fragment * kFragmentLines * kRowBytes : four * 4 * kRowBytes + fragment / 2 * kSlab * kRowBytes;
    return *reinterpret_cast<const double*>(tile + (place ^ turn) + further);
  }

  TREDUCE_DEVICE static void copy(char* tile, const CUtensorMap* map, int line, int k, int2 batch, uint64_t* full) {
#pragma unroll
    for (int i = 0; i < kBoxes; ++i) {
      const ptx::Coordinates at = kAlongK ? ptx::Coordinates{k, line, batch.y, batch.x}
                                          : ptx::Coordinates{line + i * kSlab, k, batch.y, batch.x};
      ptx::load_box(tile + i * (kBytes / kBoxes), map, at, full);
    }
  }
};

template <class S, bool kAAlongK, bool kBAlongK>
__global__ void __launch_bounds__(S::kThreads, S::kBlocks)
    kernel(TREDUCE_GRID_CONSTANT CUtensorMap map_a, TREDUCE_GRID_CONSTANT CUtensorMap map_b, Grid grid, KGroups groups,
           int all_steps, StreamK tasks, Broadcast broadcast_a, Broadcast broadcast_b, double* c, const double* bias) {
#ifdef TREDUCE_SM90A
  ptx::allow_launch_after();
  using OperandA = Operand<kAAlongK, S::kTileM>;
  using OperandB = Operand<kBAlongK, S::kTileN>;
  constexpr int kM = S::kM, kN = S::kN, kFours = S::kFours, kSteps = S::kSteps;
  constexpr bool kDeals = S::kShape.deals();
  SHARED(Ring<S::kStages>, ring);
  SHARED(Part, part);
  char* const stages = aligned_tiles(dynamic_shared<char>());
  const bool apart = groups.apart > 1;
  // Tiles, or groups of k of tiles: as many as an int holds, because 2^31 tiles fit no memory.
  const int count = static_cast<int>(grid.count);
  const auto group_of = [&](int task) { return apart ? task / count : 0; };
  const auto range_of = [&](int task) {
    const int first = group_of(task) * groups.steps;
    return int2{first, apart ? min(first + groups.steps, all_steps) : all_steps};
  };
  const auto place_of = [&](int task) {
    const int tile = task - group_of(task) * count, a_matrix = grid.down * grid.across, matrix = tile / a_matrix;
    const auto at = place_in_band<Grid::kBand>(tile - matrix * a_matrix, grid.down, grid.across);
    return Grid::Place{
        at.row * S::kTileM, at.column * S::kTileN, {matrix / grid.inner_batches, matrix % grid.inner_batches}, matrix};
  };

  if (threadIdx.x == 0) {
    ptx::prefetch_tensor_map(&map_a);
    ptx::prefetch_tensor_map(&map_b);
    ring.init(S::kWarps);
    if (kDeals) part = part_of(tasks, groups.steps, range_of);
  }
  __syncthreads();

  // ---- producer ----
  if (threadIdx.x >= S::kConsumers) {
    ptx::release_registers<40>();
    const int producer = threadIdx.x - S::kConsumers;
    if (S::kElects ? producer >= 32 || !ptx::elect_one() : producer != 0) return;
    RingPosition<S::kStages> position;
    for (int n = 0;; ++n) {
      const Piece piece = piece_of<kDeals>(tasks, part, n, range_of);
      if (piece.task < 0) return;
      const auto place = place_of(piece.task);
      const int2 batch_a = broadcast_a.of(place.batch), batch_b = broadcast_b.of(place.batch);
      if (n == 0) ptx::wait_for_launch_before();
      for (int step = piece.steps.x; step < piece.steps.y; ++step, position.next()) {
        wait_to_overwrite(ring.empty + position.stage, position.parity ^ 1);
        uint64_t* const full = ring.full + position.stage;
        char* const tile = stages + position.stage * S::kStageBytes;
        ptx::mbarrier_arrive_expect(full, OperandA::kBytes + OperandB::kBytes);
        OperandA::copy(tile, &map_a, place.row, step * kStageDepth, batch_a, full);
        OperandB::copy(tile + OperandA::kBytes, &map_b, place.column, step * kStageDepth, batch_b, full);
      }
    }
  }

  // ---- consumers ----
  ptx::wait_for_launch_before();
  ptx::take_registers<S::kRegisters>();
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
  const int warp_m = warp % (S::kTileM / S::kWarpM) * S::kWarpM, warp_n = warp / (S::kTileM / S::kWarpM) * S::kWarpN;
  const uint32_t place_a = OperandA::place_of_lane(), place_b = OperandB::place_of_lane();
  const char* const first_a = stages + warp_m * kRowBytes;
  const char* const first_b = stages + OperandA::kBytes + warp_n * kRowBytes;
  const uint32_t full = ptx::kept_shared_address(ring.full), empty = ptx::kept_shared_address(ring.empty);
  RingPosition<S::kStages> position;
  double from_a[S::kSets][kM][2 * kFours], from_b[S::kSets][kN][kFours];
  const auto load_a = [&](int set, int i, int stage, int step) {
#pragma unroll
    for (int four = 0; four < kFours; ++four) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        from_a[set][i][four * 2 + half] = OperandA::load(first_a + stage, place_a, i * 2 + half, step * kFours + four);
      }
    }
  };
  const auto load_b = [&](int set, int j, int stage, int step) {
#pragma unroll
    for (int four = 0; four < kFours; ++four) {
      from_b[set][j][four] = OperandB::load(first_b + stage, place_b, j, step * kFours + four);
    }
  };
  const auto wait_for_stage = [&] {
    ptx::mbarrier_wait(full + position.stage * 8, position.parity);
    return position.stage * S::kStageBytes;
  };
  // Once its last fragments are loaded.
  const auto release_stage = [&] {
    __syncwarp();
    release<1>(empty + position.stage * 8);
    position.next();
  };

  for (int n = 0;; ++n) {
    const Piece piece = piece_of<kDeals>(tasks, part, n, range_of);
    if (piece.task < 0) return;
    const int2 range = piece.steps;
    double acc[kM][kN][4];
    int stage = wait_for_stage();
#pragma unroll
    for (int i = 0; i < kM; ++i) load_a(0, i, stage, 0);
#pragma unroll
    for (int j = 0; j < kN; ++j) load_b(0, j, stage, 0);
    if constexpr (kSteps == 1) release_stage();
    // Multiplies a stage whose first fragments are in `set`, and loads those of the next, if there is one, into the other set.
    const auto multiply_stage = [&](auto set, auto more) {
      constexpr int kOther = S::kSets - 1 - set;
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        const bool last = step == kSteps - 1, loads = !last || more;
        const int next = (step + 1) % kSteps;  // of the fragments that are loaded here
#pragma unroll
        for (int i = 0; i < kM; ++i) {
#pragma unroll
          for (int j = 0; j < kN; ++j) {
            ptx::multiply(acc[i][j], from_a[set][i], from_b[set][j]);
            // Behind the first multiplications, which hide it.
            if (last && more && i == 0 && j == kN - 2) stage = wait_for_stage();
            if (j == kN - 1 && loads) load_a(kOther, i, stage, next);
            if (i == kM - 1 && loads) load_b(kOther, j, stage, next);
          }
        }
        if (loads && next == kSteps - 1) release_stage();
      }
    };
    constexpr std::integral_constant<int, 0> kFirst;
    constexpr std::integral_constant<int, S::kSets - 1> kSecond;
    // To C, or to the sums of groups that are apart. Of several groups in a task the first is stored, those that follow are added
    // where it lies, and the last is finished.
    const auto store = [&](int task, bool in_groups, bool first, bool last) {
      const auto place = place_of(task);
      double* const matrix = (apart ? static_cast<double*>(groups.sums) + group_of(task) * groups.outputs : c) +
                             place.index * grid.m * grid.n;
      const bool pairs = aligned_pairs(matrix, grid.n);
      const int64_t pitch = grid.n, row = place.row + warp_m;
      const int g = lane / 4, t = lane % 4;
      // Lines along k lie two apart: lanes exchange one of two, for pairs, or where these are not aligned, so that four lanes write
      // four columns at once.
      const int second = kBAlongK && !pairs ? 4 : 1;  // column of a lane, from its first
      const int64_t column = place.column + warp_n +
                             (!kBAlongK ? OperandB::line(0, t * 2)
                              : pairs   ? t % 2 * 4 + t / 2 * 2
                                        : t % 2 * 2 + t / 2);
      double* const to = matrix + row * pitch + column;
      const int rows_left = static_cast<int>(min(grid.m - row, int64_t(S::kWarpM)));
      const int columns_left = static_cast<int>(min(pitch - column, int64_t(S::kWarpN)));
#pragma unroll
      for (int i = 0; i < kM * 2; ++i) {
        const int down = OperandA::line(i, g), first_of_pair = i % 2 * 2;
        double* const of_row = to + down * pitch;
        double2 sums[kN];
#pragma unroll
        for (int j = 0; j < kN; ++j) {
          double2& pair = sums[j];
          pair = {acc[i / 2][j][first_of_pair], acc[i / 2][j][first_of_pair + 1]};
          if constexpr (kBAlongK) {
            const bool keeps_first = pairs ? t < 2 : t % 2 == 0;
            const double other = __shfl_xor_sync(~0u, keeps_first ? pair.y : pair.x, pairs ? 2 : 1);
            pair = keeps_first ? double2{pair.x, other} : double2{other, pair.y};
          }
        }
        if (down >= rows_left) continue;
        // Calls body(j, the pair's first column, whether it has a second).
        const auto visit = [&](auto&& body) {
#pragma unroll
          for (int j = 0; j < kN; ++j) {
            const int across = OperandB::line(j, 0);
            if (across < columns_left) body(j, across, across + second < columns_left);
          }
        };
        if (in_groups && first) {
          visit([&](int j, int, bool) { sums[j] = {0.0 + sums[j].x, 0.0 + sums[j].y}; });
        } else if (in_groups && !last) {
          visit([&](int j, int across, bool both) {
            atomicAdd(of_row + across, sums[j].x);
            if (both) atomicAdd(of_row + across + second, sums[j].y);
          });
          continue;
        } else if (in_groups) {
          double2 before[kN];
          visit([&](int j, int across, bool both) {
            before[j] = {of_row[across], both ? of_row[across + second] : 0.0};
          });
          visit([&](int j, int, bool) { sums[j] = {before[j].x + sums[j].x, before[j].y + sums[j].y}; });
        }
        visit([&](int j, int across, bool both) {
          if (last && !apart && bias != nullptr) {
            sums[j].x += bias[column + across];
            if (both) sums[j].y += bias[column + across + second];
          }
          if (pairs) {
            store_pair(of_row + across, sums[j].x, sums[j].y, true, true);
          } else {
            of_row[across] = round_to<double>(sums[j].x);
            if (both) of_row[across + second] = round_to<double>(sums[j].y);
          }
        });
      }
      __syncwarp();  // multiplications are the whole warp's
    };
    for (int begin = range.x - piece.taken, taken = piece.taken; begin < range.y; begin += groups.steps, taken = 0) {
      const int end = min(begin + groups.steps, range.y);
      if (taken == 0) {
#pragma unroll
        for (int i = 0; i < kM; ++i) {
#pragma unroll
          for (int j = 0; j < kN; ++j) acc[i][j][0] = acc[i][j][1] = acc[i][j][2] = acc[i][j][3] = 0;
        }
      } else {
        take_over<S::kWarps>(tasks, reinterpret_cast<double (&)[kM * kN * 4]>(acc));
      }
      // A group has an even number of stages, so the next one's first fragments are in the first set.
      int left = end - begin - taken - (end == range.y ? 1 : 0);
#pragma unroll 1
      for (; left >= S::kSets; left -= S::kSets) {
        multiply_stage(kFirst, std::true_type{});
        if constexpr (S::kSets == 2) multiply_stage(kSecond, std::true_type{});
      }
      if (end == range.y) {
        if (S::kSets == 1 || left == 0) {
          multiply_stage(kFirst, std::false_type{});
        } else {
          multiply_stage(kFirst, std::true_type{});
          multiply_stage(kSecond, std::false_type{});
        }
      }
      // Not before the multiplications, which need the registers.
      const Piece now = piece_of<kDeals>(tasks, part, ptx::kept(n), range_of);
      if (end < range.y || !now.left) {
        const int2 whole = range_of(now.task);
        store(now.task, whole.y - whole.x > groups.steps, begin == whole.x, end == whole.y);
      } else {
        hand_over<S::kWarps>(tasks, reinterpret_cast<double (&)[kM * kN * 4]>(acc));
      }
    }
  }
#endif
}

template <class S, bool kAAlongK, bool kBAlongK>
cudaError_t launch_shape(const Call& call, const Boxes& a, const Boxes& b) {
  CUtensorMap map_a, map_b;
  constexpr CUtensorMapDataType kType = CU_TENSOR_MAP_DATA_TYPE_FLOAT64;
  cudaError_t error = encode(a, kType, kStageDepth, Operand<kAAlongK, S::kTileM>::kBoxOuter, &map_a);
  if (error == cudaSuccess) error = encode(b, kType, kStageDepth, Operand<kBAlongK, S::kTileN>::kBoxOuter, &map_b);
  if (error != cudaSuccess) return error;
  const KGroups groups = groups_for(call, true, kStageDepth);
  const bool apart = groups.apart > 1;
  const Grid grid = grid_of(call.problem, S::kTileM, S::kTileN);
  error = launch(&kernel<S, kAAlongK, kBAlongK>, call.step(apart ? -2 : -1), map_a, map_b, grid, groups,
                 static_cast<int>(ceil_div(call.problem.k, int64_t(kStageDepth))),
                 stream_k_of(call, grid.count * groups.apart), broadcast_of(a), broadcast_of(b),
                 static_cast<double*>(call.c), static_cast<const double*>(call.bias));
  return error != cudaSuccess || !apart ? error : add_groups_apart<double, double>(call, groups);
}

cudaError_t launch_one(const Call& call) {
  if (call.launch_count == 0) return clear(call);
  if (call.prepared.small) return small_f64::run(call);
  Boxes a, b;
  const cudaError_t error = pack_operands(call, a, b);
  if (error != cudaSuccess) return error;
  return with_shape<kShapeCount>(call, [&](auto index) {
    using S = Tiling<index()>;
    return with_directions</*kEither=*/true>(a.along_k, b.along_k, [&](auto a_along_k, auto b_along_k) {
      if constexpr (S::kShape.takes(b_along_k())) return launch_shape<S, a_along_k(), b_along_k()>(call, a, b);
      return cudaErrorInvalidValue;  // never prepared
    });
  });
}

const Rung<launch_one> rung("specialized_f64");

}  // namespace treduce::matmul::specialized_f64
