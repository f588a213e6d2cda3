// Copies of operands that the copy engine cannot address: rows start at multiples of 16 bytes, and k or the lines are
// contiguous as the View says.
#pragma once

#include <cuda_runtime.h>

#include "../common/launch.h"
#include "operand.h"

namespace treduce::matmul {

// What packing knows of where it reads, with `inner` and `outer` as in Boxes.
struct PackSource {
  int64_t inner_stride, outer_stride, batch_stride[2];
};

constexpr int kPackThreads = 256;
constexpr int kPackChunks = 2;  // of 16 bytes a thread: one sector

// Neighbouring lanes take neighbours of the contiguous dimension of the source: chunks of a row, or rows.
template <class Word, bool kLanesAlongOuter>
__global__ void __launch_bounds__(kPackThreads) pack_kernel(const Word* from, PackSource source, Boxes to, Word* data) {
  constexpr int kWords = 16 / sizeof(Word) * kPackChunks;
  const int64_t chunks = (to.pitch + kWords - 1) / kWords;
  const int64_t a_matrix = chunks * to.outer;
  const int64_t count = a_matrix * to.batch_size[0] * to.batch_size[1];
  for (int64_t t = blockIdx.x * int64_t(kPackThreads) + threadIdx.x; t < count;
       t += gridDim.x * int64_t(kPackThreads)) {
    const int64_t batch = t / a_matrix, place = t % a_matrix;
    const int64_t row = kLanesAlongOuter ? place % to.outer : place / chunks;
    const int64_t first = (kLanesAlongOuter ? place / to.outer : place % chunks) * kWords;
    const int64_t batch0 = batch / to.batch_size[1], batch1 = batch % to.batch_size[1];
    const Word* in = from + batch0 * source.batch_stride[0] + batch1 * source.batch_stride[1] +
                     row * source.outer_stride + first * source.inner_stride;
    Word words[kWords];
#pragma unroll
    for (int i = 0; i < kWords; ++i) words[i] = first + i < to.inner ? in[i * source.inner_stride] : Word(0);
    Word* out = data + batch * to.batch_pitch[1] + row * to.pitch + first;
#pragma unroll
    for (int c = 0; c < kPackChunks; ++c) {
      constexpr int kChunk = kWords / kPackChunks;
      uint4 chunk;
      memcpy(&chunk, words + c * kChunk, 16);
      if (first + c * kChunk < to.pitch) *reinterpret_cast<uint4*>(out + c * kChunk) = chunk;
    }
  }
}

template <class Word>
cudaError_t pack_words(const Operand& o, const Boxes& to, void* workspace, cudaStream_t stream) {
  const PackSource source{to.along_k ? o.depth_stride : o.line_stride,
                          to.along_k ? o.line_stride : o.depth_stride,
                          {o.batch_stride[0], o.batch_stride[1]}};
  const int64_t threads = to.batch_pitch[0] * to.batch_size[0] * int64_t(sizeof(Word)) / (16 * kPackChunks);
  Launch shape;
  shape.block = kPackThreads;
  shape.grid = std::min<int64_t>(threads / kPackThreads + 1, INT32_MAX);
  shape.stream = stream;
  const auto kernel =
      source.inner_stride != 1 && source.outer_stride == 1 ? &pack_kernel<Word, true> : &pack_kernel<Word, false>;
  return launch(kernel, shape, static_cast<const Word*>(o.data), source, to, static_cast<Word*>(workspace));
}

// Makes `view` readable: where it needs a copy, copies to the workspace and moves `workspace` past it.
inline cudaError_t pack(const Operand& o, View& view, char*& workspace, cudaStream_t stream) {
  if (view.reading == Reading::direct) return cudaSuccess;
  view.boxes.data = workspace;
  const auto words = o.element_bytes == 8   ? &pack_words<uint64_t>
                     : o.element_bytes == 4 ? &pack_words<uint32_t>
                                            : &pack_words<uint16_t>;
  const cudaError_t error = words(o, view.boxes, workspace, stream);
  workspace += view.copied_bytes;
  return error;
}

}  // namespace treduce::matmul
