// Idea: the tensor cores multiply float64 too, with fused multiply-adds that round as the plain cores' do, at twice their
// rate. Nothing is given up, so nothing has to be asked for.
//
// After:   mma, whose pipelines it shares. ldmatrix moves 16-bit elements in fours of 32-bit words and is of no use here: a
//          lane loads its elements one by one, from chunks that are swizzled in pairs, so that 16 lanes meet every bank
//          once.
// Mapping: a block of 8 warps a tile of 128 x 128 outputs, a warp 64 x 32 of it: 64 sums, in 128 registers a lane. A stage
//          holds 16 steps of k.
// Bound:   the tensor cores: 128 fused multiply-adds a cycle and multiprocessor on sm_90.
// Next:    split_fp16 gets float32's accuracy from cores that are fifteen times faster than these.
// Source:  NVIDIA, PTX ISA: mma for float64; A. Kerr et al., CUTLASS.
#include "../staged.cuh"

namespace treduce::matmul::mma_f64 {

using namespace staged;

struct Shape {
  static constexpr int kTileM = 128, kTileN = 128, kMostStages = 4;
  static constexpr int kWarpM = 64, kWarpN = 32;  // outputs of a warp
  static constexpr int kThreads = kTileM / kWarpM * (kTileN / kWarpN) * 32;
  static constexpr int kGroup = 8;  // rows of tiles that are walked down together
  static constexpr int kStageBytes = (kTileM + kTileN) * kRowBytes;
  static constexpr int kSteps = 4;  // multiplications along the k of a stage, 4 each
};

// Where this lane's element (line l / 4, k l % 4) lies, of lines that begin at a multiple of 16.
template <bool kAlongK>
TREDUCE_DEVICE int place_of_lane(int line) {
  const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  if (kAlongK) return (line + g) * kRowBytes + (t / 2 ^ swizzle<double>(g)) * kChunkBytes + t % 2 * 8;
  return (line + t) * kRowBytes + (g / 2 ^ swizzle<double>(t)) * kChunkBytes + g % 2 * 8;
}

// The element `lines` (a multiple of 8) and `k` (of 4) further.
template <bool kAlongK>
TREDUCE_DEVICE double load(const char* tile, int place, int lines, int k) {
  const int at =
      kAlongK ? (place ^ k * 8) + lines * kRowBytes : (place ^ lines % 16 * 8) + (lines / 16 * 16 + k) * kRowBytes;
  return *reinterpret_cast<const double*>(tile + at);
}

template <bool kAAlongK, bool kBAlongK>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    kernel(Source a, Source b, double* c, const double* bias, int64_t m, int64_t n, int inner_batches, int stages,
           Tiles<Shape::kTileM, Shape::kTileN> tiles) {
#ifdef TREDUCE_MMA
  using CopiesA = Copies<double, Shape::kTileM, kAAlongK, Shape::kThreads>;
  using CopiesB = Copies<double, Shape::kTileN, kBAlongK, Shape::kThreads>;
  constexpr int kM = Shape::kWarpM / 16, kN = Shape::kWarpN / 8;  // fragments of a warp
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int warp_m = warp % (Shape::kTileM / Shape::kWarpM) * Shape::kWarpM;
  const int warp_n = warp / (Shape::kTileM / Shape::kWarpM) * Shape::kWarpN;
  char* const shared = dynamic_shared<char>();
  const int place_a = place_of_lane<kAAlongK>(warp_m), place_b = place_of_lane<kBAlongK>(warp_n);

  for (int64_t tile = blockIdx.x; tile < tiles.count; tile += gridDim.x) {
    const auto place = tiles.place_in_groups<Shape::kGroup>(tile);
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
    pipeline<Shape::kSteps>(CopiesA(a, place.row, batch_x, batch_y), CopiesB(b, place.column, batch_x, batch_y),
                            ptx::shared_address(shared), stages, (a.depth + kDepth<double> - 1) / kDepth<double>,
                            load_fragments, multiply);

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
  return launch_stages<Shape, double>(call,
                                      [](auto a_along_k, auto b_along_k) { return &kernel<a_along_k(), b_along_k()>; });
}

const Rung<launch_one> rung("mma_f64");

}  // namespace treduce::matmul::mma_f64
