#include "shapes.h"

namespace treduce::attention {
namespace {

// A block a tile of lines of a head; `tiles`: of kTile lines, in shared memory.
void add(Launches& launches, const char* kernel, const Problem& p, int64_t lines, int tile, int64_t heads, int tiles) {
  LaunchShape& shape = launches.add({kernel});
  shape.grid = ceil_div(lines, tile) * heads * p.batch;
  shape.block = kThreads;
  shape.shared_bytes = tiles * tile_bytes(compiled_width(p));
}

void add_forward(Launches& launches, const char* kernel, const Problem& p, int stages) {
  add(launches, kernel, p, p.length, kQueries, p.heads, kQueries / kTile + 2 * stages);
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
  add(prepared.launches, "query_gradients", p, p.length, kTile, p.heads, 4);
  add(prepared.launches, "key_gradients", p, p.keys, kTile, p.heads / p.group, 6);
  for (const char* name : {kLogSums, kAlong}) {
    prepared.workspace.add(name, p.batch * p.heads * padded(p) * static_cast<int64_t>(sizeof(float)));
  }
  return prepared;
}

}  // namespace treduce::attention
