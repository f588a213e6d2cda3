// Sums of integers, maxima and minima: they are exact, so any order gives the bits of the tree, and no tree is built. This is
// most of the ops and dtypes, and short code keeps the time to compile them short.
#pragma once

#include "../common/round.h"
#include "pairwise_cpu_rows.h"

namespace treduce::reduce::cpu::TREDUCE_INSTRUCTIONS {
namespace {

// nodes[i] is the node over all lanes of v[i], i < count <= kWidth. L: lanes of nodes. Not inlined: it is long, and element types
// with the same accumulator share it.
template <class L>
__attribute__((noinline)) void fold_vectors(typename L::Value* v, int count, typename L::Acc* nodes) {
  for (int i = count; i < L::kWidth; ++i) v[i] = L::identity();
  const typename L::Value folded = L::template fold<L::kWidth>(v);
  if (count == L::kWidth) return L::put_nodes(nodes, folded);
  typename L::Acc all[L::kWidth];
  L::put_nodes(all, folded);
  for (int i = 0; i < count; ++i) nodes[i] = all[i];
}

// Shuffles that rotate a vector of kCount elements by kBy.
template <int kCount>
struct Rotate {
  template <int kBy, int... k>
  static constexpr std::integer_sequence<int, (k + kBy) % kCount...> by(std::integer_sequence<int, k...>);
  template <int kBy>
  using By = decltype(by<kBy>(std::make_integer_sequence<int, kCount>{}));
};

template <class O, class L>
struct AnyOrder {
  using In = typename L::In;
  using A = typename L::A;
  using Acc = typename L::Acc;
  using Value = typename L::Value;
  using N = typename L::NodeLanes;
  static constexpr int kWidth = L::kWidth;
  static constexpr int kElements = L::kElements;
  static constexpr int kAtOnce = 8;        // rows of columns
  static constexpr int64_t kJoined = 256;  // columns of a longer row, at least: see narrow()
  using Wide = Lanes<O, Acc, Acc, false>;

  static void rows(const void* data, int64_t rows, int64_t stride, int64_t n, void* result) {
    const In* const x = static_cast<const In*>(data);
    Acc* const nodes = static_cast<Acc*>(result);
    const int64_t safe = safe_rows(rows, stride, (kElements - n % kElements) % kElements);
    if constexpr (kNarrow) {
      for (int64_t r = 0; r < rows; ++r) nodes[r] = across(of_row(x + r * stride, n, r < safe));
    } else if (Rows<O, L>::several_a_value(stride, n)) {
      Rows<O, L>::parts_of_values(x, rows, static_cast<int>(n), nodes);
    } else {
      int64_t r = 0;
      if (n <= kElements) {
        for (; r + kWidth <= rows && (n == kElements || r + kWidth <= safe); r += kWidth) {
          N::put_nodes(nodes + r, of_short_rows(x + r * stride, stride, static_cast<int>(n)));
        }
      }
      for (; r < rows; r += kWidth) {
        const int count = static_cast<int>(rows - r < kWidth ? rows - r : kWidth);
        typename N::Value v[kWidth];
        of_rows(x + r * stride, count, stride, n, safe - r, v);
        fold_vectors<N>(v, count, nodes + r);
      }
    }
  }

  static void stripes(const Stripe* all, int64_t chunks, void* result) {
    Acc* const nodes = static_cast<Acc*>(result);
    for (int64_t c = 0; c < chunks; ++c) {
      typename Rows<O, L>::Stripes of_chunk(all + c * kStripes);
      if (of_chunk.in_one_run()) {
        nodes[c] = across(of_run(of_chunk.first(), kChunk));
        continue;
      }
      Value v[kAccumulators];
      for (int i = 0; i < kAccumulators; ++i) v[i] = L::identity();
      for (int s = 0; s < kStripes; ++s) {
        for (int e = 0; e < kLanes; e += kAccumulators * kElements) {
          const In* const p = of_chunk(s, e);
#pragma GCC unroll 8
          for (int i = 0; i < kAccumulators; ++i) v[i] = L::combine(v[i], L::load(p + i * kElements));
        }
      }
      nodes[c] = across(total(v));
    }
  }

  static int64_t columns_scratch(int64_t n, int64_t columns) {
    return n <= kAtOnce ? 0 : round_up(columns, kElements) * static_cast<int64_t>(sizeof(A));
  }

