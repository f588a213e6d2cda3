// Gradients, in C++: a node of our own for each op, as torch's generated ops have, because torch::autograd::Function and a
// Python registration both cost more for each call. The backward formulas are differentiable ops, so double backward works.
#include <precompiled.h>

#include <ATen/ops/real.h>

#include "attention.h"
#include "attention_formula.h"
#include "autograd_nodes.h"
#include "matmul_schema.h"
#include "ours.h"
#include "reduce_dims.h"
#include "reduce_schema.h"

namespace treduce {
namespace {

using Binary = matmul::MatmulSchema;  // vector_add has it too, with a block size

using reduce::find_op;

// What the gradient of a reduction must know of its input.
struct Reduced {
  std::vector<c10::SymInt> sizes;
  reduce::Dims dims;
  bool keepdim = false;
  at::ScalarType type = at::kFloat;

  Reduced() = default;
  Reduced(const at::Tensor& self, at::OptionalIntArrayRef dim, bool keep)
      : sizes(self.sym_sizes().vec()), dims(dim, self.dim()), keepdim(keep), type(self.scalar_type()) {}

  // Puts the reduced dims back with size 1, so that the tensor broadcasts to the input.
  at::Tensor restored(at::Tensor tensor) const {
    if (keepdim || dims.whole()) return tensor;
    for (size_t d = 0; d < sizes.size(); ++d) {
      if (dims[static_cast<int64_t>(d)]) tensor = tensor.unsqueeze(static_cast<int64_t>(d));
    }
    return tensor;
  }

  // Casts to the input's dtype, before the gradient is broadcast to the input's size.
  at::Tensor cast(const at::Tensor& grad) const {
    if (grad.scalar_type() == type) return grad;
    return (grad.is_complex() && !at::isComplexType(type) ? at::real(grad) : grad).to(type);
  }

  // Which elements equal the extremum of their output, and how many do.
  std::pair<at::Tensor, at::Tensor> ties(const at::Tensor& x, const at::Tensor& extremum) const {
    // 8-bit floats have a float32 extremum.
    const at::Tensor wide = x.scalar_type() == extremum.scalar_type() ? x : x.to(extremum.scalar_type());
    const at::Tensor found = wide.eq(restored(extremum));
    if (dims.whole()) return {found, found.sum()};
    at::DimVector reduced;
    for (int64_t d = 0; d < x.dim(); ++d) {
      if (dims[d]) reduced.push_back(d);
    }
    return {found, found.sum(reduced, /*keepdim=*/true)};
  }

  // Elements of an output.
  c10::SymInt count() const {
    c10::SymInt n = 1;
    for (size_t d = 0; d < sizes.size(); ++d) {
      if (dims[static_cast<int64_t>(d)]) n *= sizes[d];
    }
    return n;
  }
};

// d sum / dx = 1 everywhere, d mean / dx = 1 / n.
struct SumBackward : Node {
  Reduced input;
  bool mean = false;

  variable_list apply(variable_list&& grads) override {
    if (!grads[0].defined()) return {at::Tensor()};
    // Times 1 / n and not divided by n: torch divides by a number on a CPU and multiplies by its reciprocal on CUDA.
    const auto factor = [&] { return c10::SymFloat(1.0) / static_cast<c10::SymFloat>(input.count()); };
    const at::Tensor grad = mean ? grads[0].mul(at::Scalar(factor())) : grads[0];
    return {input.restored(input.cast(grad)).expand_symint(input.sizes)};
  }
  std::string name() const override { return mean ? "TreduceMeanBackward" : "TreduceSumBackward"; }
};

// Shared evenly between the elements that equal the extremum, as torch's amax does.
struct ExtremumBackward : Node {
  Reduced input;
  SavedVariable self;
  SavedVariable result;  // detached: the ties carry no gradient of their own

  variable_list apply(variable_list&& grads) override {
    if (!grads[0].defined()) return {at::Tensor()};
    const at::Tensor x = self.unpack(), extremum = result.unpack();
    const auto [ties, count] = input.ties(x, extremum);
    return {input.cast(input.restored(grads[0]).mul(ties).div(count))};
  }
  void release_variables() override {
    self.reset_data();
    result.reset_data();
  }
  std::string name() const override { return "TreduceExtremumBackward"; }
};

// Its leading dims as one. By reshape: batched gradients (is_grads_batched) know no flatten.
at::Tensor as_rows(const at::Tensor& x) {
  c10::SymInt rows = 1;
  for (int64_t d = 0; d < x.dim() - 1; ++d) rows *= x.sym_size(d);
  return x.reshape_symint({rows, x.sym_size(-1)});
}

// dA = G B^H and dB = A^H G, through the same variant; vectors count as matrices with one row or column, and what was
// broadcast is summed.
struct MatmulBackward : Node {
  SavedVariable self, other;
  std::string variant;
  std::optional<int64_t> tile_size;

