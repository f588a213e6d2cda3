// Rounding up, of numbers that are not negative.
#pragma once

#include <cstdint>

#include "macros.h"

namespace treduce {

TREDUCE_HOST_DEVICE constexpr int64_t ceil_div(int64_t count, int64_t by) { return (count + by - 1) / by; }

TREDUCE_HOST_DEVICE constexpr int64_t round_up(int64_t count, int64_t multiple) {
  return ceil_div(count, multiple) * multiple;
}

}  // namespace treduce
