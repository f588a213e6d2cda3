// Device code of the rungs that reduce columns: the elements of an output lie a row apart, and neighbouring outputs side by side.
#pragma once

#include "../primitives/block.cuh"
#include "../primitives/grid.cuh"
#include "rows.cuh"

namespace treduce::reduce::columns {

// Columns that a thread reads as one vector: 16 bytes of them, at most eight, for each needs accumulators.
template <class Source>
constexpr int pack_of = sizeof(typename Source::Type) < 2 ? 8 : vector_of<Source>;

// Columns that a thread reads one by one where vectors do not fit: see singles in schedule.cpp.
template <class Source>
constexpr int singles_of = Source::kConverts                   ? 1
                           : sizeof(typename Source::Type) > 4 ? 2
                                                               : 4;

// The columns of a thread: kSize neighbours, or kSize single ones, as many columns apart as there are threads side by side, so
// that what a warp loads at once is one run of memory either way.
template <int kColumns, bool kOneVector>
struct Held {
  static constexpr int kSize = kColumns;
  static constexpr bool kVectors = kOneVector;
  // Which column of the tile is the c-th of thread t.
  TREDUCE_DEVICE static int column(int c, int t, int threads) { return kVectors ? t * kSize + c : c * threads + t; }
};

// The kept dims, innermost first: what most calls need of them lies together, for parameters come from memory too.
struct Kept {
  struct Dim {
    int64_t stride, out_stride;
    Divider size;
  };
  int count = 1;
  Dim dim[kMaxDims];

  explicit Kept(const Geometry& g) {
    for (int d = 0; d < g.kept.count; ++d) {
      const int from = g.kept.count - 1 - d;
      dim[d] = {g.kept.stride[from], g.kept_out.stride[from], g.kept.size[from]};
    }
    if (g.kept.count > 1) count = g.kept.count;
  }
  TREDUCE_DEVICE int64_t offset(int64_t column) const { return sum<&Dim::stride>(column); }
  TREDUCE_DEVICE int64_t out(int64_t column) const { return sum<&Dim::out_stride>(column); }

 private:
  template <int64_t Dim::* kStride>
  TREDUCE_DEVICE int64_t sum(int64_t i) const {
    int64_t total = 0;
#pragma unroll 1
    for (int d = 0; d + 1 < count; ++d) {
      const int64_t q = dim[d].size.quotient(i);
      total += (i - q * dim[d].size.divisor) * (dim[d].*kStride);
      i = q;
    }
    return total + i * (dim[count - 1].*kStride);
  }
};

// Where the rows lie, from the beginning of a column on. No division stands among the loads: rows that follow one another are
// found by stepping.
template <bool kEven>
struct Rows {
  int64_t stride;
  explicit Rows(const Geometry& g) : stride(g.reduced.stride[0]) {}

  // The offsets of rows first, first + 1, ...
  template <int kCount>
  TREDUCE_DEVICE void find(int64_t first, int64_t (&offset)[kCount]) const {
    offset[0] = first * stride;
#pragma unroll
    for (int r = 1; r < kCount; ++r) offset[r] = offset[r - 1] + stride;
  }
};

// Several reduced dims: a division at the first row, and a multiplication wherever the innermost dim begins again.
template <>
struct Rows<false> {
  int64_t stride, outer_stride;
  Divider size;  // of the innermost
  Extents outer;
  explicit Rows(const Geometry& g)
      : stride(g.reduced.stride[0]), outer_stride(g.reduced.stride[0]), size(g.reduced.size[0]), outer(g.reduced) {
    if (outer.count > 0) --outer.count;
    stride = g.reduced.stride[outer.count];
    size = g.reduced.size[outer.count];
  }

  template <int kCount>
  TREDUCE_DEVICE void find(int64_t first, int64_t (&offset)[kCount]) const {
    int64_t q = size.quotient(first);
    const int64_t rest = first - q * size.divisor;
    int wrap = size.divisor - rest < kCount ? static_cast<int>(size.divisor - rest) : kCount;
    offset[0] = begin(q) + rest * stride;
#pragma unroll
    for (int r = 1; r < kCount; ++r) {
      offset[r] = offset[r - 1] + stride;
      if (r == wrap) {
        offset[r] = begin(++q);
        wrap = size.divisor < kCount ? r + static_cast<int>(size.divisor) : kCount;
      }
    }
  }

