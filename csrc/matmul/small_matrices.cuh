// pipelined for small matrices of float32, of which a batch has many: a warp computes each. All of k comes to shared memory at once, if it
// is longer in parts, and what overlaps are the warps of a multiprocessor, none of which waits for another.
//
// A tile keeps the operand's direction: where k is contiguous, a line is a row of shared memory, and a load brings four steps of k of
// it; else a row is a step of k, and a load brings neighbouring lines. So 16 bytes are copied at once either way. Rows along k are an
// odd number of 16 bytes long: eight lines meet every bank once.
#pragma once

#include "../primitives/ptx/copy.cuh"
#include "../primitives/shared.cuh"
#include "outputs.cuh"

namespace treduce::matmul::small_matrices {

// One of the shapes of shapes.h: kTileM x kTileN outputs of a warp.
template <int kIndex>
struct Tiling {
  static constexpr Shape kShape = kShapes[kIndex];
  static constexpr int kTileM = kShape.tile_m, kTileN = kShape.tile_n, kThreads = kShape.threads;
  static constexpr int kRows = kTileM / WarpShape::kRows, kColumns = kTileN / WarpShape::kColumns;  // of a thread
  using Tiles = matmul::Tiles<kTileM, kTileN>;
};

// kLines lines of `depth` steps of k in shared memory. Of a thread's kCount lines, each kNeighbours are neighbours, and kLanes threads
// of a warp share the lines with it.
template <bool kAlongK, int kLines, int kCount, int kLanes>
struct Operand {
  // Along k neighbours would meet the same banks, but pairs of four.
  static constexpr int kNeighbours = kAlongK ? (kLanes == 4 ? 2 : 1) : (kCount < 4 ? kCount : 4);
  static_assert(kCount % kNeighbours == 0);

  // The thread's i-th line, if it is the lane-th of kLanes.
  TREDUCE_DEVICE static int line(int lane, int i) {
    return (i / kNeighbours * kLanes + lane) * kNeighbours + i % kNeighbours;
  }

  // The warp copies what exists. vectors: 16 bytes at once.
  TREDUCE_DEVICE static void copy(ptx::SharedAddress to, const Lines<float>& lines, int depth, int pitch,
                                  bool vectors) {
    const int count = lines.count < kLines ? static_cast<int>(lines.count) : kLines;
    const int width = vectors ? 4 : 1;
    const int across = (kAlongK ? depth : count) / width, down = kAlongK ? count : depth;
    for (int i = threadIdx.x % 32; i < across * down; i += 32) {
      const int inner = i % across * width, outer = i / across;
      const float* const from = kAlongK ? lines.at(outer, inner) : lines.at(inner, outer);
      const ptx::SharedAddress place = to + (outer * pitch + inner) * static_cast<int>(sizeof(float));
      vectors ? ptx::copy_async<16>(place, from) : ptx::copy_async<4>(place, from);
    }
  }

  // The thread's lines at four steps of k, or at one.
  template <int kDepth>
  TREDUCE_DEVICE static void load(float (&to)[kDepth][kCount], const float* tile, int pitch, int lane, int k) {
    if constexpr (kAlongK) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const float* const from = tile + line(lane, i) * pitch + k;
        float values[kDepth];
        if constexpr (kDepth == 4) {
          const float4 vector = *reinterpret_cast<const float4*>(from);
          values[0] = vector.x, values[1] = vector.y, values[2] = vector.z, values[3] = vector.w;
        } else {
          values[0] = *from;
        }
#pragma unroll
        for (int d = 0; d < kDepth; ++d) to[d][i] = values[d];
      }
    } else {
#pragma unroll
      for (int d = 0; d < kDepth; ++d) {
#pragma unroll
        for (int i = 0; i < kCount; i += kNeighbours) {
          struct alignas(kNeighbours * sizeof(float)) Vector {
            float at[kNeighbours];
          };
          const Vector vector = *reinterpret_cast<const Vector*>(tile + (k + d) * pitch + line(lane, i));
#pragma unroll
          for (int e = 0; e < kNeighbours; ++e) to[d][i + e] = vector.at[e];
        }
      }
    }
  }
};

// The same lines from a step of k on.
TREDUCE_DEVICE Lines<float> from_step(const Lines<float>& lines, int step) {
  return {lines.at(0, step), lines.stride, lines.step, lines.count};
}

