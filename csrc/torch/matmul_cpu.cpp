// matmul on the CPU: in k order whatever the variant. Those of order class k_order have the same bits on a GPU; tensor cores add in
// an order of their own.
#include <precompiled.h>

#include <ATen/Parallel.h>

#include <algorithm>

#include "../matmul/gemm.h"
#include "matmul_ops.h"

namespace treduce::matmul {
namespace {

constexpr int64_t kMultiplyAddsAThread = 1 << 18;  // below that, waking a thread costs more than it brings

at::Tensor product(const at::Tensor& self, const at::Tensor& other, const at::Tensor& bias, std::string_view variant,
                   std::optional<int64_t> tile_size, const at::Tensor* out) {
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

}  // namespace

TORCH_LIBRARY_IMPL(treduce, CPU, m) { Ops<&product>::implement(m); }

}  // namespace treduce::matmul
