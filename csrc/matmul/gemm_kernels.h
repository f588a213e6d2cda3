// Idea: a tile of outputs stays in vector registers while k runs. A row of the tile shares an element of A, a column
// shares a vector of B: 8 x 32 outputs need 40 loads for 256 multiply-adds.
//
// Mapping: a task owns a block of outputs. Along k it goes in steps that fit the cache: it packs its part of A and of B
//          so that the tile reads both from front to back, widened to the accumulator's type, then runs all its tiles.
//          Between two steps the accumulators wait in scratch, unrounded, so the steps change no bit.
//          Few rows read B where it lies, if its rows or its columns are contiguous: packing would not be shared by enough of them.
// Note:    gemm_avx512.cpp, gemm_avx2.cpp and gemm_baseline.cpp compile this for their instruction sets. Each has a fused
//          multiply-add or calls the C library's, which is slower and gives the same bits.
#pragma once

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "gemm.h"

// A body that must take on the instruction set of the function around it.
#define TREDUCE_INLINE inline __attribute__((always_inline))

namespace treduce::matmul {
namespace {

// A register tile has kRows rows of kVectors vectors. What the instruction set has room for.
struct Avx512 {
  static constexpr int kRows = 8, kVectors = 2, kVectorBytes = 64;
  static constexpr bool kFuses = true;  // has a fused multiply-add
};
struct Avx2 {
  static constexpr int kRows = 6, kVectors = 2, kVectorBytes = 32;
  static constexpr bool kFuses = true;
};
struct Baseline {
  static constexpr int kRows = 4, kVectors = 2, kVectorBytes = 16;
#ifdef FP_FAST_FMAF
  static constexpr bool kFuses = true;
#else
  static constexpr bool kFuses = false;
#endif
};

constexpr int64_t kStepsOfFewRows = 128;
constexpr int kPrefetchBytes = 256;
// Into the second cache: lines a power of two apart would displace each other in the first. Hardware alone begins anew in every page.
constexpr int kAheadOfSquares = 512;
constexpr int64_t kDepth = 256;
constexpr int64_t kDepthOfFewRows = 8192;  // steps of k whose factors of few rows stay in the second cache

template <class Isa, class A>
struct RegisterTile {
  static constexpr int kRows = Isa::kRows;
  static constexpr int kLanes = Isa::kVectorBytes / sizeof(A);
  static constexpr int kColumns = Isa::kVectors * kLanes;
  static constexpr int kSize = kRows * kColumns;

  // c += a b, for a panel of A (depth x kRows) and one of B (depth x kColumns). The pragmas give the compiler exactly
  // one vector instruction for each innermost loop and no loop around them.
  TREDUCE_INLINE static void update(const A* __restrict a, const A* __restrict b, int64_t depth, A* __restrict c) {
    A acc[kRows][Isa::kVectors][kLanes];
    std::copy_n(c, kSize, &acc[0][0][0]);
    for (int64_t p = 0; p < depth; ++p) {
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
        for (int v = 0; v < Isa::kVectors; ++v) {
#pragma GCC unroll 1
          for (int l = 0; l < kLanes; ++l) {
            acc[r][v][l] = multiply_add(a[p * kRows + r], b[p * kColumns + v * kLanes + l], acc[r][v][l]);
          }
        }
      }
    }
    std::copy_n(&acc[0][0][0], kSize, c);
  }
};

// One operand of a task: element (line, p) lies at data[line * line_stride + p * depth_stride]. Lines are rows of A,
// columns of B.
template <class T>
struct Lines {
  const T* data;
  int64_t line_stride, depth_stride, count;
};

// Squares of words, a row a vector.
template <class Isa, class Word>
struct Square {
  static constexpr int kSide = Isa::kVectorBytes / sizeof(Word);
  // Words of 16 bytes: within them, and by them, vectors are cheap to shuffle.
  static constexpr int kBlock = 16 / sizeof(Word);
  static constexpr int kBlocks = kSide / kBlock;
  typedef Word Vector __attribute__((vector_size(Isa::kVectorBytes)));