  // Eight rows a step, so that accumulators are read and written once for eight rows. The rows of a step lie n / 8 apart: eight
  // streams through memory, each of which the hardware prefetches.
  static void columns(const void* data, const int64_t* offsets, int64_t pitch, int64_t n, int64_t columns,
                      void* scratch, void* result) {
    A* const sums = static_cast<A*>(scratch);
    Acc* const nodes = static_cast<Acc*>(result);
    const int64_t steps = ceil_div(n, kAtOnce);
    for (int64_t k = 0; k < steps; ++k) {
      Step step{{}, 0, k == 0, k + 1 == steps};
      for (int64_t row = k; row < n; row += steps) {
        step.rows[step.count++] = static_cast<const In*>(data) + (offsets != nullptr ? offsets[row] : row * pitch);
      }
      int64_t c = 0;
      constexpr int kVectors = TREDUCE_VECTOR_BYTES == 16 ? 1 : 4 / L::kParts;  // that registers hold
      for (; c + kVectors * kElements <= columns; c += kVectors * kElements) {
        add_rows<kVectors>(step, c, sums + c, nodes + c);
      }
      for (; c < columns; c += kElements) {
        // The last vector begins early, so that it ends with the last column; the overlap is computed twice.
        const int64_t begin = c + kElements <= columns ? c : columns - kElements;
        add_rows<1>(step, begin, sums + c, nodes + begin);
      }
    }
  }

  // Few columns: several rows are taken as one longer row, whose columns are combined at the end.
  static constexpr int64_t kNarrowScratch = 2 * kJoined * sizeof(A) + (2 * kJoined + Wide::kWidth) * sizeof(Acc);
  static void narrow(const void* data, int64_t n, int64_t columns, void* scratch, void* result) {
    const In* x = static_cast<const In*>(data);
    Acc* const nodes = static_cast<Acc*>(result);
    Acc* const joined = static_cast<Acc*>(scratch);
    A* const sums = reinterpret_cast<A*>(joined + 2 * kJoined + Wide::kWidth);
    for (bool first = true; n > 0; first = false) {
      int64_t rows = 1;  // that are joined
      while (rows * columns < kElements || (rows * columns < kJoined && n >= 2 * kAtOnce * rows)) rows *= 2;
      if (rows > n) {
        for (int64_t c = 0; first && c < columns; ++c) nodes[c] = static_cast<Acc>(x[c]);
        for (int64_t i = first ? columns : 0; i < n * columns; ++i) {
          nodes[i % columns] = O::combine(nodes[i % columns], static_cast<Acc>(x[i]));
        }
        return;
      }
      AnyOrder::columns(x, nullptr, rows * columns, n / rows, rows * columns, sums, joined);
      for (int64_t half = rows / 2; half > 0; half /= 2) {
        for (int64_t i = 0; i < half * columns; i += Wide::kWidth) {
          Wide::put(joined + i, 0, Wide::combine(Wide::get(joined + i, 0), Wide::get(joined + half * columns + i, 0)));
        }
      }
      for (int64_t c = 0; c < columns; ++c) nodes[c] = first ? joined[c] : O::combine(nodes[c], joined[c]);
      x += n / rows * rows * columns;
      n %= rows;
    }
  }

 private:
  static constexpr bool kNarrow = sizeof(A) < 4;  // so many lanes that folding a vector of rows together would be long
  static constexpr int kOfStripe = kLanes / kElements;
  static constexpr int kRegisters = 8 / L::kParts;
  static constexpr int kAccumulators = kRegisters < kOfStripe ? kRegisters : kOfStripe;

  // The nodes of kWidth rows of up to kElements.
  TREDUCE_INLINE static typename N::Value of_short_rows(const In* x, int64_t stride, int n) {
    typename N::Value v[kWidth];
    if (n == kElements) {
#pragma GCC unroll 16
      for (int i = 0; i < kWidth; ++i) v[i] = L::nodes(L::load(x + i * stride));
    } else {
#pragma GCC unroll 16
      for (int i = 0; i < kWidth; ++i) v[i] = L::nodes(L::load(x + i * stride, n, true));
    }
    return N::square(v);
  }

  // v[i]: row i in a vector of nodes, i < count <= kWidth. Of the rows before `safe`, elements behind their end may be read.
  TREDUCE_INLINE static void of_rows(const In* x, int count, int64_t stride, int64_t n, int64_t safe,
                                     typename N::Value* v) {
    if (count == kWidth && n == 2 * kElements) return of_vectors<2>(x, stride, v);
    if (count == kWidth && n == 4 * kElements) return of_vectors<4>(x, stride, v);
    for (int i = 0; i < count; ++i) v[i] = L::nodes(of_row(x + i * stride, n, i < safe));
  }
  template <int kVectors>
  TREDUCE_INLINE static void of_vectors(const In* x, int64_t stride, typename N::Value* v) {
    for (int i = 0; i < kWidth; ++i, x += stride) {
      Value value = L::load(x);
#pragma GCC unroll 4
      for (int k = 1; k < kVectors; ++k) value = L::combine(value, L::load(x + k * kElements));
      v[i] = L::nodes(value);
    }
  }

