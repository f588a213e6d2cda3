// Rounding up, and powers of two, of numbers that are not negative.
#pragma once

#include <cstdint>

#include "macros.h"

namespace treduce {

TREDUCE_HOST_DEVICE constexpr int64_t ceil_div(int64_t count, int64_t by) { return (count + by - 1) / by; }

TREDUCE_HOST_DEVICE constexpr int64_t round_up(int64_t count, int64_t multiple) {
  return ceil_div(count, multiple) * multiple;
}

// Of a power of two: a shift where a division by what is known at run time would take twenty instructions.
TREDUCE_HOST_DEVICE constexpr int log2_of(int64_t power) {
  int shift = 0;
  while (int64_t{1} << shift < power) ++shift;
  return shift;
}

}  // namespace treduce
