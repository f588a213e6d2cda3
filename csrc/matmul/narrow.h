// The kernels of narrow.cu, which says what they do. Apart from persistent.cu, because both take long to compile.
#pragma once

#include "rung.h"

namespace treduce::matmul::narrow {

cudaError_t run(const Call& call, const Boxes& a, const Boxes& b);

}  // namespace treduce::matmul::narrow
