// Epilogues of the warp-group rungs: how sums in registers get their bias and are stored, from registers, by way of shared
// memory, or added to C. ptx/wgmma.cuh says which sums a thread holds.
#pragma once

#include <type_traits>

#include "../primitives/ptx/matrix.cuh"
#include "../primitives/ptx/opaque.cuh"
#include "hopper.cuh"

namespace treduce::matmul::hopper {

// For each pair of neighbouring outputs that a thread holds of the tile at (row, column): calls
// visit(index of the first sum, address in C, how many of the two exist).
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

// Adds the bias, if there is one, to the sums of a tile whose first column is `column` of n.
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
    add(std::true_type{});  // no branches, so all loads are in flight together
  } else {
    add(std::false_type{});
  }
}

// The same for a tile of the transposed product: its rows are columns of C, the first of them `row` of n.
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

// Stores the sums of a warp group from registers, in pairs if pairs are aligned. Nothing past the edges is written.
template <class T, int kN, class Sum>
TREDUCE_DEVICE void store_registers(const Sum (&acc)[kN / 2], T* c, int64_t row, int64_t column, int64_t m, int64_t n) {
  const bool pairs = aligned_pairs(c, n);
  for_each_pair<kN>(c, row, column, m, n,
                    [&](int i, T* to, int count) { store_pair(to, acc[i], acc[i + 1], pairs, count == 2); });
}

struct NoLook {};

// Stores the sums, or adds them to C, which the same threads wrote before, and clears them. `bias`: null unless these are the last sums
// of these outputs. look(which of the lane's two rows, output): at each that is stored.
template <int kN, class Look = NoLook>
TREDUCE_DEVICE void flush_registers(float (&acc)[kN / 2], float* c, int64_t row, int64_t column, int64_t m, int64_t n,
                                    bool add, const float* bias, Look look = {}) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
  row += warp * 16 + lane / 4;
  column += lane % 4 * 2;
  const int across = static_cast<int>(min(n - column, int64_t(kN)));
  const int columns_left[2] = {row < m ? across : 0, row + 8 < m ? across : 0};  // of either of the lane's rows
  // Both rows begin where the compiler is told, so that it computes no address of a single output.
  float* const first = ptx::opaque(c + row * n + column);
  float* const second = ptx::opaque(first + 8 * n);
  // visit(the first of two neighbouring sums, columns to it, its address, columns that are left) of each two.
  const auto for_each = [&](auto visit) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int j = 0; j < kN; j += 8) {
        visit(acc + j / 2 + half * 2, j, (half == 0 ? first : second) + j, columns_left[half]);
      }
    }
  };
  const bool aligned = aligned_pairs(c, n);
  if (add && aligned) {
    for_each([&](float* sums, int j, const float* from, int left) {
      if (j >= left) return;
      const float2 before = *reinterpret_cast<const float2*>(from);
      sums[0] = before.x + sums[0], sums[1] = before.y + sums[1];
    });
  } else if (add) {
    for_each([&](float* sums, int j, const float* from, int left) {
      if (j < left) sums[0] = from[0] + sums[0];
      if (j + 1 < left) sums[1] = from[1] + sums[1];
    });
  }
  if (bias != nullptr) {
    const float* const of_column = ptx::opaque(bias + column);
#pragma unroll
    for (int j = 0; j < kN; j += 8) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float more = j + i < across ? __ldg(of_column + j + i) : 0.0f;
        acc[j / 2 + i] = canonical(acc[j / 2 + i] + more);
        acc[j / 2 + 2 + i] = canonical(acc[j / 2 + 2 + i] + more);
      }
    }
  }
  if constexpr (!std::is_same_v<Look, NoLook>) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int i = 0; i < kN / 4; ++i) {
        if (i / 2 * 8 + i % 2 < columns_left[half]) look(half, acc[i / 2 * 4 + half * 2 + i % 2]);
      }
    }
  }
  if (aligned) {
    for_each([&](const float* sums, int j, float* to, int left) {
      if (j < left) *reinterpret_cast<float2*>(to) = {sums[0], sums[1]};
    });
  } else {
    for_each([&](const float* sums, int j, float* to, int left) {
      if (j < left) to[0] = sums[0];
      if (j + 1 < left) to[1] = sums[1];
    });
  }
