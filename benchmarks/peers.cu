// What the reductions are timed beside: a GPU that does nothing, that fetches one word, that only reads, and CUB.
// Compiled by peers.py when a benchmark runs: once as it is, and once for each dtype and operator with CUB_IN, CUB_ACC,
// CUB_OUT, CUB_OP and CUB_START. Every function returns a cudaError_t.

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#ifdef CUB_IN

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <thrust/iterator/counting_iterator.h>
#include <thrust/iterator/transform_iterator.h>
#include <cub/device/device_reduce.cuh>
#include <cub/device/device_segmented_reduce.cuh>
#include <cuda/functional>
#include <cuda/std/functional>

namespace {

using In = CUB_IN;
using Acc = CUB_ACC;
using Out = CUB_OUT;
constexpr Acc kStart = CUB_START;

struct Begin {
  int64_t size;
  __host__ __device__ int64_t operator()(int64_t segment) const { return segment * size; }
};

}  // namespace

// Reduce with an operator on Acc in place of Sum: narrow types are then added in the type that torch adds them in.
// `temp` null: sets `bytes` and does nothing else.
extern "C" int cub_whole(void* temp, size_t* bytes, const In* in, Out* out, int64_t n, cudaStream_t stream) {
  return cub::DeviceReduce::Reduce(temp, *bytes, in, out, n, cuda::CUB_OP<Acc>{}, kStart, stream);
}

// Segments of one size, one after another: the rows of a matrix.
extern "C" int cub_rows(void* temp, size_t* bytes, const In* in, Out* out, int64_t rows, int64_t size,
                        cudaStream_t stream) {
  const auto begin = thrust::make_transform_iterator(thrust::counting_iterator<int64_t>{0}, Begin{size});
  return cub::DeviceSegmentedReduce::Reduce(temp, *bytes, in, out, rows, begin, begin + 1, cuda::CUB_OP<Acc>{}, kStart,
                                            stream);
}

#else

namespace {

__global__ void nothing() {}

__global__ void one_word(const uint32_t* in, uint32_t* out) { *out = *in; }

// Every 16 bytes are loaded and next to nothing is kept: the `if` holds once in 2^32 threads.
template <int kThreads, int kLoads>
__global__ void __launch_bounds__(kThreads) read_only(const uint4* in, uint32_t* out, int64_t vectors) {
  uint32_t seen = 0;
  for (int64_t tile = blockIdx.x; (tile + 1) * kThreads * kLoads <= vectors; tile += gridDim.x) {
    const uint4* from = in + tile * kThreads * kLoads + threadIdx.x;
    uint4 v[kLoads];
#pragma unroll
    for (int i = 0; i < kLoads; ++i) v[i] = __ldcs(from + i * kThreads);
#pragma unroll
    for (int i = 0; i < kLoads; ++i) seen = seen * 31 + (v[i].x ^ v[i].y ^ v[i].z ^ v[i].w);
  }
  if (seen == 0x9e3779b9u) *out = seen;
}

template <class... Parameters, class... Arguments>
int launch(void (*kernel)(Parameters...), int64_t grid, int block, cudaStream_t stream, Arguments... arguments) {
  cudaLaunchConfig_t config{};
  config.gridDim = static_cast<unsigned>(grid);
  config.blockDim = block;
  config.stream = stream;
  return cudaLaunchKernelEx(&config, kernel, arguments...);
}

template <int kThreads, int kLoads>
int launch_read(const void* in, void* out, int64_t bytes, int blocks, cudaStream_t stream) {
  const int64_t vectors = bytes / 16, tile = kThreads * kLoads;
  if (bytes % 16 != 0 || vectors % tile != 0) return cudaErrorInvalidValue;
  const int64_t grid = blocks > 0 && blocks < vectors / tile ? blocks : vectors / tile;
  return launch(read_only<kThreads, kLoads>, grid, kThreads, stream, static_cast<const uint4*>(in),
                static_cast<uint32_t*>(out), vectors);
}

}  // namespace

extern "C" int peer_nothing(cudaStream_t stream) { return launch(nothing, 1, 32, stream); }

extern "C" int peer_word(const void* in, void* out, cudaStream_t stream) {
  return launch(one_word, 1, 1, stream, static_cast<const uint32_t*>(in), static_cast<uint32_t*>(out));
}

// `blocks` 0: one for every tile.
extern "C" int peer_read(const void* in, void* out, int64_t bytes, int threads, int loads, int blocks,
                         cudaStream_t stream) {
  if (threads == 256 && loads == 4) return launch_read<256, 4>(in, out, bytes, blocks, stream);
  if (threads == 256 && loads == 8) return launch_read<256, 8>(in, out, bytes, blocks, stream);
  if (threads == 256 && loads == 16) return launch_read<256, 16>(in, out, bytes, blocks, stream);
  if (threads == 1024 && loads == 4) return launch_read<1024, 4>(in, out, bytes, blocks, stream);
  if (threads == 1024 && loads == 8) return launch_read<1024, 8>(in, out, bytes, blocks, stream);
  return cudaErrorInvalidValue;
}

#endif
