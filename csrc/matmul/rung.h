// What every rung of the matmul ladder shares: the call it receives, how blocks map to tiles of the output, and how a
// kernel file makes itself known. Free of torch.
#pragma once

#include "../common/launch.h"
#include "../common/launchers.h"
#include "problem.h"

namespace treduce::matmul {

struct Call {
  Problem problem;  // at least one output
  DType dtype;
  const void* a;
  const void* b;
  void* c;
  const void* bias;  // see with_bias: n elements side by side; null: none, as always where k is 0
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
      : across(ceil_div(p.n, kTileN)), down(ceil_div(p.m, kTileM)), count(p.batches * down * across) {}

  // One block a tile; past what a grid holds, blocks take several (see the loops in the kernels).
  int64_t grid() const { return count < INT32_MAX ? count : INT32_MAX; }

  struct Place {
    int64_t batch, row, column;  // of the tile's first output
  };
  TREDUCE_HOST_DEVICE Place place(int64_t tile) const {
    const int64_t line = tile / across;
    return {line / down, line % down * kTileM, tile % across * kTileN};
  }

  // As place, but kGroup rows of tiles are walked down before the next column: tiles that are computed at the same time then
  // form a block and not a line, and need fewer rows of A and columns of B among them.
  template <int kGroup>
  TREDUCE_HOST_DEVICE Place place_in_groups(int64_t tile) const {
    const int64_t batch = tile / (down * across), within = tile % (down * across);
    const int64_t first = within / (kGroup * across) * kGroup, in_group = within % (kGroup * across);
    const int64_t rows = down - first < kGroup ? down - first : kGroup;
    return {batch, (first + in_group % rows) * kTileM, in_group / rows * kTileN};
  }
};

// Launches a kernel of C::kThreads threads, with a block for each tile of C::Tiles.
template <class T, class C, class Kernel>
cudaError_t launch_tiles(Kernel* kernel, const Call& call, size_t shared_bytes = 0) {
  const typename C::Tiles tiles(call.problem);
  Launch shape;
  shape.grid = tiles.grid();
  shape.block = C::kThreads;
  shape.shared_bytes = shared_bytes;
  shape.stream = call.stream;
  return launch(kernel, shape, static_cast<const T*>(call.a), static_cast<const T*>(call.b),
                static_cast<Result<T>*>(call.c), static_cast<const Result<T>*>(call.bias), call.problem, tiles);
}

// The column of an output, from its address: for those who cannot spare a register to keep it while k runs. Past the edge
// it is some column.
template <class T>
TREDUCE_DEVICE int64_t column_of(const T* output, const T* c, int64_t n) {
  return (output - c) % n;
}

// True if pairs of outputs are aligned in every row.
template <class T>
TREDUCE_DEVICE bool aligned_pairs(const T* c, int64_t n) {
  return n % 2 == 0 && reinterpret_cast<uint64_t>(c) % (2 * sizeof(T)) == 0;
}

}  // namespace treduce::matmul
