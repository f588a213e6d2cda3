// The nodes that one thread computes of its columns: over a group of leaves of a chunk, or over neighbouring rows of short columns.
#pragma once

#include "columns.cuh"
#include "lanes.cuh"

namespace treduce::reduce::columns {

// kSize columns side by side.
template <class O, int kSize>
struct Side {
  struct Acc {
    typename O::Acc at[kSize];
  };
  TREDUCE_DEVICE static Acc identity() {
    Acc a;
#pragma unroll
    for (int c = 0; c < kSize; ++c) a.at[c] = O::identity();
    return a;
  }
  TREDUCE_DEVICE static Acc combine(const Acc& a, const Acc& b) {
    Acc sum;
#pragma unroll
    for (int c = 0; c < kSize; ++c) sum.at[c] = O::combine(a.at[c], b.at[c]);
    return sum;
  }
};

// Combines nodes of kSize columns by neighbours as they come, as Neighbours does (pairwise.h), with every level in registers.
template <class O, int kSize, int kDepth>
struct Tree {
  using Acc = typename Side<O, kSize>::Acc;
  typename O::Acc level[kDepth + 1][kSize];
  unsigned count = 0;

  TREDUCE_DEVICE void push(const Acc& node) {
    place<0>(node);
    ++count;
  }
  TREDUCE_DEVICE Acc value() const {
    Acc total = Side<O, kSize>::identity();
#pragma unroll
    for (int k = 0; k <= kDepth; ++k) {
#pragma unroll
      for (int c = 0; c < kSize; ++c) {
        if (count >> k & 1) total.at[c] = O::combine(level[k][c], total.at[c]);
      }
    }
    return total;
  }

