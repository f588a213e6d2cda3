// The launch of a prepared product. It decides nothing.
#pragma once

#include "prepare.h"
#include "rung.h"

namespace treduce::matmul {

// The operands lie as the request said.
inline cudaError_t launch(const Prepared& prepared, const Pointers& pointers, cudaStream_t stream) {
  const Call call{pointers,       prepared, prepared.launches.begin(), prepared.launches.size(), prepared.problem,
                  prepared.dtype, stream};
  return static_cast<cudaError_t>(prepared.row->launcher(call));
}

}  // namespace treduce::matmul
