// What the warp-group rungs share (sm_90a): the ring of stages between copy engine and tensor cores, the order of tiles,
// and how accumulators become outputs.
#pragma once

#include "../primitives/cluster.cuh"
#include "../primitives/ptx/matrix.cuh"
#include "../primitives/shared.cuh"
#include "pack.cuh"
#include "rung.h"
#include "tile.cuh"

// The code for these rungs is in the binary for that one chip; elsewhere a kernel is empty and never launched.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define TREDUCE_SM90A 1
#endif

namespace treduce::matmul::hopper {

constexpr int kWarpGroup = 128;  // threads

// A place in the ring of kStages stages: which stage, and the parity of its current round.
template <int kStages>
struct Turn {
  int stage = 0;
  unsigned parity = 0;
  TREDUCE_DEVICE void next() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

template <int kStages>
struct Ring {
  uint64_t full[kStages];   // the bytes of the stage have come
  uint64_t empty[kStages];  // all who read it are done

  // One thread, before a barrier of the block (of the cluster, where other blocks arrive).
  TREDUCE_DEVICE void init(int readers) {
    for (int s = 0; s < kStages; ++s) {
      ptx::mbarrier_init(full + s, 1);
      ptx::mbarrier_init(empty + s, readers);
    }
    ptx::fence_mbarrier_init();
  }
};

// The outputs as tiles, and the way through them: bands of kBand tiles down, within a band column by column, so that the
// blocks that run together read few rows of A and few columns of B, which then come from the L2.
struct Grid {
  int64_t m, n;
  int depth;         // k
  int down, across;  // tiles
  int batches, inner_batches;
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
  grid.down = static_cast<int>((p.m + tile_m - 1) / tile_m);
  grid.across = static_cast<int>((p.n + tile_n - 1) / tile_n);
  grid.batches = static_cast<int>(p.batches);
  grid.inner_batches = p.batch_dims > 0 ? static_cast<int>(p.batch_size[p.batch_dims - 1]) : 1;
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
  const Problem& p = call.problem;
  constexpr int kBytes = kElementBytes<T>;
  View read_a = view_a(p, call.a, kBytes), read_b = view_b(p, call.b, kBytes);
  char* workspace = static_cast<char*>(call.workspace);
  cudaError_t error = pack(operand_a(p, call.a, kBytes), read_a, workspace, call.stream);
  if (error == cudaSuccess) error = pack(operand_b(p, call.b, kBytes), read_b, workspace, call.stream);
  if (error != cudaSuccess) return error;
  const Boxes &a = read_a.boxes, &b = read_b.boxes;
  if constexpr (kBytes == 2) {
    if (!a.along_k && !b.along_k) return body(Form<T, Out, false, false>{}, a, b);
    if (!a.along_k) return body(Form<T, Out, false, true>{}, a, b);
    if (!b.along_k) return body(Form<T, Out, true, false>{}, a, b);
  }
  return body(Form<T, Out, true, true>{}, a, b);
}

// Calls body(Form, boxes of A, boxes of B), which launches the kernel: the boxes are where the operands lie, or copies
// that are made in the call's workspace. k is at least 1 there.
template <class Body>
cudaError_t launch_form(const Call& call, Body&& body) {
  const Problem& p = call.problem;
  if (p.k == 0) return cudaMemsetAsync(call.c, 0, p.batches * p.m * p.n * size_of(call.dtype), call.stream);
  switch (call.dtype) {
    case DType::float16: return launch_with_type<float16, float16>(call, body);
    case DType::bfloat16: return launch_with_type<bfloat16, bfloat16>(call, body);
    default: return launch_with_type<ptx::tfloat32, float>(call, body);
  }
}

// Describes the boxes of one operand for copies of whole tiles.
template <class Tile>
cudaError_t encode_tiles(const Boxes& boxes, CUtensorMap* map) {
  return encode(boxes, kMapType<typename Tile::Element>, Tile::kBoxInner, Tile::kBoxOuter, true, map);
}

// Starts acc += A B over one stage for 64 rows of A from `line` and all columns of B; step 0 overwrites acc. The tensor
// cores are done when wgmma_wait says so; until then nothing else may touch acc or the tiles.
// Who calls: the threads of a warp group.
template <class TileA, class TileB, int kN>
TREDUCE_DEVICE void multiply_stage(float (&acc)[kN], const char* tile_a, const char* tile_b, int line, int step) {
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

// Writes the accumulators of a warp group, whose first output is (row, column), straight from the registers: pairs where
// pairs are aligned, and nothing past the edges.
template <class T, int kN>
TREDUCE_DEVICE void store_registers(const float (&acc)[kN / 2], T* c, int64_t row, int64_t column, int64_t m,
                                    int64_t n) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
  row += warp * 16 + lane / 4;
  column += lane % 4 * 2;
  const bool pairs = n % 2 == 0 && reinterpret_cast<uint64_t>(c) % (2 * sizeof(T)) == 0;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int64_t r = row + half * 8;
    if (r >= m) continue;
    T* line = c + r * n;
#pragma unroll
    for (int i = 0; i < kN / 8; ++i) {
      const int64_t j = column + i * 8;
      T pair[2] = {round_to<T>(acc[i * 4 + half * 2]), round_to<T>(acc[i * 4 + half * 2 + 1])};
      if (pairs && j < n) {
        using Pair = std::conditional_t<sizeof(T) == 2, uint32_t, uint2>;
        Pair word;
        memcpy(&word, pair, sizeof(word));
        *reinterpret_cast<Pair*>(line + j) = word;
      } else {
        if (j < n) line[j] = pair[0];
        if (j + 1 < n) line[j + 1] = pair[1];
      }
    }
  }
}

// The same through shared memory: columns of 64 outputs of 16 bits go to one of two buffers, swizzled, and the copy engine
// takes them from there while the next are being rounded. Needs kStagingBytes a warp group and `barrier` of its own.
constexpr int kStagingColumns = 64;
constexpr int kStagingBuffer = 64 * kRowBytes;
constexpr int kStagingBytes = 2 * kStagingBuffer;

template <class T, int kN>
TREDUCE_DEVICE void store_boxes(const float (&acc)[kN / 2], const CUtensorMap* map, char* staging, int row, int column,
                                int matrix, int barrier) {
  const int lane = threadIdx.x % 32, thread = threadIdx.x % kWarpGroup;
  const int line = thread / 32 * 16 + lane % 16;  // of the 64, whose 16 bytes this lane names
#pragma unroll
  for (int chunk = 0; chunk < kN / kStagingColumns; ++chunk) {
    char* const buffer = staging + chunk % 2 * kStagingBuffer;
    if (thread == 0) ptx::wait_stores_read<1>();
    named_barrier<kWarpGroup>(barrier);
#pragma unroll
    for (int i = 0; i < kStagingColumns / 16; ++i) {
      const float* from = acc + chunk * 32 + i * 8;
      uint32_t words[4];
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        const T pair[2] = {round_to<T>(from[w * 2]), round_to<T>(from[w * 2 + 1])};
        memcpy(words + w, pair, 4);
      }
      const int place = (i * 2 + lane / 16) ^ line % 8;
      ptx::store_matrices(buffer + line * kRowBytes + place * 16, words);
    }
    ptx::fence_async_proxy();
    named_barrier<kWarpGroup>(barrier);
    if (thread == 0) {
      ptx::store_box(map, {column + chunk * kStagingColumns, row, matrix, 0}, buffer);
      ptx::commit_stores();
    }
  }
}

// Rounds a pointer into shared memory up to where the swizzle begins; launches ask for kTileAlignment more.
TREDUCE_DEVICE char* aligned_tiles(char* shared) {
  const uint32_t address = ptx::shared_address(shared);
  return shared + ((address + kTileAlignment - 1) / kTileAlignment * kTileAlignment - address);
}

}  // namespace treduce::matmul::hopper
