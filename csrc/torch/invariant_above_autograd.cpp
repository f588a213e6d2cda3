// Ops that torch takes apart above autograd, in ways that depend on strides, sizes and on who requires a gradient. A linear layer
// becomes one product or one for each batch, its bias is added before the rounding or after it; a batch norm is one of three kernels.
// In the mode there is one way, of differentiable ops, so these are replaced above autograd too.
#include <precompiled.h>

#include <ATen/ops/addmm.h>
#include <ATen/ops/batch_norm_native.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cdist_native.h>
#include <ATen/ops/cudnn_is_acceptable_native.h>
#include <ATen/ops/dot.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/linalg_multi_dot_native.h>
#include <ATen/ops/linear_native.h>
#include <ATen/ops/lstm_cell.h>
#include <ATen/ops/lstm_native.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/matmul_native.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/mv.h>
#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensordot_native.h>

#include "invariant_ops.h"

namespace treduce::invariant {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

bool is_there(const OptionalTensor& tensor) { return tensor.has_value() && tensor->defined(); }

// All dims but the last as one. Torch's derivative of a product swaps the operands where the first lies column by column; one of its
// rows does not.
Tensor rows_of(const Tensor& x) {
  const Tensor rows = x.dim() == 1 ? x.unsqueeze(0) : x.dim() == 2 ? x : x.flatten(0, -2);
  const bool by_columns = rows.sym_stride(0) == 1 && rows.sym_stride(1) == rows.sym_size(0);
  return by_columns && rows.requires_grad() ? rows.clone(at::MemoryFormat::Contiguous) : rows;
}

// The rows of a result in the shape of x, whose last dim becomes `last`, or vanishes.
Tensor like_rows_of(const Tensor& x, const Tensor& rows, const std::optional<c10::SymInt>& last) {
  if (x.dim() == 2 && last.has_value()) return rows;
  std::vector<c10::SymInt> sizes = x.sym_sizes().vec();
  sizes.pop_back();
  if (last.has_value()) sizes.push_back(*last);
  return rows.reshape_symint(sizes);
}

Tensor linear(const Tensor& input, const Tensor& weight, const OptionalTensor& bias) {
  if (input.dim() == 0 || weight.dim() != 2 || (is_there(bias) && bias->dim() != 1)) {
    return at::native::linear(input, weight, bias);
  }
  const Tensor rows = rows_of(input);
  const Tensor result = is_there(bias) ? at::addmm(*bias, rows, weight.t()) : at::mm(rows, weight.t());
  return like_rows_of(input, result, weight.sym_size(0));
}

Tensor matmul(const Tensor& a, const Tensor& b) {
  // As torch's: of a TypeError Python makes one about `@`, which names no dtype.
  TORCH_CHECK(a.scalar_type() == b.scalar_type(), "matmul takes tensors of one dtype, got ", a.scalar_type(), " and ",
              b.scalar_type());
  // One matrix for all rows of all batches.
  if (a.dim() >= 2 && b.dim() == 2) return like_rows_of(a, at::mm(rows_of(a), b), b.sym_size(1));
  if (a.dim() >= 3 && b.dim() == 1) return like_rows_of(a, at::mv(rows_of(a), b), std::nullopt);
  // A product for each batch.
  if (a.dim() == 1 && b.dim() >= 3) return at::matmul(a.unsqueeze(0), b).squeeze(-2);
  if (a.dim() == 2 && b.dim() >= 3) {
    std::vector<c10::SymInt> sizes = b.sym_sizes().vec();
    const Tensor batches = b.dim() == 3 ? b : b.flatten(0, -3);
    const Tensor product =
        at::bmm(a.unsqueeze(0).expand_symint({batches.sym_size(0), a.sym_size(0), a.sym_size(1)}), batches);
    sizes[sizes.size() - 2] = a.sym_size(0);
    return product.reshape_symint(sizes);
  }
  return at::native::matmul(a, b);
}

// One kernel, whatever cuDNN and a CPU have.
Tensor batch_norm(const Tensor& input, const OptionalTensor& weight, const OptionalTensor& bias,
                  const OptionalTensor& mean, const OptionalTensor& var, bool training, double momentum, double eps,
                  bool cudnn_enabled) {
  if (input.dim() < 2 || input.sym_numel() == 0 || (!training && !(is_there(mean) && is_there(var)))) {
    return at::native::batch_norm(input, weight, bias, mean, var, training, momentum, eps, cudnn_enabled);
  }
  return std::get<0>(at::native_batch_norm(input, weight, bias, mean, var, training, momentum, eps));
}

// Torch takes the shortcut by a product from 26 rows on. It has no other way for 16-bit floats.
Tensor cdist(const Tensor& x1, const Tensor& x2, double p, std::optional<int64_t> compute_mode) {
  enum { kProductsOfMany, kProducts, kDifferences };
  int64_t mode = compute_mode.value_or(kProductsOfMany);
  if (mode == kProductsOfMany) mode = at::isReducedFloatingType(x1.scalar_type()) ? kProducts : kDifferences;
  return at::native::cdist(x1, x2, p, mode);
}

// Then torch composes recurrent layers of products, in place of cuDNN's kernels.
bool no_cudnn(const Tensor&) { return false; }

// From the first to the last: torch's order of the products follows the count of rows.
Tensor multi_dot(at::TensorList tensors) {
  bool matrices = tensors.size() > 2;
  for (size_t i = 1; i + 1 < tensors.size(); ++i) matrices &= tensors[i].dim() == 2;
  if (!matrices) return at::native::linalg_multi_dot(tensors);
  Tensor result = tensors[0];
  for (const Tensor& next : tensors.slice(1)) result = at::matmul(result, next);
  return result;
}

// Of all dims: one dot. Torch adds the elements' products instead where the operands do not lie in that order.
Tensor tensordot(const Tensor& a, const Tensor& b, at::IntArrayRef dims_a, at::IntArrayRef dims_b) {
  bool whole = a.dim() > 0 && dims_a.size() == size_t(a.dim()) && dims_b.size() == size_t(b.dim()) &&
               dims_a.size() == dims_b.size() && a.scalar_type() == b.scalar_type();
  for (size_t i = 0; whole && i < dims_a.size(); ++i) whole = a.sym_size(dims_a[i]) == b.sym_size(dims_b[i]);
  if (!whole) return at::native::tensordot(a, b, dims_a, dims_b);
  return at::dot(a.permute(dims_a).reshape(-1), b.permute(dims_b).reshape(-1));
}

// ---- long short-term memory, for which torch takes oneDNN's or cuDNN's kernels where there is no projection

using Lstm = std::tuple<Tensor, Tensor, Tensor>(const Tensor& input, at::TensorList hx, at::TensorList params,
                                                bool has_biases, int64_t num_layers, double dropout, bool train,
                                                bool bidirectional, bool batch_first);
using PackedLstm = std::tuple<Tensor, Tensor, Tensor>(const Tensor& data, const Tensor& batch_sizes, at::TensorList hx,
                                                      at::TensorList params, bool has_biases, int64_t num_layers,
                                                      double dropout, bool train, bool bidirectional);

// One direction of a layer. A step has the first rows of the state, as many as there are sequences so long.
std::tuple<Tensor, Tensor, Tensor> walk(std::vector<Tensor> steps, Tensor h, Tensor c, at::TensorList weights,
                                        bool backwards) {
  const auto bias = [&](size_t i) { return i < weights.size() ? OptionalTensor(weights[i]) : std::nullopt; };
  for (size_t i = 0; i < steps.size(); ++i) {
    Tensor& x = steps[backwards ? steps.size() - 1 - i : i];
    const int64_t n = x.size(0), others = h.size(0) - n;
    auto [next_h, next_c] =
        at::lstm_cell(x, {h.narrow(0, 0, n), c.narrow(0, 0, n)}, weights[0], weights[1], bias(2), bias(3));
    x = next_h;
    h = others > 0 ? at::cat({next_h, h.narrow(0, n, others)}) : next_h;
    c = others > 0 ? at::cat({next_c, c.narrow(0, n, others)}) : next_c;
  }
  return {at::cat(steps), h, c};
}

std::tuple<Tensor, Tensor, Tensor> layers(Tensor data, at::IntArrayRef sizes, at::TensorList hx, at::TensorList params,
                                          bool has_biases, int64_t num_layers, double dropout, bool train,
                                          bool bidirectional) {
  const int64_t directions = bidirectional ? 2 : 1, each = has_biases ? 4 : 2;
  std::vector<Tensor> h, c;
  for (int64_t layer = 0; layer < num_layers; ++layer) {
    if (layer > 0 && dropout > 0) data = at::dropout(data, dropout, train);
    std::vector<Tensor> results;
    for (int64_t d = 0; d < directions; ++d) {
      const int64_t k = layer * directions + d;
      auto [result, last_h, last_c] =
          walk(data.split_with_sizes(sizes), hx[0][k], hx[1][k], params.slice(k * each, each), d == 1);
      results.push_back(result);
      h.push_back(last_h);
      c.push_back(last_c);
    }
    data = at::cat(results, 1);
  }
  return {data, at::stack(h), at::stack(c)};
}

bool projects(at::TensorList hx) { return hx.size() != 2 || hx[0].sizes() != hx[1].sizes(); }

std::tuple<Tensor, Tensor, Tensor> lstm(const Tensor& input, at::TensorList hx, at::TensorList params, bool has_biases,
                                        int64_t num_layers, double dropout, bool train, bool bidirectional,
                                        bool batch_first) {
  if (input.dim() != 3 || input.numel() == 0 || projects(hx)) {
    return at::native::lstm(input, hx, params, has_biases, num_layers, dropout, train, bidirectional, batch_first);
  }
  const Tensor steps = batch_first ? input.transpose(0, 1) : input;
  const std::vector<int64_t> sizes(steps.size(0), steps.size(1));
  auto [result, h, c] =
      layers(steps.flatten(0, 1), sizes, hx, params, has_biases, num_layers, dropout, train, bidirectional);
  result = result.view({steps.size(0), steps.size(1), -1});
  return {batch_first ? result.transpose(0, 1) : result, h, c};
}

std::tuple<Tensor, Tensor, Tensor> packed_lstm(const Tensor& data, const Tensor& batch_sizes, at::TensorList hx,
                                               at::TensorList params, bool has_biases, int64_t num_layers,
                                               double dropout, bool train, bool bidirectional) {
  if (data.numel() == 0 || projects(hx)) {
    return at::native::lstm(data, batch_sizes, hx, params, has_biases, num_layers, dropout, train, bidirectional);
  }
  const Tensor sizes = batch_sizes.to(at::kCPU, at::kLong).contiguous();
  return layers(data, {sizes.const_data_ptr<int64_t>(), static_cast<size_t>(sizes.numel())}, hx, params, has_biases,
                num_layers, dropout, train, bidirectional);
}

struct Dense {
  template <class... A>
  static Verdict judge(const Seen& seen, const Tensor& first, const A&...) {
    return seen.elsewhere || !seen.floats || first.is_nested() ? Verdict::torchs : Verdict::ours;
  }
};

}  // namespace

void replace_above_autograd(torch::Library& m) {
  namespace native = at::native;
  replace_above<&linear, &native::linear, Dense>(m, "linear");
  replace_above<&matmul, &native::matmul, Dense>(m, "matmul");
  replace_above<&batch_norm, &native::batch_norm, Dense>(m, "batch_norm");
  replace_above<&tensordot, &native::tensordot, Dense>(m, "tensordot");
  replace_above<&cdist, &native::cdist, Dense>(m, "cdist");
  replace_above<&no_cudnn, &native::cudnn_is_acceptable, Dense>(m, "cudnn_is_acceptable");
  replace_above<&lstm, static_cast<Lstm*>(&native::lstm), Dense>(m, "lstm.input");
  replace_above<&packed_lstm, static_cast<PackedLstm*>(&native::lstm), Dense>(m, "lstm.data");
  replace_above<&multi_dot, &native::linalg_multi_dot, Floats>(m, "linalg_multi_dot");
}

}  // namespace treduce::invariant
