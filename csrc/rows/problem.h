// The rows of a call: how many, how long, and how they lie in memory. Host and device, free of torch.
#pragma once

#include <cstdint>

#include "../common/dtypes.h"
#include "ops.h"

namespace treduce::rows {

constexpr int kMostInputs = 2, kMostRowValues = 2;

// Element e of row r of a tensor lies at (r / inner) * outer_stride + (r % inner) * inner_stride + e * element_stride.
struct Layout {
  int64_t outer_stride = 0, inner_stride = 0, element_stride = 1;

  TREDUCE_HOST_DEVICE int64_t row(int64_t r, int64_t inner) const {
    if (inner == 1) return r * outer_stride;
    return r / inner * outer_stride + r % inner * inner_stride;
  }
};

struct Problem {
  int64_t rows = 0, inner = 1, length = 0;
  Layout in[kMostInputs], out;
  double eps = 0;
  bool has_weight = false, has_bias = false;
  bool sums_alone = false;  // of a norm: no elements, and the sums themselves as row values
};

// Whether the call of an op that has them wants an output for each element.
template <class Op>
TREDUCE_ALWAYS_INLINE bool wants_elements(const Problem& problem) {
  return Op::kRowOutputs == 0 || !problem.sums_alone;
}

// Where everything lies. Weight and bias have one element for each place in a row, of the inputs' dtype; row values are accumulators,
// one a row, in the order of the rows. A result that has one value a row is written to `out`, in the inputs' dtype.
struct Pointers {
  const void* in[kMostInputs] = {};
  const void *weight = nullptr, *bias = nullptr;
  const void* row_in[kMostRowValues] = {};
  void* row_out[kMostRowValues] = {};
  void* out = nullptr;
};

}  // namespace treduce::rows
