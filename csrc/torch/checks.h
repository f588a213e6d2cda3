// What every binding checks before anything is launched, and the step from torch's types to ours. Errors are Python's kinds:
// TypeError for a dtype, ValueError for a shape, variant or size, NotImplementedError for what an op does not do.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include <optional>

#include "../common/dtypes.h"
#include "../common/variants.h"

namespace treduce {

// Turns a BadArgument thrown by host code that is free of torch into a ValueError.
template <class F>
auto as_value_error(F&& f) {
  try {
    return f();
  } catch (const BadArgument& bad) {
    C10_THROW_ERROR(ValueError, bad.message);
  }
}

// Throws what a prepared call was refused for, if it was.
inline void check(const Refusal& refusal) {
  if (!refusal) return;
  TORCH_CHECK_NOT_IMPLEMENTED(!refusal.by_chip, refusal.sentence);
  C10_THROW_ERROR(ValueError, refusal.sentence);
}

// The same on a CPU, which also runs the rungs that only some chips run.
inline void check_sentence(const Refusal& refusal) {
  if (!refusal.by_chip) check(refusal);
}

inline std::optional<DType> dtype_of(at::ScalarType type) {
  switch (type) {
    case at::kFloat: return DType::float32;
    case at::kDouble: return DType::float64;
    case at::kHalf: return DType::float16;
    case at::kBFloat16: return DType::bfloat16;
    case at::kChar: return DType::int8;
    case at::kByte: return DType::uint8;
    case at::kShort: return DType::int16;
    case at::kInt: return DType::int32;
    case at::kLong: return DType::int64;
    case at::kBool: return DType::boolean;
    case at::kFloat8_e4m3fn: return DType::float8_e4m3fn;
    case at::kFloat8_e5m2: return DType::float8_e5m2;
    case at::kComplexFloat: return DType::complex64;
    case at::kComplexDouble: return DType::complex128;
    default: return std::nullopt;
  }
}

inline void check_dense(const at::Tensor& tensor, const char* op) {
  TORCH_CHECK_NOT_IMPLEMENTED(tensor.layout() == at::kStrided, "treduce::", op,
                              " takes dense tensors, got one of layout ", tensor.layout());
}

// The dtype of `tensor`, one of the basic ones, or a TypeError that names what `op` accepts.
inline DType checked_dtype(const at::Tensor& tensor, const char* op) {
  check_dense(tensor, op);
  const std::optional<DType> dtype = dtype_of(tensor.scalar_type());
  TORCH_CHECK_TYPE(dtype.has_value() && is_basic(*dtype), "treduce::", op,
                   " takes float32, float64, float16, bfloat16, int8, uint8, int16, int32, int64 and bool, got ",
                   tensor.scalar_type());
  return *dtype;
}

// Lazy conjugate and negative views hold other values in memory than they mean.
inline bool is_lazy(const at::Tensor& tensor) { return tensor.is_neg() || tensor.is_conj(); }
inline at::Tensor resolved(const at::Tensor& tensor) {
  return is_lazy(tensor) ? tensor.resolve_conj().resolve_neg() : tensor;
}

// The elements of a tensor that lie in memory: an expanded dim is there once.
inline int64_t stored_elements(const at::Tensor& tensor) {
  int64_t count = 1;
  for (int64_t d = 0; d < tensor.dim(); ++d) count *= tensor.stride(d) == 0 && tensor.size(d) > 0 ? 1 : tensor.size(d);
  return count;
}

inline int checked_size(const Variant& variant, const char* what, std::optional<int64_t> given) {
  return checked_size(variant, what, given.value_or(0), given.has_value());
}

}  // namespace treduce
