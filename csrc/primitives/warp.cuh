// Reductions and exchanges within a warp. All 32 lanes must call, converged. Nothing uses shared memory; the shuffles
// synchronise the lanes.
#pragma once

#include <cuda_runtime.h>

#include <cstring>
#include <type_traits>

#include "../common/macros.h"

namespace treduce::warp {

constexpr int kLanes = 32;
constexpr unsigned kFullMask = 0xffffffffu;

// Tree by halves over the values of `kWidth` consecutive lanes. Valid in the first lane of each `kWidth`.
template <class Op, int kWidth = kLanes>
TREDUCE_DEVICE typename Op::Acc reduce(typename Op::Acc value) {
#pragma unroll
  for (int s = kWidth / 2; s > 0; s /= 2) {
    value = Op::combine(value, __shfl_down_sync(kFullMask, value, s, kWidth));
  }
  return value;
}

// Applies `move`, which takes 32-bit words or numbers, to a value of any size, word by word.
template <class T, class Move>
TREDUCE_DEVICE T by_words(T value, Move move) {
  if constexpr (std::is_arithmetic_v<T>) {
    return move(value);
  } else {
    static_assert(sizeof(T) % sizeof(unsigned) == 0);
    unsigned words[sizeof(T) / sizeof(unsigned)];
    memcpy(words, &value, sizeof(T));
#pragma unroll
    for (unsigned& word : words) word = move(word);
    memcpy(&value, words, sizeof(T));
    return value;
  }
}

// The value of the lane whose number is this one's xor `mask`.
template <class T>
TREDUCE_DEVICE T exchange(T value, int mask) {
  return by_words(value, [&](auto word) { return __shfl_xor_sync(kFullMask, word, mask); });
}

// The value of lane `source`.
template <class T>
TREDUCE_DEVICE T from(T value, int source) {
  return by_words(value, [&](auto word) { return __shfl_sync(kFullMask, word, source); });
}

// Tree by neighbours over `width` consecutive lanes, a power of two: lanes 0 and 1, 2 and 3, then pairs of pairs. Valid in every
// lane, because combine(a, b) and combine(b, a) give the same bits.
template <class Op>
TREDUCE_DEVICE typename Op::Acc reduce_neighbours(typename Op::Acc value, int width = kLanes) {
  if (width == kLanes) {
#pragma unroll
    for (int s = 1; s < kLanes; s *= 2) value = Op::combine(value, exchange(value, s));
  } else {
    for (int s = 1; s < width; s *= 2) value = Op::combine(value, exchange(value, s));
  }
  return value;
}

}  // namespace treduce::warp
