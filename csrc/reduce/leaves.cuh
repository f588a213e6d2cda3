// Device code that the rungs along dims share: how elements are read, and how a team of threads computes the leaves of a chunk
// and their tree. The order is that of pairwise.h whatever the access.
#pragma once

#include "../primitives/thread.cuh"
#include "../primitives/warp.cuh"
#include "elements.h"
#include "geometry.h"
#include "pairwise.h"

namespace treduce::reduce {

// kSize consecutive elements in registers, as the words that were loaded: they are taken apart where they are used.
template <class T, int kSize>
struct Pack {
  static constexpr int kBytes = kSize * static_cast<int>(sizeof(T));
  using Words = std::conditional_t<kSize == 1, T, std::conditional_t<kBytes == 16, int4, int2>>;
  static_assert(sizeof(Words) == kBytes);
  Words words;

  struct Elements {
    T at[kSize];
  };
  TREDUCE_DEVICE Elements elements() const {
    Elements e;
    memcpy(&e, &words, sizeof(e));
    return e;
  }
};

// Elements a thread reads at once: a 16-byte vector.
template <class Source>
constexpr int vector_of = 16 / static_cast<int>(sizeof(typename Source::Type));

template <int kSize, class Source>
TREDUCE_DEVICE Pack<typename Source::Element, kSize> load_pack(const Source& x, int64_t i) {
  using P = Pack<typename Source::Element, kSize>;
  if constexpr (kSize == 1) {
    return {x.at(i)};
  } else {
    return {__ldg(reinterpret_cast<const typename P::Words*>(x.data + i))};
  }
}

// Not inlined: a kernel calls it at each of its loads, and compilers would write the divisions out each time.
__device__ __noinline__ inline int64_t offset_of_dims(const Extents& extents, int64_t i) {
  int64_t sum = 0;
#pragma unroll 1
  for (int d = extents.count - 1; d > 0; --d) {
    const int64_t q = extents.size[d].quotient(i);
    sum += (i - q * extents.size[d].divisor) * extents.stride[d];
    i = q;
  }
  return sum + i * extents.stride[0];
}

// The same written out, for what is asked once a row.
TREDUCE_DEVICE int64_t offset_of(const Extents& extents, int64_t i) {
  int64_t sum = 0;
#pragma unroll 1
  for (int d = extents.count - 1; d > 0; --d) {
    const int64_t q = extents.size[d].quotient(i);
    sum += (i - q * extents.size[d].divisor) * extents.stride[d];
    i = q;
  }
  return sum + i * extents.stride[0];
}

// Where the elements of an output lie, and where its result goes. The elements of `even` layouts lie one stride apart, and no
// division stands among the loads.
template <bool kEven>
struct Layout {
  Extents kept, kept_out, reduced;
  TREDUCE_DEVICE int64_t row(int64_t o) const { return offset_of(kept, o); }
  TREDUCE_DEVICE int64_t element(int64_t e) const {
    if constexpr (kEven) {
      return e * reduced.stride[0];
    } else {
      return offset_of_dims(reduced, e);
    }
  }
  TREDUCE_DEVICE int64_t out(int64_t o) const { return offset_of(kept_out, o); }
};

template <bool kEven>
Layout<kEven> layout_of(const Geometry& g) {
  return {g.kept, g.kept_out, g.reduced};
}

// As layout.element; vectors of even layouts lie one after another.
template <int kSize, bool kEven>
TREDUCE_DEVICE int64_t element_of(const Layout<kEven>& layout, int64_t e) {
  if constexpr (kEven && kSize > 1) {
    return e;
  } else {
    return layout.element(e);
  }
}

// Accumulators of kSize neighbouring lanes. Integers are exact in any order: one for all of them.
template <class O, class T, int kSize>
struct Lanes {
  using Acc = typename O::Acc;
  static constexpr bool kOne = std::is_integral_v<Acc>;
  static constexpr int kCount = kOne ? 1 : kSize;
  Acc at[kCount];

  TREDUCE_DEVICE Lanes() {
#pragma unroll
    for (int c = 0; c < kCount; ++c) at[c] = O::identity();
  }

  TREDUCE_DEVICE void take(const Pack<T, kSize>& pack) {
    if constexpr (kOne && kSize > 1) {
      at[0] = O::combine(at[0], fold_integers(pack));
    } else {
#pragma unroll
      for (int c = 0; c < kSize; ++c) at[c] = O::combine(at[c], widen<Acc>(pack.elements().at[c]));
    }
  }
  TREDUCE_DEVICE void take(T element, int c) {
    Acc& mine = at[kOne ? 0 : c];
    mine = O::combine(mine, widen<Acc>(element));
  }

  // The node over these lanes.
  TREDUCE_DEVICE Acc fold() const {
    Acc v[kCount];
#pragma unroll
    for (int c = 0; c < kCount; ++c) v[c] = at[c];
#pragma unroll
    for (int s = 1; s < kCount; s *= 2) {
#pragma unroll
      for (int c = 0; c + s < kCount; c += 2 * s) v[c] = O::combine(v[c], v[c + s]);
    }
    return v[0];
  }

