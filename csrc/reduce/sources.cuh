// What the kernels along dims read. A source says how elements lie in memory (`Type`), what a load of one gives (`Raw`, by at()),
// and how loaded elements are decoded: each(loaded, f) calls f(c, element) for the c-th of a Pack or a Several.
//
// Kernels are compiled for few sources. amin is amax of mirrored elements: -x for floats, ~x for integers. The bytes of int8, uint8
// and bool are read by one kernel, as are both 8-bit floats. What was mapped on the way in is mapped back by MappedResult.
#pragma once

#include "elements.h"
#include "packs.cuh"

namespace treduce::reduce {

template <class Loaded, class F>
TREDUCE_DEVICE void for_each(const Loaded& loaded, F f) {
  const auto elements = loaded.elements();
#pragma unroll
  for (int c = 0; c < Loaded::kSize; ++c) f(c, elements.at[c]);
}

// Elements of T as they are.
template <class T>
struct Stored : Elements<T> {
  using Raw = T;
  template <class Loaded>
  TREDUCE_DEVICE const Loaded& decoded(const Loaded& loaded) const {
    return loaded;
  }
  template <class Loaded, class F>
  TREDUCE_DEVICE void each(const Loaded& loaded, F f) const {
    for_each(loaded, f);
  }
  int64_t offset(int64_t) const { return 0; }
};

// Sums of a float that most tensors hold: see is_common_float.
template <class Source>
constexpr bool is_common = false;
template <>
inline constexpr bool is_common<Stored<float>> = true;
template <>
inline constexpr bool is_common<Stored<double>> = true;
template <>
inline constexpr bool is_common<Stored<float16>> = true;
template <>
inline constexpr bool is_common<Stored<bfloat16>> = true;

// The bits that `mirrored` flips, in every 32-bit word; of a double in the upper one of two.
template <class T>
constexpr uint32_t mirror_of = std::is_integral_v<T> ? ~0u
                               : sizeof(T) == 2      ? 0x80008000u
                                                     : 0x80000000u;

// For amax and amin: elements of T with some of their bits flipped, such that amax of them is what is wanted.
template <class T>
struct Flipped : Elements<T> {
  using Raw = T;
  uint32_t flip;     // of every 32-bit word
  bool is_unsigned;  // T is int8_t, the elements are uint8_t: 128 less

  Flipped(const void* elements, bool mirrored, bool unsigned_bytes = false)
      : Elements<T>{static_cast<const T*>(elements)},
        flip((mirrored ? mirror_of<T> : 0) ^ (unsigned_bytes ? 0x80808080u : 0)),
        is_unsigned(unsigned_bytes) {}

  template <int kSize>
  TREDUCE_DEVICE Pack<T, kSize> decoded(Pack<T, kSize> pack) const {
    static_assert(sizeof(pack) >= 4);
    uint32_t words[sizeof(pack) / 4];
    memcpy(words, &pack, sizeof(pack));
#pragma unroll
    for (int w = 0; w < static_cast<int>(sizeof(pack) / 4); ++w) {
      if (!std::is_same_v<T, double> || w % 2 == 1) words[w] ^= flip;
    }
    memcpy(&pack, words, sizeof(pack));
    return pack;
  }
  template <int kSize>
  TREDUCE_DEVICE Several<T, kSize> decoded(Several<T, kSize> several) const {
    using Bits = std::conditional_t<
        sizeof(T) == 1, uint8_t,
        std::conditional_t<sizeof(T) == 2, uint16_t, std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>>>;
    uint64_t wide = flip;
    if constexpr (sizeof(T) == 8) wide = wide << 32 | (std::is_same_v<T, double> ? 0 : flip);
#pragma unroll
    for (int c = 0; c < kSize; ++c) {
      several.at[c] = bit_cast<T>(static_cast<Bits>(bit_cast<Bits>(several.at[c]) ^ static_cast<Bits>(wide)));
    }
    return several;
  }
  template <class Loaded, class F>
  TREDUCE_DEVICE void each(const Loaded& loaded, F f) const {
    for_each(decoded(loaded), f);
  }
  int64_t offset(int64_t) const { return is_unsigned ? 128 : 0; }
};

// For sums: int8; uint8, as bytes that are 128 less; and bool, as zeros and ones.
struct Bytes : Elements<int8_t> {
  using Raw = int8_t;
  uint32_t flip;
  bool is_boolean;

