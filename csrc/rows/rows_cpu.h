// Row operations on the CPU: the additions of the kernels in the same order, hence the same bits.
#pragma once

#include "prepare.h"

namespace treduce::rows {

void run_on_cpu(const Request& request, const Pointers& pointers);

// Elementwise functions of primitives/elementary.h, of `count` elements of float32 or float64.
enum class Function : int8_t { exp, log, rsqrt, sqrt };
void apply_on_cpu(Function function, bool is_double, const void* from, int64_t count, void* to);

}  // namespace treduce::rows
