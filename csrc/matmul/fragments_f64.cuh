// Fragments of float64 from the tiles of staged.cuh: a lane loads its elements one by one, 16 lanes from every bank once.
#pragma once

#include "staged.cuh"

namespace treduce::matmul::staged {

// k in steps of `depth`, rounded up.
TREDUCE_DEVICE int steps_of(int k, int depth) {
  return static_cast<int>((static_cast<unsigned>(k) + static_cast<unsigned>(depth) - 1) / static_cast<unsigned>(depth));
}

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

}  // namespace treduce::matmul::staged