 private:
  TREDUCE_DEVICE int64_t begin(int64_t q) const {
    return outer.count <= 1 ? q * outer_stride : offset_of_dims(outer, q);
  }
};

template <bool kEven>
struct Placement {
  static constexpr bool kIsEven = kEven;
  Rows<kEven> rows;
  Kept kept;
  explicit Placement(const Geometry& g) : rows(g), kept(g) {}
};

template <class T, int kSize>
struct Singles {
  T at[kSize];
  TREDUCE_DEVICE const Singles& elements() const { return *this; }
};

// Where the columns of a thread begin, and how a row of them is read.
template <class Source, class Held>
struct Own {
  using T = typename Source::Element;
  using Row = std::conditional_t<Held::kVectors, Pack<T, Held::kSize>, Singles<T, Held::kSize>>;
  static constexpr int kBegins = Held::kVectors ? 1 : Held::kSize;
  int64_t begin[kBegins];

  // Of the tile from column `first` on. What would lie past the last column is the last again: no question stands before the
  // loads.
  TREDUCE_DEVICE Own(const Kept& kept, int64_t first, int64_t columns, int thread, int threads) {
    const int64_t last = columns - Held::kSize / kBegins;
#pragma unroll
    for (int b = 0; b < kBegins; ++b) {
      const int64_t mine = first + Held::column(b, thread, threads);
      begin[b] = kept.offset(mine < last ? mine : last);
    }
  }

