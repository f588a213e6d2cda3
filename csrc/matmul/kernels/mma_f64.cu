// Idea: the tensor cores multiply float64 too, with fused multiply-adds that round as the plain cores' do, at twice their
// rate. Nothing is given up, so nothing has to be asked for.
//
// After:   mma, whose pipelines it shares. ldmatrix moves 16-bit elements in fours of 32-bit words and is of no use here: a
//          lane loads its elements one by one, from chunks that are swizzled in pairs, so that 16 lanes meet every bank
//          once.
// Mapping: a block of 8 warps a tile of 128 x 128 outputs, a warp 64 x 32 of it: 64 sums, in 128 registers a lane. A stage
//          holds 16 steps of k. Where that leaves multiprocessors idle, smaller tiles, down to 16 x 16, with more stages: the
//          sums are those of fused multiply-adds in order, whatever the tile.
// Bound:   the tensor cores: 128 fused multiply-adds a cycle and multiprocessor on sm_90. For few rows the memory.
// Next:    wgmma multiplies the narrower dtypes from shared memory, without fragments in registers.
// Source:  NVIDIA, PTX ISA: mma for float64; A. Kerr et al., CUTLASS.
#include "../staged.cuh"

namespace treduce::matmul::mma_f64 {

using namespace staged;

// One of the shapes of shapes.h.
template <int kIndex>
struct Tiling {
  static constexpr Shape kShape = kShapes[kIndex];
  static constexpr int kTileM = kShape.tile_m, kTileN = kShape.tile_n;
  static constexpr int kWarpM = kShape.warp_m, kWarpN = kShape.warp_n;  // outputs of a warp
  static constexpr int kThreads = kShape.threads, kBlocks = kShape.blocks;
  static constexpr int kStages = kShape.fits ? kShape.stages : 0;  // 0: as many as were prepared
  static constexpr int kBand = 8;                                  // rows of tiles that are walked down together
  static constexpr int kSteps = 4;                                 // multiplications along the k of a stage, 4 each
};

// Where this lane's element (line l / 4, k l % 4) lies, of the kLines lines from a multiple of kLines on: of 16, or of 8.
template <bool kAlongK, int kLines>
TREDUCE_DEVICE int place_of_lane(int line) {
  const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  if (kAlongK) return (line + g) * kRowBytes + (t / 2 ^ swizzle<double>(g)) * kChunkBytes + t % 2 * 8;
  const int within = kLines % 16 == 0 ? 0 : line % 16;
  return (line - within + t) * kRowBytes + ((within + g) / 2 ^ swizzle<double>(t)) * kChunkBytes + g % 2 * 8;
}

// The element `lines` (a multiple of 8) and `k` (of 4) further.
template <bool kAlongK>
TREDUCE_DEVICE double load(const char* tile, int place, int lines, int k) {
  const int at =
      kAlongK ? (place ^ k * 8) + lines * kRowBytes : (place ^ lines % 16 * 8) + (lines / 16 * 16 + k) * kRowBytes;
  return *reinterpret_cast<const double*>(tile + at);
}

template <class S, bool kAAlongK, bool kBAlongK>
__global__ void __launch_bounds__(S::kThreads, S::kBlocks)
    kernel(Source a, Source b, double* c, const double* bias, int64_t m, int64_t n, int inner_batches, int stages,
           Tiles<S::kTileM, S::kTileN> tiles) {
#ifdef TREDUCE_MMA
  using CopiesA = Copies<double, S::kTileM, kAAlongK, S::kThreads>;
  using CopiesB = Copies<double, S::kTileN, kBAlongK, S::kThreads>;
  constexpr int kM = S::kWarpM / 16, kN = S::kWarpN / 8;  // fragments of a warp
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int warp_m = warp % (S::kTileM / S::kWarpM) * S::kWarpM;
  const int warp_n = warp / (S::kTileM / S::kWarpM) * S::kWarpN;
  char* const shared = dynamic_shared<char>();
  const int place_a = place_of_lane<kAAlongK, S::kWarpM>(warp_m), place_b = place_of_lane<kBAlongK, S::kWarpN>(warp_n);

  for (int64_t tile = blockIdx.x; tile < tiles.count; tile += gridDim.x) {
    const auto place = tiles.template place<S::kBand>(tile);
    const int64_t batch_x = place.batch / inner_batches, batch_y = place.batch % inner_batches;
    double acc[kM][kN][4] = {};
    double from_a[2][kM][2], from_b[2][kN];
    const auto load_fragments = [&](int buffer, uint32_t stage, int step) {
#pragma unroll
      for (int i = 0; i < kM; ++i) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          from_a[buffer][i][half] = load<kAAlongK>(shared + stage, place_a, i * 16 + half * 8, step * 4);
        }
      }
#pragma unroll
      for (int j = 0; j < kN; ++j) {
        from_b[buffer][j] = load<kBAlongK>(shared + stage + CopiesA::kBytes, place_b, j * 8, step * 4);
      }
    };
    const auto multiply = [&](int buffer) {
#pragma unroll
      for (int j = 0; j < kN; ++j) {
#pragma unroll
        for (int i = 0; i < kM; ++i) {
          ptx::multiply(acc[i][j], from_a[buffer][i], from_b[buffer][j]);
        }
      }
    };
    const int depth_steps = (a.depth + kDepth<double> - 1) / kDepth<double>;
    CopyRing<S::kSteps, S::kStages, CopiesA, CopiesB> ring(CopiesA(a, place.row, batch_x, batch_y),
                                                           CopiesB(b, place.column, batch_x, batch_y),
                                                           ptx::shared_address(shared), stages, depth_steps);
    ring.fill();
    load_fragments(0, ring.reading(), 0);
    for (int left = depth_steps; left > 0; --left) {
#pragma unroll
      for (int step = 0; step < S::kSteps; ++step) {
        if (step == S::kSteps - 1) ring.advance();
        load_fragments((step + 1) % 2, ring.reading(), (step + 1) % S::kSteps);
        ring.copy_part(step);
        multiply(step % 2);
      }
    }

    const int64_t column = place.column + warp_n + lane % 4 * 2;  // this lane's first
    add_bias(acc, bias, column, n);
    double* const matrix = c + place.batch * m * n;
    const bool pairs = aligned_pairs(c, n);
#pragma unroll
    for (int i = 0; i < kM; ++i) {
#pragma unroll
      for (int j = 0; j < kN; ++j) {
        store_fragment(acc[i][j], matrix, place.row + warp_m + i * 16 + lane / 4, column + j * 8, m, n, pairs);
      }
    }
    __syncthreads();  // the last reads of this tile's stages come before the next tile's copies
  }
#endif
}

cudaError_t launch_one(const Call& call) {
  return with_shape<kShapeCount>(call, [&](auto index) {
    using S = Tiling<index()>;
    return launch_stages<S, double>(
        call, [](auto a_along_k, auto b_along_k) { return &kernel<S, a_along_k(), b_along_k()>; });
  });
}

const Rung<launch_one> rung("mma_f64");

}  // namespace treduce::matmul::mma_f64
