// The launch of a prepared row operation. It decides nothing.
#pragma once

#include "ladder.h"
#include "rung.h"

namespace treduce::rows {

inline cudaError_t launch(const Prepared& prepared, const Pointers& pointers, cudaStream_t stream) {
  return static_cast<cudaError_t>(prepared.rung->launcher({prepared, prepared.request, pointers, stream}));
}

}  // namespace treduce::rows
