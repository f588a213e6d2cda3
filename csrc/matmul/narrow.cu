// persistent for few outputs of tfloat32, each a chain of dependent multiplications. One of wgmma takes 13 cycles where its first operand is
// in registers, 18 where it is in shared memory, and one of mma.sync 24 (8 columns, NVIDIA H200, 2026-12-01). And registers can be filled
// from any place: both operands are read where they lie, along k or across.
//
// Order:   that of the rest of persistent.
// Mapping: lines of one operand (W) are the rows of a multiplication, 16 to 64; those of the other (X) are its columns, 8 to 32. Two producer
//          threads, one an operand, keep a deep ring full. One warp group multiplies. A warp loads the registers of the next part of k between
//          the multiplications of this one: these are queued two deep, so what a warp does between two parts is waited for. X across k is
//          turned round in shared memory by two warps of their own, because multiplications read it along k. Tiles may be groups of k.
// Source:  this project; registers beside multiplications under way: V. Thakkar et al., CUTLASS 3, mixed-input products.
#include "narrow.h"

#include "../primitives/ptx/launch.cuh"
#include "../primitives/ptx/matrix.cuh"
#include "few_outputs.cuh"
#include "groups.cuh"
#include "hopper.cuh"

namespace treduce::matmul::narrow {

using namespace hopper;
using few_outputs::Maps;
using ptx::tfloat32;

constexpr int kSteps = kSlabs * 4;  // multiplications of a part
constexpr int kPartDepth = kSlabs * kDepth<tfloat32>;
constexpr int kMostStages = few_rows::kMostStages;
using Position = RingPosition<kMostStages>;

struct Work {
  int64_t line_pitch, column_pitch;  // of C
  int lines, columns;                // of W, of X
  int tiles_of_x, tiles, tasks;
  int steps, whole_steps;  // stages of all of k; of which k has all
  int stages;              // of the ring
  bool bias_of_lines;
  KGroups groups;  // in stages
};

// Lines across k in shared memory: boxes of up to 32 lines, whose rows are steps of k. The 16-byte chunks of a row are swizzled.
template <int kLines, int kParts>
struct AcrossK {
  static constexpr int kBoxLines = kLines < 32 ? kLines : 32, kBoxes = kLines / kBoxLines;
  static constexpr int kPitch = kBoxLines * 4, kChunks = kPitch / 16;
  static constexpr int kBoxRows = kParts * kPartDepth, kBoxBytes = kBoxRows * kPitch;

  TREDUCE_DEVICE static int place(int k, int chunk) { return k * kPitch + (chunk ^ k * kChunks / 8 % kChunks) * 16; }
};

// One of the shapes of shapes.h.
template <int kIndex, bool kWAlongK_, bool kXAlongK_>
struct Tiling {
  static constexpr Shape kShape = kShapes[kIndex];
  static constexpr int kLines = kShape.lines, kColumns = kShape.columns, kParts = kShape.parts;
  static constexpr bool kWAlongK = kWAlongK_, kXAlongK = kXAlongK_, kTurns = !kXAlongK;
  static constexpr int kStageSlabs = kParts * kSlabs, kStageDepth = kParts * kPartDepth;
  static constexpr int kBytesW = kStageSlabs * kLines * kRowBytes, kBytesX = kStageSlabs * kColumns * kRowBytes;
  static constexpr int kStageBytes = kShape.stage_bytes(kTurns), kThreads = threads(kTurns);
  static constexpr int kTurned = kBytesW + (kTurns ? kBytesX : 0);  // where X lies along k, in a stage
  static_assert(kStageBytes == kTurned + kBytesX);
};

// A lane's registers of a part: see WgmmaRegisters.
using Fragments = uint32_t[kSteps][4];

// Loads the fragments of W: those of this warp's lines.
template <class S>
class Reader {
  using Across = AcrossK<S::kLines, S::kParts>;

 public:
  static constexpr int kPartBytes = S::kWAlongK ? kSlabs * S::kLines * kRowBytes : kPartDepth * Across::kPitch;

