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
  if constexpr (std::is_same_v<In, A>) {
    return load_vector<V>(p);
#ifdef TREDUCE_AVX512  // compilers do not find these behind __builtin_convertvector
  } else if constexpr (kCount * sizeof(A) == 64) {
    const auto bytes = [&] { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); };
    const auto words = [&] { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); };
    if constexpr (std::is_same_v<In, float16>) return (V)_mm512_cvtph_ps(words());
    if constexpr (std::is_same_v<In, bfloat16>) return (V)(_mm512_slli_epi32(_mm512_cvtepu16_epi32(words()), 16));
    if constexpr (std::is_same_v<In, int8_t>) return (V)_mm512_cvtepi8_epi32(bytes());
    if constexpr (std::is_same_v<In, uint8_t>) return (V)_mm512_cvtepu8_epi32(bytes());
    if constexpr (std::is_same_v<In, boolean>) {
      return (V)_mm512_cvtepu8_epi32(_mm_min_epu8(bytes(), _mm_set1_epi8(1)));
    }
    if constexpr (std::is_same_v<In, int16_t>) return (V)_mm512_cvtepi16_epi32(words());
    if constexpr (std::is_same_v<In, int32_t>) return (V)_mm512_cvtepi32_epi64(words());
#endif
#ifdef TREDUCE_AVX2
  } else if constexpr (kCount * sizeof(A) == 32) {
    const auto bytes = [&] { return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)); };
    const auto words = [&] { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); };
    if constexpr (std::is_same_v<In, float16>) return (V)_mm256_cvtph_ps(words());
    if constexpr (std::is_same_v<In, bfloat16>) return (V)(_mm256_slli_epi32(_mm256_cvtepu16_epi32(words()), 16));
    if constexpr (std::is_same_v<In, int8_t>) return (V)_mm256_cvtepi8_epi32(bytes());
    if constexpr (std::is_same_v<In, uint8_t>) return (V)_mm256_cvtepu8_epi32(bytes());
    if constexpr (std::is_same_v<In, boolean>) return (V)((V)_mm256_cvtepu8_epi32(bytes()) != 0) & 1;
    if constexpr (std::is_same_v<In, int16_t>) return (V)_mm256_cvtepi16_epi32(words());
    if constexpr (std::is_same_v<In, int32_t>) return (V)_mm256_cvtepi32_epi64(words());
#endif
  } else if constexpr (std::is_same_v<In, float16>) {
    using Words = Vector<uint32_t, kCount>;
    const Words bits = __builtin_convertvector(load_vector<Vector<uint16_t, kCount>>(p), Words);
    const V scaled = (V)((bits & 0x7fffu) << 13) * 0x1p112f;
    const Words infinite = (Words)((bits & 0x7c00u) == 0x7c00u) & 0x7f800000u;
    return (V)((Words)scaled | infinite | (bits & 0x8000u) << 16);
  } else if constexpr (std::is_same_v<In, bfloat16>) {
    return (V)(__builtin_convertvector(load_vector<Vector<uint16_t, kCount>>(p), Vector<uint32_t, kCount>) << 16);
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
  // Elements of a and b in turn, from the first (or second) half of each.
  static constexpr int in_turn(int i, int half) { return i % 2 * kCount + half * kCount / 2 + i / 2; }

  template <int kOdd, int... k>
  static constexpr std::integer_sequence<int, alternate(k, kOdd)...> elements(std::integer_sequence<int, k...>);
  template <int kOdd, int... k>
  static constexpr std::integer_sequence<int, alternate_blocks(k, kOdd)...> blocks(std::integer_sequence<int, k...>);
  template <int... k>
  static constexpr std::integer_sequence<int, halves_apart(k)...> halves(std::integer_sequence<int, k...>);
  template <int kHalf, int... k>
  static constexpr std::integer_sequence<int, in_turn(k, kHalf)...> turns(std::integer_sequence<int, k...>);

  using All = std::make_integer_sequence<int, kCount>;
  template <int kOdd>
  using Elements = decltype(elements<kOdd>(All{}));
  template <int kOdd>
  using Blocks = decltype(blocks<kOdd>(All{}));
  using Halves = decltype(halves(All{}));
  template <int kHalf>
  using Turns = decltype(turns<kHalf>(All{}));
};

// The even (or odd) elements of two vectors of kCount, each of kWords words.
template <int kCount, int kWords>
struct Ordered {
  static constexpr int word(int w, int odd) {
    const int i = w / kWords, half = kCount / 2;
    return ((i < half ? 0 : kCount) + 2 * (i % half) + odd) * kWords + w % kWords;
  }
  template <int kOdd, int... w>
  static constexpr std::integer_sequence<int, word(w, kOdd)...> words(std::integer_sequence<int, w...>);
  template <int kOdd>
  using Words = decltype(words<kOdd>(std::make_integer_sequence<int, kCount * kWords>{}));
};

