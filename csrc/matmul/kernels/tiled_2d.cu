// Idea: a thread computes a rectangle of outputs. For kRows + kColumns elements that it reads from shared memory it does
// kRows * kColumns multiply-adds: the arithmetic grows faster than the loads.
//
// After:   tiled_1d; the same multiply-adds in the same order, hence the same bits.
// Mapping: 16 x 16 threads compute 128 x 128 outputs, 8 x 8 a thread (half as many each way where an element has 8 bytes).
//          Thread (x, y) owns columns x, x + 16, ... and rows y, y + 16, ...: neighbouring threads read neighbouring banks.
// Bound:   instructions: 16 loads of one element for 64 multiply-adds, and as many again to fill the tiles. Each takes a
//          place in the queue that a multiply-add could have had.
// Next:    vectorized moves four elements with an instruction.
// Source:  Simon Boehm, How to Optimize a CUDA Matmul Kernel for cuBLAS-like Performance: a Worklog (2022); Vasily Volkov
//          and James Demmel, Benchmarking GPUs to Tune Dense Linear Algebra (2008).
#include "../../primitives/shared.cuh"
#include "../stage.cuh"

namespace treduce::matmul::tiled_2d {

template <class T>
struct Config {
  static constexpr int kSide = 16;  // threads each way
  static constexpr int kRows = sizeof(T) == 8 ? 4 : 8, kColumns = kRows;
  static constexpr int kTileM = kSide * kRows, kTileN = kSide * kColumns, kStep = 8;
  static constexpr int kThreads = kSide * kSide;
  static constexpr int kBlocks = 2;  // a multiprocessor's, so that one multiplies while the other waits: 128 registers
  using Tiles = matmul::Tiles<kTileM, kTileN>;
};

template <class T, class C>
__global__ void __launch_bounds__(C::kThreads, C::kBlocks)
    kernel(const T* a, const T* b, Result<T>* c, const Result<T>* bias, Problem p, typename C::Tiles tiles) {
  SHARED_ARRAY(Acc<T>, tile_a, C::kTileM * C::kStep);
  SHARED_ARRAY(Acc<T>, tile_b, C::kStep * C::kTileN);
  const int t = threadIdx.x;
  const int x = t % C::kSide;
  const int y = t / C::kSide;

  for (int64_t tile = blockIdx.x; tile < tiles.count; tile += gridDim.x) {
    const auto place = tiles.place(tile);
    const Offsets at = offsets_of(p, place.batch);
    const Lines<T> rows = rows_of(a, p, at, place.row);
    const Lines<T> columns = columns_of(b, p, at, place.column);

    Acc<T> sum[C::kRows][C::kColumns] = {};
    for (int64_t begin = 0; begin < p.k; begin += C::kStep) {
#pragma unroll
      for (int e = t; e < C::kTileM * C::kStep; e += C::kThreads) {
        const int line = e / C::kStep, l = e % C::kStep;
        if (line < rows.count && begin + l < p.k) tile_a[e] = static_cast<Acc<T>>(*rows.at(line, begin + l));
      }
#pragma unroll
      for (int e = t; e < C::kStep * C::kTileN; e += C::kThreads) {
        const int line = e % C::kTileN, l = e / C::kTileN;
        if (line < columns.count && begin + l < p.k) tile_b[e] = static_cast<Acc<T>>(*columns.at(line, begin + l));
      }
      __syncthreads();
      along_step<C::kStep>(p.k - begin, [&](int l) {
        Acc<T> factor_a[C::kRows], factor_b[C::kColumns];
#pragma unroll
        for (int i = 0; i < C::kRows; ++i) factor_a[i] = tile_a[(y + i * C::kSide) * C::kStep + l];
#pragma unroll
        for (int j = 0; j < C::kColumns; ++j) factor_b[j] = tile_b[l * C::kTileN + x + j * C::kSide];
#pragma unroll
        for (int i = 0; i < C::kRows; ++i) {
#pragma unroll
          for (int j = 0; j < C::kColumns; ++j) sum[i][j] = multiply_add(factor_a[i], factor_b[j], sum[i][j]);
        }
      });
      __syncthreads();
    }
    Result<T>* to = c + at.c + (place.row + y) * p.n + place.column + x;
#pragma unroll
    for (int i = 0; i < C::kRows; ++i) {
#pragma unroll
      for (int j = 0; j < C::kColumns; ++j) {
        const int row = i * C::kSide, column = j * C::kSide;
        if (y + row < rows.count && x + column < columns.count) {
          to[row * p.n + column] = round_to<Result<T>>(with_bias(sum[i][j], bias, place.column + x + column));
        }
      }
    }
  }
}

cudaError_t launch_one(const Call& call) {
  return dispatch_dtype(call.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    static_assert(has_shape<Config<T>>(square_of_outputs(kDType<T>, 0)));
    return launch_tiles<T, typename Config<T>::Tiles>(&kernel<T, Config<T>>, call);
  });
}

const Rung<launch_one> rung("tiled_2d");

}  // namespace treduce::matmul::tiled_2d
