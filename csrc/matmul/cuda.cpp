// matmul on CUDA: checks, device guard, stream, launch.
#include <torch/library.h>

#include "../common/cuda_device.h"
#include "rung.h"
#include "shape.h"

namespace treduce::matmul {
namespace {

at::Tensor matmul_cuda(const at::Tensor& self, const at::Tensor& other, std::string_view variant,
                       std::optional<int64_t> tile_size) {
  checked_operands(self, other);
  const CudaScope scope(self.device());
  const Request r = request(self, other, variant, tile_size);
  if (r.result.numel() == 0) return r.result;
  TORCH_CHECK_NOT_IMPLEMENTED(r.row->launcher != nullptr, "variant '", r.row->name, "' has no CUDA kernel");
  check_capability(r.row->capability, self.get_device(), r.row->name);

  Call call;
  call.problem = r.problem;
  call.dtype = r.dtype;
  call.a = r.self.const_data_ptr();
  call.b = r.other.const_data_ptr();
  call.c = r.result.mutable_data_ptr();
  call.tile = r.tile;
  call.stream = scope.stream();
  const auto error = static_cast<cudaError_t>(r.row->launcher(call));
  if (error != cudaSuccess) check_cuda(error, "the launch of variant " + r.row->name);
  return r.result;
}

}  // namespace

TORCH_LIBRARY_IMPL(treduce, CUDA, m) { m.impl("matmul", matmul_cuda); }

}  // namespace treduce::matmul
