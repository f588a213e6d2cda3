// The products of split_fp16 of up to 128 rows or columns by very many of the other. Apart from split_as_read.cu, because all take long
// to compile.
#pragma once

#include "../rung.h"

namespace treduce::matmul::split_wide {

// The launch that multiplies, or the one after it, which multiplies what the first leaves. `of_a`: w, the operand with the many lines, is
// A; boxes: of w. kIndex: of split_rows::kShapes.
template <int kIndex>
cudaError_t run_shape(const Call& call, bool of_a, const Boxes& boxes, const Operand& w, const Operand& x,
                      const SplitOperand<float16>& split_w, const SplitOperand<float16>& split_x, float* partials,
                      bool first);

}  // namespace treduce::matmul::split_wide