  variable_list apply(variable_list&& grads) override {
    static const auto op = find_op<Binary>("treduce::matmul");
    if (!grads[0].defined()) return {at::Tensor(), at::Tensor()};
    const at::Tensor a = self.unpack(), b = other.unpack();
    const bool a_vector = a.dim() == 1, b_vector = b.dim() == 1;
    const at::Tensor a2 = a_vector ? a.unsqueeze(0) : a;
    const at::Tensor b2 = b_vector ? b.unsqueeze(1) : b;
    at::Tensor g = grads[0];
    if (b_vector) g = g.unsqueeze(-1);
    if (a_vector) g = g.unsqueeze(-2);

    variable_list result(2);
    if (task_should_compute_output(0)) {
      const at::Tensor grad = op.call(g, b2.mT().conj(), variant, tile_size);
      result[0] = ours::sum_to(grad, a2.sym_sizes()).view_symint(a.sym_sizes());
    }
    if (task_should_compute_output(1)) {
      // A weight shared by a batch: one product over the folded batch, not a product a batch and a sum.
      const bool fold = b2.dim() == 2 && a2.dim() > 2;
      const at::Tensor left = fold ? as_rows(a2) : a2;
      const at::Tensor right = fold ? as_rows(g) : g;
      const at::Tensor grad = op.call(left.mT().conj(), right, variant, tile_size);
      result[1] = ours::sum_to(grad, b2.sym_sizes()).view_symint(b.sym_sizes());
    }
    return result;
  }
  void release_variables() override {
    self.reset_data();
    other.reset_data();
  }
  std::string name() const override { return "TreduceMatmulBackward"; }
};

// y = x W^T + b: dx = G conj(W) and dW = G^T conj(x) through the same variant, with views and no copies; db is the sum of G along the
// leading dims.
struct LinearBackward : Node {
  SavedVariable input, weight;  // each only where the other's gradient is wanted
  bool input_is_vector = false, weight_is_vector = false;
  std::string variant;

  variable_list apply(variable_list&& grads) override {
    static const auto product = find_op<Binary>("treduce::matmul");
    static const auto sum = find_op<reduce::SumSchema>("treduce::sum");
    variable_list result(3);
    const at::Tensor& g = grads[0];
    if (!g.defined()) return result;
    if (task_should_compute_output(0)) {
      const at::Tensor w = weight.unpack().conj();
      result[0] = weight_is_vector ? product.call(g.unsqueeze(-1), w.unsqueeze(0), variant, std::nullopt)
                                   : product.call(g, w, variant, std::nullopt);
    }
    if (task_should_compute_output(1)) {
      const at::Tensor x = input.unpack().conj();
      const at::Tensor rows = input_is_vector ? x.unsqueeze(0) : as_rows(x);
      const at::Tensor left = weight_is_vector  ? g.reshape_symint({g.sym_numel()})
                              : input_is_vector ? g.unsqueeze(-1)
                                                : as_rows(g).mT();
      result[1] = product.call(left, rows, variant, std::nullopt);
    }
    if (task_should_compute_output(2)) {
      at::DimVector leading;
      for (int64_t d = 0; d < g.dim() - !weight_is_vector; ++d) leading.push_back(d);
      result[2] = leading.empty() ? g
                                  : sum.call(g, "auto", at::IntArrayRef(leading), /*keepdim=*/false, std::nullopt,
                                             std::nullopt, std::nullopt);
    }
    return result;
  }
  void release_variables() override {
    input.reset_data();
    weight.reset_data();
  }
  std::string name() const override { return "TreduceLinearBackward"; }
};

struct AddBackward : Node {
  std::vector<c10::SymInt> self_sizes, other_sizes;

