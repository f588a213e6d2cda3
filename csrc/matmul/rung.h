// What every rung of the matmul ladder shares: the call it receives, how blocks map to tiles of the output, and how a
// kernel file makes itself known. Free of torch.
#pragma once

#include <algorithm>

#include "../common/launch.h"
#include "ladder.h"

namespace treduce::matmul {

struct Call {
  Problem problem;  // at least one output
  DType dtype;
  const void* a;
  const void* b;
  void* c;
  int tile;
  void* workspace;  // as many bytes as the row asks for
  int multiprocessors;
  cudaStream_t stream;
};

// Tells the ladder which launcher belongs to the row of that name: a static object at the end of each kernel file.
template <cudaError_t (*kLauncher)(const Call&)>
using Rung = RegisterRung<Call, kLauncher>;

// The outputs, cut into tiles of kTileM x kTileN and numbered: along a row of tiles first, then down, then batch by
// batch. One number and not a 2-D grid, because gridDim.y ends at 65535.
template <int kTileM, int kTileN>
struct Tiles {
  int64_t across, down, count;

  explicit Tiles(const Problem& p)
      : across((p.n + kTileN - 1) / kTileN), down((p.m + kTileM - 1) / kTileM), count(p.batches * down * across) {}

  // One block a tile; past what a grid holds, blocks take several (see the loops in the kernels).
  int64_t grid() const { return std::min<int64_t>(count, INT32_MAX); }

  struct Place {
    int64_t batch, row, column;  // of the tile's first output
  };
  TREDUCE_HOST_DEVICE Place place(int64_t tile) const {
    const int64_t line = tile / across;
    return {line / down, line % down * kTileM, tile % across * kTileN};
  }

  // The same tiles in bands of kBand down, within a band column by column: blocks that run together then read few rows of
  // A and few columns of B, which come from the L2.
  static constexpr int kBand = 8;
  TREDUCE_HOST_DEVICE Place place_in_bands(int64_t tile) const {
    const int64_t within = tile % (down * across);
    const int64_t band = within / (kBand * across), rest = within % (kBand * across);
    const int64_t height = down - band * kBand < kBand ? down - band * kBand : kBand;
    return {tile / (down * across), (band * kBand + rest % height) * kTileM, rest / height * kTileN};
  }
};

}  // namespace treduce::matmul
