// How threads finish and write the results of several outputs at once.
#pragma once

#include "sources.cuh"

namespace treduce::reduce {

// Whether the results of a source may have type T: those of an extremum have the dtype of the elements, those of a sum another one
// too where elements need no conversion to it (see needs_conversion).
template <class Source, class T>
constexpr bool may_store = true;
template <class T>
constexpr bool may_store<Flipped<int8_t>, T> = sizeof(T) == 1;
template <class From, class T>
constexpr bool may_store<Flipped<From>, T> = std::is_same_v<From, T>;
template <class From, class T>
constexpr bool may_store<Stored<From>, T> =
    std::is_same_v<From, T> || (std::is_integral_v<From> ? std::is_integral_v<T> : std::is_same_v<T, float>);

// Calls body(T{}) with the type that results are stored as: one branch on the dtype for all results of a thread.
template <class Source, class Acc, class Body>
TREDUCE_DEVICE void as_stored(DType dtype, Body body) {
  const auto is = [&](DType wanted, auto zero) {
    if constexpr (may_store<Source, decltype(zero)>) {
      if (dtype == wanted) {
        body(zero);
        return true;
      }
    }
    return false;
  };
  if constexpr (std::is_same_v<Acc, float>) {
    (void)(is(DType::float32, float{}) || is(DType::float16, float16{}) || is(DType::bfloat16, bfloat16{}));
  } else if constexpr (std::is_same_v<Acc, int64_t>) {
    (void)(is(DType::int64, int64_t{}) || is(DType::boolean, boolean{}) || is(DType::int8, int8_t{}) ||
           is(DType::uint8, uint8_t{}) || is(DType::int16, int16_t{}) || is(DType::int32, int32_t{}));
  } else {
    body(Acc{});
  }
}

// The results of kSize outputs: one branch for all of them.
template <class O, int kSize>
TREDUCE_DEVICE void finish(const typename O::Acc (&value)[kSize], const MappedResult& result,
                           typename O::Acc (&finished)[kSize]) {
#pragma unroll
  for (int c = 0; c < kSize; ++c) finished[c] = O::finish(result.mapped_back<O>(value[c]), false, 1);
  if (result.divide) {
#pragma unroll
    for (int c = 0; c < kSize; ++c) finished[c] = O::finish(finished[c], true, result.count);
  }
}

// Writes finished results side by side, in stores of up to 16 bytes where they lie so.
template <class T, class Acc, int kSize>
TREDUCE_DEVICE void store_run(T* to, const Acc (&finished)[kSize]) {
  constexpr int kBytes = kSize * static_cast<int>(sizeof(T));
  constexpr int kWord = kBytes % 16 == 0 ? 16 : kBytes % 8 == 0 ? 8 : 4;
  using Word = std::conditional_t<kWord == 16, int4, std::conditional_t<kWord == 8, int2, int>>;
  if (kBytes % kWord == 0 && reinterpret_cast<uintptr_t>(to) % kWord == 0) {
    T stored[kSize];
#pragma unroll
    for (int c = 0; c < kSize; ++c) stored[c] = round_to<T>(finished[c]);
    Word words[(kBytes + kWord - 1) / kWord];
    memcpy(words, stored, kBytes);
#pragma unroll
    for (int w = 0; w < kBytes / kWord; ++w) reinterpret_cast<Word*>(to)[w] = words[w];
  } else {
#pragma unroll
    for (int c = 0; c < kSize; ++c) to[c] = round_to<T>(finished[c]);
  }
}

}  // namespace treduce::reduce
