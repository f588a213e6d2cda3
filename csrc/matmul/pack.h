// Copies of operands that a kernel cannot read where they lie: rows start at multiples of 16 bytes, and k or the lines are
// contiguous as the View says.
#pragma once

#include <cuda_runtime.h>

#include "operand.h"
#include "rung.h"

namespace treduce::matmul {

// Copies the operand to `copy`, as `view` says.
cudaError_t pack(const Operand& o, const View& view, void* copy, const Launch& shape);

// Both operands of a call as they are read, after the launches that copy them: A's first.
inline cudaError_t pack_operands(const Call& call, Boxes& a, Boxes& b) {
  const Decisions& prepared = call.prepared;
  const View &view_a = prepared.view_a, &view_b = prepared.view_b;
  const bool copies_a = view_a.reading != Reading::direct, copies_b = view_b.reading != Reading::direct;
  void *const copy_a = call.region<char>(prepared.copy_a), *const copy_b = call.region<char>(prepared.copy_b);
  a = view_a.boxes;
  b = view_b.boxes;
  a.data = copies_a ? copy_a : call.a;
  b.data = copies_b ? copy_b : call.b;
  cudaError_t error = cudaSuccess;
  if (copies_a) error = pack(operand_a(call.problem, call.a, a.element_bytes), view_a, copy_a, call.step(0));
  if (error != cudaSuccess || !copies_b) return error;
  return pack(operand_b(call.problem, call.b, b.element_bytes), view_b, copy_b, call.step(copies_a ? 1 : 0));
}

}  // namespace treduce::matmul
