// A tree that adds neighbours, over values that come one after another. One thread owns it; on the device its levels are
// registers where they are few. Host and device.
#pragma once

#include <cstdint>
#include <type_traits>

#include "../common/macros.h"

namespace treduce {

// Combines values by neighbours as they come, in order: value k is leaf (or node) k of a tree. Holds one value a level, like
// the digits of a binary counter. kDepth levels take 2^kDepth values. Few levels are unrolled, so that they stay in registers.
template <class O, int kDepth>
struct Neighbours {
  using Acc = typename O::Acc;
  using Count = std::conditional_t<(kDepth < 32), uint32_t, uint64_t>;
  Acc level[kDepth + 1];
  Count count = 0;

  TREDUCE_HOST_DEVICE void push(Acc value) {
    if constexpr (kDepth <= 8) {
      place<0>(value);
    } else {
      int k = 0;
      for (; count >> k & 1; ++k) value = O::combine(level[k], value);
      level[k] = value;
    }
    ++count;
  }

  // The node over what was pushed: missing neighbours are left out.
  TREDUCE_HOST_DEVICE Acc value() const {
    Acc result = O::identity();
    bool any = false;
    const auto add = [&](int k) {
      if (count >> k & 1) {
        result = any ? O::combine(level[k], result) : level[k];
        any = true;
      }
    };
    if constexpr (kDepth <= 8) {
      TREDUCE_UNROLL
      for (int k = 0; k <= kDepth; ++k) add(k);
    } else {
      for (int k = 0; count >> k != 0; ++k) add(k);
    }
    return result;
  }

 private:
  // At a level known at compile time: one found at run time would put the levels into memory.
  template <int k>
  TREDUCE_HOST_DEVICE void place(Acc value) {
    if constexpr (k < kDepth) {
      if (count >> k & 1) return place<k + 1>(O::combine(level[k], value));
    }
    level[k] = value;
  }
};

}  // namespace treduce
