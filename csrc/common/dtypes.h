// The element types, free of torch: their list, their accumulators, and the step from a runtime tag to a C++ type.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "float16.h"

namespace treduce {

// A torch.bool as it lies in memory. Any nonzero byte counts as true, as torch itself reads it.
struct boolean {
  uint8_t byte;
  TREDUCE_HOST_DEVICE explicit operator int64_t() const { return byte != 0; }
  TREDUCE_HOST_DEVICE explicit operator int32_t() const { return byte != 0; }
};

// Two floats side by side, as torch.complex64 (and 128) lie in memory.
template <class Real>
struct Complex {
  Real re, im;
  TREDUCE_HOST_DEVICE friend Complex operator+(Complex a, Complex b) { return {a.re + b.re, a.im + b.im}; }
};
using complex64 = Complex<float>;
using complex128 = Complex<double>;

template <class T>
constexpr bool is_complex = std::is_same_v<T, complex64> || std::is_same_v<T, complex128>;

enum class DType : int8_t {
  float32,
  float64,
  float16,
  bfloat16,
  int8,
  uint8,
  int16,
  int32,
  int64,
  boolean,
  float8_e4m3fn,
  float8_e5m2,
  complex64,
  complex128,
};

// The dtypes of every rung; the others are taken along dims and by `auto`.
constexpr bool is_basic(DType dtype) { return dtype <= DType::boolean; }
// Bool is one of them: sums count it.
constexpr bool is_integer(DType dtype) { return dtype >= DType::int8 && dtype <= DType::boolean; }
constexpr bool is_float8(DType dtype) { return dtype == DType::float8_e4m3fn || dtype == DType::float8_e5m2; }
constexpr bool is_complex_dtype(DType dtype) { return dtype == DType::complex64 || dtype == DType::complex128; }

template <class T>
struct Type {
  using type = T;
};

// Calls f(Type<T>{}) with the C++ type behind the tag.
template <class F>
auto dispatch(DType dtype, F&& f) {
  switch (dtype) {
    case DType::float32: return f(Type<float>{});
    case DType::float64: return f(Type<double>{});
    case DType::float16: return f(Type<float16>{});
    case DType::bfloat16: return f(Type<bfloat16>{});
    case DType::int8: return f(Type<int8_t>{});
    case DType::uint8: return f(Type<uint8_t>{});
    case DType::int16: return f(Type<int16_t>{});
    case DType::int32: return f(Type<int32_t>{});
    case DType::int64: return f(Type<int64_t>{});
    default: return f(Type<boolean>{});
  }
}

// As dispatch, over all fourteen.
template <class F>
auto dispatch_all(DType dtype, F&& f) {
  switch (dtype) {
    case DType::float8_e4m3fn: return f(Type<float8_e4m3fn>{});
    case DType::float8_e5m2: return f(Type<float8_e5m2>{});
    case DType::complex64: return f(Type<complex64>{});
    case DType::complex128: return f(Type<complex128>{});
    default: return dispatch(dtype, std::forward<F>(f));
  }
}

inline int64_t size_of(DType dtype) {
  return dispatch_all(dtype, [](auto type) { return static_cast<int64_t>(sizeof(typename decltype(type)::type)); });
}

inline const char* name_of(DType dtype) {
  constexpr const char* names[] = {"float32",       "float64",     "float16",   "bfloat16",  "int8",
                                   "uint8",         "int16",       "int32",     "int64",     "bool",
                                   "float8_e4m3fn", "float8_e5m2", "complex64", "complex128"};
  return names[static_cast<int>(dtype)];
}

template <class T>
constexpr bool is_float_of_up_to_32_bits =
    std::is_same_v<T, float> || std::is_same_v<T, float16> || std::is_same_v<T, bfloat16> ||
    std::is_same_v<T, float8_e4m3fn> || std::is_same_v<T, float8_e5m2>;

// What a reduction accumulates in: floats of up to 32 bits in float32, every integer and bool in int64.
template <class T>
using Accumulator = std::conditional_t<std::is_same_v<T, double> || is_complex<T>, T,
                                       std::conditional_t<is_float_of_up_to_32_bits<T>, float, int64_t>>;

inline int64_t accumulator_size(DType dtype) {
  return dispatch_all(
      dtype, [](auto type) { return static_cast<int64_t>(sizeof(Accumulator<typename decltype(type)::type>)); });
}

// Every NaN becomes the one quiet NaN of its type (see float16.h); everything else passes.
template <class T>
TREDUCE_HOST_DEVICE T canonical(T value) {
  if constexpr (std::is_same_v<T, float>) return value != value ? bit_cast<float>(0x7fc00000u) : value;
  if constexpr (std::is_same_v<T, double>)
    return value != value ? bit_cast<double>(uint64_t{0x7ff8000000000000u}) : value;
  if constexpr (is_complex<T>) return {canonical(value.re), canonical(value.im)};
  return value;
}

// Rounds an accumulator to a storage type: once, to nearest even; integers wrap.
template <class T, class Acc>
TREDUCE_HOST_DEVICE T round_to(Acc value) {
  if constexpr (std::is_same_v<T, float16> || std::is_same_v<T, bfloat16>) {
    return T::from(static_cast<float>(value));
  } else if constexpr (std::is_same_v<T, boolean>) {
    return {static_cast<uint8_t>(value != 0)};
  } else {
    return canonical(static_cast<T>(value));
  }
}

}  // namespace treduce
