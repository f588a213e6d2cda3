// Constants of the schedules, each group beside its measurement. None of them changes a bit of a result.
#pragma once

#include <cstdint>

namespace treduce::reduce::tuning {

// Rows. NVIDIA H200, 2026-11-21: `python benchmarks/run.py --suite grid` measures them again.
constexpr int64_t kLaneElements = 128;     // row_lanes takes rows up to here
constexpr int64_t kTileElements = 64;      // row_tile is preferred up to here where vectors do not fit
constexpr int64_t kTileBytes = 24 * 1024;  // of shared memory
constexpr int64_t kClusterChunks = 128;    // row_cluster is preferred up to here, from nine on
constexpr int64_t kBlocksAnSm = 4;         // with that many rows an SM, a block a row fills the chip

// A row for the whole chip: up to `chunks` in all, `span` of them a block of `block` threads.
struct WholeRow {
  int64_t chunks;
  int64_t span;
  int block;
};
constexpr WholeRow kWholeRows[] = {
    {512, 4, 128},      {2048, 8, 256},     {8192, 16, 512},        {32768, 32, 256},
    {131072, 128, 256}, {524288, 256, 256}, {INT64_MAX, 1024, 512},
};

// Columns.
constexpr int64_t kNarrowColumns = 32;       // column_narrow takes up to that many
constexpr int64_t kNarrowBytes = 40 * 1024;  // of shared memory
constexpr int kColumnThreads = 256;
constexpr int64_t kColumnBytes = 47 * 1024;   // of shared memory
constexpr int64_t kColumnBlocksTenfold = 19;  // a block folds more rows while there are 1.9 blocks an SM

}  // namespace treduce::reduce::tuning
