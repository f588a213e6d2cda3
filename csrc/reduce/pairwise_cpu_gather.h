// Copies of elements that lie apart, or that must be converted, into a buffer that the kernels can read.
#pragma once

#include "../common/dtypes.h"

namespace treduce::reduce::cpu {

// Element (i, j) lies at i * row + j * column, in elements, and is copied to i * pitch + j.
struct Area {
  int64_t rows, row, columns, column, pitch;
};

// Copies the elements of the area at `x`.
using Gather = void (*)(const void* x, const Area& area, DType target, void* result);

// Elements of `size` bytes as they are.
Gather copier_of(int64_t size);

// Elements of dtype `from`, each converted to `target`, which the call of the function names again, and kept as an accumulator
// of it.
Gather converter_of(DType from, DType target);

}  // namespace treduce::reduce::cpu
