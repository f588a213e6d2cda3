// What the CPU, CUDA and Meta bindings of a reduction share: the checks, the result's dtype and shape, and the geometry.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include "../reduce/geometry.h"
#include "../reduce/ladder.h"
#include "../reduce/result.h"
#include "checks.h"
#include "reduce_dims.h"

namespace treduce::reduce {

// The arguments of a call beside its tensor, in the order of the schemas. amax and amin have no dtype.
struct Arguments {
  std::string_view variant;
  at::OptionalIntArrayRef dim;
  bool keepdim;
  std::optional<at::ScalarType> dtype;
  std::optional<int64_t> block_size;
  std::optional<int64_t> num_blocks;
};

// A call, checked. Nothing in it depends on the device.
struct Request {
  Op op;
  DType dtype;      // of the elements in memory
  DType target;     // what each of them counts as: the result's dtype
  bool converting;  // whether they must be converted to it one by one
  at::ScalarType result_type;
  Arithmetic arithmetic;  // plain where the op or the dtype rounds nothing
  const Row* row;
  int block;
  int64_t num_blocks;
  Dims dims;
  bool keepdim;

  // The result keeps every dim, those that are reduced with size 1, or only those that are not reduced.
  template <class Size>
  c10::SmallVector<Size, 6> result_sizes(c10::ArrayRef<Size> sizes) const {
    c10::SmallVector<Size, 6> result;
    if (dims.whole() && !keepdim) return result;
    for (size_t d = 0; d < sizes.size(); ++d) {
      if (!dims[static_cast<int64_t>(d)]) {
        result.push_back(sizes[d]);
      } else if (keepdim) {
        result.push_back(Size(1));
      }
    }
    return result;
  }
};

// Checks everything but the device. Sizes may be symbolic.
Request request(Op op, const at::Tensor& self, const Arguments& arguments);

// What the rungs along dims read, and where they write.
struct Source {
  Source(const at::Tensor& self, const Request& r);

  const void* data() const { return tensor->const_data_ptr(); }

  const at::Tensor* tensor;  // `self`, or a copy
  Geometry geometry;

 private:
  at::Tensor copy_;
};

// An output for the call, not yet written.
at::Tensor empty_output(const at::Tensor& self, const Request& r);

// Where the input has no elements there is nothing to launch: writes what a reduction of nothing gives, to every output that
// there is, and returns true. Not for the classic rungs, whose plans know what to do.
bool finish_empty(const at::Tensor& self, const Request& r, at::Tensor& output);

// For the classic rungs: the input as one contiguous run in the order that its values have. Integer sums, amax and amin are
// the same in any order, so for them any dense tensor is read as it lies.
at::Tensor flat_input(Op op, const at::Tensor& self);

}  // namespace treduce::reduce
