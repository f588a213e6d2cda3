// The kernel of small_f64.cu, which says what it does.
#pragma once

#include "rung.h"

namespace treduce::matmul::small_f64 {

cudaError_t run(const Call& call);

}  // namespace treduce::matmul::small_f64
