// Which dtype stands in for another, and how its result is turned back.
#include <precompiled.h>

#include "reduce_stand_in.h"

#include <ATen/WrapDimUtils.h>
#include <ATen/ops/view_as_complex.h>
#include <ATen/ops/view_as_real.h>

namespace treduce::reduce {
namespace {

// What elements are converted to where the caller names no dtype.
std::optional<at::ScalarType> converted(Op op, at::ScalarType type) {
  switch (type) {
    case at::kFloat8_e4m3fnuz:
    case at::kFloat8_e5m2fnuz:
    case at::kFloat8_e8m0fnu: return at::kFloat;
    // torch has no extrema of these.
    case at::kUInt16: return is_extremum(op) ? std::nullopt : std::optional(at::kInt);
    case at::kUInt32:
    case at::kUInt64: return is_extremum(op) ? std::nullopt : std::optional(at::kLong);
    default: return std::nullopt;
  }
}

}  // namespace

StandIn::StandIn(Op op, const at::Tensor& self, const Arguments& arguments) : given_(self), arguments_(arguments) {
  const at::ScalarType type = self.scalar_type();
  const bool half = type == at::kComplexHalf && !is_extremum(op);
  const std::optional<at::ScalarType> target = converted(op, type);
  if (!half && !target.has_value()) return;
  check_dense(self, name_of(op));
  const Row& row = *as_value_error([&] {
                      return resolve(arguments.variant, false, arguments.block_size, arguments.num_blocks);
                    }).row;
  TORCH_CHECK_TYPE(row.along_dims, "variant '", row.name,
                   "' takes float32, float64, float16, bfloat16, int8, uint8, int16, int32, int64, bool, got ", type,
                   "; take variant 'auto'");
  if (half) {
    take_parts();
  } else if (arguments.dtype.has_value() && dtype_of(*arguments.dtype).has_value()) {
    // A mean of integers without a dtype is refused, as that of other integers.
    self_ = self.to(*arguments.dtype);
  } else {
    self_ = self.to(*target);
  }
}

// Sums of complex numbers are two sums, each in the order of the elements.
void StandIn::take_parts() {
  const std::optional<at::ScalarType> dtype = arguments_.dtype;
  if (dtype.has_value() && *dtype != at::kComplexHalf) {
    self_ = given_.to(dtype_of(*dtype).has_value() && at::isComplexType(*dtype) ? *dtype : at::kComplexFloat);
    return;
  }
  const int64_t rank = given_.dim();
  const at::Tensor numbers = resolved(given_);
  self_ = at::view_as_real(rank == 0 ? numbers.unsqueeze(0) : numbers);
  parts_ = true;
  if (arguments_.dim.has_value() && !arguments_.dim->empty()) {
    for (const int64_t d : *arguments_.dim) dims_.push_back(at::maybe_wrap_dim(d, rank));
  } else {
    for (int64_t d = 0; d < std::max<int64_t>(rank, 1); ++d) dims_.push_back(d);
  }
  arguments_.dim = at::OptionalIntArrayRef(at::IntArrayRef(dims_));
  arguments_.dtype.reset();
  if (rank == 0) arguments_.keepdim = false;
}

at::Tensor StandIn::finished(at::Tensor result) const { return parts_ ? at::view_as_complex(result) : result; }

}  // namespace treduce::reduce
