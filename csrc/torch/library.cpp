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
  m.def("vector_add(Tensor self, Tensor other, str variant=\"auto\", *, int? block_size=None) -> Tensor");
  m.def("thread_indices_(Tensor(a!) out, int[] grid, int[] block) -> ()");
}