  TREDUCE_DEVICE Row load(const Source& x, int64_t row) const {
    if constexpr (Held::kVectors) {
      return load_pack<Held::kSize>(x, begin[0] + row);
    } else {
      Row loaded;
#pragma unroll
      for (int b = 0; b < kBegins; ++b) loaded.at[b] = x.at(begin[b] + row);
      return loaded;
    }
  }
};

// Finishes and writes the columns of a thread, of the tile from column `first` on; neighbours in 16-byte stores, where they lie
// so.
template <class O, class Held>
TREDUCE_DEVICE void store(const typename O::Acc (&value)[Held::kSize], const Result& result, const Kept& kept,
                          int64_t first, int64_t columns, int thread, int threads) {
  using Acc = typename O::Acc;
  constexpr int kSize = Held::kSize;
  Acc finished[kSize];
  finish<O>(value, result, finished);
  const int64_t column = first + Held::column(0, thread, threads);
  if constexpr (Held::kVectors) {
    if (column >= columns) return;
    const int64_t out = kept.out(column), step = kept.dim[0].out_stride;
    as_stored<Acc>(result.dtype, [&](auto zero) {
      using T = decltype(zero);
      T* const to = static_cast<T*>(result.data) + out;
      if (step == 1) return store_run(to, finished);
#pragma unroll
      for (int c = 0; c < kSize; ++c) to[c * step] = round_to<T>(finished[c]);
    });
  } else {
    int64_t out[kSize];
#pragma unroll
    for (int c = 0; c < kSize; ++c) {
      const int64_t mine = first + Held::column(c, thread, threads);
      out[c] = mine < columns ? kept.out(mine) : -1;
    }
    as_stored<Acc>(result.dtype, [&](auto zero) {
      using T = decltype(zero);
#pragma unroll
      for (int c = 0; c < kSize; ++c) {
        if (out[c] >= 0) static_cast<T*>(result.data)[out[c]] = round_to<T>(finished[c]);
      }
    });
  }
}

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

// A group is so many neighbouring leaves, and so many stripes of it are loaded together: 16 rows in flight. Columns of up to two
// stripes take more leaves, where a thread's columns leave it registers for them.
template <int kLeavesOf, int kAheadOf, int kStripesOf>
struct Grouping {
  static constexpr int kLeaves = kLeavesOf;
  static constexpr int kAhead = kAheadOf;
  static constexpr int kStripes = kStripesOf;
  static constexpr int kGroupsAChunk = Pairwise::kLanes / kLeaves;
};
using Tall = Grouping<4, 4, Pairwise::kStripes>;
using Low = Grouping<8, 2, 2>;
constexpr int kLowRows = Low::kStripes * Pairwise::kLanes;
template <class Held>
constexpr bool kTakesLow = Held::kSize <= 4;

// Bytes and shorts fold in 32 bits where few of them come together.
template <class O, class T>
using Counted = Narrowed<O, std::is_integral_v<typename O::Acc> &&
                                (sizeof(T) <= 2 || (sizeof(T) == 4 && !std::is_same_v<O, Sum<typename O::Acc>>))>;

// rows[s][l] of those that are there, `count` of them from the first on, into the leaves.
template <class Op, int kLeaves, int kSize, int kAhead, int kRows, class Row>
TREDUCE_DEVICE void take(typename Op::Acc (&leaf)[kLeaves][kSize], const Row (&row)[kAhead][kRows], int count) {
#pragma unroll
  for (int a = 0; a < kAhead; ++a) {
#pragma unroll
    for (int l = 0; l < kRows; ++l) {
      if (a * Pairwise::kLanes + l < count) {
        const auto elements = row[a][l].elements();
#pragma unroll
        for (int c = 0; c < kSize; ++c) {
          leaf[l % kLeaves][c] = Op::combine(leaf[l % kLeaves][c], widen<typename Op::Acc>(elements.at[c]));
        }
      }
    }
  }
}

// Returns the node over group q for the columns of a thread.
template <class O, class Groups = Tall, class Held, class Source, bool kEven>
TREDUCE_DEVICE typename Side<O, Held::kSize>::Acc group(const Source& x, const Own<Source, Held>& own,
                                                        const Rows<kEven>& rows, int64_t q, int64_t length) {
  constexpr int kRows = Groups::kLeaves;  // of a stripe
  constexpr int kLeaves = is_order_free<O> ? 1 : kRows;
  constexpr int kSize = Held::kSize;
  constexpr int kAhead = Groups::kAhead;
  using Op = typename Counted<O, typename Source::Element>::Op;
  using Row = typename Own<Source, Held>::Row;
  const int64_t first = q / Groups::kGroupsAChunk * Pairwise::kChunk + q % Groups::kGroupsAChunk * kRows;
  const int64_t rest = length - first;
  const int count = rest < Pairwise::kChunk ? static_cast<int>(rest) : Pairwise::kChunk;
  typename Op::Acc leaf[kLeaves][kSize];
#pragma unroll
  for (int l = 0; l < kLeaves; ++l) {
#pragma unroll
    for (int c = 0; c < kSize; ++c) leaf[l][c] = Op::identity();
  }
  int64_t at[kAhead][kRows];
  const bool full = count > (Groups::kStripes - 1) * Pairwise::kLanes + kRows - 1;
  if (full) {
#pragma unroll 1
    for (int row = 0; row < Groups::kStripes * Pairwise::kLanes; row += kAhead * Pairwise::kLanes) {
#pragma unroll
      for (int a = 0; a < kAhead; ++a) rows.find(first + row + a * Pairwise::kLanes, at[a]);
      Row loaded[kAhead][kRows];
#pragma unroll
      for (int a = 0; a < kAhead; ++a) {
#pragma unroll
        for (int l = 0; l < kRows; ++l) loaded[a][l] = own.load(x, at[a][l]);
      }
      take<Op>(leaf, loaded, Pairwise::kChunk);
    }
  } else {
#pragma unroll 1
    for (int row = 0; row < count; row += kAhead * Pairwise::kLanes) {
#pragma unroll
      for (int a = 0; a < kAhead; ++a) rows.find(first + row + a * Pairwise::kLanes, at[a]);
      Row loaded[kAhead][kRows] = {};
#pragma unroll
      for (int a = 0; a < kAhead; ++a) {
#pragma unroll
        for (int l = 0; l < kRows; ++l) {
          if (row + a * Pairwise::kLanes + l < count) loaded[a][l] = own.load(x, at[a][l]);
        }
      }
      take<Op>(leaf, loaded, count - row);
    }
  }
  typename Side<O, kSize>::Acc node;
#pragma unroll
  for (int c = 0; c < kSize; ++c) {
#pragma unroll
    for (int s = 1; s < kLeaves; s *= 2) {
#pragma unroll
      for (int l = 0; l < kLeaves; l += 2 * s) leaf[l][c] = Op::combine(leaf[l][c], leaf[l + s][c]);
    }
    node.at[c] = static_cast<typename O::Acc>(leaf[0][c]);
  }
  return node;
}

// Short columns have one stripe, so a leaf is an element. The node over `count` of kRows rows, a power of two.
template <class O, class Held, class Row, int kRows>
TREDUCE_DEVICE typename Side<O, Held::kSize>::Acc fold_run(const Row (&row)[kRows], int count) {
  using Acc = typename O::Acc;
  typename Side<O, Held::kSize>::Acc node;
#pragma unroll
  for (int c = 0; c < Held::kSize; ++c) {
    Acc v[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) v[r] = r < count ? widen<Acc>(row[r].elements().at[c]) : O::identity();
#pragma unroll
    for (int s = 1; s < kRows; s *= 2) {
#pragma unroll
      for (int r = 0; r < kRows; r += 2 * s) v[r] = O::combine(v[r], v[r + s]);
    }
    node.at[c] = v[0];
  }
  return node;
}

// The same, from row `first` on of a column.
template <class O, int kRows, class Held, class Source, bool kEven>
TREDUCE_DEVICE typename Side<O, Held::kSize>::Acc run(const Source& x, const Own<Source, Held>& own,
                                                      const Rows<kEven>& rows, int first, int length) {
  int64_t at[kRows];
  rows.find(first, at);
  if (first + kRows <= length) {
    typename Own<Source, Held>::Row row[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) row[r] = own.load(x, at[r]);
    return fold_run<O, Held>(row, kRows);
  }
  typename Own<Source, Held>::Row row[kRows] = {};
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (first + r < length) row[r] = own.load(x, at[r]);
  }
  return fold_run<O, Held>(row, length - first);
}
constexpr int kShortGroup = 8;  // rows of a thread of column_block

