// Every op's signature, on one page. The files beside this one register what the ops do: on the CPU, on CUDA, for autograd,
// autocast and meta tensors.
#include <precompiled.h>

#include <ATen/core/stack.h>
#include <torch/library.h>

#include <sstream>
#include <string>
#include <vector>

namespace {

// torch's reductions have dims where these have the name of a rung.
void dim_is_named(const c10::OperatorHandle& op, c10::Stack* stack) {
  const std::string& name = op.schema().name();
  const c10::IValue& given = torch::jit::peek(*stack, 1, op.schema().arguments().size());
  std::ostringstream dims;
  if (given.isNone()) {
    dims << "None";
  } else {
    const std::vector<int64_t> list = given.toIntVector();
    for (size_t i = 0; i < list.size(); ++i) dims << (i == 0 ? "" : ", ") << list[i];
  }
  const bool one = given.isNone() || given.toIntVector().size() == 1;
  const std::string written = one ? dims.str() : "(" + dims.str() + ")";
  TORCH_CHECK_TYPE(false, name, ": got ", written,
                   " for variant, which is the name of a rung; dims are named: torch.ops.treduce.",
                   name.substr(name.rfind(':') + 1), "(x, dim=", written, ")");
}

}  // namespace

TORCH_LIBRARY(treduce, m) {
  m.def(
      "sum(Tensor self, str variant=\"auto\", *, int[1]? dim=None, bool keepdim=False, ScalarType? dtype=None, "
      "int? block_size=None, int? num_blocks=None) -> Tensor");
  m.def(
      "mean(Tensor self, str variant=\"auto\", *, int[1]? dim=None, bool keepdim=False, ScalarType? dtype=None, "
      "int? block_size=None, int? num_blocks=None) -> Tensor");
  m.def(
      "amax(Tensor self, str variant=\"auto\", *, int[1]? dim=None, bool keepdim=False, int? block_size=None, "
      "int? num_blocks=None) -> Tensor");
  m.def(
      "amin(Tensor self, str variant=\"auto\", *, int[1]? dim=None, bool keepdim=False, int? block_size=None, "
      "int? num_blocks=None) -> Tensor");
  // Calls as of torch's reductions, sum(x, 1): they raise a TypeError that says the right one.
  for (const char* op : {"sum", "mean", "amax", "amin"}) {
    const std::string schema = std::string(op) +
                               ".by_place(Tensor self, int[1]? variant, bool keepdim=False, *, "
                               "ScalarType? dtype=None, int? block_size=None, int? num_blocks=None) -> Tensor";
    m.def(schema.c_str(), torch::CppFunction::makeFromBoxedFunction<&dim_is_named>());
  }
  m.def("matmul(Tensor self, Tensor other, str variant=\"auto\", *, int? tile_size=None) -> Tensor");
  m.def("linear(Tensor input, Tensor weight, Tensor? bias=None, str variant=\"auto\") -> Tensor");
  m.def(
      "scaled_dot_product_attention(Tensor query, Tensor key, Tensor value, Tensor? attn_mask=None, "
      "float dropout_p=0.0, bool is_causal=False, *, float? scale=None, bool enable_gqa=False) -> Tensor");
  m.def(
      "scaled_dot_product_attention_backward(Tensor grad, Tensor query, Tensor key, Tensor value, Tensor? attn_mask, "
      "bool is_causal, float? scale, bool enable_gqa) -> (Tensor, Tensor, Tensor)");
  m.def("vector_add(Tensor self, Tensor other, str variant=\"auto\", *, int? block_size=None) -> Tensor");
  m.def("softmax(Tensor self, int dim, str variant=\"auto\") -> Tensor");
  m.def("log_softmax(Tensor self, int dim, str variant=\"auto\") -> Tensor");
  m.def("logsumexp(Tensor self, int dim, bool keepdim=False, str variant=\"auto\") -> Tensor");
  // With what the backward needs of each row: float32 for dtypes of up to 32 bits.
  m.def(
      "layer_norm(Tensor input, SymInt[] normalized_shape, Tensor? weight=None, Tensor? bias=None, float eps=1e-05, "
      "str variant=\"auto\") -> (Tensor output, Tensor mean, Tensor rstd)");
  m.def(
      "rms_norm(Tensor input, SymInt[] normalized_shape, Tensor? weight=None, float? eps=None, str variant=\"auto\") "
      "-> (Tensor output, Tensor rstd)");
  // Gradients of the inputs.
  m.def("softmax_backward(Tensor grad, Tensor output, int dim, str variant=\"auto\") -> Tensor");
  m.def("log_softmax_backward(Tensor grad, Tensor output, int dim, str variant=\"auto\") -> Tensor");
  m.def(
      "layer_norm_backward(Tensor grad, Tensor input, SymInt[] normalized_shape, Tensor mean, Tensor rstd, "
      "Tensor? weight=None, str variant=\"auto\") -> Tensor");
  m.def(
      "rms_norm_backward(Tensor grad, Tensor input, SymInt[] normalized_shape, Tensor rstd, Tensor? weight=None, "
      "str variant=\"auto\") -> Tensor");
  // Along the last dim of `rows`, to contiguous tensors of the accumulator's dtype: the sum of the squares or, where a mean is wanted too,
  // of the squares of what elements differ from it by.
  m.def("row_sums_(Tensor(a!) squares, Tensor(b!)? mean, Tensor rows) -> ()");
  // Correctly rounded on every device, as torch's is on CUDA alone: float32 and float64.
  m.def("sqrt(Tensor self) -> Tensor");
  m.def("elementary(Tensor self, str function) -> Tensor");
  // To `out`, which is contiguous and has the shape and the dtype of the result: the reduction named `op`, and matmul.
  m.def(
      "reduce_to_(Tensor(a!) out, Tensor input, str op, str variant=\"auto\", *, int[1]? dim=None, bool keepdim=False, "
      "int? block_size=None, int? num_blocks=None) -> ()");
  m.def("matmul_to_(Tensor(a!) out, Tensor input, Tensor other, str variant=\"auto\", int? tile_size=None) -> ()");
  // Along dim 0 of `values`, to `out`: what the collectives of torch_reduce.distributed add.
  m.def("reduce_ranks_(Tensor(a!) out, Tensor values, str op) -> ()");
  // Rows of `source` into the rows of `out` that `index`, which ascends, names: what meets is added as a tree, in the order of `order`,
  // the places of these rows in `source`. mean: their sums are divided by their number.
  m.def("add_segments_(Tensor(a!) out, Tensor index, Tensor order, Tensor source, bool mean=False) -> ()");
  // What a rank sends of a run that ranks cut, of `entries` along dim 0: (from, to, count, chunks) of each reduce::Group.
  m.def("pack_parts_(Tensor(a!) message, Tensor entries, int[] groups) -> ()");
  // What ranks sent of a run that they cut (values, parts: see reduce/parts.h) as its sum, or, of `count` elements, its mean.
  m.def("fold_parts_(Tensor(a!) out, Tensor values, Tensor parts, int? count=None) -> ()");
  // Along `dim` of `first` or, along dim 0, of its entries and then those of `second`, to `out`.
  m.def("sum_to_(Tensor(a!) out, Tensor first, Tensor? second, int dim) -> ()");
  m.def("thread_indices_(Tensor(a!) out, int[] grid, int[] block) -> ()");
}

// torch's fallback for lazily conjugated and negated tensors looks for the returned result of an op that writes to an argument. These
// read such inputs as they are, and refuse such an `out`.
TORCH_LIBRARY_IMPL(treduce, Conjugate, m) {
  for (const char* op : {"reduce_to_", "matmul_to_"}) m.impl(op, torch::CppFunction::makeFallthrough());
}
TORCH_LIBRARY_IMPL(treduce, Negative, m) {
  for (const char* op : {"reduce_to_", "matmul_to_"}) m.impl(op, torch::CppFunction::makeFallthrough());
}