  // Rows become columns: first in squares of kBlock, then of such squares.
  TREDUCE_INLINE static void transpose(Vector* rows) {
    Vector next[kSide];
#pragma GCC unroll 2
    for (int step = 1; step < kBlock; step *= 2) {
#pragma GCC unroll 16
      for (int i = 0; i < kSide; i += kBlock) {
#pragma GCC unroll 2
        for (int k = 0; k < kBlock / 2; ++k) {
          interleave(rows[i + k], rows[i + k + kBlock / 2], next[i + 2 * k], next[i + 2 * k + 1], Lanes{});
        }
      }
      std::copy_n(next, kSide, rows);
    }
#pragma GCC unroll 2
    for (int step = 1; step < kBlocks; step *= 2) {
#pragma GCC unroll 4
      for (int s = 0; s < kBlock; ++s) {
#pragma GCC unroll 2
        for (int q = 0; q < kBlocks / 2; ++q) {
          part(rows[2 * q * kBlock + s], rows[(2 * q + 1) * kBlock + s], next[q * kBlock + s],
               next[(q + kBlocks / 2) * kBlock + s], Lanes{});
        }
      }
      std::copy_n(next, kSide, rows);
    }
  }

 private:
  using Lanes = std::make_integer_sequence<int, kSide>;
  // Within blocks: words of a and b in turn, of the first halves and of the second.
  static constexpr int in_turn(int i, int half) {
    return i % 2 * kSide + i / kBlock * kBlock + half * kBlock / 2 + i % kBlock / 2;
  }
  // The even (or odd) blocks of a, then those of b.
  static constexpr int of_blocks(int i, int odd) {
    const int j = i / kBlock;
    return j / (kBlocks / 2) * kSide + (j % (kBlocks / 2) * 2 + odd) * kBlock + i % kBlock;
  }
  template <int... kLane>
  TREDUCE_INLINE static void interleave(const Vector& a, const Vector& b, Vector& low, Vector& high,
                                        std::integer_sequence<int, kLane...>) {
    low = __builtin_shuffle(a, b, Vector{Word(in_turn(kLane, 0))...});
    high = __builtin_shuffle(a, b, Vector{Word(in_turn(kLane, 1))...});
  }
  template <int... kLane>
  TREDUCE_INLINE static void part(const Vector& a, const Vector& b, Vector& even, Vector& odd,
                                  std::integer_sequence<int, kLane...>) {
    even = __builtin_shuffle(a, b, Vector{Word(of_blocks(kLane, 0))...});
    odd = __builtin_shuffle(a, b, Vector{Word(of_blocks(kLane, 1))...});
  }
};

// The e-th element of each word, widened. By reference: GCC notes that the ABI of vectors passed by value has changed.
template <class T, class Words>
TREDUCE_INLINE void widen(const Words& packed, int e, Acc<T>* to) {
  Words words = packed;
  typedef Acc<T> Values __attribute__((vector_size(sizeof(Words))));
  Values values;
  if constexpr (sizeof(T) == sizeof(words[0])) {
    values = (Values)words;
  } else if constexpr (std::is_same_v<T, bfloat16>) {
    values = (Values)(e == 0 ? words << 16 : words & 0xffff0000u);
  } else {
    static_assert(std::is_same_v<T, float16>);
    if (e > 0) words >>= 16;
#ifdef TREDUCE_AVX512
    values = (Values)_mm512_cvtph_ps(_mm512_cvtepi32_epi16((__m512i)words));
#else  // as float16.h has it, without a branch
    const Words magnitude = (Words)((Values)((words & 0x7fffu) << 13) * 0x1p112f);
    const Words special = (Words)((words & 0x7c00u) == 0x7c00u) & 0x7f800000u;
    values = (Values)(magnitude | special | (words & 0x8000u) << 16);
#endif
  }
  std::memcpy(to, &values, sizeof(values));
}

// pack for a full panel of lines that are contiguous along k: as many steps as whole squares of words have; a word has the elements of
// one step or of several. Returns how many.
template <class Isa, int kWidth, class T>
TREDUCE_INLINE int64_t pack_squares(const T* from, int64_t line_stride, int64_t depth, Acc<T>* panel) {
  using Word = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;
  using S = Square<Isa, Word>;
  constexpr int kSide = S::kSide, kInWord = sizeof(Word) / sizeof(T), kSteps = kSide * kInWord;
  if constexpr (kWidth % kSide != 0 || !std::is_floating_point_v<Acc<T>>) {
    return 0;
  } else {
    const int64_t whole = depth / kSteps * kSteps;
    for (int first = 0; first < kWidth; first += kSide) {
      for (int64_t p = 0; p < whole; p += kSteps) {
        typename S::Vector rows[kSide];
        for (int i = 0; i < kSide; ++i) {
          const T* const line = from + (first + i) * line_stride + p;
          std::memcpy(&rows[i], line, sizeof(rows[i]));
          __builtin_prefetch(line + kPrefetchBytes / sizeof(T));
        }
        S::transpose(rows);
        for (int j = 0; j < kSide; ++j) {
          for (int e = 0; e < kInWord; ++e) widen<T>(rows[j], e, panel + (p + j * kInWord + e) * kWidth + first);
        }
      }
    }
    return whole;
  }
}

// Copies steps begin <= p < begin + depth into panels of kWidth lines, each depth x kWidth, the last filled up with
// zeros.
template <class Isa, int kWidth, class T>
TREDUCE_INLINE void pack(const Lines<T>& lines, int64_t begin, int64_t depth, Acc<T>* panels) {
  const T* const from = lines.data + begin * lines.depth_stride;
  const int64_t full = lines.count / kWidth * kWidth;
  if (lines.line_stride == 1) {  // a step after another: so many lines side by side are read at once
    for (int64_t p = 0; p < depth; ++p) {
      for (int64_t first = 0; first < full; first += kWidth) {
        for (int l = 0; l < kWidth; ++l) {
          panels[first * depth + p * kWidth + l] = static_cast<Acc<T>>(from[first + p * lines.depth_stride + l]);
        }
      }
    }
  }
  for (int64_t first = lines.line_stride == 1 ? full : 0; first < lines.count; first += kWidth) {
    const int64_t width = std::min<int64_t>(kWidth, lines.count - first);
    Acc<T>* const panel = panels + first * depth;
    const T* const line = from + first * lines.line_stride;
    int64_t done = 0;
    if (width < kWidth) {
      std::fill_n(panel, kWidth * depth, Acc<T>(0));
    } else if (lines.depth_stride == 1) {
      done = pack_squares<Isa, kWidth>(line, lines.line_stride, depth, panel);
    }
    for (int64_t l = 0; l < width; ++l) {
      for (int64_t p = done; p < depth; ++p) {
        panel[p * kWidth + l] = static_cast<Acc<T>>(line[l * lines.line_stride + p * lines.depth_stride]);
      }
    }
  }
}

// c += a b for one row: `depth` steps of it, and kVectors vectors of each row of B, which lie `stride` elements apart.
template <class Isa, int kVectors, class T, class A>
TREDUCE_INLINE void update_row(const A* __restrict a, const T* __restrict b, int64_t stride, int64_t depth,
                               A* __restrict c) {
  constexpr int kLanes = Isa::kVectorBytes / sizeof(A);
  A acc[kVectors][kLanes];
  std::copy_n(c, kVectors * kLanes, &acc[0][0]);
  for (int64_t p = 0; p < depth; ++p) {
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) {
#pragma GCC unroll 1
      for (int l = 0; l < kLanes; ++l) {
        acc[v][l] = multiply_add(a[p], static_cast<A>(b[p * stride + v * kLanes + l]), acc[v][l]);
      }
    }
  }
  std::copy_n(&acc[0][0], kVectors * kLanes, c);
}

