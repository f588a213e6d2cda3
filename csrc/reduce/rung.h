// What every rung of the reduction ladder shares: the call it receives, where its blocks put their values, how a chain of
// passes is launched, and how a kernel file makes itself known. Free of torch.
#pragma once

#include "../common/launch.h"
#include "../common/launchers.h"
#include "elements.h"
#include "prepare.h"

namespace treduce::reduce {

// What a launcher gets: the call, what prepare made of it, and memory. It decides nothing.
struct Call {
  const Request& request;
  const Prepared& prepared;
  const void* input;
  Result result;
  void* workspace;    // as prepared
  unsigned* counter;  // the first of as many as prepared: zero, and left zero
  cudaStream_t stream;

  Launch shape(int i = 0) const { return {prepared.launches[i], stream}; }
  template <class T>
  T* region(const char* name) const {
    return prepared.workspace.find<T>(name, workspace);
  }
};

inline Call make_call(const Request& r, const Prepared& prepared, const void* input, void* output, void* workspace,
                      unsigned* counter, cudaStream_t stream) {
  return {r, prepared, input, {output, r.target, r.op == Op::mean, r.geometry.length}, workspace, counter, stream};
}

// Tells the ladder which launcher belongs to the row of that name: a static object at the end of each kernel file.
template <cudaError_t (*kLauncher)(const Call&)>
using Rung = RegisterRung<Call, kLauncher>;

// Where a block's value goes: to the partials, or, in the last pass, finished and rounded to the result.
template <class O>
struct Output {
  typename O::Acc* partials;  // null in the last pass
  Result result;

