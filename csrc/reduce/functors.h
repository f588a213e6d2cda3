// What a reduction does to two values, and what it writes at the end. Host and device compile the same lines.
//
// The names are the arithmetic: identity, combine, finish. `mean` is `sum` with a division in finish.
#pragma once

#include "../common/dtypes.h"

namespace treduce::reduce {

enum class Op : int8_t { sum, mean, amax, amin };

template <class A>
struct Sum {
  using Acc = A;
  template <class B>
  using As = Sum<B>;
  TREDUCE_HOST_DEVICE static Acc identity() { return Acc(0); }
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
    if constexpr (std::is_floating_point_v<Acc>)
      return divide ? (sum + Acc(0)) / static_cast<Acc>(count) : sum + Acc(0);
    return sum;
  }
};

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
  }
  TREDUCE_HOST_DEVICE static Acc combine(Acc a, Acc b) {
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
  return static_cast<Acc>(value);
}

// Where the finished reduction goes: one element of the result's dtype.
struct Result {
  void* data;
  DType dtype;
  bool divide;    // `mean`
  int64_t count;  // how many elements were reduced

  template <class Op>
  TREDUCE_HOST_DEVICE void store(typename Op::Acc value) const {
    write(Op::finish(value, divide, count));
  }

  TREDUCE_HOST_DEVICE void write(float value) const {
    switch (dtype) {
      case DType::float16: *static_cast<float16*>(data) = float16::from(value); break;
      case DType::bfloat16: *static_cast<bfloat16*>(data) = bfloat16::from(value); break;
      default: *static_cast<float*>(data) = canonical(value);
    }
  }
  TREDUCE_HOST_DEVICE void write(double value) const { *static_cast<double*>(data) = canonical(value); }
  TREDUCE_HOST_DEVICE void write(int64_t value) const {
    switch (dtype) {
      case DType::boolean: *static_cast<uint8_t*>(data) = value != 0; break;
      case DType::int8: *static_cast<int8_t*>(data) = static_cast<int8_t>(value); break;
      case DType::uint8: *static_cast<uint8_t*>(data) = static_cast<uint8_t>(value); break;
      case DType::int16: *static_cast<int16_t*>(data) = static_cast<int16_t>(value); break;
      case DType::int32: *static_cast<int32_t*>(data) = static_cast<int32_t>(value); break;
      default: *static_cast<int64_t*>(data) = value;
    }
  }
};

}  // namespace treduce::reduce
