// The mode's state, and the ops that it leaves to torch: those that keep the promise, with the reason, and those that do not.
#include <precompiled.h>

#include <algorithm>
#include <sstream>
#include <string_view>
#include <tuple>
#include <unordered_map>

#include "invariant.h"

namespace treduce::invariant {
namespace {

// Registered at first use: a program that never enters the mode pays nothing. Never destroyed: the dispatcher may be gone by then.
void register_once() {
  static const auto* const library = [] {
    auto* m = new torch::Library(torch::Library::IMPL, "aten", kKey, __FILE__, __LINE__);
    replace_reductions(*m);
    replace_elementwise(*m);
    replace_scans(*m);
    replace_index(*m);
    replace_convolution(*m);
    replace_attention(*m);
    replace_above_autograd(*m);
    replace_whole_vectors(*m);
    leave_to_torch(*m);
    return m;
  }();
  (void)library;
}

}  // namespace

Mode mode() {
  if (!active()) return Mode::off;
  return c10::impl::tls_is_dispatch_key_included(kStrict) ? Mode::strict : Mode::warns;
}

void set(Mode mode) {
  if (mode != Mode::off) register_once();
  c10::impl::tls_set_dispatch_key_included(kActive, mode != Mode::off);
  c10::impl::tls_set_dispatch_key_included(kStrict, mode == Mode::strict);
}

// A deque, because references to entries must stay valid.
std::deque<Entry>& entries() {
  static std::deque<Entry> all;
  return all;
}

namespace {
std::unordered_map<std::string, Entry*>& by_name() {
  static std::unordered_map<std::string, Entry*> all;
  return all;
}
}  // namespace

Entry& add_entry(const char* name, Kind kind, const char* reason) {
  Entry& entry = entries().emplace_back(std::string("aten::") + name, kind, reason);
  by_name().emplace(entry.name, &entry);
  return entry;
}

Entry& entry_of(const c10::OperatorHandle& op) {
  const std::string& overload = op.operator_name().overload_name;
  const std::string name = overload.empty() ? op.operator_name().name : op.operator_name().name + "." + overload;
  return *by_name().at(name);
}

void report_uncovered(Entry& entry) {
  entry.uncovered.fetch_add(1, std::memory_order_relaxed);
  TORCH_CHECK_NOT_IMPLEMENTED(
      mode() != Mode::strict, entry.name,
      " reduces in an order that may depend on the batch, and batch_invariant has nothing in its "
      "place; batch_invariant(strict=False) runs torch's and warns");
  if (entry.warned.exchange(true)) return;
  TORCH_WARN(
      entry.name,
      " reduces in an order that may depend on the batch, and batch_invariant has nothing in its place: torch's ran. "
      "batch_invariant(strict=True) raises instead");
}

namespace {

// The reducing ops that are not replaced, of one kind. A name stands for all its overloads that have kernels, in place and out= too,
// but for those that are replaced and those that are named with a dot. What has no kernel of its own is composed of other ops.
struct Left {
  Kind kind;
  const char* reason;  // why torch's kernel keeps the promise
  const char* ops;
  bool contiguous = false;  // see Entry
};

constexpr Left kLeft[] = {
    {Kind::torchs, "selects or counts: no rounding",
     "_aminmax _amp_foreach_non_finite_check_and_unscale _cummax_helper _cummin_helper _foreach_max "
     "_histogramdd_bin_edges _histogramdd_from_bin_cts _histogramdd_from_bin_tensors _unique _unique2 "
     "adaptive_max_pool2d adaptive_max_pool3d all aminmax any argmax argmin bucketize count_nonzero cummax cummin "
     "fractional_max_pool2d fractional_max_pool3d hash_tensor histc isin kthvalue max.dim max.dim_max max.unary_out "
     "max_pool2d_with_indices max_pool3d_with_indices median min.dim min.dim_min min.unary_out mode nanmedian "
     "searchsorted sort topk unique_consecutive unique_dim unique_dim_consecutive"},
    {Kind::torchs, "adds each output's own window in one loop",
     "_adaptive_avg_pool2d _adaptive_avg_pool3d _upsample_bicubic2d_aa _upsample_bilinear2d_aa "
     "_upsample_lanczos2d_aa _upsample_nearest_exact1d_backward _upsample_nearest_exact2d_backward "
     "_upsample_nearest_exact3d_backward adaptive_avg_pool2d adaptive_avg_pool3d avg_pool2d avg_pool2d_backward "
     "avg_pool3d col2im grid_sampler_3d max_pool2d_with_indices_backward unfold_backward "
     "upsample_bicubic2d upsample_bilinear2d upsample_linear1d upsample_nearest1d_backward "
     "upsample_nearest2d_backward upsample_nearest3d_backward upsample_trilinear3d"},
    {Kind::torchs, "elementwise", "nll_loss2d_backward nll_loss_backward"},
    {Kind::torchs, "reduces by ops that are in this table or replaced",
     "_embedding_bag_backward _native_multi_head_attention _transformer_encoder_layer_fwd binary_cross_entropy "
     "huber_loss mse_loss norm renorm smooth_l1_loss"},
    {Kind::torchs, "a row's norm by one loop or one block", "embedding_renorm"},
    {Kind::torchs, "adds each output's own window in one loop", "grid_sampler_2d", /*contiguous=*/true},
    {Kind::torchs, "each bag in one loop", "_embedding_bag _embedding_bag_forward_only", /*contiguous=*/true},
    {Kind::torchs, "each distance by one loop or one block", "_cdist_forward _pdist_forward"},
    // On CUDA they add atomically, unless torch.use_deterministic_algorithms finds them another kernel or refuses.
    {Kind::on_cpu, "on a CPU each input's gradient is added in one loop",
     "_adaptive_avg_pool2d_backward _adaptive_avg_pool3d_backward _upsample_bicubic2d_aa_backward "
     "_upsample_bilinear2d_aa_backward _upsample_lanczos2d_aa_backward adaptive_avg_pool3d_backward "
     "adaptive_max_pool2d_backward adaptive_max_pool3d_backward avg_pool3d_backward fractional_max_pool2d_backward "
     "fractional_max_pool3d_backward grid_sampler_3d_backward max_pool3d_with_indices_backward "
     "reflection_pad1d_backward "
     "reflection_pad2d_backward reflection_pad3d_backward replication_pad1d_backward replication_pad2d_backward "
     "replication_pad3d_backward upsample_bicubic2d_backward upsample_bilinear2d_backward upsample_linear1d_backward "
     "upsample_trilinear3d_backward"},
    {Kind::on_cpu, "on a CPU each input's gradient is added in one loop", "grid_sampler_2d_backward",
     /*contiguous=*/true},
    {Kind::on_cpu, "on a CPU one loop adds in order",
     "_cdist_backward _ctc_loss _ctc_loss_backward _pdist_backward _segment_reduce_backward bincount "
     "multi_margin_loss multi_margin_loss_backward multilabel_margin_loss_backward multilabel_margin_loss_forward "
     "segment_reduce"},
    {Kind::uncovered, "",
     "_batch_norm_with_update _cholesky_solve_helper _compute_linear_combination _conv_depthwise2d _cslt_sparse_mm "
     "_cudnn_attention_backward _cudnn_attention_forward _cudnn_attention_forward_no_dropout_inplace _cudnn_ctc_loss "
     "_cudnn_rnn _cudnn_rnn_backward _dyn_quant_matmul_4bit _efficient_attention_backward "
     "_efficient_attention_forward _fft_c2c _fft_c2r _fft_r2c _flash_attention_backward _flash_attention_forward "
     "_flash_attention_forward_no_dropout_inplace _foreach_mm _foreach_powsum _int_mm _linalg_det _linalg_eigh "
     "_linalg_eigvals _linalg_slogdet _linalg_solve_ex _linalg_svd _mixed_dtypes_linear _native_batch_norm_legit "
     "_scaled_addmm _scaled_dot_product_cudnn_attention _scaled_dot_product_cudnn_attention_backward "
     "_scaled_dot_product_efficient_attention _scaled_dot_product_efficient_attention_backward "
     "_scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_backward "
     "_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention_for_cpu_backward "
     "_scaled_dot_product_fused_attention_overrideable _scaled_grouped_mm _scaled_grouped_mm_v2 _scaled_mm "
     "_scaled_mm_v2 _slow_conv2d_backward _slow_conv2d_forward _sparse_semi_structured_addmm "
     "_sparse_semi_structured_linear _sparse_semi_structured_mm _triton_multi_head_attention "
     "_triton_scaled_dot_attention _weight_int4pack_mm _weight_int4pack_mm_for_cpu _weight_int8pack_mm addmm.dtype "
     "addmm.dtype_out baddbmm.dtype baddbmm.dtype_out batch_norm_backward batch_norm_backward_reduce "
     "batch_norm_gather_stats batch_norm_gather_stats_with_counts batch_norm_stats batch_norm_update_stats bmm.dtype "
     "bmm.dtype_out cholesky cholesky_inverse conv_depthwise3d cudnn_affine_grid_generator "
     "cudnn_affine_grid_generator_backward cudnn_batch_norm cudnn_batch_norm_backward cudnn_convolution "
     "cudnn_convolution_add_relu cudnn_convolution_relu cudnn_convolution_transpose cudnn_grid_sampler "
     "cudnn_grid_sampler_backward geqrf histogram "
     "linalg__powsum linalg_cholesky_ex linalg_eig linalg_eigvals linalg_householder_product linalg_inv_ex "
     "linalg_ldl_factor_ex linalg_ldl_solve linalg_lstsq linalg_lu linalg_lu_factor_ex linalg_lu_solve "
     "linalg_matrix_exp linalg_matrix_sqrth linalg_polar linalg_qr mkldnn_rnn_layer "
     "mkldnn_rnn_layer_backward mm.dtype mm.dtype_out native_batch_norm.out nll_loss2d_forward.output "
     "nll_loss_forward.output ormqr slow_conv3d_forward slow_conv_dilated2d slow_conv_dilated3d "
     "slow_conv_transpose2d slow_conv_transpose3d triangular_solve"},
};

enum class Call { elsewhere, exact, rounds, rounds_on_cuda };

// Integers are exact in any order; `put` without accumulate sums nothing.
Call kind_of(const c10::FunctionSchema& schema, const c10::Stack& stack) {
  const size_t first = stack.size() - schema.arguments().size();
  bool here = false, floats = false, sums = true, cuda = false;
  const auto look = [&](const at::Tensor& t) {
    if (!t.defined() || !(t.is_cpu() || t.is_cuda())) return;
    here = true;
    cuda |= t.is_cuda();
    floats |= t.is_floating_point() || t.is_complex();
  };
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    const c10::IValue& value = stack[first + i];
    if (value.isTensor()) look(value.toTensor());
    if (value.isTensorList()) {
      for (const at::Tensor& t : value.toTensorList()) look(t);
    }
    const std::string& name = schema.arguments()[i].name();
    if (name == "accumulate" && value.isBool()) sums = value.toBool();
  }
  if (!here || !floats || !sums) return here ? Call::exact : Call::elsewhere;
  return cuda ? Call::rounds_on_cuda : Call::rounds;
}

void left_to_torch(const c10::OperatorHandle& op, c10::DispatchKeySet keys, c10::Stack* stack) {
  if (!active()) return op.redispatchBoxed(keys & below(kKey), stack);
  Entry& entry = entry_of(op);
  const Call call = kind_of(op.schema(), *stack);
  const bool uncovered = entry.kind == Kind::uncovered && (call == Call::rounds || call == Call::rounds_on_cuda);
  if (uncovered || (entry.kind == Kind::on_cpu && call == Call::rounds_on_cuda)) {
    report_uncovered(entry);
  } else if (call != Call::elsewhere) {
    entry.torchs.fetch_add(1, std::memory_order_relaxed);
    for (size_t i = 1; entry.contiguous && i <= op.schema().arguments().size(); ++i) {
      c10::IValue& value = (*stack)[stack->size() - i];
      if (value.isTensor() && value.toTensor().defined()) value = value.toTensor().contiguous();
    }
  }
  op.redispatchBoxed(keys & below(kKey), stack);
}

}  // namespace

