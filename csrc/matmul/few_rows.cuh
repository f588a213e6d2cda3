// persistent for up to 64 rows of float16 or bfloat16: nearly all that is read is the other operand, the weights, and each of
// its columns is one chain of k / 16 dependent multiplications. So the instruction is the one with the shortest latency,
// mma.sync of a warp, and its 16 rows are columns of C: tiles may be as narrow as fills the chip evenly.
//
// Order:   on an H200 mma.sync.m16n8k16 gives the bits of wgmma for both types, 16 products at a time and p ascending, so this
//          is of the order class of the rest of persistent. Tests compare the rows of small and large products. Of tfloat32
//          that is not known: other kernels take it.
// Mapping: a producer thread keeps a deep ring of tiles full, 64 steps of k each; a warp has 16 or 32 columns of C. It loads
//          the fragments of the next stage while it multiplies those of this one. Blocks of a cluster share the rows.
#pragma once

#include "../primitives/ptx/launch.cuh"
#include "../primitives/ptx/mma.cuh"
#include "hopper.cuh"

namespace treduce::matmul::few_rows {

using namespace hopper;

constexpr int kMostRows = 64;
constexpr int kMostStages = 32;
constexpr int kFragmentColumns = 16, kFragmentRows = 8;  // of C, that one multiplication makes
constexpr int kSteps = 4;                                // multiplications along the k of a stage, 16 each

// Choices that change the time alone.
constexpr int kRingBytes = 96 * 1024;  // of stages, a block
constexpr bool kOverlapping = true;    // begin while the launch before ends: see primitives/ptx/launch.cuh
constexpr int kTileCost = 8;           // what a tile costs besides its columns, in columns

// kSlab: 0 where weights are contiguous along k; else along the columns, in slabs of 32 or 64.
template <int kRows_, int kWarpRows_, int kWarpColumns_, int kCluster_, int kSlab_>
struct Shape {
  static constexpr int kRows = kRows_;
  static constexpr int kWarpRows = kWarpRows_, kWarpColumns = kWarpColumns_;
  static constexpr int kCluster = kCluster_;  // blocks beside each other that share the rows
  static constexpr int kSlab = kSlab_;
  static constexpr int kParts = kRows / kWarpRows;  // warps that share columns
  static constexpr int kUnit = kSlab > kWarpColumns ? kSlab : kWarpColumns;
  static constexpr int kMostColumns = kWarpColumns * 8 / kParts;  // a block
  static constexpr int kThreads = (8 + 1) * 32;                   // at most
};

struct Work {
  int64_t n, tiles;  // of all batches; a tile: the columns of a cluster
  int m, steps, across, batches, inner_batches;
  int columns, stages;  // of a block; of its ring
};

// Where a warp finds the 16 columns from `column` on in a tile of the weights: the 16 bytes that this lane names.
template <int kSlab>
struct Weights {
  static constexpr bool kAlongK = kSlab == 0;
  static constexpr int kPitch = kAlongK ? kRowBytes : kSlab * 2;  // bytes of a row of the tile

  TREDUCE_DEVICE static uint32_t place(int column) {
    const int lane = threadIdx.x % 32;
    if constexpr (kAlongK) {
      const int line = column + lane % 16;
      return line * kPitch + (lane / 16 ^ line % 8) * 16;
    } else {
      const int k = lane / 16 * 8 + lane % 8, chunk = column % kSlab / 8 + lane / 8 % 2;
      return column / kSlab * (64 * kPitch) + k * kPitch + (chunk ^ (kPitch == 128 ? k % 8 : k / 2 % 4)) * 16;
    }
  }
  // Step `step` of a tile. Exclusive or finds chunks of swizzled rows.
  TREDUCE_DEVICE static void load(uint32_t (&words)[4], uint32_t tile, uint32_t place, int step) {
    ptx::load_matrices<!kAlongK>(words, kAlongK ? tile + place ^ step * 32 : tile + place + step * 16 * kPitch);
  }
};

// What a warp multiplies of a stage.
template <class S>
struct Fragments {
  uint32_t columns[kSteps][S::kWarpColumns / kFragmentColumns][4];
  uint32_t rows[kSteps / 2][S::kWarpRows / kFragmentRows][4];  // of two steps
};

// Writes 16 columns from `column` on of 8 rows from `row` on, nothing past the edges.
template <class Out>
TREDUCE_DEVICE void store(const float (&acc)[4], Out* c, const Out* bias, int row, int64_t column, int m, int64_t n) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int r = row + lane % 4 * 2 + i % 2;
    const int64_t j = column + lane / 4 + i / 2 * 8;
    if (r < m && j < n) c[r * n + j] = round_to<Out>(with_bias(acc[i], bias, j));
  }
}

