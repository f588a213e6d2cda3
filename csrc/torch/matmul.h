// The checks that the CPU, CUDA and Meta bindings of matmul share, and torch.matmul's rules of ranks.
#pragma once

#include <c10/core/SymInt.h>

#include <initializer_list>
#include <optional>
#include <vector>

#include "../matmul/composed_dtypes.h"
#include "../matmul/ladder.h"
#include "../matmul/prepare.h"
#include "checks.h"

namespace treduce::matmul {

// The common dtype of the operands of `op`. TypeError for a dtype that it does not take or different ones, ValueError for
// different devices.
DType checked_operands(std::initializer_list<const at::Tensor*> operands, const char* op = "matmul");

// The dtype of the product of operands of that dtype.
at::ScalarType result_type(at::ScalarType operands);

// The dtypes that a rung takes beside those that it multiplies, because their products are made of these.
std::vector<DType> composed_dtypes(const Row& row);

// TypeError, with all that it takes, where the rung does not take the dtype.
void check_dtype(const Row& row, DType dtype);

// The shape of torch.matmul(self, other), without looking at data. ValueError, with both shapes, where there is none.
std::vector<c10::SymInt> result_sizes(const at::Tensor& self, const at::Tensor& other);

// The shape of torch.nn.functional.linear(input, weight, bias), after all checks of the operands; ValueError, with the
// shapes, where there is none.
std::vector<c10::SymInt> checked_linear(const at::Tensor& input, const at::Tensor& weight,
                                        const std::optional<at::Tensor>& bias);

// The bias as kernels read it, its elements side by side; undefined where there is none.
at::Tensor contiguous_bias(const std::optional<at::Tensor>& bias);

// What a product writes to, if not to a new tensor: contiguous, of its shape and dtype.
void check_out(const at::Tensor& out, const at::Tensor& self, const at::Tensor& other, c10::SymIntArrayRef sizes,
               at::ScalarType type);

// Everything that a kernel needs to know, after all checks. The operands are those of the call, except where a view
// cannot be read through strides (lazy negation; more than kMaxBatchDims batch dimensions that do not merge): then
// copies.
struct TensorRequest : Request {
  at::Tensor self, other;
  at::Tensor result;  // contiguous, not yet written
};
TensorRequest request(const at::Tensor& self, const at::Tensor& other, std::string_view variant,
                      std::optional<int64_t> tile_size, const Target& target, const at::Tensor* out = nullptr);

}  // namespace treduce::matmul
