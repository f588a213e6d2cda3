// A tile of an operand in shared memory, as warp-group multiplications read it and as the copy engine writes it (sm_90a). A tile
// is rows of 128 bytes. The hardware swizzles their 16-byte chunks, chunk c of row r to c ^ r % 8, so that a column of chunks
// touches every bank once.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include "../common/float16.h"
#include "../common/tensor_map.h"
#include "../primitives/ptx/tma.cuh"
#include "../primitives/ptx/wgmma.cuh"
#include "operand.h"
#include "shapes.h"

namespace treduce::matmul::hopper {

template <class T>
constexpr int kElementBytes = 2;
template <>
constexpr int kElementBytes<ptx::tfloat32> = 4;
template <>
constexpr int kElementBytes<int8_t> = 1;

// k of a tile, and of one multiplication within it.
template <class T>
constexpr int kDepth = kRowBytes / kElementBytes<T>;
template <class T>
constexpr int kStep = 32 / kElementBytes<T>;

// Of rows of so many bytes, within which their 16-byte chunks are swizzled.
constexpr CUtensorMapSwizzle swizzle_of(int row_bytes) {
  return row_bytes == 32   ? CU_TENSOR_MAP_SWIZZLE_32B
         : row_bytes == 64 ? CU_TENSOR_MAP_SWIZZLE_64B
                           : CU_TENSOR_MAP_SWIZZLE_128B;
}

// kLines lines of kDepth elements. kAlongK: a row of the tile is a line; else a row is a step of k over 64 lines, and the
// tile is a sequence of slabs of 64 lines.
template <class T, int kLines, bool kAlongK>
struct Tile {
  static_assert(kAlongK || (kElementBytes<T> == 2 && kLines % 64 == 0), "slabs are 64 lines of 16 bits");
  using Element = T;
  static constexpr bool kTransposed = !kAlongK;  // as a multiplication sees it
  static constexpr int kBytes = kLines * kRowBytes;
  static constexpr int kSlabBytes = 64 * kRowBytes;

  // The box that one copy brings.
  static constexpr int kBoxInner = kDepth<T>;
  static constexpr int kBoxOuter = kAlongK ? kLines : kDepth<T>;
  static constexpr int kBoxes = kAlongK ? 1 : kLines / 64;
  static constexpr int kBoxBytes = kBytes / kBoxes;

  // A part of a tile, from `first` on: fewer lines, or of slabs fewer steps of k; a multiple of eight. It comes to all of the `blocks` of the
  // cluster, a bit each.
  // Who calls: one thread in each of them, for a part each.
  TREDUCE_DEVICE static void load_part(char* tile, const CUtensorMap* map, int line, int k, int2 batch, uint64_t* full,
                                       int first, uint16_t blocks) {
#pragma unroll
    for (int i = 0; i < kBoxes; ++i) {
      const ptx::Coordinates at = kAlongK ? ptx::Coordinates{k, line + first, batch.y, batch.x}
                                          : ptx::Coordinates{line + i * 64, k + first, batch.y, batch.x};
      ptx::load_box_multicast(tile + i * kBoxBytes + first * kRowBytes, map, at, full, blocks);
    }
  }

  // Who calls: one thread. kBlocks > 1: to every block of the cluster.
  template <int kBlocks = 1>
  TREDUCE_DEVICE static void load(char* tile, const CUtensorMap* map, int line, int k, int2 batch, uint64_t* full) {
#pragma unroll
    for (int i = 0; i < kBoxes; ++i) {
      const ptx::Coordinates at =
          kAlongK ? ptx::Coordinates{k, line, batch.y, batch.x} : ptx::Coordinates{line + i * 64, k, batch.y, batch.x};
      if constexpr (kBlocks > 1) {
        ptx::load_box_multicast(tile + i * kBoxBytes, map, at, full, (1u << kBlocks) - 1);
      } else {
        ptx::load_box(tile + i * kBoxBytes, map, at, full);
      }
    }
  }

