#include "shapes.h"

namespace treduce::attention {
namespace {

// A block a tile of lines of a head; `held`: lines in shared memory.
void add(Launches& launches, const char* kernel, const Problem& p, int64_t lines, int tile, int64_t heads, int threads,
         int held) {
  LaunchShape& shape = launches.add({kernel});
  shape.grid = ceil_div(lines, tile) * heads * p.batch;
  shape.block = threads;
  shape.shared_bytes = int64_t{held} * compiled_width(p) * 2;
}

void add_forward(Launches& launches, const char* kernel, const Problem& p, int stages) {
  add(launches, kernel, p, p.length, kQueries, p.heads, kForwardThreads, kQueries + 2 * stages * kStep);
}

}  // namespace

Prepared prepare_forward(const Problem& p, const Chip& chip) {
  Prepared prepared;
  const int64_t blocks = ceil_div(p.length, kQueries) * p.heads * p.batch;
  prepared.stages = blocks <= chip.multiprocessors ? kManyStages : kStages;
  add_forward(prepared.launches, "attention", p, prepared.stages);
  return prepared;
}

Prepared prepare_backward(const Problem& p) {
  Prepared prepared;
  add_forward(prepared.launches, "log_sums", p, kStages);
  add(prepared.launches, "query_gradients", p, p.length, kTile, p.heads, kThreads, 4 * kTile);
  add(prepared.launches, "key_gradients", p, p.keys, kTile, p.heads / p.group, kThreads, 6 * kTile);
  for (const char* name : {kLogSums, kAlong}) {
    prepared.workspace.add(name, p.batch * p.heads * padded_length(p.length) * static_cast<int64_t>(sizeof(float)));
  }
  return prepared;
}

}  // namespace treduce::attention
