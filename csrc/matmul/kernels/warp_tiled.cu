// Idea: a tile for the block, within it a tile for each warp, within that a tile for each thread. The middle level decides
// what a warp reads at once: 8 x 4 threads need 8 fragments of A and 4 of B, where 2 x 16 needed 2 and 16.
//
// After:   vectorized; the same multiply-adds in the same order, hence the same bits.
// Mapping: 8 warps, 2 down and 4 across, have 64 x 32 outputs each, 8 x 8 a thread (half as many each way where an element
//          has 8 bytes). Lanes are numbered so that those that the hardware serves together share fragments (outputs.cuh).
// Bound:   the time in which tiles are on their way and nobody multiplies, as far as another block of the multiprocessor
//          does not fill it.
// Next:    pipelined copies the next tiles while it multiplies these.
// Source:  NVIDIA, CUTLASS documentation: Efficient GEMM in CUDA.
#include "../../primitives/shared.cuh"
#include "../outputs.cuh"

namespace treduce::matmul::warp_tiled {

template <class T>
struct Config {
  static constexpr int kWarpsM = 2, kWarpsN = 4;
  static constexpr int kRows = sizeof(T) == 8 ? 4 : 8, kColumns = kRows;  // a thread
  static constexpr int kWarpM = WarpShape::kRows * kRows, kWarpN = WarpShape::kColumns * kColumns;
  static constexpr int kTileM = kWarpsM * kWarpM, kTileN = kWarpsN * kWarpN, kStep = kVectorStep<T>;
  static constexpr int kThreads = 32 * kWarpsM * kWarpsN;
  // A multiprocessor's, so that one multiplies while the other waits: 128 registers, which 32-bit integers would spill.
  static constexpr int kBlocks = std::is_same_v<Acc<T>, uint32_t> ? 1 : 2;
  using Tiles = matmul::Tiles<kTileM, kTileN>;
  using Outputs =
      matmul::Outputs<T, kRows, kColumns, WarpShape::kRows * kFragment<T>, WarpShape::kColumns * kFragment<T>>;
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
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int y = warp / C::kWarpsN * C::kWarpM + WarpShape::row(lane) * kFragment<T>;
  const int x = warp % C::kWarpsN * C::kWarpN + WarpShape::column(lane) * kFragment<T>;

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

const Rung<launch_one> rung("warp_tiled");

}  // namespace treduce::matmul::warp_tiled
