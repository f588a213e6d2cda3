// Device code of the rungs that reduce columns: the elements of an output lie a row apart, and neighbouring outputs side by side.
#pragma once

#include "../primitives/block.cuh"
#include "../primitives/grid.cuh"
#include "rows.cuh"

namespace treduce::reduce::columns {

// Columns that a thread takes at once: 16 bytes of them, at most eight, for each needs accumulators.
template <class Source>
constexpr int pack_of = sizeof(typename Source::Type) < 2 ? 8 : vector_of<Source>;

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

// Integers, amax and amin are the same in any order: their rows need no leaves of their own.
template <class O>
constexpr bool is_order_free = std::is_integral_v<typename O::Acc> || std::is_same_v<O, Max<typename O::Acc>> ||
                               std::is_same_v<O, Min<typename O::Acc>>;

// The op over 32-bit integers, where that is enough.
template <class O, bool kNarrow>
struct Narrowed {
  using Op = O;
};
template <class O>
struct Narrowed<O, true> {
  using Op = typename O::template As<int32_t>;
};

constexpr int kLeavesAGroup = 4;
constexpr int kGroupsAChunk = Pairwise::kLanes / kLeavesAGroup;

// Bytes and shorts fold in 32 bits where few of them come together.
template <class O, class T>
using Counted = Narrowed<O, std::is_integral_v<typename O::Acc> &&
                                (sizeof(T) <= 2 || (sizeof(T) == 4 && !std::is_same_v<O, Sum<typename O::Acc>>))>;

// Group q is four neighbouring leaves, so 32 rows of a chunk. Returns its node for kSize columns from `column` on.
template <class O, int kSize, class Source, class Layout>
TREDUCE_DEVICE typename Side<O, kSize>::Acc group(const Source& x, const Layout& layout, int64_t column, int64_t q,
                                                  int64_t length) {
  using T = typename Source::Element;
  constexpr int kLeaves = is_order_free<O> ? 1 : kLeavesAGroup;
  using Op = typename Counted<O, T>::Op;
  using Word = typename Op::Acc;
  constexpr int kAhead = 4;  // stripes whose loads are issued together
  const int64_t first = q / kGroupsAChunk * Pairwise::kChunk + q % kGroupsAChunk * kLeavesAGroup;
  const int64_t rest = length - first;
  const int count = rest < Pairwise::kChunk ? static_cast<int>(rest) : Pairwise::kChunk;
  Word leaf[kLeaves][kSize];
#pragma unroll
  for (int l = 0; l < kLeaves; ++l) {
#pragma unroll
    for (int c = 0; c < kSize; ++c) leaf[l][c] = Op::identity();
  }
  const auto take = [&](int l, const Pack<T, kSize>& pack) {
    Word(&mine)[kSize] = leaf[l % kLeaves];
    const auto elements = pack.elements();
#pragma unroll
    for (int c = 0; c < kSize; ++c) mine[c] = Op::combine(mine[c], widen<Word>(elements.at[c]));
  };
  if (count > (Pairwise::kStripes - 1) * Pairwise::kLanes + kLeavesAGroup - 1) {
#pragma unroll 1
    for (int s = 0; s < Pairwise::kStripes; s += kAhead) {
      Pack<T, kSize> pack[kAhead][kLeavesAGroup];
#pragma unroll
      for (int a = 0; a < kAhead; ++a) {
#pragma unroll
        for (int l = 0; l < kLeavesAGroup; ++l) {
          pack[a][l] = load_pack<kSize>(x, column + layout.element(first + (s + a) * Pairwise::kLanes + l));
        }
      }
#pragma unroll
      for (int a = 0; a < kAhead; ++a) {
#pragma unroll
        for (int l = 0; l < kLeavesAGroup; ++l) take(l, pack[a][l]);
      }
    }
  } else {
#pragma unroll 1
    for (int row = 0; row < count; row += Pairwise::kLanes) {
      Pack<T, kSize> pack[kLeavesAGroup] = {};
#pragma unroll
      for (int l = 0; l < kLeavesAGroup; ++l) {
        if (row + l < count) pack[l] = load_pack<kSize>(x, column + layout.element(first + row + l));
      }
#pragma unroll
      for (int l = 0; l < kLeavesAGroup; ++l) {
        if (row + l < count) take(l, pack[l]);
      }
    }
  }
  typename Side<O, kSize>::Acc node;
#pragma unroll
  for (int c = 0; c < kSize; ++c) {
    if constexpr (kLeaves == 1) {
      node.at[c] = static_cast<typename O::Acc>(leaf[0][c]);
    } else {
      node.at[c] = O::combine(O::combine(leaf[0][c], leaf[1][c]), O::combine(leaf[2][c], leaf[3][c]));
    }
  }
  return node;
}

// Short columns have one stripe, so a leaf is an element: the node over rows 8q to 8q + 7, loaded together.
constexpr int kShortGroup = 8;
template <class O, int kSize, class Source, class Layout>
TREDUCE_DEVICE typename Side<O, kSize>::Acc short_group(const Source& x, const Layout& layout, int64_t column, int q,
                                                        int length) {
  using T = typename Source::Element;
  using Acc = typename O::Acc;
  Pack<T, kSize> pack[kShortGroup] = {};
#pragma unroll
  for (int l = 0; l < kShortGroup; ++l) {
    const int r = q * kShortGroup + l;
    if (r < length) pack[l] = load_pack<kSize>(x, column + layout.element(r));
  }
  typename Side<O, kSize>::Acc node;
#pragma unroll
  for (int c = 0; c < kSize; ++c) {
    Acc v[kShortGroup];
#pragma unroll
    for (int l = 0; l < kShortGroup; ++l) {
      v[l] = q * kShortGroup + l < length ? widen<Acc>(pack[l].elements().at[c]) : O::identity();
    }
#pragma unroll
    for (int s = 1; s < kShortGroup; s *= 2) {
#pragma unroll
      for (int l = 0; l < kShortGroup; l += 2 * s) v[l] = O::combine(v[l], v[l + s]);
    }
    node.at[c] = v[0];
  }
  return node;
}

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

// The last block of a tile folds the partials of `splits` blocks, partials[part][column], for each of `width` columns, through
// `shared`, which has room for `slots` (a power of two) of them and an eighth. Returns where the `width` values are.
template <class O>
TREDUCE_DEVICE typename O::Acc* fold_splits(const typename O::Acc* partials, int64_t splits, int width,
                                            typename O::Acc* shared, int slots, int thread, int threads) {
  using Acc = typename O::Acc;
  int used = 1;
  while (used < splits && used < slots) used *= 2;
  int64_t each = 1;
  while (each * used < splits) each *= 2;
  constexpr int kAhead = 4;  // loads in flight
  for (int i = thread; i < used * width; i += kAhead * threads) {
    Acc value[kAhead];
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
      const int slot = i + a * threads;
      const int64_t part = slot / width * each;
      value[a] = slot < used * width && part < splits ? block::load_partial(partials + part * width + slot % width)
                                                      : O::identity();
    }
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
      const int slot = i + a * threads;
      if (slot >= used * width) continue;
      if (each > 1) {  // more partials than room: a run of them in each slot
        const int64_t first = slot / width * each;
        Neighbours<O, 30> run;
        run.push(value[a]);
        for (int64_t p = first + 1; p < first + each && p < splits; ++p) {
          run.push(block::load_partial(partials + p * width + slot % width));
        }
        value[a] = run.value();
      }
      shared[slot] = value[a];
    }
  }
  return fold_rounds<O>(shared, shared + slots * width, used, width, thread, threads);
}

