// The matrix product on the CPU, free of torch: every output in k order with fused multiply-adds, so the bits are those
// of the kernels.
#pragma once

#include <algorithm>

#include "problem.h"

namespace treduce::matmul {

// So few rows read B where it lies, if it is contiguous: packing would cost more than it saves.
constexpr int64_t kFewRows = 8;

// Up to so many multiply-adds, preparing a product takes longer than multiplying. AMD EPYC, 2026-11-23.
constexpr int64_t kTinyProduct = 192;

// One product, cut into tasks that may run in any order on any number of threads.
struct Gemm {
  Problem problem;
  DType dtype;
  const void* a;
  const void* b;
  void* c;
  int64_t c_row, c_column;        // strides
  const void* bias;               // see with_bias: elements side by side, or null
  int64_t bias_row, bias_column;  // strides: it has an element a column, or, where the product is transposed, a row
  int64_t task_rows, task_columns;

  int64_t tasks_down() const { return ceil_div(problem.m, task_rows); }
  int64_t tasks_across() const { return ceil_div(problem.n, task_columns); }
  int64_t tasks() const { return problem.batches * tasks_down() * tasks_across(); }
  // What a task takes, in multiply-adds. Few rows wait for B as long as kFewRows are multiplied.
  int64_t work_a_task() const { return std::max(task_rows, kFewRows) * task_columns * problem.k; }
};

// Cuts tasks small enough to keep `threads` busy, no smaller than pays.
Gemm make_gemm(const Problem& problem, DType dtype, const void* a, const void* b, void* c, const void* bias,
               int threads);

// Runs tasks begin <= t < end.
void run_tasks(const Gemm& gemm, int64_t begin, int64_t end);

// The same, compiled for an instruction set; run_tasks picks the best that the CPU has.
void run_avx512(const Gemm& gemm, int64_t begin, int64_t end);
void run_avx2(const Gemm& gemm, int64_t begin, int64_t end);
void run_baseline(const Gemm& gemm, int64_t begin, int64_t end);

}  // namespace treduce::matmul
