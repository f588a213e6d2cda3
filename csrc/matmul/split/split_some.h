// The products of split_direct of some lines by up to a few thousand, of long k. Apart from split_direct.cu, because both take long to compile.
#pragma once

#include "../rung.h"

namespace treduce::matmul::split_some {

cudaError_t run(const Call& call);

}  // namespace treduce::matmul::split_some
