// vector_add on the CPU.
#pragma once

#include "../common/dtypes.h"

namespace treduce::elementwise {

// c[i] = a[i] + b[i] for n elements of `dtype`.
void add_on_cpu(DType dtype, const void* a, const void* b, void* c, int64_t n);

}  // namespace treduce::elementwise
