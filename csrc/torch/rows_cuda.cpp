// The row operations on CUDA: device guard, stream, launch.
#include <precompiled.h>

#include <ATen/ops/sqrt.h>

#include "../rows/launch.h"
#include "cuda_device.h"
#include "rows_ops.h"

namespace treduce::rows {
namespace {

struct OnCuda {
  using Scope = CudaScope;
  static constexpr bool kMeta = false;
  static void run(RowCall& row_call, const Scope& scope) {
    const Prepared prepared = prepare(row_call.request, chip_of(scope.device()));
    check(prepared.refusal);
    TORCH_CHECK_NOT_IMPLEMENTED(prepared.rung->launcher != nullptr, "variant '", prepared.rung->name,
                                "' has no CUDA kernel");
    const cudaError_t error = launch(prepared, row_call.pointers, scope.stream());
    if (error != cudaSuccess) check_cuda(error, "the launch of variant " + prepared.rung->name);
  }
};

// Torch's is correctly rounded.
at::Tensor sqrt_cuda(const at::Tensor& self) { return at::sqrt(self.contiguous()); }

}  // namespace

TORCH_LIBRARY_IMPL(treduce, CUDA, m) {
  Ops<OnCuda>::implement(m);
  m.impl("sqrt", sqrt_cuda);
}

}  // namespace treduce::rows
