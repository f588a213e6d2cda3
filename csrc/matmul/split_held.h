// The products of split_direct with up to 64 lines of one operand and short k. Apart from split_direct.cu, because both take long to
// compile.
#pragma once

#include "rung.h"

namespace treduce::matmul::split_held {

cudaError_t run(const Call& call);

}  // namespace treduce::matmul::split_held
