// How the rungs of staged.cuh read their operands: what a launch does before a kernel, and how much memory it needs for that.
// Host code, free of torch and CUDA.
#pragma once

#include "operand.h"

namespace treduce::matmul {

// Contiguous along k or along the lines, as it comes; but of 32-bit and of 8-bit elements k has to be contiguous, since
// ldmatrix exchanges rows and columns of 16-bit elements only.
constexpr bool staged_any_direction(int element_bytes) { return element_bytes == 2 || element_bytes == 8; }

// float64 needs no copy for its alignment: 8 bytes are copied at once where 16 cannot.
inline View staged_view(const Operand& o) {
  View view = view_of(o, staged_any_direction(o.element_bytes), true);
  if (o.element_bytes != 8 || view.reading != Reading::rows) return view;
  view.reading = Reading::direct;
  view.copied_bytes = 0;
  Boxes& boxes = view.boxes;
  boxes.data = o.data;
  boxes.pitch = boxes.along_k ? o.line_stride : o.depth_stride;
  for (int d = 0; d < 2; ++d) boxes.batch_pitch[d] = o.batch_stride[d];
  return view;
}
// Whether threads may copy all of it 16 bytes at once.
inline bool has_whole_chunks(const Boxes& boxes) {
  int64_t elements = boxes.inner | boxes.pitch;
  for (int d = 0; d < 2; ++d) elements |= boxes.batch_size[d] == 1 ? 0 : boxes.batch_pitch[d];
  return boxes.element_bytes < 8 || (elements % 2 == 0 && reinterpret_cast<uint64_t>(boxes.data) % 16 == 0);
}

inline View staged_a(const Problem& p, const void* a, int bytes) { return staged_view(operand_a(p, a, bytes)); }
inline View staged_b(const Problem& p, const void* b, int bytes) { return staged_view(operand_b(p, b, bytes)); }

}  // namespace treduce::matmul
