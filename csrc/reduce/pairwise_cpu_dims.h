// Dims with their sizes and strides, and the step from the number of an element to its place in memory.
#pragma once

#include "geometry.h"

namespace treduce::reduce::cpu {

// The kept or the reduced dims of a call, outermost first. A complex tensor counts as a real one with one more dim.
struct StridedDims {
  int count = 0;
  int64_t size[kMaxDims + 1], stride[kMaxDims + 1], out_stride[kMaxDims + 1];

  StridedDims(const Extents& extents, const Extents* out) : count(extents.count) {
    for (int d = 0; d < count; ++d) {
      size[d] = extents.size[d].divisor;
      stride[d] = extents.stride[d];
      out_stride[d] = out != nullptr ? out->stride[d] : 0;
    }
  }
  void split_complex(bool kept) {
    for (int d = 0; d < count; ++d) {
      stride[d] *= 2;
      out_stride[d] *= 2;
    }
    if (!kept) return;
    if (count > 0 && stride[count - 1] == 2 && out_stride[count - 1] == 2) {
      size[count - 1] *= 2;
      stride[count - 1] = out_stride[count - 1] = 1;
    } else {
      size[count] = 2;
      stride[count] = out_stride[count] = 1;
      ++count;
    }
  }
  int64_t inner_size() const { return count > 0 ? size[count - 1] : 1; }
  int64_t inner_stride() const { return count > 0 ? stride[count - 1] : 1; }
  int64_t inner_out_stride() const { return count > 0 ? out_stride[count - 1] : 1; }

  struct Place {
    int64_t offset, out;
    int64_t left;  // steps along the innermost dim, this one included
  };
  Place place(int64_t i) const {
    Place p{0, 0, 1};
    for (int d = count - 1; d >= 0; --d) {
      const int64_t q = i / size[d], k = i - q * size[d];
      if (d == count - 1) p.left = size[d] - k;
      p.offset += k * stride[d];
      p.out += k * out_stride[d];
      i = q;
    }
    return p;
  }
};

// Goes through the elements run by run, a run being the innermost dim, and divides once, at the start. Needs a dim.
class RunWalk {
 public:
  RunWalk(const StridedDims& dims, int64_t first) : dims_(dims), offset_(0) {
    for (int d = dims.count - 1; d >= 0; --d) {
      const int64_t q = first / dims.size[d];
      index_[d] = first - q * dims.size[d];
      offset_ += index_[d] * dims.stride[d];
      first = q;
    }
    left_ = dims.inner_size() - index_[dims.count - 1];
  }
  int64_t offset() const { return offset_; }
  int64_t left() const { return left_; }  // of the run
  void advance(int64_t steps) {           // at most to the end of the run
    offset_ += steps * dims_.inner_stride();
    left_ -= steps;
    if (left_ > 0) return;
    left_ = dims_.inner_size();
    offset_ -= left_ * dims_.inner_stride();
    for (int d = dims_.count - 2; d >= 0; --d) {
      offset_ += dims_.stride[d];
      if (++index_[d] < dims_.size[d]) return;
      offset_ -= dims_.size[d] * dims_.stride[d];
      index_[d] = 0;
    }
  }

 private:
  const StridedDims& dims_;
  int64_t index_[kMaxDims + 1] = {};
  int64_t offset_, left_;
};

}  // namespace treduce::reduce::cpu
