// What prepare and the kernels must agree on.
#pragma once

#include "segments.h"

namespace treduce::segments {

constexpr int kBlock = 256;  // threads that take short runs
// Indices that a thread asks, at most, whether a run begins there, and threads that a call shall have before they ask for more than one.
constexpr int kMostIndices = 8;
constexpr int64_t kEnoughThreads = 1 << 20;
constexpr int kLong = 32;  // rows: in a longer run, several teams add a part each
// Blocks of long runs that a call shall have, if its rows are wide enough: fewer take several slabs of columns one after another.
constexpr int64_t kEnoughBlocks = 4096;
constexpr int kLanes = 32, kTeams = 16;  // of a block that takes long runs; a lane adds a few neighbouring columns

}  // namespace treduce::segments
