// What the batch-invariant mode computes in place of aten's ops: products, sums and rows of them.
#include <precompiled.h>

#include "invariant_ops.h"

#include <ATen/ExpandUtils.h>
#include <ATen/ops/add.h>
#include <ATen/ops/addcmul.h>
#include <ATen/ops/div.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/isnan.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/neg.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/zeros.h>

#include <limits>

#include "composed.h"
#include "ours.h"

namespace treduce::invariant {
namespace {

using at::OptionalIntArrayRef;
using at::Scalar;
using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
using OptionalType = std::optional<at::ScalarType>;

Tensor defined(const OptionalTensor& tensor) { return tensor.value_or(Tensor()); }

// ---- products

// Our matmul takes ranks that these ops do not.
void check_ranks(const char* op, const Tensor& a, int64_t rank_a, const Tensor& b, int64_t rank_b) {
  TORCH_CHECK_VALUE(a.dim() == rank_a && b.dim() == rank_b, op, " takes tensors of ", rank_a, " and ", rank_b,
                    " dims, got shapes ", a.sizes(), " and ", b.sizes());
}
Tensor product_of_batches(const char* op, const Tensor& a, const Tensor& b) {
  check_ranks(op, a, 3, b, 3);
  TORCH_CHECK_VALUE(a.size(0) == b.size(0), op, " takes batches of one size, got shapes ", a.sizes(), " and ",
                    b.sizes());
  return ours::matmul_of_lengths(a, b);
}
Tensor product_of(const char* op, const Tensor& a, int64_t rank_a, const Tensor& b, int64_t rank_b) {
  check_ranks(op, a, rank_a, b, rank_b);
  return ours::matmul(a, b);
}

bool is_one(const Scalar& s) { return s.equal(1); }

// beta self + alpha product, in the dtype of the product; self is not read where beta is 0.
Tensor combined(const Tensor& self, Tensor product, const Scalar& beta, const Scalar& alpha) {
  if (!is_one(alpha)) product = at::mul(product, alpha);
  if (beta.equal(0)) return product;
  return at::add(product, is_one(beta) ? self : at::mul(self, beta));
}

Tensor mm(const Tensor& a, const Tensor& b) { return product_of("mm", a, 2, b, 2); }

Tensor addmm(const Tensor& self, const Tensor& a, const Tensor& b, const Scalar& beta, const Scalar& alpha) {
  check_ranks("addmm", a, 2, b, 2);
  const bool bias = self.dim() == 1 && b.dim() == 2 && self.size(0) == b.size(1);
  if (bias && is_one(beta) && is_one(alpha)) return ours::linear(a, b.t(), self);
  return combined(self, ours::matmul(a, b), beta, alpha);
}

// In attention, k may be the length of a sequence.
Tensor bmm(const Tensor& a, const Tensor& b) { return product_of_batches("bmm", a, b); }

Tensor baddbmm(const Tensor& self, const Tensor& a, const Tensor& b, const Scalar& beta, const Scalar& alpha) {
  return combined(self, product_of_batches("baddbmm", a, b), beta, alpha);
}

Tensor addbmm(const Tensor& self, const Tensor& a, const Tensor& b, const Scalar& beta, const Scalar& alpha) {
  return combined(self, ours::sum(product_of_batches("addbmm", a, b), 0, /*keepdim=*/false), beta, alpha);
}

Tensor mv(const Tensor& a, const Tensor& b) { return product_of("mv", a, 2, b, 1); }

Tensor addmv(const Tensor& self, const Tensor& a, const Tensor& b, const Scalar& beta, const Scalar& alpha) {
  return combined(self, product_of("addmv", a, 2, b, 1), beta, alpha);
}

Tensor dot(const Tensor& a, const Tensor& b) { return product_of("dot", a, 1, b, 1); }
Tensor vdot(const Tensor& a, const Tensor& b) { return product_of("vdot", a, 1, b, 1); }  // of real numbers

Tensor addmm_activation(const Tensor& self, const Tensor& a, const Tensor& b, const Scalar& beta, const Scalar& alpha,
                        bool use_gelu) {
  const Tensor result = invariant::addmm(self, a, b, beta, alpha);
  return use_gelu ? at::gelu(result) : at::relu(result);
}

// Mixture of experts: rows of `a`, columns of `b` or the inner dim are cut at `offs`, and each part is multiplied by a matrix of its
// own. The ends are read on the host, which waits for the GPU.
Tensor grouped_mm(const Tensor& a, const Tensor& b, const OptionalTensor& offs, const OptionalTensor& bias,
                  OptionalType out_dtype) {
  TORCH_CHECK_VALUE(!defined(bias).defined(), "_grouped_mm takes no bias");
  const at::ScalarType type = out_dtype.value_or(a.scalar_type());
  if (a.dim() == 3 && b.dim() == 3) return ours::matmul(a, b).to(type);
  TORCH_CHECK_VALUE(defined(offs).defined() && a.dim() + b.dim() >= 4, "_grouped_mm of ", a.dim(), " and ", b.dim(),
                    " dims takes offs");
  const Tensor ends = offs->to(at::kCPU, at::kLong);
  const int64_t groups = ends.numel();
  const auto* end = ends.const_data_ptr<int64_t>();
  const bool rows = b.dim() == 3, inner = a.dim() == 2 && b.dim() == 2;
  const Tensor out = inner  ? at::zeros({groups, a.size(0), b.size(1)}, a.options())
                     : rows ? at::zeros({a.size(0), b.size(2)}, a.options())
                            : at::zeros({a.size(1), b.size(1)}, a.options());
  for (int64_t g = 0, begin = 0; g < groups; begin = end[g++]) {
    const int64_t n = end[g] - begin;
    if (n <= 0) continue;
    if (inner) {
      out.select(0, g).copy_(ours::matmul(a.narrow(1, begin, n), b.narrow(0, begin, n)));
    } else if (rows) {
      out.narrow(0, begin, n).copy_(ours::matmul(a.narrow(0, begin, n), b.select(0, g)));
    } else {
      out.narrow(1, begin, n).copy_(ours::matmul(a.select(0, g), b.narrow(1, begin, n)));
    }
  }
  return out.to(type);
}

// The lower or upper half of A X = B, then what it leaves of the other: b (batch, n, k) becomes X.
void substitute(const Tensor& a, const Tensor& b, bool upper, bool unitriangular) {
  const int64_t n = a.size(1), half = n / 2;
  if (n <= 1) {
    if (n == 1 && !unitriangular) b.div_(a);
    return;
  }
  const int64_t begin[] = {upper ? half : 0, upper ? 0 : half},
                size[] = {upper ? n - half : half, upper ? half : n - half};
  const auto of = [&](int rows, int columns) {
    return a.narrow(1, begin[rows], size[rows]).narrow(2, begin[columns], size[columns]);
  };
  const Tensor first = b.narrow(1, begin[0], size[0]), second = b.narrow(1, begin[1], size[1]);
  substitute(of(0, 0), first, upper, unitriangular);
  second.sub_(ours::matmul_of_lengths(of(1, 0), first));
  substitute(of(1, 1), second, upper, unitriangular);
}

Tensor solve_triangular(const Tensor& a, const Tensor& b, bool upper, bool left, bool unitriangular) {
  TORCH_CHECK_TYPE(a.scalar_type() == b.scalar_type(), "linalg_solve_triangular takes tensors of one dtype, got ",
                   a.scalar_type(), " and ", b.scalar_type());
  TORCH_CHECK_VALUE(a.dim() >= 2 && b.dim() >= 2 && a.size(-1) == a.size(-2) && a.size(-1) == b.size(left ? -2 : -1),
                    "linalg_solve_triangular takes square matrices and as many rows, or columns for left=False, got ",
                    a.sizes(), " and ", b.sizes());
  // Torch's layout: column by column.
  if (!left) return solve_triangular(a.mT(), b.mT(), !upper, /*left=*/true, unitriangular).contiguous().mT();
  const int64_t n = b.size(-2), k = b.size(-1);
  std::vector<int64_t> sizes = at::infer_size(a.sizes().slice(0, a.dim() - 2), b.sizes().slice(0, b.dim() - 2));
  const int64_t batch = c10::multiply_integers(sizes);
  sizes.insert(sizes.end(), {n, n});
  const Tensor triangles = a.expand(sizes).reshape({batch, n, n});
  sizes.back() = k;
  const Tensor x = b.expand(sizes).mT().clone(at::MemoryFormat::Contiguous);
  if (x.numel() > 0) substitute(triangles, x.view({batch, k, n}).mT(), upper, unitriangular);
  return x.mT();
}

// ---- sums

Tensor sum(const Tensor& self, OptionalType dtype) { return ours::sum(self, std::nullopt, false, dtype); }
Tensor sum_dim(const Tensor& self, OptionalIntArrayRef dim, bool keepdim, OptionalType dtype) {
  return ours::sum(self, dim, keepdim, dtype);
}
Tensor& sum_out(const Tensor& self, OptionalIntArrayRef dim, bool keepdim, OptionalType dtype, Tensor& out) {
  return put(ours::sum(self, dim, keepdim, dtype.value_or(out.scalar_type())), out);
}
Tensor nansum(const Tensor& self, OptionalIntArrayRef dim, bool keepdim, OptionalType dtype) {
  return ours::sum(self.masked_fill(at::isnan(self), 0), dim, keepdim, dtype);
}
Tensor mean(const Tensor& self, OptionalType dtype) { return ours::mean(self, std::nullopt, false, dtype); }
Tensor mean_dim(const Tensor& self, OptionalIntArrayRef dim, bool keepdim, OptionalType dtype) {
  return ours::mean(self, dim, keepdim, dtype);
}
Tensor& mean_out(const Tensor& self, OptionalIntArrayRef dim, bool keepdim, OptionalType dtype, Tensor& out) {
  return put(ours::mean(self, dim, keepdim, dtype.value_or(out.scalar_type())), out);
}
Tensor amax(const Tensor& self, at::IntArrayRef dim, bool keepdim) { return ours::amax(self, dim, keepdim); }
Tensor amin(const Tensor& self, at::IntArrayRef dim, bool keepdim) { return ours::amin(self, dim, keepdim); }
Tensor max(const Tensor& self) { return ours::amax(self, std::nullopt, false); }
Tensor min(const Tensor& self) { return ours::amin(self, std::nullopt, false); }

std::tuple<Tensor, Tensor> var_mean(const Tensor& self, OptionalIntArrayRef dim,
                                    const std::optional<Scalar>& correction, bool keepdim) {
  return composed::var_mean(self, dim, correction.value_or(1).toDouble(), keepdim);
}
std::tuple<Tensor, Tensor> std_mean(const Tensor& self, OptionalIntArrayRef dim,
                                    const std::optional<Scalar>& correction, bool keepdim) {
  return composed::var_mean(self, dim, correction.value_or(1).toDouble(), keepdim, /*root=*/true);
}
Tensor var(const Tensor& self, OptionalIntArrayRef dim, const std::optional<Scalar>& correction, bool keepdim) {
  return std::get<0>(var_mean(self, dim, correction, keepdim));
}
Tensor std_(const Tensor& self, OptionalIntArrayRef dim, const std::optional<Scalar>& correction, bool keepdim) {
  return std::get<0>(std_mean(self, dim, correction, keepdim));
}

Tensor vector_norm(const Tensor& self, const Scalar& order, OptionalIntArrayRef dim, bool keepdim, OptionalType dtype) {
  return composed::norm(self, order.toDouble(), dim, keepdim, dtype.value_or(self.scalar_type()));
}
Tensor& vector_norm_out(const Tensor& self, const Scalar& order, OptionalIntArrayRef dim, bool keepdim,
                        OptionalType dtype, Tensor& out) {
  return put(composed::norm(self, order.toDouble(), dim, keepdim, dtype.value_or(out.scalar_type())), out);
}
std::vector<Tensor> foreach_norm(at::TensorList self, const Scalar& order, OptionalType dtype) {
  std::vector<Tensor> result;
  for (const Tensor& t : self) result.push_back(vector_norm(t, order, std::nullopt, /*keepdim=*/false, dtype));
  return result;
}

// ---- softmax and its kin

Tensor softmax(const Tensor& self, int64_t dim, bool half_to_float) {
  return composed::softmax(self, dim, half_to_float ? at::kFloat : self.scalar_type());
}
Tensor log_softmax(const Tensor& self, int64_t dim, bool half_to_float) {
  return composed::log_softmax(self, dim, half_to_float ? at::kFloat : self.scalar_type());
}
Tensor softmax_backward(const Tensor& grad, const Tensor& output, int64_t dim, at::ScalarType type) {
  return composed::softmax_backward(grad, output, dim, type);
}
Tensor log_softmax_backward(const Tensor& grad, const Tensor& output, int64_t dim, at::ScalarType type) {
  return composed::log_softmax_backward(grad, output, dim, type);
}
// The mask says what is left out: (length, length), of keys (batch, length), or of the input's shape.
Tensor masked_softmax(const Tensor& self, const Tensor& mask, std::optional<int64_t> dim,
                      std::optional<int64_t> mask_type) {
  enum { kOfPairs, kOfKeys };
  const Tensor out = mask_type == kOfKeys && self.dim() == 4 ? mask.reshape({mask.size(0), 1, 1, -1}) : mask;
  return composed::softmax(self.masked_fill(out, -std::numeric_limits<double>::infinity()), dim.value_or(-1),
                           self.scalar_type());
}
Tensor masked_softmax_backward(const Tensor& grad, const Tensor& output, const Tensor& /*mask*/,
                               std::optional<int64_t> dim) {
  return composed::softmax_backward(grad, output, dim.value_or(-1), output.scalar_type());
}
Tensor logsumexp(const Tensor& self, at::IntArrayRef dim, bool keepdim) {
  return composed::logsumexp(self, dim, keepdim);
}

// ---- norms

// The input as a matrix whose rows are normalised, and the shape of tensors with one value a row.
struct Rows {
  Tensor matrix;
  std::vector<int64_t> stats;

