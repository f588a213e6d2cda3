// The kernel of online.cu, which says what it does. Compiled once an op, in ../ops.
#pragma once

#include "../online.h"
#include "../rows.cuh"

namespace treduce::rows::online {

// Element e of what lies at `from`.
template <class Source>
TREDUCE_DEVICE typename Source::Acc read(const Source& source, const void* from, int64_t e) {
  typename Source::Acc wide[1];
  source.widen(Vector<typename Source::Raw, 1>::load(static_cast<const typename Source::Raw*>(from) + e), wide);
  return wide[0];
}

template <template <class> class RowOp, class Source>
__global__ void __launch_bounds__(kPartThreads, 2) kernel(TREDUCE_GRID_CONSTANT Parameters<Source> p) {
  using A = typename Source::Acc;
  using Op = RowOp<A>;
  using Pass = Online<Op>;
  using State = typename Pass::State;
  SHARED_ARRAY(State, part, kPartThreads);
  const Problem& problem = p.problem;
  const Constants<A> constants = constants_of<A>(p);
  const int thread = threadIdx.x;
  ptx::wait_for_launch_before();
  for (int64_t row = blockIdx.x; row < problem.rows; row += gridDim.x) {
    typename Op::Values values = begin_row<Op>(p, row);
    int64_t begin[Op::kInputs];  // of the row, in each input
#pragma unroll
    for (int i = 0; i < Op::kInputs; ++i) begin[i] = problem.in[i].row(row, problem.inner);
    const auto load = [&](int64_t e, A* x) {
#pragma unroll
      for (int i = 0; i < Op::kInputs; ++i) {
        x[i] = read(p.source, p.pointers.in[i], begin[i] + e * problem.in[i].element_stride);
      }
    };
    const auto weight_of = [&](int64_t e) {
      return Op::kWeight && problem.has_weight ? read(p.source, p.pointers.weight, e) : A(1);
    };

    // one pass: what this thread's parts give
    State mine[kPartsOfThread];
#pragma unroll
    for (State& state : mine) state = Pass::none();
    for (int64_t first = thread; first < problem.length; first += kParts) {
      A x[kPartsOfThread][Op::kInputs];
#pragma unroll
      for (int i = 0; i < kPartsOfThread; ++i) {
        if (first + i * kPartThreads < problem.length) load(first + i * kPartThreads, x[i]);
      }
#pragma unroll
      for (int i = 0; i < kPartsOfThread; ++i) {
        const int64_t e = first + i * kPartThreads;
        if (e >= problem.length) break;
        mine[i] = Pass::meet(mine[i], Pass::of(x[i], Op::kWeightFirst ? weight_of(e) : A(1), values));
      }
    }

    // parts meet: in a thread, then in a block
#pragma unroll
    for (int s = kPartsOfThread / 2; s > 0; s /= 2) {
#pragma unroll
      for (int i = 0; i < s; ++i) mine[i] = Pass::meet(mine[i], mine[i + s]);
    }
    part[thread] = mine[0];
    for (int s = kPartThreads / 2; s > 0; s /= 2) {
      __syncthreads();
      if (thread < s) part[thread] = Pass::meet(part[thread], part[thread + s]);
    }
    __syncthreads();
    Pass::finish(values, part[0], constants);

    // a second pass writes the outputs
    if constexpr (Op::kHasElements) {
      const int64_t begin_out = problem.out.row(row, problem.inner);
#pragma unroll 4
      for (int64_t e = thread; e < problem.length && wants_elements<Op>(problem); e += kPartThreads) {
        A x[Op::kInputs];
        load(e, x);
        const A weight = weight_of(e);
        Op::template map<0>(x, weight, values);
        if constexpr (Op::kStages > 1) Op::template map<1>(x, weight, values);
        const bool has_bias = Op::kBias && problem.has_bias;
        const A bias = has_bias ? read(p.source, p.pointers.bias, e) : A(0);
        const A out[1] = {Op::output(x, Op::kWeight && problem.has_weight, weight, has_bias, bias, values)};
        p.source.rounded(out).store(static_cast<typename Source::Raw*>(p.pointers.out) + begin_out +
                                    e * problem.out.element_stride);
      }
    }
    if (thread == 0) store_row<Op>(p, values, row);
    __syncthreads();  // part[0] is read until here
  }
}

template <template <class> class RowOp>
cudaError_t launch_op(Tag<RowOp>, const Call& call) {
  return dispatch_source<>(call, [&](auto type, auto size) -> cudaError_t {
    using Source = typename decltype(type)::type;
    if constexpr (decltype(size)::value == 1) {
      return launch(&kernel<RowOp, Source>, call.shape(), parameters<Source>(call));
    } else {
      return cudaErrorInvalidValue;  // prepare asks for no vectors
    }
  });
}

}  // namespace treduce::rows::online
