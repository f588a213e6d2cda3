// The mode's state, and the ops that it leaves to torch: those that keep the promise, with the reason, and those that do not.
#include <precompiled.h>

#include "invariant.h"

namespace treduce::invariant {
namespace {

// Registered at first use: a program that never enters the mode pays nothing. Never destroyed: the dispatcher may be gone by then.
void register_once() {
  static const auto* const library = [] {
    auto* m = new torch::Library(torch::Library::IMPL, "aten", kKey, __FILE__, __LINE__);
    leave_to_torch(*m);
    replace_reductions(*m);
    replace_elementwise(*m);
    replace_scans(*m);
    replace_index(*m);
    replace_convolution(*m);
    replace_attention(*m);
    replace_above_autograd(*m);
    replace_whole_vectors(*m);
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

Entry& add_entry(const char* name, Kind kind, const char* reason) {
  return entries().emplace_back(std::string("aten::") + name, kind, reason);
}

Entry& entry_of(const c10::OperatorHandle& op) {
  const std::string& overload = op.operator_name().overload_name;
  const std::string name = overload.empty() ? op.operator_name().name : op.operator_name().name + "." + overload;
  for (Entry& entry : entries()) {
    if (entry.name == name) return entry;
  }
  TORCH_INTERNAL_ASSERT(false, name, " is not in the table");
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

struct Left {
  const char* op;
  const char* reason;  // why torch's kernel keeps the promise; null if it does not
};

constexpr char kSelects[] = "selects or counts: no rounding";
constexpr char kWindows[] = "adds each output's own window in one loop";
constexpr char kElementwise[] = "elementwise";
constexpr char kAtomics[] = "on a CPU each input's gradient is added in one loop";

// The reducing ops that invariant_ops.cpp does not replace. Of integers, all are exact in any order.
constexpr Left kLeft[] = {
    {"any", kSelects},
    {"any.dim", kSelects},
    {"any.dims", kSelects},
    {"all", kSelects},
    {"all.dim", kSelects},
    {"all.dims", kSelects},
    {"argmax", kSelects},
    {"argmin", kSelects},
    {"max.dim", kSelects},
    {"min.dim", kSelects},
    {"aminmax", kSelects},
    {"cummax", kSelects},
    {"cummin", kSelects},
    {"count_nonzero", kSelects},
    {"count_nonzero.dim_IntList", kSelects},
    {"sort", kSelects},
    {"sort.stable", kSelects},
    {"topk", kSelects},
    {"kthvalue", kSelects},
    {"median", kSelects},
    {"median.dim", kSelects},
    {"mode", kSelects},
    {"max_pool2d_with_indices", kSelects},
    {"max_pool3d_with_indices", kSelects},
    {"adaptive_max_pool2d", kSelects},
    {"adaptive_max_pool3d", kSelects},
    {"avg_pool2d", kWindows},
    {"avg_pool3d", kWindows},
    {"_adaptive_avg_pool2d", kWindows},
    {"_adaptive_avg_pool3d", kWindows},
    {"nll_loss_backward", kElementwise},
    {"nll_loss2d_backward", kElementwise},
    // On CUDA they add atomically, unless torch.use_deterministic_algorithms finds them another kernel or refuses.
    {"avg_pool3d_backward", kAtomics},
    {"_adaptive_avg_pool2d_backward", kAtomics},
    {"_adaptive_avg_pool3d_backward", kAtomics},
    {"adaptive_max_pool2d_backward", kAtomics},
    {"adaptive_max_pool3d_backward", kAtomics},
    {"max_pool3d_with_indices_backward", kAtomics},
    {"fractional_max_pool2d_backward", kAtomics},
    {"fractional_max_pool3d_backward", kAtomics},
    {"reflection_pad1d_backward", kAtomics},
    {"reflection_pad2d_backward", kAtomics},
    {"reflection_pad3d_backward", kAtomics},
    {"replication_pad1d_backward", kAtomics},
    {"replication_pad2d_backward", kAtomics},
    {"replication_pad3d_backward", kAtomics},
    {"upsample_linear1d_backward", kAtomics},
    {"upsample_bilinear2d_backward", kAtomics},
    {"upsample_bicubic2d_backward", kAtomics},
    {"upsample_trilinear3d_backward", kAtomics},
    {"_upsample_bilinear2d_aa_backward", kAtomics},
    {"_upsample_bicubic2d_aa_backward", kAtomics},
    {"_logcumsumexp", nullptr},
    {"native_batch_norm", nullptr},
    {"native_batch_norm_backward", nullptr},
    {"cudnn_batch_norm", nullptr},
    {"cudnn_batch_norm_backward", nullptr},
    {"_native_batch_norm_legit", nullptr},
    {"_native_batch_norm_legit.no_stats", nullptr},
    {"_batch_norm_with_update", nullptr},
    {"batch_norm_backward", nullptr},
    {"batch_norm_stats", nullptr},
    {"batch_norm_gather_stats_with_counts", nullptr},
    {"multi_margin_loss", nullptr},
    {"multilabel_margin_loss_forward", nullptr},
    {"_ctc_loss", nullptr},
    {"_cudnn_ctc_loss", nullptr},
    {"_cudnn_rnn", nullptr},
    {"mkldnn_rnn_layer", nullptr},
    {"_embedding_bag", nullptr},
    {"_embedding_bag_forward_only", nullptr},
    {"_embedding_bag_dense_backward", nullptr},
    {"scatter_reduce.two", nullptr},
    {"scatter_reduce_.two", nullptr},
    {"index_reduce", nullptr},
    {"index_reduce_", nullptr},
    {"segment_reduce", nullptr},
    {"scatter.reduce", nullptr},
    {"scatter.value_reduce", nullptr},
    {"scatter_.reduce", nullptr},
    {"scatter_.value_reduce", nullptr},
    {"put", nullptr},
    {"put_", nullptr},
    {"histc", kSelects},
    {"bincount", nullptr},
    {"_cdist_forward", nullptr},
    {"_cdist_backward", nullptr},
    {"_pdist_forward", nullptr},
    {"_pdist_backward", nullptr},
    {"renorm", nullptr},
    {"_weight_norm_interface", nullptr},
    {"grid_sampler_2d_backward", nullptr},
    {"grid_sampler_3d_backward", nullptr},
    {"mm.dtype", nullptr},
    {"mm.dtype_out", nullptr},
    {"bmm.dtype", nullptr},
    {"bmm.dtype_out", nullptr},
    {"addmm.dtype", nullptr},
    {"addmm.dtype_out", nullptr},
    {"baddbmm.dtype", nullptr},
    {"baddbmm.dtype_out", nullptr},
    {"_addmm_activation", nullptr},
    {"linalg__powsum", nullptr},
    {"_masked_softmax", nullptr},
    {"_masked_softmax_backward", nullptr},
    {"_scaled_mm", nullptr},
    {"_scaled_mm_v2", nullptr},
    {"_scaled_grouped_mm", nullptr},
    {"_scaled_grouped_mm_v2", nullptr},
    {"_weight_int8pack_mm", nullptr},
    {"_weight_int4pack_mm", nullptr},
    {"_sparse_semi_structured_mm", nullptr},
    {"_native_multi_head_attention", nullptr},
    {"_transformer_encoder_layer_fwd", nullptr},
    {"_flash_attention_forward", nullptr},
    {"_flash_attention_backward", nullptr},
    {"_efficient_attention_forward", nullptr},
    {"_efficient_attention_backward", nullptr},
    {"_scaled_dot_product_flash_attention", nullptr},
    {"_scaled_dot_product_flash_attention_for_cpu", nullptr},
    {"_scaled_dot_product_efficient_attention", nullptr},
    {"_scaled_dot_product_cudnn_attention", nullptr},
    {"_scaled_dot_product_fused_attention_overrideable", nullptr},
    {"_fft_r2c", nullptr},
    {"_fft_c2r", nullptr},
    {"_fft_c2c", nullptr},
    {"linalg_qr", nullptr},
    {"linalg_eig", nullptr},
    {"_linalg_eigh", nullptr},
    {"_linalg_svd", nullptr},
    {"_linalg_det", nullptr},
    {"_linalg_slogdet", nullptr},
    {"_linalg_solve_ex", nullptr},
    {"linalg_solve_triangular", nullptr},
    {"linalg_inv_ex", nullptr},
    {"linalg_lu_factor_ex", nullptr},
    {"linalg_lstsq", nullptr},
    {"linalg_cholesky_ex", nullptr},
    {"linalg_matrix_exp", nullptr},
    {"cholesky_solve", nullptr},
    {"cholesky_inverse", nullptr},
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
  if (uncovered || (entry.kind == Kind::atomics && call == Call::rounds_on_cuda)) {
    report_uncovered(entry);
  } else if (call != Call::elsewhere) {
    entry.torchs.fetch_add(1, std::memory_order_relaxed);
  }
  op.redispatchBoxed(keys & below(kKey), stack);
}

}  // namespace

void leave_to_torch(torch::Library& m) {
  for (const Left& row : kLeft) {
    const Kind kind = !row.reason ? Kind::uncovered : row.reason == kAtomics ? Kind::atomics : Kind::torchs;
    add_entry(row.op, kind, row.reason ? row.reason : "");
    m.impl(row.op, torch::CppFunction::makeFromBoxedFunction<&left_to_torch>());
  }
}

}  // namespace treduce::invariant
