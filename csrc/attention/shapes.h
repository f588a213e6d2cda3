// What prepare and the kernels must agree on.
#pragma once

#include "../common/macros.h"
#include "../common/round.h"
#include "attention.h"

namespace treduce::attention {

constexpr int kTile = 64;     // queries or keys that a block takes at a time: an order of additions
constexpr int kStep = 32;     // keys of a step of softmax: likewise
constexpr int kQueries = 96;  // of a block of the forward, whose warps have 16 each
constexpr int kForwardThreads = kQueries / 16 * 32;
constexpr int kStages = 2, kManyStages = 8;  // steps of keys and values in shared memory; where a GPU has few blocks
constexpr int kThreads = 128;                // a warp for each 16 lines of a tile
constexpr int kNarrow = 64, kWide = kMostWidth;  // the widths that kernels are compiled for

inline int compiled_width(const Problem& p) { return p.width <= kNarrow && p.value_width <= kNarrow ? kNarrow : kWide; }
// What the backward knows of each query, padded to whole tiles.
TREDUCE_HOST_DEVICE constexpr int64_t padded_length(int64_t length) { return round_up(length, kTile); }

constexpr const char* kLogSums = "log_sums";  // of exp(score): what makes a score a probability
constexpr const char* kAlong = "along";       // probabilities times their gradients, summed

}  // namespace treduce::attention
