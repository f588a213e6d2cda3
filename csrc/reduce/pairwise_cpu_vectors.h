// The kernels of pairwise_cpu_kernels.h in vectors of TREDUCE_VECTOR_BYTES, for the namespace TREDUCE_INSTRUCTIONS. Each source
// file that includes this one is compiled for other instructions, so everything here has internal linkage: the linker must not
// pick one of them for all.
//
// A leaf is a lane of a vector. Additions of stripes are additions of vectors; the tree over the lanes takes the vectors in
// pairs, and leaves neighbouring nodes side by side. Between two steps accumulators lie in planes: a sum that carries its error
// has two, one of sums and one of errors.
#include "pairwise_cpu_any_order.h"
#include "pairwise_cpu_columns.h"
#include "pairwise_cpu_narrow.h"
#include "pairwise_cpu_rows.h"

namespace treduce::reduce::cpu::TREDUCE_INSTRUCTIONS {
namespace {

template <class O, class In, class A>
const Kernels* kernels() {
  using L = Lanes<O, In, A>;
  constexpr int64_t kNarrow = NarrowColumns<O, L>::kMost;
  if constexpr (L::kExact) {
    using K = AnyOrder<O, L>;
    static constexpr Kernels table{sizeof(In), L::kElements, kNarrow,    K::kNarrowScratch, K::columns_scratch,
                                   K::rows,    K::stripes,   K::columns, K::narrow};
    return &table;
  } else {
    using R = Rows<O, L>;
    using C = Columns<O, L>;
    using N = NarrowColumns<O, L>;
    static constexpr Kernels table{sizeof(In), L::kElements, kNarrow, N::kScratch, C::scratch,
                                   R::run,     R::stripes,   C::run,  N::run};
    return &table;
  }
}

template <class A>
const Kernels* kernels_of_complex() {
  using R = Rows<Sum<A>, Lanes<Sum<A>, A, A>>;
  static constexpr Kernels table{sizeof(A), 0, 0, 0, nullptr, R::run, R::stripes, nullptr, nullptr};
  return &table;
}

// T: words of the elements, kWords of each.
template <class T, int kWords>
void pick_every_second(const void* x, int64_t count, void* to) {
  constexpr int kVector = TREDUCE_VECTOR_BYTES / sizeof(T), kCount = kVector / kWords;
  using V = Vector<T, kVector>;
  const T* const from = static_cast<const T*>(x);
  T* const picked = static_cast<T*>(to);
  int64_t i = 0;
  if constexpr (kCount > 1) {
    for (; i + kCount < count; i += kCount) {  // the last vector would reach past the last element
      const T* const p = from + 2 * i * kWords;
      const V even = shuffle(load_vector<V>(p), load_vector<V>(p + kVector),
                             typename Ordered<kCount, kWords>::template Words<0>{});
      memcpy(picked + i * kWords, &even, sizeof(even));
    }
  }
  for (; i < count; ++i) memcpy(picked + i * kWords, from + 2 * i * kWords, kWords * sizeof(T));
}

}  // namespace

EverySecond every_second(int size) {
  switch (size) {
    case 1: return pick_every_second<int8_t, 1>;
    case 2: return pick_every_second<int16_t, 1>;
    case 4: return pick_every_second<int32_t, 1>;
    case 8: return pick_every_second<int64_t, 1>;
    default: return pick_every_second<int64_t, 2>;
  }
}

const Kernels* find(Op op, Arithmetic arithmetic, DType dtype) {
  if (op == Op::amax || op == Op::amin) {
    const bool max = op == Op::amax;
    switch (dtype) {
      case DType::float32: return max ? kernels<Max<float>, float, float>() : kernels<Min<float>, float, float>();
      case DType::float64: return max ? kernels<Max<double>, double, double>() : kernels<Min<double>, double, double>();
      case DType::float16: return max ? kernels<Max<float>, float16, float>() : kernels<Min<float>, float16, float>();
      case DType::bfloat16:
        return max ? kernels<Max<float>, bfloat16, float>() : kernels<Min<float>, bfloat16, float>();
      case DType::int8: return max ? kernels<Max<int64_t>, int8_t, int8_t>() : kernels<Min<int64_t>, int8_t, int8_t>();
      case DType::uint8:
      case DType::boolean:
        return max ? kernels<Max<int64_t>, uint8_t, uint8_t>() : kernels<Min<int64_t>, uint8_t, uint8_t>();
      case DType::int16:
        return max ? kernels<Max<int64_t>, int16_t, int16_t>() : kernels<Min<int64_t>, int16_t, int16_t>();
      case DType::int32:
        return max ? kernels<Max<int64_t>, int32_t, int32_t>() : kernels<Min<int64_t>, int32_t, int32_t>();
      case DType::int64:
        return max ? kernels<Max<int64_t>, int64_t, int64_t>() : kernels<Min<int64_t>, int64_t, int64_t>();
      default: return nullptr;
    }
  }
  const bool compensated = arithmetic == Arithmetic::compensated;
  if constexpr (TREDUCE_VECTOR_BYTES > 16) {
    if (dtype == DType::complex64 && !compensated) return kernels_of_complex<complex64>();
    if (dtype == DType::complex128 && !compensated) return kernels_of_complex<complex128>();
  }
  switch (dtype) {
    case DType::float32:
      return compensated ? kernels<Compensated<float>, float, float>() : kernels<Sum<float>, float, float>();
    case DType::float64:
      return compensated ? kernels<Compensated<double>, double, double>() : kernels<Sum<double>, double, double>();
    case DType::float16: return compensated ? nullptr : kernels<Sum<float>, float16, float>();
    case DType::bfloat16: return compensated ? nullptr : kernels<Sum<float>, bfloat16, float>();
    // Sums of up to 16 bits fit 32 in a unit.
    case DType::int8: return kernels<Sum<int64_t>, int8_t, int32_t>();
    case DType::uint8: return kernels<Sum<int64_t>, uint8_t, int32_t>();
    case DType::int16: return kernels<Sum<int64_t>, int16_t, int32_t>();
    case DType::boolean: return kernels<Sum<int64_t>, boolean, int32_t>();
    case DType::int32: return kernels<Sum<int64_t>, int32_t, int64_t>();
    case DType::int64: return kernels<Sum<int64_t>, int64_t, int64_t>();
    default: return nullptr;
  }
}

}  // namespace treduce::reduce::cpu::TREDUCE_INSTRUCTIONS
