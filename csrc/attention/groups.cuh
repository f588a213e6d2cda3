// What kernels of warp groups share (sm_90a): operands that the copy engine brings, and products of a warp group. A tile is 64 lines of the
// compiled width, as slabs of 64 columns, whose rows of 128 bytes the copy engine swizzles.
#pragma once

#include "../common/tensor_map.h"
#include "../primitives/ptx/tma.cuh"
#include "../primitives/ptx/wgmma.cuh"
#include "line_values.cuh"

namespace treduce::attention::groups {

constexpr int kRow = 128;  // bytes
constexpr int kColumns = 64, kSlab = kTile * kRow;
template <int kWidth>
constexpr int kTileBytes = kWidth / kColumns * kSlab;

// An operand, and which of its outer dims it is the same along.
struct Operand {
  CUtensorMap map;
  int by_head, by_batch;  // 0: the same for all

  // Asks for the tile from `row` on; `full` counts its bytes. One thread.
  template <int kWidth>
  TREDUCE_DEVICE void load(char* to, int64_t row, int64_t head, int64_t batch, uint64_t* full) const {
#pragma unroll
    for (int i = 0; i < kWidth / kColumns; ++i) {
      ptx::load_box(
          to + i * kSlab, &map,
          {i * kColumns, static_cast<int>(row), static_cast<int>(head) * by_head, static_cast<int>(batch) * by_batch},
          full);
    }
  }
};

inline cudaError_t describe(const Problem& p, const Matrices& m, int64_t heads, int64_t rows, int width,
                            Operand& operand) {
  operand.by_head = m.head != 0;
  operand.by_batch = m.batch != 0;
  const auto type = p.dtype == DType::float16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  const auto bytes = [&](int64_t stride) { return cuuint64_t(2 * (stride != 0 ? stride : round_up(width, 8))); };
  return describe_tensor(m.data, type,
                         {cuuint64_t(width), cuuint64_t(rows), cuuint64_t(m.head != 0 ? heads : 1),
                          cuuint64_t(m.batch != 0 ? p.batch : 1)},
                         {bytes(m.row), bytes(m.head), bytes(m.batch)}, {kColumns, kTile}, &operand.map);
}

// Aligns what begins anywhere in shared memory for swizzled tiles; launches ask for that much more.
TREDUCE_DEVICE char* aligned(char* shared) {
  const uint32_t address = ptx::shared_address(shared);
  return shared + (round_up(address, kTileAlignment) - address);
}

// The descriptor of a tile: with its columns as k, or, transposed, with its lines as k.
TREDUCE_DEVICE uint64_t descriptor(const char* tile, bool transposed) {
  const uint64_t address = ptx::shared_address(tile) >> 4 & 0x3fff;
  return address | static_cast<uint64_t>(transposed ? kSlab >> 4 : 1) << 16 | uint64_t{8 * kRow >> 4} << 32 |
         uint64_t{1} << 62;
}

template <int kN>
TREDUCE_DEVICE auto& flat(float (&sums)[kN][4]) {
  return reinterpret_cast<float (&)[kN * 4]>(sums);
}

// Starts s = A B^T along the width, for tiles of 64 lines.
template <class T, int kWidth>
TREDUCE_DEVICE void start_scores(float (&s)[kTile / 8][4], const char* a, const char* b) {
  const uint64_t of_a = descriptor(a, false), of_b = descriptor(b, false);
  ptx::wgmma_touch(flat(s));
  ptx::wgmma_fence();
#pragma unroll
  for (int k = 0; k < kWidth / 16; ++k) {
    const uint64_t offset = (k / 4 * kSlab + k % 4 * 32) >> 4;
    ptx::Wgmma<T, kTile, false, false>::multiply(flat(s), of_a + offset, of_b + offset, k > 0);
  }
  ptx::wgmma_commit();
  ptx::wgmma_touch(flat(s));
}

// Starts sums += P B, or sums = P B, for the 64 lines of B.
template <class T, int kWidth>
TREDUCE_DEVICE void start_sums(float (&sums)[kWidth / 8][4], uint32_t (&p)[kTile / 16][4], const char* b,
                               bool goes_on) {
  const uint64_t of_b = descriptor(b, true);
  ptx::wgmma_touch(flat(sums));
#pragma unroll
  for (int k = 0; k < kTile / 16; ++k) ptx::wgmma_touch(p[k]);
  ptx::wgmma_fence();
#pragma unroll
  for (int k = 0; k < kTile / 16; ++k) {
    ptx::WgmmaHeld<T, kWidth, true>::multiply(flat(sums), p[k], of_b + (k * 16 * kRow >> 4), goes_on || k > 0);
  }
  ptx::wgmma_commit();
  ptx::wgmma_touch(flat(sums));
}

// Waits until all but the last kPending products are there, of which `sums` is one.
template <int kPending, int kN>
TREDUCE_DEVICE void wait_for(float (&sums)[kN][4]) {
  ptx::wgmma_wait<kPending>();
  ptx::wgmma_touch(flat(sums));
}

// The values that a lane holds of a tile of scores as the operand of its next product.
template <class T>
TREDUCE_DEVICE void round_scores(uint32_t (&words)[kTile / 16][4], const float (&s)[kTile / 8][4]) {
#pragma unroll
  for (int k = 0; k < kTile / 16; ++k) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      words[k][i] = word_of<T>(s[2 * k + i / 2][i % 2 * 2], s[2 * k + i / 2][i % 2 * 2 + 1]);
    }
  }
}

// Stages of a ring: `full` counts the bytes that arrive, `empty` the warps that are done.
template <int kStages>
struct Ring {
  uint64_t full[kStages], empty[kStages];

  TREDUCE_DEVICE void init(int readers) {
    for (int s = 0; s < kStages; ++s) {
      ptx::mbarrier_init(full + s, 1);
      ptx::mbarrier_init(empty + s, readers);
    }
  }
  TREDUCE_DEVICE static int stage(int step) { return step % kStages; }
  TREDUCE_DEVICE static unsigned parity(int step) { return step / kStages % 2; }

  // The thread that copies: waits until the stage is free; the barrier of its bytes.
  TREDUCE_DEVICE uint64_t* begin(int step, int bytes) {
    ptx::mbarrier_wait(empty + stage(step), parity(step) ^ 1);  // the first round waits for nobody
    ptx::mbarrier_arrive_expect(full + stage(step), bytes);
    return full + stage(step);
  }
  TREDUCE_DEVICE void wait(int step) { ptx::mbarrier_wait(full + stage(step), parity(step)); }
  TREDUCE_DEVICE void release(int step) {  // a warp
    __syncwarp();                          // all of its lanes have read
    if (threadIdx.x % warp::kLanes == 0) ptx::mbarrier_arrive(empty + stage(step));
  }
};

}  // namespace treduce::attention::groups
