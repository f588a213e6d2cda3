// Gradients of the row operations. The first is a kernel; where a second one may be wanted (create_graph), the same formula is written
// in differentiable ops instead. Gradients of weights and biases are sums over the rows, by treduce::sum.
#include <precompiled.h>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>

#include "autograd_nodes.h"
#include "ours.h"
#include "rows_ops.h"
#include "rows_schema.h"

namespace treduce::rows {
namespace {

using reduce::find_op;
using torch::autograd::compute_requires_grad;
using OptionalTensor = std::optional<at::Tensor>;

// Over no dims, the tensor itself.
at::Tensor sum_of(const at::Tensor& tensor, at::IntArrayRef dims, bool keepdim) {
  return dims.empty() ? tensor : ours::sum(tensor, dims, keepdim);
}
at::Tensor sum_along(const at::Tensor& tensor, int64_t dim) {
  return tensor.dim() == 0 ? tensor : sum_of(tensor, at::IntArrayRef(dim), true);
}
at::Tensor mean_over(const at::Tensor& tensor, at::IntArrayRef dims) { return ours::mean(tensor, dims, true); }

at::DimVector range(int64_t begin, int64_t end) {
  at::DimVector dims;
  for (int64_t d = begin; d < end; ++d) dims.push_back(d);
  return dims;
}

at::Tensor widened(const at::Tensor& tensor) { return tensor.to(accumulator_type(tensor.scalar_type())); }

bool may_differentiate_again() { return at::GradMode::is_enabled(); }

struct SoftmaxNode : Node {
  SavedVariable output;
  int64_t dim = 0;
  bool log = false;
  std::string variant;

  variable_list apply(variable_list&& grads) override {
    static const auto plain = find_op<SoftmaxBackwardSchema>("treduce::softmax_backward");
    static const auto logarithmic = find_op<SoftmaxBackwardSchema>("treduce::log_softmax_backward");
    if (!grads[0].defined()) return {at::Tensor()};
    const at::Tensor y = output.unpack(pointer_to(this));
    if (!may_differentiate_again()) return {(log ? logarithmic : plain).call(grads[0], y, dim, variant)};
    const at::Tensor g = widened(grads[0]), wide = widened(y);
    const at::Tensor result = log ? g - wide.exp() * sum_along(g, dim) : (g - sum_along(g * wide, dim)) * wide;
    return {result.to(y.scalar_type())};
  }
  void release_variables() override { output.reset_data(); }
  std::string name() const override { return log ? "TreduceLogSoftmaxBackward" : "TreduceSoftmaxBackward"; }
};

// d logsumexp = softmax, from the input; and 0 at numbers below a result of +inf, where softmax is NaN.
struct LogSumExpNode : Node {
  SavedVariable self, result;
  int64_t dim = 0;
  bool keepdim = false;
  std::string variant;

  variable_list apply(variable_list&& grads) override {
    static const auto softmax = find_op<SoftmaxSchema>("treduce::softmax");
    if (!grads[0].defined()) return {at::Tensor()};
    const at::Tensor x = self.unpack();
    const bool kept = keepdim || x.dim() == 0;
    const at::Tensor y = result.unpack(pointer_to(this)).detach();
    const at::Tensor zero =
        at::eq(x.detach() - (kept ? y : y.unsqueeze(dim)), -std::numeric_limits<double>::infinity());
    return {softmax.call(x, dim, variant).masked_fill(zero, 0) * (kept ? grads[0] : grads[0].unsqueeze(dim))};
  }
  void release_variables() override {
    self.reset_data();
    result.reset_data();
  }
  std::string name() const override { return "TreduceLogSumExpBackward"; }
};

struct SqrtNode : Node {
  SavedVariable root;

  variable_list apply(variable_list&& grads) override {
    if (!grads[0].defined()) return {at::Tensor()};
    return {grads[0] / (root.unpack(pointer_to(this)) * 2)};
  }
  void release_variables() override { root.reset_data(); }
  std::string name() const override { return "TreduceSqrtBackward"; }
};

// The backward of layer_norm and rms_norm.
struct NormNode : Node {
  SavedVariable input, weight, mean, rstd;
  std::vector<c10::SymInt> normalized_shape;
  bool centred = false;  // layer_norm
  bool has_weight = false;
  double eps = 0;
  std::string variant;

