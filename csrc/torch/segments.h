// What the bindings of add_segments_ share.
#pragma once

#include <ATen/core/Tensor.h>

#include "../segments/segments.h"
#include "checks.h"

namespace treduce::segments {

using AddSchema = void(const at::Tensor& out, const at::Tensor& index, const at::Tensor& order,
                       const at::Tensor& source, bool mean);

inline Request request(const at::Tensor& out, const at::Tensor& index, const at::Tensor& order,
                       const at::Tensor& source, bool mean) {
  const std::optional<DType> dtype = dtype_of(out.scalar_type());
  TORCH_CHECK_TYPE(at::isFloatingType(out.scalar_type()) && dtype.has_value() && !is_float8(*dtype) &&
                       source.scalar_type() == out.scalar_type() && index.scalar_type() == at::kLong &&
                       order.scalar_type() == at::kLong,
                   "treduce::add_segments_ takes floats of one dtype and int64 indices");
  TORCH_CHECK_VALUE(out.dim() == 2 && source.dim() == 2 && index.dim() == 1 && out.size(1) == source.size(1) &&
                        index.sizes() == order.sizes() && index.size(0) == source.size(0),
                    "treduce::add_segments_ takes rows of one width and an index for each, got ", out.sizes(), ", ",
                    source.sizes(), " and ", index.sizes());
  TORCH_CHECK_VALUE(index.device() == out.device() && order.device() == out.device() && source.device() == out.device(),
                    "treduce::add_segments_ takes tensors on one device, got ", out.device(), ", ", index.device(),
                    ", ", order.device(), " and ", source.device());
  TORCH_CHECK_VALUE(out.is_contiguous() && source.is_contiguous() && index.is_contiguous() && order.is_contiguous(),
                    "treduce::add_segments_ takes contiguous tensors");
  Request r;
  r.dtype = *dtype;
  r.count = source.size(0);
  r.width = source.size(1);
  r.places = out.size(0);
  r.divide = mean;
  r.index = index.const_data_ptr<int64_t>();
  r.order = order.const_data_ptr<int64_t>();
  r.source = source.const_data_ptr();
  r.out = out.mutable_data_ptr();
  return r;
}

}  // namespace treduce::segments
