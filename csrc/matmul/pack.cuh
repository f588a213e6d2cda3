// Copies of operands that the copy engine cannot address: rows start at multiples of 16 bytes, and k or the lines are
// contiguous as the View says.
#pragma once

#include <cuda_runtime.h>

#include "operand.h"
#include "rung.h"

namespace treduce::matmul {

// What packing knows of where it reads, with `inner` and `outer` as in Boxes.
struct PackSource {
  int64_t inner_stride, outer_stride, batch_stride[2];
};

constexpr int kPackThreads = 256;
constexpr int kPackBytes = 128;  // of a row that a block turns round at once

// Rows as they are: each thread writes 16 bytes.
template <class Word>
__global__ void __launch_bounds__(kPackThreads) pack_rows(const Word* from, PackSource source, Boxes to, Word* data) {
  constexpr int kWords = 16 / sizeof(Word);
  const int64_t chunks = to.pitch / kWords;
  const int64_t a_matrix = chunks * to.outer;
  const int64_t count = a_matrix * to.batch_size[0] * to.batch_size[1];
  for (int64_t t = blockIdx.x * int64_t(kPackThreads) + threadIdx.x; t < count;
       t += gridDim.x * int64_t(kPackThreads)) {
    const int64_t batch = t / a_matrix, row = t % a_matrix / chunks, first = t % chunks * kWords;
    const Word* in = from + batch / to.batch_size[1] * source.batch_stride[0] +
                     batch % to.batch_size[1] * source.batch_stride[1] + row * source.outer_stride +
                     first * source.inner_stride;
    Word words[kWords];
#pragma unroll
    for (int i = 0; i < kWords; ++i) words[i] = first + i < to.inner ? in[i * source.inner_stride] : Word(0);
    uint4 chunk;
    memcpy(&chunk, words, 16);
    *reinterpret_cast<uint4*>(data + batch * to.batch_pitch[1] + row * to.pitch + first) = chunk;
  }
}

// Rows and columns exchanged: a tile of 64 lines goes through shared memory, so that reads and writes are both whole rows.
template <class Word>
__global__ void __launch_bounds__(kPackThreads) pack_turned(const Word* from, PackSource source, Boxes to, Word* data) {
  constexpr int kInner = kPackBytes / sizeof(Word), kOuter = 64, kRounds = kInner * kOuter / kPackThreads;
  __shared__ Word tile[kOuter][kInner + 1];
  const int64_t across = (to.outer + kOuter - 1) / kOuter, down = (to.inner + kInner - 1) / kInner;
  const int64_t count = across * down * to.batch_size[0] * to.batch_size[1];
  for (int64_t t = blockIdx.x; t < count; t += gridDim.x) {
    const int64_t batch = t / (across * down), row = t % across * kOuter, column = t / across % down * kInner;
    const Word* in =
        from + batch / to.batch_size[1] * source.batch_stride[0] + batch % to.batch_size[1] * source.batch_stride[1];
    Word words[kRounds];
#pragma unroll
    for (int i = 0; i < kRounds; ++i) {
      const int place = i * kPackThreads + threadIdx.x;
      const int64_t r = row + place % kOuter, c = column + place / kOuter;
      words[i] = r < to.outer && c < to.inner ? in[r * source.outer_stride + c * source.inner_stride] : Word(0);
    }
#pragma unroll
    for (int i = 0; i < kRounds; ++i) {
      const int place = i * kPackThreads + threadIdx.x;
      tile[place % kOuter][place / kOuter] = words[i];
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kRounds; ++i) {
      const int place = i * kPackThreads + threadIdx.x;
      const int64_t r = row + place / kInner, c = column + place % kInner;
      if (r < to.outer && c < to.pitch)
        data[batch * to.batch_pitch[1] + r * to.pitch + c] = tile[place / kInner][place % kInner];
    }
    __syncthreads();
  }
}

template <class Word>
cudaError_t pack_words(const Operand& o, const Boxes& to, void* workspace, cudaStream_t stream) {
  const PackSource source{to.along_k ? o.depth_stride : o.line_stride,
                          to.along_k ? o.line_stride : o.depth_stride,
                          {o.batch_stride[0], o.batch_stride[1]}};
  const bool turned = source.inner_stride != 1 && source.outer_stride == 1;
  const int64_t bytes = to.batch_pitch[0] * to.batch_size[0] * int64_t(sizeof(Word));
  Launch shape;
  shape.block = kPackThreads;
  shape.grid = std::min<int64_t>(bytes / (turned ? 64 * kPackBytes : 16 * kPackThreads) + 1, INT32_MAX);
  shape.stream = stream;
  return launch(turned ? &pack_turned<Word> : &pack_rows<Word>, shape, static_cast<const Word*>(o.data), source, to,
                static_cast<Word*>(workspace));
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

// Both operands of a call, into its workspace: A's copy first.
inline cudaError_t pack_operands(const Call& call, int bytes, View& a, View& b) {
  char* workspace = static_cast<char*>(call.workspace);
  const cudaError_t error = pack(operand_a(call.problem, call.a, bytes), a, workspace, call.stream);
  if (error != cudaSuccess) return error;
  return pack(operand_b(call.problem, call.b, bytes), b, workspace, call.stream);
}

}  // namespace treduce::matmul
