// What the warp-group rungs share (sm_90a): the ring of stages between copy engine and tensor cores, the order of tiles,
// and how accumulators become outputs.
#pragma once

#include "../primitives/cluster.cuh"
#include "../primitives/ptx/matrix.cuh"
#include "../primitives/shared.cuh"
#include "pack.h"
#include "rung.h"
#include "tile.cuh"

// The code for these rungs is in the binary for that one chip; elsewhere a kernel is empty and never launched.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define TREDUCE_SM90A 1
#endif

namespace treduce::matmul::hopper {

// A place in the ring of kStages stages: which stage, and the parity of its current round.
template <int kStages>
struct Turn {
  int stage = 0;
  unsigned parity = 0;
  // `stages`: of the ring, where they are fewer than there is room for.
  TREDUCE_DEVICE void next(int stages = kStages) {
    if (++stage == stages) {
      stage = 0;
      parity ^= 1;
    }
  }
  // `count`: at most kStages.
  TREDUCE_DEVICE void skip(int count) {
    stage += count;
    if (stage >= kStages) {
      stage -= kStages;
      parity ^= 1;
    }
  }
};

template <int kStages>
struct Ring {
  uint64_t full[kStages];   // the bytes of the stage have come
  uint64_t empty[kStages];  // all who read it are done

  // One thread, before a barrier of the block (of the cluster, where other blocks arrive).
  TREDUCE_DEVICE void init(int readers, int stages = kStages) {
    for (int s = 0; s < stages; ++s) {
      ptx::mbarrier_init(full + s, 1);
      ptx::mbarrier_init(empty + s, readers);
    }
    ptx::fence_mbarrier_init();
  }
};

// How the kernels with a producer begin: descriptions on their way, barriers of the ring there for all blocks that arrive at
// them. One lane of each warp of kConsumers warp groups of each of these blocks releases a stage.
// Who calls: every thread of the block. Synchronises the block, or the cluster.
template <int kCluster, int kConsumers, int kStages>
TREDUCE_DEVICE void begin(Ring<kStages>& ring, const CUtensorMap& map_a, const CUtensorMap& map_b) {
  if (threadIdx.x == 0) {
    ptx::prefetch_tensor_map(&map_a);
    ptx::prefetch_tensor_map(&map_b);
    ring.init(kConsumers * 4 * kCluster);
  }
  if constexpr (kCluster > 1) {
    cluster::sync();
  } else {
    __syncthreads();
  }
}

// Says that this warp is done with a stage, to each block of the cluster, whose copies fill this block's stage too.
// Who calls: every lane of a consumer's warp, after its last read.
template <int kCluster>
TREDUCE_DEVICE void release(uint64_t* empty) {
  const int lane = threadIdx.x % 32;
  if constexpr (kCluster > 1) {
    if (lane < kCluster) ptx::mbarrier_arrive_at(empty, lane);
  } else {
    if (lane == 0) ptx::mbarrier_arrive(empty);
  }
}

// The outputs as tiles, and the way through them: bands of kBand tiles down, within a band column by column, so that the
// blocks that run together read few rows of A and few columns of B, which then come from the L2.
struct Grid {
  int64_t m, n;
  int depth;         // k
  int down, across;  // tiles
  int inner_batches;
  int64_t count;

  struct Place {
    int row, column;
    int2 batch;     // coordinates of the two batch dimensions
    int64_t index;  // of the matrix in C
  };
  static constexpr int kBand = 8;

