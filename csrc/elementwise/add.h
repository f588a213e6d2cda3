// The addition of two elements, as torch.add defines it. Host and device compile the same lines.
#pragma once

#include "../common/dtypes.h"

namespace treduce::elementwise {

// 16-bit floats are added in float32 and rounded once, integers wrap, bools are combined with `or`.
template <class T>
TREDUCE_HOST_DEVICE T add(T a, T b) {
  if constexpr (std::is_same_v<T, boolean>) {
    return {static_cast<uint8_t>((a.byte | b.byte) != 0)};
  } else if constexpr (std::is_integral_v<T>) {
    using Unsigned = std::make_unsigned_t<T>;
    return static_cast<T>(static_cast<Unsigned>(a) + static_cast<Unsigned>(b));
  } else {
    return round_to<T>(static_cast<Accumulator<T>>(a) + static_cast<Accumulator<T>>(b));
  }
}

}  // namespace treduce::elementwise