template <class A>
struct ScalarOf {
  using type = A;
};
template <class R>
struct ScalarOf<Complex<R>> {
  using type = R;
};

#ifdef TREDUCE_AVX512
// The first `bytes` at p, zeros after them. What is left out is not touched.
template <int kBytes>
TREDUCE_INLINE void copy_some(const void* p, int bytes, void* to) {
  const uint64_t mask = bytes >= 64 ? ~uint64_t{0} : (uint64_t{1} << bytes) - 1;
  if constexpr (kBytes == 64) {
    _mm512_storeu_si512(to, _mm512_maskz_loadu_epi8(static_cast<__mmask64>(mask), p));
  } else if constexpr (kBytes == 32) {
    _mm256_storeu_si256(static_cast<__m256i*>(to), _mm256_maskz_loadu_epi8(static_cast<__mmask32>(mask), p));
  } else {
    _mm_storeu_si128(static_cast<__m128i*>(to), _mm_maskz_loadu_epi8(static_cast<__mmask16>(mask), p));
  }
}
#endif

// An op on vectors of A, for elements of type In.
//
// Half floats are widened without a shuffle if they are split: the even elements in one vector, the odd ones in another. Lanes
// that are added to each other as they lie need no other order, and neighbours are an addition apart.
template <class O, class In_, class A_, bool kSplit_ = std::is_same_v<In_, bfloat16>>
struct Lanes {
  using In = In_;
  using A = A_;
  using Acc = typename O::Acc;
  static constexpr bool kSplit = kSplit_;
  static constexpr bool kCarriesError = carries_error<Acc>;
  static constexpr int kPlanes = kCarriesError ? 2 : 1;
  static constexpr int kParts = kPlanes * (kSplit ? 2 : 1);  // vectors of a value
  static constexpr bool kComplex = is_complex<A>;
  static constexpr int kWidth = TREDUCE_VECTOR_BYTES / sizeof(A);
  static constexpr int kElements = kWidth * (kSplit ? 2 : 1);  // that a value holds
  static constexpr int kBlock = 16 / sizeof(A);
  // Neighbours come in order at once: where one instruction takes any elements of two vectors, and where elements are large.
  static constexpr bool kInOrder = TREDUCE_VECTOR_BYTES == 64 || kComplex;
  using Scalar = typename ScalarOf<A>::type;
  using V = Vector<Scalar, TREDUCE_VECTOR_BYTES / sizeof(Scalar)>;
  using Word = SignedWord<sizeof(A)>;
  using Shuffle = Shuffles<kWidth, kBlock>;
  using InOrder = Lanes<O, In, A, false>;
  using Nodes = Lanes<O, A, A, false>;  // what neighbours become

  struct Value {
    V at[kParts];
  };

  TREDUCE_INLINE static Value load(const In* p) {
    if constexpr (kSplit) {
      using Words = Vector<uint32_t, kWidth>;
      const auto both = load_vector<Words>(p);
      return {{(V)(both << 16), (V)(both & 0xffff0000u)}};
    } else if constexpr (kComplex) {
      return {{load_vector<V>(p)}};
    } else {
      return {{widen_vector<A, kWidth>(p)}};
    }
  }
  // The first `count` elements, and the identity after them; more is read if `whole`.
  TREDUCE_INLINE static Value load(const In* p, int count, bool whole) {
    In some[kElements];
#ifdef TREDUCE_AVX512
    copy_some<sizeof(some)>(p, count * sizeof(In), some);
    if constexpr (kSum) return load(some);
    p = some;
#else
    if (!whole || kComplex) {
      memset(some, 0, sizeof(some));
      memcpy(some, p, count * sizeof(In));
      p = some;
    }
    if constexpr (kComplex) return load(p);
#endif
    Value v = load(p);
    if constexpr (!kComplex)
      for (int k = 0; k < kParts / kPlanes; ++k) {
        const auto mask = lane_numbers(k) < broadcast<Word, kWidth>(static_cast<Word>(count));
        v.at[k] = mask ? v.at[k] : identity().at[k];
      }
    return v;
  }
  TREDUCE_INLINE static Value identity() {
    Value v{};
    if constexpr (!kCarriesError && !kComplex) {
      for (int k = 0; k < kParts; ++k) v.at[k] = broadcast<A, kWidth>(static_cast<A>(scalar_identity()));
    }
    return v;
  }
  // The nodes of neighbours where they are in different vectors, else the value itself.
  TREDUCE_INLINE static typename Nodes::Value nodes(const Value& v) {
    if constexpr (kSplit) {
      return {{combine(v.at[0], v.at[1])}};
    } else {
      typename Nodes::Value same;
      for (int k = 0; k < kParts; ++k) same.at[k] = v.at[k];
      return same;
    }
  }
  // Where a value keeps element i.
  static constexpr int place(int64_t i) {
    return static_cast<int>(kSplit ? i % 2 * kWidth + i % kElements / 2 : i % kElements);
  }
  static constexpr bool kSum = kCarriesError || std::is_same_v<O, Sum<Acc>>;
  TREDUCE_INLINE static A scalar_identity() {
    if constexpr (kSum) {
      return A{};
    } else if constexpr (std::is_floating_point_v<A>) {
      return O::identity();
    } else {
      constexpr bool kMax = std::is_same_v<O, Max<Acc>>;
      constexpr A kLeast = std::is_signed_v<A> ? static_cast<A>(uint64_t{1} << (8 * sizeof(A) - 1)) : A(0);
      return kMax ? kLeast : static_cast<A>(~kLeast);
    }
  }

