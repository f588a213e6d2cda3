// thread_indices_ on CUDA: checks, device guard, stream, launch.
#include <precompiled.h>

#include <torch/library.h>

#include "cuda_device.h"
#include "lessons.h"

namespace treduce::lessons {
namespace {

void thread_indices_cuda(const at::Tensor& out, at::IntArrayRef grid, at::IntArrayRef block) {
  const ThreadGrid g = checked_grid(out, grid, block);
  const CudaScope scope(out.device());
  int64_t* const table = static_cast<int64_t*>(out.mutable_data_ptr());
  check_cuda(static_cast<cudaError_t>(launch_thread_indices(g, prepare(g), table, scope.stream())),
             "the launch of thread_indices_");
}

}  // namespace

TORCH_LIBRARY_IMPL(treduce, CUDA, m) { m.impl("thread_indices_", thread_indices_cuda); }

}  // namespace treduce::lessons