 private:
  TREDUCE_DEVICE static Acc fold_integers(const Pack<T, kSize>& pack) {
    constexpr bool kSums = std::is_same_v<O, Sum<Acc>>;
    if constexpr (kSums && sizeof(T) == 1) {
      // Four bytes an instruction.
      int words[kSize / 4];
      memcpy(words, &pack.words, sizeof(words));
      if constexpr (std::is_same_v<T, uint8_t>) {
        unsigned sum = 0;
#pragma unroll
        for (int w : words) sum = __dp4a(static_cast<unsigned>(w), 0x01010101u, sum);
        return sum;
      } else {
        int sum = 0;
#pragma unroll
        for (int w : words) {
          if constexpr (std::is_same_v<T, boolean>) {
            // Any nonzero byte is a one: the lower seven bits carry into the highest, which moves down.
            const unsigned u = static_cast<unsigned>(w);
            w = static_cast<int>(((((u & 0x7f7f7f7fu) + 0x7f7f7f7fu) | u) >> 7) & 0x01010101u);
          }
          sum = __dp4a(w, 0x01010101, sum);
        }
        return sum;
      }
    } else {
      // Bytes and shorts fold in 32 bits, which sixteen of them cannot overflow.
      using Narrow =
          typename O::template As<std::conditional_t<sizeof(T) <= 2 || !kSums && sizeof(T) <= 4, int32_t, Acc>>;
      using Word = typename Narrow::Acc;
      const auto elements = pack.elements();
      Word folded = widen<Word>(elements.at[0]);
#pragma unroll
      for (int c = 1; c < kSize; ++c) folded = Narrow::combine(folded, widen<Word>(elements.at[c]));
      return static_cast<Acc>(folded);
    }
  }
};

// A team of threads computes a chunk: thread t holds lanes (h * kThreads + t) * kSize and the next kSize - 1, for h below kHeld.
template <class O, class Source, int kSize>
struct Team {
  using Acc = typename O::Acc;
  using T = typename Source::Element;
  static constexpr int kLanes = Pairwise::kLanes;
  static constexpr int kThreads = kLanes / kSize < warp::kLanes ? kLanes / kSize : warp::kLanes;
  static constexpr int kHeld = kLanes / (kThreads * kSize);
  static constexpr int kOfWarp = warp::kLanes / kThreads;  // teams in a warp
  // Stripes whose loads are issued together: eight loads a thread.
  static constexpr int kAhead = 8 / kHeld;

  // The node over the chunk that begins at element `begin` of a row of `length`; less where the row ends.
  // Who calls: whole warps, each team of kThreads with its own chunk (and thread number). Valid in: every thread.
  template <class Layout>
  TREDUCE_DEVICE static Acc chunk(const Source& x, const Layout& layout, int64_t row, int64_t begin, int64_t length,
                                  int thread) {
    Lanes<O, T, kSize> lanes[kHeld];
    const int64_t first = begin + thread * kSize;
    if (begin + Pairwise::kChunk <= length) {
#pragma unroll
      for (int s = 0; s < Pairwise::kStripes; s += kAhead) {
        Pack<T, kSize> pack[kAhead][kHeld];
#pragma unroll
        for (int a = 0; a < kAhead; ++a) {
#pragma unroll
          for (int h = 0; h < kHeld; ++h) {
            pack[a][h] = load_pack<kSize>(x, row + element_of<kSize>(layout, first + place(s + a, h)));
          }
        }
#pragma unroll
        for (int a = 0; a < kAhead; ++a) {
#pragma unroll
          for (int h = 0; h < kHeld; ++h) lanes[h].take(pack[a][h]);
        }
      }
    } else if (begin < length) {
      ragged(x, layout, row, first, static_cast<int>(length - first), lanes);
    }
    Acc value[kHeld];
#pragma unroll
    for (int h = 0; h < kHeld; ++h) {
      value[h] = lanes[h].fold();
#pragma unroll
      for (int s = 1; s < kThreads; s *= 2) value[h] = O::combine(value[h], warp::exchange(value[h], s));
    }
#pragma unroll
    for (int s = 1; s < kHeld; s *= 2) {
#pragma unroll
      for (int h = 0; h + s < kHeld; h += 2 * s) value[h] = O::combine(value[h], value[h + s]);
    }
    return value[0];
  }

 private:
  // Where a thread's element of stripe s lies, from its first on.
  TREDUCE_DEVICE static constexpr int place(int s, int h) { return s * kLanes + h * kThreads * kSize; }

  // The chunk in which the row ends, `rest` elements after this thread's first: the same lanes, with a question before each load.
  template <class Layout>
  TREDUCE_DEVICE static void ragged(const Source& x, const Layout& layout, int64_t row, int64_t first, int rest,
                                    Lanes<O, T, kSize> (&lanes)[kHeld]) {
    constexpr int kFew = kAhead < 4 ? kAhead : 4;
#pragma unroll 1
    for (int s = 0; s < Pairwise::kStripes && place(s, 0) < rest; s += kFew) {
      Pack<T, kSize> pack[kFew][kHeld] = {};
#pragma unroll
      for (int a = 0; a < kFew; ++a) {
#pragma unroll
        for (int h = 0; h < kHeld; ++h) {
          if (place(s + a, h) + kSize <= rest) {
            pack[a][h] = load_pack<kSize>(x, row + element_of<kSize>(layout, first + place(s + a, h)));
          }
        }
      }
#pragma unroll
      for (int a = 0; a < kFew; ++a) {
#pragma unroll
        for (int h = 0; h < kHeld; ++h) {
          if (place(s + a, h) + kSize <= rest) lanes[h].take(pack[a][h]);
        }
      }
    }
    if constexpr (kSize > 1) {
      // The vector that the row's end cuts: the last of its lanes.
#pragma unroll 1
      for (int s = 0; s < Pairwise::kStripes; ++s) {
#pragma unroll
        for (int h = 0; h < kHeld; ++h) {
          const int cut = rest - place(s, h);  // elements of this vector
          if (cut <= 0 || cut >= kSize) continue;
#pragma unroll
          for (int c = 0; c + 1 < kSize; ++c) {
            if (c < cut) lanes[h].take(x.at(row + element_of<kSize>(layout, first + place(s, h)) + c), c);
          }
        }
      }
    }
  }
};

}  // namespace treduce::reduce
