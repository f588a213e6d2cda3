// Rows whose elements lie one after another, in the order of pairwise.h: stripes are added vector by vector, then the lanes of
// several vectors are folded together.
#pragma once

#include "pairwise_cpu_lanes.h"
#include "pairwise_cpu_pages.h"

namespace treduce::reduce::cpu::TREDUCE_INSTRUCTIONS {
namespace {

constexpr int kLanes = Pairwise::kLanes, kStripes = Pairwise::kStripes, kChunk = Pairwise::kChunk;
constexpr int kUnitChunks = static_cast<int>(kUnit / kChunk);

// The nodes of one level of the tree, neighbours side by side. L: lanes of nodes.
template <class L>
struct NodeBuffer {
  using A = typename L::A;
  static constexpr int kOfChunk = kLanes / L::kWidth > L::kWidth ? kLanes / L::kWidth : L::kWidth;
  // A level of few nodes waits for the one below, so many are folded at once: what half of a first cache holds.
  static constexpr int kFitting = 16384 / (L::kPlanes * kOfChunk * static_cast<int>(sizeof(A)));
  static constexpr int kChunks = kFitting > kUnitChunks ? kFitting : kUnitChunks;
  static constexpr int kCapacity = kChunks * kOfChunk;
  static constexpr int kRoom = kCapacity + 2 * L::kWidth;
  alignas(64) A at[L::kPlanes][kRoom];

  TREDUCE_INLINE void put(int64_t i, const typename L::Value& v) { L::put(&at[0][i], kRoom, v); }
  TREDUCE_INLINE typename L::Value get(int64_t i) const { return L::get(&at[0][i], kRoom); }
  typename L::Acc node(int64_t i) const { return L::node(&at[0][i], kRoom); }
  void copy(int64_t count, typename L::Acc* nodes) const {
    int64_t i = 0;
    for (; i + L::kWidth <= count; i += L::kWidth) L::put_nodes(nodes + i, get(i));
    for (; i < count; ++i) nodes[i] = node(i);
  }

  // Each aligned run of `size` (a power of two) of the first `count` nodes becomes one.
  void fold(int64_t count, int size) {
    put(count, L::identity());  // the last vectors read past `count`; the results of that are not used
    put(count + L::kWidth, L::identity());
    for (; size > 1; size /= 2) {
      count /= 2;
      for (int64_t i = 0; i < count; i += L::kWidth) put(i, L::pairs(get(2 * i), get(2 * i + L::kWidth)));
    }
  }
};

// Neighbours among `count` nodes, one after another.
template <class O>
typename O::Acc fold_few(typename O::Acc* nodes, int count) {
  while (count > 1) {
    const int pairs = count / 2;
    for (int i = 0; i < pairs; ++i) nodes[i] = O::combine(nodes[2 * i], nodes[2 * i + 1]);
    if (count % 2 != 0) nodes[pairs] = nodes[count - 1];
    count -= pairs;
  }
  return nodes[0];
}

// How many of the rows may be read up to `past` elements behind their end, because later rows lie there.
inline int64_t safe_rows(int64_t rows, int64_t stride, int64_t past) {
  if (past == 0) return rows;
  return stride <= 0 ? 0 : rows - (past + stride - 1) / stride;
}

template <class O, class L>
struct Rows {
  using In = typename L::In;
  using Acc = typename L::Acc;
  using Value = typename L::Value;
  using N = typename L::NodeLanes;
  using Buffer = NodeBuffer<N>;
  static constexpr int kWidth = L::kWidth;
  static constexpr int kElements = L::kElements;
  static constexpr int kOfElements = kElements / kWidth;  // elements of a node that a value leaves in each lane
  static constexpr int kValues = kLanes / kElements;      // of a stripe
  static constexpr int kTogether = kValues < kWidth ? kValues : kWidth;  // that become a vector of nodes
  static constexpr int kOfChunk = kValues / kTogether * kWidth;  // nodes that a chunk leaves before Buffer::fold

  static void run(const void* data, int64_t rows, int64_t stride, int64_t n, void* result) {
    const In* const x = static_cast<const In*>(data);
    Acc* const nodes = static_cast<Acc*>(result);
    if (n > kLanes) {
      chunks(x, rows, stride, n, nodes);
    } else if (several_a_value(stride, n)) {
      parts_of_values(x, rows, static_cast<int>(n), nodes);
    } else {
      lanes(x, rows, stride, static_cast<int>(n), nodes);
    }
  }

