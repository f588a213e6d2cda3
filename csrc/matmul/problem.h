// One batched matrix product as numbers, and its arithmetic. Free of torch and CUDA: the kernels and the CPU read the
// same lines.
#pragma once

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "../common/dtypes.h"
#include "../common/round.h"

namespace treduce::matmul {

// More dimensions than any model has once neighbours that lie evenly are merged; an operand with more is copied.
constexpr int kMaxBatchDims = 8;

// C = A B for `batches` pairs of an m x k and a k x n matrix. A and B are read through their strides (in elements, zero
// included); C is contiguous.
struct Problem {
  int64_t m, n, k;
  int64_t a_row, a_column;
  int64_t b_row, b_column;
  int64_t batches;
  int batch_dims;
  int64_t batch_size[kMaxBatchDims], a_batch[kMaxBatchDims], b_batch[kMaxBatchDims];
};

// Where the matrices of one batch begin.
struct Offsets {
  int64_t a, b, c;
};

TREDUCE_HOST_DEVICE Offsets offsets_of(const Problem& p, int64_t batch) {
  Offsets at = {0, 0, batch * p.m * p.n};
  TREDUCE_ROLLED for (int d = p.batch_dims - 1; d >= 0; --d) {
    const int64_t index = batch % p.batch_size[d];
    batch /= p.batch_size[d];
    at.a += index * p.a_batch[d];
    at.b += index * p.b_batch[d];
  }
  return at;
}

// Integers accumulate unsigned: torch's wrap, and signed overflow would be undefined.
template <class T>
using Acc = std::conditional_t<std::is_same_v<T, int32_t> || std::is_same_v<T, int8_t>, uint32_t,
                               std::conditional_t<std::is_same_v<T, int64_t>, uint64_t,
                                                  std::conditional_t<std::is_same_v<T, double>, double, float>>>;

// The element type of C: that of A and B, but products of bytes do not fit a byte.
template <class T>
struct ResultOf {
  using type = T;
};
template <>
struct ResultOf<int8_t> {
  using type = int32_t;
};
template <class T>
using Result = typename ResultOf<T>::type;

constexpr DType result_dtype(DType dtype) { return dtype == DType::int8 ? DType::int32 : dtype; }

// The one step that every rung and the CPU repeat along k. The float ones round once, whatever the compiler would make
// of a * b + c.
TREDUCE_HOST_DEVICE float multiply_add(float a, float b, float c) { return fmaf(a, b, c); }
TREDUCE_HOST_DEVICE double multiply_add(double a, double b, double c) { return fma(a, b, c); }
TREDUCE_HOST_DEVICE uint32_t multiply_add(uint32_t a, uint32_t b, uint32_t c) { return a * b + c; }
TREDUCE_HOST_DEVICE uint64_t multiply_add(uint64_t a, uint64_t b, uint64_t c) { return a * b + c; }

// An output's sum and, where there is a bias (an element a column, of the result's type; null: none), its column's: one
// more addition in the accumulator's type, after which the output is rounded once. No bias is not a bias of zero, which
// would turn a sum of -0 into +0.
template <class Sum, class Out>
TREDUCE_HOST_DEVICE Sum with_bias(Sum sum, const Out* bias, int64_t column) {
  return bias == nullptr ? sum : sum + static_cast<Sum>(bias[column]);
}

// Calls body(Type<T>{}) with the element type; matmul has these seven.
constexpr DType kDTypes[] = {DType::float32, DType::float64, DType::float16, DType::bfloat16,
                             DType::int8,    DType::int32,   DType::int64};

// The tag of an element type.
template <class T>
constexpr DType kDType = std::is_same_v<T, float>      ? DType::float32
                         : std::is_same_v<T, double>   ? DType::float64
                         : std::is_same_v<T, float16>  ? DType::float16
                         : std::is_same_v<T, bfloat16> ? DType::bfloat16
                         : std::is_same_v<T, int8_t>   ? DType::int8
                         : std::is_same_v<T, int32_t>  ? DType::int32
                                                       : DType::int64;

template <class Body>
auto dispatch_dtype(DType dtype, Body&& body) {
  switch (dtype) {
    case DType::float64: return body(Type<double>{});
    case DType::float16: return body(Type<float16>{});
    case DType::bfloat16: return body(Type<bfloat16>{});
    case DType::int8: return body(Type<int8_t>{});
    case DType::int32: return body(Type<int32_t>{});
    case DType::int64: return body(Type<int64_t>{});
    default: return body(Type<float>{});
  }
}

}  // namespace treduce::matmul
