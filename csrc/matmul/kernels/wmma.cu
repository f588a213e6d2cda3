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

#include "../../primitives/shared.cuh"
#include "../rung.h"

namespace treduce::matmul::wmma {

namespace fragments = nvcuda::wmma;

// bfloat16 and tfloat32 came with sm_80; for an older chip the kernel is empty.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
#define TREDUCE_WMMA 1
#endif

struct Shape {
  static constexpr int kTileM = 128, kTileN = 128, kDepth = 32;
  static constexpr int kWarpM = 64, kWarpN = 32;  // outputs of a warp
  static constexpr int kThreads = kTileM / kWarpM * (kTileN / kWarpN) * 32;
  static constexpr int kGroup = 8;   // rows of tiles that are walked down together
  static constexpr int kBlocks = 2;  // a multiprocessor
};

constexpr int kAlignment = 32;  // bytes: of every fragment in shared memory
struct alignas(kAlignment) Unit {
  char bytes[kAlignment];
};

// How a fragment names the element type, and its k.
template <class T>
struct Kind;
template <>
struct Kind<float16> {
  using Element = __half;
  using Precision = __half;
  static constexpr int kDepth = 16;
};
template <>
struct Kind<bfloat16> {
  using Element = __nv_bfloat16;
  using Precision = __nv_bfloat16;
  static constexpr int kDepth = 16;
};
template <>
struct Kind<float> {  // read with ten bits of fraction
  using Element = float;
#ifdef TREDUCE_WMMA
  using Precision = fragments::precision::tf32;
#else
  using Precision = float;
#endif
  static constexpr int kDepth = 8;
};

TREDUCE_DEVICE float rounded(float value) {
#ifdef TREDUCE_WMMA
  return fragments::__float_to_tf32(value);
#else
  return value;
#endif
}
TREDUCE_DEVICE float16 rounded(float16 value) { return value; }
TREDUCE_DEVICE bfloat16 rounded(bfloat16 value) { return value; }

// One operand of a matrix product. Lines are rows of A, columns of B.
template <class T>
struct Source {
  const T* data;
  int64_t line_stride, depth_stride;
  bool wide;  // chunks of 16 bytes, at multiples of kChunk along the unit stride, may be read at once
};

// kLines lines of Shape::kDepth elements in shared memory, the dimension that is contiguous in memory contiguous here.
template <class T, int kLines, bool kAlongK>
struct Tile {
  static constexpr int kChunk = 16 / sizeof(T);
  static constexpr int kInner = kAlongK ? Shape::kDepth : kLines, kOuter = kAlongK ? kLines : Shape::kDepth;
  static constexpr int kPitch = kInner + kChunk;
  static constexpr int kBytes = kOuter * kPitch * static_cast<int>(sizeof(T));
  static_assert(kBytes % kAlignment == 0);

  TREDUCE_DEVICE static int place(int line, int k) { return kAlongK ? line * kPitch + k : k * kPitch + line; }

  // The rows of chunks that the block's threads copy at once, and this thread's place among them.
  static constexpr int kChunksARow = kInner / kChunk, kRowsAtOnce = Shape::kThreads / kChunksARow;
  TREDUCE_DEVICE static int inner() { return threadIdx.x % kChunksARow * kChunk; }
  TREDUCE_DEVICE static int outer() { return threadIdx.x / kChunksARow; }

  // Where this thread reads first, of the lines that begin at `line`.
  TREDUCE_DEVICE static const T* first(const Source<T>& source, int64_t matrix, int64_t line) {
    return source.data + matrix + (line + (kAlongK ? outer() : inner())) * source.line_stride +
           (kAlongK ? inner() : outer()) * source.depth_stride;
  }

