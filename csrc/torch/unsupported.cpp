// Tensors that no kernel takes, each with one sentence that says so: sparse, quantised and mkldnn ones, and CUDA tensors in a
// build without CUDA.
#include <precompiled.h>

#include <torch/library.h>

#include "treduce_build.h"

namespace treduce {
namespace {

constexpr const char* kOps[] = {"sum",
                                "mean",
                                "amax",
                                "amin",
                                "matmul",
                                "linear",
                                "vector_add",
                                "softmax",
                                "log_softmax",
                                "logsumexp",
                                "layer_norm",
                                "rms_norm",
                                "softmax_backward",
                                "log_softmax_backward",
                                "layer_norm_backward",
                                "rms_norm_backward",
                                "scaled_dot_product_attention",
                                "scaled_dot_product_attention_backward",
                                "sqrt",
                                "elementary",
                                "row_sums_",
                                "reduce_to_",
                                "matmul_to_",
                                "reduce_ranks_",
                                "add_segments_",
                                "sum_to_",
                                "pack_parts_",
                                "fold_parts_",
                                "thread_indices_"};

void not_dense(const c10::OperatorHandle& op, c10::DispatchKeySet keys, c10::Stack*) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, op.schema().name(),
                              " takes dense, unquantised tensors on CPU or CUDA, got one of backend ",
                              keys.highestBackendKey(), " and dispatch key ", keys.highestPriorityTypeId());
}

void no_nested(const c10::OperatorHandle& op, c10::Stack*) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, op.schema().name(),
                              " takes no nested tensors: call it on their values(), or torch's function inside "
                              "batch_invariant()");
}

void register_not_dense(torch::Library& m) {
  for (const char* op : kOps) m.impl(op, torch::CppFunction::makeFromBoxedFunction<&not_dense>());
}

}  // namespace

TORCH_LIBRARY_IMPL(treduce, SparseCPU, m) { register_not_dense(m); }
TORCH_LIBRARY_IMPL(treduce, SparseCUDA, m) { register_not_dense(m); }
TORCH_LIBRARY_IMPL(treduce, SparseCsrCPU, m) { register_not_dense(m); }
TORCH_LIBRARY_IMPL(treduce, SparseCsrCUDA, m) { register_not_dense(m); }
TORCH_LIBRARY_IMPL(treduce, QuantizedCPU, m) { register_not_dense(m); }
TORCH_LIBRARY_IMPL(treduce, QuantizedCUDA, m) { register_not_dense(m); }
TORCH_LIBRARY_IMPL(treduce, MkldnnCPU, m) { register_not_dense(m); }

TORCH_LIBRARY_IMPL(treduce, AutogradNestedTensor, m) {
  for (const char* op : kOps) m.impl(op, torch::CppFunction::makeFromBoxedFunction<&no_nested>());
}

#ifndef TREDUCE_WITH_CUDA
namespace {

void not_built(const c10::OperatorHandle& op, c10::Stack*) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, op.schema().name(),
                              " got a CUDA tensor, but torch_reduce was built without CUDA; install nvcc (for one, pip "
                              "install \"cuda-toolkit[nvcc,cudart,cccl]\") and rebuild with TORCH_REDUCE_CUDA=1");
}

}  // namespace

TORCH_LIBRARY_IMPL(treduce, CUDA, m) {
  for (const char* op : kOps) m.impl(op, torch::CppFunction::makeFromBoxedFunction<&not_built>());
}
#endif

}  // namespace treduce