template <class S, bool kAAlongK, bool kBAlongK>
__global__ void __launch_bounds__(S::kThreads, S::kShape.blocks)
    kernel(const float* a, const float* b, float* c, const float* bias, Problem p, typename S::Tiles tiles, int pitch_a,
           int pitch_b, bool vectors_a, bool vectors_b) {
  constexpr int kRows = S::kRows, kColumns = S::kColumns, kWarps = S::kThreads / 32;
  using OperandA = Operand<kAAlongK, S::kTileM, kRows, WarpShape::kRows>;
  using OperandB = Operand<kBAlongK, S::kTileN, kColumns, WarpShape::kColumns>;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int all = static_cast<int>(p.k), depth = min(all, kMostDepth);
  const int floats_a = (kAAlongK ? S::kTileM : depth) * pitch_a, floats_b = (kBAlongK ? S::kTileN : depth) * pitch_b;
  float* const tile_a = dynamic_shared<float>() + warp * (floats_a + floats_b);
  float* const tile_b = tile_a + floats_a;
  for (int64_t tile = blockIdx.x * int64_t(kWarps) + warp; tile < tiles.count; tile += gridDim.x * int64_t(kWarps)) {
    const auto place = tiles.place(tile);
    const Offsets at = offsets_of(p, place.batch);
    const Lines<float> rows = rows_of(a, p, at, place.row), columns = columns_of(b, p, at, place.column);
    const int lane_row = WarpShape::row(lane), lane_column = WarpShape::column(lane);
    float sum[kRows][kColumns] = {};
    const auto add = [&](auto steps, int k) {
      constexpr int kSteps = decltype(steps)::value;
      float from_a[kSteps][kRows], from_b[kSteps][kColumns];
      OperandA::template load<kSteps>(from_a, tile_a, pitch_a, lane_row, k);
      OperandB::template load<kSteps>(from_b, tile_b, pitch_b, lane_column, k);
#pragma unroll
      for (int d = 0; d < kSteps; ++d) {
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
#pragma unroll
          for (int j = 0; j < kColumns; ++j) sum[i][j] = multiply_add(from_a[d][i], from_b[d][j], sum[i][j]);
        }
      }
    };
#pragma unroll 1
    for (int done = 0; done < all; done += depth) {
      const int part = min(all - done, depth);
      __syncwarp();  // nobody reads the part before
      OperandA::copy(ptx::shared_address(tile_a), from_step(rows, done), part, pitch_a, vectors_a);
      OperandB::copy(ptx::shared_address(tile_b), from_step(columns, done), part, pitch_b, vectors_b);
      ptx::commit_copies();
      ptx::wait_copies<0>();
      __syncwarp();
      int k = 0;
#pragma unroll 1
      for (; k + 4 <= part; k += 4) add(std::integral_constant<int, 4>{}, k);
#pragma unroll 1
      for (; k < part; ++k) add(std::integral_constant<int, 1>{}, k);
    }

    const bool whole =
        p.n % OperandB::kNeighbours == 0 && reinterpret_cast<uintptr_t>(c) % (4 * OperandB::kNeighbours) == 0;
    struct alignas(OperandB::kNeighbours * sizeof(float)) Vector {
      float at[OperandB::kNeighbours];
    };
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int64_t row = place.row + OperandA::line(lane_row, i);
      if (row >= p.m) continue;
#pragma unroll
      for (int j = 0; j < kColumns; j += OperandB::kNeighbours) {
        const int64_t first = place.column + OperandB::line(lane_column, j);
        float* const to = c + at.c + row * p.n + first;
        Vector vector;
#pragma unroll
        for (int e = 0; e < OperandB::kNeighbours; ++e) {
          const bool exists = first + e < p.n;
          vector.at[e] = round_to<float>(exists ? with_bias(sum[i][j + e], bias, first + e) : 0.0f);
        }
        if (whole) {
          if (first < p.n) *reinterpret_cast<Vector*>(to) = vector;
        } else {
#pragma unroll
          for (int e = 0; e < OperandB::kNeighbours; ++e) {
            if (first + e < p.n) to[e] = vector.at[e];
          }
        }
      }
    }
  }
}

template <class S, bool kAAlongK, bool kBAlongK>
cudaError_t launch_directions(const Call& call) {
  const Problem& p = call.problem;
  return launch(&kernel<S, kAAlongK, kBAlongK>, call.step(0), static_cast<const float*>(call.a),
                static_cast<const float*>(call.b), static_cast<float*>(call.c), static_cast<const float*>(call.bias), p,
                typename S::Tiles(p), S::kShape.pitch(kAAlongK, S::kTileM, std::min<int64_t>(p.k, kMostDepth)),
                S::kShape.pitch(kBAlongK, S::kTileN, std::min<int64_t>(p.k, kMostDepth)),
                is_vectors(call.prepared.way_a), is_vectors(call.prepared.way_b));
}

inline cudaError_t run(const Call& call) {
  const bool a = is_along_k(call.prepared.way_a), b = is_along_k(call.prepared.way_b);
  return with_shape<kShapeCount>(call, [&](auto index) {
    using S = Tiling<index()>;
    if (a && b) return launch_directions<S, true, true>(call);
    if (a) return launch_directions<S, true, false>(call);
    return b ? launch_directions<S, false, true>(call) : launch_directions<S, false, false>(call);
  });
}

}  // namespace treduce::matmul::small_matrices