  Bytes(const void* elements, DType dtype)
      : Elements<int8_t>{static_cast<const int8_t*>(elements)},
        flip(dtype == DType::uint8 ? 0x80808080u : 0),
        is_boolean(dtype == DType::boolean) {}

  template <int kSize>
  TREDUCE_DEVICE Pack<int8_t, kSize> decoded(Pack<int8_t, kSize> pack) const {
    uint32_t words[kSize / 4];
    memcpy(words, &pack, sizeof(words));
    if (is_boolean) {
      // Any nonzero byte is a one: the lower seven bits carry into the highest, which moves down.
#pragma unroll
      for (uint32_t& w : words) w = ((((w & 0x7f7f7f7fu) + 0x7f7f7f7fu) | w) >> 7) & 0x01010101u;
    } else {
#pragma unroll
      for (uint32_t& w : words) w ^= flip;
    }
    memcpy(&pack, words, sizeof(words));
    return pack;
  }
  template <int kSize>
  TREDUCE_DEVICE Several<int8_t, kSize> decoded(Several<int8_t, kSize> several) const {
#pragma unroll
    for (int c = 0; c < kSize; ++c) {
      int8_t& e = several.at[c];
      e = is_boolean ? static_cast<int8_t>(e != 0) : static_cast<int8_t>(e ^ static_cast<int8_t>(flip));
    }
    return several;
  }
  template <class Loaded, class F>
  TREDUCE_DEVICE void each(const Loaded& loaded, F f) const {
    for_each(decoded(loaded), f);
  }
  int64_t offset(int64_t count) const { return flip != 0 ? 128 * count : 0; }
};

// For sums: both 8-bit floats. One branch for all elements of a load.
struct Float8 : Elements<uint8_t> {
  using Raw = uint8_t;
  bool is_e5m2;

  Float8(const void* elements, DType dtype)
      : Elements<uint8_t>{static_cast<const uint8_t*>(elements)}, is_e5m2(dtype == DType::float8_e5m2) {}

  template <class Loaded, class F>
  TREDUCE_DEVICE void each(const Loaded& loaded, F f) const {
    if (is_e5m2) {
      for_each(loaded, [&](int c, uint8_t bits) { f(c, float8_e5m2{bits}); });
    } else {
      for_each(loaded, [&](int c, uint8_t bits) { f(c, float8_e4m3fn{bits}); });
    }
  }
  int64_t offset(int64_t) const { return 0; }
};

// Elements of any dtype, looked up at each, as values of Acc. kExtremum: mirrored too, where amin is wanted.
template <class Acc, bool kExtremum>
struct LookedUp : Converted<Acc> {
  using Raw = Acc;
  bool mirrored;

  TREDUCE_DEVICE Acc at(int64_t i) const {
    const Acc value = Converted<Acc>::at(i);
    if constexpr (!kExtremum) {
      return value;
    } else if constexpr (std::is_integral_v<Acc>) {
      return mirrored ? ~value : value;
    } else {
      return mirrored ? -value : value;
    }
  }
  template <class Loaded>
  TREDUCE_DEVICE const Loaded& decoded(const Loaded& loaded) const {
    return loaded;
  }
  template <class Loaded, class F>
  TREDUCE_DEVICE void each(const Loaded& loaded, F f) const {
    for_each(loaded, f);
  }
  int64_t offset(int64_t) const { return 0; }
};

// Where finished reductions go, mapped back from what the source made of the elements.
struct MappedResult : Result {
  bool mirrored;   // amin was computed as amax
  int64_t offset;  // that integers were less by

  template <class Op>
  TREDUCE_DEVICE auto mapped_back(typename Op::Acc value) const {
    using Acc = typename Op::Acc;
    if constexpr (std::is_integral_v<Acc>) {
      return (mirrored ? ~value : value) + offset;
    } else if constexpr (std::is_same_v<Op, Max<Acc>>) {
      return mirrored ? -value : value;
    } else {
      return value;
    }
  }
  template <class Op>
  TREDUCE_DEVICE void store(typename Op::Acc value, int64_t i) const {
    write(Op::finish(mapped_back<Op>(value), divide, count), i);
  }
};

}  // namespace treduce::reduce
