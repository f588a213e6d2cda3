// The products of split_fp16 with an operand that is split as it is read: few rows (split_rows.cuh, split_warps.cuh), or few rows and
// columns (split_both.cuh). Apart from split_fp16.cu, because both take long to compile.
#pragma once

#include "../rung.h"

namespace treduce::matmul::split_as_read {

// All launches but the last, which finishes.
cudaError_t run(const Call& call, const Operand& a, const Operand& b, const SplitOperand<float16>& split_a,
                const SplitOperand<float16>& split_b, float* partials);

}  // namespace treduce::matmul::split_as_read
