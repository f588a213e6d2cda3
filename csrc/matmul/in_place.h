// The kernel of in_place.cu, which says what it does. Apart from persistent.cu, because both take long to compile.
#pragma once

#include "rung.h"

namespace treduce::matmul::in_place {

cudaError_t run(const Call& call);

}  // namespace treduce::matmul::in_place
