// The reductions as ops, for a backend that computes them: the CPU, CUDA, or, for shapes alone, none.
#pragma once

#include <torch/library.h>

#include "reduce.h"
#include "reduce_stand_in.h"

namespace treduce::reduce {

template <Reduce* kReduce>
struct Ops {
  static at::Tensor reduce(Op op, const at::Tensor& self, const Arguments& arguments) {
    if (dtype_of(self.scalar_type()) == std::nullopt) {
      const StandIn stand_in(op, self, arguments);
      if (stand_in.is_other()) return stand_in.finished(kReduce(op, stand_in.self(), stand_in.arguments()));
    }
    return kReduce(op, self, arguments);
  }

  template <Op kOp>
  static at::Tensor sum(const at::Tensor& self, std::string_view variant, at::OptionalIntArrayRef dim, bool keepdim,
                        std::optional<at::ScalarType> dtype, std::optional<int64_t> block_size,
                        std::optional<int64_t> num_blocks) {
    return reduce(kOp, self, {variant, dim, keepdim, dtype, block_size, num_blocks});
  }

  template <Op kOp>
  static at::Tensor extremum(const at::Tensor& self, std::string_view variant, at::OptionalIntArrayRef dim,
                             bool keepdim, std::optional<int64_t> block_size, std::optional<int64_t> num_blocks) {
    return reduce(kOp, self, {variant, dim, keepdim, std::nullopt, block_size, num_blocks});
  }

  static void reduce_to(const at::Tensor& out, const at::Tensor& self, std::string_view name, std::string_view variant,
                        at::OptionalIntArrayRef dim, bool keepdim, std::optional<int64_t> block_size,
                        std::optional<int64_t> num_blocks) {
    const Op op = op_named(name, "reduce_to_");
    reduce::reduce_to(out, self, op, arguments_to(out, op, variant, dim, keepdim, block_size, num_blocks), &reduce);
  }

  static void reduce_ranks(const at::Tensor& out, const at::Tensor& values, std::string_view op) {
    const RanksToOne call(out, op);
    reduce(call.op, values, call.arguments);
  }

  static void implement(torch::Library& m) {
    m.impl("sum", sum<Op::sum>);
    m.impl("mean", sum<Op::mean>);
    m.impl("amax", extremum<Op::amax>);
    m.impl("amin", extremum<Op::amin>);
    m.impl("reduce_to_", reduce_to);
    m.impl("reduce_ranks_", reduce_ranks);
  }
};

}  // namespace treduce::reduce
