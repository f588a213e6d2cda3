// The products of split_direct of one row or column by lines along k. Apart from split_direct.cu, because both take long to compile.
#pragma once

#include "../rung.h"

namespace treduce::matmul::split_single {

cudaError_t run(const Call& call);

}  // namespace treduce::matmul::split_single
