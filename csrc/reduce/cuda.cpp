// The reductions on CUDA: checks, device guard, stream, workspace, launch.
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "../common/cuda_device.h"
#include "binding.h"
#include "rung.h"

namespace treduce::reduce {
namespace {

template <Op kOp>
at::Tensor reduce_cuda(const at::Tensor& self, std::string_view variant, std::optional<int64_t> block_size,
                       std::optional<int64_t> num_blocks) {
  const Request r = request(kOp, self, self.numel(), variant, block_size, num_blocks);
  TORCH_CHECK_NOT_IMPLEMENTED(r.row->launcher != nullptr, "variant '", r.row->name, "' has no CUDA kernel");
  const CudaScope scope(self.device());
  check_capability(r.row->capability, self.get_device(), r.row->name);

  const at::Tensor input = flat_input(kOp, self);
  at::Tensor output = at::empty({}, self.options().dtype(r.result_type).memory_format(std::nullopt));
  const Plan plan = make_plan(r.row->plan_order, r.dtype, r.n, r.block, r.num_blocks);

  Call call;
  call.op = kOp;
  call.dtype = r.dtype;
  call.input = input.const_data_ptr();
  call.n = r.n;
  call.plan = &plan;
  call.result = {output.mutable_data_ptr(), *dtype_of(r.result_type), kOp == Op::mean, r.n};
  call.workspace = nullptr;
  call.counter = nullptr;
  call.stream = scope.stream();

  const int64_t accumulators = workspace_accumulators(*r.row, plan);
  at::Tensor workspace;
  if (accumulators > 0) {
    workspace = at::empty({accumulators * accumulator_size(r.dtype)}, self.options().dtype(at::kByte));
    call.workspace = workspace.mutable_data_ptr();
  }
  if (r.row->needs_counter && plan.grid() > 1) {
    check_cuda(counter_for(self.get_device(), call.stream, &call.counter), "a counter for " + r.row->name);
  }
  const auto error = static_cast<cudaError_t>(r.row->launcher(call));
  if (error != cudaSuccess) check_cuda(error, "the launch of variant " + r.row->name);
  return output;
}

}  // namespace

TORCH_LIBRARY_IMPL(treduce, CUDA, m) {
  m.impl("sum", reduce_cuda<Op::sum>);
  m.impl("mean", reduce_cuda<Op::mean>);
  m.impl("amax", reduce_cuda<Op::amax>);
  m.impl("amin", reduce_cuda<Op::amin>);
}

}  // namespace treduce::reduce