  TREDUCE_DEVICE Reader(int warp, int lane) {
    if constexpr (S::kWAlongK) {
      line_ = warp * 16 + lane / 4;
      place_ = (warp * 16 + lane % 16) * kRowBytes + (lane / 16 ^ lane % 8) * 16;
    } else {
      // A lane's two rows are lines beside each other. Which they are: so that 16 lanes meet all banks.
      const int pair = lane / 4, chunk = pair / 2 % 2 * (Across::kChunks / 2) + pair / 4 + warp % 2 * 2;
      line_ = warp / 2 * 32 + chunk * 4 + pair % 2 * 2;
      place_ = warp / 2 * Across::kBoxBytes + Across::place(lane % 4, chunk) + pair % 2 * 8;
    }
  }

  // The line of the lane's first or second row.
  TREDUCE_DEVICE int line(int row) const { return line_ + row * (S::kWAlongK ? 8 : 1); }

  // The fragment of multiplication s of a part, which begins at `part`.
  TREDUCE_DEVICE void load(uint32_t (&to)[4], uint32_t part, int s) const {
    if constexpr (S::kWAlongK) {
      ptx::load_matrices<false>(to, part + (place_ ^ s % 4 * 32) + s / 4 * (S::kLines * kRowBytes));
    } else {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const uint2 words =
            ptx::load_shared<uint2>(part + (place_ ^ i * Across::kPitch / 2) + (s * 8 + i * 4) * Across::kPitch);
        to[i * 2] = words.x;
        to[i * 2 + 1] = words.y;
      }
    }
  }

 private:
  int line_, place_;
};

// Turns a stage of X round. Who calls: all lanes of a warp.
template <class S>
TREDUCE_DEVICE void turn(uint32_t from, uint32_t to) {
  using Across = AcrossK<S::kColumns, S::kParts>;
  const int lane = threadIdx.x % 32;
#pragma unroll 4
  for (int slab = 0; slab < S::kStageSlabs; ++slab) {
#pragma unroll
    for (int chunk = 0; chunk < Across::kChunks; ++chunk) {
      const uint4 four = ptx::load_shared<uint4>(from + Across::place(slab * 32 + lane, chunk));
      const uint32_t words[] = {four.x, four.y, four.z, four.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int column = chunk * 4 + i, row = (slab * S::kColumns + column) * kRowBytes;
        ptx::store_shared(to + row + (lane / 4 ^ column % 8) * 16 + lane % 4 * 4, words[i]);
      }
    }
  }
}

