// The table of vector_add.
#include "ladder.h"

#include "prepare.h"

namespace treduce::elementwise {
namespace {

using Prepare = void (*)(const Request&, Prepared&);

Row make_row(const char* name, int standard_block, const char* summary, const char* origin, Prepare prepare) {
  Row row;
  row.prepare = prepare;
  row.name = name;
  row.summary = summary;
  row.origin = origin;
  row.order = "elementwise";
  row.order_text = "one addition an element: nothing to order";
  row.dtypes.assign(std::begin(kAllDTypes), std::end(kAllDTypes));
  row.size_default = standard_block;
  row.size_min = 32;
  row.size_max = 1024;
  return row;
}

const char* const kGuide = "NVIDIA, CUDA Programming Guide: thread hierarchy";

// In teaching order.
std::vector<Row> make_ladder() {
  return {
      make_row("grid_1d", 256, "one element a thread, blocks in a line", kGuide, prepare_line),
      make_row("grid_2d", 256, "one element a thread, blocks in a rectangle", kGuide, prepare_rectangle),
      make_row("vectorized", 256, "16 bytes a load, a grid-stride loop",
               "Justin Luitjens, CUDA Pro Tip: Increase Performance with Vectorized Memory Access (2013)",
               prepare_vectors),
      make_row("auto", 0, "picks the fastest from a table of measurements", "this project", nullptr),
  };
}

// What `auto` runs.
constexpr const char* kAutoRow = "vectorized";
constexpr int kAutoBlock = 256;

const Ladder<Row>& table() {
  static const Ladder<Row> ladder("vector_add", make_ladder());
  return ladder;
}

}  // namespace

const std::vector<Row>& ladder() { return table().rows(); }

const Row& find(std::string_view name) { return table().find(name); }

Resolved resolve(std::string_view variant, std::optional<int64_t> block_size) {
  const Row& row = find(variant);
  const int block = checked_size(row, "block_size", block_size.value_or(0), block_size.has_value());
  if (&row != &ladder().back()) return {&row, block};
  return {&find(kAutoRow), block_size.has_value() ? block : kAutoBlock};
}

}  // namespace treduce::elementwise
