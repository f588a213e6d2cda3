// matmul on CUDA: checks, device guard, stream, workspace. What is launched is prepared: see ../matmul/prepare.h.
#include <precompiled.h>

#include <ATen/Context.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "../matmul/launch.h"
#include "cuda_device.h"
#include "matmul.h"
#include "matmul_composed.h"

namespace treduce::matmul {
namespace {

// Whether torch was told to multiply float32 as tfloat32: torch.backends.cuda.matmul.
bool tfloat32_allowed() {
  return at::globalContext().float32Precision(at::Float32Backend::CUDA, at::Float32Op::MATMUL) ==
         at::Float32Precision::TF32;
}

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
  checked_operands({&self, &other});
  const CudaScope scope(self.device());
  const Chip& chip = chip_of(self.get_device());
  const Target target{chip.capability, tfloat32_allowed()};
  TensorRequest r = request(self, other, variant, tile_size, target, out);
  if (r.result.numel() == 0) return r.result;
  if (r.problem.k == 0 && bias.defined()) return r.result.copy_(bias);
  TORCH_CHECK_NOT_IMPLEMENTED(r.row->launcher != nullptr, "variant '", r.row->name, "' has no CUDA kernel");
  check_capability(*r.row, self.get_device());

  Pointers pointers;
  r.a = pointers.a = r.self.const_data_ptr();
  r.b = pointers.b = r.other.const_data_ptr();
  r.c = pointers.c = r.result.mutable_data_ptr();
  r.has_bias = bias.defined();
  pointers.bias = r.has_bias ? bias.const_data_ptr() : nullptr;
  const Prepared prepared = prepare(r, chip);
  // Freed when it goes out of scope: in the stream's order.
  at::Tensor workspace;
  const int64_t bytes = prepared.workspace.bytes();
  if (bytes > 0) workspace = at::empty({bytes}, self.options().dtype(at::kByte).memory_format(std::nullopt));
  pointers.workspace = bytes > 0 ? workspace.mutable_data_ptr() : nullptr;
  const cudaError_t error = launch(prepared, pointers, scope.stream());
  if (error != cudaSuccess) check_cuda(error, "the launch of variant " + r.row->name);
  return r.result;
}

at::Tensor matmul_cuda(const at::Tensor& self, const at::Tensor& other, std::string_view variant,
                       std::optional<int64_t> tile_size) {
  return product(self, other, at::Tensor(), variant, tile_size);
}

void matmul_to_cuda(const at::Tensor& out, const at::Tensor& self, const at::Tensor& other, std::string_view variant,
                    std::optional<int64_t> tile_size) {
  at::assert_no_overlap(out, self);
  at::assert_no_overlap(out, other);
  product(self, other, at::Tensor(), variant, tile_size, &out);
}

at::Tensor linear_cuda(const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                       std::string_view variant) {
  checked_linear(input, weight, bias);
  const at::AutoDispatchBelowADInplaceOrView guard;
  return product(input, weight.t(), contiguous_bias(bias), variant, std::nullopt);
}

}  // namespace

TORCH_LIBRARY_IMPL(treduce, CUDA, m) {
  m.impl("matmul", matmul_cuda);
  m.impl("matmul_to_", matmul_to_cuda);
  m.impl("linear", linear_cuda);
}

}  // namespace treduce::matmul
