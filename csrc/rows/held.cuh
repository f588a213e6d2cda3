// Rows that stay in registers from the first reduction to the output.
#pragma once

#include "rows.cuh"

namespace treduce::rows {

// What a thread holds: its part of a chunk of one row, or of kRows short rows.
template <template <class> class RowOp, class Source, int kSize, int kStripes, int kUsed = 0, bool kQuickTexts = true>
struct Held {
  using Piece = Chunk<RowOp, Source, kSize, kStripes, kUsed, kQuickTexts>;
  using Op = typename Piece::Op;
  using A = typename Piece::A;
  using Values = typename Op::Values;
  static constexpr int kRows = rows_at_once(kSize, kStripes);

  // Rows row, row + row_step, ..., as far as there are such rows, from element `first` on; `lanes` threads share them.
  struct Place {
    int64_t row, first;
    int row_step, lanes, count;
    typename Piece::Place of_row;

    TREDUCE_DEVICE Place(const Problem& problem, int64_t row, int log2_step, int64_t first, int lane, int lanes)
        : row(row), first(first), row_step(1 << log2_step), lanes(lanes) {
      constexpr int kMost = kRows * warp::kLanes;
      const int64_t all = problem.rows - row;
      const int left = static_cast<int>(all < 0 ? 0 : all < kMost ? all : kMost);
      count = (left + row_step - 1) >> log2_step;
      if (count > kRows) count = kRows;
      if (left == 0) this->row = problem.rows - 1;
      of_row = Piece::place(problem, this->row, first, lane);
    }
    // The r-th row, or the last one again: nothing asks whether it is there, before its output is stored.
    TREDUCE_DEVICE int64_t at(int r) const {
      return kRows == 1 ? row : row + (r < count ? r : count > 0 ? count - 1 : 0) * row_step;
    }
  };

  // Elements as they lie in memory. Apart from what they become, so that a thread asks for all of them before it waits for any.
  struct Packs {
    typename Piece::Packs of_row[kRows];

    TREDUCE_DEVICE Packs(const Parameters<Source>& p, const Place& place) {
      typename Piece::Begin begin(p, place.row, place.first);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        of_row[r] = Piece::fetch(p, begin, place.of_row);
        if (r + 1 < kRows) begin = begin.next(p, place.at(r + 1), place.first, place.row_step, r + 1 < place.count);
      }
    }
  };

  Piece piece[kRows];
  Values values[kRows];
  Values own = {};  // of the row that this thread finishes
  const Place place;

  TREDUCE_DEVICE Held(const Parameters<Source>& p, const Place& place, const Packs& packs) : place(place) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      values[r] = begin_row<Op>(p, place.at(r));
      piece[r].take(p, packs.of_row[r]);
    }
  }

  // All reductions. join(Fold{}, node) gives the node of the row from that of this warp.
  template <class Join>
  TREDUCE_DEVICE void run(const Parameters<Source>& p, Join join) {
    stage<0>(p, join);
    if constexpr (Op::kStages > 1) stage<1>(p, join);
  }

  // The outputs; what a row has one of, if this warp `is_first` of those that share it.
  TREDUCE_DEVICE void store(const Parameters<Source>& p, bool is_first) const {
    const int lane = place.of_row.lane, mine = lane / Piece::kPacks;
    if constexpr (Op::kHasElements) {
      const int count = wants_elements<Op>(p.problem) ? place.count : 0;  // a branch around it would cost registers
      Piece::store(piece, p, values, place.row, place.row_step, count, place.first, place.of_row);
    }
    if (is_first && lane % Piece::kPacks == 0 && mine < place.count) store_row<Op>(p, own, place.at(mine));
  }

 private:
  template <int kStage, class Join>
  TREDUCE_DEVICE void stage(const Parameters<Source>& p, Join& join) {
    using Fold = typename Op::template Fold<kStage>;
    constexpr int kPacks = Piece::kPacks;
    typename Fold::Acc node[kRows][Piece::template kNodes<Fold>];
    Piece::template map<kStage>(piece, p, values, place.first, place.of_row, node);
    auto mine = fold_lanes<Fold, kPacks>(node, place.lanes);
    if constexpr (kRows == 1) mine = join(Fold{}, mine);  // several rows lie in one warp
    const Constants<A> constants = constants_of<A>(p);
    const auto result = Op::template finish<kStage>(own, mine, constants);
    Op::template result<kStage>(own) = result;
    if constexpr (Op::kHasElements || kStage + 1 < Op::kStages) {
      const int team = threadIdx.x % warp::kLanes & ~(place.lanes - 1);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        Op::template result<kStage>(values[r]) = kRows == 1 ? result : warp::from(result, team + r * kPacks);
      }
    }
  }
};

}  // namespace treduce::rows