  Rows(const Tensor& input, c10::SymIntArrayRef symbolic) {
    const at::IntArrayRef shape = C10_AS_INTARRAYREF_SLOW(symbolic);
    const int64_t kept = input.dim() - static_cast<int64_t>(shape.size());
    TORCH_CHECK(kept >= 0 && input.sizes().slice(kept).equals(shape), "Given normalized_shape=", shape,
                ", expected input with shape [*, ", shape, "], but got input of size ", input.sizes());
    int64_t rows = 1, columns = 1;
    for (const int64_t size : input.sizes().slice(0, kept)) rows *= size;
    for (const int64_t size : shape) columns *= size;
    matrix = composed::reshaped(input, {rows, columns});
    stats = input.sizes().vec();
    std::fill(stats.begin() + kept, stats.end(), 1);
  }
  Tensor like(const Tensor& other) const { return composed::reshaped(other, matrix.sizes()); }
};

Tensor flat(const Tensor& tensor) { return tensor.defined() && tensor.dim() != 1 ? tensor.reshape({-1}) : tensor; }

// A gradient in the shape and dtype of the weights.
Tensor shaped(const Tensor& grad, const Tensor& weight, c10::SymIntArrayRef shape, at::ScalarType type) {
  if (!grad.defined()) return grad;
  return grad.reshape(C10_AS_INTARRAYREF_SLOW(shape)).to(weight.defined() ? weight.scalar_type() : type);
}

// Torch keeps mean and deviation of 16-bit floats in 16 bits on the CPU, unless weights are float32.
at::ScalarType stats_type(const Tensor& input, const Tensor& weight) {
  if (input.is_cuda()) return composed::accumulator(input.scalar_type());
  return weight.defined() ? weight.scalar_type() : input.scalar_type();
}

std::tuple<Tensor, Tensor, Tensor> layer_norm(const Tensor& input, c10::SymIntArrayRef shape,
                                              const OptionalTensor& weight, const OptionalTensor& bias, double eps) {
  const Rows rows(input, shape);
  auto [y, mean, rstd] = composed::layer_norm(rows.matrix, flat(defined(weight)), flat(defined(bias)), eps);
  const at::ScalarType type = stats_type(input, defined(weight));
  const auto stat = [&](const Tensor& x) { return composed::converted(composed::reshaped(x, rows.stats), type); };
  return {composed::reshaped(y, input.sizes()), stat(mean), stat(rstd)};
}

std::tuple<Tensor, Tensor, Tensor> layer_norm_backward(const Tensor& grad, const Tensor& input,
                                                       c10::SymIntArrayRef shape, const Tensor& mean,
                                                       const Tensor& rstd, const OptionalTensor& weight,
                                                       const OptionalTensor& bias, std::array<bool, 3> wanted) {
  const Rows rows(input, shape);
  const at::ScalarType wide = composed::accumulator(input.scalar_type());
  auto [dx, dweight, dbias] =
      composed::layer_norm_backward(rows.like(grad), rows.matrix, mean.reshape({-1, 1}).to(wide),
                                    rstd.reshape({-1, 1}).to(wide), flat(defined(weight)), wanted);
  if (dx.defined()) dx = dx.reshape(input.sizes());
  return {dx, shaped(dweight, defined(weight), shape, input.scalar_type()),
          shaped(dbias, defined(bias), shape, input.scalar_type())};
}

double epsilon_of(at::ScalarType type) {
  return type == at::kDouble ? std::numeric_limits<double>::epsilon() : std::numeric_limits<float>::epsilon();
}

std::tuple<Tensor, Tensor> rms_norm(const Tensor& input, at::IntArrayRef shape, const OptionalTensor& weight,
                                    std::optional<double> eps) {
  const Rows rows(input, c10::fromIntArrayRefSlow(shape));
  auto [y, rstd] =
      composed::rms_norm(rows.matrix, flat(defined(weight)), eps.value_or(epsilon_of(input.scalar_type())));
  return {y.reshape(input.sizes()), rstd.reshape(rows.stats)};
}

std::tuple<Tensor, Tensor> rms_norm_backward(const Tensor& grad, const Tensor& input, at::IntArrayRef shape,
                                             const Tensor& rstd, const OptionalTensor& weight,
                                             std::array<bool, 2> wanted) {
  const c10::SymIntArrayRef symbolic = c10::fromIntArrayRefSlow(shape);
  const Rows rows(input, symbolic);
  const at::ScalarType wide = composed::accumulator(input.scalar_type());
  auto [dx, dweight] = composed::rms_norm_backward(rows.like(grad), rows.matrix, rstd.reshape({-1, 1}).to(wide),
                                                   flat(defined(weight)), wanted);
  if (dx.defined()) dx = dx.reshape(input.sizes());
  return {dx, shaped(dweight, defined(weight), symbolic, input.scalar_type())};
}

// A layer norm without weights, whose rows are the groups; then the weights, one a channel.
struct Groups {
  int64_t n, channels, places, groups;
  Groups(const c10::SymInt& n_, const c10::SymInt& c, const c10::SymInt& hxw, int64_t group)
      : n(n_.guard_int(__FILE__, __LINE__)),
        channels(c.guard_int(__FILE__, __LINE__)),
        places(hxw.guard_int(__FILE__, __LINE__)),
        groups(group) {}
  Tensor matrix(const Tensor& x) const { return x.contiguous().reshape({n * groups, channels / groups * places}); }
  Tensor by_channel(const Tensor& x) const { return x.contiguous().reshape({n, channels, places}); }
};

std::tuple<Tensor, Tensor, Tensor> group_norm(const Tensor& input, const OptionalTensor& weight,
                                              const OptionalTensor& bias, c10::SymInt n, c10::SymInt c, c10::SymInt hxw,
                                              int64_t group, double eps) {
  const Groups groups(n, c, hxw, group);
  const at::ScalarType wide = composed::accumulator(input.scalar_type());
  auto [normed, mean, rstd] = composed::layer_norm(groups.matrix(input).to(wide), Tensor(), Tensor(), eps);
  Tensor y = groups.by_channel(normed);
  if (defined(weight).defined()) y = at::mul(y, weight->reshape({1, -1, 1}));
  if (defined(bias).defined()) y = at::add(y, bias->reshape({1, -1, 1}));
  const at::ScalarType type = stats_type(input, defined(weight));
  y = y.to(input.scalar_type()).reshape(input.sizes()).contiguous(input.suggest_memory_format());
  return {y, mean.reshape({groups.n, group}).to(type), rstd.reshape({groups.n, group}).to(type)};
}

std::tuple<Tensor, Tensor, Tensor> group_norm_backward(const Tensor& grad, const Tensor& input, const Tensor& mean,
                                                       const Tensor& rstd, const OptionalTensor& weight, c10::SymInt n,
                                                       c10::SymInt c, c10::SymInt hxw, int64_t group,
                                                       std::array<bool, 3> wanted) {
  const Groups groups(n, c, hxw, group);
  const at::ScalarType wide = composed::accumulator(input.scalar_type());
  const Tensor x = groups.matrix(input).to(wide), g = groups.by_channel(grad).to(wide);
  const Tensor center = mean.reshape({-1, 1}).to(wide), scale = rstd.reshape({-1, 1}).to(wide);
  const at::ScalarType type = defined(weight).defined() ? weight->scalar_type() : input.scalar_type();
  Tensor dx, dweight, dbias;
  if (wanted[0]) {
    const Tensor scaled = defined(weight).defined() ? at::mul(g, weight->reshape({1, -1, 1})) : g;
    dx = std::get<0>(
        composed::layer_norm_backward(groups.matrix(scaled), x, center, scale, Tensor(), {true, false, false}));
    dx = dx.to(input.scalar_type()).reshape(input.sizes());
  }
  if (wanted[1]) {
    const Tensor normed = at::mul(at::add(x, center, -1), scale);
    dweight = ours::sum(at::mul(g, groups.by_channel(normed)), at::IntArrayRef({0, 2}), /*keepdim=*/false).to(type);
  }
  if (wanted[2]) dbias = ours::sum(g, at::IntArrayRef({0, 2}), /*keepdim=*/false).to(type);
  return {dx, dweight, dbias};
}

// Of batches. A channel is a row.
struct Channels {
  at::ScalarType wide;
  std::vector<int64_t> stats, moved;

