// Dims of a reduction, sorted by stride and joined.
#include "geometry.h"

#include <algorithm>
#include <vector>

namespace treduce::reduce {
namespace {

struct Flat {
  int64_t size, stride, out_stride;
};

// Largest stride first. Expanded dims (stride 0) come outermost: their elements are read again, run by run.
void sort_by_memory(std::vector<Flat>& dims) {
  std::stable_sort(dims.begin(), dims.end(), [](const Flat& a, const Flat& b) {
    const auto key = [](const Flat& d) { return d.stride == 0 ? INT64_MAX : d.stride; };
    return key(a) > key(b);
  });
}

void collapse(std::vector<Flat>& dims) {
  std::vector<Flat> result;
  for (const Flat& dim : dims) {
    if (!result.empty()) {
      Flat& outer = result.back();
      if (outer.stride == dim.stride * dim.size && outer.out_stride == dim.out_stride * dim.size) {
        outer = {outer.size * dim.size, dim.stride, dim.out_stride};
        continue;
      }
    }
    result.push_back(dim);
  }
  dims = std::move(result);
}

bool fill(const std::vector<Flat>& dims, int64_t Flat::* stride, Extents& extents) {
  if (dims.size() > kMaxDims) return false;
  extents.count = static_cast<int>(dims.size());
  for (int d = 0; d < extents.count; ++d) {
    extents.size[d] = Divider(dims[d].size);
    extents.stride[d] = dims[d].*stride;
  }
  return true;
}

}  // namespace

int64_t Geometry::reach() const {
  if (length == 0 || outputs == 0) return 0;
  int64_t last = 0;
  for (const Extents* group : {&reduced, &kept}) {
    for (int d = 0; d < group->count; ++d) last += (group->size[d].divisor - 1) * group->stride[d];
  }
  return last + 1;
}

Geometry make_geometry(const CallDim* dims, int count) {
  Geometry g;
  std::vector<Flat> kept, reduced;
  for (int d = 0; d < count; ++d) {
    (dims[d].reduced ? g.length : g.outputs) *= dims[d].size;
    if (dims[d].size == 1) continue;
    if (dims[d].reduced) {
      reduced.push_back({dims[d].size, dims[d].stride, 0});
    } else {
      kept.push_back({dims[d].size, dims[d].stride, dims[d].out_stride});
    }
  }
  if (g.length == 0 || g.outputs == 0) reduced.clear();  // nothing is read
  sort_by_memory(reduced);
  sort_by_memory(kept);
  collapse(reduced);
  collapse(kept);
  g.fits = fill(reduced, &Flat::stride, g.reduced) && fill(kept, &Flat::stride, g.kept) &&
           fill(kept, &Flat::out_stride, g.kept_out);
  return g;
}

}  // namespace treduce::reduce
