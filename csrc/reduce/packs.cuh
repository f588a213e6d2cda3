// Several elements in registers: as the words of one load, or loaded one by one.
#pragma once

#include <cuda_runtime.h>

#include <cstring>
#include <type_traits>

#include "../common/dtypes.h"

namespace treduce::reduce {

// kCount elements, taken apart.
template <class T, int kCount>
struct Several {
  static constexpr int kSize = kCount;
  T at[kCount];
  TREDUCE_DEVICE const Several& elements() const { return *this; }
};

// kCount consecutive elements, as the words of one load: they are taken apart where they are used.
template <class T, int kCount>
struct Pack {
  static constexpr int kSize = kCount;
  static constexpr int kBytes = kCount * static_cast<int>(sizeof(T));
  using Words = std::conditional_t<kBytes == 16, int4,
                                   std::conditional_t<kCount == 1, T, std::conditional_t<kBytes == 8, int2, int>>>;
  static_assert(sizeof(Words) == kBytes);
  Words words;

  TREDUCE_DEVICE Several<T, kCount> elements() const {
    Several<T, kCount> e;
    memcpy(&e, &words, sizeof(e));
    return e;
  }
  TREDUCE_DEVICE static Pack from(const Several<T, kCount>& e) {
    Pack pack;
    memcpy(&pack.words, &e, sizeof(e));
    return pack;
  }
};

// The elements of a 16-byte load.
template <class Source>
constexpr int vector_of = 16 / static_cast<int>(sizeof(typename Source::Type));

// Loads x[i] and the kSize - 1 elements after it.
// Needs: x + i on a multiple of the pack's bytes.
template <int kSize, class Source>
TREDUCE_DEVICE Pack<typename Source::Raw, kSize> load_pack(const Source& x, int64_t i) {
  using P = Pack<typename Source::Raw, kSize>;
  if constexpr (kSize == 1 && (Source::kConverts || P::kBytes < 16)) {
    return P::from({x.at(i)});
  } else {
    return {__ldg(reinterpret_cast<const typename P::Words*>(x.data + i))};
  }
}

// The same for elements `from` to before `to` of the pack alone, one by one; the others are zero.
template <int kSize, class Source>
TREDUCE_DEVICE Pack<typename Source::Raw, kSize> load_some(const Source& x, int64_t i, int from, int to) {
  Several<typename Source::Raw, kSize> elements = {};
#pragma unroll
  for (int c = 0; c < kSize; ++c) {
    if (c >= from && c < to) elements.at[c] = x.at(i + c);
  }
  return Pack<typename Source::Raw, kSize>::from(elements);
}

}  // namespace treduce::reduce
