// The checks of products, their batch dims, and the request that the kernels get.
#include <precompiled.h>

#include "matmul.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>

#include "broadcast.h"

namespace treduce::matmul {
namespace {

// The result's shape: the broadcast batch, then m unless `a` is a vector, then n unless `b` is.
template <class Size>
std::vector<Size> sizes_of(c10::ArrayRef<Size> a, c10::ArrayRef<Size> b) {
  TORCH_CHECK_VALUE(!a.empty() && !b.empty(), "treduce::matmul takes tensors of one dimension or more, got shapes ", a,
                    " and ", b);
  const Size& inner = b.size() == 1 ? b[0] : b[b.size() - 2];
  TORCH_CHECK_VALUE(must_equal(a.back(), inner), "treduce::matmul cannot multiply shapes ", a, " and ", b,
                    ": the inner sizes ", a.back(), " and ", inner, " differ");
  const auto batch_a = a.slice(0, std::max<size_t>(a.size(), 2) - 2);
  const auto batch_b = b.slice(0, std::max<size_t>(b.size(), 2) - 2);
  auto batch = broadcast(batch_a, batch_b);
  TORCH_CHECK_VALUE(batch.has_value(), "treduce::matmul cannot multiply shapes ", a, " and ", b,
                    ": their batch dimensions do not broadcast");
  std::vector<Size> sizes = std::move(*batch);
  if (a.size() > 1) sizes.push_back(a[a.size() - 2]);
  if (b.size() > 1) sizes.push_back(b.back());
  return sizes;
}

// The stride of batch dimension `d` of `dims`; 0 where the operand is broadcast along it.
int64_t batch_stride(const at::Tensor& operand, int64_t d, int64_t dims) {
  const int64_t own = d - dims + std::max<int64_t>(operand.dim() - 2, 0);
  return own < 0 || operand.size(own) == 1 ? 0 : operand.stride(own);
}

// Fills in the batch dimensions, without those of size one and with neighbours that lie evenly in both operands merged.
// False if more than kMaxBatchDims are left.
bool describe_batch(Problem& p, c10::IntArrayRef sizes, const at::Tensor& a, const at::Tensor& b) {
  const int64_t dims = sizes.size();
  p.batch_dims = 0;
  for (int64_t d = 0; d < dims; ++d) {
    if (sizes[d] == 1) continue;
    const int64_t a_stride = batch_stride(a, d, dims), b_stride = batch_stride(b, d, dims);
    const int last = p.batch_dims - 1;
    if (last >= 0 && p.a_batch[last] == a_stride * sizes[d] && p.b_batch[last] == b_stride * sizes[d]) {
      p.batch_size[last] *= sizes[d];
      p.a_batch[last] = a_stride;
      p.b_batch[last] = b_stride;
      continue;
    }
    if (p.batch_dims == kMaxBatchDims) return false;
    p.batch_size[p.batch_dims] = sizes[d];
    p.a_batch[p.batch_dims] = a_stride;
    p.b_batch[p.batch_dims] = b_stride;
    ++p.batch_dims;
  }
  return true;
}

// Matrices of A that lie one below the other and meet the same B are one matrix with more rows, and so are their products.
void merge_batch_into_rows(Problem& p) {
  while (p.batch_dims > 0 && p.m > 0 && p.batches > 0) {
    const int last = p.batch_dims - 1;
    const bool stacked = p.m == 1 || p.a_batch[last] == p.m * p.a_row;
    if (p.b_batch[last] != 0 || !stacked) return;
    if (p.m == 1) p.a_row = p.a_batch[last];
    p.m *= p.batch_size[last];
    p.batches /= p.batch_size[last];
    --p.batch_dims;
  }
}

// The operand in memory of its own, with the whole batch written out.
at::Tensor expanded_copy(const at::Tensor& operand, c10::IntArrayRef batch) {
  std::vector<int64_t> sizes = batch.vec();
  const auto matrix = operand.sizes().slice(std::max<int64_t>(operand.dim() - 2, 0));
  sizes.insert(sizes.end(), matrix.begin(), matrix.end());
  return operand.expand(sizes).contiguous();
}

// "a, b and c": what `fact` says about each operand.
template <class Fact>
std::string listed(std::initializer_list<const at::Tensor*> operands, Fact fact) {
  std::string text;
  for (const at::Tensor* const* operand = operands.begin(); operand != operands.end(); ++operand) {
    if (operand != operands.begin()) text += operand + 1 == operands.end() ? " and " : ", ";
    text += c10::str(fact(**operand));
  }
  return text;
}

}  // namespace

at::ScalarType result_type(at::ScalarType operands) { return operands == at::kChar ? at::kInt : operands; }

namespace {

bool is_product_dtype(DType dtype) {
  return is_composed(dtype) || std::find(std::begin(kDTypes), std::end(kDTypes), dtype) != std::end(kDTypes);
}

}  // namespace

std::vector<DType> composed_dtypes(const Row& row) {
  std::vector<DType> dtypes;
  for (const ComposedDType& composed : kComposedDTypes) {
    if (std::find(row.dtypes.begin(), row.dtypes.end(), composed.of) != row.dtypes.end()) {
      dtypes.push_back(composed.dtype);
    }
  }
  return dtypes;
}

void check_dtype(const Row& row, DType dtype) {
  if (std::find(row.dtypes.begin(), row.dtypes.end(), multiplied_dtype(dtype)) != row.dtypes.end()) return;
  std::string all;
  for (const DType d : row.dtypes) all += (all.empty() ? "" : ", ") + std::string(name_of(d));
  for (const DType d : composed_dtypes(row)) all += std::string(", ") + name_of(d);
  TORCH_CHECK_TYPE(false, "variant '", row.name, "' of matmul takes ", all, ", got ", name_of(dtype));
}

DType checked_operands(std::initializer_list<const at::Tensor*> operands, const char* op) {
  const at::Tensor& first = **operands.begin();
  for (const at::Tensor* operand : operands) {
    TORCH_CHECK_NOT_IMPLEMENTED(operand->layout() == at::kStrided, "treduce::", op,
                                " takes dense tensors, got one of layout ", operand->layout());
    const std::optional<DType> dtype = dtype_of(operand->scalar_type());
    TORCH_CHECK_TYPE(dtype.has_value() && is_product_dtype(*dtype), "treduce::", op,
                     " takes float32, float64, float16, bfloat16, int8, uint8, int16, int32, int64, complex64 and "
                     "complex128, got ",
                     operand->scalar_type());
  }
  for (const at::Tensor* operand : operands) {
    TORCH_CHECK_TYPE(operand->scalar_type() == first.scalar_type(), "treduce::", op,
                     " takes tensors of one dtype, got ",
                     listed(operands, [](const at::Tensor& t) { return t.scalar_type(); }));
    TORCH_CHECK_VALUE(operand->device() == first.device(), "treduce::", op, " takes tensors on one device, got ",
                      listed(operands, [](const at::Tensor& t) { return t.device(); }));
  }
  return *dtype_of(first.scalar_type());
}

std::vector<c10::SymInt> result_sizes(const at::Tensor& self, const at::Tensor& other) {
  return sizes_of<c10::SymInt>(self.sym_sizes(), other.sym_sizes());
}

std::vector<c10::SymInt> checked_linear(const at::Tensor& input, const at::Tensor& weight,
                                        const std::optional<at::Tensor>& bias) {
  const bool has_bias = bias.has_value() && bias->defined();
  if (!has_bias) {
    checked_operands({&input, &weight}, "linear");
  } else if (input.scalar_type() != at::kChar) {
    checked_operands({&input, &weight, &*bias}, "linear");
  } else {
    checked_operands({&input, &weight}, "linear");
    checked_operands({&*bias}, "linear");
    TORCH_CHECK_TYPE(bias->scalar_type() == result_type(at::kChar),
                     "treduce::linear of int8 takes a bias of int32, got ", bias->scalar_type());
    TORCH_CHECK_VALUE(bias->device() == input.device(), "treduce::linear takes tensors on one device, got ",
                      listed({&input, &weight, &*bias}, [](const at::Tensor& t) { return t.device(); }));
  }
  const auto shapes = [&] {
    std::string text = c10::str(input.sym_sizes(), has_bias ? ", " : " and ", weight.sym_sizes());
    return has_bias ? text + c10::str(" and ", bias->sym_sizes()) : text;
  };
  TORCH_CHECK_VALUE(input.dim() >= 1 && (weight.dim() == 1 || weight.dim() == 2),
                    "treduce::linear takes an input (..., in_features) and a weight (out_features, in_features) or "
                    "(in_features), got shapes ",
                    shapes());
  TORCH_CHECK_VALUE(must_equal(input.sym_size(-1), weight.sym_size(-1)), "treduce::linear cannot apply shapes ",
                    shapes(), ": the in_features of input and weight, ", input.sym_size(-1), " and ",
                    weight.sym_size(-1), ", differ");
  std::vector<c10::SymInt> sizes = input.sym_sizes().slice(0, input.dim() - 1).vec();
  if (weight.dim() == 2) sizes.push_back(weight.sym_size(0));
  if (has_bias) {
    TORCH_CHECK_VALUE(
        bias->dim() == weight.dim() - 1 && (bias->dim() == 0 || must_equal(bias->sym_size(0), weight.sym_size(0))),
        "treduce::linear takes a bias (out_features), or () for a weight (in_features), got shapes ", shapes());
  }
  return sizes;
}

at::Tensor contiguous_bias(const std::optional<at::Tensor>& bias) {
  return bias.has_value() && bias->defined() ? resolved(*bias).contiguous() : at::Tensor();
}

void check_out(const at::Tensor& out, const at::Tensor& self, const at::Tensor& other, c10::SymIntArrayRef sizes,
               at::ScalarType type) {
  TORCH_CHECK_VALUE(out.sym_sizes() == sizes && out.is_contiguous() && !is_lazy(out) && out.scalar_type() == type &&
                        out.device() == self.device(),
                    "treduce::matmul writes to a contiguous tensor of shape ", sizes, ", dtype ", type, " and device ",
                    self.device(), ", got shape ", out.sym_sizes(), ", strides ", out.sym_strides(), ", dtype ",
                    out.scalar_type(), " and device ", out.device());
}

TensorRequest request(const at::Tensor& self, const at::Tensor& other, std::string_view variant,
                      std::optional<int64_t> tile_size, const Target& target, const at::Tensor* out) {
  TensorRequest r;
  r.dtype = checked_operands({&self, &other});
  const Resolved asked = as_value_error([&] { return resolve(variant, tile_size); });
  check_dtype(*asked.row, r.dtype);
  const std::vector<int64_t> sizes = sizes_of<int64_t>(self.sizes(), other.sizes());
  const bool a_vector = self.dim() == 1, b_vector = other.dim() == 1;
  const c10::IntArrayRef batch(sizes.data(), sizes.size() - !a_vector - !b_vector);

  r.self = resolved(self);
  r.other = resolved(other);
  Problem& p = r.problem;
  const auto describe = [&] {
    const bool fits = describe_batch(p, batch, r.self, r.other);
    p.m = a_vector ? 1 : self.size(-2);
    p.n = b_vector ? 1 : other.size(-1);
    p.k = self.size(-1);
    p.a_row = a_vector ? 0 : r.self.stride(-2);
    p.a_column = r.self.stride(-1);
    p.b_row = r.other.stride(b_vector ? -1 : -2);
    p.b_column = b_vector ? 0 : r.other.stride(-1);
    p.batches = c10::multiply_integers(batch);
    if (fits) merge_batch_into_rows(p);
    return fits;
  };
  bool fits = describe();
  Resolved chosen = choose(asked, r.dtype, p, target);
  if (!fits || p.batch_dims > chosen.row->batch_dims) {
    // In memory of their own the matrices of a batch lie one after another.
    r.self = a_vector ? r.self : expanded_copy(r.self, batch);
    r.other = b_vector ? r.other : expanded_copy(r.other, batch);
    describe();
    chosen = choose(asked, r.dtype, p, target);
  }
  if (chosen.row->refusal != nullptr) {
    const char* const refusal = chosen.row->refusal(p);
    TORCH_CHECK_VALUE(refusal == nullptr, "variant '", chosen.row->name, "' takes ", refusal, ", got shapes ",
                      self.sizes(), " and ", other.sizes());
  }
  r.row = chosen.row;
  r.tile = chosen.tile;
  const at::ScalarType type = result_type(self.scalar_type());
  if (out != nullptr) {
    check_out(*out, self, other, c10::fromIntArrayRefSlow(sizes), type);
    r.result = *out;
  } else {
    r.result = at::empty(sizes, self.options().dtype(type).memory_format(std::nullopt));
  }
  return r;
}

}  // namespace treduce::matmul
