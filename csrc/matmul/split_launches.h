// What prepare and the kernels of split_fp16 and split_bf16 share beside split.h and shapes.h: how the work of their small launches is
// cut. Host code, free of torch and CUDA.
#pragma once

#include "shapes.h"
#include "split.h"

namespace treduce::matmul {

namespace split {

// Few lines are split by a cluster a line: with as many threads as it has segments for, up to kLineThreads and the largest cluster that
// every chip takes.
struct LineBlocks {
  int threads, blocks;
};
inline LineBlocks line_blocks_of(int64_t segments) {
  LineBlocks l = {64, 1};
  while (l.threads < kLineThreads && l.threads < segments * kLanes) l.threads *= 2;
  while (l.blocks < 8 && int64_t(l.blocks) * l.threads < segments * kLanes) l.blocks *= 2;
  return l;
}

// Rows of a tile that the last launch adds at a time.
constexpr int kFinishRows = kThreads / (kFinishTile / 4);

}  // namespace split

namespace split_rows {

// Blocks may share a group of k, each a part of its segments: they leave the segments' sums, and the units of W's lines, to a launch
// that adds them. The regions are those that an operand split as it is read has no other use for: halves and units.
constexpr int kMostPartRows = 64;  // with more rows registers do not suffice
constexpr int kAddThreads = 128;   // of a block that adds: as many as multiplied a tile, four outputs of each
constexpr int quads_of(int rows) { return kLines * rows / 4 / kAddThreads; }

}  // namespace split_rows

}  // namespace treduce::matmul
