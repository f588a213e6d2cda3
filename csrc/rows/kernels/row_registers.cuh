// The kernel of row_registers.cu, which says what it does. Compiled once an op, in ../ops.
#pragma once

#include "../held.cuh"

namespace treduce::rows::row_registers {

template <template <class> class RowOp, class Source, int kSize, int kStripes>
__global__ void __launch_bounds__((kStripes < Pairwise::kStripes ? kShortThreads : kThreads<RowOp, Source, kSize>),
                                  (kStripes < Pairwise::kStripes ? 1 : kResident<RowOp, Source>))
    kernel(TREDUCE_GRID_CONSTANT Parameters<Source> p, int warps, int lanes) {
  using Rows = Held<RowOp, Source, kSize, kStripes>;
  const int of_team = Rows::kRows * (kWarp / lanes);  // rows that a team of warps holds at once
  const int teams = blockDim.x / kWarp / warps;
  const int thread = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int64_t step = static_cast<int64_t>(gridDim.x) * teams * of_team;
  int turn = 0;
  for (int64_t begin = static_cast<int64_t>(blockIdx.x) * teams * of_team; begin < p.problem.rows; begin += step) {
    const int64_t row = begin + warp / warps * of_team + thread / lanes;
    Rows rows(p, row, kWarp / lanes, int64_t{warp % warps} * Pairwise::kChunk, thread % lanes);
    rows.run(p, lanes, [&](auto fold, auto value) {
      using Fold = decltype(fold);
      value = fold_warps<Fold>(value, warps, turn);
      turn ^= 1;
      return value;
    });
    rows.store(p, thread % lanes == 0 && warp % warps == 0);
  }
}

template <template <class> class RowOp>
cudaError_t launch_op(Tag<RowOp>, const Call& call) {
  return dispatch_source<true>(call, [&](auto type, auto size) -> cudaError_t {
    using Source = typename decltype(type)::type;
    constexpr int kSize = decltype(size)::value;
    const auto run = [&](auto stripes) {
      return launch(&kernel<RowOp, Source, kSize, decltype(stripes)::value>, call.shape(), parameters<Source>(call),
                    call.prepared.warps, call.prepared.lanes);
    };
    if constexpr (sizeof(typename Source::Acc) == 4 && !Source::kAdjacent) {
      if (call.prepared.stripes == 1) return run(std::integral_constant<int, 1>{});
      if constexpr (kSize > 1) {
        if (call.prepared.stripes == 2) return run(std::integral_constant<int, 2>{});
        if (call.prepared.stripes == 4) return run(std::integral_constant<int, 4>{});
      }
    }
    return run(std::integral_constant<int, Pairwise::kStripes>{});
  });
}

}  // namespace treduce::rows::row_registers
