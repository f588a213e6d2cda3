// From a call along dims to what a kernel is compiled for: the functor, the source of elements, and how they are walked. Host
// code.
//
// A dtype has kernels for vectors of one reduced dim. The sums of the common floats also have some for several reduced dims, for
// rows that begin anywhere, and for single elements. Everything else looks its dtype up at each element. So there are few kernels
// to compile, and none is slow where it matters. The schedules ask for no other (shapes.h says which there are).
#pragma once

#include "layout.cuh"
#include "rung.h"
#include "shapes.h"
#include "sources.cuh"

namespace treduce::reduce {

template <Walk kWalk>
using WalkConstant = std::integral_constant<Walk, kWalk>;

template <DType kDType>
using DTypeConstant = std::integral_constant<DType, kDType>;

template <class Source>
MappedResult result_of(const Call& call, const Source& source) {
  return {call.result, call.request.op == Op::amin, source.offset(call.result.count)};
}

// Calls body(functor, source): a dtype looked up at each element. SumOp is Sum, or a sum of another arithmetic.
template <template <class> class SumOp = Sum, class Body>
cudaError_t dispatch_looked_up(const Call& call, Body body) {
  const auto looked_up = [&](auto acc) -> cudaError_t {
    using Acc = typename decltype(acc)::type;
    const Converted<Acc> elements{call.input, call.request.dtype, call.request.target};
    if constexpr (!is_complex<Acc>) {
      if (is_extremum(call.request.op))
        return body(Max<Acc>{}, LookedUp<Acc, true>{elements, call.request.op == Op::amin});
    }
    return body(SumOp<Acc>{}, LookedUp<Acc, false>{elements, false});
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

// Calls body(functor, source): a sum of a common float.
template <template <class> class SumOp = Sum, class Body>
cudaError_t dispatch_common_sum(const Call& call, Body body) {
  const auto sum = [&](auto type) {
    using T = typename decltype(type)::type;
    return body(SumOp<Accumulator<T>>{}, Stored<T>{{static_cast<const T*>(call.input)}});
  };
  switch (call.request.dtype) {
    case DType::float32: return sum(Type<float>{});
    case DType::float64: return sum(Type<double>{});
    case DType::float16: return sum(Type<float16>{});
    default: return sum(Type<bfloat16>{});
  }
}

// Calls body(functor, source): vectors of one reduced dim, of a rung with kKernels.
template <Kernels kKernels = Kernels::every, template <class> class SumOp = Sum, class Body>
cudaError_t dispatch_vectors(const Call& call, Body body) {
  constexpr cudaError_t kNoKernel = cudaErrorInvalidValue;
  const bool mirrored = call.request.op == Op::amin;
  if (is_extremum(call.request.op)) {
    const auto extremum = [&](auto type, auto dtype, bool is_unsigned = false) -> cudaError_t {
      using T = typename decltype(type)::type;
      if constexpr (has_vectors(kKernels, decltype(dtype)::value, /*extremum=*/true)) {
        return body(Max<Accumulator<T>>{}, Flipped<T>(call.input, mirrored, is_unsigned));
      }
      return kNoKernel;
    };
    switch (call.request.dtype) {
      case DType::float32: return extremum(Type<float>{}, DTypeConstant<DType::float32>{});
      case DType::float64: return extremum(Type<double>{}, DTypeConstant<DType::float64>{});
      case DType::float16: return extremum(Type<float16>{}, DTypeConstant<DType::float16>{});
      case DType::bfloat16: return extremum(Type<bfloat16>{}, DTypeConstant<DType::bfloat16>{});
      case DType::int8: return extremum(Type<int8_t>{}, DTypeConstant<DType::int8>{});
      case DType::uint8:
      case DType::boolean:  // of bools that of their bytes: what is not zero is true
        return extremum(Type<int8_t>{}, DTypeConstant<DType::int8>{}, /*is_unsigned=*/true);
      case DType::int16: return extremum(Type<int16_t>{}, DTypeConstant<DType::int16>{});
      case DType::int32: return extremum(Type<int32_t>{}, DTypeConstant<DType::int32>{});
      case DType::int64: return extremum(Type<int64_t>{}, DTypeConstant<DType::int64>{});
      default: return kNoKernel;
    }
  }
  if (is_common_float(call.request.dtype)) return dispatch_common_sum<SumOp>(call, body);
  const auto sum = [&](auto type, auto dtype) -> cudaError_t {
    using T = typename decltype(type)::type;
    if constexpr (has_vectors(kKernels, decltype(dtype)::value, /*extremum=*/false)) {
      return body(SumOp<Accumulator<T>>{}, Stored<T>{{static_cast<const T*>(call.input)}});
    }
    return kNoKernel;
  };
  switch (call.request.dtype) {
    case DType::int16: return sum(Type<int16_t>{}, DTypeConstant<DType::int16>{});
    case DType::int32: return sum(Type<int32_t>{}, DTypeConstant<DType::int32>{});
    case DType::int64: return sum(Type<int64_t>{}, DTypeConstant<DType::int64>{});
    case DType::complex64: return sum(Type<complex64>{}, DTypeConstant<DType::complex64>{});
    case DType::complex128: return sum(Type<complex128>{}, DTypeConstant<DType::complex128>{});
    case DType::float8_e4m3fn:
    case DType::float8_e5m2:
      if constexpr (has_vectors(kKernels, DType::float8_e5m2, false)) {
        return body(SumOp<float>{}, Float8(call.input, call.request.dtype));
      }
      return kNoKernel;
    default:
      if constexpr (has_vectors(kKernels, DType::int8, false)) {
        return body(SumOp<int64_t>{}, Bytes(call.input, call.request.dtype));
      }
      return kNoKernel;
  }
}

inline bool reads_common_sum(const Call& call) {
  return !call.request.converting && !is_extremum(call.request.op) && is_common_float(call.request.dtype);
}

// Calls body(functor, source, bool_constant<vectors>, WalkConstant): what the schedule reads, where vectors are aligned.
template <Kernels kKernels = Kernels::every, template <class> class SumOp = Sum, class Body>
cudaError_t dispatch_reads(const Call& call, Body body) {
  constexpr bool kSeveral = has_several_dims(kKernels);
  const bool vectors = call.prepared.schedule.vectors;
  const Extents& reduced = call.request.geometry.reduced;
  const int dims = reduced.count;
  const bool steps = has_short_steps(reduced);
  const std::bool_constant<true> in_vectors;
  const std::bool_constant<false> one_by_one;
  const WalkConstant<Walk::even> even;
  const WalkConstant<Walk::two> two;
  const WalkConstant<Walk::any> any;
  if (dims <= 1 && vectors) {
    return dispatch_vectors<kKernels, SumOp>(call,
                                             [&](auto op, auto source) { return body(op, source, in_vectors, even); });
  }
  if (reads_common_sum(call) && (dims <= 1 ? has_singles(kKernels, size_of(call.request.dtype)) : kSeveral)) {
    return dispatch_common_sum<SumOp>(call, [&](auto op, auto source) -> cudaError_t {
      if constexpr (has_singles(kKernels, sizeof(typename decltype(source)::Type))) {
        if (dims <= 1) return body(op, source, one_by_one, even);
      }
      if constexpr (kSeveral) {
        if (!vectors) return steps ? body(op, source, one_by_one, two) : body(op, source, one_by_one, any);
        return steps ? body(op, source, in_vectors, two) : body(op, source, in_vectors, any);
      }
      return cudaErrorInvalidValue;
    });
  }
  return dispatch_looked_up<SumOp>(call, [&](auto op, auto source) -> cudaError_t {
    if constexpr (kSeveral) {
      if (steps) return body(op, source, one_by_one, two);
    }
    return body(op, source, one_by_one, any);
  });
}

}  // namespace treduce::reduce
