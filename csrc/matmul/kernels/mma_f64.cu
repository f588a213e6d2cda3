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
// Next:    split_fp16 gets float32's accuracy from cores that are fifteen times faster than these.
// Source:  NVIDIA, PTX ISA: mma for float64; A. Kerr et al., CUTLASS.
#include "../staged.cuh"

namespace treduce::matmul::mma_f64 {

using namespace staged;

// kStages_: of the ring; 0: as many as fit, up to 4. kBlocks_: a multiprocessor's, that registers and a ring leave room for.
template <int kTileM_, int kTileN_, int kWarpM_, int kWarpN_, int kStages_, int kBlocks_>
struct Shape {
  static constexpr int kTileM = kTileM_, kTileN = kTileN_;
  static constexpr int kWarpM = kWarpM_, kWarpN = kWarpN_;  // outputs of a warp
  static constexpr int kThreads = kTileM / kWarpM * (kTileN / kWarpN) * 32;
  static constexpr int kStages = kStages_, kMostStages = kStages > 0 ? kStages : 4;
  static constexpr int kBlocks = kBlocks_;
  static constexpr int kGroup = 8;  // rows of tiles that are walked down together
  static constexpr int kStageBytes = (kTileM + kTileN) * kRowBytes;
  static constexpr int kSteps = 4;  // multiplications along the k of a stage, 4 each
  static_assert(kStages * kStageBytes <= 99 * 1024, "more than a block has on each chip from sm_80 on");
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
    const auto place = tiles.template place_in_groups<S::kGroup>(tile);
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
    pipeline<S::kSteps, S::kStages>(CopiesA(a, place.row, batch_x, batch_y), CopiesB(b, place.column, batch_x, batch_y),
                                    ptx::shared_address(shared), stages,
                                    (a.depth + kDepth<double> - 1) / kDepth<double>, load_fragments, multiply);

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

using Square128 = Shape<128, 128, 64, 32, 0, 1>;
using Square64 = Shape<64, 64, 32, 32, 4, 2>;
using Square32 = Shape<32, 32, 16, 16, 6, 4>;
using Wide128 = Shape<128, 64, 32, 32, 4, 1>;
using Wide64 = Shape<64, 32, 32, 16, 5, 3>;
using Square16 = Shape<16, 16, 16, 8, 12, 4>;
using Rows16 = Shape<16, 32, 16, 8, 10, 3>;
using Columns16 = Shape<32, 16, 16, 8, 10, 3>;

// Clock cycles that a shape takes, roughly: the tensor cores' on the busiest multiprocessor, at a share `speed` of their 128
// multiply-adds a cycle, and the dependent multiplications of its tiles, of which kBlocks run side by side; or what all
// tiles read from the L2; and what a tile costs besides. Fitted to every shape's time on an NVIDIA H200, 2026-11-21: 1 to
// 512 rows by n and k of 4096 to 11008, squares of 128 to 4096, batches; within 15 %.
template <class S>
double cycles(const Problem& p, int multiprocessors, double speed) {
  constexpr double kLatency = 40;    // of a multiplication, 4 steps of k
  constexpr double kBytes = 36;      // from the L2 a cycle and multiprocessor
  constexpr double kBesides = 1500;  // of a tile
  const int64_t down = ceil_div(p.m, S::kTileM), across = ceil_div(p.n, S::kTileN), tiles = down * across * p.batches;
  const double rounds = static_cast<double>(ceil_div(tiles, multiprocessors));
  const double turns = static_cast<double>(ceil_div(tiles, int64_t(multiprocessors) * S::kBlocks));
  const double k = static_cast<double>(p.k);
  const double multiply = rounds * S::kTileM * S::kTileN * k / (128 * speed);
  const double wait = turns * k / 4 * kLatency;
  const double read = static_cast<double>((p.m * across + p.n * down) * p.batches) * k * 8 / (kBytes * multiprocessors);
  return std::max(multiply + wait, read) + turns * kBesides;
}

template <class S>
cudaError_t launch_shape(const Call& call) {
  return launch_stages<S, double>(call,
                                  [](auto a_along_k, auto b_along_k) { return &kernel<S, a_along_k(), b_along_k()>; });
}

cudaError_t launch_one(const Call& call) {
  struct Choice {
    double cycles;
    cudaError_t (*launch)(const Call&);
  };
  const auto choice = [&](auto shape, double speed) {
    using S = decltype(shape);
    return Choice{cycles<S>(call.problem, call.multiprocessors, speed), &launch_shape<S>};
  };
  const Choice choices[] = {choice(Square128{}, 0.95), choice(Wide128{}, 0.9),  choice(Square64{}, 0.92),
                            choice(Wide64{}, 0.8),     choice(Square32{}, 0.7), choice(Rows16{}, 0.6),
                            choice(Columns16{}, 0.6),  choice(Square16{}, 0.62)};
  const auto less = [](const Choice& x, const Choice& y) { return x.cycles < y.cycles; };
  return std::min_element(std::begin(choices), std::end(choices), less)->launch(call);
}

const Rung<launch_one> rung("mma_f64");

}  // namespace treduce::matmul::mma_f64
