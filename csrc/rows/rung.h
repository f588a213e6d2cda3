// What every rung of the ladder of row operations shares: the call that it receives, and how a kernel file makes itself known. Free of
// torch.
#pragma once

#include "../common/launch.h"
#include "../common/launchers.h"
#include "prepare.h"

namespace treduce::rows {

// What a launcher gets, from launch() in launch.h: what was prepared, and pointers. It decides nothing.
struct Call {
  const Prepared& prepared;
  const Request& request;  // prepared.request
  const Pointers& pointers;
  cudaStream_t stream;

  Launch shape() const { return {prepared.launches[0], stream}; }
};

// Tells the ladder which launcher belongs to the row of that name: a static object at the end of each kernel file.
template <cudaError_t (*kLauncher)(const Call&)>
using Rung = RegisterRung<Call, kLauncher>;

}  // namespace treduce::rows
