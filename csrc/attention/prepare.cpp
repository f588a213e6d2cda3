#include "shapes.h"

namespace treduce::attention {
namespace {

// A block a tile of lines of a head.
void add(Launches& launches, const char* kernel, const Problem& p, int64_t lines, int64_t heads, int tiles) {
  LaunchShape& shape = launches.add({kernel});
  shape.grid = ceil_div(lines, kTile) * heads * p.batch;
  shape.block = kThreads;
  shape.shared_bytes = tiles * tile_bytes(compiled_width(p));
}

}  // namespace

Prepared prepare_forward(const Problem& p) {
  Prepared prepared;
  add(prepared.launches, "attention", p, p.length, p.heads, 3);
  return prepared;
}

Prepared prepare_backward(const Problem& p) {
  Prepared prepared;
  add(prepared.launches, "log_sums", p, p.length, p.heads, 3);
  add(prepared.launches, "query_gradients", p, p.length, p.heads, 4);
  add(prepared.launches, "key_gradients", p, p.keys, p.heads / p.group, 6);
  for (const char* name : {kLogSums, kAlong}) {
    prepared.workspace.add(name, p.batch * p.heads * padded(p) * static_cast<int64_t>(sizeof(float)));
  }
  return prepared;
}

}  // namespace treduce::attention
