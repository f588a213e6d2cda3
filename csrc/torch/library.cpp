// Every op's signature, on one page. The files beside this one register what the ops do: on the CPU, on CUDA, for autograd,
// autocast and meta tensors.
#include <torch/library.h>

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
  m.def("matmul(Tensor self, Tensor other, str variant=\"auto\", *, int? tile_size=None) -> Tensor");
  m.def("linear(Tensor input, Tensor weight, Tensor? bias=None, str variant=\"auto\") -> Tensor");
  m.def(
      "scaled_dot_product_attention(Tensor query, Tensor key, Tensor value, Tensor? attn_mask=None, "
      "float dropout_p=0.0, bool is_causal=False, *, float? scale=None, bool enable_gqa=False) -> Tensor");
  m.def(
      "scaled_dot_product_attention_backward(Tensor grad, Tensor query, Tensor key, Tensor value, Tensor? attn_mask, "
      "bool is_causal, float? scale, bool enable_gqa) -> (Tensor, Tensor, Tensor)");
  m.def("vector_add(Tensor self, Tensor other, str variant=\"auto\", *, int? block_size=None) -> Tensor");
  m.def("thread_indices_(Tensor(a!) out, int[] grid, int[] block) -> ()");
}