void leave_to_torch(torch::Library& m) {
  constexpr std::string_view kAten = "aten::";
  std::unordered_map<std::string, const Left*> rows;
  for (const Left& row : kLeft) {
    std::istringstream ops(row.ops);
    for (std::string op; ops >> op;) rows.emplace(op, &row);
  }
  c10::Dispatcher& dispatcher = c10::Dispatcher::singleton();
  std::vector<c10::OperatorName> all = dispatcher.getAllOpNames();
  std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) {
    return std::tie(a.name, a.overload_name) < std::tie(b.name, b.overload_name);
  });
  for (const c10::OperatorName& op : all) {
    if (op.name.compare(0, kAten.size(), kAten) != 0) continue;
    const std::string overload = op.overload_name.empty() ? "" : "." + op.overload_name;
    std::string base = op.name.substr(kAten.size());
    if (base.back() == '_') base.pop_back();
    auto row = rows.find(base + overload);
    if (row == rows.end()) row = rows.find(base);
    if (row == rows.end() || by_name().count(op.name + overload) != 0) continue;
    const auto handle = dispatcher.findOp(op);
    const bool own = handle->hasKernelForDispatchKey(c10::DispatchKey::CPU) ||
                     handle->hasKernelForDispatchKey(c10::DispatchKey::CUDA);
    if (!own) continue;
    const std::string name = op.name.substr(kAten.size()) + overload;
    add_entry(name.c_str(), row->second->kind, row->second->reason).contiguous = row->second->contiguous;
    m.impl(name.c_str(), torch::CppFunction::makeFromBoxedFunction<&left_to_torch>());
  }
}

}  // namespace treduce::invariant
