// Columns that are fewer than a vector has lanes, or not many more, in the order of pairwise.h.
#pragma once

#include "pairwise_cpu_columns.h"
#include "pairwise_cpu_rows.h"

namespace treduce::reduce::cpu::TREDUCE_INSTRUCTIONS {
namespace {

// A stripe of 128 rows is one run of memory, so stripes are added as runs. Neighbouring leaves of a column then lie `columns`
// apart. Where L is split, `columns` is a multiple of its elements.
template <class O, class L>
struct NarrowColumns {
  using In = typename L::In;
  using A = typename L::A;
  using Acc = typename L::Acc;
  using Value = typename L::Value;
  static constexpr int kElements = L::kElements;
  static constexpr int64_t kMost = 16 * 1024 / (kLanes * sizeof(A) * L::kPlanes);
  static constexpr int64_t kRoom = kMost * kLanes + 2 * kElements;  // accumulators of a plane
  static constexpr int64_t kScratch = (2 * L::kPlanes * kRoom + L::kPlanes * kMost * kUnitChunks) * sizeof(A);

  static void run(const void* data, int64_t n, int64_t columns, void* scratch, void* result) {
    if constexpr (L::kSplit) {
      if (columns % kElements != 0)
        return NarrowColumns<O, typename L::InOrder>::run(data, n, columns, scratch, result);
    }
    const In* x = static_cast<const In*>(data);
    if (n > 1 && n <= kLanes && columns * sizeof(In) != kSlowRow)
      return few_leaves(x, n, columns, static_cast<Acc*>(result));
    A* const leaves = static_cast<A*>(scratch);
    A* const other = leaves + L::kPlanes * kRoom;
    A* const of_chunks = other + L::kPlanes * kRoom;
    Acc* const nodes = static_cast<Acc*>(result);
    const int chunks = static_cast<int>((n + kChunk - 1) / kChunk);
    const int64_t stripe = kLanes * columns;
    for (int chunk = 0; chunk < chunks; ++chunk) {
      const int64_t left = n - int64_t{chunk} * kChunk;
      const int count = static_cast<int>(left < kChunk ? left : kChunk);
      const int stripes = count / kLanes;
      const int64_t rest = count % kLanes * columns;
      read_ahead(x, count * columns);
      if (rest > 0) add(x, stripe, stripes + 1, rest, leaves);
      if (stripes > 0) add(x + rest, stripe, stripes, stripe - rest, leaves + rest);
      const A* const node = fold(leaves, other, count < kLanes ? count : kLanes, columns);
      for (int k = 0; k < L::kPlanes; ++k) {
        memcpy(of_chunks + (k * kUnitChunks + chunk) * columns, node + k * kRoom, columns * sizeof(A));
      }
      x += kChunk * columns;
    }
    for (int64_t c = 0; c < columns; ++c) {
      const int64_t place = c / kElements * kElements + L::place(c);
      const auto of_chunk = [&](int chunk) {
        return L::node(of_chunks + chunk * columns + place, kUnitChunks * columns);
      };
      Acc of_column[kUnitChunks];
      of_column[0] = of_chunk(0);
      for (int chunk = 1; chunk < chunks; ++chunk) of_column[chunk] = of_chunk(chunk);
      nodes[c] = fold_few<O>(of_column, chunks);
    }
  }

