// specialized_f64 in small tiles, for few outputs and for rows that begin where the copy engine cannot read them. What bounds these is a
// chain of dependent multiplications, 83 cycles for 16 steps of k, and what a warp does between two of them. So the warps that multiply
// load fragments and nothing else; and four warps copy, a quarter of each stage, 16 or 8 bytes at once: a thread of the copy engine needs
// 250 cycles a stage.
//
// Order:   that of specialized_f64, by the same instructions.
// Mapping: persistent blocks of 2 or 4 warps that multiply and 4 that copy. A stage holds 64 steps of k.
// Source:  A. Kerr et al., CUTLASS 3: warp specialisation without the copy engine.
#include "small_f64.h"

#include "../primitives/ptx/launch.cuh"
#include "fragments_f64.cuh"
#include "groups.cuh"
#include "hopper.cuh"

namespace treduce::matmul::small_f64 {

using hopper::Ring;
using hopper::RingPosition;
using staged::kChunkBytes;
using staged::kRowBytes;
using staged::Source;
using staged::steps_of;

constexpr int kSlabDepth = kRowBytes / sizeof(double);  // steps of k of a row in shared memory

// One of the shapes of shapes.h.
template <int kIndex>
struct Tiling {
  static constexpr Shape kShape = kShapes[kIndex];
  static constexpr int kTileM = kShape.tile_m, kTileN = kShape.tile_n;
  static constexpr int kWarpM = kShape.warp_m, kWarpN = kShape.warp_n;
  static constexpr int kM = kWarpM / 16, kN = kWarpN / 8;  // multiplications of a warp
  static constexpr int kWarps = kShape.warps();            // that multiply
  static constexpr int kThreads = kShape.threads, kBlocks = kShape.blocks;
  // A warp group that multiplies takes registers from the one that copies.
  static constexpr bool kTakes = kWarps == 4 && kBlocks == 2;
  static constexpr int kSlabBytes = (kTileM + kTileN) * kRowBytes;  // A's rows, then B's
  static_assert(kSlabs * kSlabBytes == kShape.stage_bytes);
};

// A lane's copies of an operand's tiles, of the same slab of a stage after another. Where neighbours lie along k a row of a slab is a line;
// else it is a step of k of 16 lines. What is past the edges becomes zero.
template <int kLines, bool kAlongK, int kWidth>
class Copies {
  static constexpr int kAcross = kRowBytes / kWidth, kDown = 32 / kAcross;     // lanes side by side; rows at once
  static constexpr int kCount = kLines / kDown, kOfUnit = kSlabDepth / kDown;  // copies; of 16 rows
  static constexpr int kElements = kWidth / sizeof(double);

 public:
  // From step `k` on.
  TREDUCE_DEVICE Copies(const Source& source, int64_t line, int64_t batch_x, int64_t batch_y, int64_t k)
      : pitch_(source.pitch) {
    const int64_t inner = (kAlongK ? k : line) + at(), outer = (kAlongK ? line : k) + row();
    from_ = static_cast<const double*>(source.data) + batch_x * source.batch_pitch[0] +
            batch_y * source.batch_pitch[1] + outer * pitch_ + inner;
    to_ = row() * kRowBytes + (at() / 2 ^ staged::swizzle<double>(row())) * kChunkBytes + at() % 2 * 8;
    const int64_t left = source.lines - line - (kAlongK ? row() : at());
    lines_left_ = static_cast<int>(min(left, int64_t(kLines)));
  }

  // Starts the copies of a slab, which has k_left steps of k, into the rows from `to` on; then on to that of the next stage.
  TREDUCE_DEVICE void start(ptx::SharedAddress to, int k_left) {
    const double* from = from_;
    const int rows = kAlongK ? at() < k_left ? lines_left_ : 0 : k_left - row();
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int unit = kAlongK ? 0 : i / kOfUnit, down = (kAlongK ? i : i % kOfUnit) * kDown;
      if (i > 0) from = !kAlongK && i % kOfUnit == 0 ? from_ + unit * kSlabDepth : from + kDown * pitch_;
      const bool exists = down < rows && (kAlongK || unit * kSlabDepth < lines_left_);
      const int turn = kDown % 4 != 0 && i % 2 != 0 ? 64 : 0;  // what two rows on the swizzle exchanges
      ptx::copy_async_or_zero<kWidth>(to + (to_ ^ turn) + i * kDown * kRowBytes, from, exists);
    }
    from_ += kStageDepth * (kAlongK ? 1 : pitch_);
  }

 private:
  // This lane's place: a row, and an element of it.
  TREDUCE_DEVICE static int row() { return threadIdx.x % 32 / kAcross; }
  TREDUCE_DEVICE static int at() { return threadIdx.x % kAcross * kElements; }

