// The accumulators of neighbouring lanes in one thread.
#pragma once

#include "../primitives/thread.cuh"
#include "sources.cuh"

namespace treduce::reduce {

// Integers, amax and amin give the same bits in any order.
template <class O>
constexpr bool is_order_free = std::is_integral_v<typename O::Acc> || std::is_same_v<O, Max<typename O::Acc>>;

// Whether zero bits in place of elements that are not there change nothing: in sums of floats, and of integers as they are.
template <class O, class Source>
constexpr bool takes_zeros = !is_order_free<O> || (std::is_same_v<O, Sum<typename O::Acc>> &&
                                                   std::is_same_v<Source, Stored<typename Source::Raw>>);

// The op over 32-bit integers, where that is enough.
template <class O, bool kNarrow>
struct Narrowed {
  using Op = O;
};
template <class O>
struct Narrowed<O, true> {
  using Op = typename O::template As<int32_t>;
};

// Accumulators of kSize neighbouring lanes. Integers are exact in any order: one for all of them.
template <class O, class Source, int kSize>
struct Lanes {
  using Acc = typename O::Acc;
  using Raw = typename Source::Raw;
  static constexpr bool kOne = std::is_integral_v<Acc>;
  static constexpr int kCount = kOne ? 1 : kSize;
  Acc at[kCount];

  TREDUCE_DEVICE Lanes() {
#pragma unroll
    for (int c = 0; c < kCount; ++c) at[c] = O::identity();
  }

  TREDUCE_DEVICE void take(const Source& x, const Pack<Raw, kSize>& pack) {
    if constexpr (kOne && kSize > 1) {
      at[0] = O::combine(at[0], fold_integers(x.decoded(pack)));
    } else {
      x.each(pack, [&](int c, auto element) { combine(c, widen<Acc>(element)); });
    }
  }
  // One element, of lane c.
  TREDUCE_DEVICE void take(const Source& x, Raw raw, int c) {
    x.each(Several<Raw, 1>{{raw}}, [&](int, auto element) { combine(kOne ? 0 : c, widen<Acc>(element)); });
  }
  // The elements of a vector from `from` to before `to`.
  TREDUCE_DEVICE void take_some(const Source& x, const Pack<Raw, kSize>& pack, int from, int to) {
    if constexpr (kOne) {
      Word folded = Narrow::identity();
      x.each(pack, [&](int c, auto element) {
        if (c >= from && c < to) folded = Narrow::combine(folded, widen<Word>(element));
      });
      at[0] = O::combine(at[0], static_cast<Acc>(folded));
    } else {
      x.each(pack, [&](int c, auto element) {
        if (c >= from && c < to) combine(c, widen<Acc>(element));
      });
    }
  }

  // The node over these lanes.
  TREDUCE_DEVICE Acc fold() const {
    Acc v[kCount];
#pragma unroll
    for (int c = 0; c < kCount; ++c) v[c] = at[c];
    return thread::fold_neighbours<O>(v);
  }

 private:
  static constexpr bool kSums = std::is_same_v<O, Sum<Acc>>;
  // Bytes and shorts fold in 32 bits, which sixteen of them cannot overflow; extrema of 32 bits do too.
  static constexpr bool kNarrow = kOne && (sizeof(Raw) <= 2 || (!kSums && sizeof(Raw) <= 4));
  using Narrow = typename Narrowed<O, kNarrow>::Op;
  using Word = typename Narrow::Acc;

  TREDUCE_DEVICE void combine(int c, Acc value) { at[c] = O::combine(at[c], value); }

  TREDUCE_DEVICE static Acc fold_integers(const Pack<Raw, kSize>& pack) {
    if constexpr (kSums && sizeof(Raw) == 1) {
      // Four bytes an instruction.
      int words[kSize / 4], sum = 0;
      memcpy(words, &pack.words, sizeof(words));
#pragma unroll
      for (int w : words) sum = __dp4a(w, 0x01010101, sum);
      return sum;
    } else {
      const auto elements = pack.elements();
      Word folded = widen<Word>(elements.at[0]);
#pragma unroll
      for (int c = 1; c < kSize; ++c) folded = Narrow::combine(folded, widen<Word>(elements.at[c]));
      return static_cast<Acc>(folded);
    }
  }
};

}  // namespace treduce::reduce
