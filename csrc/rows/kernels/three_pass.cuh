// The kernel of three_pass.cu, which says what it does. Compiled once an op, in ../ops.
#pragma once

#include "../rows.cuh"

namespace treduce::rows::three_pass {

constexpr int kDepth = 32;  // levels of the tree above what the warps of a block give at once

// The value of a stage, over the whole row.
template <int kStage, template <class> class RowOp, class Source, int kSize>
TREDUCE_DEVICE typename RowOp<typename Source::Acc>::template Fold<kStage>::Acc reduce_row(
    const Parameters<Source>& p, const typename RowOp<typename Source::Acc>::Values& values, int64_t row, int warps,
    int& turn) {
  using Piece = Chunk<RowOp, Source, kSize, Pairwise::kStripes>;
  using Fold = typename Piece::Op::template Fold<kStage>;
  using Acc = typename Fold::Acc;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  Neighbours<Fold, kDepth> nodes;
  const int64_t step = int64_t{warps} * Pairwise::kChunk;
  for (int64_t begin = 0; begin < p.problem.length; begin += step) {
    const int64_t first = begin + int64_t{warp} * Pairwise::kChunk;
    const auto place = Piece::place(lane, p.problem.length - first);
    Acc leaf[1][kOfStripe], node[1];
    Piece piece;
    piece.load(p, row, first, place);
    if constexpr (kStage == 1) piece.template replay<0>(p, values, first, place);
    piece.template map<kStage>(p, values, first, place, leaf[0]);
    fold_lanes<Fold, kSize, 1>(leaf, kWarp, node);
    nodes.push(fold_warps<Fold>(node[0], warps, turn));
    turn ^= 1;
  }
  return nodes.value();
}

template <template <class> class RowOp, class Source, int kSize>
__global__ void __launch_bounds__((kThreads<RowOp, Source, kSize>), 1)
    kernel(TREDUCE_GRID_CONSTANT Parameters<Source> p, int warps) {
  using Piece = Chunk<RowOp, Source, kSize, Pairwise::kStripes>;
  using Op = typename Piece::Op;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const Constants<typename Op::Acc> constants{static_cast<typename Op::Acc>(p.problem.eps), p.problem.length};
  int turn = 0;
  for (int64_t row = blockIdx.x; row < p.problem.rows; row += gridDim.x) {
    auto values = begin_row<Op>(p, row);
    Op::template finish<0>(values, reduce_row<0, RowOp, Source, kSize>(p, values, row, warps, turn), constants);
    if constexpr (Op::kStages > 1) {
      Op::template finish<1>(values, reduce_row<1, RowOp, Source, kSize>(p, values, row, warps, turn), constants);
    }
    if constexpr (Op::kHasElements) {
      const int64_t step = int64_t{warps} * Pairwise::kChunk;
      for (int64_t first = int64_t{warp} * Pairwise::kChunk; first < p.problem.length; first += step) {
        const auto place = Piece::place(lane, p.problem.length - first);
        Piece piece;
        piece.load(p, row, first, place);
        piece.template replay<0>(p, values, first, place);
        if constexpr (Op::kStages > 1) piece.template replay<1>(p, values, first, place);
        piece.store(p, values, row, first, place);
      }
    }
    if (threadIdx.x == 0) store_row<Op>(p, values, row);
  }
}

template <template <class> class RowOp>
cudaError_t launch_op(Tag<RowOp>, const Call& call) {
  return dispatch_source<false>(call, [&](auto type, auto size) {
    using Source = typename decltype(type)::type;
    return launch(&kernel<RowOp, Source, decltype(size)::value>, call.shape(), parameters<Source>(call),
                  call.prepared.warps);
  });
}

}  // namespace treduce::rows::three_pass