template <class T, class Out, class S>
__global__ void __launch_bounds__(S::kThreads, 1)
    kernel(TREDUCE_GRID_CONSTANT CUtensorMap map_w, TREDUCE_GRID_CONSTANT CUtensorMap map_x, Work work,
           Broadcast broadcast_w, Broadcast broadcast_x, Out* c, const Out* bias) {
#ifdef TREDUCE_SM90A
  using PartX = Tile<T, S::kRows / S::kCluster, true>;  // what one block of the cluster fetches for all
  using W = Weights<S::kSlab>;
  constexpr int kColumnFragments = S::kWarpColumns / kFragmentColumns, kRowFragments = S::kWarpRows / kFragmentRows;
  __shared__ Ring<kMostStages> ring;
  char* const stages = aligned_tiles(dynamic_shared<char>());
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int consumers = blockDim.x / 32 - 1;
  const int rank = S::kCluster > 1 ? cluster::rank() : 0;
  const int w_bytes = work.columns * kRowBytes, stage_bytes = w_bytes + S::kRows * kRowBytes;
  const int64_t first = blockIdx.x / S::kCluster, stride = gridDim.x / S::kCluster;
  const auto matrix_of = [&](int64_t tile) { return work.batches == 1 ? 0 : static_cast<int>(tile / work.across); };
  const auto column_of = [&](int64_t tile, int matrix) {
    return (static_cast<int>(tile - int64_t(matrix) * work.across) * S::kCluster + rank) * work.columns;
  };

  ptx::allow_launch_after();
  if (threadIdx.x == 0) {
    ptx::prefetch_tensor_map(&map_w);
    ptx::prefetch_tensor_map(&map_x);
    ring.init(consumers * S::kCluster, work.stages);
  }
  if constexpr (S::kCluster > 1) {
    cluster::sync();
  } else {
    __syncthreads();
  }

  if (warp == consumers) {
    if (lane == 0) {
      ptx::wait_for_launch_before();
      Turn<kMostStages> turn;
      for (int64_t tile = first; tile < work.tiles; tile += stride) {
        const int matrix = matrix_of(tile), column = column_of(tile, matrix);
        const int2 batch = {matrix / work.inner_batches, matrix % work.inner_batches};
        const int2 batch_w = broadcast_w.of(batch), batch_x = broadcast_x.of(batch);
        for (int step = 0; step < work.steps; ++step, turn.next(work.stages)) {
          ptx::mbarrier_wait(ring.empty + turn.stage, turn.parity ^ 1);
          uint64_t* const full = ring.full + turn.stage;
          char* const tile_w = stages + turn.stage * stage_bytes;
          const int k = step * kDepth<T>;
          ptx::mbarrier_arrive_expect(full, stage_bytes);
          if constexpr (S::kSlab == 0) {
            ptx::load_box(tile_w, &map_w, {k, column, batch_w.y, batch_w.x}, full);
          } else {
            for (int slab = 0; slab < work.columns; slab += S::kSlab) {
              ptx::load_box(tile_w + slab * kRowBytes, &map_w, {column + slab, k, batch_w.y, batch_w.x}, full);
            }
          }
          PartX::template load<S::kCluster>(tile_w + w_bytes + rank * PartX::kBytes, &map_x,
                                            rank * (S::kRows / S::kCluster), k, batch_x, full);
        }
      }
    }
  } else {
    const int row = warp % S::kParts * S::kWarpRows, column = warp / S::kParts * S::kWarpColumns;
    const uint32_t stage_0 = ptx::shared_address(stages);
    uint32_t places_w[kColumnFragments];
#pragma unroll
    for (int i = 0; i < kColumnFragments; ++i) places_w[i] = W::place(column + i * kFragmentColumns);
    const uint32_t place_x = w_bytes + (row + lane % 8) * kRowBytes + (lane / 8 ^ lane % 8) * 16;

    Turn<kMostStages> turn;
    const auto load = [&](Fragments<S>& to) {
      ptx::mbarrier_wait(ring.full + turn.stage, turn.parity);
      const uint32_t stage = stage_0 + turn.stage * stage_bytes;
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        if (step % 2 == 0) {
#pragma unroll
          for (int i = 0; i < kRowFragments; ++i) {
            ptx::load_matrices<false>(to.rows[step / 2][i],
                                      (stage + place_x ^ step * 32) + i * (kFragmentRows * kRowBytes));
          }
        }
#pragma unroll
        for (int i = 0; i < kColumnFragments; ++i) W::load(to.columns[step][i], stage, places_w[i], step);
      }
    };
    float acc[kColumnFragments][kRowFragments][4];
    const auto multiply = [&](const Fragments<S>& from) {
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
#pragma unroll
        for (int i = 0; i < kColumnFragments; ++i) {
#pragma unroll
          for (int j = 0; j < kRowFragments; ++j) {
            const uint32_t (&words)[4] = from.rows[step / 2][j];
            ptx::multiply(T{}, acc[i][j], from.columns[step][i], words[step % 2 * 2], words[step % 2 * 2 + 1]);
          }
        }
      }
    };
    // The stage that was loaded last is this warp's no more; the multiplications of the one before stand between, so that
    // its fragments have come.
    const auto release_loaded = [&] {
      __syncwarp();
      release<S::kCluster>(ring.empty + turn.stage);
      turn.next(work.stages);
    };

    for (int64_t tile = first; tile < work.tiles; tile += stride) {
#pragma unroll
      for (int i = 0; i < kColumnFragments; ++i) {
#pragma unroll
        for (int j = 0; j < kRowFragments; ++j) acc[i][j][0] = acc[i][j][1] = acc[i][j][2] = acc[i][j][3] = 0;
      }
      Fragments<S> even, odd;
      load(even);
      release_loaded();
      int left = work.steps - 1;
      for (; left >= 2; left -= 2) {
        load(odd);
        multiply(even);
        release_loaded();
        load(even);
        multiply(odd);
        release_loaded();
      }
      if (left == 1) {
        load(odd);
        multiply(even);
        release_loaded();
        multiply(odd);
      } else {
        multiply(even);
      }
      const int matrix = matrix_of(tile);
      const int64_t at = column_of(tile, matrix) + column;
      Out* const to = c + int64_t(matrix) * work.m * work.n;
#pragma unroll
      for (int i = 0; i < kColumnFragments; ++i) {
#pragma unroll
        for (int j = 0; j < kRowFragments; ++j) {
          store(acc[i][j], to, bias, row + j * kFragmentRows, at + i * kFragmentColumns, work.m, work.n);
        }
      }
    }
  }
  // A block must not leave while others copy into its shared memory or arrive at its barriers.
  if constexpr (S::kCluster > 1) cluster::sync();
