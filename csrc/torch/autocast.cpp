// Under torch.autocast, products, attention, norms and sums do what torch's do. Floating-point operands of that device are cast,
// float64 and integers stay as they are: those of products and attention to its autocast dtype, weights once for the whole region;
// those of norms, and on CUDA of sums, softmax and its kin, to float32.
#include <precompiled.h>

#include <ATen/autocast_mode.h>
#include <torch/library.h>

#include "../reduce/ladder.h"
#include "attention.h"
#include "checks.h"
#include "matmul_schema.h"
#include "reduce_schema.h"
#include "rows_schema.h"

namespace treduce {
namespace {

using reduce::find_op;

// Within it, calls are not cast again; `cast` is what autocast makes of an operand.
template <c10::DeviceType kDevice>
class Autocast {
 public:
  Autocast() = default;
  explicit Autocast(at::ScalarType dtype) : dtype_(dtype) {}
  at::Tensor cast(const at::Tensor& tensor) const { return at::autocast::cached_cast(dtype_, tensor, kDevice); }
  std::optional<at::Tensor> cast(const std::optional<at::Tensor>& tensor) const {
    return at::autocast::cached_cast(dtype_, tensor, kDevice);
  }

 private:
  const c10::impl::ExcludeDispatchKeyGuard guard_{at::autocast::get_autocast_dispatch_key_from_device_type(kDevice)};
  const at::ScalarType dtype_ = at::autocast::get_autocast_dtype(kDevice);
};

template <c10::DeviceType kDevice>
at::Tensor cast_matmul(const at::Tensor& self, const at::Tensor& other, std::string_view variant,
                       std::optional<int64_t> tile_size) {
  static const auto op = find_op<matmul::MatmulSchema>("treduce::matmul");
  const Autocast<kDevice> autocast;
  return op.call(autocast.cast(self), autocast.cast(other), variant, tile_size);
}

template <c10::DeviceType kDevice>
at::Tensor cast_linear(const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                       std::string_view variant) {
  static const auto op = find_op<matmul::LinearSchema>("treduce::linear");
  const Autocast<kDevice> autocast;
  return op.call(autocast.cast(input), autocast.cast(weight), autocast.cast(bias), variant);
}

template <c10::DeviceType kDevice>
at::Tensor cast_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                          const std::optional<at::Tensor>& attn_mask, double dropout_p, bool is_causal,
                          std::optional<double> scale, bool enable_gqa) {
  static const auto op = find_op<attention::Schema>("treduce::scaled_dot_product_attention");
  const Autocast<kDevice> autocast;
  return op.call(autocast.cast(query), autocast.cast(key), autocast.cast(value), autocast.cast(attn_mask), dropout_p,
                 is_causal, scale, enable_gqa);
}

// The result is float32 on CUDA and of the input's dtype on a CPU, as layer_norm's of torch.
template <c10::DeviceType kDevice>
at::Tensor rounded(const at::Tensor& result, const at::Tensor& input) {
  return kDevice == c10::DeviceType::CUDA ? result : result.to(input.scalar_type());
}

template <c10::DeviceType kDevice>
std::tuple<at::Tensor, at::Tensor, at::Tensor> wide_layer_norm(const at::Tensor& input,
                                                               c10::SymIntArrayRef normalized_shape,
                                                               const std::optional<at::Tensor>& weight,
                                                               const std::optional<at::Tensor>& bias, double eps,
                                                               std::string_view variant) {
  static const auto op = find_op<rows::LayerNormSchema>("treduce::layer_norm");
  const Autocast<kDevice> autocast(at::kFloat);
  const auto [result, mean, rstd] =
      op.call(autocast.cast(input), normalized_shape, autocast.cast(weight), autocast.cast(bias), eps, variant);
  return {rounded<kDevice>(result, input), mean, rstd};
}

template <c10::DeviceType kDevice>
std::tuple<at::Tensor, at::Tensor> wide_rms_norm(const at::Tensor& input, c10::SymIntArrayRef normalized_shape,
                                                 const std::optional<at::Tensor>& weight, std::optional<double> eps,
                                                 std::string_view variant) {
  static const auto op = find_op<rows::RmsNormSchema>("treduce::rms_norm");
  const Autocast<kDevice> autocast(at::kFloat);
  const auto [result, rstd] = op.call(autocast.cast(input), normalized_shape, autocast.cast(weight), eps, variant);
  return {rounded<kDevice>(result, input), rstd};
}

template <bool kLog>
at::Tensor wide_softmax(const at::Tensor& self, int64_t dim, std::string_view variant) {
  static const auto op = find_op<rows::SoftmaxSchema>(kLog ? "treduce::log_softmax" : "treduce::softmax");
  const Autocast<c10::DeviceType::CUDA> autocast(at::kFloat);
  return op.call(autocast.cast(self), dim, variant);
}

at::Tensor wide_logsumexp(const at::Tensor& self, int64_t dim, bool keepdim, std::string_view variant) {
  static const auto op = find_op<rows::LogSumExpSchema>("treduce::logsumexp");
  const Autocast<c10::DeviceType::CUDA> autocast(at::kFloat);
  return op.call(autocast.cast(self), dim, keepdim, variant);
}

// Elements are converted as they are read, but by the rungs of whole tensors.
at::Tensor wide_sum(const at::Tensor& self, std::string_view variant, at::OptionalIntArrayRef dim, bool keepdim,
                    std::optional<at::ScalarType> dtype, std::optional<int64_t> block_size,
                    std::optional<int64_t> num_blocks) {
  static const auto op = find_op<reduce::SumSchema>("treduce::sum");
  const Autocast<c10::DeviceType::CUDA> autocast(at::kFloat);
  const at::ScalarType type = self.scalar_type();
  if (dtype.has_value() || !self.is_cuda() || !(type == at::kHalf || type == at::kBFloat16)) {
    return op.call(self, variant, dim, keepdim, dtype, block_size, num_blocks);
  }
  const bool converts = as_value_error([&] { return reduce::find(variant).along_dims; });
  return op.call(converts ? self : autocast.cast(self), variant, dim, keepdim, at::kFloat, block_size, num_blocks);
}

}  // namespace

TORCH_LIBRARY_IMPL(treduce, AutocastCPU, m) {
  m.impl("matmul", cast_matmul<c10::DeviceType::CPU>);
  m.impl("linear", cast_linear<c10::DeviceType::CPU>);
  m.impl("scaled_dot_product_attention", cast_attention<c10::DeviceType::CPU>);
  m.impl("layer_norm", wide_layer_norm<c10::DeviceType::CPU>);
  m.impl("rms_norm", wide_rms_norm<c10::DeviceType::CPU>);
}
TORCH_LIBRARY_IMPL(treduce, AutocastCUDA, m) {
  m.impl("matmul", cast_matmul<c10::DeviceType::CUDA>);
  m.impl("linear", cast_linear<c10::DeviceType::CUDA>);
  m.impl("scaled_dot_product_attention", cast_attention<c10::DeviceType::CUDA>);
  m.impl("layer_norm", wide_layer_norm<c10::DeviceType::CUDA>);
  m.impl("rms_norm", wide_rms_norm<c10::DeviceType::CUDA>);
  m.impl("softmax", wide_softmax<false>);
  m.impl("log_softmax", wide_softmax<true>);
  m.impl("logsumexp", wide_logsumexp);
  m.impl("sum", wide_sum);
}

}  // namespace treduce
