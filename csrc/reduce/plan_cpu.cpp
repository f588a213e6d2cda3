// Executes a plan, pass by pass.
#include "plan_cpu.h"

#include <algorithm>
#include <vector>

#include "../common/parallel.h"

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

template <class O, class In>
void run_pass(const In* x, const Pass& pass, typename O::Acc* values) {
  const int64_t grain = std::max<int64_t>(kElementsATask / std::max<int64_t>(pass.lanes * pass.rows, 1), 1);
  parallel_for(0, pass.blocks, grain, [&](int64_t begin, int64_t end) {
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

}  // namespace

void run_plan_on_cpu(Op op, DType dtype, const void* input, const Plan& plan, const Result& result) {
  dispatch(dtype, [&](auto type) {
    using In = typename decltype(type)::type;
    using Acc = Accumulator<In>;
    const In* x = static_cast<const In*>(input);
    switch (op) {
      case Op::amax: return run<Max<Acc>>(x, plan, result);
      case Op::amin: return run<Min<Acc>>(x, plan, result);
      default: return run<Sum<Acc>>(x, plan, result);
    }
  });
}

}  // namespace treduce::reduce
