// vector_add on the CPU: all variants are one, because each element is added once.
#include <ATen/Parallel.h>
#include <torch/library.h>

#include "add.h"
#include "shape.h"

namespace treduce::elementwise {
namespace {

constexpr int64_t kElementsATask = 32768;  // what a core should get at least, as at::internal::GRAIN_SIZE

template <class T>
void add_range(const T* __restrict a, const T* __restrict b, T* __restrict c, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i) c[i] = add(a[i], b[i]);
}

at::Tensor vector_add_cpu(const at::Tensor& self, const at::Tensor& other, std::string_view variant,
                          std::optional<int64_t> block_size) {
  const Request r = request(self, other, variant, block_size);
  dispatch(r.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    const T* a = static_cast<const T*>(r.self.const_data_ptr());
    const T* b = static_cast<const T*>(r.other.const_data_ptr());
    T* c = static_cast<T*>(r.result.mutable_data_ptr());
    at::parallel_for(0, r.result.numel(), kElementsATask,
                     [&](int64_t begin, int64_t end) { add_range(a, b, c, begin, end); });
  });
  return r.result;
}

}  // namespace

TORCH_LIBRARY_IMPL(treduce, CPU, m) { m.impl("vector_add", vector_add_cpu); }

}  // namespace treduce::elementwise
