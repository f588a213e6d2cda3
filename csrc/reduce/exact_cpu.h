// Exact sums along dims on the CPU: the bits of the CUDA rung, since exact values have no order.
#pragma once

#include "geometry.h"
#include "result.h"

namespace treduce::reduce {

// The arguments of reduce_on_cpu (pairwise_cpu.h); for sums and means of floats and complex numbers alone, for nothing
// else rounds.
void reduce_exactly_on_cpu(Op op, DType dtype, DType target, bool converting, const void* input,
                           const Geometry& geometry, const Result& result);

}  // namespace treduce::reduce
