// The kernel of short_k.cu, which says what it does.
#pragma once

#include "rung.h"

namespace treduce::matmul::short_k {

cudaError_t run(const Call& call);

}  // namespace treduce::matmul::short_k