  const double* from_;
  int64_t pitch_;
  int lines_left_, to_;
};

template <class S, bool kAAlongK, bool kBAlongK>
__global__ void __launch_bounds__(S::kThreads, S::kBlocks)
    kernel(TREDUCE_GRID_CONSTANT Source a, TREDUCE_GRID_CONSTANT Source b, double* c, const double* bias, int64_t m,
           int64_t n, int down, int across, int inner_batches, int tiles, int stages, KGroups groups) {
#ifdef TREDUCE_SM90A
  constexpr int kM = S::kM, kN = S::kN;
  ptx::allow_launch_after();
  char* const shared = dynamic_shared<char>();
  using AnyRing = Ring<kMostStages>;
  AnyRing& ring = *reinterpret_cast<AnyRing*>(shared + stages * S::kShape.stage_bytes);
  static_assert(sizeof(AnyRing) == S::kShape.bytes(0));
  const bool apart = groups.apart > 1;
  const int tasks = tiles * groups.apart, all_stages = steps_of(a.depth, kStageDepth);
  struct Task {
    int64_t row, column;
    int matrix, batch_x, batch_y;
    int group, first, end;  // stages
  };
  const auto task_of = [&](int index) {
    Task task;
    task.group = apart ? index / tiles : 0;
    const int tile = index - task.group * tiles;
    task.matrix = tile / (down * across);
    const auto at = place_in_band<hopper::Grid::kBand>(tile - task.matrix * (down * across), down, across);
    task.row = int64_t(at.row) * S::kTileM;
    task.column = int64_t(at.column) * S::kTileN;
    task.batch_x = task.matrix / inner_batches;
    task.batch_y = task.matrix - task.batch_x * inner_batches;
    task.first = task.group * groups.steps;
    task.end = apart ? min(task.first + groups.steps, all_stages) : all_stages;
    return task;
  };

  if (threadIdx.x == 0) ring.init(S::kWarps, stages, /*writers=*/kSlabs * 32);
  __syncthreads();
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
  const uint32_t full = ptx::kept_shared_address(ring.full), empty = ptx::kept_shared_address(ring.empty);
  RingPosition<kMostStages> position;

  // ---- warps that copy ----
  if (warp >= S::kWarps) {
    if constexpr (S::kTakes) ptx::release_registers<72>();
    const ptx::SharedAddress ring_begin = ptx::shared_address(shared);
    const int slab = warp - S::kWarps;
    const auto copy_all = [&](auto width) {
      for (int index = blockIdx.x; index < tasks; index += gridDim.x) {
        const Task task = task_of(index);
        const int64_t k = int64_t(task.first) * kStageDepth + slab * kSlabDepth;
        Copies<S::kTileM, kAAlongK, width> copies_a(a, task.row, task.batch_x, task.batch_y, k);
        Copies<S::kTileN, kBAlongK, width> copies_b(b, task.column, task.batch_x, task.batch_y, k);
        if (index == blockIdx.x) ptx::wait_for_launch_before();
        int64_t k_left = a.depth - k;
        for (int step = task.first; step < task.end; ++step, position.next(stages), k_left -= kStageDepth) {
          ptx::mbarrier_wait(empty + position.stage * 8, position.parity ^ 1);
          const ptx::SharedAddress to = ring_begin + position.stage * S::kShape.stage_bytes + slab * S::kSlabBytes;
          if (k_left > 0) {  // else nobody multiplies the slab
            const int left = static_cast<int>(min(k_left, int64_t(kSlabDepth)));
            copies_a.start(to, left);
            copies_b.start(to + S::kTileM * kRowBytes, left);
          }
          ptx::mbarrier_arrive_when_copied(full + position.stage * 8);
        }
      }
    };
    a.wide&& b.wide ? copy_all(std::integral_constant<int, 16>{}) : copy_all(std::integral_constant<int, 8>{});
    return;
  }

  // ---- warps that multiply ----
  ptx::wait_for_launch_before();
  if constexpr (S::kTakes) ptx::take_registers<184>();
  const int warp_m = warp % (S::kTileM / S::kWarpM) * S::kWarpM, warp_n = warp / (S::kTileM / S::kWarpM) * S::kWarpN;
  const int place_a = staged::place_of_lane<kAAlongK, S::kWarpM>(warp_m);
  const int place_b = staged::place_of_lane<kBAlongK, S::kWarpN>(warp_n);
  double from_a[2][kM][8], from_b[2][kN][4];
  // A slab's fragments.
  const auto load = [&](int set, const char* slab) {
#pragma unroll
    for (int k = 0; k < kSlabDepth; k += 4) {
#pragma unroll
      for (int i = 0; i < kM * 2; ++i) {
        from_a[set][i / 2][k / 2 + i % 2] = staged::load<kAAlongK>(slab, place_a, i * 8, k);
      }
#pragma unroll
      for (int j = 0; j < kN; ++j) {
        from_b[set][j][k / 4] = staged::load<kBAlongK>(slab + S::kTileM * kRowBytes, place_b, j * 8, k);
      }
    }
  };
  const auto wait_for_stage = [&] {
    ptx::mbarrier_wait(full + position.stage * 8, position.parity);
    return shared + position.stage * S::kShape.stage_bytes;
  };
  // Behind multiplications of all that was loaded of it: an arrival would not wait for loads.
  const auto release_stage = [&](int stage) {
    __syncwarp();
    hopper::release<1>(empty + stage * 8);
  };
  for (int index = blockIdx.x; index < tasks; index += gridDim.x) {
    const Task task = task_of(index);
    double acc[kM][kN][4] = {}, total[kM][kN][4] = {};
    const auto multiply = [&](int set) {
#pragma unroll
      for (int i = 0; i < kM; ++i) {
#pragma unroll
        for (int j = 0; j < kN; ++j) ptx::multiply(acc[i][j], from_a[set][i], from_b[set][j]);
      }
    };
    // The next slab's fragments are loaded while one is multiplied. Of several stages the ring has at least two.
    const char* stage = wait_for_stage();
    load(0, stage);
    const bool adds = !apart && all_stages > groups.steps;
    for (int left = task.end - task.first; left > 0;) {
      const int after = adds ? max(left - groups.steps, 0) : 0;  // this group
      for (; left > max(after, 1); --left) {
#pragma unroll
        for (int slab = 0; slab + 1 < kSlabs; ++slab) {
          multiply(slab % 2);
          load((slab + 1) % 2, stage + (slab + 1) * S::kSlabBytes);
        }
        const int read = position.stage;
        position.next(stages);
        stage = wait_for_stage();
        multiply((kSlabs - 1) % 2);
        release_stage(read);
        load(0, stage);
      }
      if (after == 0) {  // the last stage, of which k may end in any slab
        const int slabs = steps_of(a.depth, kSlabDepth) - (task.end - 1) * kSlabs;
#pragma unroll
        for (int slab = 0; slab < kSlabs; ++slab) {
          if (slab > 0 && slab >= slabs) break;
          multiply(slab % 2);
          if (slab + 1 < min(slabs, kSlabs)) load((slab + 1) % 2, stage + (slab + 1) * S::kSlabBytes);
        }
        release_stage(position.stage);
        position.next(stages);
        left = 0;
      }
      if (!adds) break;
#pragma unroll
      for (int i = 0; i < kM; ++i) {
#pragma unroll
        for (int j = 0; j < kN; ++j) {
          add_group(total[i][j], acc[i][j]);
          if (left > 0) acc[i][j][0] = acc[i][j][1] = acc[i][j][2] = acc[i][j][3] = 0;
        }
      }
    }
    // ---- epilogue ----
    double* const to =
        (apart ? static_cast<double*>(groups.sums) + task.group * groups.outputs : c) + task.matrix * m * n;
    const int64_t row = task.row + warp_m + lane / 4, column = task.column + warp_n + lane % 4 * 2;
    const bool pairs = aligned_pairs(to, n);
    if (!apart) staged::add_bias(acc, bias, column, n);
#pragma unroll
    for (int i = 0; i < kM; ++i) {
#pragma unroll
      for (int j = 0; j < kN; ++j) staged::store_fragment(acc[i][j], to, row + i * 16, column + j * 8, m, n, pairs);
    }
    __syncwarp();  // multiplications are the whole warp's
  }
#endif
}

cudaError_t run(const Call& call) {
  const Problem& p = call.problem;
  return with_shape<kShapeCount>(call, [&](auto index) {
    using S = Tiling<index()>;
    const KGroups groups = groups_for(call, true, kStageDepth);
    const bool apart = groups.apart > 1;
    const cudaError_t error =
        staged::launch_layout<double>(call, [&](auto a_along_k, auto b_along_k, const Source& a, const Source& b) {
          const int64_t down = ceil_div(p.m, int64_t(S::kTileM)), across = ceil_div(p.n, int64_t(S::kTileN));
          return launch(&kernel<S, a_along_k(), b_along_k()>, call.step(apart ? -2 : -1), a, b,
                        static_cast<double*>(call.c), static_cast<const double*>(call.bias), p.m, p.n,
                        static_cast<int>(down), static_cast<int>(across), static_cast<int>(inner_batches_of(p)),
                        static_cast<int>(down * across * p.batches), call.prepared.stages, groups);
        });
    return error != cudaSuccess || !apart ? error : add_groups_apart<double, double>(call, groups);
  });
}

}  // namespace treduce::matmul::small_f64
