// Vectors of elements and of accumulators: loads that widen, shuffles, and an op on whole vectors.
#pragma once

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
  return value - Vector<T, kCount>{};  // not a sum: -0 stays -0
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

// Element i of the result is element kFrom[i] of a and b, one behind the other.
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
// bfloat16 is widened without a shuffle: the even elements become one vector, the odd ones another (`split`). Stripes are added
// lane by lane, in whatever order lanes are, and the nodes of neighbours are then the sum of the two vectors.
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
  // The nodes of neighbours come out in order: where one instruction takes any elements of two vectors, and where elements are
  // large.
  static constexpr bool kInOrder = TREDUCE_VECTOR_BYTES == 64 || kComplex;
  using Scalar = typename ScalarOf<A>::type;
  using V = Vector<Scalar, TREDUCE_VECTOR_BYTES / sizeof(Scalar)>;
  using Word = SignedWord<sizeof(A)>;
  using Shuffle = Shuffles<kWidth, kBlock>;
  using InOrder = Lanes<O, In, A, false>;
  using NodeLanes = Lanes<O, A, A, false>;  // of what neighbours become

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
  // The first `count` elements, and the identity in the lanes after them. `whole`: the memory behind them may be read.
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
        const auto mask = lane_numbers(kSplit ? k : 0) < broadcast<Word, kWidth>(static_cast<Word>(count));
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
  // Of split values: the nodes of neighbours, which are in different vectors. Of others: the value itself.
  TREDUCE_INLINE static typename NodeLanes::Value nodes(const Value& v) {
    if constexpr (kSplit) {
      return {{combine(v.at[0], v.at[1])}};
    } else {
      typename NodeLanes::Value same;
      for (int k = 0; k < kParts; ++k) same.at[k] = v.at[k];
      return same;
    }
  }
  // Where a value keeps element i.
  static constexpr int place(int64_t i) {
    return static_cast<int>(kSplit ? i % 2 * kWidth + i % kElements / 2 : i % kElements);
  }
  static constexpr bool kSum = kCarriesError || std::is_same_v<O, Sum<Acc>>;
  static constexpr bool kExact = !kSum || std::is_integral_v<A>;  // the order changes no bit
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
  // The kElements accumulators of a value, in order.
  TREDUCE_INLINE static void put_nodes(Acc* result, const Value& v) {
    if constexpr (kPlanes == 1 && std::is_same_v<A, Acc>) {
      put_in_order(result, v);
    } else if constexpr (kCarriesError && !kSplit) {
      const V pairs[2] = {shuffle(v.at[0], v.at[1], typename Shuffle::template Turns<0>{}),
                          shuffle(v.at[0], v.at[1], typename Shuffle::template Turns<1>{})};
      memcpy(result, pairs, sizeof(pairs));
    } else if constexpr (kPlanes == 1 && sizeof(A) >= 4 && !kComplex) {
      const Vector<Acc, kWidth> wide = __builtin_convertvector(v.at[0], Vector<Acc, kWidth>);
      memcpy(result, &wide, sizeof(wide));
    } else {
      A last[kPlanes * kElements];
      put(last, kElements, v);
      for (int i = 0; i < kElements; ++i) result[i] = node(last + place(i), kElements);
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
    return lane_numbers(part, std::make_integer_sequence<int, kWidth>{});
  }
  template <int... k>
  TREDUCE_INLINE static Vector<Word, kWidth> lane_numbers(int part, std::integer_sequence<int, k...>) {
    const Vector<Word, kWidth> numbers{static_cast<Word>(kSplit ? 2 * k : k)...};
    return numbers + broadcast<Word, kWidth>(static_cast<Word>(part));
  }
};

}  // namespace
}  // namespace treduce::reduce::cpu::TREDUCE_INSTRUCTIONS