  // All threads of the block fill the tile; zeros where no `lines` or `depth` are left.
  TREDUCE_DEVICE static void load(T* tile, const T* from, const Source<T>& source, int lines, int64_t depth_left) {
    const int depth = static_cast<int>(min(depth_left, int64_t(Shape::kDepth)));
    const int64_t inner_stride = kAlongK ? source.depth_stride : source.line_stride;
    const int64_t outer_stride = kAlongK ? source.line_stride : source.depth_stride;
    const int inner_left = (kAlongK ? depth : lines) - inner();
    const int outer_left = (kAlongK ? lines : depth) - outer();
    T* to = tile + outer() * kPitch + inner();
    if (source.wide && lines == kLines && depth == Shape::kDepth) {
      alignas(16) T values[kOuter / kRowsAtOnce][kChunk];
#pragma unroll
      for (auto& chunk : values) {
        *reinterpret_cast<uint4*>(chunk) = *reinterpret_cast<const uint4*>(from);
        from += kRowsAtOnce * outer_stride;
      }
#pragma unroll
      for (auto& chunk : values) {
#pragma unroll
        for (T& value : chunk) value = rounded(value);
        *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(chunk);
        to += kRowsAtOnce * kPitch;
      }
    } else {
#pragma unroll 1
      for (int row = 0; row < kOuter; row += kRowsAtOnce) {
        const int left = row < outer_left ? inner_left : 0;
        const T* at = from;
#pragma unroll
        for (int i = 0; i < kChunk; ++i, at += inner_stride) to[i] = i < left ? rounded(*at) : T{};
        from += kRowsAtOnce * outer_stride;
        to += kRowsAtOnce * kPitch;
      }
    }
  }
};

template <class T, bool kAAlongK, bool kBAlongK>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kBlocks)
    kernel(Source<T> a, Source<T> b, T* c, const T* bias, Problem p, Tiles<Shape::kTileM, Shape::kTileN> tiles) {
#ifdef TREDUCE_WMMA
  using TileA = Tile<T, Shape::kTileM, kAAlongK>;
  using TileB = Tile<T, Shape::kTileN, kBAlongK>;
  using Element = typename Kind<T>::Element;
  using Precision = typename Kind<T>::Precision;
  constexpr int kK = Kind<T>::kDepth;
  constexpr int kM = Shape::kWarpM / 16, kN = Shape::kWarpN / 16;  // fragments of a warp
  constexpr int kPatch = 16, kPatchPitch = kPatch + 4;
  constexpr int kPatchBytes = kPatch * kPatchPitch * sizeof(float);
  static_assert(Shape::kThreads / 32 * kPatchBytes <= TileA::kBytes + TileB::kBytes);
  SHARED_ARRAY(Unit, memory, (TileA::kBytes + TileB::kBytes) / kAlignment);
  T* const tile_a = reinterpret_cast<T*>(memory);
  T* const tile_b = reinterpret_cast<T*>(memory + TileA::kBytes / kAlignment);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int warp_m = warp / (Shape::kTileN / Shape::kWarpN) * Shape::kWarpM;
  const int warp_n = warp % (Shape::kTileN / Shape::kWarpN) * Shape::kWarpN;

  for (int64_t tile = blockIdx.x; tile < tiles.count; tile += gridDim.x) {
    const auto place = tiles.place_in_groups<Shape::kGroup>(tile);
    const Offsets at = offsets_of(p, place.batch);
    const T* from_a = TileA::first(a, at.a, place.row);
    const T* from_b = TileB::first(b, at.b, place.column);
    T* const to = c + at.c + place.row * p.n + place.column;
    const int rows = static_cast<int>(min(p.m - place.row, int64_t(Shape::kTileM)));
    const int columns = static_cast<int>(min(p.n - place.column, int64_t(Shape::kTileN)));
    fragments::fragment<fragments::accumulator, 16, 16, kK, float> acc[kM][kN];
#pragma unroll
    for (int i = 0; i < kM; ++i) {
#pragma unroll
      for (int j = 0; j < kN; ++j) fragments::fill_fragment(acc[i][j], 0.0f);
    }
    for (int64_t depth = p.k; depth > 0; depth -= Shape::kDepth) {
      TileA::load(tile_a, from_a, a, rows, depth);
      TileB::load(tile_b, from_b, b, columns, depth);
      from_a += Shape::kDepth * a.depth_stride;
      from_b += Shape::kDepth * b.depth_stride;
      __syncthreads();
#pragma unroll 1
      for (int k = 0; k < Shape::kDepth; k += kK) {
        using RowMajor = fragments::row_major;
        using ColumnMajor = fragments::col_major;
        fragments::fragment<fragments::matrix_a, 16, 16, kK, Precision,
                            std::conditional_t<kAAlongK, RowMajor, ColumnMajor>>
            fragment_a;
        fragments::fragment<fragments::matrix_b, 16, 16, kK, Precision,
                            std::conditional_t<kBAlongK, ColumnMajor, RowMajor>>
            fragment_b[kN];
#pragma unroll
        for (int j = 0; j < kN; ++j) {
          const T* const corner = tile_b + TileB::place(warp_n + j * 16, k);
          fragments::load_matrix_sync(fragment_b[j], reinterpret_cast<const Element*>(corner), TileB::kPitch);
        }
#pragma unroll
        for (int i = 0; i < kM; ++i) {
          const T* const corner = tile_a + TileA::place(warp_m + i * 16, k);
          fragments::load_matrix_sync(fragment_a, reinterpret_cast<const Element*>(corner), TileA::kPitch);
#pragma unroll
          for (int j = 0; j < kN; ++j) fragments::mma_sync(acc[i][j], fragment_a, fragment_b[j], acc[i][j]);
        }
      }
      __syncthreads();
    }

    float* const patch = reinterpret_cast<float*>(memory) + warp * (kPatchBytes / sizeof(float));
#pragma unroll
    for (int i = 0; i < kM; ++i) {
#pragma unroll
      for (int j = 0; j < kN; ++j) {
        fragments::store_matrix_sync(patch, acc[i][j], kPatchPitch, fragments::mem_row_major);
        __syncwarp();
        const int column = warp_n + j * kPatch + lane % kPatch;
        const bool adds = bias != nullptr && column < columns;
        const float value = adds ? static_cast<float>(bias[place.column + column]) : 0.0f;
#pragma unroll
        for (int r = lane / kPatch; r < kPatch; r += 32 / kPatch) {
          const int row = warp_m + i * kPatch + r;
          if (row < rows && column < columns) {
            const float sum = patch[r * kPatchPitch + lane % kPatch];
            to[row * p.n + column] = round_to<T>(adds ? sum + value : sum);
          }
        }
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
  const auto kernels = is_along_k(way_a) ? (is_along_k(way_b) ? &kernel<T, true, true> : &kernel<T, true, false>)
                                         : (is_along_k(way_b) ? &kernel<T, false, true> : &kernel<T, false, false>);
  static_assert(has_shape<Shape>(shape(kDType<T>, 0)));
  return launch(kernels, call.step(0), a, b, static_cast<T*>(call.c), static_cast<const T*>(call.bias), p,
                Tiles<Shape::kTileM, Shape::kTileN>(p));
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
