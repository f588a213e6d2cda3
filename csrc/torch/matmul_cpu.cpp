// matmul on the CPU: in k order whatever the variant. Those of order class k_order have the same bits on a GPU; tensor cores add in
// an order of their own.
#include <precompiled.h>

#include <ATen/MemoryOverlap.h>
#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/library.h>

#include <algorithm>

#include "../matmul/gemm.h"
#include "matmul.h"
#include "matmul_composed.h"

namespace treduce::matmul {
namespace {

constexpr int64_t kMultiplyAddsAThread = 1 << 18;  // below that, waking a thread costs more than it brings

// A B, and the bias in every row of it where that is defined: an element a column.
at::Tensor product(const at::Tensor& self, const at::Tensor& other, const at::Tensor& bias, std::string_view variant,
                   std::optional<int64_t> tile_size, const at::Tensor* out = nullptr) {
  if (composes(self)) {
    const auto multiply = [&](const at::Tensor& a, const at::Tensor& b, const at::Tensor& c) {
      return product(a, b, c, variant, tile_size);
    };
    const at::Tensor result = composed_product(self, other, bias, variant, tile_size, multiply);
    if (out == nullptr) return result;
    check_out(*out, self, other, result.sym_sizes(), result.scalar_type());
    return out->copy_(result);
  }
  const TensorRequest r = request(self, other, variant, tile_size, Target{}, out);
  if (r.result.numel() == 0) return r.result;
  if (r.problem.k == 0 && bias.defined()) return r.result.copy_(bias);
  const Gemm gemm =
      make_gemm(r.problem, r.dtype, r.self.const_data_ptr(), r.other.const_data_ptr(), r.result.mutable_data_ptr(),
                bias.defined() ? bias.const_data_ptr() : nullptr, at::get_num_threads());
  const int64_t grain = kMultiplyAddsAThread / std::max<int64_t>(gemm.work_a_task(), 1);
  at::parallel_for(0, gemm.tasks(), std::max<int64_t>(grain, 1),
                   [&](int64_t begin, int64_t end) { run_tasks(gemm, begin, end); });
  return r.result;
}

at::Tensor matmul_cpu(const at::Tensor& self, const at::Tensor& other, std::string_view variant,
                      std::optional<int64_t> tile_size) {
  return product(self, other, at::Tensor(), variant, tile_size);
}

void matmul_to_cpu(const at::Tensor& out, const at::Tensor& self, const at::Tensor& other, std::string_view variant,
                   std::optional<int64_t> tile_size) {
  at::assert_no_overlap(out, self);
  at::assert_no_overlap(out, other);
  product(self, other, at::Tensor(), variant, tile_size, &out);
}

at::Tensor linear_cpu(const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                      std::string_view variant) {
  checked_linear(input, weight, bias);
  const at::AutoDispatchBelowADInplaceOrView guard;
  return product(input, weight.t(), contiguous_bias(bias), variant, std::nullopt);
}

}  // namespace

TORCH_LIBRARY_IMPL(treduce, CPU, m) {
  m.impl("matmul", matmul_cpu);
  m.impl("matmul_to_", matmul_to_cpu);
  m.impl("linear", linear_cpu);
}

}  // namespace treduce::matmul
