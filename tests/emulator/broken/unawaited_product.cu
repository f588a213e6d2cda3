// A warp group multiplies 64 rows of eight numbers by ones, and adds the results before they are there.
#include "../../../csrc/matmul/hopper.cuh"
#include "broken.h"

namespace broken {

using Ones = treduce::matmul::hopper::Tile<treduce::ptx::tfloat32, 8, true>;

__global__ void unawaited_product(const float* x, int n, float* out) {
  using namespace treduce;
  char* const ones = matmul::hopper::aligned_tiles(dynamic_shared<char>());
  float* const slot = reinterpret_cast<float*>(ones + Ones::kBytes);
  const int t = threadIdx.x, lane = t % 32, row = t / 32 * 16 + lane / 4;
  for (int i = t; i < Ones::kBytes / 4; i += 128) reinterpret_cast<float*>(ones)[i] = 1;
  __syncthreads();
  uint32_t words[4];
  for (int i = 0; i < 4; ++i) {
    const int at = (row + i % 2 * 8) * 8 + lane % 4 + i / 2 * 4;
    words[i] = __float_as_uint(at < n ? x[at] : 0.0f);
  }
  float sums[4] = {};
  ptx::wgmma_fence();
  ptx::WgmmaRegisters<ptx::tfloat32, 8>::multiply(sums, words, Ones::descriptor(ones, 0, 0), 1);
  ptx::wgmma_commit();
  // wgmma_wait<0>() belongs here
  if (lane % 4 == 0) slot[row] = sums[0], slot[row + 8] = sums[2];
  ptx::wgmma_wait<0>();
  __syncthreads();
  float sum = 0;
  for (int i = 0; i < 64; ++i) sum += slot[i];
  if (t == 0) *out = sum;
}

const Kernel kernel_unawaited_product("unawaited_product", [](const float* x, int n, int threads, float* out) {
  return treduce::launch(&unawaited_product, one_block(threads, 1024 + Ones::kBytes + 64 * sizeof(float)), x, n, out);
});

}  // namespace broken
