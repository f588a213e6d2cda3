// The launch of a prepared reduction. It decides nothing; but the grid of the rung `cooperative` is as large as the driver says that the
// chip holds at once, up to what was prepared.
#pragma once

#include "ladder.h"
#include "rung.h"

namespace treduce::reduce {

inline cudaError_t launch(const Prepared& prepared, const Pointers& pointers, cudaStream_t stream) {
  return static_cast<cudaError_t>(prepared.kernel->launcher(Call(prepared, pointers, stream)));
}

}  // namespace treduce::reduce
