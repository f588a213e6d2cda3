// Device code that the rungs along dims share: how elements are read, and how a team of threads computes the leaves of a chunk
// and their tree. The order is that of pairwise.h whatever the access.
#pragma once

#include "../primitives/neighbours.h"
#include "../primitives/thread.cuh"
#include "../primitives/warp.cuh"
#include "elements.h"
#include "geometry.h"
#include "pairwise.h"
#include "rung.h"

namespace treduce::reduce {

// kSize consecutive elements in registers, as the words that were loaded: they are taken apart where they are used.
template <class T, int kSize>
struct Pack {
  static constexpr int kBytes = kSize * static_cast<int>(sizeof(T));
  using Words = std::conditional_t<kBytes == 16, int4, std::conditional_t<kSize == 1, T, int2>>;
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
  if constexpr (kSize == 1 && (Source::kConverts || P::kBytes < 16)) {
    const auto element = x.at(i);
    P pack;
    memcpy(&pack.words, &element, sizeof(element));
    return pack;
  } else {
    return {__ldg(reinterpret_cast<const typename P::Words*>(x.data + i))};
  }
}

// Calls body(T{}) with the type that results of this accumulator are stored as: one question for all columns of a thread.
template <class Acc, class Body>
TREDUCE_DEVICE void as_stored(DType dtype, Body body) {
  if constexpr (std::is_same_v<Acc, float>) {
    if (dtype == DType::float32) return body(float{});
    return dtype == DType::float16 ? body(float16{}) : body(bfloat16{});
  } else if constexpr (std::is_same_v<Acc, int64_t>) {
    switch (dtype) {
      case DType::boolean: return body(boolean{});
      case DType::int8: return body(int8_t{});
      case DType::uint8: return body(uint8_t{});
      case DType::int16: return body(int16_t{});
      case DType::int32: return body(int32_t{});
      default: return body(int64_t{});
    }
  } else {
    body(Acc{});
  }
}

// The results of kSize outputs: one question for all of them.
template <class O, int kSize>
TREDUCE_DEVICE void finish(const typename O::Acc (&value)[kSize], const Result& result,
                           typename O::Acc (&finished)[kSize]) {
#pragma unroll
  for (int c = 0; c < kSize; ++c) finished[c] = O::finish(value[c], false, 1);
  if (result.divide) {
#pragma unroll
    for (int c = 0; c < kSize; ++c) finished[c] = O::finish(finished[c], true, result.count);
  }
}

// Writes finished results side by side, in stores of up to 16 bytes where they lie so.
template <class T, class Acc, int kSize>
TREDUCE_DEVICE void store_run(T* to, const Acc (&finished)[kSize]) {
  constexpr int kBytes = kSize * static_cast<int>(sizeof(T));
  constexpr int kWord = kBytes % 16 == 0 ? 16 : kBytes % 8 == 0 ? 8 : 4;
  using Word = std::conditional_t<kWord == 16, int4, std::conditional_t<kWord == 8, int2, int>>;
  if (kBytes % kWord == 0 && reinterpret_cast<uintptr_t>(to) % kWord == 0) {
    T stored[kSize];
#pragma unroll
    for (int c = 0; c < kSize; ++c) stored[c] = round_to<T>(finished[c]);
    Word words[(kBytes + kWord - 1) / kWord];
    memcpy(words, stored, kBytes);
#pragma unroll
    for (int w = 0; w < kBytes / kWord; ++w) reinterpret_cast<Word*>(to)[w] = words[w];
  } else {
#pragma unroll
    for (int c = 0; c < kSize; ++c) to[c] = round_to<T>(finished[c]);
  }
}

// As Extents::offset, with its loop kept a loop: for what is asked once a row.
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

// The same, not inlined: for kernels that ask at each of their loads, where compilers would write the divisions out each time.
__device__ __noinline__ inline int64_t offset_of_dims(const Extents& extents, int64_t i) {
  return offset_of(extents, i);
}

// Where the elements of an output lie, and where its result goes. What every call needs stands first and side by side: kernel
// parameters come from memory line by line, and a kernel's first load waits for them.
template <Walk kWalk>
struct LayoutBase {
  int64_t element_stride;
};
template <>
struct LayoutBase<Walk::two> {
  int64_t element_stride, outer_stride;
  Divider inner;
};
template <>
struct LayoutBase<Walk::any> {
  Extents reduced;
};

template <Walk kWalk>
struct Layout : LayoutBase<kWalk> {
  static constexpr Walk kHow = kWalk;
  int64_t row_stride;  // of even rows
  int64_t limit;       // elements from the first address to the last, both included
  bool even_rows, dense_outs;
  Extents kept, kept_out;

