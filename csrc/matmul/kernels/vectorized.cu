// Idea: whatever moves, moves by 16 bytes: from global memory where the operand allows, and from shared memory always. For
// that, A lies transposed in shared memory: the rows that a thread needs at one place along k are neighbours.
//
// After:   tiled_2d; the same multiply-adds in the same order, hence the same bits.
// Mapping: 16 x 16 threads and 8 x 8 outputs a thread as before, but in squares of 4 x 4 (2 x 2 where an element has 8
//          bytes), which one load each of A and B serves. Any strides and alignment: what cannot be read by 16 bytes is read
//          by elements, along the direction in which its neighbours lie (stage.cuh).
// Bound:   a warp is 2 rows of 16 threads, so it reads 2 fragments of A but 16 of B, whose banks are then busy longest; and
//          everybody waits while tiles are on their way.
// Next:    warp_tiled gives a warp a squarer piece.
// Source:  Simon Boehm, How to Optimize a CUDA Matmul Kernel for cuBLAS-like Performance: a Worklog (2022).
#include "../../primitives/shared.cuh"
#include "../outputs.cuh"

namespace treduce::matmul::vectorized {

template <class T>
struct Config {
  static constexpr int kSide = 16;  // threads each way
  static constexpr int kRows = sizeof(T) == 8 ? 4 : 8, kColumns = kRows;
  static constexpr int kTileM = kSide * kRows, kTileN = kSide * kColumns, kStep = kVectorStep<T>;
  static constexpr int kThreads = kSide * kSide;
  static constexpr int kGap = kSide * kFragment<T>;  // between a thread's fragments
  // A multiprocessor's, so that one multiplies while the other waits: 128 registers, which bytes would spill.
  static constexpr int kBlocks = sizeof(T) == 1 ? 1 : 2;
  using Tiles = matmul::Tiles<kTileM, kTileN>;
  using Outputs = matmul::Outputs<T, kRows, kColumns, kGap, kGap>;
  using StageA = Stage<T, kTileM, kStep, kThreads>;
  using StageB = Stage<T, kTileN, kStep, kThreads>;
};

template <class T, class C>
__global__ void __launch_bounds__(C::kThreads, C::kBlocks)
    kernel(const T* a, const T* b, Result<T>* c, const Result<T>* bias, Problem p, typename C::Tiles tiles) {
  SHARED_ARRAY(int4, memory_a, C::StageA::kSize / kFragment<T>);
  SHARED_ARRAY(int4, memory_b, C::StageB::kSize / kFragment<T>);
  const auto tile_a = reinterpret_cast<Acc<T>*>(memory_a);
  const auto tile_b = reinterpret_cast<Acc<T>*>(memory_b);
  const int x = threadIdx.x % C::kSide * kFragment<T>;
  const int y = threadIdx.x / C::kSide * kFragment<T>;

  for (int64_t tile = blockIdx.x; tile < tiles.count; tile += gridDim.x) {
    const auto place = tiles.place(tile);
    const Offsets at = offsets_of(p, place.batch);
    typename C::StageA rows(rows_of(a, p, at, place.row));
    typename C::StageB columns(columns_of(b, p, at, place.column));
    Result<T>* const to = c + at.c + (place.row + y) * p.n + place.column + x;

    typename C::Outputs outputs;
    outputs.clear();
    for (int64_t left = p.k; left > 0; left -= C::kStep) {
      rows.copy(tile_a, left);
      columns.copy(tile_b, left);
      __syncthreads();
      along_step<C::kStep>(left, [&](int l) {
        typename C::Outputs::Factors factors;
        factors.load(tile_a + l * C::StageA::kRow + y, tile_b + l * C::StageB::kRow + x);
        outputs.add(factors);
      });
      __syncthreads();
    }
    if (bias != nullptr) outputs.add_bias(bias, column_of(to, c, p.n), p.n);
    outputs.store(to, p.n, rows.count - y, columns.count - x);
  }
}

cudaError_t launch_one(const Call& call) {
  return dispatch_dtype(call.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    static_assert(has_shape<Config<T>>(square_of_outputs(kDType<T>, 0)));
    return launch_tiles<T, typename Config<T>::Tiles>(&kernel<T, Config<T>>, call);
  });
}

const Rung<launch_one> rung("vectorized");

}  // namespace treduce::matmul::vectorized
