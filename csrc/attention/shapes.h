// What prepare and the kernels must agree on.
#pragma once

#include "../common/macros.h"
#include "../common/round.h"
#include "attention.h"

namespace treduce::attention {

// Orders of additions:
constexpr int kTile = 64;    // queries or keys that a block of the backward takes at a time
constexpr int kStep = 64;    // keys of a step of softmax
constexpr int kPiece = 512;  // keys that are added by themselves before they meet the pieces before them

constexpr int kNarrow = 64, kWide = kMostWidth;  // the widths that kernels are compiled for
inline int compiled_width(const Problem& p) { return p.width <= kNarrow && p.value_width <= kNarrow ? kNarrow : kWide; }

constexpr int kWarps = 4, kThreads = 32 * kWarps;
constexpr int kLines = 16;  // of a tile, that a warp multiplies
static_assert(kTile == kWarps * kLines);

TREDUCE_HOST_DEVICE constexpr int64_t pieces_of(int64_t keys) { return (keys + kPiece - 1) / kPiece; }

// Of pieces.cu: of each step a maximum for each line and two sums for each lane; queries, probabilities, and for each warp two steps of
// keys and half of a quarter of the values.
constexpr int64_t piece_bytes(int width) {
  return int64_t{4} * (kPiece / kStep) * (kLines + 2 * 32) + int64_t{2} * kLines * (width + kPiece) +
         int64_t{2} * kWarps * 3 * kStep * width;
}
constexpr const char* kSums = "sums";  // of pieces: sums of values, maxima of scores, and sums of their exponentials
constexpr const char* kMost = "most";
constexpr const char* kSum = "sum";

// Kernels of warp groups: each multiplies 64 lines, queries or keys; one more copies.
constexpr int kWarpGroup = 128;       // threads
constexpr int kTileAlignment = 1024;  // bytes, of swizzled tiles
struct Groups {
  int groups, stages;  // of warps; of tiles in shared memory, a pair each
  constexpr int lines() const { return groups * kTile; }
  constexpr int threads() const { return (groups + 1) * kWarpGroup; }
  // Of a thread that multiplies and of one that copies: no more than the launch gave to all, an equal share of 65536.
  constexpr int registers() const { return groups == 4 ? 112 : groups == 3 ? 160 : 240; }
  constexpr int copier_registers() const { return groups == 2 ? 24 : 32; }
  // Whether a group multiplies values while it takes the next exponentials, for which four have no registers.
  constexpr bool overlaps() const { return groups < 4; }
};
constexpr Groups kForwardNarrow{4, 2}, kForwardWide{3, 2}, kBackward{2, 2};
// What reads a mask needs registers for that.
constexpr const Groups& groups_of(int width, bool masks) {
  return width == kWide || masks ? kForwardWide : kForwardNarrow;
}

// Lines of the compiled width that a kernel holds in shared memory: those of its groups and of the ring.
constexpr int forward_lines(const Groups& g) { return g.lines() + 2 * g.stages * kTile; }
constexpr int backward_lines(const Groups& g) { return 2 * g.lines() + 2 * g.stages * kTile; }
// What pieces come to: 32-bit sums of each line, and for each of the eight threads that share two of them, maxima and sums.
constexpr int64_t totals_bytes(int lines, int width) { return int64_t{4} * lines * (width + 8); }

// One query of each head: heads that share keys become the lines of one head, so that keys are read once.
inline Matrices heads_as_lines(const Matrices& m, int64_t group) { return {m.data, m.batch, m.head * group, m.head}; }
inline Problem with_heads_as_lines(Problem p) {
  if (p.length != 1) return p;
  p.query = heads_as_lines(p.query, p.group);
  p.mask.row = p.mask.head;
  p.mask.head *= p.group;
  p.length = p.group;
  p.heads /= p.group;
  p.group = 1;
  if (p.causal) p.keys = 1;
  p.causal = false;
  return p;
}

// What the backward knows of each query, padded to whole tiles.
TREDUCE_HOST_DEVICE constexpr int64_t padded_length(int64_t length) { return round_up(length, kTile); }

constexpr const char* kLogSums = "log_sums";  // of 2^score: what makes a score a probability
constexpr const char* kAlong = "along";       // probabilities times their gradients, summed

}  // namespace treduce::attention