  // Whether values hold several whole rows each.
  static bool several_a_value(int64_t stride, int64_t n) {
    return n <= kElements / 2 && n >= kOfElements && (n & (n - 1)) == 0 && stride == n;
  }
  static void parts_of_values(const In* x, int64_t rows, int n, Acc* nodes) {
    Buffer buffer;
    const int64_t all = rows * n;
    constexpr int64_t kAtOnce = Buffer::kCapacity * kOfElements;
    for (int64_t begin = 0; begin < all; begin += kAtOnce) {
      const int64_t count = all - begin < kAtOnce ? all - begin : kAtOnce;
      int64_t i = 0;
      for (; i + kElements <= count; i += kElements) buffer.put(i / kOfElements, L::nodes(L::load(x + begin + i)));
      if (i < count) {
        buffer.put(i / kOfElements, L::nodes(L::load(x + begin + i, static_cast<int>(count - i), false)));
      }
      buffer.fold(count / kOfElements, n / kOfElements);
      buffer.copy(count / n, nodes + begin / n);
    }
  }

  // Where an element of a stripe is read: its run, or a copy, where the end of the run cuts the stripe. The copy is made when the
  // stripe's first element is asked for, not earlier: hardware prefetches what is read from front to back. It is made in vectors
  // as large as those that read it, which need not wait until it lies in the cache.
  class Stripes {
   public:
    explicit Stripes(const Stripe* of_chunk) : of_chunk_(of_chunk) {}
    bool in_one_run() const {
      bool run = of_chunk_[kStripes - 1].count == kLanes;
      for (int s = 1; s < kStripes; ++s) run &= of_chunk_[s].begin == first() + s * kLanes;
      return run;
    }
    const In* first() const { return static_cast<const In*>(of_chunk_[0].begin); }
    TREDUCE_INLINE const In* operator()(int s, int element) {
      const Stripe& stripe = of_chunk_[s];
      if (stripe.count == kLanes) return static_cast<const In*>(stripe.begin) + element;
      In* const to = copies_[s];
      if (element == 0) copy(stripe, to);
      return to + element;
    }

   private:
    static void copy(const Stripe& stripe, In* to) {
      const In *const begin = static_cast<const In*>(stripe.begin), *const rest = static_cast<const In*>(stripe.rest);
      const int count = static_cast<int>(stripe.count);
      for (int i = 0; i < kLanes; i += kElements) {
        if (i < count && count < i + kElements) {
          memcpy(to + i, begin + i, (count - i) * sizeof(In));
          memcpy(to + count, rest, (i + kElements - count) * sizeof(In));
        } else {
          memcpy(to + i, i < count ? begin + i : rest + (i - count), kElements * sizeof(In));
        }
      }
    }

    const Stripe* of_chunk_;
    alignas(64) In copies_[kStripes][kLanes];
  };

  static void stripes(const Stripe* all, int64_t chunks, void* result) {
    Buffer buffer;
    for (int64_t c = 0; c < chunks; ++c) {
      Stripes of_chunk(all + c * kStripes);
      const In* const first = of_chunk.first();
      if (of_chunk.in_one_run()) {  // which is read faster than what is looked up
        read_ahead(first, kChunk);
        whole_chunk([first](int s, int element) { return first + s * kLanes + element; }, buffer, c * kOfChunk);
      } else {
        whole_chunk(of_chunk, buffer, c * kOfChunk);
      }
    }
    buffer.fold(chunks * kOfChunk, kOfChunk);
    buffer.copy(chunks, static_cast<Acc*>(result));
  }