  TREDUCE_DEVICE int64_t row(int64_t o) const { return even_rows ? o * row_stride : offset_of(kept, o); }
  TREDUCE_DEVICE int64_t out(int64_t o) const { return dense_outs ? o : offset_of(kept_out, o); }
  TREDUCE_DEVICE int64_t element(int64_t e) const {
    if constexpr (kWalk == Walk::even) {
      return e * this->element_stride;
    } else if constexpr (kWalk == Walk::two) {
      const int64_t q = this->inner.quotient(e);
      return q * this->outer_stride + (e - q * this->inner.divisor) * this->element_stride;
    } else {
      return offset_of_dims(this->reduced, e);
    }
  }
};

template <Walk kWalk>
Layout<kWalk> layout_of(const Geometry& g) {
  Layout<kWalk> layout;
  if constexpr (kWalk == Walk::even) {
    layout.element_stride = g.reduced.inner_stride();
  } else if constexpr (kWalk == Walk::two) {
    layout.element_stride = g.reduced.stride[1];
    layout.outer_stride = g.reduced.stride[0];
    layout.inner = g.reduced.size[1];
  } else {
    layout.reduced = g.reduced;
  }
  layout.even_rows = g.kept.count <= 1;
  layout.row_stride = g.kept.count == 1 ? g.kept.stride[0] : 0;
  layout.dense_outs = g.kept_out.is_dense();
  layout.limit = g.reach();
  layout.kept = g.kept;
  layout.kept_out = g.kept_out;
  return layout;
}

// The offsets of a thread's elements, `kStep` apart: next(k) is that of element first + k * kStep. Asked in order, every k once.
template <int kStep, int kSize, Walk kWalk>
class Walker {
 public:
  TREDUCE_DEVICE Walker(const Layout<kWalk>& layout, int64_t first) : layout_(layout), first_(first) {}
  TREDUCE_DEVICE int64_t next(int k) const {
    if constexpr (kWalk == Walk::even && kSize > 1) {
      return first_ + k * kStep;  // vectors of even layouts lie one after another
    } else {
      return layout_.element(first_ + k * kStep);
    }
  }

 private:
  const Layout<kWalk>& layout_;
  int64_t first_;
};

// Two dims: a step along the inner one, and back by its size and on by the outer one where it ends.
template <int kStep, int kSize>
class Walker<kStep, kSize, Walk::two> {
 public:
  TREDUCE_DEVICE Walker(const Layout<Walk::two>& layout, int64_t first) : size_(layout.inner.divisor) {
    const int64_t outer = layout.inner.quotient(first), runs = layout.inner.quotient(kStep);
    inner_ = first - outer * size_;
    offset_ = outer * layout.outer_stride + inner_ * layout.element_stride;
    by_ = kStep - runs * size_;
    step_ = runs * layout.outer_stride + by_ * layout.element_stride;
    wrap_ = layout.outer_stride - size_ * layout.element_stride;
  }
  TREDUCE_DEVICE int64_t next(int) {
    const int64_t now = offset_;
    inner_ += by_;
    offset_ += step_;
    if (inner_ >= size_) {
      inner_ -= size_;
      offset_ += wrap_;
    }
    return now;
  }

 private:
  int64_t size_, inner_, offset_, by_, step_, wrap_;
};

// Integers, amax and amin are the same in any order.
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
  // The elements of a vector from `from` to before `to`.
  TREDUCE_DEVICE void take_some(const Pack<T, kSize>& pack, int from, int to) {
    const auto elements = pack.elements();
    if constexpr (kOne) {
      Word folded = Narrow::identity();
#pragma unroll
      for (int c = 0; c < kSize; ++c) {
        if (c >= from && c < to) folded = Narrow::combine(folded, widen<Word>(elements.at[c]));
      }
      at[0] = O::combine(at[0], static_cast<Acc>(folded));
    } else {
#pragma unroll
      for (int c = 0; c < kSize; ++c) {
        if (c >= from && c < to) take(elements.at[c], c);
      }
    }
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
  static constexpr bool kSums = std::is_same_v<O, Sum<Acc>>;
  // Bytes and shorts fold in 32 bits, which sixteen of them cannot overflow; extrema of 32 bits do too.
  static constexpr bool kNarrow = kOne && (sizeof(T) <= 2 || (!kSums && sizeof(T) <= 4));
  using Narrow = typename Narrowed<O, kNarrow>::Op;
  using Word = typename Narrow::Acc;

  TREDUCE_DEVICE static Acc fold_integers(const Pack<T, kSize>& pack) {
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
      const auto elements = pack.elements();
      Word folded = widen<Word>(elements.at[0]);
#pragma unroll
      for (int c = 1; c < kSize; ++c) folded = Narrow::combine(folded, widen<Word>(elements.at[c]));
      return static_cast<Acc>(folded);
    }
  }
};

