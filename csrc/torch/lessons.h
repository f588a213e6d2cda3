// The checks that the CPU, CUDA and Meta bindings of thread_indices_ share.
#pragma once

#include "../lessons/thread_index.h"
#include "checks.h"

namespace treduce::lessons {

// The launch behind `grid` and `block`, each {x} or {x, y}, for a table `out` that has a row for each of its threads.
inline ThreadGrid checked_grid(const at::Tensor& out, at::IntArrayRef grid, at::IntArrayRef block) {
  TORCH_CHECK_VALUE(grid.size() == block.size() && (grid.size() == 1 || grid.size() == 2),
                    "thread_indices_ takes a grid and a block of one dimension each or of two, got ", grid, " and ",
                    block);
  const bool flat = grid.size() == 1;
  const ThreadGrid g{grid[0], flat ? 1 : grid[1], block[0], flat ? 1 : block[1]};
  TORCH_CHECK_VALUE(
      g.block_x >= 1 && g.block_y >= 1 && g.block_x <= 1024 && g.block_y <= 1024 && g.block_x * g.block_y <= 1024,
      "a block has from 1 to 1024 threads, got ", block);
  TORCH_CHECK_VALUE(g.grid_x >= 1 && g.grid_y >= 1 && g.grid_x <= INT32_MAX && g.grid_y <= 65535,
                    "a grid has from 1 to 2147483647 blocks along x and from 1 to 65535 along y, got ", grid);
  TORCH_CHECK_TYPE(out.scalar_type() == at::kLong, "thread_indices_ writes to an int64 tensor, got ",
                   out.scalar_type());
  TORCH_CHECK_VALUE(
      out.dim() == 2 && out.sym_size(0) == g.threads() && out.sym_size(1) == kColumns && out.is_contiguous(),
      "thread_indices_ writes to a contiguous tensor of shape [", g.threads(), ", ", kColumns, "], got ",
      out.sym_sizes(), " with strides ", out.sym_strides());
  return g;
}

}  // namespace treduce::lessons