// Folds from[k][j], k below `count` (a power of two) and j below `width`, by neighbours, eight at a time; `to` has room for an
// eighth. Every thread of the block calls; synchronises on the way in and between rounds. Returns where the `width` values are;
// __syncthreads() before others than the writers read them.
constexpr int kRadix = 8;
template <class O>
TREDUCE_DEVICE typename O::Acc* fold_rounds(typename O::Acc* from, typename O::Acc* to, int count, int width,
                                            int thread, int threads) {
  using Acc = typename O::Acc;
  while (count > 1) {
    const int radix = count < kRadix ? count : kRadix;
    count /= radix;
    __syncthreads();
    for (int i = thread; i < count * width; i += threads) {
      const int k = i / width;
      const Acc* const neighbours = from + k * radix * width + (i - k * width);
      Acc v[kRadix];
#pragma unroll
      for (int n = 0; n < kRadix; ++n) v[n] = n < radix ? neighbours[n * width] : O::identity();
#pragma unroll
      for (int s = 1; s < kRadix; s *= 2) {
#pragma unroll
        for (int n = 0; n < kRadix; n += 2 * s) v[n] = O::combine(v[n], v[n + s]);
      }
      to[i] = v[0];
    }
    Acc* const swap = from;
    from = to;
    to = swap;
  }
  return from;
}

// Loads a thread issues before it uses the first, when the last block folds partials: they come from the L2, some 0.7 us away, and
// nothing else runs meanwhile.
constexpr int kPartialsAhead = 16;

// One thread for each of `runs` aligned runs of partials and each kSide columns: it loads a run of its columns, many at once, and
// leaves the node over it in shared[run][column].
template <class O, int kSide>
TREDUCE_DEVICE void fold_runs(const typename O::Acc* partials, int splits, int width, typename O::Acc* shared, int runs,
                              int each, int thread, int threads) {
  using Sides = Side<O, kSide>;
  const int sides = width / kSide;
  for (int i = thread; i < runs * sides; i += threads) {
    const int run = i / sides;
    const int column = (i - run * sides) * kSide;
    const typename O::Acc* const mine = partials + column;
    const auto node = block::fold_run<Sides, kPartialsAhead>(run * each, each, splits, [&](int part) {
      return block::load_partial(
          reinterpret_cast<const typename Sides::Acc*>(mine + static_cast<int64_t>(part) * width));
    });
#pragma unroll
    for (int c = 0; c < kSide; ++c) shared[run * width + column + c] = node.at[c];
  }
}

// The last block of a tile folds the partials of `splits` blocks, partials[part][column], for each of `width` columns, through
// `shared`, which has room for `slots` (a power of two) of them and an eighth. Returns where the `width` values are. Every thread of
// the block calls; __syncthreads() before others than the writers read them.
template <class O>
TREDUCE_DEVICE typename O::Acc* fold_splits(const typename O::Acc* partials, int splits, int width,
                                            typename O::Acc* shared, int slots, int thread, int threads) {
  // Columns that are 16 bytes: one load.
  constexpr int kSide = sizeof(typename O::Acc) < 16 ? 16 / static_cast<int>(sizeof(typename O::Acc)) : 1;
  const int side = width % kSide == 0 ? kSide : 1;
  // As many runs as there are threads for them: the tree over them is short, and the runs are read at once.
  int runs = 1;
  while (runs < splits && runs < slots && 2 * runs * (width / side) <= threads) runs *= 2;
  int each = 1;
  while (each * runs < splits) each *= 2;
  if (side == kSide) {
    fold_runs<O, kSide>(partials, splits, width, shared, runs, each, thread, threads);
  } else {
    fold_runs<O, 1>(partials, splits, width, shared, runs, each, thread, threads);
  }
  return fold_rounds<O>(shared, shared + slots * width, runs, width, thread, threads);
}

// What a launch of `grid` needs beside the source and the placement; what is needed first comes first.
template <class O>
struct Tiling {
  int64_t outputs, length, tiles;
  int span;
  Divider splits;
  typename O::Acc* partials;
  unsigned* counters;
  Result result;