// A team of threads computes a chunk: thread t holds lanes (h * kThreads + t) * kSize and the next kSize - 1, for h below kHeld.
//
// kShifted: rows begin anywhere, and are read in aligned vectors all the same. Then a thread's lanes lie `shift` further down, the
// first ones wrap around to the chunk's last, and before the tree the leaves move back to where they belong.
template <class O, class Source, int kSize, bool kShifted = false, int kLoads = 8>
struct Team {
  using Acc = typename O::Acc;
  using T = typename Source::Element;
  using Held = Lanes<O, T, kSize>;
  static constexpr int kLanes = Pairwise::kLanes;
  static constexpr int kThreads = kLanes / kSize < warp::kLanes ? kLanes / kSize : warp::kLanes;
  static constexpr int kHeld = kLanes / (kThreads * kSize);
  static constexpr int kOfWarp = warp::kLanes / kThreads;  // teams in a warp
  static constexpr int kStep = kThreads * kSize;           // from one load of a thread to its next
  // Stripes whose loads are issued together: about kLoads a thread.
  static constexpr int kAhead = kLoads / kHeld < Pairwise::kStripes ? kLoads / kHeld : Pairwise::kStripes;
  // Blocks of 256 threads that an SM shall hold: what is more than loads and a few additions needs more registers.
  template <class Layout>
  static constexpr int kResident =
      Layout::kHow == Walk::even && !kShifted && kSize > 1 && (Held::kOne || (sizeof(Acc) == 4 && kSize <= 8)) ? 4 : 3;

  // The node over the chunk that begins at element `begin` of a row of `length`; less where the row ends.
  // Who calls: whole warps, each team of kThreads with its own chunk (and thread number). Valid in: every thread.
  template <class Layout>
  TREDUCE_DEVICE static Acc chunk(const Source& x, const Layout& layout, int64_t row, int64_t begin, int64_t length,
                                  int thread) {
    Held lanes[kHeld];
    if constexpr (kShifted) {
      const int shift = static_cast<int>((reinterpret_cast<uintptr_t>(x.data) / sizeof(T) + row) % kSize);
      if (begin < length) shifted(x, layout.limit, row + begin, length - begin, thread, shift, lanes);
      if constexpr (!is_order_free<O>) move_back(lanes, thread, shift);
    } else {
      const int64_t first = begin + thread * kSize;
      if (__builtin_expect(begin + Pairwise::kChunk <= length, 1)) {
        full(x, layout, row, first, lanes);
      } else if (begin < length) {
        ragged(x, layout, row, first, static_cast<int>(length - first), lanes);
      }
    }
    return tree(lanes);
  }

 private:
  // Where a thread's element of stripe s lies, from its first on.
  TREDUCE_DEVICE static constexpr int place(int s, int h) { return s * kLanes + h * kStep; }