// The same for kRows rows and every column, where columns lie side by side: kSteps rows of B are read from front to back. Rows of
// a and of c lie a_stride and c_stride apart; past the last one that is there, that is taken again.
template <class Isa, int kRows, int kSteps, class T>
TREDUCE_INLINE void update_in_place(const Acc<T>* __restrict a, int64_t a_stride, const T* __restrict b,
                                    int64_t b_stride, int64_t rows, int64_t columns, Acc<T>* __restrict c,
                                    int64_t c_stride) {
  using A = Acc<T>;
  constexpr int kLanes = Isa::kVectorBytes / sizeof(A);
  const A* from[kRows];
  A* to[kRows];
  for (int r = 0; r < kRows; ++r) {
    const int64_t row = std::min<int64_t>(r, rows - 1);
    from[r] = a + row * a_stride;
    to[r] = c + row * c_stride;
  }
  int64_t x = 0;
  for (; x + kLanes <= columns; x += kLanes) {
    A acc[kRows][kLanes];
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) std::copy_n(to[r] + x, kLanes, acc[r]);
#pragma GCC unroll 16
    for (int p = 0; p < kSteps; ++p) {
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 1
        for (int l = 0; l < kLanes; ++l) {
          acc[r][l] = multiply_add(from[r][p], static_cast<A>(b[p * b_stride + x + l]), acc[r][l]);
        }
      }
    }
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) std::copy_n(acc[r], kLanes, to[r] + x);
  }
  for (; x < columns; ++x) {
    A acc[kRows];
    for (int r = 0; r < kRows; ++r) acc[r] = to[r][x];
    for (int p = 0; p < kSteps; ++p) {
      for (int r = 0; r < kRows; ++r) acc[r] = multiply_add(from[r][p], static_cast<A>(b[p * b_stride + x]), acc[r]);
    }
    for (int r = 0; r < kRows; ++r) to[r][x] = acc[r];
  }
}
template <class Isa, int kRows, class T>
TREDUCE_INLINE void update_in_place(const Acc<T>* a, int64_t rows, const Lines<T>& b, int64_t depth, Acc<T>* c,
                                    int64_t c_stride) {
  constexpr int kSteps = 8;
  int64_t p = 0;
  for (; p + kSteps <= depth; p += kSteps) {
    for (int64_t i = 0; i < rows; i += kRows) {
      update_in_place<Isa, kRows, kSteps>(a + i * depth + p, depth, b.data + p * b.depth_stride, b.depth_stride,
                                          rows - i, b.count, c + i * c_stride, c_stride);
    }
  }
  for (; p < depth; ++p) {
    for (int64_t i = 0; i < rows; i += kRows) {
      update_in_place<Isa, kRows, 1>(a + i * depth + p, depth, b.data + p * b.depth_stride, b.depth_stride, rows - i,
                                     b.count, c + i * c_stride, c_stride);
    }
  }
}

