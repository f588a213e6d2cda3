// The kernel that copies operands into readable rows: both in one launch.
#include "pack.h"

#include "../common/divider.h"
#include "../common/launch.h"
#include "../primitives/ptx/launch.cuh"
#include "../primitives/shared.cuh"

namespace treduce::matmul {
namespace {

// The copy of an operand: where it is read, with `inner` and `outer` as in Boxes, where its memory begins and ends, and where it goes.
template <class Word>
struct Copy {
  const Word* from;
  int64_t inner_stride, outer_stride, batch_stride[2];
  const char *begin, *end;
  Boxes to;
  Word* data;
  int64_t blocks;
  bool turned, by_vectors;  // as the View says
  // Of what threads walk, chunks of 16 bytes, or blocks, tiles.
  Divider of_row, of_matrix, of_inner_batches;

  TREDUCE_DEVICE const Word* matrix(int64_t number) const {
    const int64_t outer = of_inner_batches.quotient(number), inner = number - outer * of_inner_batches.divisor;
    return from + outer * batch_stride[0] + inner * batch_stride[1];
  }
};
template <class Word>
struct Copies {
  Copy<Word> of[2];  // the second has no blocks where only one operand is copied
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
TREDUCE_DEVICE void copy_rows(const Copy<Word>& copy, int64_t block) {
  constexpr int kWords = 16 / sizeof(Word);
  const Boxes& to = copy.to;
  const int64_t count = copy.of_matrix.divisor * to.batch_size[0] * to.batch_size[1];
  for (int64_t t = block * kPackThreads + threadIdx.x; t < count; t += copy.blocks * kPackThreads) {
    const int64_t batch = copy.of_matrix.quotient(t), in_matrix = t - batch * copy.of_matrix.divisor;
    const int64_t row = copy.of_row.quotient(in_matrix), first = (in_matrix - row * copy.of_row.divisor) * kWords;
    const Word* const in = copy.matrix(batch) + row * copy.outer_stride + first * copy.inner_stride;
    Word words[kWords];
    // Its vectors may reach into the rows beside it, but not past the memory that is the caller's.
    const char* const vectors = reinterpret_cast<const char*>(reinterpret_cast<uint64_t>(in) / 16 * 16);
    if (copy.inner_stride == 1 && vectors >= copy.begin && vectors + 32 <= copy.end) {
      const uint4 chunk = load_unaligned(reinterpret_cast<const char*>(in));
      memcpy(words, &chunk, 16);
#pragma unroll
      for (int i = 0; i < kWords; ++i) words[i] = first + i < to.inner ? words[i] : Word(0);
    } else {
#pragma unroll
      for (int i = 0; i < kWords; ++i) words[i] = first + i < to.inner ? in[i * copy.inner_stride] : Word(0);
    }
    uint4 chunk;
    memcpy(&chunk, words, 16);
    *reinterpret_cast<uint4*>(copy.data + batch * to.batch_pitch[1] + row * to.pitch + first) = chunk;
  }
}

// Rows and columns exchanged: a tile of 64 lines goes through shared memory, so that reads and writes are both whole rows.
template <class Word>
TREDUCE_DEVICE void copy_turned(const Copy<Word>& copy, int64_t block) {
  constexpr int kInner = kPackBytes / sizeof(Word), kOuter = kPackLines, kWords = 16 / sizeof(Word);
  constexpr int kRounds = kInner * kOuter / kWords / kPackThreads;
  using Line = Word[kInner + 1];
  SHARED_ARRAY(Line, tile, kOuter);
  const Boxes& to = copy.to;
  const int64_t count = copy.of_matrix.divisor * to.batch_size[0] * to.batch_size[1];
  for (int64_t t = block; t < count; t += copy.blocks) {
    const int64_t batch = copy.of_matrix.quotient(t), in_matrix = t - batch * copy.of_matrix.divisor;
    const int64_t down = copy.of_row.quotient(in_matrix);
    const int64_t row = (in_matrix - down * copy.of_row.divisor) * kOuter, column = down * kInner;
    const Word* const in = copy.matrix(batch);
    Word words[kRounds][kWords];
#pragma unroll
    for (int i = 0; i < kRounds; ++i) {
      const int place = i * kPackThreads + threadIdx.x;
      const int64_t r = row + place % (kOuter / kWords) * kWords, c = column + place / (kOuter / kWords);
      const Word* const first = in + r * copy.outer_stride + c * copy.inner_stride;
      if (copy.by_vectors && r + kWords <= to.outer && c < to.inner) {
        const uint4 vector = __ldg(reinterpret_cast<const uint4*>(first));
        memcpy(words[i], &vector, 16);
      } else {
#pragma unroll
        for (int w = 0; w < kWords; ++w) {
          words[i][w] = r + w < to.outer && c < to.inner ? first[w * copy.outer_stride] : Word(0);
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
      *reinterpret_cast<uint4*>(copy.data + batch * to.batch_pitch[1] + (row + line) * to.pitch + column + first) =
          vector;
    }
    __syncthreads();
  }
}

template <class Word>
__global__ void __launch_bounds__(kPackThreads) copy_operands(TREDUCE_GRID_CONSTANT Copies<Word> copies) {
  ptx::allow_launch_after();
  const bool is_first = blockIdx.x < copies.of[0].blocks;
  const Copy<Word>& copy = copies.of[is_first ? 0 : 1];
  const int64_t block = blockIdx.x - (is_first ? 0 : copies.of[0].blocks);
  if (copy.turned) {
    copy_turned(copy, block);
  } else {
    copy_rows(copy, block);
  }
}

template <class Word>
Copy<Word> copy_of(const Operand& o, const View& view, void* data) {
  const Boxes& to = view.boxes;
  Copy<Word> copy;
  copy.from = static_cast<const Word*>(o.data);
  copy.inner_stride = to.along_k ? o.depth_stride : o.line_stride;
  copy.outer_stride = to.along_k ? o.line_stride : o.depth_stride;
  copy.batch_stride[0] = o.batch_stride[0];
  copy.batch_stride[1] = o.batch_stride[1];
  copy.begin = static_cast<const char*>(o.data);
  copy.end = end_of(o);
  copy.to = to;
  copy.data = static_cast<Word*>(data);
  copy.blocks = view.copy_blocks();
  copy.turned = view.transposed;
  copy.by_vectors = view.transposed_by_vectors;
  const View::Walk walk = view.walk();
  copy.of_row = Divider(walk.of_row);
  copy.of_matrix = Divider(walk.of_matrix);
  copy.of_inner_batches = Divider(to.batch_size[1]);
  return copy;
}

template <class Word>
cudaError_t launch_words(const Call& call, const Boxes& a, const Boxes& b) {
  const View &view_a = call.prepared.view_a, &view_b = call.prepared.view_b;
  Copies<Word> copies = {};
  int count = 0;
  const auto add = [&](const Operand& o, const View& view, const Boxes& to) {
    if (view.is_copied()) copies.of[count++] = copy_of<Word>(o, view, const_cast<void*>(to.data));
  };
  add(operand_a(call.problem, call.a, a.element_bytes), view_a, a);
  add(operand_b(call.problem, call.b, b.element_bytes), view_b, b);
  return launch(&copy_operands<Word>, call.step(0), copies);
}

}  // namespace

cudaError_t pack_operands(const Call& call, Boxes& a, Boxes& b) {
  const Decisions& prepared = call.prepared;
  const View &view_a = prepared.view_a, &view_b = prepared.view_b;
  a = view_a.boxes;
  b = view_b.boxes;
  a.data = view_a.is_copied() ? call.region<char>(prepared.copy_a) : call.a;
  b.data = view_b.is_copied() ? call.region<char>(prepared.copy_b) : call.b;
  if (!view_a.is_copied() && !view_b.is_copied()) return cudaSuccess;
  const auto words = a.element_bytes == 8   ? &launch_words<uint64_t>
                     : a.element_bytes == 4 ? &launch_words<uint32_t>
                     : a.element_bytes == 2 ? &launch_words<uint16_t>
                                            : &launch_words<uint8_t>;
  return words(call, a, b);
}

}  // namespace treduce::matmul
