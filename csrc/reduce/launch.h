// The launch of a prepared reduction. It decides nothing.
#pragma once

#include "ladder.h"
#include "rung.h"

namespace treduce::reduce {

inline cudaError_t launch(const Prepared& prepared, const Pointers& pointers, cudaStream_t stream) {
  return static_cast<cudaError_t>(prepared.kernel->launcher(Call(prepared, pointers, stream)));
}

}  // namespace treduce::reduce
