// The outputs that a thread keeps in registers: loading their factors from shared memory in fragments of 16 bytes, multiply-adds,
// and the epilogue.
#pragma once

#include "stage.cuh"

namespace treduce::matmul {

// kRows x kColumns outputs. Each kFragment rows of them are neighbours, and these fragments are kRowGap rows apart, with those of
// other threads between them; columns likewise, kColumnGap apart.
template <class T, int kRows, int kColumns, int kRowGap, int kColumnGap>
struct Outputs {
  static_assert(kRows % kFragment<T> == 0 && kColumns % kFragment<T> == 0);

  // The factors of one place along k: an element of each row of A and of each column of B.
  struct Factors {
    Acc<T> a[kRows], b[kColumns];

    // a and b: the thread's first fragments, in shared memory on 16-byte boundaries.
    TREDUCE_DEVICE void load(const Acc<T>* from_a, const Acc<T>* from_b) {
#pragma unroll
      for (int f = 0; f < kRows / kFragment<T>; ++f) load_fragment(a + f * kFragment<T>, from_a + f * kRowGap);
#pragma unroll
      for (int f = 0; f < kColumns / kFragment<T>; ++f) load_fragment(b + f * kFragment<T>, from_b + f * kColumnGap);
    }

   private:
    TREDUCE_DEVICE static void load_fragment(Acc<T>* to, const Acc<T>* from) {
      const int4 words = *reinterpret_cast<const int4*>(from);
      memcpy(to, &words, sizeof(words));
    }
  };

  Acc<T> sum[kRows][kColumns];

  TREDUCE_DEVICE void clear() {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
#pragma unroll
      for (int j = 0; j < kColumns; ++j) sum[i][j] = 0;
    }
  }

  TREDUCE_DEVICE void add(const Factors& factors) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
#pragma unroll
      for (int j = 0; j < kColumns; ++j) sum[i][j] = multiply_add(factors.a[i], factors.b[j], sum[i][j]);
    }
  }

  // `column`: the thread's first, of n.
  TREDUCE_DEVICE void add_bias(const Result<T>* bias, int64_t column, int64_t n) {
#pragma unroll
    for (int j = 0; j < kColumns; ++j) {
      const int64_t at = column + j / kFragment<T> * kColumnGap + j % kFragment<T>;
      if (at >= n) continue;
      const Acc<T> value = static_cast<Acc<T>>(bias[at]);
#pragma unroll
      for (int i = 0; i < kRows; ++i) sum[i][j] += value;
    }
  }

  // c: the thread's first output, in rows of n; `rows` and `columns`: how many are left from there to the edges.
  TREDUCE_DEVICE void store(Result<T>* c, int64_t n, int64_t rows, int64_t columns) const {
    struct alignas(kFragment<T> * sizeof(Result<T>)) Fragment {
      Result<T> at[kFragment<T>];
    };
    const bool whole = n % kFragment<T> == 0 && reinterpret_cast<uintptr_t>(c) % sizeof(Fragment) == 0;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int row = i / kFragment<T> * kRowGap + i % kFragment<T>;
      if (row >= rows) continue;
#pragma unroll
      for (int j = 0; j < kColumns; j += kFragment<T>) {
        const int column = j / kFragment<T> * kColumnGap;
        Result<T>* to = c + row * n + column;
        Fragment fragment;
#pragma unroll
        for (int e = 0; e < kFragment<T>; ++e) fragment.at[e] = round_to<Result<T>>(sum[i][j + e]);
        if (whole) {
          if (column < columns) *reinterpret_cast<Fragment*>(to) = fragment;
        } else {
#pragma unroll
          for (int e = 0; e < kFragment<T>; ++e) {
            if (column + e < columns) to[e] = fragment.at[e];
          }
        }
      }
    }
  }
};

// A warp as 8 x 4 threads. Lanes that differ in bit 0 read the same fragment of A, lanes that differ in bit 1 the same fragment
// of B. Only so does the hardware serve two quarters of a warp at once, and a 16-byte load takes two cycles and not four.
struct WarpShape {
  static constexpr int kRows = 8, kColumns = 4;
  TREDUCE_DEVICE static int row(int lane) { return lane >> 1 & 7; }
  TREDUCE_DEVICE static int column(int lane) { return (lane & 1) | (lane >> 4) << 1; }
};

}  // namespace treduce::matmul