#pragma unroll
  for (int i = 0; i < kN / 2; ++i) acc[i] = 0;
}

// store_registers for a tile of the transposed product: its rows are columns of C.
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

// Stores by way of shared memory, so that whole rows leave at once: kStagedColumns at a time, alternately through two buffers. A warp
// group needs kStagingBytes, and a named barrier of its own.
template <class T>
constexpr int kStagedColumns = staging_columns(sizeof(T));

// Rounds kColumns columns of accumulators, at most a buffer's, into it, swizzled. Synchronises before; the caller after.
template <class T, int kColumns>
TREDUCE_DEVICE void stage_columns(const float* acc, char* buffer, int barrier) {
  const int lane = threadIdx.x % 32, first = threadIdx.x % kWarpGroup / 32 * 16;  // of this warp's lines of the 64
  named_barrier<kWarpGroup>(barrier);
  if constexpr (sizeof(T) == 2) {
    const int line = first + lane % 16;  // this lane gives the address of its 16 bytes
#pragma unroll
    for (int i = 0; i < kColumns / 16; ++i) {
      uint32_t words[4];
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        const T pair[2] = {round_to<T>(acc[i * 8 + w * 2]), round_to<T>(acc[i * 8 + w * 2 + 1])};
        memcpy(words + w, pair, 4);
      }
      ptx::store_matrices(buffer + line * kRowBytes + ((i * 2 + lane / 16) ^ line % 8) * 16, words);
    }
  } else {
    const int line = first + lane / 4;
#pragma unroll
    for (int i = 0; i < kColumns / 8; ++i) {
      char* const to = buffer + line * kRowBytes + ((i * 2 + lane % 4 / 2) ^ line % 8) * 16 + lane % 2 * 8;
      const float* const sums = acc + i * 4;
      *reinterpret_cast<float2*>(to) = {round_to<T>(sums[0]), round_to<T>(sums[1])};
      *reinterpret_cast<float2*>(to + 8 * kRowBytes) = {round_to<T>(sums[2]), round_to<T>(sums[3])};
    }
  }
}

// The first of the two elements of 16 bits in a word.
template <class T>
TREDUCE_DEVICE T low_half(uint32_t word) {
  T element;
  memcpy(&element, &word, sizeof(element));
  return element;
}

// Stores a buffer's columns of a warp's 16 rows, where the copy engine cannot address rows of C: 32-bit words of a row at a time. If a
// row of 16 bits begins between two words, one output is left at either end and stored by itself. `c`: the first of the 64 rows.
// Who calls: every lane of the warp that staged these rows, after __syncwarp().
template <class T>
TREDUCE_DEVICE void store_rows(const char* buffer, T* c, int64_t n, int64_t rows_left, int columns_left) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x % kWarpGroup / 32;
  const int rows = static_cast<int>(min(rows_left - warp * 16, int64_t(16)));
  const char* const staged = buffer + warp * 16 * kRowBytes;
  T* to = c + warp * 16 * n;
  constexpr int kBatch = 4;  // rows whose words are loaded before any is stored
#pragma unroll 1
  for (int first = 0; first < rows; first += kBatch) {
    const auto staged_word = [&](int row, int w) {
      return *reinterpret_cast<const uint32_t*>(staged + row * kRowBytes + (w / 4 ^ row % 8) * 16 + w % 4 * 4);
    };
    uint32_t words[kBatch], next[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      words[i] = staged_word(first + i, lane);
      if constexpr (sizeof(T) == 2) next[i] = staged_word(first + i, (lane + 1) % 32);
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i, to += n) {
      if (first + i >= rows) continue;
      if constexpr (sizeof(T) == 4) {
        if (lane < columns_left) to[lane] = __uint_as_float(words[i]);
      } else {
        // Where a row begins between two words, the second half of this lane's and the first of the next.
        const int skew = reinterpret_cast<uint64_t>(to) % 4 / 2, j = lane * 2 + skew;
        const uint32_t word = skew == 1 ? __funnelshift_r(words[i], next[i], 16) : words[i];
        if (j + 1 < columns_left) {
          *reinterpret_cast<uint32_t*>(to + j) = word;
        } else if (j < columns_left) {
          to[j] = low_half<T>(word);
        }
        if (skew == 1 && lane == 0 && columns_left > 0) to[0] = low_half<T>(words[i]);
      }
    }
  }
}