  variable_list apply(variable_list&& grads) override {
    if (!grads[0].defined()) return {at::Tensor(), at::Tensor()};
    variable_list result(2);
    if (task_should_compute_output(0)) result[0] = ours::sum_to(grads[0], self_sizes);
    if (task_should_compute_output(1)) result[1] = ours::sum_to(grads[0], other_sizes);
    return result;
  }
  std::string name() const override { return "TreduceVectorAddBackward"; }
};

// The probabilities are computed again from what is saved.
struct AttentionBackward : Node {
  SavedVariable query, key, value, mask;
  bool is_causal = false, enable_gqa = false;
  std::optional<double> scale;

  variable_list apply(variable_list&& grads) override {
    static const auto op = find_op<attention::BackwardSchema>("treduce::scaled_dot_product_attention_backward");
    if (!grads[0].defined()) return variable_list(3);
    const at::Tensor m = mask.unpack();
    auto [dquery, dkey, dvalue] =
        op.call(grads[0], query.unpack(), key.unpack(), value.unpack(),
                m.defined() ? std::optional<at::Tensor>(m) : std::nullopt, is_causal, scale, enable_gqa);
    return {dquery, dkey, dvalue};
  }
  void release_variables() override {
    query.reset_data();
    key.reset_data();
    value.reset_data();
    mask.reset_data();
  }
  std::string name() const override { return "TreduceAttentionBackward"; }
};

// Of the gradients themselves, as a formula of differentiable ops.
struct AttentionBackwardBackward : Node {
  SavedVariable grad, query, key, value, mask;
  bool is_causal = false;
  std::optional<double> scale;

