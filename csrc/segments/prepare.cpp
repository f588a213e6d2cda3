#include "../common/round.h"
#include "segments.h"

namespace treduce::segments {
namespace {

constexpr int kBlock = 256;

}  // namespace

Prepared prepare(const Request& r) {
  Prepared prepared;
  const int widest = r.dtype == DType::float64 ? 2 : 4;
  const auto addresses = reinterpret_cast<uint64_t>(r.source) | reinterpret_cast<uint64_t>(r.out);
  if (r.width % widest == 0 && addresses % static_cast<uint64_t>(widest * size_of(r.dtype)) == 0) {
    prepared.vector = widest;
  }
  LaunchShape& shape = prepared.launches.add({"add segments"});
  shape.grid = ceil_div(r.count * (r.width / prepared.vector), kBlock);
  shape.block = kBlock;
  return prepared;
}

}  // namespace treduce::segments
