// The kernels that copy operands into readable rows.
#include "pack.h"

#include "../common/launch.h"
#include "../primitives/shared.cuh"

namespace treduce::matmul {
namespace {

// What packing knows of where it reads, with `inner` and `outer` as in Boxes; and where the operand's memory begins and ends.
struct PackSource {
  int64_t inner_stride, outer_stride, batch_stride[2];
  const char *begin, *end;
};

// 16 bytes from any address, by the two aligned vectors that they lie in.
TREDUCE_DEVICE uint4 load_unaligned(const char* from) {
  const int skew = static_cast<int>(reinterpret_cast<uint64_t>(from) % 16);
  const uint4* const vectors = reinterpret_cast<const uint4*>(from - skew);
  const uint4 first = __ldg(vectors), second = __ldg(vectors + 1);
  uint32_t words[8] = {first.x, first.y, first.z, first.w, second.x, second.y, second.z, second.w};
#pragma unroll
  for (int i = 0; i < 6; ++i) words[i] = skew & 8 ? words[i + 2] : words[i];
#pragma unroll
  for (int i = 0; i < 5; ++i) words[i] = skew & 4 ? words[i + 1] : words[i];
#pragma unroll
  for (int i = 0; i < 4; ++i) words[i] = __funnelshift_r(words[i], words[i + 1], skew % 4 * 8);
  return {words[0], words[1], words[2], words[3]};
}

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
    const Word* const line = from + batch / to.batch_size[1] * source.batch_stride[0] +
                             batch % to.batch_size[1] * source.batch_stride[1] + row * source.outer_stride;
    const Word* const in = line + first * source.inner_stride;
    Word words[kWords];
    // Its vectors may reach into the rows beside it, but not past the memory that is the caller's.
    const char* const vectors = reinterpret_cast<const char*>(reinterpret_cast<uint64_t>(in) / 16 * 16);
    if (source.inner_stride == 1 && vectors >= source.begin && vectors + 32 <= source.end) {
      const uint4 chunk = load_unaligned(reinterpret_cast<const char*>(in));
      memcpy(words, &chunk, 16);
#pragma unroll
      for (int i = 0; i < kWords; ++i) words[i] = first + i < to.inner ? words[i] : Word(0);
    } else {
#pragma unroll
      for (int i = 0; i < kWords; ++i) words[i] = first + i < to.inner ? in[i * source.inner_stride] : Word(0);
    }
    uint4 chunk;
    memcpy(&chunk, words, 16);
    *reinterpret_cast<uint4*>(data + batch * to.batch_pitch[1] + row * to.pitch + first) = chunk;
  }
}

// Rows and columns exchanged: a tile of 64 lines goes through shared memory, so that reads and writes are both whole rows.
// `vectors`: 16 bytes along the lines are one aligned load.
template <class Word>
__global__ void __launch_bounds__(kPackThreads)
    pack_turned(const Word* from, PackSource source, Boxes to, Word* data, bool vectors) {
  constexpr int kInner = kPackBytes / sizeof(Word), kOuter = kPackLines, kWords = 16 / sizeof(Word);
  constexpr int kRounds = kInner * kOuter / kWords / kPackThreads;
  using Line = Word[kInner + 1];
  SHARED_ARRAY(Line, tile, kOuter);
  const int64_t across = (to.outer + kOuter - 1) / kOuter, down = (to.inner + kInner - 1) / kInner;
  const int64_t count = across * down * to.batch_size[0] * to.batch_size[1];
  for (int64_t t = blockIdx.x; t < count; t += gridDim.x) {
    const int64_t batch = t / (across * down), row = t % across * kOuter, column = t / across % down * kInner;
    const Word* in =
        from + batch / to.batch_size[1] * source.batch_stride[0] + batch % to.batch_size[1] * source.batch_stride[1];
    Word words[kRounds][kWords];
#pragma unroll
    for (int i = 0; i < kRounds; ++i) {
      const int place = i * kPackThreads + threadIdx.x;
      const int64_t r = row + place % (kOuter / kWords) * kWords, c = column + place / (kOuter / kWords);
      const Word* const first = in + r * source.outer_stride + c * source.inner_stride;
      if (vectors && r + kWords <= to.outer && c < to.inner) {
        const uint4 vector = __ldg(reinterpret_cast<const uint4*>(first));
        memcpy(words[i], &vector, 16);
      } else {
#pragma unroll
        for (int w = 0; w < kWords; ++w) {
          words[i][w] = r + w < to.outer && c < to.inner ? first[w * source.outer_stride] : Word(0);
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kRounds; ++i) {
      const int place = i * kPackThreads + threadIdx.x;
#pragma unroll
      for (int w = 0; w < kWords; ++w) {
        tile[place % (kOuter / kWords) * kWords + w][place / (kOuter / kWords)] = words[i][w];
      }
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kRounds; ++i) {
      const int place = i * kPackThreads + threadIdx.x;
      const int line = place / (kInner / kWords), first = place % (kInner / kWords) * kWords;
      if (row + line >= to.outer || column + first >= to.pitch) continue;
      Word turned[kWords];
#pragma unroll
      for (int w = 0; w < kWords; ++w) turned[w] = tile[line][first + w];
      uint4 vector;
      memcpy(&vector, turned, 16);
      *reinterpret_cast<uint4*>(data + batch * to.batch_pitch[1] + (row + line) * to.pitch + column + first) = vector;
    }
    __syncthreads();
  }
}

template <class Word>
cudaError_t pack_words(const Operand& o, const View& view, void* copy, const Launch& shape) {
  const Boxes& to = view.boxes;
  const int64_t last = (o.lines - 1) * o.line_stride + (o.depth - 1) * o.depth_stride +
                       (o.batch_size[0] - 1) * o.batch_stride[0] + (o.batch_size[1] - 1) * o.batch_stride[1];
  const char* const begin = static_cast<const char*>(o.data);
  const PackSource source{to.along_k ? o.depth_stride : o.line_stride,
                          to.along_k ? o.line_stride : o.depth_stride,
                          {o.batch_stride[0], o.batch_stride[1]},
                          begin,
                          begin + (last + 1) * static_cast<int64_t>(sizeof(Word))};
  const Word* const from = static_cast<const Word*>(o.data);
  Word* const data = static_cast<Word*>(copy);
  if (!view.transposed) return launch(&pack_rows<Word>, shape, from, source, to, data);
  return launch(&pack_turned<Word>, shape, from, source, to, data, view.transposed_by_vectors);
}

}  // namespace

cudaError_t pack(const Operand& o, const View& view, void* copy, const Launch& shape) {
  const auto words = o.element_bytes == 8   ? &pack_words<uint64_t>
                     : o.element_bytes == 4 ? &pack_words<uint32_t>
                     : o.element_bytes == 2 ? &pack_words<uint16_t>
                                            : &pack_words<uint8_t>;
  return words(o, view, copy, shape);
}

}  // namespace treduce::matmul
