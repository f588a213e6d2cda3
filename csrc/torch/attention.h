// The schemas of scaled_dot_product_attention (library.cpp) as C++ types.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>

namespace treduce::attention {

using Schema = at::Tensor(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                          const std::optional<at::Tensor>& attn_mask, double dropout_p, bool is_causal,
                          std::optional<double> scale, bool enable_gqa);
using BackwardSchema = std::tuple<at::Tensor, at::Tensor, at::Tensor>(const at::Tensor& grad, const at::Tensor& query,
                                                                      const at::Tensor& key, const at::Tensor& value,
                                                                      const std::optional<at::Tensor>& attn_mask,
                                                                      bool is_causal, std::optional<double> scale,
                                                                      bool enable_gqa);

}  // namespace treduce::attention
