// Idea: a tile of outputs stays in vector registers while k runs. A row of the tile shares an element of A, a column
// shares a vector of B: 8 x 32 outputs need 40 loads for 256 multiply-adds.
//
// Mapping: a task owns a block of outputs. Along k it goes in steps that fit the cache: it packs its part of A and of B
//          so that the tile reads both from front to back, widened to the accumulator's type, then runs all its tiles.
//          Between two steps the accumulators wait in scratch, unrounded, so the steps change no bit.
// Note:    the same body is compiled for several instruction sets, and one is picked when the program runs. Each has a
//          fused multiply-add or calls the C library's, which is slower and gives the same bits.
#include "gemm.h"

#include <algorithm>
#include <memory>
#include <new>
#include <utility>

#include "../common/cpu_features.h"

#if defined(__x86_64__) && defined(__GNUC__)
#define TREDUCE_X86 1
#endif

// A body that must take on the instruction set of the function around it.
#define TREDUCE_INLINE inline __attribute__((always_inline))

namespace treduce::matmul {
namespace {

// A register tile has kRows rows of kVectors vectors. What the instruction set has room for.
struct Avx512 {
  static constexpr int kRows = 8, kVectors = 2, kVectorBytes = 64;
};
struct Avx2 {
  static constexpr int kRows = 6, kVectors = 2, kVectorBytes = 32;
};
struct Baseline {
  static constexpr int kRows = 4, kVectors = 2, kVectorBytes = 16;
};

constexpr int64_t kTaskRows = 96;  // a multiple of every kRows, also when halved twice
constexpr int64_t kTaskColumns = 256;
constexpr int64_t kDepth = 256;
constexpr int64_t kSmallTask = 1 << 20;  // multiply-adds; cutting further costs more than an idle core

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

// Copies steps begin <= p < begin + depth into panels of kWidth lines, each depth x kWidth, the last filled up with
// zeros.
template <int kWidth, class T>
TREDUCE_INLINE void pack(const Lines<T>& lines, int64_t begin, int64_t depth, Acc<T>* panel) {
  for (int64_t first = 0; first < lines.count; first += kWidth, panel += kWidth * depth) {
    const T* from = lines.data + first * lines.line_stride + begin * lines.depth_stride;
    const int64_t width = std::min<int64_t>(kWidth, lines.count - first);
    if (width == kWidth && lines.line_stride == 1) {
      for (int64_t p = 0; p < depth; ++p) {
        for (int l = 0; l < kWidth; ++l) {
          panel[p * kWidth + l] = static_cast<Acc<T>>(from[p * lines.depth_stride + l]);
        }
      }
      continue;
    }
    if (width < kWidth) std::fill_n(panel, kWidth * depth, Acc<T>(0));
    for (int64_t l = 0; l < width; ++l) {
      for (int64_t p = 0; p < depth; ++p) {
        panel[p * kWidth + l] = static_cast<Acc<T>>(from[l * lines.line_stride + p * lines.depth_stride]);
      }
    }
  }
}

// Scratch of one thread: packed A, packed B and the accumulators, on cache lines.
template <class A>
class Scratch {
 public:
  explicit Scratch(int64_t count)
      : data_(static_cast<A*>(::operator new(count * sizeof(A), std::align_val_t(kAlignment)))) {}
  ~Scratch() { ::operator delete(data_, std::align_val_t(kAlignment)); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  A* data() const { return data_; }

 private:
  static constexpr size_t kAlignment = 64;
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
  const Scratch<A> scratch((rows_padded + columns_padded) * depth_most + rows_padded * columns_padded);
  A* const packed_a = scratch.data();
  A* const packed_b = packed_a + rows_padded * depth_most;
  A* const sums = packed_b + columns_padded * depth_most;

  for (int64_t task = begin_task; task < end_task; ++task) {
    const int64_t across = gemm.tasks_across(), down = gemm.tasks_down();
    const Offsets at = offsets_of(p, task / across / down);
    const int64_t row = task / across % down * gemm.task_rows, column = task % across * gemm.task_columns;
    const int64_t rows = std::min(gemm.task_rows, p.m - row), columns = std::min(gemm.task_columns, p.n - column);
    const Lines<T> a = {static_cast<const T*>(gemm.a) + at.a + row * p.a_row, p.a_row, p.a_column, rows};
    const Lines<T> b = {static_cast<const T*>(gemm.b) + at.b + column * p.b_column, p.b_column, p.b_row, columns};
    Result<T>* const c = static_cast<Result<T>*>(gemm.c) + at.c + row * p.n + column;
    const Result<T>* const bias = static_cast<const Result<T>*>(gemm.bias);

    const int64_t panels_a = ceil_div(rows, Tile::kRows);
    const int64_t panels_b = ceil_div(columns, Tile::kColumns);
    std::fill_n(sums, panels_a * panels_b * Tile::kSize, A(0));
    for (int64_t begin = 0; begin < p.k; begin += kDepth) {
      const int64_t depth = std::min(kDepth, p.k - begin);
      pack<Tile::kRows>(a, begin, depth, packed_a);
      pack<Tile::kColumns>(b, begin, depth, packed_b);
      for (int64_t y = 0; y < panels_b; ++y) {
        for (int64_t x = 0; x < panels_a; ++x) {
          Tile::update(packed_a + x * Tile::kRows * depth, packed_b + y * Tile::kColumns * depth, depth,
                       sums + (y * panels_a + x) * Tile::kSize);
        }
      }
    }
    for (int64_t y = 0; y < panels_b; ++y) {
      const int64_t width = std::min<int64_t>(Tile::kColumns, columns - y * Tile::kColumns);
      A widened[Tile::kColumns];  // the bias, once for all rows
      const A* const addends = bias == nullptr ? nullptr : widened;
      for (int64_t j = 0; bias != nullptr && j < width; ++j) {
        widened[j] = static_cast<A>(bias[column + y * Tile::kColumns + j]);
      }
      for (int64_t i = 0; i < rows; ++i) {
        const A* from = sums + y * panels_a * Tile::kSize + i * Tile::kColumns;
        Result<T>* to = c + i * p.n + y * Tile::kColumns;
        for (int64_t j = 0; j < width; ++j) to[j] = round_to<Result<T>>(with_bias(from[j], addends, j));
      }
    }
  }
}

template <class T>
void run_baseline(const Gemm& gemm, int64_t begin, int64_t end) {
  run<Baseline, T>(gemm, begin, end);
}
#ifdef TREDUCE_X86
template <class T>
__attribute__((target("avx2,fma"))) void run_avx2(const Gemm& gemm, int64_t begin, int64_t end) {
  run<Avx2, T>(gemm, begin, end);
}
template <class T>
__attribute__((target("avx512f,avx512dq,avx512vl,prefer-vector-width=512"))) void run_avx512(const Gemm& gemm,
                                                                                             int64_t begin,
                                                                                             int64_t end) {
  run<Avx512, T>(gemm, begin, end);
}
#endif

}  // namespace

Gemm make_gemm(const Problem& problem, DType dtype, const void* a, const void* b, void* c, const void* bias,
               int threads) {
  Gemm gemm{problem, dtype, a, b, c, bias, std::min(problem.m, kTaskRows), std::min(problem.n, kTaskColumns)};
  while (gemm.tasks() < 2 * threads && gemm.multiply_adds_a_task() > kSmallTask) {
    if (gemm.task_columns > 64) {
      gemm.task_columns /= 2;
    } else if (gemm.task_rows > 24) {
      gemm.task_rows /= 2;
    } else {
      break;
    }
  }
  return gemm;
}

void run_tasks(const Gemm& gemm, int64_t begin, int64_t end) {
  dispatch_dtype(gemm.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    switch (instruction_set()) {
#ifdef TREDUCE_X86
      case InstructionSet::avx512: return run_avx512<T>(gemm, begin, end);
      case InstructionSet::avx2: return run_avx2<T>(gemm, begin, end);
#endif
      default: return run_baseline<T>(gemm, begin, end);
    }
  });
}

}  // namespace treduce::matmul
