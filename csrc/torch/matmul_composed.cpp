// Products of complex numbers, and of integers that no kernel multiplies.
#include <precompiled.h>

#include "matmul_composed.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/nan_to_num.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/view_as_real.h>

#include <limits>

namespace treduce::matmul {
namespace {

// Real and imaginary parts of the rows of a complex matrix, or of each of a batch: twice as many rows.
struct Parts {
  at::Tensor rows;
  bool pairs;  // the two of a row lie side by side, where the matrix has them; else in a copy, all real ones first
};
Parts parts_of_rows(const at::Tensor& matrix) {
  const at::Tensor parts = at::view_as_real(matrix);  // (..., rows, columns, 2)
  if (matrix.size(-2) > 1 && matrix.stride(-2) == 1) return {parts.movedim(-1, -2).flatten(-3, -2), true};
  // What a batch shares is copied once.
  at::Tensor once = parts;
  for (int64_t d = 0; d < matrix.dim() - 2; ++d) {
    if (once.stride(d) == 0 && once.size(d) > 1) once = once.narrow(d, 0, 1);
  }
  std::vector<int64_t> sizes = matrix.sizes().vec();
  sizes[sizes.size() - 2] *= 2;
  return {once.movedim(-1, -3).contiguous().flatten(-3, -2).expand(sizes), false};
}

Multiplied multiplied_complex(const at::Tensor& self, const at::Tensor& other) {
  const at::Tensor a = self.dim() == 1 ? self.unsqueeze(0) : self;
  const at::Tensor b = other.dim() == 1 ? other.unsqueeze(0) : other.mT();
  const Parts rows = parts_of_rows(resolved(a)), columns = parts_of_rows(resolved(b));
  Multiplied m{rows.rows, columns.rows.mT()};
  m.pairs_of_rows = rows.pairs;
  m.pairs_of_columns = columns.pairs;
  m.copies_self = !rows.pairs || is_lazy(self);
  m.copies_other = !columns.pairs || is_lazy(other);
  return m;
}

// The outputs of one part of rows, or of columns where `dim` is -1.
at::Tensor of_part(const at::Tensor& outputs, int64_t dim, int64_t part, bool pairs) {
  const int64_t count = outputs.size(dim) / 2;
  return pairs ? outputs.slice(dim, part, std::nullopt, 2) : outputs.narrow(dim, part * count, count);
}

// Writes the complex result, from the `outputs` of real and imaginary parts, to `result`.
void join(const at::Tensor& outputs, const Multiplied& m, const at::Tensor& bias, const at::Tensor& result) {
  const auto of = [&](int64_t row_part, int64_t column_part) {
    return of_part(of_part(outputs, -2, row_part, m.pairs_of_rows), -1, column_part, m.pairs_of_columns);
  };
  const at::Tensor whole = at::view_as_real(result.view(of(0, 0).sizes()));
  at::Tensor re = whole.select(-1, 0), im = whole.select(-1, 1);
  at::sub_out(re, of(0, 0), of(1, 1));
  at::add_out(im, of(0, 1), of(1, 0));
  at::Tensor sums = result;
  if (bias.defined()) sums.add_(bias);
  // The NaN of a chip becomes the one that every result has.
  constexpr double inf = std::numeric_limits<double>::infinity();
  at::Tensor numbers = at::view_as_real(result);
  at::nan_to_num_out(numbers, numbers, std::numeric_limits<double>::quiet_NaN(), inf, -inf);
}

at::Tensor complex_product(const at::Tensor& self, const at::Tensor& other, const at::Tensor& bias,
                           at::IntArrayRef sizes, const Product& product) {
  at::Tensor result = at::empty(sizes, self.options().memory_format(std::nullopt));
  if (result.numel() == 0) return result;
  if (self.size(-1) == 0) return bias.defined() ? result.copy_(bias) : result.zero_();
  const Multiplied m = multiplied_complex(self, other);
  join(product(m.self, m.other, at::Tensor()), m, bias, result);
  return result;
}

}  // namespace

Multiplied multiplied(const at::Tensor& self, const at::Tensor& other) {
  switch (self.scalar_type()) {
    case at::kByte:
      return {resolved(self).view(at::kChar), resolved(other).view(at::kChar), is_lazy(self), is_lazy(other)};
    case at::kShort: return {self.to(at::kInt), other.to(at::kInt), true, true};
    default: return multiplied_complex(self, other);
  }
}

std::string composition_text(DType dtype) {
  switch (dtype) {
    case DType::uint8: return "a product of the same bytes as int8, modulo 2^8";
    case DType::int16: return "a product of int32, modulo 2^16";
    case DType::complex64:
    case DType::complex128:
      return std::string("one product of ") + name_of(multiplied_dtype(dtype)) +
             ", of the parts of rows and of columns: re = rr - ii, im = ri + ir";
    default: return "";
  }
}

at::Tensor composed_product(const at::Tensor& self, const at::Tensor& other, const at::Tensor& bias,
                            std::string_view variant, std::optional<int64_t> tile_size, const Product& product) {
  const DType dtype = checked_operands({&self, &other});
  check_dtype(*as_value_error([&] { return resolve(variant, tile_size); }).row, dtype);
  const std::vector<c10::SymInt> symbolic = result_sizes(self, other);
  const std::vector<int64_t> sizes = C10_AS_INTARRAYREF_SLOW(symbolic).vec();
  const at::AutoDispatchBelowADInplaceOrView guard;
  if (is_complex_dtype(dtype)) return complex_product(self, other, bias, sizes, product);
  const Multiplied m = multiplied(self, other);
  return product(m.self, m.other, bias.defined() ? bias.to(at::kInt) : bias).to(self.scalar_type());
}

}  // namespace treduce::matmul
