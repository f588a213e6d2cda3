// Rows that stay in registers from the first reduction to the output.
#pragma once

#include "rows.cuh"

namespace treduce::rows {

// What a thread holds: its part of a chunk of one row, or of several short rows, kStripes stripes each.
template <template <class> class RowOp, class Source, int kSize, int kStripes>
struct Held {
  using Piece = Chunk<RowOp, Source, kSize, kStripes>;
  using Op = typename Piece::Op;
  using A = typename Piece::A;
  using Values = typename Op::Values;
  static constexpr int kRows = Pairwise::kStripes / kStripes;

  Piece piece[kRows];
  Values values[kRows];
  typename Piece::Place place[kRows];
  int64_t row, row_step, first;

  // Loads elements from `first` on of rows row, row + row_step, ... that there are.
  TREDUCE_DEVICE Held(const Parameters<Source>& p, int64_t row, int64_t row_step, int64_t first, int lane)
      : row(row), row_step(row_step), first(first) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const bool exists = row + r * row_step < p.problem.rows;
      place[r] = Piece::place(lane, exists ? p.problem.length - first : 0);
      piece[r].load(p, exists ? row + r * row_step : 0, first, place[r]);
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (row + r * row_step < p.problem.rows) values[r] = begin_row<Op>(p, row + r * row_step);
    }
  }

  // All reductions. join(Fold{}, node) gives the node of the row from that of this warp.
  template <class Join>
  TREDUCE_DEVICE void run(const Parameters<Source>& p, int lanes, Join join) {
    stage<0>(p, lanes, join);
    if constexpr (Op::kStages > 1) stage<1>(p, lanes, join);
  }

  // The outputs; what a row has one of, if this thread `is_first` of those that share it.
  TREDUCE_DEVICE void store(const Parameters<Source>& p, bool is_first) const {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int64_t mine = row + r * row_step;
      if (mine >= p.problem.rows) continue;
      if constexpr (Op::kHasElements) piece[r].store(p, values[r], mine, first, place[r]);
      if (is_first) store_row<Op>(p, values[r], mine);
    }
  }

 private:
  template <int kStage, class Join>
  TREDUCE_DEVICE void stage(const Parameters<Source>& p, int lanes, Join& join) {
    using Fold = typename Op::template Fold<kStage>;
    typename Fold::Acc leaf[kRows][kOfStripe], node[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) piece[r].template map<kStage>(p, values[r], first, place[r], leaf[r]);
    fold_lanes<Fold, kSize, kRows>(leaf, lanes, node);
    const Constants<A> constants{static_cast<A>(p.problem.eps), p.problem.length};
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if constexpr (kRows == 1) node[r] = join(Fold{}, node[r]);  // several rows lie in one warp
      Op::template finish<kStage>(values[r], node[r], constants);
    }
  }
};

}  // namespace treduce::rows