  explicit Channels(const Tensor& input)
      : wide(composed::accumulator(input.scalar_type())), stats(input.dim(), 1), moved(input.sizes().vec()) {
    stats[1] = input.size(1);
    std::swap(moved[0], moved[1]);
  }
  Tensor rows(const Tensor& x) const { return x.to(wide).transpose(0, 1).reshape({moved[0], -1}); }
  Tensor like(const Tensor& rows) const { return rows.reshape(moved).transpose(0, 1); }
  Tensor each(const Tensor& x) const { return x.to(wide).reshape(stats); }
  Tensor rstd(const Tensor& var, double eps) const { return at::rsqrt(at::add(var.to(wide), eps)); }
  Tensor scale(const Tensor& rstd, const Tensor& weight) const {
    return weight.defined() ? at::mul(rstd, weight.to(wide).reshape(rstd.sizes())) : rstd;
  }
};

void update(const Tensor& running, const Tensor& found, double momentum) {
  if (!running.defined()) return;
  running.copy_(at::add(at::mul(running.to(found.scalar_type()), 1 - momentum), at::mul(found, momentum)));
}

std::tuple<Tensor, Tensor, Tensor> native_batch_norm(const Tensor& input, const OptionalTensor& weight,
                                                     const OptionalTensor& bias, const OptionalTensor& running_mean,
                                                     const OptionalTensor& running_var, bool training, double momentum,
                                                     double eps) {
  for (const OptionalTensor* x : {&weight, &bias, &running_mean, &running_var}) {
    TORCH_CHECK_VALUE(!defined(*x).defined() || (*x)->numel() == input.size(1), "batch_norm of ", input.size(1),
                      " channels takes as many weights and statistics, got ", (*x)->sizes());
  }
  const Channels channels(input);
  Tensor var = defined(running_var), mean = defined(running_mean);
  if (training) {
    const Tensor rows = channels.rows(input);
    std::tie(var, mean) = composed::var_mean(rows, 1, /*correction=*/0, /*keepdim=*/false);
    const double n = static_cast<double>(rows.size(1));
    update(defined(running_mean), mean, momentum);
    update(defined(running_var), at::mul(var, n / (n - 1)), momentum);
  }
  TORCH_CHECK_VALUE(var.defined() && mean.defined(), "batch_norm takes statistics where it is not in training");
  const Tensor rstd = channels.rstd(var, eps), x = input.to(channels.wide);
  Tensor y;
  if (training) {
    y = at::mul(at::sub(x, channels.each(mean)), channels.each(rstd));
    if (defined(weight).defined()) y = at::mul(y, channels.each(*weight));
    if (defined(bias).defined()) y = at::add(y, channels.each(*bias));
  } else {  // x scale + shift
    const Tensor scale = channels.scale(rstd, defined(weight));
    Tensor shift = at::neg(at::mul(mean.to(channels.wide), scale));
    if (defined(bias).defined()) shift = at::add(shift, bias->to(channels.wide));
    y = at::addcmul(channels.each(shift), x, channels.each(scale));
  }
  const at::ScalarType type = stats_type(input, defined(weight));
  y = y.to(input.scalar_type()).contiguous(input.suggest_memory_format());
  const auto saved = [&](const Tensor& x) {
    return training ? x.to(type) : at::empty({0}, input.options().dtype(type));
  };
  return {y, saved(mean), saved(rstd)};
}
std::tuple<Tensor, Tensor, Tensor> batch_norm_legit(const Tensor& input, const OptionalTensor& weight,
                                                    const OptionalTensor& bias, Tensor& running_mean,
                                                    Tensor& running_var, bool training, double momentum, double eps) {
  return invariant::native_batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps);
}
std::tuple<Tensor, Tensor, Tensor> batch_norm_no_stats(const Tensor& input, const OptionalTensor& weight,
                                                       const OptionalTensor& bias, bool training, double momentum,
                                                       double eps) {
  return invariant::native_batch_norm(input, weight, bias, {}, {}, training, momentum, eps);
}

std::tuple<Tensor, Tensor, Tensor> native_batch_norm_backward(
    const Tensor& grad, const Tensor& input, const OptionalTensor& weight, const OptionalTensor& running_mean,
    const OptionalTensor& running_var, const OptionalTensor& save_mean, const OptionalTensor& save_invstd, bool train,
    double eps, std::array<bool, 3> wanted) {
  const Channels channels(input);
  const Tensor mean = (train ? save_mean : running_mean)->to(channels.wide).reshape({-1, 1});
  const Tensor rstd = (train ? save_invstd->to(channels.wide) : channels.rstd(*running_var, eps)).reshape({-1, 1});
  const Tensor x = channels.rows(input), g = channels.rows(grad);
  const at::ScalarType type = defined(weight).defined() ? weight->scalar_type() : input.scalar_type();
  Tensor dx, dweight, dbias;
  if (wanted[0]) {
    if (train) {
      const Tensor scaled = defined(weight).defined() ? at::mul(g, weight->to(channels.wide).reshape({-1, 1})) : g;
      dx = std::get<0>(composed::layer_norm_backward(scaled, x, mean, rstd, Tensor(), {true, false, false}));
    } else {
      dx = at::mul(g, channels.scale(rstd, defined(weight)));
    }
    dx = channels.like(dx).to(input.scalar_type()).contiguous(input.suggest_memory_format());
  }
  if (wanted[1]) {
    dweight = ours::sum(at::mul(g, at::mul(at::sub(x, mean), rstd)), 1, /*keepdim=*/false).to(type);
  }
  if (wanted[2]) dbias = ours::sum(g, 1, /*keepdim=*/false).to(type);
  return {dx, dweight, dbias};
}

// A weight as a direction and its length, one for each place of `dim`.
std::vector<int64_t> other_dims(const Tensor& v, int64_t dim) {
  std::vector<int64_t> others;
  for (int64_t d = 0; d < v.dim(); ++d) {
    if (d != dim) others.push_back(d);
  }
  return others;
}

std::tuple<Tensor, Tensor> weight_norm(const Tensor& v, const Tensor& g, int64_t dim) {
  const at::ScalarType wide = composed::accumulator(v.scalar_type());
  const Tensor norms = composed::norm(v, 2, other_dims(v, dim), /*keepdim=*/true, wide);
  return {at::mul(v.to(wide), at::div(g.to(wide), norms)).to(v.scalar_type()), norms};
}

std::tuple<Tensor, Tensor> weight_norm_backward(const Tensor& grad, const Tensor& v, const Tensor& g,
                                                const Tensor& norms, int64_t dim) {
  const at::ScalarType wide = composed::accumulator(v.scalar_type());
  const Tensor unit = at::div(v.to(wide), norms), dw = grad.to(wide);
  const Tensor dg = ours::sum(at::mul(dw, unit), other_dims(v, dim), /*keepdim=*/true);
  const Tensor dv = at::mul(at::sub(dw, at::mul(unit, dg)), at::div(g.to(wide), norms));
  return {dv.to(v.scalar_type()), dg.to(g.scalar_type())};
}

// ---- losses

enum Reduction { kNone, kMean, kSum };  // aten's numbers

std::tuple<Tensor, Tensor> reduced(const Tensor& loss, const Tensor& weights, int64_t reduction) {
  if (reduction == kNone) return {loss, at::zeros({}, loss.options())};
  const Tensor total = ours::sum(weights, std::nullopt, /*keepdim=*/false);
  const Tensor whole = ours::sum(loss, std::nullopt, /*keepdim=*/false, composed::accumulator(loss.scalar_type()));
  if (reduction == kSum) return {whole.to(loss.scalar_type()), total};
  const Tensor exact = ours::sum(weights, std::nullopt, /*keepdim=*/false, whole.scalar_type());
  return {at::div(whole, exact).to(loss.scalar_type()), total};
}

std::tuple<Tensor, Tensor> nll_loss(const Tensor& self, const Tensor& target, const OptionalTensor& weight,
                                    int64_t reduction, c10::SymInt ignore_index) {
  const bool one = self.dim() == 1;
  auto [loss, weights] = composed::nll(one ? self.unsqueeze(0) : self, one ? target.reshape({1}) : target,
                                       defined(weight), ignore_index.guard_int(__FILE__, __LINE__));
  auto [result, total] = reduced(loss, weights, reduction);
  return {one ? result.reshape({}) : result, total};
}

std::tuple<Tensor, Tensor> nll_loss2d(const Tensor& self, const Tensor& target, const OptionalTensor& weight,
                                      int64_t reduction, c10::SymInt ignore_index) {
  TORCH_CHECK_VALUE(self.dim() == 4 && target.dim() == 3 && target.size(0) == self.size(0) &&
                        target.sizes().slice(1) == self.sizes().slice(2),
                    "nll_loss2d takes a class for each place, got an input ", self.sizes(), " and a target ",
                    target.sizes());
  const Tensor classes_last = self.permute({0, 2, 3, 1});
  auto [loss, weights] = composed::nll(classes_last.reshape({-1, self.size(1)}), target.reshape({-1}), defined(weight),
                                       ignore_index.guard_int(__FILE__, __LINE__));
  if (reduction == kNone) loss = loss.reshape(target.sizes());
  return reduced(loss, weights, reduction);
}

}  // namespace

