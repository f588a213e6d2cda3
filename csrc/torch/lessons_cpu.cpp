// thread_indices_ on the CPU: the same arithmetic, thread after thread.
#include <precompiled.h>

#include <torch/library.h>

#include "lessons.h"

namespace treduce::lessons {
namespace {

void thread_indices_cpu(const at::Tensor& out, at::IntArrayRef grid, at::IntArrayRef block) {
  const ThreadGrid g = checked_grid(out, grid, block);
  int64_t* const table = static_cast<int64_t*>(out.mutable_data_ptr());
  for (int64_t by = 0; by < g.grid_y; ++by) {
    for (int64_t bx = 0; bx < g.grid_x; ++bx) {
      for (int64_t ty = 0; ty < g.block_y; ++ty) {
        for (int64_t tx = 0; tx < g.block_x; ++tx) write_row(g, {bx, by}, {tx, ty}, table);
      }
    }
  }
}

}  // namespace

TORCH_LIBRARY_IMPL(treduce, CPU, m) { m.impl("thread_indices_", thread_indices_cpu); }

}  // namespace treduce::lessons