  TREDUCE_DEVICE Place place(int64_t tile, int tile_m, int tile_n) const {
    const int64_t a_matrix = int64_t(down) * across;
    const int matrix = static_cast<int>(tile / a_matrix);
    const int within = static_cast<int>(tile % a_matrix);
    const int band = within / (kBand * across), rest = within % (kBand * across);
    const int height = min(kBand, down - band * kBand);
    return {(band * kBand + rest % height) * tile_m,
            rest / height * tile_n,
            {matrix / inner_batches, matrix % inner_batches},
            matrix};
  }
};

inline Grid grid_of(const Problem& p, int tile_m, int tile_n) {
  Grid grid;
  grid.m = p.m;
  grid.n = p.n;
  grid.depth = static_cast<int>(p.k);
  grid.down = static_cast<int>(ceil_div(p.m, tile_m));
  grid.across = static_cast<int>(ceil_div(p.n, tile_n));
  grid.inner_batches = static_cast<int>(inner_batches_of(p));
  grid.count = int64_t(grid.down) * grid.across * p.batches;
  return grid;
}

// Batch coordinates of an operand: 0 along a dimension that it is broadcast along.
struct Broadcast {
  bool outer, inner;
  TREDUCE_DEVICE int2 of(int2 batch) const { return {outer ? 0 : batch.x, inner ? 0 : batch.y}; }
};

inline Broadcast broadcast_of(const Boxes& boxes) { return {boxes.batch_size[0] == 1, boxes.batch_size[1] == 1}; }

// What a kernel is compiled for: the type that the tensor cores read, the type of the results, and along which dimension
// the boxes of A and of B lie.
template <class T_, class Out_, bool kAAlongK_, bool kBAlongK_>
struct Form {
  using T = T_;
  using Out = Out_;
  static constexpr bool kAAlongK = kAAlongK_, kBAlongK = kBAlongK_;
};

template <class T, class Out, class Body>
cudaError_t launch_with_type(const Call& call, Body&& body) {
  Boxes a, b;
  const cudaError_t error = pack_operands(call, a, b);
  if (error != cudaSuccess) return error;
  if constexpr (kElementBytes<T> == 2) {
    if (!a.along_k && !b.along_k) return body(Form<T, Out, false, false>{}, a, b);
    if (!a.along_k) return body(Form<T, Out, false, true>{}, a, b);
    if (!b.along_k) return body(Form<T, Out, true, false>{}, a, b);
  }
  return body(Form<T, Out, true, true>{}, a, b);
}

// Fills C with zeros: the sums of a k of 0.
inline cudaError_t clear(const Call& call) {
  const Problem& p = call.problem;
  return cudaMemsetAsync(call.c, 0, p.batches * p.m * p.n * size_of(result_dtype(call.dtype)), call.stream);
}

// Calls body(Form, boxes of A, boxes of B), which launches the kernel: the boxes are where the operands lie, or copies
// that are made in the call's workspace. k is at least 1 there.
template <class Body>
cudaError_t launch_form(const Call& call, Body&& body) {
  if (call.launch_count == 0) return clear(call);
  switch (call.dtype) {
    case DType::float16: return launch_with_type<float16, float16>(call, body);
    case DType::bfloat16: return launch_with_type<bfloat16, bfloat16>(call, body);
    case DType::int8: return launch_with_type<int8_t, int32_t>(call, body);
    default: return launch_with_type<ptx::tfloat32, float>(call, body);
  }
}

// Describes the boxes of one operand for copies of whole tiles.
template <class Tile>
cudaError_t encode_tiles(const Boxes& boxes, CUtensorMap* map) {
  return encode(boxes, kMapType<typename Tile::Element>, Tile::kBoxInner, Tile::kBoxOuter, map);
}

// Launches a kernel of which each block computes one tile. kernel_of(Form) is the kernel.
template <class Shape, class KernelOf>
cudaError_t launch_block_a_tile(const Call& call, KernelOf&& kernel_of) {
  return launch_form(call, [&](auto form, const Boxes& a, const Boxes& b) {
    using Form = decltype(form);
    using T = typename Form::T;
    using TileA = Tile<T, Shape::kTileM, Form::kAAlongK>;
    using TileB = Tile<T, Shape::kTileN, Form::kBAlongK>;
    static_assert(TileA::kBytes + TileB::kBytes == Shape::kStageBytes);
    CUtensorMap map_a, map_b;
    cudaError_t error = encode_tiles<TileA>(a, &map_a);
    if (error == cudaSuccess) error = encode_tiles<TileB>(b, &map_b);
    if (error != cudaSuccess) return error;

    return launch(kernel_of(form), call.step(-1), map_a, map_b, grid_of(call.problem, Shape::kTileM, Shape::kTileN),
                  broadcast_of(a), broadcast_of(b), static_cast<typename Form::Out*>(call.c),
                  static_cast<const typename Form::Out*>(call.bias));
  });
}

// Starts acc += A B over one stage for 64 rows of A from `line` and all columns of B; step 0 overwrites acc. The tensor
// cores are done when wgmma_wait says so; until then nothing else may touch acc or the tiles.
// Who calls: the threads of a warp group.
template <class TileA, class TileB, int kN>
TREDUCE_DEVICE void multiply_stage(Acc<typename TileA::Element> (&acc)[kN], const char* tile_a, const char* tile_b,
                                   int line, int step) {
  using T = typename TileA::Element;
  ptx::wgmma_touch(acc);
  ptx::wgmma_fence();
#pragma unroll
  for (int i = 0; i < kDepth<T> / kStep<T>; ++i) {
    ptx::Wgmma<T, kN * 2, TileA::kTransposed, TileB::kTransposed>::multiply(
        acc, TileA::descriptor(tile_a, line, i), TileB::descriptor(tile_b, 0, i), step + i > 0);
  }
  ptx::wgmma_commit();
  ptx::wgmma_touch(acc);
}

// Waits for the kThreads threads that name the same barrier (1 to 15) of the block.
template <int kThreads>
TREDUCE_DEVICE void named_barrier(int id) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "n"(kThreads) : "memory");
}

