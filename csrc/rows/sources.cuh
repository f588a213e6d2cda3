// How elements lie in memory, and how they become accumulators and back.
#pragma once

#include <cuda_runtime.h>

#include <cstring>

#include "../common/dtypes.h"
#include "../primitives/thread.cuh"

namespace treduce::rows {

// kSize consecutive elements, moved by one instruction. They are kept in words: taken apart into elements of 16 bits and put together
// again, they would cost an instruction each.
template <class Raw, int kSize>
struct Vector {
  static constexpr int kBytes = kSize * static_cast<int>(sizeof(Raw));
  using Word = std::conditional_t<kBytes % 4 == 0, uint32_t, Raw>;
  static constexpr int kWords = kBytes / static_cast<int>(sizeof(Word));
  Word word[kWords];

  // The element c, which the compiler knows.
  TREDUCE_DEVICE Raw at(int c) const {
    Raw raw;
    memcpy(&raw, reinterpret_cast<const unsigned char*>(word) + c * sizeof(Raw), sizeof(Raw));
    return raw;
  }

  TREDUCE_DEVICE void put(int c, Raw raw) {
    memcpy(reinterpret_cast<unsigned char*>(word) + c * sizeof(Raw), &raw, sizeof(Raw));
  }

  // Needs: an address that is a multiple of kBytes.
  TREDUCE_DEVICE static Vector load(const Raw* p) {
    return load_by(p, [](auto words) { return __ldg(words); });
  }
  // From shared memory, likewise.
  TREDUCE_DEVICE static Vector load_shared(const Raw* p) {
    return load_by(p, [](auto words) { return *words; });
  }
  TREDUCE_DEVICE void store(Raw* p) const {
    if constexpr (kBytes == 16) {
      int4 words;
      memcpy(&words, word, sizeof(words));
      *reinterpret_cast<int4*>(p) = words;
    } else if constexpr (kBytes == 8 && kSize > 1) {
      int2 words;
      memcpy(&words, word, sizeof(words));
      *reinterpret_cast<int2*>(p) = words;
    } else {
      static_assert(kSize == 1);
      *p = at(0);
    }
  }

 private:
  template <class Load>
  TREDUCE_DEVICE static Vector load_by(const Raw* p, Load load) {
    Vector v;
    if constexpr (kBytes == 16) {
      const int4 words = load(reinterpret_cast<const int4*>(p));
      memcpy(v.word, &words, sizeof(words));
    } else if constexpr (kBytes == 8 && kSize > 1) {
      const int2 words = load(reinterpret_cast<const int2*>(p));
      memcpy(v.word, &words, sizeof(words));
    } else {
      static_assert(kSize == 1);
      const Raw raw = *p;  // not by bytes
      memcpy(v.word, &raw, sizeof(raw));
    }
    return v;
  }
};

// Elements of T.
template <class T>
struct Stored {
  static constexpr bool kAdjacent = false;  // what is read one by one may have any stride
  static constexpr bool kShifted = false;   // vectors begin where rows do
  using Raw = T;
  using Acc = Accumulator<T>;
  explicit Stored(DType) {}

  template <int kSize>
  TREDUCE_DEVICE void widen(const Vector<T, kSize>& v, Acc (&to)[kSize]) const {
    if constexpr (std::is_same_v<T, bfloat16> && kSize > 1) {
#pragma unroll
      for (int k = 0; k < kSize / 2; ++k) {
        to[2 * k] = bit_cast<float>(v.word[k] << 16);
        to[2 * k + 1] = bit_cast<float>(v.word[k] & 0xffff0000u);
      }
    } else {
#pragma unroll
      for (int c = 0; c < kSize; ++c) to[c] = static_cast<Acc>(v.at(c));
    }
  }

#ifdef __CUDA_ARCH__
  // Of two 16-bit floats the greater ones, as Max has it.
  TREDUCE_DEVICE static Vector<T, 2> greater(Vector<T, 2> a, Vector<T, 2> b) {
    using Pair = std::conditional_t<std::is_same_v<T, bfloat16>, __nv_bfloat162, __half2>;
    const Pair most = __hmax2_nan(bit_cast<Pair>(a.word[0]), bit_cast<Pair>(b.word[0]));
    return {{bit_cast<uint32_t>(most)}};
  }
#endif

  // kNumbers: none is NaN.
  template <bool kNumbers = false, int kSize>
  TREDUCE_DEVICE Vector<T, kSize> rounded(const Acc (&values)[kSize]) const {
#ifdef __CUDA_ARCH__
    // Two 16-bit floats an instruction, where none is NaN, which has bits of its own here.
    if constexpr (sizeof(T) == 2 && kSize > 1) {
      using Pair = std::conditional_t<std::is_same_v<T, bfloat16>, __nv_bfloat162, __half2>;
      Pair pair[kSize / 2];
#pragma unroll
      for (int k = 0; k < kSize / 2; ++k) {
        if constexpr (std::is_same_v<T, bfloat16>) {
          pair[k] = __floats2bfloat162_rn(values[2 * k], values[2 * k + 1]);
        } else {
          pair[k] = __floats2half2_rn(values[2 * k], values[2 * k + 1]);
        }
      }
      if constexpr (kNumbers) return bit_cast<Vector<T, kSize>>(pair);
      Pair most = pair[0];
#pragma unroll
      for (int k = 1; k < kSize / 2; ++k) most = __hmax2_nan(most, pair[k]);
      if (__hbeq2(most, most)) return bit_cast<Vector<T, kSize>>(pair);
    }
#endif
    return each_rounded(values);
  }

 private:
  template <int kSize>
  TREDUCE_DEVICE static Vector<T, kSize> each_rounded(const Acc (&values)[kSize]) {
    Vector<T, kSize> v;
    T each[kSize];
#pragma unroll
    for (int c = 0; c < kSize; ++c) each[c] = round_to<T>(values[c]);
    memcpy(v.word, each, sizeof(v.word));
    return v;
  }
};

// Elements of T that lie side by side, but not where vectors do.
template <class T>
struct Adjacent : Stored<T> {
  static constexpr bool kAdjacent = true;
  using Stored<T>::Stored;
};

// Elements of T in rows that begin anywhere, read in aligned vectors all the same.
template <class T>
struct Shifted : Stored<T> {
  static constexpr bool kShifted = true;
  using Stored<T>::Stored;
};

// Elements of either 16-bit float: one kernel for both, where elements are read one by one.
struct Either16 {
  static constexpr bool kAdjacent = false, kShifted = false;
  using Raw = uint16_t;
  using Acc = float;
  bool is_bfloat;
  explicit Either16(DType dtype) : is_bfloat(dtype == DType::bfloat16) {}
  TREDUCE_DEVICE void widen(const Vector<uint16_t, 1>& v, float (&to)[1]) const {
    to[0] = is_bfloat ? static_cast<float>(bfloat16{v.word[0]}) : static_cast<float>(float16{v.word[0]});
  }
  template <bool = false>
  TREDUCE_DEVICE Vector<uint16_t, 1> rounded(const float (&value)[1]) const {
    return {{is_bfloat ? bfloat16::from(value[0]).bits : float16::from(value[0]).bits}};
  }
};

}  // namespace treduce::rows
