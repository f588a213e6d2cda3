// Constants of the schedules, each group beside its measurement. None of them changes a bit of a result.
#pragma once

#include <cstdint>

namespace treduce::reduce::tuning {

// Rows. NVIDIA H200, 2026-11-21, those of tiles and whole tensors 2026-11-22: `python benchmarks/run.py --suite grid untuned`
// measures them again.
constexpr int64_t kLaneElements = 512;     // row_lanes takes rows up to here
constexpr int64_t kFewRowsAnSm = 16;       // up to that many, row_warp is preferred to the rungs of short rows
constexpr int64_t kTinyElements = 4;       // and row_tile below that many
constexpr int64_t kTileElements = 128;     // row_tile is preferred up to here where vectors do not fit
constexpr int64_t kTileBytes = 24 * 1024;  // of shared memory at the most
constexpr int64_t kTileShort = 12 * 1024;  // for batches of which that much gives each of 128 threads one,
constexpr int64_t kTileLong = 20 * 1024;   // and for longer ones, with 256 threads
constexpr int64_t kTileRows = 512;         // short rows that a block takes at once
constexpr int64_t kTileLeast = 2 * 1024;   // where batches are few
constexpr int64_t kTilesAnSm = 4;          // where that leaves fewer tiles, they are smaller
constexpr int64_t kBlocksAnSm = 4;         // with that many rows an SM, a block a row fills the chip

constexpr int64_t kElementsAtOnce = 288 << 10;  // up to that many are read one by one, rows at once
constexpr int64_t kRowsAtOnceLeast = 128;       // threads of a row of float32 from which on the chip takes so many of
constexpr int64_t kRowsAtOnceAnSm = 384;        // them an SM, or, where rows are more than four an SM, any number
constexpr int64_t kRowsAtOnceMost = 512;        // up to so many, of which an SM holds two

constexpr int64_t kWholeBlockBytes = 128 * 1024;    // of a whole tensor that one block reads,
constexpr int64_t kWholeClusterBytes = 512 * 1024;  // or eight blocks of a cluster

// A launch begins while the one before still folds where it has so few bytes, or so many blocks an SM.
constexpr int64_t kOverlapBytes = 16 << 20;
constexpr int64_t kOverlapBlocksAnSm = 8;

constexpr int kWholeThreads = 512;  // of a block, where several share it

// A row, or few of them, for the whole chip: see share_rows. Up to kMostSpanBytes a block one wave of blocks is best, above it
// blocks of kSpanBytes.
constexpr int64_t kMostSpanBytes = 2 << 20;
constexpr int64_t kSpanBytes = 512 << 10;
// One long row: short blocks, so that what is read at a time lies close together; but elements of four bytes in one wave while
// its blocks take so little.
constexpr int64_t kLongBytes = 48 << 20;
constexpr int64_t kShortSpanBytes = 128 << 10;
constexpr int64_t kOneGroupSpanBytes = 512 << 10;  // or so much, where that makes one group of them
constexpr int64_t kWholeSpanBytes = 1 << 20;

// Columns. Measured with the same command, on the same GPU and day.
constexpr int64_t kNarrowRun = 32;   // bytes of a row up to which row_tile and column_narrow are considered
constexpr int64_t kColumnRows = 16;  // column_thread is preferred up to here,
constexpr int64_t kColumnWarps = 3;  // and up to 128 rows with that many warps an SM
constexpr int64_t kColumnThreadBlock = 128;
constexpr int64_t kColumnThreadEarly = 4096;      // blocks; of more the next launch waits, which costs tiny blocks less
constexpr int64_t kNarrowColumns = 64;            // column_narrow takes up to that many
constexpr int64_t kNarrowBytes = 40 * 1024;       // of shared memory
constexpr int64_t kNarrowShort = 3 * 128;         // rows of matrices that are short for it
constexpr int64_t kNarrowSums = 16;               // of sums of common floats it is preferred up to that many,
constexpr int64_t kNarrowHalvesBytes = 32 << 20;  // and above, of elements of two bytes, from so many bytes on
constexpr int64_t kNarrowBatchBytes =
    32 << 20;                         // several matrices of less than a run of 32 bytes are taken by rows up to here,
constexpr int64_t kRowWarpsAnSm = 6;  // by row_warp from that many outputs an SM on
constexpr int kColumnThreads = 256;
constexpr int64_t kColumnSide = 8;            // threads side by side where columns are long
constexpr int64_t kColumnBytes = 47 * 1024;   // of shared memory
constexpr int64_t kSharedBlocksTenfold = 20;  // likewise, of columns that blocks share
constexpr int64_t kColumnPartials = 64;       // of a thread of the last block: with more, blocks have more threads
constexpr int64_t kWideBlocksTenfold = 25;    // columns of one chunk in wide blocks while there are 2.5 an SM
constexpr int64_t kColumnBlocksTenfold = 19;  // a block folds more rows while there are 1.9 blocks an SM

}  // namespace treduce::reduce::tuning
