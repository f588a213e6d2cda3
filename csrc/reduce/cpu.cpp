// The reductions on the CPU: the plan of a classic rung, executed here, or the order of the others (pairwise_cpu.h). The same
// additions in the same order as the kernels, hence the same bits.
#include <ATen/Parallel.h>
#include <torch/library.h>

#include <algorithm>
#include <vector>

#include "binding.h"
#include "exact_cpu.h"
#include "pairwise_cpu.h"

namespace treduce::reduce {
namespace {

constexpr int kWarp = 32;

// Folds lanes[0 .. count) by halves. count is a power of two.
template <class O>
void fold_halves(typename O::Acc* lanes, int64_t count) {
  for (int64_t s = count / 2; s > 0; s /= 2) {
    for (int64_t t = 0; t < s; ++t) lanes[t] = O::combine(lanes[t], lanes[t + s]);
  }
}

template <class O>
void fold_neighbours(typename O::Acc* lanes, int64_t count) {
  for (int64_t s = 1; s < count; s *= 2) {
    for (int64_t t = 0; t < count; t += 2 * s) lanes[t] = O::combine(lanes[t], lanes[t + s]);
  }
}

// Components of a thread, then lanes of a warp, then warps, each by halves. Every step leaves its values side by side for the
// next, so that the compiler can use vectors.
template <class O>
void fold_warps(typename O::Acc* lanes, int64_t threads, int64_t vector) {
  for (int64_t t = 0; t < threads; ++t) {
    fold_halves<O>(lanes + t * vector, vector);
    lanes[t] = lanes[t * vector];
  }
  for (int64_t w = 0; w < threads / kWarp; ++w) {
    fold_halves<O>(lanes + w * kWarp, kWarp);
    lanes[w] = lanes[w * kWarp];
  }
  fold_halves<O>(lanes, threads / kWarp);
}

// Block `b` of a pass: its rows into the lanes, then its tree.
template <class O, class In>
typename O::Acc reduce_block(const In* x, const Pass& pass, int64_t b, typename O::Acc* lanes) {
  using Acc = typename O::Acc;
  std::fill_n(lanes, pass.lanes, O::identity());
  int64_t begin = b * pass.block_step;
  if (pass.lanes == 1) {
    Acc value = lanes[0];  // one walker: keep it in a register
    for (int64_t j = 0; j < pass.rows && begin < pass.n; ++j, begin += pass.row_step) {
      value = O::combine(value, widen<Acc>(x[begin]));
    }
    return value;
  }
  for (int64_t j = 0; j < pass.rows && begin < pass.n; ++j, begin += pass.row_step) {
    const int64_t width = std::min(pass.lanes, pass.n - begin);
    const In* row = x + begin;
    for (int64_t l = 0; l < width; ++l) lanes[l] = O::combine(lanes[l], widen<Acc>(row[l]));
  }
  switch (pass.tree) {
    case Tree::none: break;
    case Tree::interleaved: fold_neighbours<O>(lanes, pass.lanes); break;
    case Tree::sequential: fold_halves<O>(lanes, pass.lanes); break;
    case Tree::warp: fold_warps<O>(lanes, pass.lanes / pass.vector, pass.vector); break;
  }
  return lanes[0];
}

constexpr int64_t kElementsATask = 32768;  // what a core should get at least, as at::internal::GRAIN_SIZE

template <class O, class In>
void run_pass(const In* x, const Pass& pass, typename O::Acc* values) {
  const int64_t grain = std::max<int64_t>(kElementsATask / std::max<int64_t>(pass.lanes * pass.rows, 1), 1);
  at::parallel_for(0, pass.blocks, grain, [&](int64_t begin, int64_t end) {
    std::vector<typename O::Acc> lanes(pass.lanes);
    for (int64_t b = begin; b < end; ++b) values[b] = reduce_block<O>(x, pass, b, lanes.data());
  });
}

template <class O, class In>
void run(const In* x, const Plan& plan, const Result& result) {
  using Acc = typename O::Acc;
  std::vector<Acc> values(plan.passes[0].blocks);
  run_pass<O>(x, plan.passes[0], values.data());
  for (int p = 1; p < plan.pass_count; ++p) {
    std::vector<Acc> fewer(plan.passes[p].blocks);
    run_pass<O>(values.data(), plan.passes[p], fewer.data());
    values = std::move(fewer);
  }
  result.store<O>(values[0]);
}

// A classic rung: its plan over the whole tensor.
template <Op kOp>
void reduce_by_plan(const Request& r, const at::Tensor& self, at::Tensor& output) {
  const at::Tensor input = flat_input(kOp, self);
  const int64_t n = self.numel();
  const Plan plan = make_plan(r.row->plan_order, r.dtype, n, r.block, r.num_blocks);
  const Result result{output.mutable_data_ptr(), r.target, kOp == Op::mean, n};
  dispatch(r.dtype, [&](auto type) {
    using In = typename decltype(type)::type;
    using O = std::conditional_t<kOp == Op::amax, Max<Accumulator<In>>,
                                 std::conditional_t<kOp == Op::amin, Min<Accumulator<In>>, Sum<Accumulator<In>>>>;
    run<O>(static_cast<const In*>(input.const_data_ptr()), plan, result);
  });
}

template <Op kOp>
at::Tensor reduce_cpu(const at::Tensor& self, const Arguments& arguments) {
  const Request r = request(kOp, self, arguments);
  at::Tensor output = empty_output(self, r);
  if (!r.row->along_dims) {
    reduce_by_plan<kOp>(r, self, output);
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