// Where a thread's accumulators of a tile that begins at (row, column) belong in C, two neighbours at a time: calls
// visit(first of the two registers, pointer, how many of the two are there).
template <int kN, class T, class Visit>
TREDUCE_DEVICE void for_each_pair(T* c, int64_t row, int64_t column, int64_t m, int64_t n, Visit&& visit) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
  row += warp * 16 + lane / 4;
  column += lane % 4 * 2;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int64_t r = row + half * 8;
#pragma unroll
    for (int i = 0; i < kN / 8; ++i) {
      const int64_t j = column + i * 8;
      if (r < m && j < n) visit(i * 4 + half * 2, c + r * n + j, j + 1 < n ? 2 : 1);
    }
  }
}

// Adds the bias, where there is one, to the accumulators of a tile that begins at that column of n.
template <class Sum, int kCount, class Out>
TREDUCE_DEVICE void add_bias(Sum (&acc)[kCount], const Out* bias, int64_t column, int64_t n) {
  if (bias == nullptr) return;
  const Out* const first = bias + column + threadIdx.x % 4 * 2;
  const int left = static_cast<int>(min(n - column, int64_t(kCount * 2))) - threadIdx.x % 4 * 2;
  const auto add = [&](auto whole) {
#pragma unroll
    for (int i = 0; i < kCount / 2; ++i) {
      const int j = i / 2 * 8 + i % 2;
      const Sum value = whole || j < left ? static_cast<Sum>(first[j]) : Sum(0);
      acc[i / 2 * 4 + i % 2] += value;
      acc[i / 2 * 4 + 2 + i % 2] += value;
    }
  };
  if (column + kCount * 2 <= n) {
    add(std::true_type{});  // nothing to ask, so that all loads are under way together
  } else {
    add(std::false_type{});
  }
}

// The same for a tile of the transposed product, whose rows are columns of C.
template <class Sum, int kCount, class Out>
TREDUCE_DEVICE void add_bias_transposed(Sum (&acc)[kCount], const Out* bias, int64_t row, int64_t n) {
  if (bias == nullptr) return;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
  row += warp * 16 + lane / 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int64_t j = row + half * 8;
    const Sum value = j < n ? static_cast<Sum>(bias[j]) : Sum(0);
#pragma unroll
    for (int i = 0; i < kCount / 4; ++i) {
      acc[i * 4 + half * 2] += value;
      acc[i * 4 + half * 2 + 1] += value;
    }
  }
}

// The same without waiting: the other threads wait for these.
template <int kThreads>
TREDUCE_DEVICE void named_arrive(int id) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "n"(kThreads) : "memory");
}