template <class S>
__global__ void __launch_bounds__(S::kThreads, 1)
    kernel(TREDUCE_GRID_CONSTANT Maps maps_w, TREDUCE_GRID_CONSTANT Maps maps_x, TREDUCE_GRID_CONSTANT Work work,
           float* c, const float* bias) {
#ifdef TREDUCE_SM90A
  ptx::allow_launch_after();
  SHARED(Ring<kMostStages>, ring);
  SHARED_ARRAY(uint64_t, turned, kMostStages);  // barriers: X of a stage lies along k
  using TileX = Tile<tfloat32, S::kColumns, true>;
  char* const stages = aligned_tiles(dynamic_shared<char>());
  const uint32_t first_stage = ptx::shared_address(stages);
  if (threadIdx.x == 0) {
    ptx::prefetch_tensor_map(&maps_w.stage);
    ptx::prefetch_tensor_map(&maps_x.stage);
    if constexpr (S::kTurns) {
      for (int s = 0; s < work.stages; ++s) ptx::mbarrier_init(turned + s, 1);
    }
    ring.init(kWarpGroup / 32, work.stages, kProducers);
  }
  __syncthreads();
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x / 32), 0), lane = threadIdx.x % 32;
  const bool apart = work.groups.apart > 1;
  struct Task {
    int group, line, column, first, steps;
  };
  const auto task_of = [&](int number) {
    const int group = apart ? number / work.tiles : 0, tile = number - group * work.tiles, w = tile / work.tiles_of_x;
    const int first = group * work.groups.steps;
    return Task{group, w * S::kLines, (tile - w * work.tiles_of_x) * S::kColumns, first,
                apart ? min(work.groups.steps, work.steps - first) : work.steps};
  };
  const auto for_each_task = [&](auto&& body) {
    for (int number = blockIdx.x; number < work.tasks; number += gridDim.x) body(task_of(number));
  };

  // ---- producers ----
  if (warp >= kMultiplyWarps && warp < kMultiplyWarps + kProducers) {
    if (!ptx::elect_one()) return;
    const auto produce = [&](auto along_k, auto lines, const Maps& maps, auto first_line, int offset) {
      constexpr int kLines = lines(), kSlabBytes = kLines * kRowBytes;
      using Across = AcrossK<kLines, S::kParts>;
      Position position;
      Task task = task_of(blockIdx.x);  // found before the wait
      ptx::wait_for_launch_before();
      for (int number = blockIdx.x; number < work.tasks; number += gridDim.x, task = task_of(number)) {
        const int line = first_line(task);
        for (int step = task.first; step < task.first + task.steps; ++step, position.next(work.stages)) {
          wait_to_overwrite(ring.empty + position.stage, position.parity ^ 1);
          uint64_t* const full = ring.full + position.stage;
          char* const to = stages + position.stage * S::kStageBytes + offset;
          ptx::mbarrier_arrive_expect(full, S::kStageSlabs * kSlabBytes);
          if constexpr (!along_k()) {
#pragma unroll
            for (int box = 0; box < Across::kBoxes; ++box) {
              ptx::load_box(to + box * Across::kBoxBytes, &maps.stage, {line + box * 32, step * S::kStageDepth, 0, 0},
                            full);
            }
          } else if (step < work.whole_steps) {
            ptx::load_box(to, &maps.stage, {0, line, step * S::kStageSlabs, 0}, full);
          } else {
#pragma unroll 1
            for (int slab = 0; slab < S::kStageSlabs; ++slab) {
              const int k = (step * S::kStageSlabs + slab) * kDepth<tfloat32>;
              ptx::load_box(to + slab * kSlabBytes, &maps.slab, {k, line, 0, 0}, full);
            }
          }
        }
      }
    };
    using Lines = std::integral_constant<int, S::kLines>;
    using Columns = std::integral_constant<int, S::kColumns>;
    if (warp == kMultiplyWarps) {
      produce(std::bool_constant<S::kWAlongK>(), Lines(), maps_w, [](const Task& task) { return task.line; }, 0);
    } else {
      produce(
          std::bool_constant<S::kXAlongK>(), Columns(), maps_x, [](const Task& task) { return task.column; },
          S::kBytesW);
    }
    return;
  }

  // ---- who turn X round: a warp a stage ----
  if constexpr (S::kTurns) {
    if (warp >= kMultiplyWarps + kProducers) {
      int64_t count = 0;
      for_each_task([&](const Task& task) { count += task.steps; });
      const int own = warp - kMultiplyWarps - kProducers;
      Position position;
      for (int64_t i = 0; i < count; ++i, position.next(work.stages)) {
        // For each, so that none waits for a stage a round ahead: its barrier would seem to be past that.
        ptx::mbarrier_wait(ring.full + position.stage, position.parity);
        if (i % kTurners != own) continue;
        const uint32_t stage = first_stage + position.stage * S::kStageBytes;
        turn<S>(stage + S::kBytesW, stage + S::kTurned);
        ptx::fence_async_proxy();
        __syncwarp();
        if (lane == 0) ptx::mbarrier_arrive(turned + position.stage);
      }
      return;
    }
  }

  // ---- who multiply ----
  ptx::wait_for_launch_before();
  const bool has_lines = warp * 16 < S::kLines;
  const Reader<S> reader(warp, lane);
  const uint32_t full = ptx::kept_shared_address(ring.full), empty = ptx::kept_shared_address(ring.empty);
  const uint32_t full_of_turned = ptx::kept_shared_address(turned);
  Position position, done;  // of the stage that is multiplied, and of the next that is released
  Fragments even = {}, odd = {};
  for_each_task([&](const Task& task) {
    float acc[S::kColumns / 2], total[S::kColumns / 2] = {};
    const bool adds = !apart && work.steps > work.groups.steps;
    int left = task.steps, of_group = 0;  // stages that are left, and that are begun of a group of k
    const auto wait = [&](const Position& at) {
      ptx::mbarrier_wait(full + at.stage * 8, at.parity);
      if constexpr (S::kTurns) ptx::mbarrier_wait(full_of_turned + at.stage * 8, at.parity);
    };
    const auto load = [&](Fragments& to, uint32_t part) {
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
        if (has_lines) reader.load(to[s], part, s);
      }
    };
    // Begins the multiplications of a part of a stage, whose fragments are `now`, and loads those of the next into `other`. There is no branch
    // before the last: the compiler would have each wait for the one before. So of a stage that has not come yet they are whatever lies there,
    // and loaded anew behind them.
    const auto multiply = [&](auto part, Fragments& now, Fragments& other, const Position& next_stage) {
      constexpr int kPart = part(), kNext = (kPart + 1) % S::kParts;
      constexpr bool kReleases = kPart == S::kParts - 1;
      const uint32_t stage = first_stage + position.stage * S::kStageBytes;
      const uint32_t tile_x = (stage + S::kTurned + kPart * kSlabs * TileX::kBytes) >> 4 | 1 << 16;
      const Position& next = kNext == 0 ? next_stage : position;
      const uint32_t from = first_stage + next.stage * S::kStageBytes + kNext * reader.kPartBytes;
      const bool more = kNext > 0 || left > 1, loads = more && has_lines, releases = left < task.steps;
      bool ready = false;
      ptx::wgmma_touch(acc);
#pragma unroll
      for (int s = 0; s < kSteps; ++s) ptx::wgmma_touch(now[s]);
      ptx::wgmma_fence();
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
        const uint64_t of_x = TileX::descriptor(tile_x + s / 4 * (TileX::kBytes >> 4), 0, s % 4);
        ptx::WgmmaRegisters<tfloat32, S::kColumns>::multiply(acc, now[s], of_x, s > 0 || kPart > 0 || of_group > 0);
        if (s == 0) {
          ptx::wgmma_commit();
          ready = ptx::mbarrier_test(full + next.stage * 8, next.parity);
          if constexpr (S::kTurns) ready &= ptx::mbarrier_test(full_of_turned + next.stage * 8, next.parity);
          ptx::wgmma_wait<1>();
#pragma unroll
          for (int i = 0; i < kSteps; ++i) ptx::wgmma_touch(other[i]);  // in use until here
        } else {
          if (loads) reader.load(other[s - 1], from, s - 1);
        }
        if (s == 2 && kReleases) ptx::mbarrier_arrive_if(releases && lane == 0, empty + done.stage * 8);
      }
      if (loads) reader.load(other[kSteps - 1], from, kSteps - 1);
      ptx::wgmma_commit();
      ptx::wgmma_touch(acc);
      if (kReleases && releases) done.next(work.stages);
      if (more && !ready) {
        wait(next);
        load(other, from);
      }
    };
    const auto multiply_stage = [&](Fragments& first, Fragments& second) {
      Position next = position;
      next.next(work.stages);
      multiply(std::integral_constant<int, 0>(), first, second, next);
      if constexpr (S::kParts == 2) multiply(std::integral_constant<int, 1>(), second, first, next);
      position = next;
      --left;
      ++of_group;
    };

    wait(position);
    load(even, first_stage + position.stage * S::kStageBytes);
    while (left > 0) {
      multiply_stage(even, odd);
      if (S::kParts == 1 && left > 0) multiply_stage(odd, even);
      if (adds && of_group == work.groups.steps) {
        ptx::wgmma_wait<0>();
        ptx::wgmma_touch(acc);
        add_group(total, acc);
        of_group = 0;
      }
    }
    ptx::wgmma_wait<0>();
    ptx::wgmma_touch(acc);
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      ptx::wgmma_touch(even[s]);
      ptx::wgmma_touch(odd[s]);
    }
    release<1>(empty + done.stage * 8);
    done.next(work.stages);
    if (adds && of_group > 0) add_group(total, acc);

    if (!has_lines) return;
    float* const to = apart ? static_cast<float*>(work.groups.sums) + task.group * work.groups.outputs : c;
