// The row operations on CUDA: device guard, stream, launch.
#include <precompiled.h>

#include "../rows/rung.h"
#include "cuda_device.h"
#include "rows_ops.h"

namespace treduce::rows {
namespace {

struct OnCuda {
  using Scope = CudaScope;
  static constexpr bool kMeta = false;
  static void run(RowCall& row_call, const Scope& scope) {
    const Request& r = row_call.request;
    const Prepared prepared = prepare(r, chip_of(scope.device()));
    check(prepared.refusal);
    TORCH_CHECK_NOT_IMPLEMENTED(prepared.rung->launcher != nullptr, "variant '", prepared.rung->name,
                                "' has no CUDA kernel");
    const Call call{r, prepared, row_call.pointers, scope.stream()};
    const auto error = static_cast<cudaError_t>(prepared.rung->launcher(call));
    if (error != cudaSuccess) check_cuda(error, "the launch of variant " + prepared.rung->name);
  }
};

}  // namespace

TORCH_LIBRARY_IMPL(treduce, CUDA, m) { Ops<OnCuda>::implement(m); }

}  // namespace treduce::rows