// Writes the accumulators of a warp group straight from the registers: pairs where pairs are aligned, and nothing past the
// edges.
template <class T, int kN, class Sum>
TREDUCE_DEVICE void store_registers(const Sum (&acc)[kN / 2], T* c, int64_t row, int64_t column, int64_t m, int64_t n) {
  const bool pairs = aligned_pairs(c, n);
  for_each_pair<kN>(c, row, column, m, n, [&](int i, T* to, int count) {
    const T pair[2] = {round_to<T>(acc[i]), round_to<T>(acc[i + 1])};
    if (pairs) {
      using Pair = std::conditional_t<sizeof(T) == 2, uint32_t, uint2>;
      Pair word;
      memcpy(&word, pair, sizeof(word));
      *reinterpret_cast<Pair*>(to) = word;
    } else {
      to[0] = pair[0];
      if (count == 2) to[1] = pair[1];
    }
  });
}

// Writes the accumulators, or adds them to what is in C, which the same threads wrote; then they are zero. A batch of pairs
// at a time, so that it needs few registers while others are in use, and all of these are read before the first is written:
// the compiler cannot know that they are not the same. `bias`: null unless these are the last that C waits for.
template <int kN>
TREDUCE_DEVICE void flush_registers(float (&acc)[kN / 2], float* c, int64_t row, int64_t column, int64_t m, int64_t n,
                                    bool add, const float* bias) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
  row += warp * 16 + lane / 4;
  column += lane % 4 * 2;
  const int rows_left = static_cast<int>(min(m - row, int64_t(64)));
  const int columns_left = static_cast<int>(min(n - column, int64_t(kN)));
  float* const first = c + row * n + column;
  const auto with_last = [&](float sum, int j) {
    return bias == nullptr ? sum : canonical(sum + __ldg(bias + column + j));
  };
  const auto flush = [&](auto aligned) {
    constexpr int kBatch = aligned ? 8 : 4, kARow = kN / 8;  // pairs: of the first row, then of the one eight rows on
#pragma unroll
    for (int batch = 0; batch < kN / 4; batch += kBatch) {
      const int down = batch / kARow * 8;
      float* const to = first + down * n;
      float2 pairs[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int j = (batch % kARow + i) * 8;
        pairs[i] = {0, 0};
        if (!add || down >= rows_left) continue;
        if constexpr (aligned) {
          if (j < columns_left) pairs[i] = *reinterpret_cast<const float2*>(to + j);
        } else {
          if (j < columns_left) pairs[i].x = to[j];
          if (j + 1 < columns_left) pairs[i].y = to[j + 1];
        }
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int j = (batch % kARow + i) * 8;
        if (down >= rows_left || j >= columns_left) continue;
        const float* const mine = acc + (batch % kARow + i) * 4 + batch / kARow * 2;
        const float2 sum = add ? float2{pairs[i].x + mine[0], pairs[i].y + mine[1]} : float2{mine[0], mine[1]};
        if constexpr (aligned) {
          *reinterpret_cast<float2*>(to + j) = {with_last(sum.x, j), with_last(sum.y, j + 1)};
        } else {
          to[j] = with_last(sum.x, j);
          if (j + 1 < columns_left) to[j + 1] = with_last(sum.y, j + 1);
        }
      }
    }
  };
  aligned_pairs(c, n) ? flush(std::true_type{}) : flush(std::false_type{});
#pragma unroll
  for (int i = 0; i < kN / 2; ++i) acc[i] = 0;
}

// The same for a tile of the transposed product: its rows are columns of C.
template <class T, int kN, class Sum>
TREDUCE_DEVICE void store_transposed(const Sum (&acc)[kN / 2], T* c, int64_t row, int64_t column, int64_t m,
                                     int64_t n) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
  row += warp * 16 + lane / 4;
  column += lane % 4 * 2;
#pragma unroll
  for (int i = 0; i < kN / 2; ++i) {
    const int64_t j = row + i / 2 % 2 * 8, r = column + i / 4 * 8 + i % 2;
    if (r < m && j < n) c[r * n + j] = round_to<T>(acc[i]);
  }
}

// The same through shared memory, kStagingColumns at a time in one of two buffers, so that what leaves is whole rows. Needs
// kStagingBytes a warp group, and `barrier` of its own.

