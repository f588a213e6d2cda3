// add_segments_ on CUDA: device guard, stream, launch.
#include <precompiled.h>

#include <ATen/ops/_assert_async.h>
#include <ATen/ops/ge.h>
#include <ATen/ops/logical_and.h>
#include <ATen/ops/lt.h>
#include <torch/library.h>

#include "cuda_device.h"
#include "segments.h"

namespace treduce::segments {
namespace {

void add_cuda(const at::Tensor& out, const at::Tensor& index, const at::Tensor& order, const at::Tensor& source,
              bool mean) {
  const CudaScope scope(out.device());
  const Request r = request(out, index, order, source, mean);
  if (r.count == 0 || r.width == 0) return;
  at::_assert_async(at::logical_and(at::ge(index.select(0, 0), 0), at::lt(index.select(0, r.count - 1), r.places)));
  check_cuda(static_cast<cudaError_t>(launch_add(r, prepare(r), scope.stream())), "the launch of add_segments_");
}

}  // namespace

TORCH_LIBRARY_IMPL(treduce, CUDA, m) { m.impl("add_segments_", add_cuda); }

}  // namespace treduce::segments
