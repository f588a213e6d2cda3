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

template <class T, class Tiles>
__global__ void __launch_bounds__(256)
    kernel(const T* a, const T* b, Result<T>* c, const Result<T>* bias, Problem p, Tiles tiles) {
  for (int64_t tile = blockIdx.x; tile < tiles.count; tile += gridDim.x) {
    const auto place = tiles.place(tile);
    const int64_t i = place.row + threadIdx.y;
    const int64_t j = place.column + threadIdx.x;
    if (i >= p.m || j >= p.n) continue;

    const Offsets at = offsets_of(p, place.batch);
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
    return with_shape<kShapeCount>(call, [&](auto index) {
      constexpr TileShape kShape = kShapes[index()];
      using Tiles = matmul::Tiles<kShape.tile_m, kShape.tile_n>;
      return launch_tiles<T, Tiles>(&kernel<T, Tiles>, call);
    });
  });
}

const Rung<launch_one> rung("naive");

}  // namespace treduce::matmul::naive
