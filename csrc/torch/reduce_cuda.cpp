// The reductions on CUDA: checks, device guard, stream, workspace, launch.
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "../reduce/rung.h"
#include "cuda_device.h"
#include "reduce.h"

namespace treduce::reduce {
namespace {

Launcher<Call> checked_launcher(const Row& row) {
  TORCH_CHECK_NOT_IMPLEMENTED(row.launcher != nullptr, "variant '", row.name, "' has no CUDA kernel");
  return row.launcher;
}

void run(Launcher<Call> launcher, const Call& call, const Row& row) {
  const auto error = static_cast<cudaError_t>(launcher(call));
  if (error != cudaSuccess) check_cuda(error, "the launch of variant " + row.name);
}

// Memory for the values between passes or blocks, if there are any. Freed when it goes out of scope: in the stream's order.
class Workspace {
 public:
  Workspace(const at::Tensor& self, int64_t bytes) {
    if (bytes > 0) tensor_ = at::empty({bytes}, self.options().dtype(at::kByte).memory_format(std::nullopt));
  }
  void* data() const { return tensor_.defined() ? tensor_.mutable_data_ptr() : nullptr; }

 private:
  at::Tensor tensor_;
};

unsigned* counters(const at::Tensor& self, const Call& call, int64_t count, const Row& row) {
  unsigned* first = nullptr;
  const cudaError_t error = counters_for(self.get_device(), call.stream, count, &first);
  if (error != cudaSuccess) check_cuda(error, "counters for " + row.name);
  return first;
}

// A classic rung: its plan over the whole tensor.
void launch_by_plan(const Request& r, const at::Tensor& self, Call& call) {
  const Row& row = *r.row;
  const Launcher<Call> launcher = checked_launcher(row);
  check_capability(row, self.get_device());
  const at::Tensor input = flat_input(r.op, self);
  const Plan plan = make_plan(row.plan_order, r.dtype, self.numel(), r.block, r.num_blocks);
  call.input = input.const_data_ptr();
  call.n = call.result.count = self.numel();
  call.plan = &plan;
  const Workspace workspace(self, workspace_accumulators(row, plan) * accumulator_size(r.dtype));
  call.workspace = workspace.data();
  if (row.needs_counter && plan.grid() > 1) call.counter = counters(self, call, 1, row);
  run(launcher, call, row);
}

// Bytes of one value between blocks.
int64_t partial_size(const Request& r) {
  const int64_t plain = accumulator_size(r.target);
  return r.arithmetic == Arithmetic::compensated ? 2 * plain : plain;  // the sum and its error
}

// A rung along dims: its own schedule, or that of the rung which it borrows.
void launch_by_schedule(const Request& r, const at::Tensor& self, Call& call) {
  const Source source(self, r);
  const Geometry& geometry = source.geometry;
  const ChipFacts& facts = chip_facts(self.get_device());
  const Chip chip{facts.multiprocessors, facts.capability, facts.threads};
  const bool extremum = call.op == Op::amax || call.op == Op::amin;
  const Memory memory =
      make_memory(reinterpret_cast<uint64_t>(source.data()), r.dtype, partial_size(r), extremum, r.converting);
  const Work work{geometry, memory, chip, r.block, r.num_blocks};
  const Row& borrowed = executor(*r.row, work);
  const Row& row = r.arithmetic == Arithmetic::plain ? borrowed : *r.row;
  const Launcher<Call> launcher = checked_launcher(row);
  check_capability(borrowed, self.get_device());
  const Scheduled scheduled = borrowed.schedule(work);
  if (!scheduled.refusal.empty()) C10_THROW_ERROR(ValueError, scheduled.refusal);
  const Schedule& schedule = scheduled.schedule;

  call.input = source.data();
  call.n = self.numel();
  call.target = r.target;
  call.converting = r.converting;
  call.geometry = &geometry;
  call.schedule = &schedule;
  call.result.count = geometry.length;
  const Workspace workspace(
      self, schedule.workspace_bytes > 0 ? schedule.workspace_bytes : schedule.partials * partial_size(r));
  call.workspace = workspace.data();
  if (schedule.counters > 0) call.counter = counters(self, call, schedule.counters, row);
  run(launcher, call, row);
}

template <Op kOp>
at::Tensor reduce_cuda(const at::Tensor& self, const Arguments& arguments) {
  const Request r = request(kOp, self, arguments);
  const CudaScope scope(self.device());
  at::Tensor output = empty_output(self, r);
  Call call;
  call.op = kOp;
  call.dtype = r.dtype;
  call.result = {output.mutable_data_ptr(), r.target, kOp == Op::mean, 0};
  call.stream = scope.stream();
  if (!r.row->along_dims) {
    launch_by_plan(r, self, call);
  } else if (!finish_empty(self, r, output)) {
    launch_by_schedule(r, self, call);
  }
  return output;
}

template <Op kOp>
at::Tensor sum_cuda(const at::Tensor& self, std::string_view variant, at::OptionalIntArrayRef dim, bool keepdim,
                    std::optional<at::ScalarType> dtype, std::optional<int64_t> block_size,
                    std::optional<int64_t> num_blocks) {
  return reduce_cuda<kOp>(self, {variant, dim, keepdim, dtype, block_size, num_blocks});
}

template <Op kOp>
at::Tensor extremum_cuda(const at::Tensor& self, std::string_view variant, at::OptionalIntArrayRef dim, bool keepdim,
                         std::optional<int64_t> block_size, std::optional<int64_t> num_blocks) {
  return reduce_cuda<kOp>(self, {variant, dim, keepdim, std::nullopt, block_size, num_blocks});
}

}  // namespace

TORCH_LIBRARY_IMPL(treduce, CUDA, m) {
  m.impl("sum", sum_cuda<Op::sum>);
  m.impl("mean", sum_cuda<Op::mean>);
  m.impl("amax", extremum_cuda<Op::amax>);
  m.impl("amin", extremum_cuda<Op::amin>);
}

}  // namespace treduce::reduce
