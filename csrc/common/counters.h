// Zeroed counters in device memory for kernels whose last block finishes. Free of torch.
//
// Two launches may share a counter only if one ends before the other begins. So an eager call uses the counter of its stream,
// and a captured call gets one of its own, which lives as long as the graph: two graphs may replay at once. Kernels leave a
// counter at zero (atomicInc wraps), so nothing has to be cleared between calls or replays.
#pragma once

#include <cuda_runtime.h>

namespace treduce {

// A counter for the next launch on `stream` of the current device, which is `device`. Safe to call from any thread, and while
// the stream is being captured.
cudaError_t counter_for(int device, cudaStream_t stream, unsigned** counter);

}  // namespace treduce
