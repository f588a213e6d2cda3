// vector_add on the CPU: all variants are one, because each element is added once.
#include <precompiled.h>

#include <torch/library.h>

#include "../elementwise/add_cpu.h"
#include "elementwise.h"

namespace treduce::elementwise {
namespace {

at::Tensor vector_add_cpu(const at::Tensor& self, const at::Tensor& other, std::string_view variant,
                          std::optional<int64_t> block_size) {
  Addition call(self, other, variant, block_size);
  add_on_cpu(call.request.dtype, call.self.const_data_ptr(), call.other.const_data_ptr(),
             call.result.mutable_data_ptr(), call.request.n);
  return std::move(call.result);
}

}  // namespace

TORCH_LIBRARY_IMPL(treduce, CPU, m) { m.impl("vector_add", vector_add_cpu); }

}  // namespace treduce::elementwise
