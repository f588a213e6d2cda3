// Products of dtypes that no kernel multiplies, made of products of one that a kernel does (see ../matmul/composed_dtypes.h):
//   uint8                  of the same bytes as int8: modulo 2^8 the products are the same
//   int16                  of int32, modulo 2^16
//   complex64, complex128  one product of float32 or float64, whose rows are the real and the imaginary parts of the rows of A, and
//                          its columns those of the columns of B. Of its outputs rr, ri, ir and ii, named by part of row and part
//                          of column, re = rr - ii and im = ri + ir: one rounding each. Then comes the bias.
// So each output is a function of its row, its column and k, as those of the product are.
#pragma once

#include <functional>
#include <string>

#include "matmul.h"

namespace treduce::matmul {

// Operands that a kernel multiplies, and how their product's outputs lie.
struct Multiplied {
  at::Tensor self, other;
  bool copies_self = false, copies_other = false;
  // Of complex operands: each line's two parts side by side; otherwise all real parts come first.
  bool pairs_of_rows = false, pairs_of_columns = false;
};

// `composed`: see composes. Both of one dtype and of one dim or more. Reads no data but to copy it.
Multiplied multiplied(const at::Tensor& self, const at::Tensor& other);

inline bool composes(const at::Tensor& self) {
  const std::optional<DType> dtype = dtype_of(self.scalar_type());
  return dtype.has_value() && is_composed(*dtype);
}

// How the outputs are made, in a sentence; empty where the dtype is not composed.
std::string composition_text(DType dtype);

// The product of operands of such a dtype, and the bias in every row of it where that is defined. All checks are done here;
// `product` computes that of operands that a kernel multiplies.
using Product = std::function<at::Tensor(const at::Tensor& self, const at::Tensor& other, const at::Tensor& bias)>;
at::Tensor composed_product(const at::Tensor& self, const at::Tensor& other, const at::Tensor& bias,
                            std::string_view variant, std::optional<int64_t> tile_size, const Product& product);

}  // namespace treduce::matmul
