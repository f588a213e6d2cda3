// How the rungs of staged.cuh read their operands: what a launch does before a kernel, and how much memory it needs for that.
// Host code, free of torch and CUDA.
#pragma once

#include "operand.h"

namespace treduce::matmul {

// Contiguous along k or along the lines, as it comes; but of 32-bit and of 8-bit elements k has to be contiguous, since
// ldmatrix exchanges rows and columns of 16-bit elements only.
constexpr bool staged_any_direction(int element_bytes) { return element_bytes == 2 || element_bytes == 8; }

inline View staged_a(const Problem& p, const void* a, int bytes) {
  return view_of(operand_a(p, a, bytes), staged_any_direction(bytes), true);
}
inline View staged_b(const Problem& p, const void* b, int bytes) {
  return view_of(operand_b(p, b, bytes), staged_any_direction(bytes), true);
}

}  // namespace treduce::matmul