void replace_reductions(torch::Library& m) {
  replace_and_out<&mm>(m, "mm");
  replace_forms<&addmm>(m, "addmm");
  replace_and_out<&bmm>(m, "bmm");
  replace_forms<&baddbmm>(m, "baddbmm");
  replace_forms<&addbmm>(m, "addbmm");
  replace_and_out<&mv>(m, "mv");
  replace_forms<&addmv>(m, "addmv");
  replace_and_out<&dot>(m, "dot");
  replace<&vdot>(m, "vdot");
  replace_and_out<&addmm_activation>(m, "_addmm_activation");
  replace<&grouped_mm>(m, "_grouped_mm");
  replace_and_out<&solve_triangular>(m, "linalg_solve_triangular");

  replace<&sum, Numbers>(m, "sum");
  replace<&sum_dim, Numbers>(m, "sum.dim_IntList");
  replace<&sum_out, Numbers>(m, "sum.IntList_out");
  replace_and_out<&nansum>(m, "nansum");
  replace<&mean, Numbers>(m, "mean");
  replace<&mean_dim, Numbers>(m, "mean.dim");
  replace<&mean_out, Numbers>(m, "mean.out");
  replace_and_out<&amax>(m, "amax");
  replace_and_out<&amin>(m, "amin");
  replace<&max>(m, "max");
  replace<&min>(m, "min");
  replace_and_out<&var>(m, "var.correction");
  replace_and_out<&std_>(m, "std.correction");
  replace<&var_mean>(m, "var_mean.correction");
  replace<&std_mean>(m, "std_mean.correction");
  replace<&vector_norm>(m, "linalg_vector_norm");
  replace<&vector_norm_out>(m, "linalg_vector_norm.out");
  replace<&foreach_norm>(m, "_foreach_norm.Scalar");

  replace_and_out<&softmax>(m, "_softmax");
  replace_and_out<&softmax_backward>(m, "_softmax_backward_data");
  replace_and_out<&log_softmax>(m, "_log_softmax");
  replace_and_out<&log_softmax_backward>(m, "_log_softmax_backward_data");
  replace<&masked_softmax>(m, "_masked_softmax");
  replace<&masked_softmax_backward>(m, "_masked_softmax_backward");
  replace_and_out<&logsumexp>(m, "logsumexp");

  replace<&layer_norm>(m, "native_layer_norm");
  replace<&layer_norm_backward>(m, "native_layer_norm_backward");
  replace<&rms_norm>(m, "_fused_rms_norm");
  replace<&rms_norm_backward>(m, "_fused_rms_norm_backward");
  replace<&group_norm>(m, "native_group_norm");
  replace<&group_norm_backward>(m, "native_group_norm_backward");
  replace<&native_batch_norm>(m, "native_batch_norm");
  replace<&batch_norm_legit>(m, "_native_batch_norm_legit");
  replace<&batch_norm_no_stats>(m, "_native_batch_norm_legit.no_stats");
  replace<&native_batch_norm_backward>(m, "native_batch_norm_backward");
  replace<&weight_norm>(m, "_weight_norm_interface");
  replace<&weight_norm_backward>(m, "_weight_norm_interface_backward");

  replace<&nll_loss>(m, "nll_loss_forward");
  replace<&nll_loss2d>(m, "nll_loss2d_forward");
}

}  // namespace treduce::invariant