// A single output.
template <class T>
TREDUCE_INLINE void update_one(const Acc<T>* a, const Lines<T>& b, int64_t depth, Acc<T>* c) {
  Acc<T> sum = *c;
  for (int64_t p = 0; p < depth; ++p) sum = multiply_add(a[p], static_cast<Acc<T>>(b.data[p * b.depth_stride]), sum);
  *c = sum;
}

// The same where columns lie apart, for rows of one panel: each panel of B is read from front to back, a few steps at a time, so
// that memory is waited for while the last are multiplied. Of one row, `a` holds it; of several it is their panel. Sums lie in
// panels.
template <class Isa, class T>
TREDUCE_INLINE void update_by_panels(const Acc<T>* a, bool one_row, const Lines<T>& b, int64_t depth, Acc<T>* packed,
                                     Acc<T>* c) {
  using Tile = RegisterTile<Isa, Acc<T>>;
  constexpr int kColumns = Tile::kColumns;
  for (int64_t first = 0; first < b.count; first += kColumns) {
    const Lines<T> columns = {b.data + first * b.line_stride, b.line_stride, b.depth_stride,
                              std::min<int64_t>(kColumns, b.count - first)};
    for (int64_t begin = 0; begin < depth; begin += kStepsOfFewRows) {
      const int64_t steps = std::min(kStepsOfFewRows, depth - begin);
      pack<Isa, kColumns>(columns, begin, steps, packed);
      if (one_row) {
        update_row<Isa, Isa::kVectors>(a + begin, packed, kColumns, steps, c + first);
      } else {
        Tile::update(a + begin * Tile::kRows, packed, steps, c + first * Tile::kRows);
      }
    }
  }
}

