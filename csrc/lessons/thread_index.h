// The first lesson: the block, thread and global index of each thread of a launch. The CPU and a kernel compile the same lines.
// Free of torch and CUDA.
#pragma once

#include <cstdint>

#include "../common/macros.h"
#include "../common/prepared.h"

namespace treduce::lessons {

// A launch; x runs fastest, as in CUDA.
struct ThreadGrid {
  int64_t grid_x, grid_y, block_x, block_y;

  int64_t threads() const { return grid_x * grid_y * block_x * block_y; }
};

struct Index {
  int64_t x, y;
};

// block.y, block.x, thread.y, thread.x, global y, global x, global index
constexpr int kColumns = 7;

// Writes the row of one thread. Its global index counts row by row over the whole launch, and is also its row in the table.
TREDUCE_HOST_DEVICE void write_row(const ThreadGrid& g, Index block, Index thread, int64_t* table) {
  const int64_t y = block.y * g.block_y + thread.y;
  const int64_t x = block.x * g.block_x + thread.x;
  const int64_t index = y * (g.grid_x * g.block_x) + x;
  int64_t* row = table + index * kColumns;
  row[0] = block.y;
  row[1] = block.x;
  row[2] = thread.y;
  row[3] = thread.x;
  row[4] = y;
  row[5] = x;
  row[6] = index;
}

inline LaunchShape prepare(const ThreadGrid& g) {
  LaunchShape shape;
  shape.kernel = "thread_indices";
  shape.grid = g.grid_x;
  shape.grid_y = g.grid_y;
  shape.block = static_cast<int>(g.block_x);
  shape.block_y = static_cast<int>(g.block_y);
  return shape;
}

// Runs the kernel; `stream` is a cudaStream_t, the result a cudaError_t.
int launch_thread_indices(const ThreadGrid& grid, const LaunchShape& prepared, int64_t* table, void* stream);

}  // namespace treduce::lessons