  // The elements from `e` on, fewer than kElements, of at least so many.
  TREDUCE_INLINE static Value rest_of_row(const In* x, int64_t e, int64_t n, bool safe) {
    if constexpr (L::kSum) {
      return L::load(x + e, static_cast<int>(n - e), safe);
    } else {
      return L::load(x + n - kElements);  // overlaps what was read, which changes no extremum
    }
  }

  // The elements of whole steps of kAccumulators vectors.
  TREDUCE_INLINE static Value of_run(const In* x, int64_t n) {
    Value sums[kAccumulators];
#pragma GCC unroll 8
    for (int i = 0; i < kAccumulators; ++i) sums[i] = L::load(x + i * kElements);
    constexpr int64_t kStep = kAccumulators * kElements,
                      kSteps = 8;  // to look for pages at each step would take as long as a step
    for (int64_t e = kStep; e + kStep <= n;) {
      const int64_t end = n - e < kSteps * kStep ? n - kStep : e + (kSteps - 1) * kStep;
      read_ahead(x + e, end + kStep - e);
#pragma GCC unroll 1
      for (; e <= end; e += kStep) {
#pragma GCC unroll 8
        for (int i = 0; i < kAccumulators; ++i) sums[i] = L::combine(sums[i], L::load(x + e + i * kElements));
      }
    }
    return total(sums);
  }

  // x[e] for e < n. `safe`: elements behind them may be read.
  TREDUCE_INLINE static Value of_row(const In* x, int64_t n, bool safe) {
    if (n < kElements) return L::load(x, static_cast<int>(n), safe);
    Value v = L::load(x);
    int64_t e = kElements;
    if (n >= 2 * kAccumulators * kElements) {
      v = of_run(x, n);
      e = n / (kAccumulators * kElements) * (kAccumulators * kElements);
    }
    for (; e + kElements <= n; e += kElements) v = L::combine(v, L::load(x + e));
    if (e < n) v = L::combine(v, rest_of_row(x, e, n, safe));
    return v;
  }

  TREDUCE_INLINE static Value total(Value* sums) {
#pragma GCC unroll 3
    for (int count = kAccumulators / 2; count > 0; count /= 2) {
#pragma GCC unroll 4
      for (int i = 0; i < count; ++i) sums[i] = L::combine(sums[i], sums[i + count]);
    }
    return sums[0];
  }

  // The node over all lanes.
  TREDUCE_INLINE static Acc across(const Value& v) {
    typename N::Value all = L::nodes(v);
    if constexpr (kNarrow) {
      // Fold halves of the vector, moved as words; then halves of a word, by shifts.
      using Words = Vector<uint64_t, TREDUCE_VECTOR_BYTES / 8>;
      using Halves = Rotate<TREDUCE_VECTOR_BYTES / 8>;
      Words words = (Words)all.at[0];
      const auto with = [&](Words other) { words = (Words)L::combine((typename L::V)words, (typename L::V)other); };
      if constexpr (TREDUCE_VECTOR_BYTES >= 64) with(shuffle(words, words, typename Halves::template By<4>{}));
      if constexpr (TREDUCE_VECTOR_BYTES >= 32) with(shuffle(words, words, typename Halves::template By<2>{}));
      with(shuffle(words, words, typename Halves::template By<1>{}));
      with(words >> 32);
      with(words >> 16);
      if constexpr (sizeof(A) == 1) with(words >> 8);
      return static_cast<Acc>(static_cast<A>(words[0]));
    } else {
#pragma GCC unroll 4
      for (int lanes = kWidth; lanes > 1; lanes /= 2) all = N::pairs(all, all);
      return static_cast<Acc>(all.at[0][0]);
    }
  }

  struct Step {
    const In* rows[kAtOnce];
    int count;
    bool first, last;
  };
  template <int kVectors>
  TREDUCE_INLINE static void add_rows(const Step& step, int64_t c, A* sums, Acc* nodes) {
    Value v[kVectors];
#pragma GCC unroll 4
    for (int i = 0; i < kVectors; ++i) v[i] = L::load(step.rows[0] + c + i * kElements);
    if (!step.first) {
#pragma GCC unroll 4
      for (int i = 0; i < kVectors; ++i) v[i] = L::combine(v[i], L::get(sums + i * kElements, 0));
    }
#pragma GCC unroll 1
    for (int r = 1; r < step.count; ++r) {
#pragma GCC unroll 4
      for (int i = 0; i < kVectors; ++i) v[i] = L::combine(v[i], L::load(step.rows[r] + c + i * kElements));
    }
#pragma GCC unroll 4
    for (int i = 0; i < kVectors; ++i) {
      if (step.last) {
        L::put_nodes(nodes + i * kElements, v[i]);
      } else {
        L::put(sums + i * kElements, 0, v[i]);
      }
    }
  }
};

}  // namespace
}  // namespace treduce::reduce::cpu::TREDUCE_INSTRUCTIONS
