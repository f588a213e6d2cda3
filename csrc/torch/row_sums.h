// The sums of `norm` and of `var`, by kernels that read the input once (rows_ops.h, row_sums_): the squares, and the squares of what
// elements differ from their mean by. The bits are those of several ops (composed.cpp), which take what these do not.
#pragma once

#include <ATen/core/Tensor.h>

#include <tuple>

namespace treduce::composed {

// Along the dims of `dim`, or all: in the accumulator, of the shape that `sum` gives. Undefined where the input is not read in one piece:
// rows whose elements do not lie side by side, or that are too long; another dtype; no elements; a tensor that is not a plain one.
at::Tensor squares_in_one_read(const at::Tensor& x, at::OptionalIntArrayRef dim, bool keepdim);
// The mean, of the same shape, and the squares.
std::tuple<at::Tensor, at::Tensor> moments_in_one_read(const at::Tensor& x, at::OptionalIntArrayRef dim, bool keepdim);

}  // namespace treduce::composed
