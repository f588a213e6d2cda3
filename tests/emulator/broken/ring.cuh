// A ring of two stages between a thread that asks for boxes and the warps that add what they bring, as products have it.
#pragma once

#include "../../../csrc/common/tensor_map.h"
#include "../../../csrc/primitives/ptx/tma.cuh"
#include "broken.h"

namespace broken {

constexpr int kBox = 32, kBoxBytes = kBox * sizeof(float), kStages = 2;

// Dynamic shared memory, where boxes may go.
TREDUCE_DEVICE char* aligned_boxes() {
  char* const shared = treduce::dynamic_shared<char>();
  return shared + (kBoxBytes - treduce::ptx::shared_address(shared) % kBoxBytes) % kBoxBytes;
}

struct Ring {
  uint64_t full[kStages], empty[kStages];
};

// The last warp copies x to shared memory, 32 numbers after 32; the first adds them. kReleaseFirst: the mistake of released_early.cu.
template <bool kReleaseFirst>
TREDUCE_DEVICE void sum_through_ring(const CUtensorMap& x, int n, float* out) {
  using namespace treduce;
  SHARED(Ring, ring);
  char* const stages = aligned_boxes();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, boxes = (n + kBox - 1) / kBox;
  if (threadIdx.x == 0) {
    for (int s = 0; s < kStages; ++s) {
      ptx::mbarrier_init(ring.full + s, 1);
      ptx::mbarrier_init(ring.empty + s, 32);
    }
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  if (warp == 3 && ptx::elect_one()) {
    for (int i = 0; i < boxes; ++i) {
      const int stage = i % kStages;
      ptx::mbarrier_wait(ring.empty + stage, i / kStages % 2 ^ 1);
      ptx::mbarrier_arrive_expect(ring.full + stage, kBoxBytes);
      ptx::load_box(stages + stage * kBoxBytes, &x, {i * kBox, 0, 0, 0}, ring.full + stage);
    }
  }
  if (warp > 0) return;
  float sum = 0;
  for (int i = 0; i < boxes; ++i) {
    const int stage = i % kStages;
    ptx::mbarrier_wait(ring.full + stage, i / kStages % 2);
    if (kReleaseFirst) ptx::mbarrier_arrive(ring.empty + stage);
    sum += ptx::load_shared<float>(ptx::swizzled(ptx::shared_address(stages + stage * kBoxBytes) + lane * 4));
    if (!kReleaseFirst) ptx::mbarrier_arrive(ring.empty + stage);
  }
  for (int distance = 16; distance > 0; distance /= 2) sum += __shfl_down_sync(~0u, sum, distance);
  if (lane == 0) *out = sum;
}

// Launches a kernel with x as a tensor of one row; what is past its end reads as zero.
inline cudaError_t launch_with_tensor(void (*kernel)(const CUtensorMap, int, float*), const float* x, int n,
                                      int threads, float* out) {
  CUtensorMap map;
  const cudaError_t error = treduce::describe_tensor(x, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, {cuuint64_t(n), 1, 1, 1},
                                                     {1024, 1024, 1024}, {kBox, 1}, &map);
  if (error != cudaSuccess) return error;
  return treduce::launch(kernel, one_block(threads, (kStages + 3) * kBoxBytes), map, n, out);
}

}  // namespace broken
