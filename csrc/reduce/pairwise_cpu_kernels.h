// The kernels behind pairwise_cpu.cpp: what is compiled for each instruction set, and how it is found. Free of torch.
#pragma once

#include "geometry.h"
#include "pairwise.h"
#include "result.h"

namespace treduce::reduce::cpu {

// Elements along the reduced dims that one call takes at most: an aligned run of 2^5 chunks, which is a node of the tree. Sums of
// so many integers of up to 16 bits are below 2^31.
constexpr int64_t kUnit = 32 * Pairwise::kChunk;

// A stripe of a chunk, or its first `count` elements: the others begin at `rest`.
struct Stripe {
  const void *begin, *rest;
  int64_t count;
};

// The kernels of an op and a dtype. A node is an accumulator of the op (NodeOps::node_size bytes).
struct Kernels {
  int element_size;
  int width;               // the fewest columns that `columns` takes
  int64_t narrow_columns;  // what `narrow` takes at most
  int64_t narrow_scratch;  // bytes
  int64_t (*columns_scratch)(int64_t n, int64_t columns);

  // nodes[r] is the node over x[r * stride + e], e < n <= kUnit, for each of `rows` rows.
  void (*rows)(const void* x, int64_t rows, int64_t stride, int64_t n, void* nodes);
  // nodes[c] is the node over a whole chunk whose stripe s is stripes[c * 8 + s], c < chunks <= kUnit / 1024.
  void (*stripes)(const Stripe* stripes, int64_t chunks, void* nodes);
  // nodes[c] is the node over x[row(e) + c], for each of `columns`, from `width` on. Row e begins at offsets[e], or, without
  // offsets, at e * pitch.
  void (*columns)(const void* x, const int64_t* offsets, int64_t pitch, int64_t n, int64_t columns, void* scratch,
                  void* nodes);
  // The same for few columns whose rows lie one after another: nodes[c] is the node over x[e * columns + c].
  void (*narrow)(const void* x, int64_t n, int64_t columns, void* scratch, void* nodes);
};

// to[i] = x[2 * i], i < count, of elements of 1, 2, 4, 8 or 16 bytes.
using EverySecond = void (*)(const void* x, int64_t count, void* to);

// Null where there are no kernels for the dtype: elements must be widened to its accumulator first. The extrema of bools are those
// of their bytes. Complex numbers have kernels for sums of rows, not in the baseline; elsewhere they are two numbers side by side.
namespace baseline {
const Kernels* find(Op op, Arithmetic arithmetic, DType dtype);
EverySecond every_second(int size);
}  // namespace baseline
#ifdef __x86_64__
namespace avx2 {
const Kernels* find(Op op, Arithmetic arithmetic, DType dtype);
EverySecond every_second(int size);
}  // namespace avx2
namespace avx512 {
const Kernels* find(Op op, Arithmetic arithmetic, DType dtype);
EverySecond every_second(int size);
}  // namespace avx512
#endif

}  // namespace treduce::reduce::cpu
