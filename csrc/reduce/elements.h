// Elements in memory, as the reductions along dims read them: as they are, or converted to another dtype on the way. Host and
// device, free of torch.
#pragma once

#include "result.h"
#include "shapes.h"

namespace treduce::reduce {

// One element converted as torch's Tensor.to does: floats round to nearest even, floats to integers truncate, complex to real
// drops the imaginary part, anything to bool asks whether it is not zero.
template <class To, class From>
TREDUCE_HOST_DEVICE To convert(From value) {
  if constexpr (std::is_same_v<To, From>) {
    return value;
  } else if constexpr (is_complex<To>) {
    using Real = decltype(To{}.re);
    if constexpr (is_complex<From>) {
      return {static_cast<Real>(value.re), static_cast<Real>(value.im)};
    } else {
      return {convert<Real>(value), Real(0)};
    }
  } else if constexpr (is_complex<From>) {
    return convert<To>(value.re);
  } else if constexpr (std::is_same_v<From, boolean>) {
    return static_cast<To>(static_cast<int32_t>(value));
  } else if constexpr (is_float_of_up_to_32_bits<From>) {
    return static_cast<To>(static_cast<float>(value));
  } else {
    return static_cast<To>(value);
  }
}

template <class From>
TREDUCE_HOST_DEVICE bool is_nonzero(From value) {
  if constexpr (is_complex<From>) {
    return value.re != 0 || value.im != 0;
  } else {
    return convert<std::conditional_t<std::is_integral_v<From> || std::is_same_v<From, boolean>, int64_t,
                                      std::conditional_t<std::is_same_v<From, double>, double, float>>>(value) != 0;
  }
}

// An array of T.
template <class T>
struct Elements {
  using Type = T;     // in memory
  using Element = T;  // as it is combined
  static constexpr bool kConverts = false;
  const T* data;

  TREDUCE_HOST_DEVICE T at(int64_t i) const { return data[i]; }
};

// An array of some dtype, each of whose elements becomes `target` first; Acc holds any value of it. The dtypes are looked up at
// every element: one kernel an accumulator in place of one a pair of dtypes.
template <class Acc>
struct Converted {
  using Type = uint8_t;
  using Element = Acc;
  static constexpr bool kConverts = true;
  const void* data;
  DType dtype;
  DType target;

  // Not inlined on the device: it is long, and a kernel calls it in many places.
  TREDUCE_NOINLINE Acc at(int64_t i) const {
    switch (dtype) {
      case DType::float32: return from<float>(i);
      case DType::float64: return from<double>(i);
      case DType::float16: return from<float16>(i);
      case DType::bfloat16: return from<bfloat16>(i);
      case DType::int8: return from<int8_t>(i);
      case DType::uint8: return from<uint8_t>(i);
      case DType::int16: return from<int16_t>(i);
      case DType::int32: return from<int32_t>(i);
      case DType::int64: return from<int64_t>(i);
      case DType::boolean: return from<boolean>(i);
      case DType::float8_e4m3fn: return from<float8_e4m3fn>(i);
      case DType::float8_e5m2: return from<float8_e5m2>(i);
      case DType::complex64: return from<complex64>(i);
      default: return from<complex128>(i);
    }
  }

 private:
  template <class From>
  TREDUCE_HOST_DEVICE Acc from(int64_t i) const {
    const From value = static_cast<const From*>(data)[i];
    if constexpr (std::is_same_v<Acc, int64_t>) {
      if (target == DType::boolean) return is_nonzero(value);
    }
    const Acc converted = convert<Acc>(value);
    if constexpr (std::is_same_v<Acc, float>) {
      if (target == DType::float16) return static_cast<float>(float16::from(converted));
      if (target == DType::bfloat16) return static_cast<float>(bfloat16::from(converted));
    }
    return converted;
  }
};

// Whether elements of `from` that shall become `to` must be converted one by one. They need not where the accumulator of `from`
// holds them exactly and is the one of `to`, or where integers wrap in the end as well as at the start.
inline bool needs_conversion(DType from, DType to) {
  if (from == to) return false;
  if (is_integer(from) && is_integer(to)) return to == DType::boolean;
  if (to == DType::float32) return from != DType::float16 && from != DType::bfloat16 && !is_float8(from);
  return true;
}

}  // namespace treduce::reduce
