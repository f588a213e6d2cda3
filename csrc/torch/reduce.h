// What the CPU, CUDA and Meta bindings of a reduction share: from a tensor and arguments to a Request.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/MaybeOwned.h>
#include <c10/util/SmallVector.h>

#include "../reduce/ladder.h"
#include "../reduce/prepare.h"
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
  const at::Tensor* out = nullptr;  // where the result goes, if not to a new tensor: contiguous, of its shape and dtype
};

// reduce_ranks_: along dim 0 of `values`, to `out`.
struct RanksToOne {
  RanksToOne(const at::Tensor& out, std::string_view op);
  RanksToOne(const RanksToOne&) = delete;

  Op op;
  int64_t dim = 0;
  Arguments arguments;
};

// A call, checked. Sizes may be symbolic.
struct Checked {
  Request request;  // but for what the device and the layout add: geometry and address
  at::ScalarType result_type;
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
Checked check_call(Op op, const at::Tensor& self, const Arguments& arguments);

// Everything from the arguments to prepare: checks, the input as kernels read it, and a new output.
struct Reduction {
  Reduction(Op op, const at::Tensor& self, const Arguments& arguments);

  const Request& request() const { return call.request; }

  Checked call;
  c10::MaybeOwned<at::Tensor> input;  // `self`, or a copy
  at::Tensor output;                  // not yet written
  bool finished = false;              // but here: there is nothing to reduce, and nothing to launch
};

}  // namespace treduce::reduce
