#include "ladder.h"

#include <algorithm>

namespace treduce::matmul {
namespace {

Row make_row(const char* name, const char* summary, const char* origin) {
  Row row;
  row.name = name;
  row.summary = summary;
  row.origin = origin;
  row.order = "k_order";
  row.order_text = "acc = fma(a[i][p], b[p][j], acc) for p = 0, 1, 2, ... from +0; rounded once";
  row.dtypes.assign(std::begin(kDTypes), std::end(kDTypes));
  return row;
}

Row with_tile(Row row, int standard, int least, int most) {
  row.size_default = standard;
  row.size_min = least;
  row.size_max = most;
  return row;
}

const char* const kGuide = "NVIDIA, CUDA Programming Guide: shared memory";
const char* const kVolkov = "V. Volkov and J. Demmel, Benchmarking GPUs to Tune Dense Linear Algebra";
const char* const kBoehm = "S. Boehm, How to Optimize a CUDA Matmul Kernel for cuBLAS-like Performance: a Worklog";
const char* const kCutlass = "NVIDIA, CUTLASS documentation: Efficient GEMM in CUDA";

// In teaching order.
std::vector<Row> make_ladder() {
  return {
      make_row("naive", "one thread an output; row and column straight from global memory", kGuide),
      with_tile(make_row("tiled", "a block stages tiles of A and B in shared memory", kGuide), 16, 8, 32),
      make_row("tiled_1d", "a thread keeps a column of eight outputs in registers", kVolkov),
      make_row("tiled_2d", "a thread keeps a rectangle of outputs in registers", kVolkov),
      make_row("vectorized", "16-byte loads; A transposed in shared memory", kBoehm),
      make_row("warp_tiled", "a tile for the block, for each warp and for each thread", kCutlass),
      // The rows of a block's tile; 0: as large as the number of outputs allows.
      with_tile(make_row("pipelined", "copies the next tiles while it multiplies these", kCutlass), 0, 32, 128),
      with_tile(make_row("auto", "picks the fastest from a table of measurements", "this project"), 0, 8, 128),
  };
}

// For each number of outputs up to `outputs`, what runs. All rungs give the same bits, so this may be tuned freely.
struct AutoRule {
  int64_t outputs;
  const char* row;
  int tile;
};
// `tiled` was measured for float32 squares on an NVIDIA H200, 2026-11-21; where `pipelined` takes over is a guess.
// `python benchmarks/run.py --suite matmul` measures it again.
constexpr AutoRule kAutoTable[] = {
    {128 * 128, "tiled", 16},
    {INT64_MAX, "pipelined", 0},
};

const Ladder<Row>& table() {
  static const Ladder<Row> ladder("matmul", make_ladder());
  return ladder;
}

}  // namespace

const std::vector<Row>& ladder() { return table().rows(); }

const Row& find(std::string_view name) { return table().find(name); }

Resolved resolve(std::string_view variant, std::optional<int64_t> tile_size) {
  const Row& row = find(variant);
  return {&row, checked_size(row, "tile_size", tile_size.value_or(0), tile_size.has_value())};
}

Resolved choose(const Resolved& resolved, DType, const Problem& problem) {
  if (resolved.row != &ladder().back()) return resolved;
  const int64_t outputs = problem.batches * problem.m * problem.n;
  const AutoRule* rule = kAutoTable;
  while (outputs > rule->outputs) ++rule;
  const Row& row = find(rule->row);
  // A caller's tile size stands where the chosen rung has it.
  const bool takes = resolved.tile >= row.size_min && resolved.tile <= row.size_max && resolved.tile > 0;
  return {&row, takes ? resolved.tile : rule->tile};
}

}  // namespace treduce::matmul
