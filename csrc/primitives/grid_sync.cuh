// The barrier of a whole grid. Apart from grid.cuh, because the header of cooperative groups takes seconds to compile.
#pragma once

#include "shared.cuh"

#ifndef TREDUCE_EMULATOR
#include <cooperative_groups.h>

namespace treduce::grid {

// Waits for every thread of the grid; global memory written before is seen after.
// Who calls: every thread of every block. Needs: a cooperative launch, which fits the chip at once.
TREDUCE_DEVICE void sync() { cooperative_groups::this_grid().sync(); }

}  // namespace treduce::grid
#endif
