// What every rung of the vector_add ladder shares: the call it receives and how a kernel file makes itself known. Free
// of torch.
#pragma once

#include "../common/launch.h"
#include "../common/launchers.h"
#include "add.h"
#include "prepare.h"

namespace treduce::elementwise {

// Where the arrays begin, as the request said.
struct Pointers {
  const void* a;
  const void* b;
  void* c;
};

// What a launcher gets, from launch() in launch.h: what was prepared, and pointers. It decides nothing.
struct Call : Pointers {
  const Prepared& prepared;
  const Request& request;  // prepared.request
  cudaStream_t stream;
};

// Tells the ladder which launcher belongs to the row of that name: a static object at the end of each kernel file.
template <cudaError_t (*kLauncher)(const Call&)>
using Rung = RegisterRung<Call, kLauncher>;

// Calls launch_part(shape, a, b, c, n) with typed pointers for each launch, which takes the elements behind those of the launch
// before.
template <class LaunchPart>
cudaError_t launch_parts(const Call& call, LaunchPart launch_part) {
  return dispatch(call.request.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    cudaError_t error = cudaSuccess;
    int64_t first = 0;
    for (const LaunchShape& shape : call.prepared.launches) {
      const int64_t covered = shape.grid * shape.grid_y * shape.block, left = call.request.n - first;
      const int64_t n = covered < left ? covered : left;
      error = launch_part(Launch{shape, call.stream}, static_cast<const T*>(call.a) + first,
                          static_cast<const T*>(call.b) + first, static_cast<T*>(call.c) + first, n);
      if (error != cudaSuccess) break;
      first += n;
    }
    return error;
  });
}

}  // namespace treduce::elementwise