 private:
  template <int k>
  TREDUCE_DEVICE void place(Acc node) {
    if constexpr (k < kDepth) {
      if (count >> k & 1) {
#pragma unroll
        for (int c = 0; c < kSize; ++c) node.at[c] = O::combine(level[k][c], node.at[c]);
        return place<k + 1>(node);
      }
    }
#pragma unroll
    for (int c = 0; c < kSize; ++c) level[k][c] = node.at[c];
  }
};

// A group is kLeaves neighbouring leaves of a chunk. kAhead stripes of them are loaded together: 16 rows in flight.
template <int kLeavesOf, int kAheadOf>
struct Grouping {
  static constexpr int kLeaves = kLeavesOf;
  static constexpr int kAhead = kAheadOf;
  static constexpr int kGroupsAChunk = Pairwise::kLanes / kLeaves;
};
using Tall = Grouping<kTallGroup, 16 / kTallGroup>;
using Low = Grouping<kLowGroup, 16 / kLowGroup>;
template <class Columns>
constexpr bool kTakesLow = takes_low_groups(Columns::kSize);

// Bytes and shorts fold in 32 bits where few of them come together.
template <class O, class T>
using Counted = Narrowed<O, std::is_integral_v<typename O::Acc> &&
                                (sizeof(T) <= 2 || (sizeof(T) == 4 && !std::is_same_v<O, Sum<typename O::Acc>>))>;

// Adds rows[s][l] of those that are there, `count` from the first, to the leaves.
template <class Op, int kLeaves, int kSize, class Source, int kAhead, int kRows, class Row>
TREDUCE_DEVICE void take(typename Op::Acc (&leaf)[kLeaves][kSize], const Source& x, const Row (&row)[kAhead][kRows],
                         int count) {
#pragma unroll
  for (int a = 0; a < kAhead; ++a) {
#pragma unroll
    for (int l = 0; l < kRows; ++l) {
      if (a * Pairwise::kLanes + l < count) {
        x.each(row[a][l], [&](int c, auto element) {
          auto& mine = leaf[l % kLeaves][c];
          mine = Op::combine(mine, widen<typename Op::Acc>(element));
        });
      }
    }
  }
}

// Whether full batches of rows get a branch-free path; not worth it where a row costs many instructions.
template <class Source, bool kEven>
constexpr bool kHasFull = !Source::kConverts && kEven;

// Returns the node over group q for the columns of a thread.
template <class O, class Groups = Tall, class Columns, class Source, bool kEven>
TREDUCE_DEVICE typename Side<O, Columns::kSize>::Acc fold_group(const Source& x, const OwnColumns<Source, Columns>& own,
                                                                const Rows<kEven>& rows, int64_t q, int64_t length) {
  constexpr int kRows = Groups::kLeaves;  // of a stripe
  constexpr int kLeaves = is_order_free<O> ? 1 : kRows;
  constexpr int kSize = Columns::kSize;
  constexpr int kAhead = Groups::kAhead;
  using Op = typename Counted<O, typename Source::Raw>::Op;
  using Row = typename OwnColumns<Source, Columns>::Row;
  const int64_t first = q / Groups::kGroupsAChunk * Pairwise::kChunk + q % Groups::kGroupsAChunk * kRows;
  const int64_t rest = length - first;
  const int count = rest < Pairwise::kChunk ? static_cast<int>(rest) : Pairwise::kChunk;
  typename Op::Acc leaf[kLeaves][kSize];
#pragma unroll
  for (int l = 0; l < kLeaves; ++l) {
#pragma unroll
    for (int c = 0; c < kSize; ++c) leaf[l][c] = Op::identity();
  }
  constexpr int kStep = kAhead * Pairwise::kLanes;
  int64_t at[kAhead][kRows];
  const auto find = [&](int row) {
#pragma unroll
    for (int a = 0; a < kAhead; ++a) rows.find(first + row + a * Pairwise::kLanes, at[a]);
  };
  int row = 0;
  if constexpr (kHasFull<Source, kEven>) {
#pragma unroll 1
    for (; count - row > kStep - Pairwise::kLanes + kRows - 1; row += kStep) {
      find(row);
      Row loaded[kAhead][kRows];
#pragma unroll
      for (int a = 0; a < kAhead; ++a) {
#pragma unroll
        for (int l = 0; l < kRows; ++l) loaded[a][l] = own.load(x, at[a][l]);
      }
      take<Op>(leaf, x, loaded, Pairwise::kChunk);
    }
  }
#pragma unroll 1
  for (; row < count; row += kStep) {
    find(row);
    Row loaded[kAhead][kRows] = {};
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
#pragma unroll
      for (int l = 0; l < kRows; ++l) {
        if (row + a * Pairwise::kLanes + l < count) loaded[a][l] = own.load(x, at[a][l]);
      }
    }
    // Where elements are converted, adding zeros takes less than a branch at each row.
    constexpr bool kAll = takes_zeros<O, Source> && sizeof(typename Source::Raw) < sizeof(typename Op::Acc);
    take<Op>(leaf, x, loaded, kAll ? Pairwise::kChunk : count - row);
  }
  typename Side<O, kSize>::Acc node;
#pragma unroll
  for (int c = 0; c < kSize; ++c) {
    typename Op::Acc of_column[kLeaves];
#pragma unroll
    for (int l = 0; l < kLeaves; ++l) of_column[l] = leaf[l][c];
    node.at[c] = static_cast<typename O::Acc>(thread::fold_neighbours<Op>(of_column));
  }
  return node;
}

// Short columns have one stripe, so a leaf is an element. The node over the first `count` of kRows rows; the others are zeros.
template <class O, class Columns, class Source, class Row, int kRows>
TREDUCE_DEVICE typename Side<O, Columns::kSize>::Acc fold_loaded(const Source& x, const Row (&row)[kRows], int count) {
  using Acc = typename O::Acc;
  if (takes_zeros<O, Source>) count = kRows;
  typename Side<O, Columns::kSize>::Acc node;
  if constexpr (std::is_same_v<Source, Float8>) {
    Acc value[Columns::kSize][kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      x.each(row[r], [&](int c, auto element) { value[c][r] = r < count ? widen<Acc>(element) : O::identity(); });
    }
#pragma unroll
    for (int c = 0; c < Columns::kSize; ++c) node.at[c] = thread::fold_neighbours<O>(value[c]);
  } else {
    // Column by column: rows are taken apart where they are used, and hold fewer registers until then.
    Row decoded[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) decoded[r] = x.decoded(row[r]);
#pragma unroll
    for (int c = 0; c < Columns::kSize; ++c) {
      Acc value[kRows];
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        value[r] = r < count ? widen<Acc>(decoded[r].elements().at[c]) : O::identity();
      }
      node.at[c] = thread::fold_neighbours<O>(value);
    }
  }
  return node;
}