  variable_list apply(variable_list&& grads) override {
    static const auto of_layer = find_op<LayerNormBackwardSchema>("treduce::layer_norm_backward");
    static const auto of_rms = find_op<RmsNormBackwardSchema>("treduce::rms_norm_backward");
    variable_list result(centred ? 3 : 2);
    const at::Tensor& g = grads[0];
    if (!g.defined()) return result;
    const at::Tensor x = input.unpack();
    const OptionalTensor w = has_weight ? OptionalTensor(weight.unpack()) : std::nullopt;
    const int64_t first = x.dim() - static_cast<int64_t>(normalized_shape.size());
    const at::DimVector leading = range(0, first), last = range(first, x.dim());
    const at::Tensor wide_g = widened(g), wide_x = widened(x);
    // (x - mean) rstd
    const auto normalised = [&](const at::Tensor& m, const at::Tensor& r) {
      return (centred ? wide_x - m : wide_x) * r;
    };
    at::Tensor h;
    if (may_differentiate_again()) {
      const at::Tensor centre = centred ? wide_x - mean_over(wide_x, last) : wide_x;
      const at::Tensor r = (mean_over(centre * centre, last) + eps).rsqrt();
      h = centre * r;
      if (task_should_compute_output(0)) {
        const at::Tensor gw = has_weight ? wide_g * widened(*w) : wide_g;
        const at::Tensor of_gradient = centred ? gw - mean_over(gw, last) : gw;
        result[0] = ((of_gradient - h * mean_over(gw * h, last)) * r).to(x.scalar_type());
      }
    } else {
      const at::Tensor m = centred ? mean.unpack() : at::Tensor(), r = rstd.unpack();
      if (task_should_compute_output(0)) {
        result[0] = centred ? of_layer.call(g, x, normalized_shape, m, r, w, variant)
                            : of_rms.call(g, x, normalized_shape, r, w, variant);
      }
      if (task_should_compute_output(1)) h = normalised(m, r);
    }
    if (task_should_compute_output(1)) result[1] = sum_of(wide_g * h, leading, false).to(x.scalar_type());
    if (centred && task_should_compute_output(2)) result[2] = sum_of(g, leading, false);
    return result;
  }
  void release_variables() override {
    for (SavedVariable* saved : {&input, &weight, &mean, &rstd}) saved->reset_data();
  }
  std::string name() const override { return centred ? "TreduceLayerNormBackward" : "TreduceRmsNormBackward"; }
};

// y (t - sum(y t)), or of log_softmax t - sum(exp(y) t).
at::Tensor softmax_tangent(const at::Tensor& result, const at::Tensor& tangent, int64_t dim, bool log) {
  if (!tangent.defined()) return tangent;
  const at::Tensor y = widened(primal_of(result)), t = widened(tangent);
  const at::Tensor along = log ? t - sum_along(y.exp() * t, dim) : y * (t - sum_along(y * t, dim));
  return along.to(result.scalar_type());
}

// The tangent of layer_norm and rms_norm; those given may be undefined. h = (x - mean) rstd.
at::Tensor norm_tangent(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& of_bias,
                        c10::SymIntArrayRef normalized_shape, double eps, bool centred) {
  const at::Tensor x = widened(primal_of(input));
  const at::DimVector last = range(x.dim() - static_cast<int64_t>(normalized_shape.size()), x.dim());
  const at::Tensor centre = centred ? x - mean_over(x, last) : x;
  const at::Tensor r = (mean_over(centre * centre, last) + eps).rsqrt(), h = centre * r;
  at::Tensor tangent;
  if (const at::Tensor t = tangent_of(input); t.defined()) {
    const at::Tensor wide = widened(t), off = centred ? wide - mean_over(wide, last) : wide;
    tangent = (off - h * mean_over(wide * h, last)) * r;
    if (weight.defined()) tangent = tangent * widened(primal_of(weight));
  }
  if (const at::Tensor t = tangent_of(weight); t.defined()) tangent = added(tangent, h * widened(t));
  if (of_bias.defined()) tangent = added(tangent, widened(of_bias).expand_symint(x.sym_sizes()));
  return tangent.to(input.scalar_type());
}

constexpr char kSoftmax[] = "treduce::softmax", kLogSoftmax[] = "treduce::log_softmax";

template <const char* kName>
at::Tensor softmax(c10::DispatchKeySet keys, const at::Tensor& self, int64_t dim, std::string_view variant) {
  static const auto op = find_op<SoftmaxSchema>(kName);
  const bool records = compute_requires_grad(self);
  const at::Tensor tangent = tangent_of(self);
  at::Tensor result = below_autograd(op, keys, records || tangent.defined(), self, dim, variant);
  if (records) {
    auto node = make_node<SoftmaxNode>();
    node->set_next_edges(torch::autograd::collect_next_edges(self));
    node->dim = dim;
    node->log = kName == kLogSoftmax;
    node->variant = std::string(variant);
    torch::autograd::set_history(result, node);
    set_tangent(result, softmax_tangent(result, tangent, dim, node->log));
    node->output = SavedVariable(result, /*is_output=*/true);
  } else {
    set_tangent(result, softmax_tangent(result, tangent, dim, kName == kLogSoftmax));
  }
  return result;
}

at::Tensor logsumexp(c10::DispatchKeySet keys, const at::Tensor& self, int64_t dim, bool keepdim,
                     std::string_view variant) {
  static const auto op = find_op<LogSumExpSchema>("treduce::logsumexp");
  const bool records = compute_requires_grad(self);
  const at::Tensor tangent = tangent_of(self);
  at::Tensor result = below_autograd(op, keys, records || tangent.defined(), self, dim, keepdim, variant);
  if (records) {
    auto node = make_node<LogSumExpNode>();
    node->set_next_edges(torch::autograd::collect_next_edges(self));
    node->self = SavedVariable(self, /*is_output=*/false);
    node->dim = dim;
    node->keepdim = keepdim;
    node->variant = std::string(variant);
    torch::autograd::set_history(result, node);
    node->result = SavedVariable(result, /*is_output=*/true);
  }
  if (tangent.defined()) {
    const at::Tensor along = sum_along(ours::softmax(primal_of(self), dim) * tangent, dim);
    set_tangent(result, keepdim || self.dim() == 0 ? along : along.squeeze(dim));
  }
  return result;
}

at::Tensor sqrt(c10::DispatchKeySet keys, const at::Tensor& self) {
  static const auto op = find_op<SqrtSchema>("treduce::sqrt");
  const bool records = compute_requires_grad(self);
  const at::Tensor tangent = tangent_of(self);
  at::Tensor root = below_autograd(op, keys, records || tangent.defined(), self);
  if (records) {
    auto node = make_node<SqrtNode>();
    node->set_next_edges(torch::autograd::collect_next_edges(self));
    torch::autograd::set_history(root, node);
    node->root = SavedVariable(root, /*is_output=*/true);
  }
  if (tangent.defined()) set_tangent(root, tangent / (root * 2));
  return root;
}

void save_norm(NormNode& node, const at::Tensor& input, c10::SymIntArrayRef normalized_shape,
               const OptionalTensor& weight, double eps, const at::Tensor& rstd, std::string_view variant) {
  node.input = SavedVariable(input, /*is_output=*/false);
  node.has_weight = weight.has_value() && weight->defined();
  if (node.has_weight) node.weight = SavedVariable(*weight, /*is_output=*/false);
  node.rstd = SavedVariable(rstd, /*is_output=*/false);
  node.normalized_shape = normalized_shape.vec();
  node.eps = eps;
  node.variant = std::string(variant);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> layer_norm(c10::DispatchKeySet keys, const at::Tensor& input,
                                                          c10::SymIntArrayRef normalized_shape,
                                                          const OptionalTensor& weight, const OptionalTensor& bias,
                                                          double eps, std::string_view variant) {
  static const auto op = find_op<LayerNormSchema>("treduce::layer_norm");
  const at::Tensor w = weight.value_or(at::Tensor()), b = bias.value_or(at::Tensor());
  const bool records = compute_requires_grad(input, w, b);
  const bool dual = any_defined(tangent_of(input), tangent_of(w), tangent_of(b));
  auto results = below_autograd(op, keys, records || dual, input, normalized_shape, weight, bias, eps, variant);
  if (records) {
    auto node = make_node<NormNode>();
    node->set_next_edges(torch::autograd::collect_next_edges(input, w, b));
    node->centred = true;
    node->mean = SavedVariable(std::get<1>(results), /*is_output=*/false);
    save_norm(*node, input, normalized_shape, weight, eps, std::get<2>(results), variant);
    torch::autograd::set_history(std::get<0>(results), node);
  }
  if (dual) {
    set_tangent(std::get<0>(results), norm_tangent(input, w, tangent_of(b), normalized_shape, eps, /*centred=*/true));
  }
  return results;
}

std::tuple<at::Tensor, at::Tensor> rms_norm(c10::DispatchKeySet keys, const at::Tensor& input,
                                            c10::SymIntArrayRef normalized_shape, const OptionalTensor& weight,
                                            std::optional<double> eps, std::string_view variant) {
  static const auto op = find_op<RmsNormSchema>("treduce::rms_norm");
  const at::Tensor w = weight.value_or(at::Tensor());
  const bool records = compute_requires_grad(input, w);
  const bool dual = any_defined(tangent_of(input), tangent_of(w));
  auto results = below_autograd(op, keys, records || dual, input, normalized_shape, weight, eps, variant);
  if (records) {
    auto node = make_node<NormNode>();
    node->set_next_edges(torch::autograd::collect_next_edges(input, w));
    save_norm(*node, input, normalized_shape, weight, eps.value_or(default_eps(input.scalar_type())),
              std::get<1>(results), variant);
    torch::autograd::set_history(std::get<0>(results), node);
  }
  if (dual) {
    const double own = eps.value_or(default_eps(input.scalar_type()));
    set_tangent(std::get<0>(results), norm_tangent(input, w, at::Tensor(), normalized_shape, own, /*centred=*/false));
  }
  return results;
}

}  // namespace

TORCH_LIBRARY_IMPL(treduce, Autograd, m) {
  m.impl("softmax", softmax<kSoftmax>);
  m.impl("log_softmax", softmax<kLogSoftmax>);
  m.impl("logsumexp", logsumexp);
  m.impl("sqrt", sqrt);
  m.impl("layer_norm", layer_norm);
  m.impl("rms_norm", rms_norm);
}

}  // namespace treduce::rows
