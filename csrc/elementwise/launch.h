// The launches of a prepared vector_add. They decide nothing.
#pragma once

#include "ladder.h"
#include "rung.h"

namespace treduce::elementwise {

inline cudaError_t launch(const Prepared& prepared, const Pointers& pointers, cudaStream_t stream) {
  return static_cast<cudaError_t>(prepared.request.row->launcher({pointers, prepared, prepared.request, stream}));
}

}  // namespace treduce::elementwise
