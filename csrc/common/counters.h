// Zeroed counters in device memory for kernels whose last block finishes. Free of torch.
//
// Two launches may share a counter only if one ends before the other begins. So eager calls use the counters of their stream,
// and a captured call gets some of its own, which live as long as the graph: two graphs may replay at once. Kernels leave a
// counter at zero (atomicInc wraps), so nothing has to be cleared between calls or replays.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "prepared.h"

namespace treduce {

// Reserves `count` neighbouring counters (at most kMostCounters) for the next launch on `stream` and returns the first. `device` is the
// current device. Safe to call from any thread, and while the stream is being captured.
cudaError_t counters_for(int device, cudaStream_t stream, int64_t count, unsigned** first);

}  // namespace treduce
