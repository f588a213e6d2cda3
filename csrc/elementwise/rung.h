// What every rung of the vector_add ladder shares: the call it receives and how a kernel file makes itself known. Free
// of torch.
#pragma once

#include <algorithm>

#include "../common/launch.h"
#include "../common/launchers.h"
#include "../common/round.h"
#include "add.h"

namespace treduce::elementwise {

// c[i] = a[i] + b[i] for 0 <= i < n, three contiguous arrays. n > 0.
struct Call {
  DType dtype;
  const void* a;
  const void* b;
  void* c;
  int64_t n;
  int block;
  cudaStream_t stream;
};

// Tells the ladder which launcher belongs to the row of that name: a static object at the end of each kernel file.
template <cudaError_t (*kLauncher)(const Call&)>
using Rung = RegisterRung<Call, kLauncher>;

// For a kernel with one element a thread: launches it for as many elements at a time as `most_blocks` blocks cover.
// launch_part(a, b, c, n, blocks) gets typed pointers.
template <class LaunchPart>
cudaError_t launch_parts(const Call& call, int64_t most_blocks, LaunchPart launch_part) {
  return dispatch(call.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    cudaError_t error = cudaSuccess;
    const int64_t most = most_blocks * call.block;
    for (int64_t first = 0; first < call.n && error == cudaSuccess; first += most) {
      const int64_t n = std::min(most, call.n - first);
      error = launch_part(static_cast<const T*>(call.a) + first, static_cast<const T*>(call.b) + first,
                          static_cast<T*>(call.c) + first, n, ceil_div(n, call.block));
    }
    return error;
  });
}

}  // namespace treduce::elementwise
