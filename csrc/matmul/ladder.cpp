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

Row with_tile(Row row, int standard) {
  row.size_default = standard;
  row.size_min = 8;
  row.size_max = 32;
  return row;
}

const char* const kGuide = "NVIDIA, CUDA Programming Guide: shared memory";

// In teaching order.
std::vector<Row> make_ladder() {
  return {
      make_row("naive", "one thread an output; row and column straight from global memory", kGuide),
      with_tile(make_row("tiled", "a block stages tiles of A and B in shared memory", kGuide), 16),
      with_tile(make_row("auto", "picks the fastest from a table of measurements", "this project"), 0),
  };
}

// For each number of outputs up to `outputs`, what runs. All rungs give the same bits, so this may be tuned freely.
struct AutoRule {
  int64_t outputs;
  const char* row;
  int tile;
};
// Measured for float32 squares on an NVIDIA H200, 2026-11-21; `python benchmarks/run.py --suite matmul` measures it again.
constexpr AutoRule kAutoTable[] = {
    {256 * 256, "tiled", 16},
    {INT64_MAX, "tiled", 32},
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
  // A caller's tile size stands where the chosen rung has one.
  return {&row, row.size_max > 0 && resolved.tile > 0 ? resolved.tile : rule->tile};
}

}  // namespace treduce::matmul
