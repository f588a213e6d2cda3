// The kernels of pairwise_cpu_kernels.h in vectors of TREDUCE_VECTOR_BYTES, for the namespace TREDUCE_INSTRUCTIONS. Each source
// file that includes this one is compiled for other instructions, so everything here has internal linkage: the linker must not
// pick one of them for all.
//
// A leaf is a lane of a vector. Additions of stripes are additions of vectors; the tree over the lanes takes the vectors in
// pairs, and leaves neighbouring nodes side by side. Accumulators between two steps lie in planes: a sum that carries its error
// has two of them.
#include <cstring>
#include <utility>

#define TREDUCE_INLINE inline __attribute__((always_inline))

namespace treduce::reduce::cpu::TREDUCE_INSTRUCTIONS {
namespace {

template <class T, int kCount>
struct VectorOf {
  typedef T type __attribute__((vector_size(sizeof(T) * kCount)));
};
template <class T, int kCount>
using Vector = typename VectorOf<T, kCount>::type;

template <int kBytes>
using SignedWord =
    std::conditional_t<kBytes == 8, int64_t,
                       std::conditional_t<kBytes == 4, int32_t, std::conditional_t<kBytes == 2, int16_t, int8_t>>>;

template <class V, class T>
TREDUCE_INLINE V load_vector(const T* p) {
  V v;
  memcpy(&v, p, sizeof(v));
  return v;
}

template <class T, int kCount>
TREDUCE_INLINE Vector<T, kCount> broadcast(T value) {
  Vector<T, kCount> v;
  for (int k = 0; k < kCount; ++k) v[k] = value;
  return v;
}

// kCount elements as A's. The conversions are those of the element types, a vector at a time.
template <class A, int kCount, class In>
TREDUCE_INLINE Vector<A, kCount> widen_vector(const In* p) {
  using V = Vector<A, kCount>;
  using Words = Vector<uint32_t, kCount>;
  if constexpr (std::is_same_v<In, A>) {
    return load_vector<V>(p);
  } else if constexpr (std::is_same_v<In, bfloat16>) {
    return (V)(__builtin_convertvector(load_vector<Vector<uint16_t, kCount>>(p), Words) << 16);
  } else if constexpr (std::is_same_v<In, float16>) {
#ifdef __F16C__
    return (V)_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
#else
    const Words bits = __builtin_convertvector(load_vector<Vector<uint16_t, kCount>>(p), Words);
    const V scaled = (V)((bits & 0x7fffu) << 13) * 0x1p112f;
    const Words infinite = (Words)((bits & 0x7c00u) == 0x7c00u) & 0x7f800000u;
    return (V)((Words)scaled | infinite | (bits & 0x8000u) << 16);
#endif
  } else if constexpr (std::is_same_v<In, boolean>) {
    const auto bytes = load_vector<Vector<uint8_t, kCount>>(p);
    return __builtin_convertvector((Vector<uint8_t, kCount>)(bytes != 0) & 1, V);
  } else {
    return __builtin_convertvector(load_vector<Vector<In, kCount>>(p), V);
  }
}

// Elements of the result come from a where kFrom is below their number, and from b else.
template <class V, int... kFrom>
TREDUCE_INLINE V shuffle(V a, V b, std::integer_sequence<int, kFrom...>) {
#ifdef __clang__
  return __builtin_shufflevector(a, b, kFrom...);
#else
  return __builtin_shuffle(a, b, Vector<SignedWord<sizeof(a[0])>, sizeof...(kFrom)>{kFrom...});
#endif
}

// Shuffles of vectors of kCount elements that lie in 16-byte blocks of kBlock.
template <int kCount, int kBlock>
struct Shuffles {
  static constexpr int kBlocks = kCount / kBlock;
  // Within each block: the even (or odd) elements of a's block, then those of b's.
  static constexpr int alternate(int i, int odd) {
    const int k = i % kBlock, half = kBlock / 2;
    return (k < half ? 0 : kCount) + i / kBlock * kBlock + 2 * (k % half) + odd;
  }
  // The even (or odd) blocks of a, then those of b.
  static constexpr int alternate_blocks(int i, int odd) {
    const int j = i / kBlock, half = kBlocks / 2;
    return (j < half ? 0 : kCount) + (2 * (j % half) + odd) * kBlock + i % kBlock;
  }
  // The first halves of all blocks, then the second halves.
  static constexpr int halves_apart(int i) {
    const int half = kBlock / 2, j = i / half;
    return (j < kBlocks ? 2 * j : 2 * (j - kBlocks) + 1) * half + i % half;
  }
  template <int kOdd, int... k>
  static constexpr std::integer_sequence<int, alternate(k, kOdd)...> elements(std::integer_sequence<int, k...>);
  template <int kOdd, int... k>
  static constexpr std::integer_sequence<int, alternate_blocks(k, kOdd)...> blocks(std::integer_sequence<int, k...>);
  template <int... k>
  static constexpr std::integer_sequence<int, halves_apart(k)...> halves(std::integer_sequence<int, k...>);

