// The reductions on the CPU: checks, then the plan of a classic rung (plan_cpu.h), or the order of the others
// (pairwise_cpu.h, exact_cpu.h).
#include <precompiled.h>

#include <ATen/ops/cat.h>
#include <torch/library.h>

#include "../reduce/exact_cpu.h"
#include "../reduce/pairwise_cpu.h"
#include "../reduce/plan_cpu.h"
#include "reduce_ops.h"

namespace treduce::reduce {
namespace {

at::Tensor reduce_cpu(Op op, const at::Tensor& self, const Arguments& arguments) {
  Reduction reduction(op, self, arguments);
  if (reduction.finished) return reduction.output;
  const Request& r = reduction.request();
  // A rung refuses here what it refuses on a GPU; `auto` takes everything.
  if (r.row->schedule != nullptr) check_sentence(prepare(r, Chip()).refusal);
  const void* const input = reduction.input->const_data_ptr();
  const Result result{reduction.output.mutable_data_ptr(), r.target, op == Op::mean, r.geometry.length};
  if (!r.row->along_dims) {
    const Plan plan = make_plan(r.row->plan_order, r.dtype, r.geometry.length, r.block, r.num_blocks);
    run_plan_on_cpu(op, r.dtype, input, plan, result);
  } else if (r.arithmetic == Arithmetic::exact) {
    reduce_exactly_on_cpu(op, r.dtype, r.target, r.converting, input, r.geometry, result);
  } else {
    reduce_on_cpu(op, r.arithmetic, r.dtype, r.target, r.converting, input, r.geometry, result);
  }
  return std::move(reduction.output);
}

void sum_to_cpu(const at::Tensor& out, const at::Tensor& first, const std::optional<at::Tensor>& second, int64_t dim) {
  const SumTo call(out, dim);
  if (second.has_value()) check_joined(first, *second, dim);
  Ops<&reduce_cpu>::reduce(Op::sum, second.has_value() ? at::cat({first, *second}) : first, call.arguments);
}

void pack_parts_cpu(const at::Tensor& message, const at::Tensor& entries, at::IntArrayRef groups) {
  check_message(message, entries, groups);
  const at::Tensor read = readable_entries(entries, message);
  const auto pack = [](const auto& m) { pack_on_cpu(m); };
  if (message.scalar_type() == at::kFloat) {
    with_elements(message_of<float>(message, read, groups), pack);
  } else {
    with_elements(message_of<double>(message, read, groups), pack);
  }
}

void fold_parts_cpu(const at::Tensor& out, const at::Tensor& values, const at::Tensor& parts,
                    std::optional<int64_t> count) {
  check_parts(out, values, parts);
  const Result result = result_of_parts(out, count);
  if (values.scalar_type() == at::kFloat) {
    fold_parts_on_cpu(parts_of<float>(values, parts), result);
  } else {
    fold_parts_on_cpu(parts_of<double>(values, parts), result);
  }
}

}  // namespace

TORCH_LIBRARY_IMPL(treduce, CPU, m) {
  Ops<&reduce_cpu>::implement(m);
  m.impl("sum_to_", sum_to_cpu);
  m.impl("pack_parts_", pack_parts_cpu);
  m.impl("fold_parts_", fold_parts_cpu);
}

}  // namespace treduce::reduce