// The same where columns are contiguous along k: squares of B become columns in registers and are multiplied there, so that B is read
// once, and nothing but sums is written. kSquares side by side are as many chains of additions. Rows of a lie `depth` apart, those of
// c c_stride. `columns`: those that are there, at least a square's unless kPart; past the last row or column, that is taken again.
template <class Isa, int kRows, int kSquares, bool kPart, class T>
TREDUCE_INLINE void multiply_squares(const Acc<T>* __restrict a, int64_t rows, const T* b, int64_t stride,
                                     int64_t columns, int64_t depth, Acc<T>* __restrict c, int64_t c_stride) {
  using A = Acc<T>;
  using Word = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;
  using S = Square<Isa, Word>;
  constexpr int kSide = S::kSide, kInWord = sizeof(Word) / sizeof(T), kSteps = kSide * kInWord;
  constexpr int64_t kAhead = kAheadOfSquares / sizeof(T);
  static_assert(kSide == Isa::kVectorBytes / sizeof(A));
  const auto line = [&](int i) { return b + (kPart ? std::min<int64_t>(i, columns - 1) : i) * stride; };
  const A* from[kRows];
  for (int r = 0; r < kRows; ++r) from[r] = a + std::min<int64_t>(r, rows - 1) * depth;
  A acc[kSquares][kRows][kSide] = {};
  typename S::Vector words[kSquares][kSide];
  int64_t p = 0;
  for (; p + kSteps <= depth; p += kSteps) {
    // Behind the end of these lines come those of the next squares.
    const int64_t ahead = p + kAhead < depth ? p + kAhead : p + kAhead - depth + kSquares * kSide * stride;
#pragma GCC unroll 2
    for (int s = 0; s < kSquares; ++s) {
#pragma GCC unroll 16
      for (int i = 0; i < kSide; ++i) {
        const T* const from_line = line(s * kSide + i);
        std::memcpy(&words[s][i], from_line + p, sizeof(words[s][i]));
        __builtin_prefetch(from_line + ahead, 0, 2);
      }
      S::transpose(words[s]);
    }
#pragma GCC unroll 16
    for (int j = 0; j < kSide; ++j) {
#pragma GCC unroll 2
      for (int e = 0; e < kInWord; ++e) {
#pragma GCC unroll 2
        for (int s = 0; s < kSquares; ++s) {
          A right[kSide];
          widen<T>(words[s][j], e, right);
#pragma GCC unroll 8
          for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 1
            for (int l = 0; l < kSide; ++l) {
              acc[s][r][l] = multiply_add(from[r][p + j * kInWord + e], right[l], acc[s][r][l]);
            }
          }
        }
      }
    }
  }
  for (int s = 0; s < kSquares; ++s) {
    if (p < depth) {  // a part of a square, filled up with what is not multiplied
      typename S::Vector part[kSide] = {};
      for (int i = 0; i < kSide; ++i) std::memcpy(&part[i], line(s * kSide + i) + p, (depth - p) * sizeof(T));
      S::transpose(part);
      for (int64_t q = p; q < depth; ++q) {
        A right[kSide];
        widen<T>(part[(q - p) / kInWord], (q - p) % kInWord, right);
        for (int r = 0; r < kRows; ++r) {
          for (int l = 0; l < kSide; ++l) acc[s][r][l] = multiply_add(from[r][q], right[l], acc[s][r][l]);
        }
      }
    }
    for (int r = 0; r < kRows && r < rows; ++r) {
      std::copy_n(acc[s][r], kPart ? columns : kSide, c + r * c_stride + s * kSide);
    }
  }
}
template <class Isa, int kRows, class T>
TREDUCE_INLINE void update_in_registers(const Acc<T>* a, int64_t rows, const Lines<T>& b, int64_t depth, Acc<T>* c,
                                        int64_t c_stride) {
  constexpr int64_t kSide = Isa::kVectorBytes / sizeof(Acc<T>);
  // One row of 16-bit floats: its chain of additions would take longer than the shuffles.
  constexpr int kSquares = kRows == 1 && sizeof(T) == 2 && Isa::kVectorBytes == 64 ? 2 : 1;
  int64_t x = 0;
  for (; x + kSquares * kSide <= b.count; x += kSquares * kSide) {
    multiply_squares<Isa, kRows, kSquares, false>(a, rows, b.data + x * b.line_stride, b.line_stride, kSquares * kSide,
                                                  depth, c + x, c_stride);
  }
  for (; x < b.count; x += kSide) {
    multiply_squares<Isa, kRows, 1, true>(a, rows, b.data + x * b.line_stride, b.line_stride,
                                          std::min(kSide, b.count - x), depth, c + x, c_stride);
  }
}

