// vector_add on CUDA: checks, device guard, stream, launch.
#include <precompiled.h>

#include <torch/library.h>

#include "../elementwise/launch.h"
#include "cuda_device.h"
#include "elementwise.h"

namespace treduce::elementwise {
namespace {

at::Tensor vector_add_cuda(const at::Tensor& self, const at::Tensor& other, std::string_view variant,
                           std::optional<int64_t> block_size) {
  checked_operands(self, other);
  const CudaScope scope(self.device());
  Addition addition(self, other, variant, block_size);
  const Request& r = addition.request;
  if (r.n == 0) return addition.result;
  TORCH_CHECK_NOT_IMPLEMENTED(r.row->launcher != nullptr, "variant '", r.row->name, "' has no CUDA kernel");
  const Prepared prepared = prepare(r, chip_of(self.get_device()));
  check(prepared.refusal);
  const Pointers pointers{addition.self.const_data_ptr(), addition.other.const_data_ptr(),
                          addition.result.mutable_data_ptr()};
  const cudaError_t error = launch(prepared, pointers, scope.stream());
  if (error != cudaSuccess) check_cuda(error, "the launch of variant " + r.row->name);
  return std::move(addition.result);
}

}  // namespace

TORCH_LIBRARY_IMPL(treduce, CUDA, m) { m.impl("vector_add", vector_add_cuda); }

}  // namespace treduce::elementwise
