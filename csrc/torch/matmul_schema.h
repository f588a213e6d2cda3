// The schemas of matmul and linear (library.cpp) as C++ types, for those who call the ops through the dispatcher.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string_view>

namespace treduce::matmul {

using MatmulSchema = at::Tensor(const at::Tensor& self, const at::Tensor& other, std::string_view variant,
                                std::optional<int64_t> tile_size);
using LinearSchema = at::Tensor(const at::Tensor& input, const at::Tensor& weight,
                                const std::optional<at::Tensor>& bias, std::string_view variant);

}  // namespace treduce::matmul
