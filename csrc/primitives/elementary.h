// exp, log and 1 / sqrt: argument reduction and a polynomial in written-out fused multiply-adds. Host and device compile the same
// lines, each step is an IEEE operation that rounds once, and so every device and instruction set gives the same bits.
//
// Errors, in units in the last place of the result: below 1 for float32 (every argument: tests/test_elementary.py) and for float64.
// Zeros, infinities, NaN and negative arguments give what IEEE 754 says; subnormal arguments and results are kept.
//
// exp has no branch and no table, so that a compiler makes vectors of a loop around it. log and rsqrt are called once a row.
//
// Sources: W. J. Cody and W. Waite, Software Manual for the Elementary Functions (1980), for the reduction of exp; P. T. P. Tang,
// Table-driven implementation of the logarithm function (1990), for log in s = f / (2 + f).
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "../common/macros.h"
#include "ptx/extremum.cuh"

#ifdef __CUDACC__
#define TREDUCE_ALWAYS_INLINE __host__ __device__ __forceinline__
#else
// Inlined even where nothing is optimised: sources that are compiled for several instruction sets share such functions.
#define TREDUCE_ALWAYS_INLINE inline __attribute__((always_inline))
#endif

namespace treduce::elementary {

// a * b rounded. nvcc would fuse a plain product with an addition that follows it.
TREDUCE_ALWAYS_INLINE float multiply(float a, float b) {
#ifdef __CUDA_ARCH__
  return __fmul_rn(a, b);
#else
  return a * b;
#endif
}
TREDUCE_ALWAYS_INLINE double multiply(double a, double b) {
#ifdef __CUDA_ARCH__
  return __dmul_rn(a, b);
#else
  return a * b;
#endif
}

// a * b + c, rounded once.
TREDUCE_ALWAYS_INLINE float multiply_add(float a, float b, float c) {
#ifdef __CUDA_ARCH__
  return __fmaf_rn(a, b, c);
#else
  return __builtin_fmaf(a, b, c);
#endif
}
TREDUCE_ALWAYS_INLINE double multiply_add(double a, double b, double c) {
#ifdef __CUDA_ARCH__
  return __fma_rn(a, b, c);
#else
  return __builtin_fma(a, b, c);
#endif
}

TREDUCE_ALWAYS_INLINE float square_root(float x) {
#ifdef __CUDA_ARCH__
  return __fsqrt_rn(x);
#else
  return __builtin_sqrtf(x);
#endif
}
TREDUCE_ALWAYS_INLINE double square_root(double x) {
#ifdef __CUDA_ARCH__
  return __dsqrt_rn(x);
#else
  return __builtin_sqrt(x);
#endif
}

template <class To, class From>
TREDUCE_ALWAYS_INLINE To same_bits(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  memcpy(&to, &from, sizeof(To));
  return to;
}

// Constants of a floating-point format. ln2 = kLn2 + kLn2Rest, to twice the precision.
template <class A>
struct Format;

template <>
struct Format<float> {
  using Word = uint32_t;
  using Integer = int32_t;
  static constexpr int kMantissa = 23;
  static constexpr int kBias = 127;
  static constexpr float kLeastNormal = 0x1p-126f;
  static constexpr float kLn2 = 0x1.62e43p-1f, kLn2Rest = -0x1.05c61p-29f, kInverseLn2 = 0x1.715476p0f;
  static constexpr float kRounding = 0x1.8p23f;            // adding it rounds to a whole number
  static constexpr float kLeast = -104.5f, kMost = 89.0f;  // exp is 0 below, infinite above
  static constexpr float kUsual =
      87.0f;                        // exp of no number up to it, or down to its negative, is subnormal or infinite
  static constexpr int kLift = 25;  // places that subnormal results lie below normal ones
  static constexpr int kDrop = 64;  // for results above 1
  static constexpr float kUp = 0x1p64f, kDown = 0x1p-25f;  // 2^kDrop, 2^-kLift
  static constexpr float kRootOfHalf = 0x1.6a09e6p-1f;
  static constexpr float kTiny = 0x1p-64f, kMagnify = 0x1p64f, kRootOfMagnify = 0x1p32f;
  // (e^r - 1 - r) / r^2 for |r| <= ln2 / 2, minimax: within 2^-28 of e^r.
  static constexpr int kTerms = 5;
  static constexpr float term(int k) {
    constexpr float terms[kTerms] = {0x1.fffffcp-2f, 0x1.555492p-3f, 0x1.5558f2p-5f, 0x1.1239e2p-7f, 0x1.6a2434p-10f};
    return terms[k];
  }
  static constexpr int kLogTerms = 5;  // of 2/3 + 2/5 z + 2/7 z^2 + ..., z <= 0.0295
};

template <>
struct Format<double> {
  using Word = uint64_t;
  using Integer = int64_t;
  static constexpr int kMantissa = 52;
  static constexpr int kBias = 1023;
  static constexpr double kLeastNormal = 0x1p-1022;
  static constexpr double kLn2 = 0x1.62e42fefa39efp-1, kLn2Rest = 0x1.abc9e3b39803fp-56,
                          kInverseLn2 = 0x1.71547652b82fep0;
  static constexpr double kRounding = 0x1.8p52;
  static constexpr double kLeast = -745.5, kMost = 710.0, kUsual = 708.0;
  static constexpr int kLift = 54;
  static constexpr int kDrop = 512;
  static constexpr double kUp = 0x1p512, kDown = 0x1p-54;
  static constexpr double kRootOfHalf = 0x1.6a09e667f3bcdp-1;
  static constexpr double kTiny = 0x1p-512, kMagnify = 0x1p512, kRootOfMagnify = 0x1p256;
  // Taylor's: within 2^-57 of e^r.
  static constexpr int kTerms = 12;
  static constexpr double term(int k) {
    double factorial = 2;
    for (int i = 0; i < k; ++i) factorial *= i + 3;
    return 1 / factorial;
  }
  static constexpr int kLogTerms = 12;
};

template <class A>
TREDUCE_ALWAYS_INLINE A infinity_of() {
  using F = Format<A>;
  return same_bits<A>(static_cast<typename F::Word>(typename F::Word(2 * F::kBias + 1) << F::kMantissa));
}

// term(k) + r (term(k + 1) + r (...)), up to term kLast of exp, or, 2 / (2k + 1), of log.
template <bool kLog, int k, int kLast, class A>
TREDUCE_ALWAYS_INLINE A polynomial(A r) {
  constexpr A term = kLog ? A(2) / A(2 * k + 1) : Format<A>::term(kLog ? 0 : k);
  if constexpr (k == kLast) {
    return term;
  } else {
    return multiply_add(polynomial<kLog, k + 1, kLast>(r), r, term);
  }
}

// exp(x) / 2^n, where n is x / ln2, rounded.
template <class A>
TREDUCE_ALWAYS_INLINE A exp_of_rest(A x, A n) {
  using F = Format<A>;
  A r = multiply_add(n, -F::kLn2, x);
  r = multiply_add(n, -F::kLn2Rest, r);
  const A p = multiply_add(polynomial<false, 0, F::kTerms - 1>(r), r, A(1));
  return multiply_add(p, r, A(1));
}

// exp(x) for any x, or, kNonpositive, the same bits for x <= 0 (or NaN) in fewer steps.
template <bool kNonpositive, class A>
TREDUCE_ALWAYS_INLINE A exp_of(A x) {
  using F = Format<A>;
  using Word = typename F::Word;
  // A NaN passes each of these.
#if TREDUCE_HAS_EXTREMUM
  if constexpr (std::is_same_v<A, float>) {
    x = ptx::extremum<true>(x, F::kLeast);
  } else
#endif
  {
    x = x < F::kLeast ? F::kLeast : x;
  }
  if (!kNonpositive) x = x > F::kMost ? F::kMost : x;
  // x = n ln2 + r. The low bits of `shifted` are n plus an offset such that 2^n, moved up or down, is a normal number.
  const bool above = !kNonpositive && x > A(0);
  const A rounding = F::kRounding + (above ? A(F::kBias - F::kDrop) : A(F::kBias + F::kLift));
  const A shifted = multiply_add(x, F::kInverseLn2, rounding);
  const A n = shifted - rounding;
  const A p = exp_of_rest(x, n);
  const A scale = same_bits<A>(static_cast<Word>(same_bits<Word>(shifted) << F::kMantissa));
  // The first product is exact; the second rounds where the result is subnormal.
  return multiply(multiply(p, scale), above ? F::kUp : F::kDown);
}

template <class A>
TREDUCE_ALWAYS_INLINE A exp(A x) {
  return exp_of<false>(x);
}

// The same bits for |x| <= kUsual, in three quarters of the steps: 2^n is added to the exponent.
template <class A>
TREDUCE_ALWAYS_INLINE A exp_of_usual(A x) {
  using F = Format<A>;
  using Word = typename F::Word;
  const A shifted = multiply_add(x, F::kInverseLn2, F::kRounding);
  const A p = exp_of_rest(x, shifted - F::kRounding);
  return same_bits<A>(static_cast<Word>(same_bits<Word>(p) + (same_bits<Word>(shifted) << F::kMantissa)));
}

template <class A>
TREDUCE_ALWAYS_INLINE A exp_of_nonpositive(A x) {
  return exp_of<true>(x);
}

template <class A>
TREDUCE_ALWAYS_INLINE A log(A x) {
  using F = Format<A>;
  using Word = typename F::Word;
  const A infinity = infinity_of<A>();
  const bool subnormal = x < F::kLeastNormal;
  const A y = subnormal ? x * F::kMagnify : x;
  // y = 2^e (1 + f), with 1 + f between the root of a half and the root of two.
  const Word root = same_bits<Word>(F::kRootOfHalf);
  const Word word = same_bits<Word>(y) - root;
  constexpr int kMagnified = F::kBias == 127 ? 64 : 512;
  const auto exponent = static_cast<typename F::Integer>(word) >> F::kMantissa;
  const A e = static_cast<A>(exponent - (subnormal ? kMagnified : 0));
  const A f = same_bits<A>(static_cast<Word>((word & ((Word(1) << F::kMantissa) - 1)) + root)) - A(1);
  // log(1 + f) = 2 atanh(s) = f - (h - s (h + R)), with h = f^2 / 2 and R = 2/3 z + 2/5 z^2 + ..., z = s^2.
  const A s = f / (A(2) + f);
  const A z = multiply(s, s);
  const A p = polynomial<true, 1, F::kLogTerms>(z);
  const A h = multiply(multiply(A(0.5), f), f);
  const A t = multiply_add(s, multiply_add(p, z, h), multiply(e, F::kLn2Rest));
  const A result = multiply_add(e, F::kLn2, f - (h - t));
  if (x == A(0)) return -infinity;
  if (!(x > A(0))) return same_bits<A>(static_cast<Word>(same_bits<Word>(infinity) | Word(1) << (F::kMantissa - 1)));
  return x == infinity ? x : result;
}

// 1 / sqrt(x)
template <class A>
TREDUCE_ALWAYS_INLINE A rsqrt(A x) {
  using F = Format<A>;
  // Scaled, so that the remainders below are no subnormal numbers.
  const bool tiny = x < F::kTiny;
  const A y = tiny ? multiply(x, F::kMagnify) : x;
  const A s = square_root(y);
  const A q = A(1) / s;
  // One Newton step from the exact remainders of both: y = s^2 + lost, 1 = q s + rest.
  const A lost = multiply_add(-s, s, y), rest = multiply_add(-q, s, A(1));
  const A step = multiply_add(multiply(multiply(A(-0.5), lost), q), q, rest);
  const A result = multiply_add(q, step, q);
  const bool special = x == A(0) || x == infinity_of<A>();
  return special ? q : tiny ? multiply(result, F::kRootOfMagnify) : result;
}

}  // namespace treduce::elementary