 private:
  // Rows that are leaves: vectors that reach into the next row.
  static void few_leaves(const In* x, int64_t n, int64_t columns, Acc* nodes) {
    read_ahead(x, n * columns);
    int64_t c = 0;
    if constexpr (Columns<O, L>::kSideBySide > 1) {
      for (; c + kElements < columns; c += 2 * kElements) leaves_of<2>(x, n, columns, c, nodes);
    }
    for (; c < columns; c += kElements) leaves_of<1>(x, n, columns, c, nodes);
  }
  template <int kVectors>
  TREDUCE_INLINE static void leaves_of(const In* x, int64_t n, int64_t columns, int64_t c, Acc* nodes) {
    const int count = static_cast<int>(columns - c < kVectors * kElements ? columns - c : kVectors * kElements);
    constexpr int kBefore = (kVectors - 1) * kElements;  // whole vectors
    const int64_t safe =
        (n * columns - c - kVectors * kElements + columns) / columns;  // rows that may be read past their end
    const auto v = Columns<O, L>::template down<kVectors>(n, [&](int64_t e) __attribute__((always_inline)) {
      const In* const p = x + e * columns + c;
      typename Columns<O, L>::template Side<kVectors> leaf;
#pragma GCC unroll 2
      for (int i = 0; i < kVectors - 1; ++i) leaf.at[i] = L::load(p + i * kElements);
      leaf.at[kVectors - 1] = e < safe ? L::load(p + kBefore) : L::load(p + kBefore, count - kBefore, false);
      return leaf;
    });
    Acc all[kVectors * kElements];
#pragma GCC unroll 2
    for (int i = 0; i < kVectors; ++i) L::put_nodes(all + i * kElements, v.at[i]);
    for (int i = 0; i < count; ++i) nodes[c + i] = all[i];
  }

  // sums[p] = x[p] + x[p + stripe] + ..., of `stripes` elements. A stripe after another, though their sums are then read and written for each:
  // hardware prefetches what is read from front to back. From memory that is up to twice as fast as eight stripes side by side, from
  // the second cache a fifth slower. AMD EPYC with AVX-512, 2026-11-23.
  static void add(const In* x, int64_t stripe, int stripes, int64_t count, A* sums) {
    for (int s = 0; s < stripes; ++s) {
      const In* const from = x + s * stripe;
      const auto sum = [&](int64_t p, const Value& v) __attribute__((always_inline)) {
        return s == 0 ? v : L::combine(L::get(sums + p, kRoom), v);
      };
      int64_t p = 0;
      constexpr int kAtOnce =
          L::kParts == 2 ? 4 : 8;  // a store between loads of the same place in a page would delay them
      for (; p + kAtOnce * kElements <= count; p += kAtOnce * kElements) {
        Value v[kAtOnce];
#pragma GCC unroll 8
        for (int i = 0; i < kAtOnce; ++i) v[i] = sum(p + i * kElements, L::load(from + p + i * kElements));
#pragma GCC unroll 8
        for (int i = 0; i < kAtOnce; ++i) L::put(sums + p + i * kElements, kRoom, v[i]);
      }
      for (; p + kElements <= count; p += kElements) L::put(sums + p, kRoom, sum(p, L::load(from + p)));
      if (p < count) L::put(sums + p, kRoom, sum(p, L::load(from + p, static_cast<int>(count - p), false)));
    }
  }

  // Folds `count` leaves of each column and returns where the nodes are. A vector store may write past the last column; the next
  // store overwrites that, or nothing reads it.
  static const A* fold(A* from, A* to, int count, int64_t columns) {
    const auto get = [&](const A* p) __attribute__((always_inline)) { return L::get(p, kRoom); };
    while (count > 1) {
      const int four = count % 4 == 0 ? 4 : 2;
      const int fewer = count / four;
      for (int t = 0; t < fewer; ++t) {
        const A* const a = from + t * four * columns;
        if (four == 4) {
          for (int64_t c = 0; c < columns; c += kElements) {
            const Value left = L::combine(get(a + c), get(a + columns + c));
            const Value right = L::combine(get(a + 2 * columns + c), get(a + 3 * columns + c));
            L::put(to + t * columns + c, kRoom, L::combine(left, right));
          }
        } else {
          for (int64_t c = 0; c < columns; c += kElements) {
            L::put(to + t * columns + c, kRoom, L::combine(get(a + c), get(a + columns + c)));
          }
        }
      }
      if (count % 2 != 0) {
        for (int k = 0; k < L::kPlanes; ++k) {
          memcpy(to + k * kRoom + fewer * columns, from + k * kRoom + (count - 1) * columns, columns * sizeof(A));
        }
      }
      count = fewer + count % 2;
      std::swap(from, to);
    }
    return from;
  }
};

}  // namespace
}  // namespace treduce::reduce::cpu::TREDUCE_INSTRUCTIONS