// Rounds 64 columns of accumulators into a buffer, swizzled. Synchronises before; the caller after.
template <class T>
TREDUCE_DEVICE void stage_columns(const float* acc, char* buffer, int barrier) {
  const int lane = threadIdx.x % 32;
  const int line = threadIdx.x % kWarpGroup / 32 * 16 + lane % 16;  // of the 64, whose 16 bytes this lane names
  named_barrier<kWarpGroup>(barrier);
#pragma unroll
  for (int i = 0; i < kStagingColumns / 16; ++i) {
    uint32_t words[4];
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      const T pair[2] = {round_to<T>(acc[i * 8 + w * 2]), round_to<T>(acc[i * 8 + w * 2 + 1])};
      memcpy(words + w, pair, 4);
    }
    ptx::store_matrices(buffer + line * kRowBytes + ((i * 2 + lane / 16) ^ line % 8) * 16, words);
  }
}

// The copy engine takes the buffers, while the next columns are being rounded.
template <class T, int kN>
TREDUCE_DEVICE void store_boxes(const float (&acc)[kN / 2], const CUtensorMap* map, char* staging, int row, int column,
                                int matrix, int barrier) {
  const bool elected = threadIdx.x % kWarpGroup == 0;
#pragma unroll
  for (int chunk = 0; chunk < kN / kStagingColumns; ++chunk) {
    char* const buffer = staging + chunk % 2 * kStagingBuffer;
    // This buffer's last store is the last but one, or where the tile begins maybe the very last.
    if (elected) chunk == 0 ? ptx::wait_stores_read<0>() : ptx::wait_stores_read<1>();
    stage_columns<T>(acc + chunk * 32, buffer, barrier);
    ptx::fence_async_proxy();
    named_barrier<kWarpGroup>(barrier);
    if (elected) {
      ptx::store_box(map, {column + chunk * kStagingColumns, row, matrix, 0}, buffer);
      ptx::commit_stores();
    }
  }
}

// Rows of C that the copy engine cannot address: a warp writes a row's 64 outputs as 32 words, which begin at an output
// with an even address; then one output is left at either end.
template <class T, int kN>
TREDUCE_DEVICE void store_rows(const float (&acc)[kN / 2], T* c, char* staging, int64_t row, int64_t column, int64_t m,
                               int64_t n, int barrier) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x % kWarpGroup / 32;
#pragma unroll
  for (int chunk = 0; chunk < kN / kStagingColumns; ++chunk) {
    char* const buffer = staging + chunk % 2 * kStagingBuffer;
    stage_columns<T>(acc + chunk * 32, buffer, barrier);
    __syncwarp();  // a warp reads back the rows that it wrote
    const int64_t first = column + chunk * kStagingColumns;
    const int count = static_cast<int>(min(int64_t(kStagingColumns), n - first));
#pragma unroll 4
    for (int i = 0; i < 16; ++i) {
      const int line = warp * 16 + i;
      if (row + line >= m) continue;
      T* const to = c + (row + line) * n + first;
      const auto staged = [&](int j) {
        return *reinterpret_cast<const T*>(buffer + line * kRowBytes + (j / 8 ^ line % 8) * 16 + j % 8 * 2);
      };
      const int skew = reinterpret_cast<uint64_t>(to) % 4 / 2;
      const int j = skew + lane * 2;
      if (j + 1 < count) {
        const T pair[2] = {staged(j), staged(j + 1)};
        uint32_t word;
        memcpy(&word, pair, 4);
        *reinterpret_cast<uint32_t*>(to + j) = word;
      } else if (j < count) {
        to[j] = staged(j);
      }
      if (skew == 1 && lane == 0 && count > 0) to[0] = staged(0);
    }
  }
}

// Rounds a pointer into shared memory up to where the swizzle begins; launches ask for kTileAlignment more.
TREDUCE_DEVICE char* aligned_tiles(char* shared) {
  const uint32_t address = ptx::shared_address(shared);
  return shared + ((address + kTileAlignment - 1) / kTileAlignment * kTileAlignment - address);
}

}  // namespace treduce::matmul::hopper
