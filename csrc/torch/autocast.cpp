// Under torch.autocast, matmul and linear do what torch's do: floating-point operands of that device are cast to its autocast
// dtype, weights once for the whole region; float64 and integers stay as they are.
#include <precompiled.h>

#include <ATen/autocast_mode.h>
#include <torch/library.h>

#include "attention.h"
#include "matmul_schema.h"
#include "reduce_schema.h"

namespace treduce {
namespace {

using reduce::find_op;

// Within it, calls are not cast again; `cast` is what autocast makes of an operand.
template <c10::DeviceType kDevice>
class Autocast {
 public:
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

}  // namespace

TORCH_LIBRARY_IMPL(treduce, AutocastCPU, m) {
  m.impl("matmul", cast_matmul<c10::DeviceType::CPU>);
  m.impl("linear", cast_linear<c10::DeviceType::CPU>);
  m.impl("scaled_dot_product_attention", cast_attention<c10::DeviceType::CPU>);
}
TORCH_LIBRARY_IMPL(treduce, AutocastCUDA, m) {
  m.impl("matmul", cast_matmul<c10::DeviceType::CUDA>);
  m.impl("linear", cast_linear<c10::DeviceType::CUDA>);
  m.impl("scaled_dot_product_attention", cast_attention<c10::DeviceType::CUDA>);
}

}  // namespace treduce
