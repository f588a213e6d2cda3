// The products of split_direct of few lines of one operand by many of the other, and short k. Apart from split_direct.cu, because
// both take long to compile.
#pragma once

#include "../rung.h"

namespace treduce::matmul::split_held {

cudaError_t run(const Call& call);

}  // namespace treduce::matmul::split_held
