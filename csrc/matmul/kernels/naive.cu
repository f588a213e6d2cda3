// Idea: one thread an output. It walks a row of A and a column of B in global memory and keeps the sum in a register.
//
// Mapping: blocks of 16 x 16 outputs, or of 64 x 4 or 4 x 64 where C is narrow; threadIdx.x runs along n, so that the lanes of a
//          warp read neighbours of a row of B and the same element of A.
// Bound:   load instructions: two for each multiply-add. Every element of A is asked for n times and every element of B
//          m times; the caches answer most of that, and their bandwidth is the limit.
// Next:    tiled fetches each element once a block and shares it.
// Source:  NVIDIA, CUDA Programming Guide: shared memory.
#include "../rung.h"

namespace treduce::matmul::naive {

// Tiles of any shape, which is the block's: a kernel a shape would gain nothing.
struct Tiles {
  int64_t across, down, count;
};

template <class T>
__global__ void __launch_bounds__(256)
    kernel(const T* a, const T* b, Result<T>* c, const Result<T>* bias, Problem p, Tiles tiles) {
  for (int64_t tile = blockIdx.x; tile < tiles.count; tile += gridDim.x) {
    const int64_t line = tile / tiles.across;
    const int64_t i = line % tiles.down * blockDim.y + threadIdx.y;
    const int64_t j = tile % tiles.across * blockDim.x + threadIdx.x;
    if (i >= p.m || j >= p.n) continue;

    const Offsets at = offsets_of(p, line / tiles.down);
    const T* row = a + at.a + i * p.a_row;
    const T* column = b + at.b + j * p.b_column;
    Acc<T> acc = 0;
    for (int64_t l = 0; l < p.k; ++l) {
      acc = multiply_add(static_cast<Acc<T>>(row[l * p.a_column]), static_cast<Acc<T>>(column[l * p.b_row]), acc);
    }
    c[at.c + i * p.n + j] = round_to<Result<T>>(with_bias(acc, bias, j));
  }
}

cudaError_t launch_one(const Call& call) {
  return dispatch_dtype(call.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    const Problem& p = call.problem;
    const TileShape& shape = kShapes[call.prepared.shape];
    Tiles tiles = {ceil_div(p.n, int64_t(shape.tile_n)), ceil_div(p.m, int64_t(shape.tile_m)), 0};
    tiles.count = p.batches * tiles.down * tiles.across;
    return launch(&kernel<T>, call.step(0), static_cast<const T*>(call.a), static_cast<const T*>(call.b),
                  static_cast<Result<T>*>(call.c), static_cast<const Result<T>*>(call.bias), p, tiles);
  });
}

const Rung<launch_one> rung("naive");

}  // namespace treduce::matmul::naive
