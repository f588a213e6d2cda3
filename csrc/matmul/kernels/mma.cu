// Idea: the matrix instructions themselves. A lane knows which elements of a fragment it holds, so that ldmatrix brings four
// 8 x 8 matrices at a time, copies run several stages ahead of the multiplications, and results go from registers to C.
//
// After:   wmma, which hides the fragments, pads its tiles and waits for every load.
// Mapping: a block of 8 warps a tile of 128 x 256 outputs, a warp 64 x 64 of it: 128 sums a lane. A stage holds 128 bytes of
//          k of every line. While a fragment is multiplied, the next is loaded and the copies of a stage three steps ahead
//          are under way; one barrier a step.
// Bound:   the instruction: on sm_90 a warp by itself feeds its tensor core at about 60 % of what a warp group does. On the
//          way there, shared memory: 64 x 64 outputs a warp need 64 bytes for each 1024 multiply-adds.
// Next:    mma_f64 has the same pipelines for float64; wgmma multiplies from shared memory, without fragments in registers.
// Source:  NVIDIA, PTX ISA: mma and ldmatrix; A. Kerr et al., CUTLASS: software-pipelined warp-level matrix multiply.
#include "../staged.cuh"

namespace treduce::matmul::mma {

using namespace staged;

struct Shape {
  static constexpr int kTileM = kShape.tile_m, kTileN = kShape.tile_n;
  static constexpr int kWarpM = mma::kWarpM, kWarpN = mma::kWarpN;  // outputs of a warp
  static constexpr int kThreads = kShape.threads;
  static constexpr int kBand = 8;   // rows of tiles that are walked down together
  static constexpr int kSteps = 4;  // multiplications along the k of a stage, 32 bytes each
};

template <bool kAlongK>
TREDUCE_DEVICE uint32_t place_of_lane(int line);
template <class T, bool kAlongK>
TREDUCE_DEVICE void load_fragment(uint32_t (&words)[4], ptx::SharedAddress tile, uint32_t place, int index, int step);

template <class T, bool kAAlongK, bool kBAlongK>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    kernel(Source a, Source b, Result<T>* c, const Result<T>* bias, int64_t m, int64_t n, int inner_batches, int stages,
           Tiles<Shape::kTileM, Shape::kTileN> tiles) {
#ifdef TREDUCE_MMA
  using CopiesA = Copies<T, Shape::kTileM, kAAlongK, Shape::kThreads>;
  using CopiesB = Copies<T, Shape::kTileN, kBAlongK, Shape::kThreads>;
  constexpr int kM = Shape::kWarpM / 16, kN = Shape::kWarpN / 16;  // fragments of a warp
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int warp_m = warp % (Shape::kTileM / Shape::kWarpM) * Shape::kWarpM;
  const int warp_n = warp / (Shape::kTileM / Shape::kWarpM) * Shape::kWarpN;
  const ptx::SharedAddress shared = ptx::shared_address(dynamic_shared<char>());
  const uint32_t place_a = place_of_lane<kAAlongK>(warp_m), place_b = place_of_lane<kBAlongK>(warp_n);

  for (int64_t tile = blockIdx.x; tile < tiles.count; tile += gridDim.x) {
    const auto place = tiles.place<Shape::kBand>(tile);
    const int64_t batch_x = place.batch / inner_batches, batch_y = place.batch % inner_batches;
    Acc<T> acc[kM][kN * 2][4] = {};
    uint32_t words_a[2][kM][4], words_b[2][kN][4];
    const auto load = [&](int buffer, uint32_t stage, int step) {
#pragma unroll
      for (int i = 0; i < kM; ++i) {
        load_fragment<T, kAAlongK>(words_a[buffer][i], shared + stage, place_a, i, step);
      }
#pragma unroll
      for (int j = 0; j < kN; ++j) {
        load_fragment<T, kBAlongK>(words_b[buffer][j], shared + stage + CopiesA::kBytes, place_b, j, step);
      }
    };
    const auto multiply = [&](int buffer) {
#pragma unroll
      for (int j = 0; j < kN; ++j) {
        const uint32_t (&from_b)[4] = words_b[buffer][j];
#pragma unroll
        for (int i = 0; i < kM; ++i) {
          ptx::multiply(T{}, acc[i][j * 2], words_a[buffer][i], from_b[0], from_b[2]);
          ptx::multiply(T{}, acc[i][j * 2 + 1], words_a[buffer][i], from_b[1], from_b[3]);
        }
      }
    };

    // Two pipelines: copies run stages ahead, and the next step's fragments are loaded while this one's are multiplied. fill() starts the
    // copies of all stages but one, and waits for the first. advance() waits for the next stage, at a barrier after which nobody reads this
    // one. copy_part(step) starts a part of the copies of the stage that became free, so that they lie between multiplications.
    const int depth_steps = (a.depth + kDepth<T> - 1) / kDepth<T>;
    CopyRing<Shape::kSteps - 1, 0, CopiesA, CopiesB> ring(CopiesA(a, place.row, batch_x, batch_y),
                                                          CopiesB(b, place.column, batch_x, batch_y), shared, stages,
                                                          depth_steps);
    ring.fill();
    load(0, ring.reading(), 0);
    for (int left = depth_steps; left > 0; --left) {
#pragma unroll
      for (int step = 0; step < Shape::kSteps; ++step) {
        if (step == Shape::kSteps - 1) ring.advance();
        load((step + 1) % 2, ring.reading(), (step + 1) % Shape::kSteps);
        ring.copy_part(step);
        multiply(step % 2);
      }
    }

    const int64_t column = place.column + warp_n + lane % 4 * 2;  // this lane's first
    add_bias(acc, bias, column, n);
    Result<T>* const matrix = c + place.batch * m * n;
    const bool pairs = aligned_pairs(c, n);
#pragma unroll
    for (int i = 0; i < kM; ++i) {
#pragma unroll
      for (int j = 0; j < kN * 2; ++j) {
        store_fragment(acc[i][j], matrix, place.row + warp_m + i * 16 + lane / 4, column + j * 8, m, n, pairs);
      }
    }
    __syncthreads();  // the last reads of this tile's stages come before the next tile's copies
  }
#endif
}

// Where this lane's row begins of the fragment of 16 lines and 32 bytes of k, whose first line is a multiple of 64.
template <bool kAlongK>
TREDUCE_DEVICE uint32_t place_of_lane(int line) {
  const int lane = threadIdx.x % 32;
  if (kAlongK) return (line + lane % 16) * kRowBytes + (lane / 16 ^ lane % 8) * kChunkBytes;
  return (line + lane / 16 * 8 + lane % 8) * kRowBytes + (lane / 8 % 2 ^ lane % 8) * kChunkBytes;
}

// Fragment `index` (16 lines) of step `step`: matrices of lines 0 to 7 and 8 to 15, first half of k, then second.
template <class T, bool kAlongK>
TREDUCE_DEVICE void load_fragment(uint32_t (&words)[4], ptx::SharedAddress tile, uint32_t place, int index, int step) {
  if constexpr (kAlongK) {
    ptx::load_matrices<false>(words, tile + (place ^ step * 32) + index * 16 * kRowBytes);
  } else {
    ptx::load_matrices<true>(words, tile + (place ^ index * 32) + step * 16 * kRowBytes);
  }
  if constexpr (std::is_same_v<T, float>) {
#pragma unroll
    for (uint32_t& word : words) word = ptx::round_to_tfloat32(word);
  }
}

template <class T>
cudaError_t launch_type(const Call& call) {
  return launch_stages<Shape, T>(call, -1,
                                 [](auto a_along_k, auto b_along_k) { return &kernel<T, a_along_k(), b_along_k()>; });
}

cudaError_t launch_one(const Call& call) {
  switch (call.dtype) {
    case DType::float16: return launch_type<float16>(call);
    case DType::bfloat16: return launch_type<bfloat16>(call);
    case DType::int8: return launch_type<int8_t>(call);
    default: return launch_type<float>(call);
  }
}

const Rung<launch_one> rung("mma");

}  // namespace treduce::matmul::mma
