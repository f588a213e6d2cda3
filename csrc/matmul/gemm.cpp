// How a product on the CPU is cut into tasks, and which instructions they take. The tasks: gemm_kernels.h.
#include "gemm.h"

#include <algorithm>
#include <utility>

#include "../common/cpu_features.h"

namespace treduce::matmul {
namespace {

constexpr int64_t kTileRows = 24;  // a multiple of every tile's
constexpr int64_t kTaskRows = 4 * kTileRows;
constexpr int64_t kTaskColumns = 256;
constexpr int64_t kTaskColumnsOfFewRows = 1024;  // longer pieces of the rows of B
constexpr int64_t kSmallTask = 1 << 20;          // multiply-adds; cutting further costs more than an idle core

// An element's products are the same the other way round.
Problem transposed(Problem p) {
  std::swap(p.m, p.n);
  std::swap(p.a_row, p.b_column);
  std::swap(p.a_column, p.b_row);
  std::swap(p.a_batch, p.b_batch);
  return p;
}

// Few columns are computed as few rows. Of more, tiles fill up the one way or the other.
bool is_transposed(const Problem& p) {
  if (p.m <= kFewRows) return p.n == 1 && p.m > 1;
  if (p.n <= kFewRows) return true;
  const auto padded = [](int64_t m, int64_t n) { return round_up(m, 8) * round_up(n, 32); };
  return 10 * padded(p.n, p.m) < 9 * padded(p.m, p.n);
}

}  // namespace

Gemm make_gemm(const Problem& problem, DType dtype, const void* a, const void* b, void* c, const void* bias,
               int threads) {
  const bool transpose = is_transposed(problem);
  const Problem p = transpose ? transposed(problem) : problem;
  if (transpose) std::swap(a, b);
  const int64_t most_columns = p.m <= kFewRows ? kTaskColumnsOfFewRows : kTaskColumns;
  // Tasks of about as many rows each.
  const int64_t rows = p.m == 0 ? 0 : round_up(ceil_div(p.m, ceil_div(p.m, kTaskRows)), kTileRows);
  Gemm gemm{p, dtype, a, b, c, problem.n, 1, bias, 0, 1, std::min(p.m, rows), std::min(p.n, most_columns)};
  if (transpose) {
    std::swap(gemm.c_row, gemm.c_column);
    std::swap(gemm.bias_row, gemm.bias_column);
  }
  while (gemm.tasks() < 2 * threads && gemm.work_a_task() > kSmallTask) {
    if (gemm.task_columns > 64) {
      gemm.task_columns /= 2;
    } else if (gemm.task_rows > kTileRows) {
      gemm.task_rows = round_up(gemm.task_rows / 2, kTileRows);
    } else {
      break;
    }
  }
  return gemm;
}

void run_tasks(const Gemm& gemm, int64_t begin, int64_t end) {
  switch (instruction_set()) {
#ifdef __x86_64__
    case InstructionSet::avx512: return run_avx512(gemm, begin, end);
    case InstructionSet::avx2: return run_avx2(gemm, begin, end);
#endif
    default: return run_baseline(gemm, begin, end);
  }
}

}  // namespace treduce::matmul
