// Idea: a thread computes a column of outputs and keeps them in registers. An element of B that it has read from shared
// memory serves all of them.
//
// After:   tiled; the same multiply-adds in the same order, hence the same bits.
// Mapping: blocks of 512 threads compute 64 x 64 outputs, kRows of one column a thread; the lanes of a warp have neighbouring
//          columns and the same rows. A step along k is 8 deep, so that each thread copies one element of each operand.
//          Lines past an edge are not copied: nobody stores what they give.
// Bound:   shared-memory instructions still: for kRows multiply-adds one load of B, and kRows of A, though these, being the
//          same address for the whole warp and neighbours along k, come up to four at a time.
// Next:    tiled_2d lets an element of A serve several columns too.
// Source:  Simon Boehm, How to Optimize a CUDA Matmul Kernel for cuBLAS-like Performance: a Worklog (2022); Vasily Volkov
//          and James Demmel, Benchmarking GPUs to Tune Dense Linear Algebra (2008), for outputs in registers.
#include "../../primitives/shared.cuh"
#include "../stage.cuh"

namespace treduce::matmul::tiled_1d {

struct Config {
  static constexpr int kTileM = 64, kTileN = 64, kStep = 8;
  static constexpr int kRows = 8;  // outputs a thread
  static constexpr int kThreads = kTileM * kTileN / kRows;
  using Tiles = matmul::Tiles<kTileM, kTileN>;
};
static_assert(Config::kThreads == Config::kTileM * Config::kStep && Config::kThreads == Config::kTileN * Config::kStep);

template <class T, class C>
__global__ void __launch_bounds__(C::kThreads, 1)
    kernel(const T* a, const T* b, Result<T>* c, const Result<T>* bias, Problem p, typename C::Tiles tiles) {
  SHARED_ARRAY(Acc<T>, tile_a, C::kTileM * C::kStep);
  SHARED_ARRAY(Acc<T>, tile_b, C::kStep * C::kTileN);
  const int t = threadIdx.x;
  const int x = t % C::kTileN;             // the thread's column,
  const int y = t / C::kTileN * C::kRows;  // and its first row
  const int a_line = t / C::kStep, a_l = t % C::kStep;
  const int b_line = x, b_l = t / C::kTileN;

  for (int64_t tile = blockIdx.x; tile < tiles.count; tile += gridDim.x) {
    const auto place = tiles.place(tile);
    const Offsets at = offsets_of(p, place.batch);
    const Lines<T> rows = rows_of(a, p, at, place.row);
    const Lines<T> columns = columns_of(b, p, at, place.column);

    Acc<T> sum[C::kRows] = {};
    for (int64_t begin = 0; begin < p.k; begin += C::kStep) {
      if (a_line < rows.count && begin + a_l < p.k) tile_a[t] = static_cast<Acc<T>>(*rows.at(a_line, begin + a_l));
      if (b_line < columns.count && begin + b_l < p.k)
        tile_b[t] = static_cast<Acc<T>>(*columns.at(b_line, begin + b_l));
      __syncthreads();
      along_step<C::kStep>(p.k - begin, [&](int l) {
        const Acc<T> factor = tile_b[l * C::kTileN + x];
#pragma unroll
        for (int i = 0; i < C::kRows; ++i) sum[i] = multiply_add(tile_a[(y + i) * C::kStep + l], factor, sum[i]);
      });
      __syncthreads();
    }
    const int64_t column = place.column + x;
    Result<T>* to = c + at.c + (place.row + y) * p.n + column;
#pragma unroll
    for (int i = 0; i < C::kRows; ++i) {
      if (y + i < rows.count && x < columns.count) to[i * p.n] = round_to<Result<T>>(with_bias(sum[i], bias, column));
    }
  }
}

cudaError_t launch_one(const Call& call) {
  return dispatch_dtype(call.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    static_assert(has_shape<Config>(tiled_1d::shape(kDType<T>, 0)));
    return launch_tiles<T, Config::Tiles>(&kernel<T, Config>, call);
  });
}

const Rung<launch_one> rung("tiled_1d");

}  // namespace treduce::matmul::tiled_1d
