// The reductions on CUDA: device guard, stream, workspace, counters.
#include <precompiled.h>

#include <ATen/Context.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "../reduce/launch.h"
#include "cuda_device.h"
#include "reduce_ops.h"

namespace treduce::reduce {
namespace {

// Gives a prepared call its memory, and launches it.
void take_memory_and_launch(const Reduction& reduction, const Prepared& prepared, const at::Tensor& self,
                            cudaStream_t stream) {
  const Row& row = *prepared.kernel;
  TORCH_CHECK_NOT_IMPLEMENTED(row.launcher != nullptr, "variant '", row.name, "' has no CUDA kernel");
  at::Tensor workspace;  // freed when it goes out of scope: in the stream's order
  if (prepared.workspace.bytes() > 0) {
    workspace = at::empty({prepared.workspace.bytes()}, self.options().dtype(at::kByte).memory_format(std::nullopt));
  }
  const Pointers pointers{reduction.input->const_data_ptr(), reduction.output.mutable_data_ptr(),
                          workspace.defined() ? workspace.mutable_data_ptr() : nullptr,
                          counters_of(row, prepared.counters, self.get_device(), stream)};
  const cudaError_t error = launch(prepared, pointers, stream);
  if (error != cudaSuccess) check_cuda(error, "the launch of variant " + row.name);
}

void run(Op op, const Reduction& reduction, const at::Tensor& self, cudaStream_t stream) {
  const Prepared prepared = prepare(reduction.request(), chip_of(self.get_device()));
  check(prepared.refusal);
  if (!prepared.deterministic && at::globalContext().deterministicAlgorithms()) {
    at::globalContext().alertNotDeterministic(
        c10::str("treduce::", name_of(op), " with variant '", prepared.rung->name, "'"));
  }
  take_memory_and_launch(reduction, prepared, self, stream);
}

at::Tensor reduce_cuda(Op op, const at::Tensor& self, const Arguments& arguments) {
  const CudaScope scope(self.device());
  Reduction reduction(op, self, arguments);
  if (!reduction.finished) run(op, reduction, self, scope.stream());
  return std::move(reduction.output);
}

void sum_to_cuda(const at::Tensor& out, const at::Tensor& first, const std::optional<at::Tensor>& second, int64_t dim) {
  const SumTo call(out, dim);
  if (!second.has_value()) {
    Ops<&reduce_cuda>::reduce(Op::sum, first, call.arguments);
    return;
  }
  check_joined(first, *second, dim);
  if (const int64_t longer = second->size(0) - first.size(0); longer > 0 && first.size(0) > 0) {
    // The first must not be the shorter one: half of the difference is copied behind it, the rest is read where it lies.
    const int64_t copied = (longer + 1) / 2;
    const at::Tensor begin = at::cat({first, second->narrow(0, 0, copied)});
    return sum_to_cuda(out, begin, second->narrow(0, copied, second->size(0) - copied), dim);
  }
  const CudaScope scope(first.device());
  Reduction reduction(Op::sum, first, call.arguments);
  if (reduction.join(*second)) {
    run(Op::sum, reduction, first, scope.stream());
  } else {
    Ops<&reduce_cuda>::reduce(Op::sum, at::cat({first, *second}), call.arguments);
  }
}

void pack_parts_cuda(const at::Tensor& message, const at::Tensor& entries, at::IntArrayRef groups) {
  check_message(message, entries, groups);
  const CudaScope scope(entries.device());
  const at::Tensor read = readable_entries(entries, message);
  const int error = message.scalar_type() == at::kFloat
                        ? launch_pack(message_of<float>(message, read, groups), scope.stream())
                        : launch_pack(message_of<double>(message, read, groups), scope.stream());
  check_cuda(static_cast<cudaError_t>(error), "the launch of pack_parts_");
}

void fold_parts_cuda(const at::Tensor& out, const at::Tensor& values, const at::Tensor& parts,
                     std::optional<int64_t> count) {
  check_parts(out, values, parts);
  const CudaScope scope(values.device());
  const Result result = result_of_parts(out, count);
  const int error = values.scalar_type() == at::kFloat
                        ? launch_parts(parts_of<float>(values, parts), result, scope.stream())
                        : launch_parts(parts_of<double>(values, parts), result, scope.stream());
  check_cuda(static_cast<cudaError_t>(error), "the launch of fold_parts_");
}

}  // namespace

TORCH_LIBRARY_IMPL(treduce, CUDA, m) {
  Ops<&reduce_cuda>::implement(m);
  m.impl("sum_to_", sum_to_cuda);
  m.impl("pack_parts_", pack_parts_cuda);
  m.impl("fold_parts_", fold_parts_cuda);
}

}  // namespace treduce::reduce
