// The reductions on the CPU: checks, then the plan of a classic rung (plan_cpu.h), or the order of the others
// (pairwise_cpu.h, exact_cpu.h).
#include <torch/library.h>

#include "../reduce/exact_cpu.h"
#include "../reduce/pairwise_cpu.h"
#include "../reduce/plan_cpu.h"
#include "reduce.h"

namespace treduce::reduce {
namespace {

// A classic rung: its plan over the whole tensor.
void reduce_by_plan(const Request& r, const at::Tensor& self, at::Tensor& output) {
  const at::Tensor input = flat_input(r.op, self);
  const int64_t n = self.numel();
  const Plan plan = make_plan(r.row->plan_order, r.dtype, n, r.block, r.num_blocks);
  run_plan_on_cpu(r.op, r.dtype, input.const_data_ptr(), plan,
                  {output.mutable_data_ptr(), r.target, r.op == Op::mean, n});
}

template <Op kOp>
at::Tensor reduce_cpu(const at::Tensor& self, const Arguments& arguments) {
  const Request r = request(kOp, self, arguments);
  at::Tensor output = empty_output(self, r);
  if (!r.row->along_dims) {
    reduce_by_plan(r, self, output);
  } else if (!finish_empty(self, r, output)) {
    const Source source(self, r);
    const Result result{output.mutable_data_ptr(), r.target, kOp == Op::mean, source.geometry.length};
    if (r.arithmetic == Arithmetic::exact) {
      reduce_exactly_on_cpu(kOp, r.dtype, r.target, r.converting, source.data(), source.geometry, result);
    } else {
      reduce_on_cpu(kOp, r.arithmetic, r.dtype, r.target, r.converting, source.data(), source.geometry, result);
    }
  }
  return output;
}

template <Op kOp>
at::Tensor sum_cpu(const at::Tensor& self, std::string_view variant, at::OptionalIntArrayRef dim, bool keepdim,
                   std::optional<at::ScalarType> dtype, std::optional<int64_t> block_size,
                   std::optional<int64_t> num_blocks) {
  return reduce_cpu<kOp>(self, {variant, dim, keepdim, dtype, block_size, num_blocks});
}

template <Op kOp>
at::Tensor extremum_cpu(const at::Tensor& self, std::string_view variant, at::OptionalIntArrayRef dim, bool keepdim,
                        std::optional<int64_t> block_size, std::optional<int64_t> num_blocks) {
  return reduce_cpu<kOp>(self, {variant, dim, keepdim, std::nullopt, block_size, num_blocks});
}

}  // namespace

TORCH_LIBRARY_IMPL(treduce, CPU, m) {
  m.impl("sum", sum_cpu<Op::sum>);
  m.impl("mean", sum_cpu<Op::mean>);
  m.impl("amax", extremum_cpu<Op::amax>);
  m.impl("amin", extremum_cpu<Op::amin>);
}

}  // namespace treduce::reduce