  variable_list apply(variable_list&& grads) override {
    const at::Tensor m = mask.unpack();
    const attention::Formula formula(query.unpack(), key.unpack(), value.unpack(),
                                     m.defined() ? std::optional<at::Tensor>(m) : std::nullopt, is_causal, scale);
    const auto [of_grad, of] = formula.gradients_of_gradients(grad.unpack(), {grads[0], grads[1], grads[2]});
    return {of_grad, of.query, of.key, of.value};
  }
  void release_variables() override {
    for (SavedVariable* saved : {&grad, &query, &key, &value, &mask}) saved->reset_data();
  }
  std::string name() const override { return "TreduceAttentionBackwardBackward"; }
};

constexpr char kSum[] = "treduce::sum", kMean[] = "treduce::mean", kAmax[] = "treduce::amax", kAmin[] = "treduce::amin";

template <const char* kName>
at::Tensor sum_like(c10::DispatchKeySet keys, const at::Tensor& self, std::string_view variant,
                    at::OptionalIntArrayRef dim, bool keepdim, std::optional<at::ScalarType> dtype,
                    std::optional<int64_t> block_size, std::optional<int64_t> num_blocks) {
  static const auto op = find_op<reduce::SumSchema>(kName);
  // An integer result is a constant, as that of Tensor.to is.
  const bool records = torch::autograd::compute_requires_grad(self) &&
                       (!dtype.has_value() || torch::autograd::isDifferentiableType(*dtype));
  const at::Tensor tangent = tangent_of(self);
  at::Tensor result = below_autograd(op, keys, records || tangent.defined(), self, variant, dim, keepdim, dtype,
                                     block_size, num_blocks);
  if (records) {
    auto node = make_node<SumBackward>();
    node->set_next_edges(torch::autograd::collect_next_edges(self));
    node->input = Reduced(self, dim, keepdim);
    node->mean = kName == kMean;
    torch::autograd::set_history(result, node);
  }
  if (tangent.defined() && torch::autograd::isDifferentiableType(result.scalar_type())) {
    set_tangent(result, op.call(tangent, variant, dim, keepdim, dtype, block_size, num_blocks));
  }
  return result;
}

template <const char* kName>
at::Tensor extremum(c10::DispatchKeySet keys, const at::Tensor& self, std::string_view variant,
                    at::OptionalIntArrayRef dim, bool keepdim, std::optional<int64_t> block_size,
                    std::optional<int64_t> num_blocks) {
  static const auto op = find_op<reduce::ExtremumSchema>(kName);
  const bool records = torch::autograd::compute_requires_grad(self);
  const at::Tensor tangent = tangent_of(self);
  at::Tensor result =
      below_autograd(op, keys, records || tangent.defined(), self, variant, dim, keepdim, block_size, num_blocks);
  if (records) {
    auto node = make_node<ExtremumBackward>();
    node->set_next_edges(torch::autograd::collect_next_edges(self));
    node->input = Reduced(self, dim, keepdim);
    node->self = SavedVariable(self, /*is_output=*/false);
    node->result = SavedVariable(result.detach(), /*is_output=*/false);
    torch::autograd::set_history(result, node);
  }
  if (tangent.defined()) {
    static const auto sum = find_op<reduce::SumSchema>("treduce::sum");
    const Reduced input(self, dim, keepdim);
    const auto [ties, count] = input.ties(primal_of(self), primal_of(result));
    set_tangent(result,
                sum.call(tangent.mul(ties).div(count), "auto", dim, keepdim, std::nullopt, std::nullopt, std::nullopt)
                    .to(result.scalar_type()));
  }
  return result;
}

at::Tensor recorded_matmul(c10::DispatchKeySet keys, const at::Tensor& self, const at::Tensor& other,
                           std::string_view variant, std::optional<int64_t> tile_size) {
  static const auto op = find_op<Binary>("treduce::matmul");
  const bool records = torch::autograd::compute_requires_grad(self, other);
  const at::Tensor of_self = tangent_of(self), of_other = tangent_of(other);
  const bool dual = any_defined(of_self, of_other);
  at::Tensor result = below_autograd(op, keys, records || dual, self, other, variant, tile_size);
  if (records) {
    auto node = make_node<MatmulBackward>();
    node->set_next_edges(torch::autograd::collect_next_edges(self, other));
    node->self = SavedVariable(self, /*is_output=*/false);
    node->other = SavedVariable(other, /*is_output=*/false);
    node->variant = std::string(variant);
    node->tile_size = tile_size;
    torch::autograd::set_history(result, node);
  }
  if (dual) {
    const auto product = [&](const at::Tensor& a, const at::Tensor& b) {
      return any_defined(a) && any_defined(b) ? op.call(a, b, variant, tile_size) : at::Tensor();
    };
    set_tangent(result, added(product(of_self, primal_of(other)), product(primal_of(self), of_other)));
  }
  return result;
}

at::Tensor recorded_linear(c10::DispatchKeySet keys, const at::Tensor& input, const at::Tensor& weight,
                           const std::optional<at::Tensor>& bias, std::string_view variant) {
  using torch::autograd::compute_requires_grad;
  static const auto op = find_op<matmul::LinearSchema>("treduce::linear");
  const at::Tensor b = bias.value_or(at::Tensor());
  const bool records = compute_requires_grad(input, weight, b);
  const at::Tensor of_input = tangent_of(input), of_weight = tangent_of(weight), of_bias = tangent_of(b);
  const bool dual = any_defined(of_input, of_weight, of_bias);
  at::Tensor result = below_autograd(op, keys, records || dual, input, weight, bias, variant);
  if (records) {
    auto node = make_node<LinearBackward>();
    node->set_next_edges(torch::autograd::collect_next_edges(input, weight, b));
    if (compute_requires_grad(weight)) node->input = SavedVariable(input, /*is_output=*/false);
    if (compute_requires_grad(input)) node->weight = SavedVariable(weight, /*is_output=*/false);
    node->input_is_vector = input.dim() == 1;
    node->weight_is_vector = weight.dim() == 1;
    node->variant = std::string(variant);
    torch::autograd::set_history(result, node);
  }
  if (dual) {
    const auto product = [&](const at::Tensor& x, const at::Tensor& w) {
      return any_defined(x) && any_defined(w) ? op.call(x, w, std::nullopt, variant) : at::Tensor();
    };
    at::Tensor tangent = added(product(of_input, primal_of(weight)), product(primal_of(input), of_weight));
    if (of_bias.defined())
      tangent = tangent.defined() ? tangent.add(of_bias) : of_bias.expand_symint(result.sym_sizes());
    set_tangent(result, tangent);
  }
  return result;
}

at::Tensor recorded_attention(c10::DispatchKeySet keys, const at::Tensor& query, const at::Tensor& key,
                              const at::Tensor& value, const std::optional<at::Tensor>& attn_mask, double dropout_p,
                              bool is_causal, std::optional<double> scale, bool enable_gqa) {
  using torch::autograd::compute_requires_grad;
  static const auto op = find_op<attention::Schema>("treduce::scaled_dot_product_attention");
  const at::Tensor mask = attn_mask.value_or(at::Tensor());
  TORCH_CHECK_NOT_IMPLEMENTED(!compute_requires_grad(mask) && !tangent_of(mask).defined(),
                              "scaled_dot_product_attention has no gradient of attn_mask");
  const bool records = compute_requires_grad(query, key, value);
  const bool dual = any_defined(tangent_of(query), tangent_of(key), tangent_of(value));
  at::Tensor result =
      below_autograd(op, keys, records || dual, query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa);
  if (records) {
    auto node = make_node<AttentionBackward>();
    node->set_next_edges(torch::autograd::collect_next_edges(query, key, value));
    node->query = SavedVariable(query, /*is_output=*/false);
    node->key = SavedVariable(key, /*is_output=*/false);
    node->value = SavedVariable(value, /*is_output=*/false);
    node->mask = SavedVariable(mask, /*is_output=*/false);
    node->is_causal = is_causal;
    node->scale = scale;
    node->enable_gqa = enable_gqa;
    torch::autograd::set_history(result, node);
  }
  if (dual) {
    const attention::Formula formula(query, key, value, attn_mask, is_causal, scale);
    set_tangent(result, tangent_of(formula.result()));
  }
  return result;
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> recorded_attention_backward(
    c10::DispatchKeySet keys, const at::Tensor& grad, const at::Tensor& query, const at::Tensor& key,
    const at::Tensor& value, const std::optional<at::Tensor>& attn_mask, bool is_causal, std::optional<double> scale,
    bool enable_gqa) {
  static const auto op = find_op<attention::BackwardSchema>("treduce::scaled_dot_product_attention_backward");
  const bool records = torch::autograd::compute_requires_grad(grad, query, key, value);
  const bool dual = any_defined(tangent_of(grad), tangent_of(query), tangent_of(key), tangent_of(value));
  auto results =
      below_autograd(op, keys, records || dual, grad, query, key, value, attn_mask, is_causal, scale, enable_gqa);
  if (records) {
    auto node = make_node<AttentionBackwardBackward>();
    node->set_next_edges(torch::autograd::collect_next_edges(grad, query, key, value));
    node->grad = SavedVariable(grad, /*is_output=*/false);
    node->query = SavedVariable(query, /*is_output=*/false);
    node->key = SavedVariable(key, /*is_output=*/false);
    node->value = SavedVariable(value, /*is_output=*/false);
    node->mask = SavedVariable(attn_mask.value_or(at::Tensor()), /*is_output=*/false);
    node->is_causal = is_causal;
    node->scale = scale;
    torch::autograd::set_history({std::get<0>(results), std::get<1>(results), std::get<2>(results)}, node);
  }
  if (dual) {
    const attention::Formula formula(query, key, value, attn_mask, is_causal, scale);
    const attention::Triple gradients = formula.gradients(grad);
    set_tangent(std::get<0>(results), tangent_of(gradients.query));
    set_tangent(std::get<1>(results), tangent_of(gradients.key));
    set_tangent(std::get<2>(results), tangent_of(gradients.value));
  }
  return results;
}

at::Tensor vector_add(c10::DispatchKeySet keys, const at::Tensor& self, const at::Tensor& other,
                      std::string_view variant, std::optional<int64_t> block_size) {
  static const auto op = find_op<Binary>("treduce::vector_add");
  const bool records = torch::autograd::compute_requires_grad(self, other);
  const at::Tensor of_self = tangent_of(self), of_other = tangent_of(other);
  const bool dual = any_defined(of_self, of_other);
  at::Tensor result = below_autograd(op, keys, records || dual, self, other, variant, block_size);
  if (records) {
    auto node = make_node<AddBackward>();
    node->set_next_edges(torch::autograd::collect_next_edges(self, other));
    node->self_sizes = self.sym_sizes().vec();
    node->other_sizes = other.sym_sizes().vec();
    torch::autograd::set_history(result, node);
  }
  if (dual) set_tangent(result, added(of_self, of_other).expand_symint(result.sym_sizes()));
  return result;
}

}  // namespace

TORCH_LIBRARY_IMPL(treduce, Autograd, m) {
  m.impl("sum", sum_like<kSum>);
  m.impl("mean", sum_like<kMean>);
  m.impl("amax", extremum<kAmax>);
  m.impl("amin", extremum<kAmin>);
  m.impl("matmul", recorded_matmul);
  m.impl("linear", recorded_linear);
  m.impl("scaled_dot_product_attention", recorded_attention);
  m.impl("scaled_dot_product_attention_backward", recorded_attention_backward);
  m.impl("vector_add", vector_add);
}

}  // namespace treduce
