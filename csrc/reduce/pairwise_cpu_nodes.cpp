// How nodes are folded and stored, for each op and accumulator.
#include "pairwise_cpu_nodes.h"

#include <algorithm>

namespace treduce::reduce::cpu {
namespace {

// Finishes nodes side by side, in a loop that compilers turn into vectors.
template <class O, class To, class Convert>
void store_run(const typename O::Acc* nodes, int64_t count, const Result& result, int64_t at, const Convert& convert) {
  To* const to = static_cast<To*>(result.data) + at;
  const int64_t n = result.count;
  if (result.divide) {
    for (int64_t i = 0; i < count; ++i) to[i] = convert(O::finish(nodes[i], true, n));
  } else {
    for (int64_t i = 0; i < count; ++i) to[i] = convert(O::finish(nodes[i], false, n));
  }
}

template <class O>
const NodeOps* ops_of() {
  using Acc = typename O::Acc;
  static constexpr auto fold = [](void* data, int64_t count, int64_t width) {
    Acc* const nodes = static_cast<Acc*>(data);
    while (count > 1) {
      const int64_t pairs = count / 2;
      for (int64_t t = 0; t < pairs; ++t) {
        const Acc* const a = nodes + 2 * t * width;
        for (int64_t c = 0; c < width; ++c) nodes[t * width + c] = O::combine(a[c], a[width + c]);
      }
      if (count % 2 != 0) std::copy_n(nodes + (count - 1) * width, width, nodes + pairs * width);
      count -= pairs;
    }
  };
  static constexpr auto store = [](const void* data, int64_t count, const Result& result, int64_t at, int64_t stride) {
    const Acc* const nodes = static_cast<const Acc*>(data);
    using Out = decltype(O::finish(Acc{}, false, 1));
    if (stride == 1 && count > 1) {
      if constexpr (std::is_same_v<Out, int64_t>) {
        if (result.dtype == DType::int64) {
          return store_run<O, int64_t>(nodes, count, result, at, [](int64_t value) { return value; });
        }
      } else if constexpr (std::is_same_v<Out, float>) {
        const auto narrow = [](auto half) {
          using Half = decltype(half);
          return [](float value) { return Half::from(value); };
        };
        switch (result.dtype) {
          case DType::float16: return store_run<O, float16>(nodes, count, result, at, narrow(float16{}));
          case DType::bfloat16: return store_run<O, bfloat16>(nodes, count, result, at, narrow(bfloat16{}));
          default: return store_run<O, float>(nodes, count, result, at, canonical<float>);
        }
      } else {
        return store_run<O, Out>(nodes, count, result, at, canonical<Out>);
      }
    }
    for (int64_t i = 0; i < count; ++i) result.store<O>(nodes[i], at + i * stride);
  };
  static constexpr NodeOps table{sizeof(Acc), fold, store};
  return &table;
}

template <class A>
const NodeOps* real_ops(Op op, Arithmetic arithmetic) {
  if (op == Op::amax) return ops_of<Max<A>>();
  if (op == Op::amin) return ops_of<Min<A>>();
  return arithmetic == Arithmetic::compensated ? ops_of<Compensated<A>>() : ops_of<Sum<A>>();
}

}  // namespace

const NodeOps* node_ops(Op op, Arithmetic arithmetic, DType dtype) {
  switch (dtype) {
    case DType::complex64: return ops_of<Sum<complex64>>();
    case DType::complex128: return ops_of<Sum<complex128>>();
    case DType::float64: return real_ops<double>(op, arithmetic);
    case DType::float32:
    case DType::float16:
    case DType::bfloat16: return real_ops<float>(op, arithmetic);
    default: return real_ops<int64_t>(op, arithmetic);
  }
}

}  // namespace treduce::reduce::cpu
