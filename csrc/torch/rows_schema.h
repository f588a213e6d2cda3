// The schemas of the row operations (library.cpp) as C++ types, for those who call the ops through the dispatcher.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string_view>
#include <tuple>

namespace treduce::rows {

using SoftmaxSchema = at::Tensor(const at::Tensor& self, int64_t dim, std::string_view variant);
using SoftmaxBackwardSchema = at::Tensor(const at::Tensor& grad, const at::Tensor& output, int64_t dim,
                                         std::string_view variant);
using LogSumExpSchema = at::Tensor(const at::Tensor& self, int64_t dim, bool keepdim, std::string_view variant);
using RowSumsSchema = void(const at::Tensor& squares, const std::optional<at::Tensor>& mean, const at::Tensor& rows);
using SqrtSchema = at::Tensor(const at::Tensor& self);
using LayerNormSchema = std::tuple<at::Tensor, at::Tensor, at::Tensor>(const at::Tensor& input,
                                                                       c10::SymIntArrayRef normalized_shape,
                                                                       const std::optional<at::Tensor>& weight,
                                                                       const std::optional<at::Tensor>& bias,
                                                                       double eps, std::string_view variant);
using RmsNormSchema = std::tuple<at::Tensor, at::Tensor>(const at::Tensor& input, c10::SymIntArrayRef normalized_shape,
                                                         const std::optional<at::Tensor>& weight,
                                                         std::optional<double> eps, std::string_view variant);
using LayerNormBackwardSchema = at::Tensor(const at::Tensor& grad, const at::Tensor& input,
                                           c10::SymIntArrayRef normalized_shape, const at::Tensor& mean,
                                           const at::Tensor& rstd, const std::optional<at::Tensor>& weight,
                                           std::string_view variant);
using RmsNormBackwardSchema = at::Tensor(const at::Tensor& grad, const at::Tensor& input,
                                         c10::SymIntArrayRef normalized_shape, const at::Tensor& rstd,
                                         const std::optional<at::Tensor>& weight, std::string_view variant);

}  // namespace treduce::rows
