// Idea: tensor cores. A warp multiplies 16 x 16 matrices as one instruction, on fragments whose layout nobody needs to know:
// load_matrix_sync fills them from shared memory, mma_sync multiplies, store_matrix_sync writes them back.
//
// After:   tiled; tiles in shared memory as there, but rows are padded by 16 bytes, since a fragment reads columns of rows.
// Mapping: a block of 8 warps a tile of 128 x 128 outputs; a warp owns 64 x 32 of it, as 4 x 2 fragments of sums, and each
//          fragment of A and B that it loads is used two or four times. Sums leave through shared memory, which has the
//          layout that the fragments hide.
// Bound:   waiting: all threads load a tile, meet, multiply, meet. The tensor cores rest while memory answers, and only the
//          other block of the multiprocessor fills the gap.
// Next:    mma knows the layout, loads ahead, and needs neither padding nor a detour for the results.
// Source:  NVIDIA, CUDA Programming Guide: warp matrix functions.
#include <mma.h>

#include "../padded_tile.cuh"

namespace treduce::matmul::wmma {

struct Shape {
  static constexpr int kTileM = 128, kTileN = 128, kDepth = 32;
  static constexpr int kWarpM = 64, kWarpN = 32;  // outputs of a warp
  static constexpr int kThreads = kTileM / kWarpM * (kTileN / kWarpN) * 32;
  static constexpr int kBand = 8;    // rows of tiles that are walked down together
  static constexpr int kBlocks = 2;  // a multiprocessor
};

template <class T, bool kAAlongK, bool kBAlongK>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kBlocks)
    kernel(Source<T> a, Source<T> b, T* c, const T* bias, Problem p, Tiles<Shape::kTileM, Shape::kTileN> tiles) {
#ifdef TREDUCE_WMMA
  using TileA = Tile<T, Shape::kTileM, Shape::kDepth, Shape::kThreads, kAAlongK>;
  using TileB = Tile<T, Shape::kTileN, Shape::kDepth, Shape::kThreads, kBAlongK>;
  constexpr int kM = Shape::kWarpM / kSide, kN = Shape::kWarpN / kSide;  // fragments of a warp
  constexpr int kWarps = Shape::kThreads / 32, kWarpsN = Shape::kTileN / Shape::kWarpN;
  static_assert(kWarps * Patch::kBytes <= TileA::kBytes + TileB::kBytes);
  SHARED_ARRAY(Unit, memory, (TileA::kBytes + TileB::kBytes) / kAlignment);
  T* const tile_a = reinterpret_cast<T*>(memory);
  T* const tile_b = reinterpret_cast<T*>(memory + TileA::kBytes / kAlignment);
  const int warp = threadIdx.x / 32;
  const int warp_m = warp / kWarpsN * Shape::kWarpM, warp_n = warp % kWarpsN * Shape::kWarpN;

  for (int64_t tile = blockIdx.x; tile < tiles.count; tile += gridDim.x) {
    const auto place = tiles.place<Shape::kBand>(tile);
    const Offsets at = offsets_of(p, place.batch);
    const int rows = static_cast<int>(min(p.m - place.row, int64_t(Shape::kTileM)));
    const int columns = static_cast<int>(min(p.n - place.column, int64_t(Shape::kTileN)));
    const T* from_a = TileA::first(a, at.a, place.row);
    const T* from_b = TileB::first(b, at.b, place.column);
    SumFragment<T> sum[kM][kN];
#pragma unroll
    for (int i = 0; i < kM; ++i) {
#pragma unroll
      for (int j = 0; j < kN; ++j) fill_fragment(sum[i][j], 0.0f);
    }
    for (int64_t depth = p.k; depth > 0; depth -= Shape::kDepth) {
      TileA::load(tile_a, from_a, a, rows, depth);
      TileB::load(tile_b, from_b, b, columns, depth);
      from_a += Shape::kDepth * a.depth_stride;
      from_b += Shape::kDepth * b.depth_stride;
      __syncthreads();
#pragma unroll 1
      for (int k = 0; k < Shape::kDepth; k += Kind<T>::kDepth) {
        FragmentA<T, kAAlongK> fragment_a;
        FragmentB<T, kBAlongK> fragment_b[kN];
#pragma unroll
        for (int j = 0; j < kN; ++j) {
          load_matrix_sync(fragment_b[j], TileB::at(tile_b, warp_n + j * kSide, k), TileB::kPitch);
        }
#pragma unroll
        for (int i = 0; i < kM; ++i) {
          load_matrix_sync(fragment_a, TileA::at(tile_a, warp_m + i * kSide, k), TileA::kPitch);
#pragma unroll
          for (int j = 0; j < kN; ++j) mma_sync(sum[i][j], fragment_a, fragment_b[j], sum[i][j]);
        }
      }
      __syncthreads();
    }

    // A fragment at a time, by way of a patch of shared memory.
    float* const patch = reinterpret_cast<float*>(memory) + warp * (Patch::kBytes / sizeof(float));
    T* const to = c + at.c + place.row * p.n + place.column;
    const T* const addends = bias == nullptr ? nullptr : bias + place.column;
#pragma unroll
    for (int i = 0; i < kM; ++i) {
#pragma unroll
      for (int j = 0; j < kN; ++j) {
        store_matrix_sync(patch, sum[i][j], Patch::kPitch, nvcuda::wmma::mem_row_major);
        __syncwarp();
        Patch::store(patch, to, p.n, addends, warp_m + i * kSide, warp_n + j * kSide, rows, columns);
        __syncwarp();
      }
    }
    __syncthreads();  // the patches lie where the next tiles will
  }
#endif
}

template <class T>
cudaError_t launch_type(const Call& call) {
  const Problem& p = call.problem;
  const Way way_a = call.prepared.way_a, way_b = call.prepared.way_b;
  const Source<T> a{static_cast<const T*>(call.a), p.a_row, p.a_column, is_vectors(way_a)};
  const Source<T> b{static_cast<const T*>(call.b), p.b_column, p.b_row, is_vectors(way_b)};
  static_assert(has_shape<Shape>(shape(kDType<T>, 0)));
  return with_directions</*kEither=*/true>(is_along_k(way_a), is_along_k(way_b), [&](auto a_along_k, auto b_along_k) {
    return launch(&kernel<T, a_along_k(), b_along_k()>, call.step(0), a, b, static_cast<T*>(call.c),
                  static_cast<const T*>(call.bias), p, Tiles<Shape::kTileM, Shape::kTileN>(p));
  });
}

cudaError_t launch_one(const Call& call) {
  switch (call.dtype) {
    case DType::float16: return launch_type<float16>(call);
    case DType::bfloat16: return launch_type<bfloat16>(call);
    default: return launch_type<float>(call);
  }
}

const Rung<launch_one> rung("wmma");

}  // namespace treduce::matmul::wmma