#endif
}

inline int64_t tiles_of(const Problem& p, int columns) { return (p.n + columns - 1) / columns * p.batches; }

// The columns of a block: those that leave the busiest multiprocessor the least; of equals the most, which read the rows
// fewest times.
template <class S>
int columns_of(const Problem& p, int multiprocessors) {
  int best = 0;
  int64_t least = INT64_MAX;
  for (int columns = S::kUnit; columns <= S::kMostColumns; columns += S::kUnit) {
    const int64_t slots = multiprocessors / S::kCluster;
    const int64_t rounds = (tiles_of(p, columns * S::kCluster) + slots - 1) / slots;
    const int64_t cost = rounds * (columns + kTileCost);
    if (cost <= least) {
      least = cost;
      best = columns;
    }
  }
  return best;
}

// w and x: the boxes of B and A.
template <class T, class Out, class S>
cudaError_t launch_shape(const Call& call, const Boxes& w, const Boxes& x, int columns) {
  const Problem& p = call.problem;
  CUtensorMap map_w, map_x;
  cudaError_t error = S::kSlab == 0 ? encode(w, kMapType<T>, kDepth<T>, columns, true, &map_w)
                                    : encode(w, kMapType<T>, S::kSlab, kDepth<T>, true, &map_w);
  if (error == cudaSuccess) error = encode_tiles<Tile<T, S::kRows / S::kCluster, true>>(x, &map_x);
  if (error != cudaSuccess) return error;

  const int stage_bytes = (columns + S::kRows) * kRowBytes;
  Work work;
  work.n = p.n;
  work.tiles = tiles_of(p, columns * S::kCluster);
  work.m = static_cast<int>(p.m);
  work.steps = static_cast<int>((p.k + kDepth<T> - 1) / kDepth<T>);
  work.across = static_cast<int>(work.tiles / p.batches);
  work.batches = static_cast<int>(p.batches);
  work.inner_batches = static_cast<int>(inner_batches_of(p));
  work.columns = columns;
  work.stages = std::clamp(kRingBytes / stage_bytes, 2, kMostStages);

  Launch shape;
  shape.block = (columns / S::kWarpColumns * S::kParts + 1) * 32;
  shape.cluster = S::kCluster;
  shape.grid = std::min<int64_t>(work.tiles, call.multiprocessors / S::kCluster) * S::kCluster;
  shape.shared_bytes = work.stages * stage_bytes + kTileAlignment;
  shape.stream = call.stream;
  shape.overlapping = kOverlapping;
  return launch(&kernel<T, Out, S>, shape, map_w, map_x, work, broadcast_of(w), broadcast_of(x),
                static_cast<Out*>(call.c), static_cast<const Out*>(call.bias));
}

