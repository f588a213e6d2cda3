// What happens to nodes after the kernels of pairwise_cpu_kernels.h: they are folded further, and stored as results.
#pragma once

#include "ladder.h"
#include "result.h"

namespace treduce::reduce::cpu {

struct NodeOps {
  int node_size;  // bytes
  // nodes[k * width + c], k < count: neighbours in k, for each c, into nodes[c].
  void (*fold)(void* nodes, int64_t count, int64_t width);
  // nodes[i], i < count, to element at + i * stride of the result.
  void (*store)(const void* nodes, int64_t count, const Result& result, int64_t at, int64_t stride);
};

// For nodes of the kernels of this dtype.
const NodeOps* node_ops(Op op, Arithmetic arithmetic, DType dtype);

}  // namespace treduce::reduce::cpu
