// std::bit_ceil of C++20. Host code.
#pragma once

#include <cstdint>

namespace treduce {

// The smallest power of two that is at least n.
constexpr int64_t bit_ceil(int64_t n) {
  int64_t power = 1;
  while (power < n) power *= 2;
  return power;
}

}  // namespace treduce
