// vector_add on CUDA: checks, device guard, stream, launch.
#include <torch/library.h>

#include "../elementwise/rung.h"
#include "cuda_device.h"
#include "elementwise.h"

namespace treduce::elementwise {
namespace {

at::Tensor vector_add_cuda(const at::Tensor& self, const at::Tensor& other, std::string_view variant,
                           std::optional<int64_t> block_size) {
  checked_operands(self, other);
  const CudaScope scope(self.device());
  const Request r = request(self, other, variant, block_size);
  if (r.result.numel() == 0) return r.result;
  TORCH_CHECK_NOT_IMPLEMENTED(r.row->launcher != nullptr, "variant '", r.row->name, "' has no CUDA kernel");
  check_capability(*r.row, self.get_device());

  Call call;
  call.dtype = r.dtype;
  call.a = r.self.const_data_ptr();
  call.b = r.other.const_data_ptr();
  call.c = r.result.mutable_data_ptr();
  call.n = r.result.numel();
  call.block = r.block;
  call.stream = scope.stream();
  const auto error = static_cast<cudaError_t>(r.row->launcher(call));
  if (error != cudaSuccess) check_cuda(error, "the launch of variant " + r.row->name);
  return r.result;
}

}  // namespace

TORCH_LIBRARY_IMPL(treduce, CUDA, m) { m.impl("vector_add", vector_add_cuda); }

}  // namespace treduce::elementwise
