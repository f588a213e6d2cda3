// vector_add on the CPU: all variants are one, because each element is added once.
#include <torch/library.h>

#include "../elementwise/add_cpu.h"
#include "elementwise.h"

namespace treduce::elementwise {
namespace {

at::Tensor vector_add_cpu(const at::Tensor& self, const at::Tensor& other, std::string_view variant,
                          std::optional<int64_t> block_size) {
  const Request r = request(self, other, variant, block_size);
  add_on_cpu(r.dtype, r.self.const_data_ptr(), r.other.const_data_ptr(), r.result.mutable_data_ptr(), r.result.numel());
  return r.result;
}

}  // namespace

TORCH_LIBRARY_IMPL(treduce, CPU, m) { m.impl("vector_add", vector_add_cpu); }

}  // namespace treduce::elementwise