// The same of kColumns columns, fewer than a box has, where rows of C begin at multiples of 16 bytes.
template <int kColumns, class T>
TREDUCE_DEVICE void store_vectors(const char* buffer, T* c, int64_t n, int64_t rows_left, int columns_left) {
  constexpr int kSize = 16 / sizeof(T), kVectors = kColumns / kSize;  // of a row
  const int lane = threadIdx.x % 32, warp = threadIdx.x % kWarpGroup / 32;
#pragma unroll
  for (int i = 0; i < 16 * kVectors / 32; ++i) {
    const int line = warp * 16 + (i * 32 + lane) / kVectors, vector = (i * 32 + lane) % kVectors;
    if (line >= rows_left || vector * kSize >= columns_left) continue;
    *reinterpret_cast<uint4*>(c + line * n + vector * kSize) =
        *reinterpret_cast<const uint4*>(buffer + line * kRowBytes + (vector ^ line % 8) * 16);
  }
}

// Stores the sums of a warp group by way of shared memory. The copy engine takes a buffer while the next columns are rounded into
// the other, if `boxes`, where `map` is C's; else the warps store its rows. (row, column) is in matrix `index` of C, which begins
// at `c`.
template <class T, int kN>
TREDUCE_DEVICE void store_staged(const float (&acc)[kN / 2], bool boxes, const CUtensorMap* map, T* c, char* staging,
                                 int row, int column, int64_t m, int64_t n, int index, int barrier) {
  constexpr int kColumns = kStagedColumns<T>, kLast = kN % kColumns;  // columns that fill no box
  static_assert(kLast % 16 == 0);
  const bool elected = threadIdx.x % kWarpGroup == 0;
#pragma unroll
  for (int chunk = 0; chunk < kN / kColumns; ++chunk) {
    char* const buffer = staging + chunk % 2 * kStagingBuffer;
    const int first = column + chunk * kColumns;
    // The buffer is free when its last store has read it: the last store but one, or at the start of a tile maybe the last.
    if (elected && boxes) chunk == 0 ? ptx::wait_stores_read<0>() : ptx::wait_stores_read<1>();
    stage_columns<T, kColumns>(acc + chunk * (kColumns / 2), buffer, barrier);
    if (boxes) {
      ptx::fence_async_proxy();
      named_barrier<kWarpGroup>(barrier);
      if (elected) {
        ptx::store_box(map, {first, row, index, 0}, buffer);
        ptx::commit_stores();
      }
    } else {
      __syncwarp();
      store_rows(buffer, c + row * n + first, n, m - row, static_cast<int>(min(int64_t(kColumns), n - first)));
    }
  }
  if constexpr (kLast > 0) {
    constexpr int kChunk = kN / kColumns;
    char* const buffer = staging + kChunk % 2 * kStagingBuffer;
    const int first = column + kChunk * kColumns;
    if (elected && boxes) ptx::wait_stores_read<1>();
    stage_columns<T, kLast>(acc + kChunk * (kColumns / 2), buffer, barrier);
    __syncwarp();
    T* const to = c + row * n + first;
    const int columns_left = static_cast<int>(min(int64_t(kLast), n - first));
    if (boxes) {
      store_vectors<kLast>(buffer, to, n, m - row, columns_left);
    } else {
      store_rows(buffer, to, n, m - row, columns_left);
    }
  }
}

}  // namespace treduce::matmul::hopper
