// Copies of operands that a kernel cannot read where they lie: rows start at multiples of 16 bytes, and k or the lines are
// contiguous as the View says.
#pragma once

#include <cuda_runtime.h>

#include "operand.h"
#include "rung.h"

namespace treduce::matmul {

// Copies the operand to `workspace`, as `to` says.
cudaError_t pack(const Operand& o, const Boxes& to, void* workspace, cudaStream_t stream);

// Makes `view` readable: where it needs a copy, copies to the workspace and moves `workspace` past it.
inline cudaError_t pack(const Operand& o, View& view, char*& workspace, cudaStream_t stream) {
  if (view.reading == Reading::direct) return cudaSuccess;
  view.boxes.data = workspace;
  workspace += view.copied_bytes;
  return pack(o, view.boxes, const_cast<void*>(view.boxes.data), stream);
}

// Both operands of a call, into its workspace: A's copy first.
inline cudaError_t pack_operands(const Call& call, int bytes, View& a, View& b) {
  char* workspace = static_cast<char*>(call.workspace);
  const cudaError_t error = pack(operand_a(call.problem, call.a, bytes), a, workspace, call.stream);
  if (error != cudaSuccess) return error;
  return pack(operand_b(call.problem, call.b, bytes), b, workspace, call.stream);
}

}  // namespace treduce::matmul
