// The launches that add segments.
#include <algorithm>

#include "../common/round.h"
#include "shapes.h"

namespace treduce::segments {

Prepared prepare(const Request& r) {
  Prepared prepared;
  const int widest = r.dtype == DType::float64 ? 2 : 4;
  const auto addresses = reinterpret_cast<uint64_t>(r.source) | reinterpret_cast<uint64_t>(r.out);
  if (r.width % widest == 0 && addresses % static_cast<uint64_t>(widest * size_of(r.dtype)) == 0) {
    prepared.vector = widest;
  }
  const int64_t vectors = r.width / prepared.vector;
  LaunchShape& runs = prepared.launches.add({"add short runs"});
  prepared.indices = static_cast<int>(std::clamp<int64_t>(r.count * vectors / kEnoughThreads, 1, kMostIndices));
  runs.grid = ceil_div(ceil_div(r.count, prepared.indices) * vectors, kBlock);
  runs.block = kBlock;
  if (r.count > kLong) {
    LaunchShape& others = prepared.launches.add({"add long runs"});
    const int64_t runs_at_most = ceil_div(r.count, kLong), slabs = ceil_div(vectors, kLanes);
    prepared.slabs = static_cast<int>(std::clamp<int64_t>(runs_at_most * slabs / kEnoughBlocks, 1, slabs));
    others.grid = runs_at_most * ceil_div(slabs, prepared.slabs);
    others.block = kLanes;
    others.block_y = kTeams;
  }
  return prepared;
}

}  // namespace treduce::segments
