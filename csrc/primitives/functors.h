// What a reduction does to two values, and what it writes at the end. Host and device compile the same lines.
//
// The names are the arithmetic: identity, combine, finish. `mean` is `sum` with a division in finish.
#pragma once

#include "../common/dtypes.h"
#include "ptx/extremum.cuh"

namespace treduce {

template <class A>
struct Sum {
  using Acc = A;
  template <class B>
  using As = Sum<B>;
  TREDUCE_HOST_DEVICE static Acc identity() { return Acc{}; }
  TREDUCE_HOST_DEVICE static Acc combine(Acc a, Acc b) {
    if constexpr (std::is_integral_v<Acc>) {
      // torch's integer sums wrap; signed overflow would be undefined, so the addition is unsigned.
      return static_cast<Acc>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
    } else {
      return a + b;
    }
  }
  // The one division of `mean`, in the accumulator's precision. Adding zero turns a sum of nothing but -0 into +0, which is
  // torch's answer; it also frees the kernels to pad with +0.
  TREDUCE_HOST_DEVICE static Acc finish(Acc sum, bool divide, int64_t count) {
    if constexpr (std::is_floating_point_v<Acc>) {
      return divide ? (sum + Acc(0)) / static_cast<Acc>(count) : sum + Acc(0);
    } else if constexpr (is_complex<Acc>) {
      using Real = decltype(sum.re);
      return {Sum<Real>::finish(sum.re, divide, count), Sum<Real>::finish(sum.im, divide, count)};
    } else {
      return sum;
    }
  }
};

// A sum and what its additions lost, each rounded once.
template <class A>
struct WithError {
  using Base = A;
  A sum, error;
};
template <class R>
struct WithError<Complex<R>> {
  using Base = Complex<R>;
  WithError<R> re, im;
};
template <class T>
constexpr bool carries_error = false;
template <class A>
constexpr bool carries_error<WithError<A>> = true;

// A sum that carries the rounding error of every addition (an error-free transformation) and adds it at the end: as accurate as
// if it had been computed in twice the precision and rounded.
// Source: Takeshi Ogita, Siegfried Rump and Shin'ichi Oishi, Accurate sum and dot product (2005); two-sum after Donald Knuth.
template <class A>
struct CompensatedFloat {
  using Acc = WithError<A>;
  TREDUCE_HOST_DEVICE static Acc identity() { return Acc{}; }
  TREDUCE_HOST_DEVICE static Acc combine(Acc a, Acc b) {
    if constexpr (is_complex<A>) {
      using Part = CompensatedFloat<decltype(A{}.re)>;
      return {Part::combine(a.re, b.re), Part::combine(a.im, b.im)};
    } else {
      const A sum = a.sum + b.sum;
      const A from_b = sum - a.sum;
      const A lost = (a.sum - (sum - from_b)) + (b.sum - from_b);
      return {sum, (a.error + b.error) + lost};
    }
  }
  TREDUCE_HOST_DEVICE static A finish(Acc value, bool divide, int64_t count) {
    if constexpr (is_complex<A>) {
      using Part = CompensatedFloat<decltype(A{}.re)>;
      return {Part::finish(value.re, divide, count), Part::finish(value.im, divide, count)};
    } else {
      const bool finite = value.sum - value.sum == A(0);  // the error of an infinite sum is NaN
      return Sum<A>::finish(finite ? value.sum + value.error : value.sum, divide, count);
    }
  }
};
// Integers lose nothing.
template <class A>
using Compensated = std::conditional_t<std::is_integral_v<A>, Sum<A>, CompensatedFloat<A>>;

// amax and amin are exact, and made order-free: NaN wins over everything, and of two zeros amax keeps +0 and amin -0
// (IEEE 754-2019 maximum and minimum). So every variant gives the same bits.
template <class A, bool kMax>
struct Extremum {
  using Acc = A;
  template <class B>
  using As = Extremum<B, kMax>;
  TREDUCE_HOST_DEVICE static Acc identity() {
    if constexpr (std::is_same_v<Acc, float>) return bit_cast<float>(kMax ? 0xff800000u : 0x7f800000u);
    if constexpr (std::is_same_v<Acc, double>)
      return bit_cast<double>(kMax ? uint64_t{0xfff0000000000000u} : uint64_t{0x7ff0000000000000u});
    if constexpr (std::is_same_v<Acc, int64_t>) return kMax ? INT64_MIN : INT64_MAX;
    if constexpr (std::is_same_v<Acc, int32_t>) return kMax ? INT32_MIN : INT32_MAX;
  }
  TREDUCE_HOST_DEVICE static Acc combine(Acc a, Acc b) {
#if TREDUCE_HAS_EXTREMUM
    if constexpr (std::is_same_v<Acc, float>) return ptx::extremum<kMax>(a, b);
#endif
    if constexpr (std::is_floating_point_v<Acc>) {
      using Word = std::conditional_t<sizeof(Acc) == 4, uint32_t, uint64_t>;
      // Equal values have equal bits but for the two zeros, so and/or of the bits picks the zero that is asked for.
      const Word wa = bit_cast<Word>(a), wb = bit_cast<Word>(b);
      const Acc same = bit_cast<Acc>(static_cast<Word>(kMax ? wa & wb : wa | wb));
      const Acc strict = (kMax ? a > b : a < b) ? a : b;
      const Acc ordered = a == b ? same : strict;
      return a != a ? a : ordered;  // b's NaN comes out of `strict`
    } else {
      return (kMax ? a > b : a < b) ? a : b;
    }
  }
  TREDUCE_HOST_DEVICE static Acc finish(Acc value, bool, int64_t) { return value; }
};
template <class A>
using Max = Extremum<A, true>;
template <class A>
using Min = Extremum<A, false>;

// Widens one element. Exact for every type.
template <class Acc, class In>
TREDUCE_HOST_DEVICE Acc widen(In value) {
  if constexpr (carries_error<Acc>) {
    using Base = typename Acc::Base;
    const Base wide = widen<Base>(value);
    if constexpr (is_complex<Base>) {
      return {{wide.re, 0}, {wide.im, 0}};
    } else {
      return {wide, Base(0)};
    }
  } else {
    return static_cast<Acc>(value);
  }
}

}  // namespace treduce
