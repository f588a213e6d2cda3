// The kernel of three_pass.cu, which says what it does. Compiled once an op, in ../ops.
#pragma once

#include "../rows.cuh"

namespace treduce::rows::three_pass {

constexpr int kDepth = 32;  // levels of the tree above what the warps of a block give at once

// The value of a stage, over the whole row.
template <int kStage, template <class> class RowOp, class Source, int kSize>
TREDUCE_DEVICE typename RowOp<typename Source::Acc>::template Fold<kStage>::Acc reduce_row(
    const Parameters<Source>& p, const typename RowOp<typename Source::Acc>::Values (&values)[1], int64_t row,
    int warps, int& turn) {
  using Piece = Chunk<RowOp, Source, kSize, Pairwise::kStripes>;
  using Fold = typename Piece::Op::template Fold<kStage>;
  using Acc = typename Fold::Acc;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  Neighbours<Fold, kDepth> nodes;
  const int64_t step = int64_t{warps} * Pairwise::kChunk;
  for (int64_t begin = 0; begin < p.problem.length; begin += step) {
    const int64_t first = begin + int64_t{warp} * Pairwise::kChunk;
    const auto place = Piece::place(p.problem, row, first, lane);
    Acc node[1][Piece::template kNodes<Fold>];
    Piece piece[1];
    piece[0].take(p, Piece::fetch(p, {p, row, first}, place));
    if constexpr (kStage == 1) Piece::template replay<0>(piece, p, values, first, place);
    Piece::template map<kStage>(piece, p, values, first, place, node);
    nodes.push(fold_warps<Fold>(fold_lanes<Fold, Piece::kPacks>(node, kWarp), warps, turn));
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
  const Constants<typename Op::Acc> constants = constants_of<typename Op::Acc>(p);
  int turn = 0;
  ptx::wait_for_launch_before();
  for (int64_t row = blockIdx.x; row < p.problem.rows; row += gridDim.x) {
    typename Op::Values values[1] = {begin_row<Op>(p, row)};
    Op::template result<0>(values[0]) =
        Op::template finish<0>(values[0], reduce_row<0, RowOp, Source, kSize>(p, values, row, warps, turn), constants);
    if constexpr (Op::kStages > 1) {
      Op::template result<1>(values[0]) = Op::template finish<1>(
          values[0], reduce_row<1, RowOp, Source, kSize>(p, values, row, warps, turn), constants);
    }
    if constexpr (Op::kHasElements) {
      const int64_t step = int64_t{warps} * Pairwise::kChunk;
      const int64_t end = wants_elements<Op>(p.problem) ? p.problem.length : 0;
      for (int64_t first = int64_t{warp} * Pairwise::kChunk; first < end; first += step) {
        const auto place = Piece::place(p.problem, row, first, lane);
        Piece piece[1];
        piece[0].take(p, Piece::fetch(p, {p, row, first}, place));
        Piece::template replay<0>(piece, p, values, first, place);
        if constexpr (Op::kStages > 1) Piece::template replay<1>(piece, p, values, first, place);
        Piece::store(piece, p, values, row, 1, 1, first, place);
      }
    }
    if (threadIdx.x == 0) store_row<Op>(p, values[0], row);
  }
}

template <template <class> class RowOp>
cudaError_t launch_op(Tag<RowOp>, const Call& call) {
  return dispatch_source<>(call, [&](auto type, auto size) {
    using Source = typename decltype(type)::type;
    return launch(&kernel<RowOp, Source, decltype(size)::value>, call.shape(), parameters<Source>(call),
                  call.prepared.warps);
  });
}

}  // namespace treduce::rows::three_pass
