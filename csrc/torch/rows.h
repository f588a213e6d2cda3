// What the bindings of the row operations share: checks, how a tensor is seen as rows, and outputs.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <optional>
#include <string_view>

#include "../rows/ladder.h"
#include "../rows/prepare.h"
#include "checks.h"

namespace treduce::rows {

// The dims that make up a row: neighbours, from `begin` to before `end`.
struct RowDims {
  int64_t begin = 0, end = 0;
};

// TypeError for a dtype that row operations do not take.
DType checked_float(const at::Tensor& tensor, const char* op);

// The dim of softmax, one of `self`'s. IndexError if it is out of range.
RowDims checked_dim(const at::Tensor& self, int64_t dim);

// The last dims of `input`, which `normalized_shape` names; weight and bias have that shape and the input's dtype. ValueError and
// TypeError otherwise.
RowDims checked_norm(const char* op, const at::Tensor& input, c10::SymIntArrayRef normalized_shape,
                     const std::optional<at::Tensor>& weight, const std::optional<at::Tensor>& bias);

// The sizes of a tensor with one value a row: those of `self` with the row's dims as 1, or without them.
std::vector<c10::SymInt> row_sizes(const at::Tensor& self, RowDims dims, bool keepdim);

// float32 for dtypes of up to 32 bits.
at::ScalarType accumulator_type(at::ScalarType type);

// A call, from checked tensors to a Request for prepare.
struct RowCall {
  RowCall(Op op, std::string_view variant, const at::Tensor& first, RowDims dims, double eps = 0);

  void add_input(const at::Tensor& tensor);  // the second one, of the first one's sizes
  void set_weights(const std::optional<at::Tensor>& weight, const std::optional<at::Tensor>& bias);
  void add_row_input(const at::Tensor& values);   // accumulators, one a row
  void set_output(const at::Tensor& tensor);      // contiguous, of the first input's sizes, or a value a row
  void add_row_output(const at::Tensor& values);  // contiguous

  // Whether the first input is read from a copy.
  bool copies(const at::Tensor& first) const { return !held_[0].is_same(first); }

  bool is_empty() const { return request.problem.rows == 0 || request.problem.length == 0; }

  Request request;
  Pointers pointers;

 private:
  void set_input(int i, const at::Tensor& tensor);

  RowDims dims_;
  int inputs_ = 0, row_inputs_ = 0, row_outputs_ = 0;
  std::array<at::Tensor, 8> held_;  // copies that must live as long as the call
  int held_count_ = 0;
};

}  // namespace treduce::rows
