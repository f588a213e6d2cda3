// The four reductions, and where their results go. Host and device.
#pragma once

#include "../primitives/functors.h"

namespace treduce::reduce {

enum class Op : int8_t { sum, mean, amax, amin };

inline const char* name_of(Op op) {
  constexpr const char* names[] = {"sum", "mean", "amax", "amin"};
  return names[static_cast<int>(op)];
}

inline bool is_extremum(Op op) { return op == Op::amax || op == Op::amin; }

// How the values of the pairwise order are added.
enum class Arithmetic : int8_t { plain, compensated, exact };

// Where finished reductions go: elements of the result's dtype, of which a whole tensor's has one.
struct Result {
  void* data;
  DType dtype;
  bool divide;    // `mean`
  int64_t count;  // how many elements were reduced

  template <class Op>
  TREDUCE_HOST_DEVICE void store(typename Op::Acc value, int64_t i = 0) const {
    write(Op::finish(value, divide, count), i);
  }

  TREDUCE_HOST_DEVICE void write(float value, int64_t i) const {
    switch (dtype) {
      case DType::float16: static_cast<float16*>(data)[i] = float16::from(value); break;
      case DType::bfloat16: static_cast<bfloat16*>(data)[i] = bfloat16::from(value); break;
      default: static_cast<float*>(data)[i] = canonical(value);
    }
  }
  TREDUCE_HOST_DEVICE void write(double value, int64_t i) const { static_cast<double*>(data)[i] = canonical(value); }
  TREDUCE_HOST_DEVICE void write(complex64 value, int64_t i) const {
    static_cast<complex64*>(data)[i] = canonical(value);
  }
  TREDUCE_HOST_DEVICE void write(complex128 value, int64_t i) const {
    static_cast<complex128*>(data)[i] = canonical(value);
  }
  TREDUCE_HOST_DEVICE void write(int64_t value, int64_t i) const {
    switch (dtype) {
      case DType::boolean: static_cast<uint8_t*>(data)[i] = value != 0; break;
      case DType::int8: static_cast<int8_t*>(data)[i] = static_cast<int8_t>(value); break;
      case DType::uint8: static_cast<uint8_t*>(data)[i] = static_cast<uint8_t>(value); break;
      case DType::int16: static_cast<int16_t*>(data)[i] = static_cast<int16_t>(value); break;
      case DType::int32: static_cast<int32_t*>(data)[i] = static_cast<int32_t>(value); break;
      default: static_cast<int64_t*>(data)[i] = value;
    }
  }
};

}  // namespace treduce::reduce