 private:
  // Rows of a single stripe. Each takes a power of two of values, the last of them filled up with the identity.
  static void lanes(const In* x, int64_t rows, int64_t stride, int n, Acc* nodes) {
    const int values = (n + kElements - 1) / kElements, rest = n - (values - 1) * kElements;
    int shift = 0;
    while (1 << shift < values) ++shift;
    const int padded = 1 << shift;
    const int64_t at_once = Buffer::kOfChunk * kUnitChunks / padded;
    const int64_t safe = safe_rows(rows, stride, int64_t{values} * kElements - n);
    const int together = padded < kWidth ? kWidth / padded : 1;  // rows of a square
    const int squares = padded < kWidth ? 1 : padded / kWidth;   // of a row
    Buffer buffer;
    typename N::Value v[kLanes / kElements < kWidth ? kWidth : kLanes / kElements];
    for (auto& value : v) value = N::identity();
    for (int64_t begin = 0; begin < rows; begin += at_once) {
      const int64_t count = rows - begin < at_once ? rows - begin : at_once;
      const In* row = x + begin * stride;
      int64_t r = 0, at = 0;
      if (rest == kElements && padded == values && stride == n) {  // one run of values
        for (; at + kWidth <= count * padded; at += kWidth) {
          read_ahead(row + at * kElements, kWidth * kElements);
          typename N::Value run[kWidth];
#pragma GCC unroll 16
          for (int i = 0; i < kWidth; ++i) run[i] = L::nodes(L::load(row + (at + i) * kElements));
          buffer.put(at, N::square(run));
        }
        r = at / padded;
        row += r * stride;
      } else if (padded == 1) {
        for (; r + kWidth <= count && begin + r + kWidth <= safe; r += kWidth, row += kWidth * stride) {
          read_ahead(row, kWidth * stride);
          typename N::Value few[kWidth];
#pragma GCC unroll 16
          for (int i = 0; i < kWidth; ++i) few[i] = L::nodes(L::load(row + i * stride, n, true));
          buffer.put(r, N::square(few));
        }
      } else if (squares == 1) {
        for (; r + together <= count && begin + r + together <= safe; r += together, row += together * stride) {
          read_ahead(row, together * stride);
          typename N::Value few[kWidth];
#pragma GCC unroll 16
          for (int i = 0; i < kWidth; ++i) {
            const int k = i & (padded - 1);
            const In* const p = row + (i >> shift) * stride + k * kElements;
            if (k < values - 1) {
              few[i] = L::nodes(L::load(p));
            } else {
              few[i] = k < values ? L::nodes(L::load(p, rest, true)) : N::identity();
            }
          }
          buffer.put(r * padded, N::square(few));
        }
      }
      at = r * padded;
      while (r < count) {
        read_ahead(row, together * stride);
        for (int t = 0; t < together; ++t, ++r, row += stride) {
          typename N::Value* const mine = v + t * padded;
          if (r >= count) {
            for (int k = 0; k < values; ++k) mine[k] = N::identity();
            continue;
          }
          for (int k = 0; k < values - 1; ++k) mine[k] = L::nodes(L::load(row + k * kElements));
          mine[values - 1] = L::nodes(L::load(row + (values - 1) * kElements, rest, begin + r < safe));
        }
        for (int q = 0; q < squares; ++q, at += kWidth) buffer.put(at, N::square(v + q * kWidth));
      }
      buffer.fold(count * padded, padded);
      buffer.copy(count, nodes + begin);
    }
  }

  static void chunks(const In* x, int64_t rows, int64_t stride, int64_t n, Acc* nodes) {
    const int of_row = static_cast<int>((n + kChunk - 1) / kChunk);
    const int rest = static_cast<int>(n % kChunk);
    const int64_t at_once = Buffer::kChunks / of_row;
    const bool whole = rest == 0 && (of_row & (of_row - 1)) == 0;  // every row is an aligned run of chunks
    const int64_t safe = safe_rows(rows, stride, (kElements - n % kElements) % kElements);
    Buffer buffer;
    for (int64_t begin = 0; begin < rows; begin += at_once) {
      const int64_t count = rows - begin < at_once ? rows - begin : at_once;
      int64_t at = 0;
      for (int64_t r = begin; r < begin + count; ++r) {
        const In* chunk = x + r * stride;
        for (const In* const end = chunk + (n - rest); chunk < end; chunk += kChunk, at += kOfChunk) {
          read_ahead(chunk, kChunk);
          whole_chunk([chunk](int s, int element) { return chunk + s * kLanes + element; }, buffer, at);
        }
        if (rest > 0) {
          read_ahead(chunk, rest);
          part_of_chunk(chunk, rest, r < safe, buffer, at);
          at += kOfChunk;
        }
      }
      buffer.fold(at, whole ? of_row * kOfChunk : kOfChunk);
      if (whole || of_row == 1) {
        buffer.copy(count, nodes + begin);
        continue;
      }
      for (int64_t r = 0; r < count; ++r) {
        Acc few[kUnitChunks];
        few[0] = buffer.node(r * of_row);
        for (int c = 1; c < of_row; ++c) few[c] = buffer.node(r * of_row + c);
        nodes[begin + r] = fold_few<O>(few, of_row);
      }
    }
  }

  // Accumulators that registers hold: vectors whose stripes are added side by side. An addition whose operand is in memory needs no
  // other register, so a stripe of complex128 fits 32.
  static constexpr bool kFromMemory =
      TREDUCE_VECTOR_BYTES > 16 && std::is_same_v<In, typename L::A> && !L::kCarriesError;
  static constexpr int kRegisters = (TREDUCE_VECTOR_BYTES == 64 ? 16 : 8) * (kFromMemory ? 2 : 1) / L::kParts;
  static constexpr int kAccumulators = kRegisters < kValues ? kRegisters : kValues;
  static constexpr int kPasses = kAccumulators < kTogether ? kTogether / kAccumulators : 1;

