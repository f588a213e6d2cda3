// Division of indices. Host code, free of torch and CUDA; dividing compiles for the device too.
#pragma once

#include <cstdint>

#include "macros.h"

namespace treduce {

// Division by a number known on the host: a multiplication and a shift. For numerators below 2^63.
// Source: Torbjörn Granlund and Peter Montgomery, Division by invariant integers using multiplication (1994).
struct Divider {
  int64_t divisor = 1;
  uint64_t magic = 0;  // 0: the divisor is 1
  int shift = 0;

  Divider() = default;
  explicit Divider(int64_t d) : divisor(d) {
    if (d <= 1) return;
    int bits = 64 - __builtin_clzll(static_cast<uint64_t>(d - 1));  // smallest with d <= 2^bits
    // magic = ceil(2^(63 + bits) / d) is below 2^64 and exact enough for every n below 2^63.
    const unsigned __int128 power = static_cast<unsigned __int128>(1) << (63 + bits);
    magic = static_cast<uint64_t>((power + static_cast<unsigned __int128>(d) - 1) / static_cast<unsigned __int128>(d));
    shift = bits - 1;
  }

  TREDUCE_HOST_DEVICE int64_t quotient(int64_t n) const {
    if (magic == 0) return n;
#ifdef __CUDA_ARCH__
    return static_cast<int64_t>(__umul64hi(static_cast<uint64_t>(n), magic) >> shift);
#else
    return static_cast<int64_t>(static_cast<uint64_t>(static_cast<unsigned __int128>(n) * magic >> 64) >> shift);
#endif
  }
  // The same for numerators below 2^31, in 32 bits.
  TREDUCE_HOST_DEVICE uint32_t quotient_of_small(uint32_t n) const {
    if (magic == 0) return n;
    const uint32_t upper = static_cast<uint32_t>(magic >> 32) + (static_cast<uint32_t>(magic) != 0);
    return static_cast<uint32_t>(static_cast<uint64_t>(n) * upper >> 32) >> shift;
  }
};

}  // namespace treduce