  // The descriptor of the part that begins at `line`, a multiple of 64 (of 8 if kAlongK), for multiplication `step` of the tile.
  // PTX ISA, "Matrix descriptor": address, two strides, swizzle of 128 bytes.
  TREDUCE_DEVICE static uint64_t descriptor(const char* tile, int line, int step) {
    constexpr uint64_t kEightRows = 8 * kRowBytes >> 4;
    constexpr uint64_t kSlab = kSlabBytes >> 4;
    const uint32_t offset =
        kAlongK ? line * kRowBytes + step * 32 : line / 64 * kSlabBytes + step * kStep<T> * kRowBytes;
    const uint64_t address = (ptx::shared_address(tile) + offset) >> 4 & 0x3fff;
    return address | (kAlongK ? 1 : kSlab) << 16 | kEightRows << 32 | uint64_t(1) << 62;
  }

  // The low word of the descriptor of the tile's begin, and the descriptor of a part of that tile: they differ by a constant.
  TREDUCE_DEVICE static uint32_t low_word(const char* tile) {
    return (ptx::shared_address(tile) >> 4 & 0x3fff) | (kAlongK ? 1 : kSlabBytes >> 4) << 16;
  }
  TREDUCE_DEVICE static uint64_t descriptor(uint32_t low_word, int line, int step) {
    const int offset = kAlongK ? line * kRowBytes + step * 32 : line / 64 * kSlabBytes + step * kStep<T> * kRowBytes;
    return uint64_t(1 << 30 | 8 * kRowBytes >> 4) << 32 | (low_word + (offset >> 4));
  }

  // The same for a block in no cluster, where k is contiguous. Shared addresses have fewer than 18 bits there, so no mask is
  // needed and the descriptors of a tile differ by constants.
  TREDUCE_DEVICE static uint64_t lone_descriptor(const char* tile, int line, int step) {
    static_assert(kAlongK);
    const uint32_t low = (ptx::shared_address(tile) >> 4 | 1 << 16) + (line * kRowBytes + step * 32 >> 4);
    return uint64_t(1 << 30 | 8 * kRowBytes >> 4) << 32 | low;
  }
};

// Describes `boxes` for swizzled copies of box_inner x box_outer elements, rows of 128 bytes or as `swizzle` says.
inline cudaError_t encode(const Boxes& boxes, CUtensorMapDataType type, int box_inner, int box_outer, CUtensorMap* map,
                          Fetch fetch = Fetch::pairs, CUtensorMapSwizzle swizzle = CU_TENSOR_MAP_SWIZZLE_128B) {
  const cuuint64_t bytes = boxes.element_bytes;
  return describe_tensor(boxes.data, type,
                         {cuuint64_t(boxes.inner), cuuint64_t(boxes.outer), cuuint64_t(boxes.batch_size[1]),
                          cuuint64_t(boxes.batch_size[0])},
                         {boxes.pitch * bytes, boxes.batch_pitch[1] * bytes, boxes.batch_pitch[0] * bytes},
                         {cuuint32_t(box_inner), cuuint32_t(box_outer)}, map, fetch, 1, swizzle);
}

template <class T>
constexpr CUtensorMapDataType kMapType = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
template <>
constexpr CUtensorMapDataType kMapType<float16> = CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
template <>
constexpr CUtensorMapDataType kMapType<ptx::tfloat32> = CU_TENSOR_MAP_DATA_TYPE_TFLOAT32;
template <>
constexpr CUtensorMapDataType kMapType<int8_t> = CU_TENSOR_MAP_DATA_TYPE_UINT8;  // a copy knows no signs

// Of results, which nothing rounds on their way.
template <class Out>
constexpr CUtensorMapDataType kResultMapType = kMapType<Out>;
template <>
constexpr CUtensorMapDataType kResultMapType<float> = CU_TENSOR_MAP_DATA_TYPE_FLOAT32;

}  // namespace treduce::matmul::hopper