  TREDUCE_HOST_DEVICE void store(int64_t block, typename O::Acc value) const {
    if (partials != nullptr) {
      partials[block] = value;
    } else {
      result.store<O>(value);
    }
  }
};

// Calls body(functor, Type<In>{}) for the call's op and dtype.
template <class Body>
cudaError_t dispatch_op(const Call& call, Body body) {
  return dispatch(call.request.dtype, [&](auto type) -> cudaError_t {
    using Acc = Accumulator<typename decltype(type)::type>;
    switch (call.request.op) {
      case Op::amax: return body(Max<Acc>{}, type);
      case Op::amin: return body(Min<Acc>{}, type);
      default: return body(Sum<Acc>{}, type);
    }
  });
}

// How the elements of an output are walked: one stride apart; through two dims, by steps and without divisions; or with a division
// for each dim at each element.
enum class Walk { even, two, any };
template <Walk kWalk>
using WalkConstant = std::integral_constant<Walk, kWalk>;

// Calls body(WalkConstant) for several reduced dims, of which one may be missing.
template <class Body>
cudaError_t dispatch_several(const Call& call, Body body) {
  return call.request.geometry.reduced.count <= 2 ? body(WalkConstant<Walk::two>{}) : body(WalkConstant<Walk::any>{});
}

// What the rungs along dims read: Body is body(functor, source, bool_constant<vectors>, WalkConstant). Vectors of even layouts (one
// reduced dim) have kernels for each dtype; several reduced dims, and element by element, the sums of the four common floats;
// everything else looks its dtype up at each element. Fewer kernels to compile, and none of them slow where it matters.
//
// SumOp is Sum, or a sum of another arithmetic.
template <template <class> class SumOp, class Body>
cudaError_t dispatch_looked_up(const Call& call, Body body) {
  const auto looked_up = [&](auto acc) -> cudaError_t {
    using Acc = typename decltype(acc)::type;
    const Converted<Acc> source{call.input, call.request.dtype, call.request.target};
    return dispatch_several(call, [&](auto walk) -> cudaError_t {
      if constexpr (!is_complex<Acc>) {
        if (call.request.op == Op::amax) return body(Max<Acc>{}, source, std::false_type{}, walk);
        if (call.request.op == Op::amin) return body(Min<Acc>{}, source, std::false_type{}, walk);
      }
      return body(SumOp<Acc>{}, source, std::false_type{}, walk);
    });
  };
  switch (call.request.target) {
    case DType::float64: return looked_up(Type<double>{});
    case DType::complex64: return looked_up(Type<complex64>{});
    case DType::complex128: return looked_up(Type<complex128>{});
    case DType::float32:
    case DType::float16:
    case DType::bfloat16:
    case DType::float8_e4m3fn:
    case DType::float8_e5m2: return looked_up(Type<float>{});
    default: return looked_up(Type<int64_t>{});
  }
}

// Calls body(functor, source) for a sum of a common float.
template <template <class> class SumOp, class Body>
cudaError_t dispatch_common_sum(const Call& call, Body body) {
  switch (call.request.dtype) {
    case DType::float32: return body(SumOp<float>{}, Elements<float>{static_cast<const float*>(call.input)});
    case DType::float64: return body(SumOp<double>{}, Elements<double>{static_cast<const double*>(call.input)});
    case DType::float16: return body(SumOp<float>{}, Elements<float16>{static_cast<const float16*>(call.input)});
    default: return body(SumOp<float>{}, Elements<bfloat16>{static_cast<const bfloat16*>(call.input)});
  }
}

template <template <class> class SumOp, class Body>
cudaError_t dispatch_vectors(const Call& call, Body body) {
  const bool extremum = call.request.op == Op::amax || call.request.op == Op::amin;
  // The extremum of bools is that of their bytes: what is not zero is true.
  const DType dtype = extremum && call.request.dtype == DType::boolean ? DType::uint8 : call.request.dtype;
  return dispatch_all(dtype, [&](auto type) -> cudaError_t {
    using In = typename decltype(type)::type;
    using Acc = Accumulator<In>;
    const Elements<In> source{static_cast<const In*>(call.input)};
    constexpr bool kFloat8 = std::is_same_v<In, float8_e4m3fn> || std::is_same_v<In, float8_e5m2>;
    if constexpr (!is_complex<In> && !kFloat8 && !std::is_same_v<In, boolean>) {
      if (call.request.op == Op::amax) return body(Max<Acc>{}, source);
      if (call.request.op == Op::amin) return body(Min<Acc>{}, source);
    }
    if (!extremum) return body(SumOp<Acc>{}, source);
    return cudaErrorInvalidValue;  // the schedule does not ask for it, see has_vectors
  });
}

template <template <class> class SumOp, class Body>
cudaError_t dispatch_reads(const Call& call, Body body) {
  const bool vectors = call.prepared.schedule.vectors;
  if (vectors && call.request.geometry.reduced.count <= 1) {
    return dispatch_vectors<SumOp>(
        call, [&](auto op, auto source) { return body(op, source, std::true_type{}, WalkConstant<Walk::even>{}); });
  }
  if (call.request.converting || call.request.op == Op::amax || call.request.op == Op::amin ||
      !is_common_float(call.request.dtype)) {
    return dispatch_looked_up<SumOp>(call, body);
  }
  return dispatch_common_sum<SumOp>(call, [&](auto op, auto source) {
    if (call.request.geometry.reduced.count <= 1)
      return body(op, source, std::false_type{}, WalkConstant<Walk::even>{});
    return dispatch_several(call, [&](auto walk) {
      return vectors ? body(op, source, std::true_type{}, walk) : body(op, source, std::false_type{}, walk);
    });
  });
}

// Launches every pass of the plan from the one at `pass`: Kernels::pick<O, In>(block) is its kernel for elements of type In.
// Partials of pass p lie behind those of pass p - 1.
template <class Kernels, class O, class In>
cudaError_t launch_passes(const Call& call, const In* input, int pass = 0, typename O::Acc* partials = nullptr) {
  using Acc = typename O::Acc;
  const Plan& plan = call.prepared.plan;
  if (pass == 0) partials = static_cast<Acc*>(call.workspace);
  const bool last = pass + 1 == plan.pass_count;
  const Output<O> output{last ? nullptr : partials, call.result};
  const cudaError_t error =
      launch(Kernels::template pick<O, In>(plan.block), call.shape(pass), input, plan.passes[pass].n, output);
  if (error != cudaSuccess || last) return error;
  return launch_passes<Kernels, O, Acc>(call, partials, pass + 1, partials + plan.passes[pass].blocks);
}

// A launcher for the rungs whose every pass is one kernel over the values that are left.
template <class Kernels>
cudaError_t launch_ladder_passes(const Call& call) {
  return dispatch_op(call, [&](auto op, auto type) {
    using In = typename decltype(type)::type;
    return launch_passes<Kernels, decltype(op), In>(call, static_cast<const In*>(call.input));
  });
}

}  // namespace treduce::reduce
