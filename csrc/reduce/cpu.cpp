// The reductions on the CPU: the plan, executed. The same additions in the same order as the kernels, hence the same bits.
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <algorithm>
#include <vector>

#include "binding.h"

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

template <Op kOp>
at::Tensor reduce_cpu(const at::Tensor& self, std::string_view variant, std::optional<int64_t> block_size,
                      std::optional<int64_t> num_blocks) {
  const Request r = request(kOp, self, self.numel(), variant, block_size, num_blocks);
  const at::Tensor input = flat_input(kOp, self);
  at::Tensor output = at::empty({}, self.options().dtype(r.result_type).memory_format(std::nullopt));
  const Plan plan = make_plan(r.row->plan_order, r.dtype, r.n, r.block, r.num_blocks);
  const Result result{output.mutable_data_ptr(), *dtype_of(r.result_type), kOp == Op::mean, r.n};
  dispatch(r.dtype, [&](auto type) {
    using In = typename decltype(type)::type;
    using O = std::conditional_t<kOp == Op::amax, Max<Accumulator<In>>,
                                 std::conditional_t<kOp == Op::amin, Min<Accumulator<In>>, Sum<Accumulator<In>>>>;
    run<O>(static_cast<const In*>(input.const_data_ptr()), plan, result);
  });
  return output;
}

}  // namespace

TORCH_LIBRARY_IMPL(treduce, CPU, m) {
  m.impl("sum", reduce_cpu<Op::sum>);
  m.impl("mean", reduce_cpu<Op::mean>);
  m.impl("amax", reduce_cpu<Op::amax>);
  m.impl("amin", reduce_cpu<Op::amin>);
}

}  // namespace treduce::reduce