  using All = std::make_integer_sequence<int, kCount>;
  template <int kOdd>
  using Elements = decltype(elements<kOdd>(All{}));
  template <int kOdd>
  using Blocks = decltype(blocks<kOdd>(All{}));
  using Halves = decltype(halves(All{}));
};

// An op on vectors of A, for elements of type In.
template <class O, class In_, class A_>
struct Lanes {
  using In = In_;
  using A = A_;
  using Acc = typename O::Acc;
  static constexpr bool kCarriesError = carries_error<Acc>;
  static constexpr int kPlanes = kCarriesError ? 2 : 1;
  static constexpr int kWidth = TREDUCE_VECTOR_BYTES / sizeof(A);
  static constexpr int kBlock = 16 / sizeof(A);
  using V = Vector<A, kWidth>;
  using Word = SignedWord<sizeof(A)>;
  using Shuffle = Shuffles<kWidth, kBlock>;

  struct Value {
    V at[kPlanes];
  };

  TREDUCE_INLINE static Value load(const In* p) { return {{widen_vector<A, kWidth>(p)}}; }
  // The first `count` elements, and the identity after them; one vector is read if `whole`.
  TREDUCE_INLINE static Value load(const In* p, int count, bool whole) {
    In some[kWidth];
    if (!whole) {
      memset(some, 0, sizeof(some));
      memcpy(some, p, count * sizeof(In));
      p = some;
    }
    Value v = load(p);
    const auto mask = lane_numbers() < broadcast<Word, kWidth>(static_cast<Word>(count));
    v.at[0] = mask ? v.at[0] : identity().at[0];
    return v;
  }
  TREDUCE_INLINE static Value identity() {
    Value v{};
    if constexpr (!kCarriesError) v.at[0] = broadcast<A, kWidth>(static_cast<A>(scalar_identity()));
    return v;
  }
  static constexpr bool kSum = kCarriesError || std::is_same_v<O, Sum<Acc>>;
  TREDUCE_INLINE static A scalar_identity() {
    if constexpr (kSum) {
      return A(0);
    } else if constexpr (std::is_floating_point_v<A>) {
      return O::identity();
    } else {
      constexpr bool kMax = std::is_same_v<O, Max<Acc>>;
      constexpr A kLeast = std::is_signed_v<A> ? static_cast<A>(uint64_t{1} << (8 * sizeof(A) - 1)) : A(0);
      return kMax ? kLeast : static_cast<A>(~kLeast);
    }
  }

  TREDUCE_INLINE static Value combine(Value a, Value b) {
    if constexpr (kCarriesError) {
      const V sum = a.at[0] + b.at[0];
      const V from_b = sum - a.at[0];
      const V lost = (a.at[0] - (sum - from_b)) + (b.at[0] - from_b);
      return {{sum, (a.at[1] + b.at[1]) + lost}};
    } else {
      return {{combine(a.at[0], b.at[0])}};
    }
  }
  TREDUCE_INLINE static V combine(V a, V b) {
    if constexpr (kSum) {
      if constexpr (std::is_integral_v<A>) {
        using Unsigned = Vector<std::make_unsigned_t<A>, kWidth>;
        return (V)((Unsigned)a + (Unsigned)b);
      } else {
        return a + b;
      }
    } else {
      constexpr bool kMax = std::is_same_v<O, Max<Acc>>;
      const V strict = kMax ? (a > b ? a : b) : (a < b ? a : b);
      if constexpr (std::is_integral_v<A>) {
        return strict;
      } else {  // see Extremum
        using Bits = Vector<Word, kWidth>;
        const V same = kMax ? (V)((Bits)a & (Bits)b) : (V)((Bits)a | (Bits)b);
        const V ordered = a == b ? same : strict;
        return a != a ? a : ordered;
      }
    }
  }
  // For the few values that are left.
  static A combine_scalars(A a, A b) {
    if constexpr (kSum) {
      return static_cast<A>(Sum<std::conditional_t<std::is_integral_v<A>, int64_t, A>>::combine(a, b));
    } else if constexpr (std::is_floating_point_v<A>) {
      return O::combine(a, b);
    } else {
      return std::is_same_v<O, Max<Acc>> == (a > b) ? a : b;
    }
  }