// Tile t is part t % splits of the blockDim.x * kSize outputs from (t / splits) * that on: `span` times blockDim.y groups. Thread
// (x, y) computes `span` of them, and all meet in shared memory.
template <class O, int kSize, class Source, class Layout>
TREDUCE_DEVICE void grid(const Source& x, const Layout& layout, int64_t outputs, int64_t tiles, Divider splits_of_tile,
                         int span, int64_t length, typename O::Acc* partials, unsigned* counters,
                         const Result& result) {
  using Acc = typename O::Acc;
  const int width = blockDim.x * kSize;
  const int threads = blockDim.x * blockDim.y;
  const int thread = threadIdx.y * blockDim.x + threadIdx.x;
  const int nodes_of_block = span * blockDim.y;
  Acc* const nodes = dynamic_shared<Acc>();  // [nodes_of_block][width], and an eighth of it for the fold
  const int64_t splits = splits_of_tile.divisor;
  const bool is_short = length <= Pairwise::kLanes;
  const int64_t groups =
      is_short ? (length + kShortGroup - 1) / kShortGroup : Pairwise(length).chunks() * kGroupsAChunk;
  for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const int64_t of_outputs = splits_of_tile.quotient(tile);
    const int64_t part = tile - of_outputs * splits;
    const int64_t first = of_outputs * width;
    const int64_t mine = first + threadIdx.x * kSize;
    const int64_t column = mine < outputs ? layout.row(mine) : 0;
#pragma unroll 1
    for (int i = threadIdx.y; i < nodes_of_block; i += blockDim.y) {
      const int64_t q = part * nodes_of_block + i;
      typename Side<O, kSize>::Acc node;
      if (mine >= outputs || q >= groups) {
        node = Side<O, kSize>::identity();
      } else if (is_short) {
        node = short_group<O, kSize>(x, layout, column, static_cast<int>(q), static_cast<int>(length));
      } else {
        node = group<O, kSize>(x, layout, column, q, length);
      }
#pragma unroll
      for (int c = 0; c < kSize; ++c) nodes[i * width + threadIdx.x * kSize + c] = node.at[c];
    }
    const Acc* folded = fold_rounds<O>(nodes, nodes + nodes_of_block * width, nodes_of_block, width, thread, threads);
    __syncthreads();
    bool last = splits == 1;
    if (!last) {
      for (int j = thread; j < width; j += threads) partials[tile * width + j] = folded[j];
      __syncthreads();
      last = treduce::grid::arrive_last(counters + of_outputs, static_cast<unsigned>(splits));
      if (last) {
        folded = fold_splits<O>(partials + of_outputs * splits * width, splits, width, nodes, nodes_of_block, thread,
                                threads);
        __syncthreads();
      }
    }
    if (last) {
      for (int j = thread; j < width; j += threads) {
        if (first + j < outputs) result.store<O>(folded[j], layout.out(first + j));
      }
    }
    if (tile + gridDim.x < tiles) __syncthreads();
  }
}

// Calls body(functor, source, integral_constant<kSize>, layout) for what the schedule reads.
template <template <class> class SumOp = Sum, class Body>
cudaError_t dispatch(const Call& call, Body body) {
  return dispatch_reads<SumOp>(call, [&](auto op, auto source, auto vectors, auto even) {
    constexpr int kSize = decltype(vectors)::value ? pack_of<decltype(source)> : 1;
    return body(op, source, std::integral_constant<int, kSize>{}, layout_of<decltype(even)::value>(*call.geometry));
  });
}

}  // namespace treduce::reduce::columns