  static TREDUCE_INLINE void put(Buffer& buffer, int64_t at, int lane, typename N::Value* nodes, int count) {
#pragma GCC unroll 16
    for (int i = 0; i < count; i += kTogether) {
      buffer.put(at + (lane / kElements + i) / kTogether * kWidth, N::template fold<kTogether>(nodes + i));
    }
  }

  // Where registers hold a part of a stripe, memory is still read from front to back: whoever reads the first part asks for the rest.
  TREDUCE_INLINE static void ask_for_rest(const In* stripe) {
    constexpr int kLine = 64 / sizeof(In);
#pragma GCC unroll 32
    for (int i = kAccumulators * kElements; i < kLanes; i += kLine) __builtin_prefetch(stripe + i);
  }

  // stripe(s, e): where element e of stripe s lies. Of each stripe the first is asked for first.
  template <class Element>
  TREDUCE_INLINE static void whole_chunk(Element&& stripe, Buffer& buffer, int64_t at) {
#pragma GCC unroll 1
    for (int lane = 0; lane < kLanes; lane += kPasses * kAccumulators * kElements) {
      typename N::Value nodes[kPasses * kAccumulators];
#pragma GCC unroll 4
      for (int g = 0; g < kPasses; ++g) {
        const int first = lane + g * kAccumulators * kElements;
        const In* p = stripe(0, first);
        Value v[kAccumulators];
#pragma GCC unroll 32
        for (int i = 0; i < kAccumulators; ++i) v[i] = L::load(p + i * kElements);
        if (first == 0) ask_for_rest(p);
#pragma GCC unroll 1
        for (int s = 1; s < kStripes; ++s) {
          p = stripe(s, first);
#pragma GCC unroll 32
          for (int i = 0; i < kAccumulators; ++i) v[i] = L::combine(v[i], L::load(p + i * kElements));
          if (first == 0) ask_for_rest(p);
        }
#pragma GCC unroll 32
        for (int i = 0; i < kAccumulators; ++i) nodes[g * kAccumulators + i] = L::nodes(v[i]);
      }
      put(buffer, at, lane, nodes, kPasses * kAccumulators);
    }
  }

  // The first n elements of a chunk. `safe`: the memory behind them may be read.
  static void part_of_chunk(const In* x, int n, bool safe, Buffer& buffer, int64_t at) {
    const int stripes = n / kLanes, rest = n % kLanes;
    constexpr int kHere = kAccumulators;
    constexpr int kAll = kHere < kTogether ? kTogether : kHere;
#pragma GCC unroll 1
    for (int lane = 0; lane < kLanes; lane += kAll * kElements) {
      typename N::Value nodes[kAll];
#pragma GCC unroll 4
      for (int g = 0; g < kAll; g += kHere) {
        const int first = lane + g * kElements;
        const In* p = x + first;
        Value v[kHere];
        int left = rest - first;  // elements of the last stripe, from here on
        if (stripes == 0) {
#pragma GCC unroll 32
          for (int i = 0; i < kHere; ++i) v[i] = L::identity();
        } else {
#pragma GCC unroll 32
          for (int i = 0; i < kHere; ++i) v[i] = L::load(p + i * kElements);
          if (first == 0) ask_for_rest(p);
          const int whole = stripes + (left >= kHere * kElements ? 1 : 0);
#pragma GCC unroll 1
          for (int s = 1; s < whole; ++s) {
            p += kLanes;
#pragma GCC unroll 32
            for (int i = 0; i < kHere; ++i) v[i] = L::combine(v[i], L::load(p + i * kElements));
            if (first == 0) ask_for_rest(p);
          }
          p += kLanes;
          if (left >= kHere * kElements) left = 0;
        }
        if (left > 0) {
#pragma GCC unroll 32
          for (int i = 0; i < kHere; ++i) {
            const int here = left - i * kElements;
            if (here >= kElements) {
              v[i] = L::combine(v[i], L::load(p + i * kElements));
            } else if (here > 0) {
              v[i] = L::combine(v[i], L::load(p + i * kElements, here, safe));
            }
          }
        }
#pragma GCC unroll 32
        for (int i = 0; i < kHere; ++i) nodes[g + i] = L::nodes(v[i]);
      }
      put(buffer, at, lane, nodes, kAll);
    }
  }
};

}  // namespace
}  // namespace treduce::reduce::cpu::TREDUCE_INSTRUCTIONS