// The same, with loads: rows `first` to first + kRows - 1 of a column, of which every one is there.
template <class O, int kRows, class Columns, class Source, bool kEven>
TREDUCE_DEVICE typename Side<O, Columns::kSize>::Acc fold_whole_rows(const Source& x,
                                                                     const OwnColumns<Source, Columns>& own,
                                                                     const Rows<kEven>& rows, int first) {
  int64_t at[kRows];
  rows.find(first, at);
  typename OwnColumns<Source, Columns>::Row row[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) row[r] = own.load(x, at[r]);
  return fold_loaded<O, Columns>(x, row, kRows);
}

// The same, of those that are there.
template <class O, int kRows, class Columns, class Source, bool kEven>
TREDUCE_DEVICE typename Side<O, Columns::kSize>::Acc fold_rows(const Source& x, const OwnColumns<Source, Columns>& own,
                                                               const Rows<kEven>& rows, int first, int length) {
  using Row = typename OwnColumns<Source, Columns>::Row;
  if (kHasFull<Source, kEven> && first + kRows <= length) {
    return fold_whole_rows<O, kRows>(x, own, rows, first);
  }
  int64_t at[kRows];
  rows.find(first, at);
  Row row[kRows] = {};
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (first + r < length) row[r] = own.load(x, at[r]);
  }
  return fold_loaded<O, Columns>(x, row, length - first);
}

// How many nodes fold_node computes of a column, and node q of them: kShortGroup rows of a short column, otherwise a group.
template <class Columns>
TREDUCE_DEVICE int64_t nodes_of(int64_t length) {
  if (length <= Pairwise::kLanes) return (length + kShortGroup - 1) / kShortGroup;
  const bool is_low = kTakesLow<Columns> && length <= kLowRows;
  return Pairwise(length).chunks() * (is_low ? Low::kGroupsAChunk : Tall::kGroupsAChunk);
}
template <class O, class Columns, class Source, bool kEven>
TREDUCE_DEVICE typename Side<O, Columns::kSize>::Acc fold_node(const Source& x, const OwnColumns<Source, Columns>& own,
                                                               const Rows<kEven>& rows, int64_t q, int64_t length) {
  // Short columns: a low group of which one stripe is there, where accumulators for it fit the registers.
  constexpr bool kLowIfShort = kTakesLow<Columns> || is_order_free<O>;
  static_assert(kShortGroup == kLowGroup);
  // Eight rows of a short column: no second stripe to ask about, and the time of a small sum is that of its instructions.
  if constexpr (kTakesLow<Columns> && kHasFull<Source, kEven> && !is_order_free<O>) {
    const int64_t first = q * kShortGroup;
    if (length <= Pairwise::kLanes && first + kShortGroup <= length) {
      return fold_whole_rows<O, kShortGroup>(x, own, rows, static_cast<int>(first));
    }
  }
  if (length <= (kTakesLow<Columns> ? kLowRows : Pairwise::kLanes)) {
    if constexpr (kLowIfShort) {
      return fold_group<O, Low>(x, own, rows, q, length);
    } else {
      return fold_rows<O, kShortGroup>(x, own, rows, static_cast<int>(q) * kShortGroup, static_cast<int>(length));
    }
  }
  return fold_group<O>(x, own, rows, q, length);
}

}  // namespace treduce::reduce::columns