  // Accumulators in planes, `distance` apart.
  TREDUCE_INLINE static Value get(const A* p, int64_t distance) {
    Value v;
    for (int k = 0; k < kPlanes; ++k) v.at[k] = load_vector<V>(p + k * distance);
    return v;
  }
  TREDUCE_INLINE static void put(A* p, int64_t distance, const Value& v) {
    for (int k = 0; k < kPlanes; ++k) memcpy(p + k * distance, &v.at[k], sizeof(V));
  }
  TREDUCE_INLINE static Acc node(const A* p, int64_t distance) {
    if constexpr (kCarriesError) {
      return {p[0], p[distance]};
    } else {
      return static_cast<Acc>(*p);
    }
  }

  // The nodes of the neighbours in a, then those in b, but with the blocks of both taking turns.
  TREDUCE_INLINE static Value pairs_in_blocks(const Value& a, const Value& b) {
    using Even = typename Shuffle::template Elements<0>;
    using Odd = typename Shuffle::template Elements<1>;
    Value even, odd;
    for (int k = 0; k < kPlanes; ++k) {
      even.at[k] = shuffle(a.at[k], b.at[k], Even{});
      odd.at[k] = shuffle(a.at[k], b.at[k], Odd{});
    }
    return combine(even, odd);
  }
  TREDUCE_INLINE static Value pairs_of_blocks(const Value& a, const Value& b) {
    using Even = typename Shuffle::template Blocks<0>;
    using Odd = typename Shuffle::template Blocks<1>;
    Value even, odd;
    for (int k = 0; k < kPlanes; ++k) {
      even.at[k] = shuffle(a.at[k], b.at[k], Even{});
      odd.at[k] = shuffle(a.at[k], b.at[k], Odd{});
    }
    return combine(even, odd);
  }
  // The nodes of the neighbours in a, then those in b.
  TREDUCE_INLINE static Value pairs(const Value& a, const Value& b) {
    Value v = pairs_in_blocks(a, b);
    if constexpr (kWidth > kBlock) {
      for (int k = 0; k < kPlanes; ++k) v.at[k] = shuffle(v.at[k], v.at[k], typename Shuffle::Halves{});
    }
    return v;
  }
  // Element i is the node over all lanes of v[i].
  TREDUCE_INLINE static Value square(const Value* v) {
    Value t[kWidth / 2];
#pragma GCC unroll 16
    for (int i = 0; i < kWidth / 2; ++i) t[i] = pairs_in_blocks(v[2 * i], v[2 * i + 1]);
    int count = kWidth / 2;
#pragma GCC unroll 8
    for (int lanes = kBlock / 2; lanes > 1; lanes /= 2) {
      count /= 2;
#pragma GCC unroll 16
      for (int i = 0; i < count; ++i) t[i] = pairs_in_blocks(t[2 * i], t[2 * i + 1]);
    }
    if constexpr (kWidth > kBlock) {
#pragma GCC unroll 8
      for (int blocks = kWidth / kBlock; blocks > 1; blocks /= 2) {
        count /= 2;
#pragma GCC unroll 16
        for (int i = 0; i < count; ++i) t[i] = pairs_of_blocks(t[2 * i], t[2 * i + 1]);
      }
    }
    return t[0];
  }

 private:
  TREDUCE_INLINE static Vector<Word, kWidth> lane_numbers() {
    Vector<Word, kWidth> v;
    for (int k = 0; k < kWidth; ++k) v[k] = static_cast<Word>(k);
    return v;
  }
};

constexpr int kLanes = Pairwise::kLanes, kStripes = Pairwise::kStripes, kChunk = Pairwise::kChunk;
constexpr int kUnitChunks = static_cast<int>(kUnit / kChunk);

// Accumulators on their way up the tree: neighbours lie side by side. Reading past the last one gives zeros or old values.
template <class L>
struct Nodes {
  using A = typename L::A;
  static constexpr int kCapacity = kUnitChunks * kLanes / L::kWidth;
  static constexpr int kRoom = kCapacity + 2 * L::kWidth;
  alignas(64) A at[L::kPlanes][kRoom];

  Nodes() { memset(at, 0, sizeof(at)); }
  TREDUCE_INLINE void put(int64_t i, const typename L::Value& v) { L::put(&at[0][i], kRoom, v); }
  typename L::Acc node(int64_t i) const { return L::node(&at[0][i], kRoom); }

