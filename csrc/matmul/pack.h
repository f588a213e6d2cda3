// Copies of operands that a kernel cannot read where they lie: rows start at multiples of 16 bytes, and k or the lines are
// contiguous as the View says.
#pragma once

#include <cuda_runtime.h>

#include "operand.h"
#include "rung.h"

namespace treduce::matmul {

// Both operands of a call as they are read, after the launch, the first, that copies one or both where these cannot be read as they lie.
cudaError_t pack_operands(const Call& call, Boxes& a, Boxes& b);

}  // namespace treduce::matmul
