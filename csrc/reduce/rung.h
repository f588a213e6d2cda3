// What every rung of the reduction ladder shares: the call it receives, where its blocks put their values, how a chain of
// passes is launched, and how a kernel file makes itself known. Free of torch.
#pragma once

#include "../common/launch.h"
#include "../common/launchers.h"
#include "../primitives/integers.cuh"
#include "elements.h"
#include "prepare.h"

namespace treduce::reduce {

// The memory of a prepared call.
struct Pointers {
  const void* input;  // where the request said
  void* output;
  void* workspace;    // as prepared
  unsigned* counter;  // the first of as many as prepared: zero, and left zero
};

// What a launcher gets, from launch() in launch.h: what was prepared, and memory. It decides nothing.
struct Call : Pointers {
  const Prepared& prepared;
  const Request& request;
  Result result;
  cudaStream_t stream;

  Call(const Prepared& p, const Pointers& pointers, cudaStream_t on)
      : Pointers(pointers),
        prepared(p),
        request(p.request),
        result{output, request.target, request.op == Op::mean, request.geometry.length},
        stream(on) {}

  Launch shape(int i = 0) const { return {prepared.launches[i], stream}; }
  template <class T>
  T* region(const char* name) const {
    return prepared.workspace.find<T>(name, workspace);
  }
};

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

// Calls body(functor, x) for the call's op and its elements x: a pointer to floats, or Integers, whose dtype is looked up.
template <class Body>
cudaError_t dispatch_op(const Call& call, Body body) {
  const auto with_elements = [&](auto x) -> cudaError_t {
    using Acc = Accumulator<std::decay_t<decltype(x[0])>>;
    switch (call.request.op) {
      case Op::amax: return body(Max<Acc>{}, x);
      case Op::amin: return body(Min<Acc>{}, x);
      default: return body(Sum<Acc>{}, x);
    }
  };
  switch (call.request.dtype) {
    case DType::float32: return with_elements(static_cast<const float*>(call.input));
    case DType::float64: return with_elements(static_cast<const double*>(call.input));
    case DType::float16: return with_elements(static_cast<const float16*>(call.input));
    case DType::bfloat16: return with_elements(static_cast<const bfloat16*>(call.input));
    default: return with_elements(Integers{call.input, call.request.dtype});
  }
}

// Partials are read by the kernels that read elements.
template <class Acc>
auto as_elements(const Acc* partials) {
  if constexpr (std::is_integral_v<Acc>) {
    return Integers{partials, DType::int64};
  } else {
    return partials;
  }
}

// Launches every pass of the plan from the one at `pass`: Kernels::pick<O, In>(block) is its kernel for elements x of type In.
template <class Kernels, class O, class In>
cudaError_t launch_passes(const Call& call, In x, int pass = 0) {
  using Acc = typename O::Acc;
  const Plan& plan = call.prepared.plan;
  Acc* const partials = call.region<Acc>("partials") + plan.partials_before(pass);
  const bool last = pass + 1 == plan.pass_count;
  const Output<O> output{last ? nullptr : partials, call.result};
  const cudaError_t error =
      launch(Kernels::template pick<O, In>(plan.block), call.shape(pass), x, plan.passes[pass].n, output);
  if (error != cudaSuccess || last) return error;
  return launch_passes<Kernels, O>(call, as_elements<Acc>(partials), pass + 1);
}

// A launcher for the rungs whose every pass is one kernel over the values that are left.
template <class Kernels>
cudaError_t launch_ladder_passes(const Call& call) {
  return dispatch_op(call, [&](auto op, auto x) { return launch_passes<Kernels, decltype(op)>(call, x); });
}

}  // namespace treduce::reduce