  // Each aligned run of `size` (a power of two) of the first `count` nodes becomes one.
  void fold(int64_t count, int size) {
    for (; size > 1; size /= 2) {
      count /= 2;
      for (int64_t i = 0; i < count; i += L::kWidth) {
        put(i, L::pairs(L::get(&at[0][2 * i], kRoom), L::get(&at[0][2 * i + L::kWidth], kRoom)));
      }
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

template <class O, class L>
struct Rows {
  using In = typename L::In;
  using A = typename L::A;
  using Acc = typename L::Acc;
  using Value = typename L::Value;
  static constexpr int kWidth = L::kWidth;
  static constexpr int kOfChunk = kLanes / kWidth;  // nodes that a chunk leaves before Nodes::fold

  static void run(const void* data, int64_t rows, int64_t stride, int64_t n, void* result) {
    const In* const x = static_cast<const In*>(data);
    Acc* const nodes = static_cast<Acc*>(result);
    if (n > kLanes) {
      chunks(x, rows, stride, n, nodes);
    } else if (n <= kWidth / 2 && (n & (n - 1)) == 0 && stride == n) {
      parts_of_vectors(x, rows, static_cast<int>(n), nodes);
    } else {
      lanes(x, rows, stride, static_cast<int>(n), nodes);
    }
  }

 private:
  // Several whole rows in a vector.
  static void parts_of_vectors(const In* x, int64_t rows, int n, Acc* nodes) {
    Nodes<L> held;
    const int64_t all = rows * n;
    constexpr int64_t kAtOnce = Nodes<L>::kCapacity;
    for (int64_t begin = 0; begin < all; begin += kAtOnce) {
      const int64_t count = all - begin < kAtOnce ? all - begin : kAtOnce;
      int64_t i = 0;
      for (; i + kWidth <= count; i += kWidth) held.put(i, L::load(x + begin + i));
      if (i < count) held.put(i, L::load(x + begin + i, static_cast<int>(count - i), false));
      held.fold(count, n);
      for (int64_t r = 0; r < count / n; ++r) nodes[begin / n + r] = held.node(r);
    }
  }

  // Rows of a single stripe. Each takes a power of two of vectors, the last of them filled up with the identity.
  static void lanes(const In* x, int64_t rows, int64_t stride, int n, Acc* nodes) {
    const int vectors = (n + kWidth - 1) / kWidth, rest = n - (vectors - 1) * kWidth;
    int padded = 1;
    while (padded < vectors) padded *= 2;
    const int64_t at_once = Nodes<L>::kCapacity / padded;
    // Rows before this one may be read up to the end of their last vector: rows behind them reach further.
    const int64_t past = vectors * kWidth - n;
    const int64_t safe = rest == kWidth ? rows : (stride <= 0 ? 0 : rows - (past + stride - 1) / stride);
    Nodes<L> held;
    for (int64_t begin = 0; begin < rows; begin += at_once) {
      const int64_t count = rows - begin < at_once ? rows - begin : at_once;
      const In* row = x + begin * stride;
      int64_t r = 0, at = 0;
      if (rest == kWidth && padded == vectors && stride == n) {  // one run of vectors
        for (; at + kWidth <= count * padded; at += kWidth) {
          Value v[kWidth];
#pragma GCC unroll 16
          for (int i = 0; i < kWidth; ++i) v[i] = L::load(row + (at + i) * kWidth);
          held.put(at, L::square(v));
        }
        r = at / padded;
        row += r * stride;
      } else if (padded == 1) {
        for (; at + kWidth <= count && begin + at + kWidth <= safe; at += kWidth) {
          Value v[kWidth];
#pragma GCC unroll 16
          for (int i = 0; i < kWidth; ++i) v[i] = L::load(row + i * stride, n, true);
          held.put(at, L::square(v));
          row += kWidth * stride;
        }
        r = at;
      }
      while (r < count) {
        Value v[kWidth];
        for (int i = 0; i < kWidth && r < count;) {
          const int first = static_cast<int>(at % padded);  // of the row's vectors
          const int end = padded - first < kWidth ? padded : first + kWidth;
          for (int k = first; k < end; ++k, ++i, ++at) {
            if (k < vectors - 1) {
              v[i] = L::load(row + k * kWidth);
            } else {
              v[i] = k < vectors ? L::load(row + k * kWidth, rest, begin + r < safe) : L::identity();
            }
          }
          if (end == padded) {
            ++r;
            row += stride;
          }
          if (r == count) {
            for (; i < kWidth; ++i, ++at) v[i] = L::identity();
          }
        }
        held.put(at - kWidth, L::square(v));
      }
      held.fold(count * padded, padded);
      for (int64_t i = 0; i < count; ++i) nodes[begin + i] = held.node(i);
    }
  }

  static void chunks(const In* x, int64_t rows, int64_t stride, int64_t n, Acc* nodes) {
    const int of_row = static_cast<int>((n + kChunk - 1) / kChunk);
    const int64_t at_once = kUnitChunks / of_row;
    Nodes<L> held;
    for (int64_t begin = 0; begin < rows; begin += at_once) {
      const int64_t count = rows - begin < at_once ? rows - begin : at_once;
      for (int64_t r = 0; r < count; ++r) {
        const In* chunk = x + (begin + r) * stride;
        int64_t at = r * of_row * kOfChunk, rest = n;
        for (; rest >= kChunk; rest -= kChunk, chunk += kChunk, at += kOfChunk) whole_chunk(chunk, held, at);
        if (rest > 0) part_of_chunk(chunk, static_cast<int>(rest), held, at);
      }
      held.fold(count * of_row * kOfChunk, kOfChunk);
      for (int64_t r = 0; r < count; ++r) {
        Acc few[kUnitChunks];
        for (int c = 0; c < of_row; ++c) few[c] = held.node(r * of_row + c);
        nodes[begin + r] = fold_few<O>(few, of_row);
      }
    }
  }

  TREDUCE_INLINE static void whole_chunk(const In* x, Nodes<L>& held, int64_t at) {
    constexpr int kHeld = L::kPlanes == 2 ? kWidth : 8;  // vectors whose stripes are added side by side, in registers
    for (int lane = 0; lane < kLanes; lane += kHeld * kWidth) {
      Value v[kHeld];
#pragma GCC unroll 16
      for (int i = 0; i < kHeld; ++i) v[i] = L::load(x + lane + i * kWidth);
#pragma GCC unroll 1
      for (int s = 1; s < kStripes; ++s) {
#pragma GCC unroll 16
        for (int i = 0; i < kHeld; ++i) v[i] = L::combine(v[i], L::load(x + s * kLanes + lane + i * kWidth));
      }
#pragma GCC unroll 8
      for (int i = 0; i < kHeld; i += kWidth) held.put(at + lane / kWidth + i, L::square(v + i));
    }
  }

  static void part_of_chunk(const In* x, int n, Nodes<L>& held, int64_t at) {
    const int stripes = n / kLanes, rest = n % kLanes;
    for (int lane = 0; lane < kLanes; lane += kWidth * kWidth) {
      Value v[kWidth];
      for (int i = 0; i < kWidth; ++i) {
        const int l = lane + i * kWidth;
        const In* const p = x + l;
        const int more = rest - l;  // elements of the last stripe
        const int whole = stripes + (more >= kWidth ? 1 : 0);
        Value sum = whole > 0 ? L::load(p) : L::identity();
        for (int s = 1; s < whole; ++s) sum = L::combine(sum, L::load(p + s * kLanes));
        if (more > 0 && more < kWidth) {
          const Value last = L::load(p + whole * kLanes, more, false);
          sum = whole > 0 ? L::combine(sum, last) : last;
        }
        v[i] = sum;
      }
      held.put(at + lane / kWidth, L::square(v));
    }
  }
};

// Extrema of narrow integers: many of them in a vector, in any order.
template <class O, class L>
struct NarrowExtremum {
  using In = typename L::In;
  using A = typename L::A;
  static constexpr int kWidth = L::kWidth;

  static void run(const void* data, int64_t rows, int64_t stride, int64_t n, void* result) {
    for (int64_t r = 0; r < rows; ++r) {
      const In* const x = static_cast<const In*>(data) + r * stride;
      A value = L::scalar_identity();
      int64_t e = 0;
      if (n >= kWidth) {
        constexpr int kHeld = 4;
        typename L::Value v[kHeld];
        for (int i = 0; i < kHeld; ++i) v[i] = L::load(x);
        for (; e + kHeld * kWidth <= n; e += kHeld * kWidth) {
#pragma GCC unroll 4
          for (int i = 0; i < kHeld; ++i) v[i] = L::combine(v[i], L::load(x + e + i * kWidth));
        }
        for (; e + kWidth <= n; e += kWidth) v[0] = L::combine(v[0], L::load(x + e));
        v[0] = L::combine(L::combine(v[0], v[1]), L::combine(v[2], v[3]));
        for (int k = 0; k < kWidth; ++k) value = L::combine_scalars(value, v[0].at[0][k]);
      }
      for (; e < n; ++e) value = L::combine_scalars(value, static_cast<A>(x[e]));
      static_cast<typename O::Acc*>(result)[r] = value;
    }
  }
};

// Columns, a few rows at a time: the leaves of some vector of columns are added in registers, and go up the tree at once. A
// level of the tree holds one node a column.
template <class O, class L>
struct Columns {
  using In = typename L::In;
  using A = typename L::A;
  using Acc = typename L::Acc;
  using Value = typename L::Value;
  static constexpr int kWidth = L::kWidth;
  static constexpr int kLevels = 13;  // log2(leaves of a unit) + 1
  static constexpr int kAtOnce = 8;   // rows
  static_assert((1 << (kLevels - 1)) == kUnitChunks * kLanes);
  static constexpr int64_t kSlots = kColumns + kWidth;
  static constexpr int64_t kScratch = kLevels * L::kPlanes * kSlots * sizeof(A);

  static void run(const void* data, const int64_t* offsets, int64_t pitch, int64_t n, int64_t columns, void* scratch,
                  void* result) {
    const In* const x = static_cast<const In*>(data);
    const Tree tree{static_cast<A*>(scratch), columns};
    int64_t leaves = 0;
    for (int64_t first = 0; first < n; first += kChunk) {
      const int count = static_cast<int>(n - first < kChunk ? n - first : kChunk);
      const int lanes = count < kLanes ? count : kLanes, stripes = count / kLanes, rest = count % kLanes;
      for (int l = 0; l < lanes;) {
        const int mine = stripes + (l < rest ? 1 : 0);
        const int alike = l < rest ? rest : lanes;  // lanes up to here have as many stripes
        int group = 1;
        while (2 * group * mine <= kAtOnce && l % (2 * group) == 0 && l + 2 * group <= alike) group *= 2;
        const In* rows[kAtOnce];
        for (int g = 0; g < group; ++g) {
          for (int s = 0; s < mine; ++s) {
            const int64_t row = first + l + g + s * kLanes;
            rows[g * mine + s] = x + (offsets != nullptr ? offsets[row] : row * pitch);
          }
        }
        switch (group) {
          case 8: add<8>(rows, 1, leaves, tree); break;
          case 4: mine == 2 ? add<4>(rows, 2, leaves, tree) : add<4>(rows, mine, leaves, tree); break;
          case 2: mine == 4 ? add<2>(rows, 4, leaves, tree) : add<2>(rows, mine, leaves, tree); break;
          default: mine == kStripes ? add<1>(rows, kStripes, leaves, tree) : add<1>(rows, mine, leaves, tree);
        }
        l += group;
        leaves += group;
      }
    }
    finish(leaves, tree, static_cast<Acc*>(result));
  }

 private:
  struct Tree {
    A* nodes;
    int64_t columns;
    A* level(int k, int64_t slot) const { return nodes + k * L::kPlanes * kSlots + slot; }
    // The last vector of columns begins early, so that it ends in time; what it holds twice, it computes twice.
    int64_t begin(int64_t slot) const { return slot + kWidth <= columns ? slot : columns - kWidth; }
  };

  template <int kGroup>
  TREDUCE_INLINE static void add(const In* const* rows, int stripes, int64_t leaves, const Tree& tree) {
    int depth = 0, top = 0;
    while (1 << depth < kGroup) ++depth;
    for (top = depth; leaves >> top & 1; ++top) {
    }
    for (int64_t slot = 0; slot < tree.columns; slot += kWidth) {
      const int64_t c = tree.begin(slot);
      Value v[kGroup];
#pragma GCC unroll 8
      for (int g = 0; g < kGroup; ++g) {
        v[g] = L::load(rows[g * stripes] + c);
#pragma GCC unroll 8
        for (int s = 1; s < stripes; ++s) v[g] = L::combine(v[g], L::load(rows[g * stripes + s] + c));
      }
#pragma GCC unroll 4
      for (int s = 1; s < kGroup; s *= 2) {
#pragma GCC unroll 8
        for (int g = 0; g < kGroup; g += 2 * s) v[g] = L::combine(v[g], v[g + s]);
      }
      for (int k = depth; k < top; ++k) v[0] = L::combine(L::get(tree.level(k, slot), kSlots), v[0]);
      L::put(tree.level(top, slot), kSlots, v[0]);
    }
  }

  static void finish(int64_t leaves, const Tree& tree, Acc* result) {
    int lowest = 0;
    while ((leaves >> lowest & 1) == 0) ++lowest;
    for (int64_t slot = 0; slot < tree.columns; slot += kWidth) {
      Value v = L::get(tree.level(lowest, slot), kSlots);
      for (int k = lowest + 1; leaves >> k != 0; ++k) {
        if (leaves >> k & 1) v = L::combine(L::get(tree.level(k, slot), kSlots), v);
      }
      A last[L::kPlanes][kWidth];
      L::put(last[0], kWidth, v);
      for (int i = 0; i < kWidth; ++i) result[tree.begin(slot) + i] = L::node(&last[0][i], kWidth);
    }
  }
};

// Few columns: a stripe of 128 rows is one run of memory, so stripes are added as runs, and neighbouring leaves of a column lie
// `columns` apart.
template <class O, class L>
struct Narrow {
  using In = typename L::In;
  using A = typename L::A;
  using Acc = typename L::Acc;
  using Value = typename L::Value;
  static constexpr int kWidth = L::kWidth;
  static constexpr int64_t kMost = 16 * 1024 / (kLanes * sizeof(A) * L::kPlanes);
  static constexpr int64_t kRoom = kMost * kLanes + kWidth;  // accumulators of a plane
  static constexpr int64_t kScratch = (2 * L::kPlanes * kRoom + L::kPlanes * kMost * kUnitChunks) * sizeof(A);

  static void run(const void* data, int64_t n, int64_t columns, void* scratch, void* result) {
    const In* x = static_cast<const In*>(data);
    A* const leaves = static_cast<A*>(scratch);
    A* const other = leaves + L::kPlanes * kRoom;
    Acc* const nodes = static_cast<Acc*>(result);
    A* const of_chunks = other + L::kPlanes * kRoom;
    const int chunks = static_cast<int>((n + kChunk - 1) / kChunk);
    const int64_t stripe = kLanes * columns;
    for (int chunk = 0; chunk < chunks; ++chunk) {
      const int64_t left = n - int64_t{chunk} * kChunk;
      const int count = static_cast<int>(left < kChunk ? left : kChunk);
      const int stripes = count / kLanes;
      const int64_t rest = count % kLanes * columns;
      if (rest > 0) add(x, stripe, stripes + 1, rest, leaves);
      if (stripes > 0) add(x + rest, stripe, stripes, stripe - rest, leaves + rest);
      const A* const node = fold(leaves, other, count < kLanes ? count : kLanes, columns);
      for (int k = 0; k < L::kPlanes; ++k) {
        memcpy(of_chunks + (k * kUnitChunks + chunk) * columns, node + k * kRoom, columns * sizeof(A));
      }
      x += kChunk * columns;
    }
    for (int64_t c = 0; c < columns; ++c) {
      const auto of_chunk = [&](int chunk) { return L::node(of_chunks + chunk * columns + c, kUnitChunks * columns); };
      Acc of_column[kUnitChunks];
      of_column[0] = of_chunk(0);
      for (int chunk = 1; chunk < chunks; ++chunk) of_column[chunk] = of_chunk(chunk);
      nodes[c] = fold_few<O>(of_column, chunks);
    }
  }

 private:
  // sums[p] = x[p] + x[p + stripe] + ..., of `stripes` elements.
  static void add(const In* x, int64_t stripe, int stripes, int64_t count, A* sums) {
    int64_t p = 0;
    constexpr int kHeld = L::kPlanes == 2 ? 2 : 4;
    for (; p + kHeld * kWidth <= count; p += kHeld * kWidth) {
      Value v[kHeld];
#pragma GCC unroll 4
      for (int i = 0; i < kHeld; ++i) v[i] = L::load(x + p + i * kWidth);
#pragma GCC unroll 1
      for (int s = 1; s < stripes; ++s) {
#pragma GCC unroll 4
        for (int i = 0; i < kHeld; ++i) v[i] = L::combine(v[i], L::load(x + s * stripe + p + i * kWidth));
      }
#pragma GCC unroll 4
      for (int i = 0; i < kHeld; ++i) L::put(sums + p + i * kWidth, kRoom, v[i]);
    }
    while (p < count) {
      Value v;
      if (count >= kWidth) {
        if (p + kWidth > count) p = count - kWidth;  // some of them again
        v = L::load(x + p);
        for (int s = 1; s < stripes; ++s) v = L::combine(v, L::load(x + s * stripe + p));
      } else {
        const int few = static_cast<int>(count - p);
        v = L::load(x + p, few, false);
        for (int s = 1; s < stripes; ++s) v = L::combine(v, L::load(x + s * stripe + p, few, false));
      }
      L::put(sums + p, kRoom, v);
      p += kWidth;
    }
  }

  // Where the nodes of the columns are.
  static const A* fold(A* from, A* to, int count, int64_t columns) {
    while (count > 1) {
      const int pairs = count / 2;
      for (int t = 0; t < pairs; ++t) {
        const A* const a = from + 2 * t * columns;
        // What is written past a pair is written again, by the next one or by nobody who counts.
        for (int64_t c = 0; c < columns; c += kWidth) {
          L::put(to + t * columns + c, kRoom, L::combine(L::get(a + c, kRoom), L::get(a + columns + c, kRoom)));
        }
      }
      if (count % 2 != 0) {
        for (int k = 0; k < L::kPlanes; ++k) {
          memcpy(to + k * kRoom + pairs * columns, from + k * kRoom + (count - 1) * columns, columns * sizeof(A));
        }
      }
      count -= pairs;
      std::swap(from, to);
    }
    return from;
  }
};

template <class O, class In, class A>
const Kernels* kernels() {
  using L = Lanes<O, In, A>;
  using R = std::conditional_t<sizeof(A) >= 4, Rows<O, L>, NarrowExtremum<O, L>>;
  static constexpr Kernels table{
      sizeof(In), L::kWidth,          Narrow<O, L>::kMost, Columns<O, L>::kScratch, Narrow<O, L>::kScratch,
      R::run,     Columns<O, L>::run, Narrow<O, L>::run};
  return &table;
}

}  // namespace

const Kernels* find(Op op, Arithmetic arithmetic, DType dtype) {
  if (op == Op::amax || op == Op::amin) {
    const bool max = op == Op::amax;
    switch (dtype) {
      case DType::float32: return max ? kernels<Max<float>, float, float>() : kernels<Min<float>, float, float>();
      case DType::float64: return max ? kernels<Max<double>, double, double>() : kernels<Min<double>, double, double>();
      case DType::float16: return max ? kernels<Max<float>, float16, float>() : kernels<Min<float>, float16, float>();
      case DType::bfloat16:
        return max ? kernels<Max<float>, bfloat16, float>() : kernels<Min<float>, bfloat16, float>();
      case DType::int8: return max ? kernels<Max<int64_t>, int8_t, int8_t>() : kernels<Min<int64_t>, int8_t, int8_t>();
      case DType::uint8:
      case DType::boolean:
        return max ? kernels<Max<int64_t>, uint8_t, uint8_t>() : kernels<Min<int64_t>, uint8_t, uint8_t>();
      case DType::int16:
        return max ? kernels<Max<int64_t>, int16_t, int16_t>() : kernels<Min<int64_t>, int16_t, int16_t>();
      case DType::int32:
        return max ? kernels<Max<int64_t>, int32_t, int32_t>() : kernels<Min<int64_t>, int32_t, int32_t>();
      case DType::int64:
        return max ? kernels<Max<int64_t>, int64_t, int64_t>() : kernels<Min<int64_t>, int64_t, int64_t>();
      default: return nullptr;
    }
  }
  const bool compensated = arithmetic == Arithmetic::compensated;
  switch (dtype) {
    case DType::float32:
      return compensated ? kernels<Compensated<float>, float, float>() : kernels<Sum<float>, float, float>();
    case DType::float64:
      return compensated ? kernels<Compensated<double>, double, double>() : kernels<Sum<double>, double, double>();
    case DType::float16: return compensated ? nullptr : kernels<Sum<float>, float16, float>();
    case DType::bfloat16: return compensated ? nullptr : kernels<Sum<float>, bfloat16, float>();
    // Sums of up to 16 bits fit 32 in a unit.
    case DType::int8: return kernels<Sum<int64_t>, int8_t, int32_t>();
    case DType::uint8: return kernels<Sum<int64_t>, uint8_t, int32_t>();
    case DType::int16: return kernels<Sum<int64_t>, int16_t, int32_t>();
    case DType::boolean: return kernels<Sum<int64_t>, boolean, int32_t>();
    case DType::int32: return kernels<Sum<int64_t>, int32_t, int64_t>();
    case DType::int64: return kernels<Sum<int64_t>, int64_t, int64_t>();
    default: return nullptr;
  }
}

}  // namespace treduce::reduce::cpu::TREDUCE_INSTRUCTIONS
