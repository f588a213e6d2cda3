// The copy engine for the emulator: what csrc/primitives/ptx/tma.cuh gets from the hardware.
#pragma once

#include <cstring>
#include <vector>

#include "asynchronous.h"
#include "cuda.h"
#include "emulator.h"

namespace treduce::ptx {

struct Coordinates {
  int x, y, z, w;
};

inline void prefetch_tensor_map(const CUtensorMap* /*map*/) {}
inline bool elect_one() { return ::emulator::lane() == 0; }
inline void fence_async_proxy() {}
inline void fence_async_proxy_global() {}

// Calls row(bytes from the box's begin, address in the tensor, bytes of it that lie in the tensor) for each row of a box.
template <class Row>
void for_each_row(const CUtensorMap& map, const Coordinates& at, Row&& row) {
  const int64_t size = map.element_bytes(), row_bytes = map.box[0] * size;
  const auto inside = [&](int d, int64_t place) { return place >= 0 && place < static_cast<int64_t>(map.sizes[d]); };
  int64_t offset = 0;
  for (int64_t w = at.w; w < at.w + map.box[3]; ++w) {
    for (int64_t z = at.z; z < at.z + map.box[2]; ++z) {
      for (int64_t y = at.y; y < at.y + map.box[1]; ++y, offset += row_bytes) {
        const int64_t left = static_cast<int64_t>(map.sizes[0]) - at.x;
        const int64_t there = std::min<int64_t>(std::max<int64_t>(left, 0), map.box[0]);
        if (at.x < 0) ::emulator::fail("asks for a box that begins before the tensor", {"copy engine", 0});
        const bool exists = inside(1, y) && inside(2, z) && inside(3, w);
        const int64_t place = at.x * size + y * static_cast<int64_t>(map.strides[0]) +
                              z * static_cast<int64_t>(map.strides[1]) + w * static_cast<int64_t>(map.strides[2]);
        row(offset, map.data + (exists ? place : 0), exists ? there * size : 0);
      }
    }
  }
}

// Where the 16 bytes at `address` lie if rows of 16 << bits bytes are swizzled.
inline uint32_t swizzled(uint32_t address, int bits = 3) { return address ^ (address >> 7 & ((1u << bits) - 1)) << 4; }

inline std::vector<unsigned char> box_of(uint32_t to, const CUtensorMap& map, const Coordinates& at) {
  const int64_t row_bytes = map.box[0] * map.element_bytes();
  std::vector<unsigned char> data(row_bytes * map.box[1] * map.box[2] * map.box[3]);
  if (to % 128 != 0) ::emulator::fail("copies a box to an address that is no multiple of 128", {"copy engine", 0});
  if (map.swizzle != 0 && row_bytes != 16 << map.swizzle) {
    ::emulator::fail("swizzles rows of another width", {"copy engine", 0});
  }
  for_each_row(map, at, [&](int64_t offset, const unsigned char* from, int64_t bytes) {
    unsigned char row[256 * 8] = {};
    memcpy(row, from, bytes);
    if (map.type == CU_TENSOR_MAP_DATA_TYPE_TFLOAT32) {
      for (int64_t b = 0; b < bytes; b += 4) {
        uint32_t word;
        memcpy(&word, row + b, 4);
        if ((word & 0x7f800000u) != 0x7f800000u) word += 0xfffu + (word >> 13 & 1);  // to nearest, halves to even
        word &= ~0x1fffu;
        memcpy(row + b, &word, 4);
      }
    }
    for (int64_t b = 0; b < row_bytes; b += 16) {
      const uint32_t place = to + static_cast<uint32_t>(offset + b);
      memcpy(data.data() + (swizzled(place, map.swizzle) - to), row + b, 16);
    }
  });
  return data;
}

inline void load_box(uint32_t to, const CUtensorMap* map, const Coordinates& at, uint32_t barrier) {
  ::emulator::copy_bulk(to, box_of(to, *map, at), barrier);
}
inline void load_box(void* to, const CUtensorMap* map, const Coordinates& at, uint64_t* barrier) {
  load_box(::emulator::shared_address(to), map, at, ::emulator::shared_address(barrier));
}
inline void load_box_multicast(void* to, const CUtensorMap* map, const Coordinates& at, uint64_t* barrier,
                               uint16_t blocks) {
  const uint32_t place = ::emulator::shared_address(to), counter = ::emulator::shared_address(barrier);
  for (int rank = 0; rank < 16; ++rank) {
    if ((blocks >> rank & 1) != 0) ::emulator::copy_bulk(place, box_of(place, *map, at), counter, rank);
  }
}

inline void load_bytes(void* to, const void* from, unsigned bytes, uint64_t* barrier) {
  const auto first = static_cast<const unsigned char*>(from);
  if (reinterpret_cast<uintptr_t>(from) % 16 != 0 || bytes % 16 != 0) {
    ::emulator::fail("copies bytes that are no multiple of 16", {"copy engine", 0});
  }
  ::emulator::copy_bulk(::emulator::shared_address(to), {first, first + bytes}, ::emulator::shared_address(barrier));
}

inline void store_box(const CUtensorMap* map, const Coordinates& at, const void* from) {
  const uint32_t place = ::emulator::shared_address(from);
  if (place % 128 != 0) ::emulator::fail("stores a box from an address that is no multiple of 128", {"copy engine", 0});
  ::emulator::stores().add([map = *map, at, place] {
    for_each_row(map, at, [&](int64_t offset, unsigned char* to, int64_t bytes) {
      for (int64_t b = 0; b < bytes; b += 16) {
        const uint32_t chunk = place + static_cast<uint32_t>(offset + b);
        memcpy(to + b, ::emulator::shared_place(swizzled(chunk, map.swizzle), 16), std::min<int64_t>(16, bytes - b));
      }
    });
  });
}
inline void commit_stores() { ::emulator::stores().close(); }
template <int kPending>
void wait_stores_read() {
  ::emulator::stores().finish(kPending);
}

}  // namespace treduce::ptx
