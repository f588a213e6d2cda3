// matmul and linear as ops, for a backend that multiplies: the CPU or CUDA.
#pragma once

#include <ATen/MemoryOverlap.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/library.h>

#include "matmul_composed.h"

namespace treduce::matmul {

// A B of operands that a kernel multiplies, and the bias in every row of it where that is defined: an element a column. To `out`, or to a
// new tensor.
using Multiply = at::Tensor(const at::Tensor& self, const at::Tensor& other, const at::Tensor& bias,
                            std::string_view variant, std::optional<int64_t> tile_size, const at::Tensor* out);

template <Multiply* kMultiply>
struct Ops {
  static at::Tensor product(const at::Tensor& self, const at::Tensor& other, const at::Tensor& bias,
                            std::string_view variant, std::optional<int64_t> tile_size,
                            const at::Tensor* out = nullptr) {
    if (!composes(self)) return kMultiply(self, other, bias, variant, tile_size, out);
    const auto multiply = [&](const at::Tensor& a, const at::Tensor& b, const at::Tensor& c) {
      return kMultiply(a, b, c, variant, tile_size, nullptr);
    };
    const at::Tensor result = composed_product(self, other, bias, variant, tile_size, multiply);
    if (out == nullptr) return result;
    check_out(*out, self, other, result.sym_sizes(), result.scalar_type());
    return out->copy_(result);
  }

  static at::Tensor matmul(const at::Tensor& self, const at::Tensor& other, std::string_view variant,
                           std::optional<int64_t> tile_size) {
    return product(self, other, at::Tensor(), variant, tile_size);
  }

  static void matmul_to(const at::Tensor& out, const at::Tensor& self, const at::Tensor& other,
                        std::string_view variant, std::optional<int64_t> tile_size) {
    at::assert_no_overlap(out, self);
    at::assert_no_overlap(out, other);
    product(self, other, at::Tensor(), variant, tile_size, &out);
  }

  static at::Tensor linear(const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                           std::string_view variant) {
    checked_linear(input, weight, bias);
    const at::AutoDispatchBelowADInplaceOrView guard;
    return product(input, weight.t(), contiguous_bias(bias), variant, std::nullopt);
  }

  static void implement(torch::Library& m) {
    m.impl("matmul", matmul);
    m.impl("matmul_to_", matmul_to);
    m.impl("linear", linear);
  }
};

}  // namespace treduce::matmul
