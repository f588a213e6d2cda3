// The loops of loops_cpu.h for the namespace TREDUCE_INSTRUCTIONS. Each source file that includes this one is compiled for other
// instructions, so everything here is inlined or has internal linkage: the linker must not pick one of them for all.
#include "loops_cpu.h"

namespace treduce::rows::cpu::TREDUCE_INSTRUCTIONS {
namespace {

// Every NaN is stored as the one of its type.
TREDUCE_ALWAYS_INLINE void put(float x, float& to) { to = x != x ? elementary::same_bits<float>(0x7fc00000u) : x; }
TREDUCE_ALWAYS_INLINE void put(double x, double& to) {
  to = x != x ? elementary::same_bits<double>(uint64_t{0x7ff8000000000000u}) : x;
}

// What stages before kStage made of an element.
template <int kStage, class O>
TREDUCE_ALWAYS_INLINE void replay(typename O::Acc (&x)[O::kInputs], typename O::Acc weight,
                                  const typename O::Values& values) {
  if constexpr (kStage > 0) (void)O::template map<0>(x, weight, values);
  if constexpr (kStage > 1) (void)O::template map<1>(x, weight, values);
}

template <int kStage, bool kWeighted, class O>
void map_all(const void* const* in, const void* weight, const void* values, int64_t count, void* first, void* second) {
  using A = typename O::Acc;
  const typename O::Values row = *static_cast<const typename O::Values*>(values);
  const A* const __restrict x = static_cast<const A*>(in[0]);
  const A* const __restrict y = static_cast<const A*>(in[O::kInputs - 1]);
  const A* const __restrict w = static_cast<const A*>(weight);
  A* const __restrict one = static_cast<A*>(first);
  A* const __restrict two = static_cast<A*>(second);
  for (int64_t i = 0; i < count; ++i) {
    A element[O::kInputs];
    element[0] = x[i];
    if constexpr (O::kInputs > 1) element[1] = y[i];
    const A of_place = kWeighted ? w[i] : A(1);
    replay<kStage, O>(element, of_place, row);
    const auto mapped = O::template map<kStage>(element, of_place, row);
    if constexpr (std::is_same_v<decltype(mapped), const A>) {
      one[i] = mapped;
    } else {
      one[i] = mapped.first;
      two[i] = mapped.second;
    }
  }
}

template <int kStage, class O>
void map(const void* const* in, const void* weight, const void* values, int64_t count, void* first, void* second) {
  if (O::kWeightFirst && weight != nullptr) {
    map_all<kStage, O::kWeightFirst, O>(in, weight, values, count, first, second);
  } else {
    map_all<kStage, false, O>(in, weight, values, count, first, second);
  }
}

template <class O>
void meet(const void* const* in, const void* weight, const void* values, int64_t count, void* parts) {
  using A = typename O::Acc;
  using Pass = Online<O>;
  const typename O::Values row = *static_cast<const typename O::Values*>(values);
  const A* const w = O::kWeightFirst ? static_cast<const A*>(weight) : nullptr;
  auto* const part = static_cast<typename Pass::State*>(parts);
  for (int64_t i = 0; i < count; ++i) {
    A element[O::kInputs];
    for (int k = 0; k < O::kInputs; ++k) element[k] = static_cast<const A*>(in[k])[i];
    typename Pass::State& mine = part[i % kParts];
    mine = Pass::meet(mine, Pass::of(element, w != nullptr ? w[i] : A(1), row));
  }
}

template <class O>
void meet_parts(void* parts, const void* constants, void* values) {
  using Pass = Online<O>;
  auto* const part = static_cast<typename Pass::State*>(parts);
  for (int s = kParts / 2; s > 0; s /= 2) {
    for (int i = 0; i < s; ++i) part[i] = Pass::meet(part[i], part[i + s]);
  }
  Pass::finish(*static_cast<typename O::Values*>(values), part[0],
               *static_cast<const Constants<typename O::Acc>*>(constants));
}

template <bool kWeighted, bool kBiased, class O>
void output_all(const void* const* in, const void* weight, const void* bias, const void* values, int64_t count,
                void* out) {
  using A = typename O::Acc;
  const typename O::Values row = *static_cast<const typename O::Values*>(values);
  const A* const __restrict x = static_cast<const A*>(in[0]);
  const A* const __restrict y = static_cast<const A*>(in[O::kInputs - 1]);
  const A* const __restrict w = static_cast<const A*>(weight);
  const A* const __restrict b = static_cast<const A*>(bias);
  A* const __restrict to = static_cast<A*>(out);
  for (int64_t i = 0; i < count; ++i) {
    A element[O::kInputs];
    element[0] = x[i];
    if constexpr (O::kInputs > 1) element[1] = y[i];
    const A of_place = kWeighted ? w[i] : A(1);
    if constexpr (!O::kMapsToElement) replay<O::kStages, O>(element, of_place, row);
    put(O::output(element, kWeighted, of_place, kBiased, kBiased ? b[i] : A(0), row), to[i]);
  }
}

template <class O>
void output(const void* const* in, const void* weight, const void* bias, const void* values, int64_t count, void* out) {
  if constexpr (O::kHasElements) {
    const bool weighted = O::kWeight && weight != nullptr, biased = O::kWeight && bias != nullptr;
    if (weighted && biased) return output_all<O::kWeight, O::kWeight, O>(in, weight, bias, values, count, out);
    if (weighted) return output_all<O::kWeight, false, O>(in, weight, bias, values, count, out);
    if (biased) return output_all<false, O::kWeight, O>(in, weight, bias, values, count, out);
    output_all<false, false, O>(in, weight, bias, values, count, out);
  }
}

template <class O>
const Loops* loops_of() {
  static constexpr Loops loops{{map<0, O>, map<O::kStages - 1, O>}, meet<O>, meet_parts<O>, output<O>};
  return &loops;
}

const Loops* loops(Op op, bool is_double) {
  return dispatch_op(op, [&](auto tag) {
    using T = decltype(tag);
    return is_double ? loops_of<typename T::template Of<double>>() : loops_of<typename T::template Of<float>>();
  });
}

// The conversions of float16.h without a branch.
TREDUCE_ALWAYS_INLINE float widened(float x) { return x; }
TREDUCE_ALWAYS_INLINE double widened(double x) { return x; }
TREDUCE_ALWAYS_INLINE float widened(bfloat16 x) {
  return elementary::same_bits<float>(static_cast<uint32_t>(x.bits) << 16);
}
TREDUCE_ALWAYS_INLINE float widened(float16 x) {
  const uint32_t bits = x.bits;
  const float scaled = elementary::same_bits<float>((bits & 0x7fffu) << 13) * 0x1p112f;
  const uint32_t infinite = (bits & 0x7c00u) == 0x7c00u ? 0x7f800000u : 0u;
  return elementary::same_bits<float>(elementary::same_bits<uint32_t>(scaled) | infinite | (bits & 0x8000u) << 16);
}

TREDUCE_ALWAYS_INLINE void put(float x, bfloat16& to) {
  const uint32_t word = elementary::same_bits<uint32_t>(x);
  const uint32_t rounded = (word + 0x7fffu + (word >> 16 & 1u)) >> 16;
  to.bits = static_cast<uint16_t>((word & 0x7fffffffu) > 0x7f800000u ? 0x7fc0u : rounded);
}
TREDUCE_ALWAYS_INLINE void put(float x, float16& to) {
  const uint32_t word = elementary::same_bits<uint32_t>(x), magnitude = word & 0x7fffffffu;
  const uint32_t normal = (magnitude + 0xfffu + (magnitude >> 13 & 1u) - 0x38000000u) >> 13;
  const float shifted = elementary::same_bits<float>(magnitude) + 0.5f;
  const uint32_t small = elementary::same_bits<uint32_t>(shifted) - 0x3f000000u;
  uint32_t result = magnitude < 0x38800000u ? small : normal;
  result = magnitude >= 0x47800000u ? 0x7c00u : result;
  result |= word >> 16 & 0x8000u;
  to.bits = static_cast<uint16_t>(magnitude > 0x7f800000u ? 0x7e00u : result);
}

template <class T>
void widen(const void* from, int64_t stride, int64_t count, void* to) {
  using A = Accumulator<T>;
  const T* const __restrict x = static_cast<const T*>(from);
  A* const __restrict out = static_cast<A*>(to);
  if (stride == 1) {
    for (int64_t i = 0; i < count; ++i) out[i] = widened(x[i]);
  } else {
    for (int64_t i = 0; i < count; ++i) out[i] = widened(x[i * stride]);
  }
}

template <class T>
void round(const void* from, int64_t count, void* to, int64_t stride) {
  using A = Accumulator<T>;
  const A* const __restrict x = static_cast<const A*>(from);
  T* const __restrict out = static_cast<T*>(to);
  if (stride == 1) {
    for (int64_t i = 0; i < count; ++i) put(x[i], out[i]);
  } else {
    for (int64_t i = 0; i < count; ++i) put(x[i], out[i * stride]);
  }
}

template <class T>
const Conversions* conversions_of() {
  static constexpr Conversions conversions{widen<T>, round<T>};
  return &conversions;
}

const Conversions* conversions(DType dtype) {
  switch (dtype) {
    case DType::float64: return conversions_of<double>();
    case DType::float16: return conversions_of<float16>();
    case DType::bfloat16: return conversions_of<bfloat16>();
    default: return conversions_of<float>();
  }
}

template <class A>
void exp_all(const void* from, int64_t count, void* to) {
  const A* const __restrict x = static_cast<const A*>(from);
  A* const __restrict out = static_cast<A*>(to);
  for (int64_t i = 0; i < count; ++i) put(elementary::exp(x[i]), out[i]);
}

}  // namespace

const Table* table() {
  static constexpr Table all{loops, conversions, exp_all<float>, exp_all<double>};
  return &all;
}

}  // namespace treduce::rows::cpu::TREDUCE_INSTRUCTIONS