  explicit Tiling(const Call& call)
      : outputs(call.request.geometry.outputs),
        length(call.request.geometry.length),
        tiles(call.prepared.schedule.tiles),
        span(static_cast<int>(call.prepared.schedule.span)),
        splits(call.prepared.schedule.splits),
        partials(static_cast<typename O::Acc*>(call.workspace)),
        counters(call.counter),
        result(call.result) {}
};

// Tile t is part t % splits of the blockDim.x * kSize outputs from (t / splits) * that on: `span` times blockDim.y groups. Thread
// (x, y) computes `span` of them, and all meet in shared memory.
template <class O, class Held, class Source, bool kEven>
TREDUCE_DEVICE void grid(const Source& x, const Tiling<O>& tiling, const Placement<kEven>& placement) {
  using Acc = typename O::Acc;
  constexpr int kSize = Held::kSize;
  const int64_t length = tiling.length, outputs = tiling.outputs;
  const int width = blockDim.x * kSize;
  const int threads = blockDim.x * blockDim.y;
  const int thread = threadIdx.y * blockDim.x + threadIdx.x;
  const int nodes_of_block = tiling.span * blockDim.y;
  Acc* const nodes = dynamic_shared<Acc>();  // [nodes_of_block][width], and an eighth of it for the fold
  const int64_t splits = tiling.splits.divisor;
  const bool is_short = length <= Pairwise::kLanes;
  const bool is_low = kTakesLow<Held> && length <= kLowRows;
  const int64_t groups = is_short ? (length + kShortGroup - 1) / kShortGroup
                                  : Pairwise(length).chunks() * (is_low ? Low::kGroupsAChunk : Tall::kGroupsAChunk);
  for (int64_t tile = blockIdx.x; tile < tiling.tiles; tile += gridDim.x) {
    const int64_t of_outputs = tiling.splits.quotient(tile);
    const int64_t part = tile - of_outputs * splits;
    const int64_t first = of_outputs * width;
    const Own<Source, Held> own(placement.kept, first, outputs, threadIdx.x, blockDim.x);
#pragma unroll 1
    for (int i = threadIdx.y; i < nodes_of_block; i += blockDim.y) {
      const int64_t q = part * nodes_of_block + i;
      typename Side<O, kSize>::Acc node;
      if (q >= groups) {
        node = Side<O, kSize>::identity();
      } else if (is_short) {
        node = run<O, kShortGroup>(x, own, placement.rows, static_cast<int>(q) * kShortGroup, static_cast<int>(length));
      } else {
        if constexpr (kTakesLow<Held>) {
          if (is_low) {
            node = group<O, Low>(x, own, placement.rows, q, length);
          } else {
            node = group<O>(x, own, placement.rows, q, length);
          }
        } else {
          node = group<O>(x, own, placement.rows, q, length);
        }
      }
#pragma unroll
      for (int c = 0; c < kSize; ++c) nodes[i * width + Held::column(c, threadIdx.x, blockDim.x)] = node.at[c];
    }
    const Acc* folded = fold_rounds<O>(nodes, nodes + nodes_of_block * width, nodes_of_block, width, thread, threads);
    __syncthreads();
    bool last = splits == 1;
    if (!last) {
      for (int j = thread; j < width; j += threads) tiling.partials[tile * width + j] = folded[j];
      __syncthreads();
      last = treduce::grid::arrive_last(tiling.counters + of_outputs, static_cast<unsigned>(splits));
      if (last) {
        folded = fold_splits<O>(tiling.partials + of_outputs * splits * width, static_cast<int>(splits), width, nodes,
                                nodes_of_block, thread, threads);
        __syncthreads();
      }
    }
    if (last) {
      for (int j = thread; j < width; j += threads) {
        if (first + j < outputs) tiling.result.template store<O>(folded[j], placement.kept.out(first + j));
      }
    }
    if (tile + gridDim.x < tiling.tiles) __syncthreads();
  }
}

// Calls body(functor, source, Held, Placement) for what the schedule reads.
template <template <class> class SumOp = Sum, class Body>
cudaError_t dispatch(const Call& call, Body body) {
  return dispatch_reads<SumOp>(call, [&](auto op, auto source, auto vectors, auto walk) {
    using Source = decltype(source);
    constexpr bool kVectors = decltype(vectors)::value;
    return body(op, source, Held<kVectors ? pack_of<Source> : singles_of<Source>, kVectors>{},
                Placement<decltype(walk)::value == Walk::even>(call.request.geometry));
  });
}

}  // namespace treduce::reduce::columns
