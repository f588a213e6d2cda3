// Attention on CUDA: by kernels that keep no scores, where they take the dtype and the widths; otherwise composed.
#include <precompiled.h>

#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include "../attention/attention.h"
#include "attention.h"
#include "attention_call.h"
#include "checks.h"
#include "cuda_device.h"

namespace treduce::attention {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

constexpr int64_t kVector = 8;  // 16-bit elements in 16 bytes

bool is_taken(const Call& call) {
  const std::optional<DType> dtype = dtype_of(call.query.scalar_type());
  return takes(*dtype, call.query.size(-1), call.value.size(-1), chip_of(call.query.get_device()).capability);
}

// The layout of a tensor (batch, head, row, column) whose columns are contiguous. A dim of size 1 gets stride 0.
Matrices matrices_of(const Tensor& x, void* data) {
  const auto stride = [&](int64_t d) { return x.size(d) == 1 ? 0 : x.stride(d); };
  return {data, stride(0), stride(1), stride(2)};
}

// The tensor where the kernels can read it: itself, or a copy.
Tensor readable(const Tensor& x) {
  bool fits = x.stride(3) == 1 && reinterpret_cast<uintptr_t>(x.const_data_ptr()) % 16 == 0;
  for (int64_t d = 0; d < 3; ++d) fits &= x.size(d) == 1 || x.stride(d) % kVector == 0;
  fits &= x.size(2) == 1 || x.stride(2) != 0;  // the copy engine needs a stride between rows
  if (fits) return x;
  const int64_t width = x.size(3), missing = round_up(width, kVector) - width;
  return missing == 0 ? x.clone(at::MemoryFormat::Contiguous)
                      : at::constant_pad_nd(x, {0, missing}).contiguous().narrow(3, 0, width);
}
Matrices read(const Tensor& x) { return matrices_of(x, const_cast<void*>(x.const_data_ptr())); }
Matrices written(const Tensor& x) { return matrices_of(x, x.mutable_data_ptr()); }

// The arguments of the kernels, and the tensors that own their memory.
struct Fused {
  Tensor query, key, value, mask;
  Problem problem;

  explicit Fused(const Call& call) : query(readable(call.query)), key(readable(call.key)), value(readable(call.value)) {
    Problem& p = problem;
    p.dtype = *dtype_of(query.scalar_type());
    p.batch = call.batch;
    p.heads = call.heads * call.group;
    p.group = call.group;
    p.length = call.length;
    p.keys = call.keys;
    p.width = static_cast<int>(query.size(3));
    p.value_width = static_cast<int>(value.size(3));
    p.causal = call.causal;
    p.scale = static_cast<float>(call.scale);
    p.query = read(query);
    p.key = read(key);
    p.value = read(value);
    if (!call.mask.defined()) return;
    const bool is_bool = call.mask.scalar_type() == at::kBool;
    mask = is_bool ? call.mask : call.mask.to(at::kFloat);
    const auto stride = [&](int64_t d) { return mask.size(d) == 1 ? 0 : mask.stride(d); };
    p.mask = {mask.const_data_ptr(), is_bool, stride(0), stride(1), stride(2), stride(3)};
  }
};

// Undefined where nothing is needed: an allocation takes time.
Tensor workspace_of(const Prepared& prepared, const Tensor& like) {
  if (prepared.workspace.bytes() == 0) return Tensor();
  return at::empty({prepared.workspace.bytes()}, like.options().dtype(at::kByte).memory_format(std::nullopt));
}

// A tensor of four dims with contiguous columns: `x` itself, or one that is copied into it afterwards.
Tensor writable(const Tensor& x) {
  const Tensor four = Call::four(x);
  return four.stride(3) == 1 ? four : at::empty(four.sizes(), four.options());
}
void settle(const Tensor& written, const Tensor& result) {
  Tensor four = Call::four(result);
  if (!four.is_same(written) && four.const_data_ptr() != written.const_data_ptr()) four.copy_(written);
}

Tensor forward(const Tensor& query, const Tensor& key, const Tensor& value, const OptionalTensor& attn_mask,
               double dropout_p, bool is_causal, std::optional<double> scale, bool enable_gqa) {
  const Call call(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa);
  Tensor result = empty_result(query, value);
  if (call.is_empty()) return result.zero_();
  const CudaScope scope(query.device());
  if (!is_taken(call)) {
    compose(call, result);
    return result;
  }
  const Fused fused(call);
  const Tensor out = writable(result);
  const Prepared prepared = prepare_forward(fused.problem, chip_of(scope.device()));
  const Tensor workspace = workspace_of(prepared, query);
  void* const memory = workspace.defined() ? workspace.mutable_data_ptr() : nullptr;
  const int error = launch_forward(fused.problem, prepared, written(out), memory, scope.stream());
  check_cuda(static_cast<cudaError_t>(error), "the launch of scaled_dot_product_attention");
  settle(out, result);
  return result;
}

std::tuple<Tensor, Tensor, Tensor> backward(const Tensor& grad, const Tensor& query, const Tensor& key,
                                            const Tensor& value, const OptionalTensor& attn_mask, bool is_causal,
                                            std::optional<double> scale, bool enable_gqa) {
  const Call call(query, key, value, attn_mask, /*dropout_p=*/0, is_causal, scale, enable_gqa);
  const CudaScope scope(query.device());
  if (call.is_empty() || !is_taken(call)) return compose_gradients(call, grad, query, key, value);
  const Fused fused(call);
  const Prepared prepared = prepare_backward(fused.problem, chip_of(scope.device()));
  const Tensor workspace = workspace_of(prepared, query);
  const Tensor given = readable(Call::four(grad));
  const Tensor dquery = at::empty_like(query);
  const Tensor of_query = writable(dquery);
  // Where keys were moved, gradients are computed in their new order.
  const bool moved = call.order.defined();
  const Tensor dkey = moved ? at::empty(call.key.sizes(), key.options()) : at::empty_like(key);
  const Tensor dvalue = moved ? at::empty(call.value.sizes(), value.options()) : at::empty_like(value);
  const Tensor of_key = writable(dkey), of_value = writable(dvalue);
  const Gradients gradients{read(given), written(of_query), written(of_key), written(of_value)};
  const int error = launch_backward(fused.problem, prepared, gradients, workspace.mutable_data_ptr(), scope.stream());
  check_cuda(static_cast<cudaError_t>(error), "the launch of scaled_dot_product_attention_backward");
  settle(of_query, dquery);
  settle(of_key, dkey);
  settle(of_value, dvalue);
  if (moved) return {dquery, call.moved_back(dkey, key), call.moved_back(dvalue, value)};
  return {dquery, dkey, dvalue};
}

}  // namespace

TORCH_LIBRARY_IMPL(treduce, CUDA, m) {
  m.impl("scaled_dot_product_attention", forward);
  m.impl("scaled_dot_product_attention_backward", backward);
}

}  // namespace treduce::attention
