// The CUDA kernels of a build without CUDA: one sentence that says how to get them.
#include <torch/library.h>

namespace treduce {
namespace {

void not_built(const c10::OperatorHandle& op, c10::Stack*) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, op.schema().name(),
      " got a CUDA tensor, but torch_reduce was built without CUDA; install nvcc (for one, pip "
      "install \"cuda-toolkit[nvcc,cudart,cccl]==13.0.*\") and rebuild with TORCH_REDUCE_CUDA=1");
}

}  // namespace

TORCH_LIBRARY_IMPL(treduce, CUDA, m) {
  for (const char* op : {"sum", "mean", "amax", "amin", "matmul", "vector_add", "thread_indices_"}) {
    m.impl(op, torch::CppFunction::makeFromBoxedFunction<&not_built>());
  }
}

}  // namespace treduce