#pragma unroll
    for (int i = 0; i < S::kColumns / 2; ++i) {
      const int line = task.line + reader.line(i / 2 % 2), column = task.column + i / 4 * 8 + lane % 4 * 2 + i % 2;
      if (line >= work.lines || column >= work.columns) continue;
      to[line * work.line_pitch + column * work.column_pitch] =
          round_to<float>(with_bias(acc[i], apart ? nullptr : bias, work.bias_of_lines ? line : column));
    }
  });
#endif
}

template <bool kAlongK, int kLines, int kParts>
cudaError_t encode_operand(const Boxes& boxes, Maps* maps) {
  if constexpr (kAlongK) {
    return few_outputs::encode_maps<tfloat32, kParts * kSlabs>(boxes, kLines, maps);
  } else {
    using Across = AcrossK<kLines, kParts>;
    return encode(boxes, kMapType<tfloat32>, Across::kBoxLines, Across::kBoxRows, &maps->stage, Fetch::lines,
                  swizzle_of(Across::kPitch));
  }
}

template <class S>
cudaError_t launch_shape(const Call& call, const Boxes& w, const Boxes& x) {
  const Problem& p = call.problem;
  const Decisions& d = call.prepared;
  const bool of_a = d.few_columns;
  Maps maps_w = {}, maps_x = {};
  cudaError_t error = encode_operand<S::kWAlongK, S::kLines, S::kParts>(w, &maps_w);
  if (error == cudaSuccess) error = encode_operand<S::kXAlongK, S::kColumns, S::kParts>(x, &maps_x);
  if (error != cudaSuccess) return error;
  Work work;
  work.lines = static_cast<int>(of_a ? p.m : p.n);
  work.columns = static_cast<int>(of_a ? p.n : p.m);
  work.line_pitch = of_a ? p.n : 1;
  work.column_pitch = of_a ? 1 : p.n;
  work.bias_of_lines = !of_a;
  work.steps = static_cast<int>(ceil_div(p.k, S::kStageDepth));
  work.whole_steps = static_cast<int>(p.k / S::kStageDepth);
  work.tiles_of_x = ceil_div(work.columns, S::kColumns);
  work.tiles = work.tiles_of_x * ceil_div(work.lines, S::kLines);
  work.stages = d.stages;
  work.groups = groups_for(call, true, S::kStageDepth);
  work.tasks = work.tiles * work.groups.apart;
  error = launch(&kernel<S>, call.step(d.apart ? -2 : -1), maps_w, maps_x, work, static_cast<float*>(call.c),
                 static_cast<const float*>(call.bias));
  return error != cudaSuccess || !d.apart ? error : add_groups_apart<tfloat32, float>(call, work.groups);
}

cudaError_t run(const Call& call, const Boxes& a, const Boxes& b) {
  const bool of_a = call.prepared.few_columns;
  const Boxes &w = of_a ? a : b, &x = of_a ? b : a;
  return with_shape<kShapeCount>(call, [&](auto index) {
    return with_directions<true>(w.along_k, x.along_k, [&](auto w_along_k, auto x_along_k) {
      return launch_shape<Tiling<index(), w_along_k(), x_along_k()>>(call, w, x);
    });
  });
}

}  // namespace treduce::matmul::narrow