  TREDUCE_INLINE static Value combine(const Value& a, const Value& b) {
    if constexpr (kCarriesError) {
      const V sum = a.at[0] + b.at[0];
      const V from_b = sum - a.at[0];
      const V lost = (a.at[0] - (sum - from_b)) + (b.at[0] - from_b);
      return {{sum, (a.at[1] + b.at[1]) + lost}};
    } else {
      Value v;
      for (int k = 0; k < kParts; ++k) v.at[k] = combine(a.at[k], b.at[k]);
      return v;
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
#ifdef TREDUCE_AVX512
      // A range instruction orders the zeros as Extremum does. It drops a NaN, so where there is one the sum, a NaN, is taken.
      if constexpr (std::is_same_v<A, float>) {
        const __m512 x = (__m512)a, y = (__m512)b;
        return (V)_mm512_mask_add_ps(_mm512_range_ps(x, y, kMax ? 5 : 4), _mm512_cmp_ps_mask(x, y, _CMP_UNORD_Q), x, y);
      } else if constexpr (std::is_same_v<A, double>) {
        const __m512d x = (__m512d)a, y = (__m512d)b;
        return (V)_mm512_mask_add_pd(_mm512_range_pd(x, y, kMax ? 5 : 4), _mm512_cmp_pd_mask(x, y, _CMP_UNORD_Q), x, y);
      }
#endif
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

  // Accumulators in planes, `distance` apart. What is split stays so.
  TREDUCE_INLINE static Value get(const A* p, int64_t distance) {
    Value v;
    for (int k = 0; k < kParts; ++k) v.at[k] = load_vector<V>(p + k * (kSplit ? kWidth : distance));
    return v;
  }
  TREDUCE_INLINE static void put(A* p, int64_t distance, const Value& v) {
    for (int k = 0; k < kParts; ++k) memcpy(p + k * (kSplit ? kWidth : distance), &v.at[k], sizeof(V));
  }
  // All elements of a value in one plane.
  TREDUCE_INLINE static void put_in_order(A* p, const Value& v) {
    if constexpr (kSplit) {
      using Words = Vector<Word, kWidth>;
      const Words even = (Words)v.at[0], odd = (Words)v.at[1];
      const V parts[2] = {(V)shuffle(even, odd, typename Shuffle::template Turns<0>{}),
                          (V)shuffle(even, odd, typename Shuffle::template Turns<1>{})};
      memcpy(p, parts, sizeof(parts));
    } else {
      memcpy(p, &v.at[0], sizeof(V));
    }
  }
  TREDUCE_INLINE static Acc node(const A* p, int64_t distance) {
    if constexpr (kCarriesError) {
      return {p[0], p[distance]};
    } else {
      return static_cast<Acc>(*p);
    }
  }

  template <class Even, class Odd>
  TREDUCE_INLINE static Value combine_shuffled(const Value& a, const Value& b) {
    Value even, odd;
    for (int k = 0; k < kPlanes; ++k) {
      even.at[k] = shuffle(a.at[k], b.at[k], Even{});
      odd.at[k] = shuffle(a.at[k], b.at[k], Odd{});
    }
    return combine(even, odd);
  }
  // The nodes of the neighbours in a, then those in b, but with the blocks of both taking turns.
  TREDUCE_INLINE static Value pairs_in_blocks(const Value& a, const Value& b) {
    return combine_shuffled<typename Shuffle::template Elements<0>, typename Shuffle::template Elements<1>>(a, b);
  }
  TREDUCE_INLINE static Value pairs_of_blocks(const Value& a, const Value& b) {
    return combine_shuffled<typename Shuffle::template Blocks<0>, typename Shuffle::template Blocks<1>>(a, b);
  }
  // The nodes of the neighbours in a, then those in b.
  TREDUCE_INLINE static Value pairs(const Value& a, const Value& b) {
    if constexpr (kInOrder) {
      using Word = SignedWord<(sizeof(A) < 8 ? sizeof(A) : 8)>;
      using Words = Vector<Word, TREDUCE_VECTOR_BYTES / sizeof(Word)>;
      using Order = Ordered<kWidth, sizeof(A) / sizeof(Word)>;
      Value even, odd;
      for (int k = 0; k < kPlanes; ++k) {
        even.at[k] = (V)shuffle((Words)a.at[k], (Words)b.at[k], typename Order::template Words<0>{});
        odd.at[k] = (V)shuffle((Words)a.at[k], (Words)b.at[k], typename Order::template Words<1>{});
      }
      return combine(even, odd);
    } else {
      Value v = pairs_in_blocks(a, b);
      if constexpr (kWidth > kBlock) {
        for (int k = 0; k < kPlanes; ++k) v.at[k] = shuffle(v.at[k], v.at[k], typename Shuffle::Halves{});
      }
      return v;
    }
  }
  // kWidth nodes, each over kCount neighbouring lanes of v[0], v[1], ..., v[kCount - 1], which it overwrites.
  template <int kCount>
  TREDUCE_INLINE static Value fold(Value* v) {
    if constexpr (kCount == kWidth && !kInOrder) {
      return square_in_blocks(v);
    } else {
#pragma GCC unroll 4
      for (int count = kCount / 2; count > 0; count /= 2) {
#pragma GCC unroll 16
        for (int i = 0; i < count; ++i) v[i] = pairs(v[2 * i], v[2 * i + 1]);
      }
      return v[0];
    }
  }
  // Element i is the node over all lanes of v[i].
  TREDUCE_INLINE static Value square(const Value* v) {
    Value copy[kWidth];
#pragma GCC unroll 16
    for (int i = 0; i < kWidth; ++i) copy[i] = v[i];
    return fold<kWidth>(copy);
  }

 private:
  TREDUCE_INLINE static Value square_in_blocks(const Value* v) {
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
  TREDUCE_INLINE static Vector<Word, kWidth> lane_numbers(int part) {
    Vector<Word, kWidth> v;
    for (int k = 0; k < kWidth; ++k) v[k] = static_cast<Word>(kSplit ? 2 * k + part : k);
    return v;
  }
};

constexpr int kLanes = Pairwise::kLanes, kStripes = Pairwise::kStripes, kChunk = Pairwise::kChunk;
constexpr int kUnitChunks = static_cast<int>(kUnit / kChunk);

// Accumulators on their way up the tree: neighbours lie side by side. L: of nodes.
template <class L>
struct Nodes {
  using A = typename L::A;
  static constexpr int kCapacity = kUnitChunks * (kLanes / L::kWidth > L::kWidth ? kLanes / L::kWidth : L::kWidth);
  static constexpr int kRoom = kCapacity + 2 * L::kWidth;
  alignas(64) A at[L::kPlanes][kRoom];

  TREDUCE_INLINE void put(int64_t i, const typename L::Value& v) { L::put(&at[0][i], kRoom, v); }
  TREDUCE_INLINE typename L::Value get(int64_t i) const { return L::get(&at[0][i], kRoom); }
  typename L::Acc node(int64_t i) const { return L::node(&at[0][i], kRoom); }

  // Each aligned run of `size` (a power of two) of the first `count` nodes becomes one.
  void fold(int64_t count, int size) {
    put(count, L::identity());  // is read, and counts for nothing
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

template <class O, class L>
struct Rows {
  using In = typename L::In;
  using Acc = typename L::Acc;
  using Value = typename L::Value;
  using N = typename L::Nodes;
  using Held = Nodes<N>;
  static constexpr int kWidth = L::kWidth;
  static constexpr int kElements = L::kElements;
  static constexpr int kOfElements = kElements / kWidth;  // elements of a node that a value leaves in each lane
  static constexpr int kValues = kLanes / kElements;      // of a stripe
  static constexpr int kTogether = kValues < kWidth ? kValues : kWidth;  // that become a vector of nodes
  static constexpr int kOfChunk = kValues / kTogether * kWidth;          // nodes that a chunk leaves before Held::fold

  static void run(const void* data, int64_t rows, int64_t stride, int64_t n, void* result) {
    const In* const x = static_cast<const In*>(data);
    Acc* const nodes = static_cast<Acc*>(result);
    if (n > kLanes) {
      chunks(x, rows, stride, n, nodes);
    } else if (n <= kElements / 2 && n >= kOfElements && (n & (n - 1)) == 0 && stride == n) {
      parts_of_values(x, rows, static_cast<int>(n), nodes);
    } else {
      lanes(x, rows, stride, static_cast<int>(n), nodes);
    }
  }

  static void stripes(const void* const* begins, int64_t chunks, void* result) {
    Held held;
    for (int64_t c = 0; c < chunks; ++c) {
      const In* of_chunk[kStripes];
      for (int s = 0; s < kStripes; ++s) of_chunk[s] = static_cast<const In*>(begins[c * kStripes + s]);
      whole_chunk(of_chunk, held, c * kOfChunk);
    }
    held.fold(chunks * kOfChunk, kOfChunk);
    for (int64_t c = 0; c < chunks; ++c) static_cast<Acc*>(result)[c] = held.node(c);
  }

 private:
  // Several whole rows in a value.
  static void parts_of_values(const In* x, int64_t rows, int n, Acc* nodes) {
    Held held;
    const int64_t all = rows * n;
    constexpr int64_t kAtOnce = Held::kCapacity * kOfElements;
    for (int64_t begin = 0; begin < all; begin += kAtOnce) {
      const int64_t count = all - begin < kAtOnce ? all - begin : kAtOnce;
      int64_t i = 0;
      for (; i + kElements <= count; i += kElements) held.put(i / kOfElements, L::nodes(L::load(x + begin + i)));
      if (i < count) {
        held.put(i / kOfElements, L::nodes(L::load(x + begin + i, static_cast<int>(count - i), false)));
      }
      held.fold(count / kOfElements, n / kOfElements);
      for (int64_t r = 0; r < count / n; ++r) nodes[begin / n + r] = held.node(r);
    }
  }

  // Rows before this one may be read up to `past` elements behind their end: rows behind them reach further.
  static int64_t safe_rows(int64_t rows, int64_t stride, int64_t past) {
    if (past == 0) return rows;
    return stride <= 0 ? 0 : rows - (past + stride - 1) / stride;
  }

  // Rows of a single stripe. Each takes a power of two of values, the last of them filled up with the identity.
  static void lanes(const In* x, int64_t rows, int64_t stride, int n, Acc* nodes) {
    const int values = (n + kElements - 1) / kElements, rest = n - (values - 1) * kElements;
    int shift = 0;
    while (1 << shift < values) ++shift;
    const int padded = 1 << shift;
    const int64_t at_once = Held::kCapacity / padded;
    const int64_t safe = safe_rows(rows, stride, int64_t{values} * kElements - n);
    const int together = padded < kWidth ? kWidth / padded : 1;  // rows of a square
    const int squares = padded < kWidth ? 1 : padded / kWidth;   // of a row
    Held held;
    typename N::Value v[kLanes / kElements < kWidth ? kWidth : kLanes / kElements];
    for (auto& value : v) value = N::identity();
    for (int64_t begin = 0; begin < rows; begin += at_once) {
      const int64_t count = rows - begin < at_once ? rows - begin : at_once;
      const In* row = x + begin * stride;
      int64_t r = 0, at = 0;
      if (rest == kElements && padded == values && stride == n) {  // one run of values
        for (; at + kWidth <= count * padded; at += kWidth) {
          typename N::Value run[kWidth];
#pragma GCC unroll 16
          for (int i = 0; i < kWidth; ++i) run[i] = L::nodes(L::load(row + (at + i) * kElements));
          held.put(at, N::square(run));
        }
        r = at / padded;
        row += r * stride;
      } else if (padded == 1) {
        for (; r + kWidth <= count && begin + r + kWidth <= safe; r += kWidth, row += kWidth * stride) {
          typename N::Value few[kWidth];
#pragma GCC unroll 16
          for (int i = 0; i < kWidth; ++i) few[i] = L::nodes(L::load(row + i * stride, n, true));
          held.put(r, N::square(few));
        }
      } else if (squares == 1) {
        for (; r + together <= count && begin + r + together <= safe; r += together, row += together * stride) {
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
          held.put(r * padded, N::square(few));
        }
      }
      at = r * padded;
      while (r < count) {
        for (int t = 0; t < together; ++t, ++r, row += stride) {
          typename N::Value* const mine = v + t * padded;
          if (r >= count) {
            for (int k = 0; k < values; ++k) mine[k] = N::identity();
            continue;
          }
          for (int k = 0; k < values - 1; ++k) mine[k] = L::nodes(L::load(row + k * kElements));
          mine[values - 1] = L::nodes(L::load(row + (values - 1) * kElements, rest, begin + r < safe));
        }
        for (int q = 0; q < squares; ++q, at += kWidth) held.put(at, N::square(v + q * kWidth));
      }
      held.fold(count * padded, padded);
      for (int64_t i = 0; i < count; ++i) nodes[begin + i] = held.node(i);
    }
  }

  static void chunks(const In* x, int64_t rows, int64_t stride, int64_t n, Acc* nodes) {
    const int of_row = static_cast<int>((n + kChunk - 1) / kChunk);
    const int rest = static_cast<int>(n % kChunk);
    const int64_t at_once = kUnitChunks / of_row;
    const int64_t safe = safe_rows(rows, stride, (kElements - n % kElements) % kElements);
    Held held;
    for (int64_t begin = 0; begin < rows; begin += at_once) {
      const int64_t count = rows - begin < at_once ? rows - begin : at_once;
      int64_t at = 0;
      for (int64_t r = begin; r < begin + count; ++r) {
        const In* chunk = x + r * stride;
        for (const In* const end = chunk + (n - rest); chunk < end; chunk += kChunk, at += kOfChunk) {
          const In* begins[kStripes];
          for (int s = 0; s < kStripes; ++s) begins[s] = chunk + s * kLanes;
          whole_chunk(begins, held, at);
        }
        if (rest > 0) {
          part_of_chunk(chunk, rest, r < safe, held, at);
          at += kOfChunk;
        }
      }
      held.fold(at, kOfChunk);
      for (int64_t r = 0; r < count; ++r) {
        if (of_row == 1) {
          nodes[begin + r] = held.node(r);
          continue;
        }
        Acc few[kUnitChunks];
        few[0] = held.node(r * of_row);
        for (int c = 1; c < of_row; ++c) few[c] = held.node(r * of_row + c);
        nodes[begin + r] = fold_few<O>(few, of_row);
      }
    }
  }

  // Values whose stripes are added side by side, in registers.
  static constexpr int kRegisters = (TREDUCE_VECTOR_BYTES == 64 ? 16 : 8) / L::kParts;
  static constexpr int kHeld = kRegisters < kValues ? kRegisters : kValues;
  static constexpr int kPasses = kHeld < kTogether ? kTogether / kHeld : 1;

  static TREDUCE_INLINE void put(Held& held, int64_t at, int lane, typename N::Value* nodes, int count) {
#pragma GCC unroll 8
    for (int i = 0; i < count; i += kTogether) {
      held.put(at + (lane / kElements + i) / kTogether * kWidth, N::template fold<kTogether>(nodes + i));
    }
  }

  TREDUCE_INLINE static void whole_chunk(const In* const* begins, Held& held, int64_t at) {
#pragma GCC unroll 1
    for (int lane = 0; lane < kLanes; lane += kPasses * kHeld * kElements) {
      typename N::Value nodes[kPasses * kHeld];
#pragma GCC unroll 4
      for (int g = 0; g < kPasses; ++g) {
        const int first = lane + g * kHeld * kElements;
        // A chunk that is larger than a page is read faster if the one before it asks for it, from front to back.
        const In* ahead = begins[0] + kChunk + first * kStripes;
        const auto ask = [&] {
          if constexpr (kChunk * sizeof(In) > 4096) {
            constexpr int kLine = 64 / sizeof(In);
#pragma GCC unroll 8
            for (int i = 0; i < kHeld * kElements; i += kLine) __builtin_prefetch(ahead + i);
            ahead += kHeld * kElements;
          }
        };
        Value v[kHeld];
        ask();
#pragma GCC unroll 16
        for (int i = 0; i < kHeld; ++i) v[i] = L::load(begins[0] + first + i * kElements);
#pragma GCC unroll 1
        for (int s = 1; s < kStripes; ++s) {
          const In* const p = begins[s] + first;
          ask();
#pragma GCC unroll 16
          for (int i = 0; i < kHeld; ++i) v[i] = L::combine(v[i], L::load(p + i * kElements));
        }
#pragma GCC unroll 16
        for (int i = 0; i < kHeld; ++i) nodes[g * kHeld + i] = L::nodes(v[i]);
      }
      put(held, at, lane, nodes, kPasses * kHeld);
    }
  }

  // `safe`: more may be read.
  static void part_of_chunk(const In* x, int n, bool safe, Held& held, int64_t at) {
    const int stripes = n / kLanes, rest = n % kLanes;
    constexpr int kHere = kHeld < 8 ? kHeld : 8;
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
#pragma GCC unroll 16
          for (int i = 0; i < kHere; ++i) v[i] = L::identity();
        } else {
#pragma GCC unroll 16
          for (int i = 0; i < kHere; ++i) v[i] = L::load(p + i * kElements);
          const int whole = stripes + (left >= kHere * kElements ? 1 : 0);
#pragma GCC unroll 1
          for (int s = 1; s < whole; ++s) {
            p += kLanes;
#pragma GCC unroll 16
            for (int i = 0; i < kHere; ++i) v[i] = L::combine(v[i], L::load(p + i * kElements));
          }
          p += kLanes;
          if (left >= kHere * kElements) left = 0;
        }
        if (left > 0) {
#pragma GCC unroll 16
          for (int i = 0; i < kHere; ++i) {
            const int here = left - i * kElements;
            if (here >= kElements) {
              v[i] = L::combine(v[i], L::load(p + i * kElements));
            } else if (here > 0) {
              v[i] = L::combine(v[i], L::load(p + i * kElements, here, safe));
            }
          }
        }
#pragma GCC unroll 16
        for (int i = 0; i < kHere; ++i) nodes[g + i] = L::nodes(v[i]);
      }
      put(held, at, lane, nodes, kAll);
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

  static void stripes(const void* const* begins, int64_t chunks, void* result) {
    for (int64_t c = 0; c < chunks; ++c) {
      typename O::Acc of_stripe[kStripes];
      for (int s = 0; s < kStripes; ++s) run(begins[c * kStripes + s], 1, 0, kLanes, of_stripe + s);
      static_cast<typename O::Acc*>(result)[c] = fold_few<O>(of_stripe, kStripes);
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
  static constexpr int kElements = L::kElements;
  static constexpr int kAtOnce = 8;  // rows
  static constexpr int kFew = 16;    // rows that need no scratch

  static int64_t slots(int64_t columns) { return (columns + kElements - 1) / kElements * kElements; }
  static int64_t scratch(int64_t n, int64_t columns) {
    int levels = 1;  // log2(leaves) + 1, rounded up
    while (int64_t{1} << (levels - 1) < n && levels < 8) ++levels;
    for (int64_t chunks = (n + kChunk - 1) / kChunk; chunks > 1; chunks = (chunks + 1) / 2) ++levels;
    return levels * L::kPlanes * slots(columns) * static_cast<int64_t>(sizeof(A));
  }

  static void run(const void* data, const int64_t* offsets, int64_t pitch, int64_t n, int64_t columns, void* scratch,
                  void* result) {
    const In* const x = static_cast<const In*>(data);
    const Tree tree{static_cast<A*>(scratch), columns, slots(columns)};
    if (n <= kFew) {
      const In* rows[kFew];
      for (int64_t e = 0; e < n; ++e) rows[e] = x + (offsets != nullptr ? offsets[e] : e * pitch);
      return few(static_cast<int>(n), std::make_integer_sequence<int, kFew>{})(rows, tree, static_cast<Acc*>(result));
    }
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
    int64_t columns, slots;
    A* level(int k, int64_t slot) const { return nodes + k * L::kPlanes * slots + slot; }
    // The last vector of columns begins early, so that it ends in time; what it holds twice, it computes twice.
    int64_t begin(int64_t slot) const { return slot + kElements <= columns ? slot : columns - kElements; }
  };

  template <int kGroup>
  TREDUCE_INLINE static void add(const In* const* rows, int stripes, int64_t leaves, const Tree& tree) {
    int depth = 0, top = 0;
    while (1 << depth < kGroup) ++depth;
    for (top = depth; leaves >> top & 1; ++top) {
    }
    for (int64_t slot = 0; slot < tree.columns; slot += kElements) {
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
      for (int k = depth; k < top; ++k) v[0] = L::combine(L::get(tree.level(k, slot), tree.slots), v[0]);
      L::put(tree.level(top, slot), tree.slots, v[0]);
    }
  }

  static void finish(int64_t leaves, const Tree& tree, Acc* result) {
    int lowest = 0;
    while ((leaves >> lowest & 1) == 0) ++lowest;
    for (int64_t slot = 0; slot < tree.columns; slot += kElements) {
      Value v = L::get(tree.level(lowest, slot), tree.slots);
      for (int k = lowest + 1; leaves >> k != 0; ++k) {
        if (leaves >> k & 1) v = L::combine(L::get(tree.level(k, slot), tree.slots), v);
      }
      put(v, result + tree.begin(slot));
    }
  }

  TREDUCE_INLINE static void put(const Value& v, Acc* result) {
    if constexpr (L::kPlanes == 1 && std::is_same_v<A, Acc>) {
      L::put_in_order(result, v);
    } else {
      A last[L::kPlanes * kElements];
      L::put(last, kElements, v);
      for (int i = 0; i < kElements; ++i) result[i] = L::node(last + L::place(i), kElements);
    }
  }

  // A few rows, each of them a leaf: no level of the tree is written.
  template <int kRows>
  TREDUCE_INLINE static Value node(const In* const* rows, int64_t c) {
    if constexpr (kRows == 1) {
      return L::load(rows[0] + c);
    } else {
      constexpr int kLeft = kRows > 8 ? 8 : kRows > 4 ? 4 : kRows > 2 ? 2 : 1;
      return L::combine(node<kLeft>(rows, c), node<kRows - kLeft>(rows + kLeft, c));
    }
  }
  template <int kRows>
  static void few(const In* const* rows, const Tree& tree, Acc* result) {
    for (int64_t slot = 0; slot < tree.columns; slot += kElements) {
      const int64_t c = tree.begin(slot);
      put(node<kRows>(rows, c), result + c);
    }
  }
  using Few = void (*)(const In* const* rows, const Tree& tree, Acc* result);
  template <int... k>
  static Few few(int n, std::integer_sequence<int, k...>) {
    static constexpr Few table[] = {few<k + 1>...};
    return table[n - 1];
  }
};

// Few columns: a stripe of 128 rows is one run of memory, so stripes are added as runs, and neighbouring leaves of a column lie
// `columns` apart. If L is split, they are a multiple of its elements.
template <class O, class L>
struct Narrow {
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
      if (columns % kElements != 0) return Narrow<O, typename L::InOrder>::run(data, n, columns, scratch, result);
    }
    const In* x = static_cast<const In*>(data);
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
  // sums[p] = x[p] + x[p + stripe] + ..., of `stripes` elements.
  static void add(const In* x, int64_t stripe, int stripes, int64_t count, A* sums) {
    int64_t p = 0;
    constexpr int kHeld = L::kParts == 2 ? 4 : 8;
    for (; p + kHeld * kElements <= count; p += kHeld * kElements) {
      Value v[kHeld];
#pragma GCC unroll 8
      for (int i = 0; i < kHeld; ++i) v[i] = L::load(x + p + i * kElements);
#pragma GCC unroll 1
      for (int s = 1; s < stripes; ++s) {
#pragma GCC unroll 8
        for (int i = 0; i < kHeld; ++i) v[i] = L::combine(v[i], L::load(x + s * stripe + p + i * kElements));
      }
#pragma GCC unroll 8
      for (int i = 0; i < kHeld; ++i) L::put(sums + p + i * kElements, kRoom, v[i]);
    }
    while (p < count) {
      Value v;
      if (count >= kElements) {
        if (p + kElements > count) p = count - kElements;  // some of them again
        v = L::load(x + p);
        for (int s = 1; s < stripes; ++s) v = L::combine(v, L::load(x + s * stripe + p));
      } else {
        const int few = static_cast<int>(count - p);
        v = L::load(x + p, few, false);
        for (int s = 1; s < stripes; ++s) v = L::combine(v, L::load(x + s * stripe + p, few, false));
      }
      L::put(sums + p, kRoom, v);
      p += kElements;
    }
  }

  // Where the nodes of the columns are. What is written past a node is written again, by the next one or by nobody who counts.
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

template <class O, class In, class A>
const Kernels* kernels() {
  using L = Lanes<O, In, A>;
  using R = std::conditional_t<sizeof(A) >= 4, Rows<O, L>, NarrowExtremum<O, L>>;
  static constexpr Kernels table{
      sizeof(In), L::kElements, Narrow<O, L>::kMost, Narrow<O, L>::kScratch, Columns<O, L>::scratch,
      R::run,     R::stripes,   Columns<O, L>::run,  Narrow<O, L>::run};
  return &table;
}

template <class A>
const Kernels* kernels_of_complex() {
  using R = Rows<Sum<A>, Lanes<Sum<A>, A, A>>;
  static constexpr Kernels table{sizeof(A), 0, 0, 0, nullptr, R::run, R::stripes, nullptr, nullptr};
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
  if constexpr (TREDUCE_VECTOR_BYTES > 16) {
    if (dtype == DType::complex64 && !compensated) return kernels_of_complex<complex64>();
    if (dtype == DType::complex128 && !compensated) return kernels_of_complex<complex128>();
  }
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
