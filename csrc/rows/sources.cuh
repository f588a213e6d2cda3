// How elements lie in memory, and how they become accumulators and back.
#pragma once

#include <cuda_runtime.h>

#include <cstring>

#include "../common/dtypes.h"
#include "../primitives/thread.cuh"

namespace treduce::rows {

// Elements of T.
template <class T>
struct Stored {
  static constexpr bool kAdjacent = false;  // what is read one by one may have any stride
  using Raw = T;
  using Acc = Accumulator<T>;
  explicit Stored(DType) {}
  TREDUCE_DEVICE Acc widened(T raw) const { return static_cast<Acc>(raw); }
  TREDUCE_DEVICE T rounded(Acc value) const { return round_to<T>(value); }

  template <int kCount>
  TREDUCE_DEVICE void round(const Acc (&values)[kCount], T (&to)[kCount]) const {
#ifdef __CUDA_ARCH__
    // Two 16-bit floats an instruction, where none is NaN, which has bits of its own here.
    if constexpr (kCount == 4 && sizeof(T) == 2) {
      bool is_nan = false;
#pragma unroll
      for (int c = 0; c < kCount; ++c) is_nan |= values[c] != values[c];
      if (!is_nan) {
        using Pair = std::conditional_t<std::is_same_v<T, bfloat16>, __nv_bfloat162, __half2>;
        Pair pairs[kCount / 2];
#pragma unroll
        for (int c = 0; c < kCount / 2; ++c) {
          if constexpr (std::is_same_v<T, bfloat16>) {
            pairs[c] = __floats2bfloat162_rn(values[2 * c], values[2 * c + 1]);
          } else {
            pairs[c] = __floats2half2_rn(values[2 * c], values[2 * c + 1]);
          }
        }
        memcpy(to, pairs, sizeof(pairs));
        return;
      }
    }
#endif
#pragma unroll
    for (int c = 0; c < kCount; ++c) to[c] = rounded(values[c]);
  }
};

// Elements of T that lie side by side, but not where vectors do.
template <class T>
struct Adjacent : Stored<T> {
  static constexpr bool kAdjacent = true;
  using Stored<T>::Stored;
};

// Elements of either 16-bit float: one kernel for both, where elements are read one by one.
struct Either16 {
  static constexpr bool kAdjacent = false;
  using Raw = uint16_t;
  using Acc = float;
  bool is_bfloat;
  explicit Either16(DType dtype) : is_bfloat(dtype == DType::bfloat16) {}
  TREDUCE_DEVICE float widened(uint16_t raw) const {
    return is_bfloat ? static_cast<float>(bfloat16{raw}) : static_cast<float>(float16{raw});
  }
  TREDUCE_DEVICE uint16_t rounded(float value) const {
    return is_bfloat ? bfloat16::from(value).bits : float16::from(value).bits;
  }
  TREDUCE_DEVICE void round(const float (&value)[1], uint16_t (&to)[1]) const { to[0] = rounded(value[0]); }
};

// kSize consecutive elements, moved by one instruction.
template <class Raw, int kSize>
struct Vector {
  static constexpr int kBytes = kSize * static_cast<int>(sizeof(Raw));
  Raw at[kSize];

  // Needs: an address that is a multiple of kBytes.
  TREDUCE_DEVICE static Vector load(const Raw* p) {
    Vector v;
    if constexpr (kBytes == 16) {
      const int4 words = __ldg(reinterpret_cast<const int4*>(p));
      memcpy(&v, &words, sizeof(v));
    } else if constexpr (kBytes == 8 && kSize > 1) {
      const int2 words = __ldg(reinterpret_cast<const int2*>(p));
      memcpy(&v, &words, sizeof(v));
    } else {
      static_assert(kSize == 1);
      v.at[0] = *p;
    }
    return v;
  }
  TREDUCE_DEVICE void store(Raw* p) const {
    if constexpr (kBytes == 16) {
      int4 words;
      memcpy(&words, this, sizeof(words));
      *reinterpret_cast<int4*>(p) = words;
    } else if constexpr (kBytes == 8 && kSize > 1) {
      int2 words;
      memcpy(&words, this, sizeof(words));
      *reinterpret_cast<int2*>(p) = words;
    } else {
      *p = at[0];
    }
  }
};

}  // namespace treduce::rows
