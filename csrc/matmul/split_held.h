// The products of split_direct with many lines of one operand, in rows that the copy engine cannot read, and short k. Apart from
// split_direct.cu, because both take long to compile.
#pragma once

#include "rung.h"

namespace treduce::matmul::split_held {

cudaError_t run(const Call& call);

}  // namespace treduce::matmul::split_held
