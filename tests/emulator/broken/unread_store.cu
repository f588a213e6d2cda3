// A block leaves while the copy engine may not have read yet what it stores.
#include "ring.cuh"

namespace broken {

__global__ void unread_store(const CUtensorMap x, int /*n*/, float* out) {
  using namespace treduce;
  if (threadIdx.x > 0) return;
  ptx::store_box(&x, {0, 0, 0, 0}, aligned_boxes());
  ptx::commit_stores();
  // wait_stores_read<0>() belongs here
  *out = 0;
}

const Kernel kernel_unread_store("unread_store", [](const float* x, int n, int threads, float* out) {
  return launch_with_tensor(&unread_store, x, n, threads, out);
});

}  // namespace broken
