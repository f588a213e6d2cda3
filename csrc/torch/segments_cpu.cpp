// add_segments_ on the CPU.
#include <precompiled.h>

#include <ATen/Parallel.h>
#include <torch/library.h>

#include <algorithm>

#include "segments.h"

namespace treduce::segments {
namespace {

constexpr int64_t kGrain = 32768;  // elements that are worth a thread

void add_cpu(const at::Tensor& out, const at::Tensor& index, const at::Tensor& order, const at::Tensor& source,
             bool mean) {
  const Request r = request(out, index, order, source, mean);
  if (r.count == 0 || r.width == 0) return;
  TORCH_CHECK_INDEX(r.index[0] >= 0 && r.index[r.count - 1] < r.places, "index out of range: from ", r.index[0], " to ",
                    r.index[r.count - 1], ", of ", r.places);
  const int64_t grain = std::max<int64_t>(1, kGrain / r.width);
  at::parallel_for(0, r.count, grain, [&](int64_t begin, int64_t end) { add_on_cpu(r, begin, end); });
}

}  // namespace

TORCH_LIBRARY_IMPL(treduce, CPU, m) { m.impl("add_segments_", add_cpu); }
TORCH_LIBRARY_IMPL(treduce, Meta, m) {
  m.impl("add_segments_", [](const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&, bool) {});
}

}  // namespace treduce::segments