template <class T, class Out, int kRows, int kWarpRows, int kWarpColumns, int kCluster>
cudaError_t launch_layout(const Call& call, const Boxes& w, const Boxes& x) {
  const auto with = [&](auto shape) {
    using S = decltype(shape);
    return launch_shape<T, Out, S>(call, w, x, columns_of<S>(call.problem, call.multiprocessors));
  };
  if (w.along_k) return with(Shape<kRows, kWarpRows, kWarpColumns, kCluster, 0>{});
  return with(Shape<kRows, kWarpRows, kWarpColumns, kCluster, 32>{});
}

// What this kernel is for. Where A is not contiguous along k it has kMostRows at least: see view_a.
template <class Form>
constexpr bool takes = kElementBytes<typename Form::T> == 2 && Form::kAAlongK;

template <class T, class Out>
cudaError_t run(const Call& call, const Boxes& a, const Boxes& b) {
  const int64_t m = call.problem.m;
  if (m <= 8) return launch_layout<T, Out, 8, 8, 16, 1>(call, b, a);
  if (m <= 16) return launch_layout<T, Out, 16, 16, 16, 1>(call, b, a);
  if (m <= 32) return launch_layout<T, Out, 32, 32, 16, 2>(call, b, a);
  return launch_layout<T, Out, 64, 32, 32, 2>(call, b, a);
}

}  // namespace treduce::matmul::few_rows
