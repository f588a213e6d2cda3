// One launch as a value. Apart from prepared.h, because every kernel file includes it: no header of the standard library but
// <cstdint>.
#pragma once

#include <cstdint>

namespace treduce {

// One launch of a kernel.
struct LaunchShape {
  const char* kernel = "";  // what it does, for who reads the plan
  int64_t grid = 1, grid_y = 1;
  int block = 1, block_y = 1;  // threads
  int64_t shared_bytes = 0;    // dynamic
  int cluster = 1;             // blocks in a cluster (compute capability 9.0 and later)
  bool cooperative = false;    // the whole grid is resident, so it may synchronise
  bool overlapping = false;    // may begin before the launch before has ended: see primitives/ptx/launch.cuh
};

// Writes a launch to this thread's log, if it has one (launch_log.h).
void log_launch(const LaunchShape& shape);

}  // namespace treduce
