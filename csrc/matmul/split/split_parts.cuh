// Products by three bfloat16 parts, as split_fp16 ends with them (see kernels/split_bf16.cu).
#pragma once

#include "../rung.h"
#include "split_segment.cuh"

namespace treduce::matmul::split_bf16 {

// Splits both operands into parts and multiplies these, a range of groups of k after another, from the prepared launch `step` on:
// the outputs that arithmetic_of says, or where the codes of lines are not known as sets, all. Groups that are apart go to
// `partials`.
cudaError_t run(const Call& call, int step, const Operand& a, const Operand& b, const split::Operand16& split_a,
                const split::Operand16& split_b, float* partials);

}  // namespace treduce::matmul::split_bf16
