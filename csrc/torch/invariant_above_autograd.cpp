// Ops that torch takes apart above autograd, in ways that depend on strides, sizes and on who requires a gradient. A linear layer
// becomes one product or one for each batch, its bias is added before the rounding or after it; a batch norm is one of three kernels.
// In the mode there is one way, of differentiable ops, so these are replaced above autograd too.
#include <precompiled.h>

#include <ATen/ops/addcmul.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/batch_norm_native.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/dot.h>
#include <ATen/ops/linalg_multi_dot_native.h>
#include <ATen/ops/linear_native.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/matmul_native.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/mv.h>
#include <ATen/ops/neg.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/tensordot_native.h>

#include "composed.h"
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

// In evaluation: x scale + shift, with one scale and shift for each channel.
Tensor batch_norm(const Tensor& input, const OptionalTensor& weight, const OptionalTensor& bias,
                  const OptionalTensor& mean, const OptionalTensor& var, bool training, double momentum, double eps,
                  bool cudnn_enabled) {
  if (training || input.dim() < 2 || !is_there(mean) || !is_there(var)) {
    return at::native::batch_norm(input, weight, bias, mean, var, training, momentum, eps, cudnn_enabled);
  }
  const at::ScalarType type = composed::accumulator(input.scalar_type());
  std::vector<c10::SymInt> shape(input.dim(), 1);
  shape[1] = input.sym_size(1);
  const auto of_channels = [&](const Tensor& x) { return x.to(type).reshape_symint(shape); };
  Tensor scale = at::rsqrt(at::add(of_channels(*var), eps));
  if (is_there(weight)) scale = at::mul(scale, of_channels(*weight));
  Tensor shift = at::neg(at::mul(of_channels(*mean), scale));
  if (is_there(bias)) shift = at::add(shift, of_channels(*bias));
  return at::addcmul(shift, input.to(type), scale).to(input.scalar_type()).contiguous(input.suggest_memory_format());
}

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

Tensor multi_dot_above_autograd(at::TensorList tensors) {
  Seen seen;
  seen.look(tensors);
  if (!active() || Floats::judge(seen) != Verdict::ours) return at::native::linalg_multi_dot(tensors);
  Replaced<&multi_dot, Floats>::entry->ours.fetch_add(1, std::memory_order_relaxed);
  return multi_dot(tensors);
}

struct Dense {
  template <class... A>
  static Verdict judge(const Seen& seen, const Tensor& first, const A&...) {
    return seen.elsewhere || !seen.floats || first.is_nested() ? Verdict::torchs : Verdict::ours;
  }
};

// Torch's way outside the mode.
template <auto kKernel, auto kTorchs>
struct AboveAutograd;

template <class R, class... A, R (*kKernel)(A...), auto kTorchs>
struct AboveAutograd<kKernel, kTorchs> {
  static R call(A... args) {
    if (!active()) return kTorchs(args...);
    Seen seen;
    (seen.look(args), ...);
    if (Dense::judge(seen, args...) != Verdict::ours) return kTorchs(args...);
    Replaced<kKernel, Dense>::entry->ours.fetch_add(1, std::memory_order_relaxed);
    return kKernel(args...);
  }
};

}  // namespace

void replace_above_autograd(torch::Library& m) {
  replace<&linear, Dense>(m, "linear");
  replace<&matmul, Dense>(m, "matmul");
  replace<&batch_norm, Dense>(m, "batch_norm");
  replace<&tensordot, Dense>(m, "tensordot");
  replace<&multi_dot>(m, "linalg_multi_dot");
  for (const c10::DispatchKey key : {c10::DispatchKey::AutogradCPU, c10::DispatchKey::AutogradCUDA}) {
    auto* library = new torch::Library(torch::Library::IMPL, "aten", key, __FILE__, __LINE__);
    library->impl("linear", &AboveAutograd<&linear, &at::native::linear>::call);
    library->impl("batch_norm", &AboveAutograd<&batch_norm, &at::native::batch_norm>::call);
    library->impl("matmul", &AboveAutograd<&matmul, &at::native::matmul>::call);
    library->impl("tensordot", &AboveAutograd<&tensordot, &at::native::tensordot>::call);
    library->impl("linalg_multi_dot", &multi_dot_above_autograd);
  }
}

}  // namespace treduce::invariant
