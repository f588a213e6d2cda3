// matmul on CUDA: checks, device guard, stream, workspace. What is launched is prepared: see ../matmul/prepare.h.
#include <precompiled.h>

#include <ATen/Context.h>
#include <ATen/ops/empty.h>

#include "../matmul/launch.h"
#include "cuda_device.h"
#include "matmul_ops.h"

namespace treduce::matmul {
namespace {

// Whether torch was told to multiply float32 as tfloat32: torch.backends.cuda.matmul.
bool tfloat32_allowed() {
  return at::globalContext().float32Precision(at::Float32Backend::CUDA, at::Float32Op::MATMUL) ==
         at::Float32Precision::TF32;
}

at::Tensor product(const at::Tensor& self, const at::Tensor& other, const at::Tensor& bias, std::string_view variant,
                   std::optional<int64_t> tile_size, const at::Tensor* out) {
  checked_operands({&self, &other});
  const CudaScope scope(self.device());
  const Chip& chip = chip_of(self.get_device());
  const Target target{chip, tfloat32_allowed()};
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
  pointers.counters = counters_of(*r.row, prepared.counters, scope.device(), scope.stream());
  const cudaError_t error = launch(prepared, pointers, scope.stream());
  if (error != cudaSuccess) check_cuda(error, "the launch of variant " + r.row->name);
  return r.result;
}

}  // namespace

TORCH_LIBRARY_IMPL(treduce, CUDA, m) { Ops<&product>::implement(m); }

}  // namespace treduce::matmul
