// std::bit_ceil and std::bit_floor of C++20. Host code.
#pragma once

#include <cstdint>

namespace treduce {

// The smallest power of two that is at least n.
constexpr int64_t bit_ceil(int64_t n) {
  int64_t power = 1;
  while (power < n) power *= 2;
  return power;
}

// The largest power of two that is at most n, which is positive.
constexpr int64_t bit_floor(int64_t n) { return bit_ceil(n + 1) / 2; }

}  // namespace treduce
