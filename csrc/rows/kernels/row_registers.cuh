// The kernel of row_registers.cu, which says what it does. Compiled once an op, in ../ops.
#pragma once

#include "../held.cuh"

namespace treduce::rows::row_registers {

// Threads of a block at most, and blocks that an SM shall hold.
template <template <class> class RowOp, class Source, int kSize, int kStripes>
constexpr int kMost = kStripes < Pairwise::kStripes ? kShortThreads : kThreads<RowOp, Source, kSize>;
template <template <class> class RowOp, class Source, int kSize, int kStripes>
constexpr int kBlocks = kStripes == Pairwise::kStripes             ? kResident<RowOp, Source, kSize>
                        : RowOp<typename Source::Acc>::kInputs > 1 ? (kSize > 1 ? 4 : 2)
                        : kSize > 1                                ? (kSize == kWide ? 7 : 6)
                                                                   : (Source::kAdjacent ? 4 : 1);

template <template <class> class RowOp, class Source, int kSize, int kStripes, int kUsed = 0>
__global__ void __launch_bounds__((kMost<RowOp, Source, kSize, kStripes>), (kBlocks<RowOp, Source, kSize, kStripes>))
    kernel(TREDUCE_GRID_CONSTANT Parameters<Source> p, int log2_warps, int log2_lanes) {
  using Rows = Held<RowOp, Source, kSize, kStripes, kUsed>;
  if constexpr (kStripes > 1) log2_lanes = log2_of(threads_of_stripe(kSize));  // known to the compiler
  if constexpr (kStripes < Pairwise::kStripes) log2_warps = 0;
  const int warps = 1 << log2_warps, lanes = 1 << log2_lanes;
  const int of_team = Rows::kRows * (kWarp >> log2_lanes);  // rows that a team of warps holds at once
  const int teams = (blockDim.x / kWarp) >> log2_warps;
  const int thread = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int64_t step = static_cast<int64_t>(gridDim.x) * teams * of_team;
  int turn = 0;
  ptx::wait_for_launch_before();
  for (int64_t begin = static_cast<int64_t>(blockIdx.x) * teams * of_team; begin < p.problem.rows; begin += step) {
    const int64_t row = begin + (warp >> log2_warps) * of_team + (thread >> log2_lanes);
    const int64_t first = int64_t{warp & (warps - 1)} * Pairwise::kChunk;
    const typename Rows::Place place(p.problem, row, log2_of(kWarp) - log2_lanes, first, thread & (lanes - 1), lanes);
    Rows rows(p, place, {p, place});
    allow_launch_after();
    rows.run(p, [&](auto fold, auto value) {
      using Fold = decltype(fold);
      value = fold_warps<Fold>(value, warps, turn);
      turn ^= 1;
      return value;
    });
    rows.store(p, (warp & (warps - 1)) == 0);
  }
}

template <template <class> class RowOp>
cudaError_t launch_op(Tag<RowOp>, const Call& call) {
  return dispatch_source<Reads::adjacent, Reads::wide>(call, [&](auto type, auto size) -> cudaError_t {
    using Source = typename decltype(type)::type;
    constexpr int kSize = decltype(size)::value;
    const auto run = [&](auto stripes, auto used) {
      return launch(&kernel<RowOp, Source, kSize, decltype(stripes)::value, decltype(used)::value>, call.shape(),
                    parameters<Source>(call), log2_of(call.prepared.warps), log2_of(call.prepared.lanes));
    };
    constexpr std::integral_constant<int, 0> any{};
    if constexpr (Source::kAdjacent) {
      if (call.prepared.stripes == 1) {
        constexpr std::integral_constant<int, 1> one{};
        switch ((call.request.problem.length + kWarp - 1) / kWarp) {
          case 1: return run(one, std::integral_constant<int, 1>{});
          case 2: return run(one, std::integral_constant<int, 2>{});
          case 3: return run(one, std::integral_constant<int, 3>{});
          default: return run(one, std::integral_constant<int, 4>{});
        }
      }
    }
    if constexpr (sizeof(typename Source::Acc) == 4) {
      if constexpr (!Source::kAdjacent) {
        if (call.prepared.stripes == 1) return run(std::integral_constant<int, 1>{}, any);
      }
      if constexpr (kOneInner<Source, kSize>) {
        if (call.prepared.stripes == 2) return run(std::integral_constant<int, 2>{}, any);
        if (kSize == kWide || call.prepared.stripes == 4) return run(std::integral_constant<int, 4>{}, any);
      }
    }
    if constexpr (kSize == kWide) {
      return cudaErrorInvalidValue;
    } else {
      return run(std::integral_constant<int, Pairwise::kStripes>{}, any);
    }
  });
}

}  // namespace treduce::rows::row_registers
