// Idea: a block computes a square tile of C. Step by step along k it copies a tile of A and a tile of B into shared
// memory, where each element is used kTile times.
//
// After:   naive; the same multiply-adds in the same order, hence the same bits.
// Mapping: thread (x, y) owns output (y, x) of the tile and copies one element of each operand a step. What lies past
//          an edge is filled with zero. Two barriers a step: the tile is complete before it is read, and read before it
//          is overwritten.
// Bound:   shared-memory instructions: a load of A (the same address for a row of threads) and one of B for each
//          multiply-add. Global memory is asked kTile times less than before.
// Next:    tiled_1d keeps several outputs a thread in registers and uses each shared element several times.
// Source:  NVIDIA, CUDA Programming Guide, shared memory.
#include "../../primitives/shared.cuh"
#include "../rung.h"

namespace treduce::matmul::tiled {

template <class T, int kTile>
__global__ void __launch_bounds__(kTile* kTile)
    kernel(const T* a, const T* b, Result<T>* c, const Result<T>* bias, Problem p, Tiles<kTile, kTile> tiles) {
  SHARED_ARRAY(Acc<T>, tile_a, kTile * kTile);
  SHARED_ARRAY(Acc<T>, tile_b, kTile * kTile);
  const int x = threadIdx.x;
  const int y = threadIdx.y;

  for (int64_t tile = blockIdx.x; tile < tiles.count; tile += gridDim.x) {
    const auto place = tiles.place(tile);
    const Offsets at = offsets_of(p, place.batch);
    const int64_t i = place.row + y;
    const int64_t j = place.column + x;
    const T* from_a = a + at.a + i * p.a_row + x * p.a_column;  // this thread's element of the first step
    const T* from_b = b + at.b + y * p.b_row + j * p.b_column;

    Acc<T> acc = 0;
    for (int64_t begin = 0; begin < p.k; begin += kTile) {
      tile_a[y * kTile + x] = i < p.m && begin + x < p.k ? static_cast<Acc<T>>(*from_a) : Acc<T>(0);
      tile_b[y * kTile + x] = begin + y < p.k && j < p.n ? static_cast<Acc<T>>(*from_b) : Acc<T>(0);
      from_a += kTile * p.a_column;
      from_b += kTile * p.b_row;
      __syncthreads();
      if (begin + kTile <= p.k) {
#pragma unroll
        for (int l = 0; l < kTile; ++l) acc = multiply_add(tile_a[y * kTile + l], tile_b[l * kTile + x], acc);
      } else {
        // The last tile may be narrower. Adding its zeros would turn an accumulator of -0, which underflow can leave,
        // into +0.
        for (int l = 0; l < p.k - begin; ++l) acc = multiply_add(tile_a[y * kTile + l], tile_b[l * kTile + x], acc);
      }
      __syncthreads();
    }
    if (i < p.m && j < p.n) c[at.c + i * p.n + j] = round_to<Result<T>>(with_bias(acc, bias, j));
  }
}

template <class T, int kTile>
cudaError_t launch_tile(const Call& call) {
  static_assert(shape(kDType<T>, kTile).tile_m == kTile);
  return launch_tiles<T, Tiles<kTile, kTile>>(&kernel<T, kTile>, call);
}

cudaError_t launch_one(const Call& call) {
  return dispatch_dtype(call.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    switch (call.prepared.tile_m) {
      case 8: return launch_tile<T, 8>(call);
      case 32: return launch_tile<T, 32>(call);
      default: return launch_tile<T, 16>(call);
    }
  });
}

const Rung<launch_one> rung("tiled");

}  // namespace treduce::matmul::tiled
