// The dims that a reduction reduces, as torch reads them. What the bindings and the gradients share.
#pragma once

#include <ATen/WrapDimUtilsMulti.h>

namespace treduce::reduce {

class Dims {
 public:
  // None and an empty list stand for all of them. A dim out of range is an IndexError, one named twice a RuntimeError.
  Dims(at::OptionalIntArrayRef dim, int64_t rank) {
    named_ = dim.has_value() && !dim->empty();
    if (!named_) return;
    const uint64_t all = rank < 64 ? (uint64_t{1} << rank) - 1 : ~uint64_t{0};
    bits_ = at::dim_list_to_bitset(dim, static_cast<size_t>(rank)).to_ullong();
    whole_ = (bits_ & all) == all;
  }
  Dims() = default;

  bool named() const { return named_; }  // by the caller
  bool whole() const { return whole_; }  // every dim is reduced
  bool operator[](int64_t d) const { return whole_ || (bits_ >> d & 1) != 0; }

 private:
  uint64_t bits_ = 0;
  bool named_ = false;
  bool whole_ = true;
};

}  // namespace treduce::reduce
