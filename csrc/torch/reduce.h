// What the CPU, CUDA and Meta bindings of a reduction share: from a tensor and arguments to a Request.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/MaybeOwned.h>
#include <c10/util/SmallVector.h>

#include "../reduce/ladder.h"
#include "../reduce/parts.h"
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

// ValueError where no reduction has that name.
Op op_named(std::string_view name, const char* caller);

// Of reduce_to_: the arguments of a reduction to `out`, whose dtype is the result's.
Arguments arguments_to(const at::Tensor& out, Op op, std::string_view variant, at::OptionalIntArrayRef dim,
                       bool keepdim, std::optional<int64_t> block_size, std::optional<int64_t> num_blocks);

// ValueError unless `out` is what a reduction of `self` can write to.
void check_out(Op op, const at::Tensor& out, const at::Tensor& self, c10::SymIntArrayRef sizes, at::ScalarType type);

// What a backend computes: a new tensor, or arguments.out.
using Reduce = at::Tensor(Op op, const at::Tensor& self, const Arguments& arguments);

// reduce_to_ by `reduce`, that of the device of `self`.
void reduce_to(const at::Tensor& out, const at::Tensor& self, Op op, Arguments arguments, Reduce* reduce);

// reduce_ranks_: along dim 0 of `values`, to `out`.
struct RanksToOne {
  RanksToOne(const at::Tensor& out, std::string_view op);
  RanksToOne(const RanksToOne&) = delete;

  Op op;
  int64_t dim = 0;
  Arguments arguments;
};

// sum_to_: the arguments of a sum along `dim` to `out`.
struct SumTo {
  SumTo(const at::Tensor& out, int64_t along);
  SumTo(const SumTo&) = delete;

  int64_t dim;
  Arguments arguments;
};

// What sum_to_ checks of two tensors whose entries along dim 0 are one run.
void check_joined(const at::Tensor& first, const at::Tensor& second, int64_t dim);

// What pack_parts_ checks: dtypes; and (entries, outputs...) to (most, outputs...).
void check_types_of_message(const at::Tensor& message, const at::Tensor& entries);
void check_message(const at::Tensor& message, const at::Tensor& entries, at::IntArrayRef groups);
// (entries, outer, inner), or fewer dims: `entries` as it lies, or a copy.
at::Tensor readable_entries(const at::Tensor& entries, const at::Tensor& message);
template <class Acc>
Message<Converted<Acc>, Acc> message_of(const at::Tensor& message, const at::Tensor& entries, at::IntArrayRef groups) {
  Message<Converted<Acc>, Acc> m{{entries.const_data_ptr(), *dtype_of(entries.scalar_type()), DType::float32},
                                 entries.stride(0),
                                 entries.dim() > 2 ? entries.stride(1) : 0,
                                 entries.dim() > 1 ? entries.stride(-1) : 0,
                                 entries.dim() > 1 ? entries.size(-1) : 1,
                                 message.numel() / message.size(0),
                                 message.mutable_data_ptr<Acc>(),
                                 {}};
  for (size_t i = 0; i < groups.size(); i += 4) {
    m.groups[i / 4] = {groups[i], groups[i + 1], groups[i + 2], static_cast<int>(groups[i + 3])};
  }
  return m;
}

// What fold_parts_ checks: dtypes; and (ranks, most, outputs...) and (ranks, 5) to (outputs...).
void check_types_of_parts(const at::Tensor& out, const at::Tensor& values);
void check_parts(const at::Tensor& out, const at::Tensor& values, const at::Tensor& parts);
Result result_of_parts(const at::Tensor& out, std::optional<int64_t> count);
template <class Acc>
Parts<Acc> parts_of(const at::Tensor& values, const at::Tensor& parts) {
  const int64_t of_ranks = values.size(0) * values.size(1);
  return {values.const_data_ptr<Acc>(), static_cast<const Part*>(parts.const_data_ptr()),
          static_cast<int>(values.size(0)), values.size(1), values.numel() / of_ranks};
}

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

  // Goes on, along dim 0, in `second`. False where one geometry does not reach both: they must be copied together.
  bool join(const at::Tensor& second);

  Checked call;
  c10::MaybeOwned<at::Tensor> input;  // `self`, or a copy
  at::Tensor output;                  // not yet written
  bool finished = false;              // but here: there is nothing to reduce, and nothing to launch
};

}  // namespace treduce::reduce