  TREDUCE_DEVICE static Acc tree(const Held (&lanes)[kHeld]) {
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

  template <class Layout>
  TREDUCE_DEVICE static void full(const Source& x, const Layout& layout, int64_t row, int64_t first,
                                  Held (&lanes)[kHeld]) {
    Walker<kStep, kSize, Layout::kHow> walker(layout, first);
#pragma unroll
    for (int s = 0; s < Pairwise::kStripes; s += kAhead) {
      Pack<T, kSize> pack[kAhead][kHeld];
#pragma unroll
      for (int a = 0; a < kAhead; ++a) {
#pragma unroll
        for (int h = 0; h < kHeld; ++h) pack[a][h] = load_pack<kSize>(x, row + walker.next((s + a) * kHeld + h));
      }
#pragma unroll
      for (int a = 0; a < kAhead; ++a) {
#pragma unroll
        for (int h = 0; h < kHeld; ++h) lanes[h].take(pack[a][h]);
      }
    }
  }

  template <class Layout>
  static constexpr bool kReadsAgain = !Source::kConverts && Layout::kHow == Walk::even;

  // The chunk in which the row ends, `rest` elements after this thread's first: the same lanes, of which some take fewer.
  //
  // Past the end the last vector is read again, and not taken, where that is cheap: with a question before each load the compiler
  // waits for some of them before it issues the others, and a short row is a trip to memory and little else.
  template <class Layout>
  TREDUCE_DEVICE static void ragged(const Source& x, const Layout& layout, int64_t row, int64_t first, int rest,
                                    Held (&lanes)[kHeld]) {
    Walker<kStep, kSize, Layout::kHow> walker(layout, first);
    const int most = rest < kSize ? -1 : (rest - kSize) / kStep;  // the number of this thread's last whole vector
#pragma unroll 1
    for (int s = 0; s < Pairwise::kStripes && (kReadsAgain<Layout> ? s * kHeld <= most : place(s, 0) < rest);
         s += kAhead) {
      Pack<T, kSize> pack[kAhead][kHeld] = {};
#pragma unroll
      for (int a = 0; a < kAhead; ++a) {
#pragma unroll
        for (int h = 0; h < kHeld; ++h) {
          const int k = (s + a) * kHeld + h;
          if constexpr (kReadsAgain<Layout>) {
            pack[a][h] = load_pack<kSize>(x, row + walker.next(min(k, most)));
          } else {
            const int64_t offset = walker.next(k);
            if (place(s + a, h) + kSize <= rest) pack[a][h] = load_pack<kSize>(x, row + offset);
          }
        }
      }
#pragma unroll
      for (int a = 0; a < kAhead; ++a) {
#pragma unroll
        for (int h = 0; h < kHeld; ++h) {
          const bool there = kReadsAgain<Layout> ? (s + a) * kHeld + h <= most : place(s + a, h) + kSize <= rest;
          if (there) lanes[h].take(pack[a][h]);
        }
      }
    }
    if constexpr (kSize > 1) {
      // The vector that the row's end cuts: the last of its lanes, and of one thread alone.
      const int stripe = rest > 0 ? rest / kLanes * kLanes : 0;
#pragma unroll
      for (int h = 0; h < kHeld; ++h) {
        const int cut = rest - stripe - h * kStep;
        if (cut <= 0 || cut >= kSize) continue;
        lanes[h].take_some(load_some(x, row + layout.element(first + stripe + h * kStep), 0, cut), 0, cut);
      }
    }
  }

  // `rest` elements are left from `begin`, an offset; `shift` elements before it a vector is aligned. The first thread's first vector
  // is cut by the chunk's begin, and one vector of some thread by its end.
  TREDUCE_DEVICE static void shifted(const Source& x, int64_t limit, int64_t begin, int64_t rest, int thread, int shift,
                                     Held (&lanes)[kHeld]) {
    const int mine = thread * kSize - shift;  // the chunk's element that this thread's first vector begins with
    const int end = rest < Pairwise::kChunk ? static_cast<int>(rest) : Pairwise::kChunk;
    // Before the first address and after the last one nothing is read, though it would lie in the same 16 bytes.
    const bool no_first = begin + mine < 0;
    // The end cuts a vector of some thread: its elements from `end - cut` on.
    const int cut = end > mine ? (end - mine) % kStep : 0;
    const bool is_cut = cut > 0 && cut < kSize && cut <= end;
    const bool no_last = begin + end - cut + kSize > limit;
    Pack<T, kSize> last = {};
    if (is_cut && !no_last) last = load_pack<kSize>(x, begin + end - cut);
    if (end == Pairwise::kChunk) {
#pragma unroll
      for (int s = 0; s < Pairwise::kStripes; s += kAhead) {
        Pack<T, kSize> pack[kAhead][kHeld];
#pragma unroll
        for (int a = 0; a < kAhead; ++a) {
#pragma unroll
          for (int h = 0; h < kHeld; ++h) {
            pack[a][h] = {};
            if (s + a + h > 0 || !no_first) pack[a][h] = load_pack<kSize>(x, begin + mine + place(s + a, h));
          }
        }
#pragma unroll
        for (int a = 0; a < kAhead; ++a) {
#pragma unroll
          for (int h = 0; h < kHeld; ++h) {
            if (s + a + h == 0 && mine < 0) {
              if (no_first) pack[a][h] = load_some(x, begin + mine, shift, kSize);
              lanes[h].take_some(pack[a][h], shift, kSize);
            } else {
              lanes[h].take(pack[a][h]);
            }
          }
        }
      }
    } else {
      constexpr int kFew = kAhead / 2;
#pragma unroll 1
      for (int s = 0; s < Pairwise::kStripes && place(s, 0) + mine < end; s += kFew) {
        Pack<T, kSize> pack[kFew][kHeld] = {};
#pragma unroll
        for (int a = 0; a < kFew; ++a) {
#pragma unroll
          for (int h = 0; h < kHeld; ++h) {
            const int at = mine + place(s + a, h);
            if (at < 0 ? !no_first && begin + at + kSize <= limit : at + kSize <= end) {
              pack[a][h] = load_pack<kSize>(x, begin + at);
            }
          }
        }
#pragma unroll
        for (int a = 0; a < kFew; ++a) {
#pragma unroll
          for (int h = 0; h < kHeld; ++h) {
            const int at = mine + place(s + a, h);
            if (a + h == 0 && at < 0) {
              const int to = end - at < kSize ? end - at : kSize;
              if (no_first || begin + at + kSize > limit) pack[a][h] = load_some(x, begin + at, shift, to);
              lanes[h].take_some(pack[a][h], shift, to);
            } else if (at + kSize <= end) {
              lanes[h].take(pack[a][h]);
            }
          }
        }
      }
    }
    if (is_cut && no_last) last = load_some(x, begin + end - cut, 0, cut);
    const int of_stripe = is_cut ? (end - mine) % kLanes : 0;
#pragma unroll
    for (int h = 0; h < kHeld; ++h) {
      const int to = of_stripe - h * kStep;
      lanes[h].take_some(last, 0, to < kSize ? to : 0);
    }
  }

  // The elements of a vector from `from` to before `to`, one by one.
  TREDUCE_DEVICE static Pack<T, kSize> load_some(const Source& x, int64_t i, int from, int to) {
    typename Pack<T, kSize>::Elements elements = {};
#pragma unroll
    for (int c = 0; c < kSize; ++c) {
      if (c >= from && c < to) elements.at[c] = x.at(i + c);
    }
    Pack<T, kSize> pack;
    memcpy(&pack.words, &elements, sizeof(elements));
    return pack;
  }

  // Moves values `shift` places down, by one bit of it after the other: the kCount first are still wanted.
  template <int kBit, int kCount, int kAll>
  TREDUCE_DEVICE static void move_down(Acc (&values)[kAll], int shift) {
    if constexpr (kBit > 0) {
#pragma unroll
      for (int c = 0; c + kBit < kCount; ++c) {
        const Acc here = values[c], there = values[c + kBit];
        values[c] = shift & kBit ? there : here;
      }
      move_down<kBit / 2, kCount - kBit>(values, shift);
    }
  }

  // Component c of thread t holds lane t * kSize + c - shift: lane l moves `shift` places down, to its own thread.
  TREDUCE_DEVICE static void move_back(Held (&lanes)[kHeld], int thread, int shift) {
    constexpr int kBoth = 2 * kSize - 1;
    const int next = (threadIdx.x & ~(kThreads - 1)) % warp::kLanes + (thread + 1) % kThreads;
    Acc both[kHeld][kBoth];  // this thread's, and what the next one holds
#pragma unroll
    for (int h = 0; h < kHeld; ++h) {
#pragma unroll
      for (int c = 0; c < kSize; ++c) both[h][c] = lanes[h].at[c];
#pragma unroll
      for (int c = 0; c + 1 < kSize; ++c) {
        // After the last thread comes the first one with the lanes after these.
        const Acc given = thread == 0 ? lanes[(h + 1) % kHeld].at[c] : lanes[h].at[c];
        both[h][kSize + c] = warp::from(given, next);
      }
    }
#pragma unroll
    for (int h = 0; h < kHeld; ++h) {
      move_down<kSize / 2, kBoth>(both[h], shift);
#pragma unroll
      for (int c = 0; c < kSize; ++c) lanes[h].at[c] = both[h][c];
    }
  }
};

}  // namespace treduce::reduce