// The outputs one after another, where nothing pays that has to be prepared.
template <class T>
TREDUCE_INLINE void multiply_tiny(const Gemm& gemm, const Lines<T>& a, const Lines<T>& b, const Result<T>* bias,
                                  Result<T>* c) {
  for (int64_t i = 0; i < a.count; ++i) {
    for (int64_t j = 0; j < b.count; ++j) {
      Acc<T> sum = 0;
      for (int64_t p = 0; p < gemm.problem.k; ++p) {
        sum = multiply_add(static_cast<Acc<T>>(a.data[i * a.line_stride + p * a.depth_stride]),
                           static_cast<Acc<T>>(b.data[j * b.line_stride + p * b.depth_stride]), sum);
      }
      sum = with_bias(sum, bias, i * gemm.bias_row + j * gemm.bias_column);
      c[i * gemm.c_row + j * gemm.c_column] = round_to<Result<T>>(sum);
    }
  }
}

// Scratch of one thread: packed A, packed B and the accumulators, on cache lines. A small product's needs no allocation.
template <class A>
class Scratch {
 public:
  explicit Scratch(size_t count)
      : data_(count <= kSmall ? small_ : static_cast<A*>(::operator new(count * sizeof(A), kAlignment))) {}
  ~Scratch() {
    if (data_ != small_) ::operator delete(data_, kAlignment);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  A* data() { return data_; }

 private:
  static constexpr std::align_val_t kAlignment{64};
  static constexpr size_t kSmall = 16384 / sizeof(A);
  alignas(64) A small_[kSmall];
  A* data_;
};

template <class Isa, class T>
TREDUCE_INLINE void run(const Gemm& gemm, int64_t begin_task, int64_t end_task) {
  using A = Acc<T>;
  using Tile = RegisterTile<Isa, A>;
  const Problem& p = gemm.problem;
  const int64_t rows_padded = round_up(gemm.task_rows, Tile::kRows);
  const int64_t columns_padded = round_up(gemm.task_columns, Tile::kColumns);
  const int64_t depth_most = std::min(p.k, kDepth);
  // Few rows have kernels of their own for floats. Integers are rare here, and calls of the C library's multiply-add take longer
  // than all that these kernels save.
  constexpr bool kForFewRows = std::is_floating_point_v<A> && Isa::kFuses;
  const bool few = kForFewRows && p.m <= kFewRows;
  const bool tiny = p.m * p.n * p.k <= kTinyProduct;
  // Squares keep their sums in registers and take all of k at once; the other kernels take a part after another.
  const bool whole = few && p.b_row == 1 && p.b_column != 1 && p.n > 1;
  const int64_t some_rows = std::max<int64_t>(p.m, Tile::kRows) * std::min(p.k, kDepthOfFewRows);
  const int64_t rows_count = !few ? 0 : std::max(some_rows, whole ? p.m * p.k : 0);
  Scratch<A> scratch((rows_padded + columns_padded) * depth_most + rows_padded * columns_padded + rows_count);
  A* const packed_a = scratch.data();
  A* const packed_b = packed_a + rows_padded * depth_most;
  A* const sums = packed_b + columns_padded * depth_most;
  A* const rows_of_a = sums + rows_padded * columns_padded;

  for (int64_t task = begin_task; task < end_task; ++task) {
    const int64_t across = gemm.tasks_across(), down = gemm.tasks_down();
    const Offsets at = offsets_of(p, task / across / down);
    const int64_t row = task / across % down * gemm.task_rows, column = task % across * gemm.task_columns;
    const int64_t rows = std::min(gemm.task_rows, p.m - row), columns = std::min(gemm.task_columns, p.n - column);
    const Lines<T> a = {static_cast<const T*>(gemm.a) + at.a + row * p.a_row, p.a_row, p.a_column, rows};
    const Lines<T> b = {static_cast<const T*>(gemm.b) + at.b + column * p.b_column, p.b_column, p.b_row, columns};
    Result<T>* const c = static_cast<Result<T>*>(gemm.c) + at.c + row * gemm.c_row + column * gemm.c_column;
    const Result<T>* bias = static_cast<const Result<T>*>(gemm.bias);
    if (bias != nullptr) bias += row * gemm.bias_row + column * gemm.bias_column;
    if (tiny) {
      multiply_tiny(gemm, a, b, bias, c);
      continue;
    }

    // Sums lie in panels as wide as a tile, each of whole tiles; in place and in registers, a row after another.
    const int64_t panels_a = ceil_div(rows, Tile::kRows), panels_b = ceil_div(columns, Tile::kColumns);
    const bool one_row = few && p.m == 1;
    const bool in_place = few && b.line_stride == 1 && columns > 1;
    const bool in_registers = few && !in_place && b.depth_stride == 1 && columns > 1;
    const bool by_panels = few && !in_place && !in_registers && p.m <= Tile::kRows;
    const bool in_rows = in_place || in_registers;
    const int64_t sum_panel = in_rows || one_row ? Tile::kColumns : panels_a * Tile::kSize;
    const int64_t sum_row = in_rows ? columns_padded : Tile::kColumns;
    std::fill_n(sums, in_rows ? rows * columns_padded : panels_b * sum_panel, A(0));
    if constexpr (kForFewRows) {
      const int64_t most = in_registers ? p.k : kDepthOfFewRows;
      for (int64_t begin = 0; begin < p.k && (in_rows || by_panels); begin += most) {
        const int64_t depth = std::min(most, p.k - begin);
        const Lines<T> part = {b.data + begin * b.depth_stride, b.line_stride, b.depth_stride, columns};
        if (in_rows || one_row) {
          for (int64_t i = 0; i < rows; ++i) {
            const T* const row_of_a = a.data + i * a.line_stride + begin * a.depth_stride;
            for (int64_t q = 0; q < depth; ++q) rows_of_a[i * depth + q] = static_cast<A>(row_of_a[q * a.depth_stride]);
          }
        } else {
          pack<Isa, Tile::kRows>(a, begin, depth, rows_of_a);
        }
        if (in_place && one_row) {
          update_in_place<Isa, 1>(rows_of_a, rows, part, depth, sums, sum_row);
        } else if (in_place) {
          update_in_place<Isa, 4>(rows_of_a, rows, part, depth, sums, sum_row);
        } else if (in_registers && rows == 1) {
          update_in_registers<Isa, 1>(rows_of_a, rows, part, depth, sums, sum_row);
        } else if (in_registers && rows <= 4) {
          update_in_registers<Isa, 4>(rows_of_a, rows, part, depth, sums, sum_row);
        } else if (in_registers) {
          update_in_registers<Isa, 8>(rows_of_a, rows, part, depth, sums, sum_row);
        } else if (one_row && columns == 1) {
          update_one(rows_of_a, part, depth, sums);
        } else {
          update_by_panels<Isa>(rows_of_a, one_row, part, depth, packed_b, sums);
        }
      }
    }
    for (int64_t begin = 0; begin < p.k && !in_rows && !by_panels; begin += kDepth) {
      const int64_t depth = std::min(kDepth, p.k - begin);
      pack<Isa, Tile::kRows>(a, begin, depth, packed_a);
      pack<Isa, Tile::kColumns>(b, begin, depth, packed_b);
      for (int64_t y = 0; y < panels_b; ++y) {
        for (int64_t x = 0; x < panels_a; ++x) {
          Tile::update(packed_a + x * Tile::kRows * depth, packed_b + y * Tile::kColumns * depth, depth,
                       sums + y * sum_panel + x * Tile::kSize);
        }
      }
    }
    for (int64_t y = 0; y < panels_b; ++y) {
      const int64_t width = std::min<int64_t>(Tile::kColumns, columns - y * Tile::kColumns);
      A widened[Tile::kColumns];  // the bias
      const A* const addends = bias == nullptr ? nullptr : widened;
      for (int64_t i = 0; i < rows; ++i) {
        for (int64_t j = 0; bias != nullptr && (i == 0 || gemm.bias_row != 0) && j < width; ++j) {
          widened[j] = static_cast<A>(bias[i * gemm.bias_row + (y * Tile::kColumns + j) * gemm.bias_column]);
        }
        const A* from = sums + y * sum_panel + i * sum_row;
        Result<T>* to = c + i * gemm.c_row + y * Tile::kColumns * gemm.c_column;
        if (gemm.c_column == 1) {
          for (int64_t j = 0; j < width; ++j) to[j] = round_to<Result<T>>(with_bias(from[j], addends, j));
        } else {
          for (int64_t j = 0; j < width; ++j) {
            to[j * gemm.c_column] = round_to<Result<T>>(with_bias(from[j], addends, j));
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace treduce::matmul
