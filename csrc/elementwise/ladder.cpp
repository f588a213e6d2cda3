#include "ladder.h"

namespace treduce::elementwise {
namespace {

Row make_row(const char* name, int standard_block, const char* summary, const char* origin) {
  Row row;
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
  std::vector<Row> rows = {
      make_row("grid_1d", 256, "one element a thread, blocks in a line", kGuide),
      make_row("grid_2d", 256, "one element a thread, blocks in a rectangle", kGuide),
      make_row("vectorized", 256, "16 bytes a load, a grid-stride loop",
               "Justin Luitjens, CUDA Pro Tip: Increase Performance with Vectorized Memory Access (2013)"),
      make_row("auto", 0, "picks the fastest from a table of measurements", "this project"),
  };
  for (Row& row : rows) {
    const auto found = launchers().find(row.name);
    if (found != launchers().end()) row.launcher = found->second;
  }
  rows.back().cuda = false;
  return rows;
}

// What `auto` runs.
constexpr const char* kAutoRow = "vectorized";
constexpr int kAutoBlock = 256;

}  // namespace

std::map<std::string, Launcher>& launchers() {
  static std::map<std::string, Launcher> map;
  return map;
}

const std::vector<Row>& ladder() {
  static const std::vector<Row> rows = make_ladder();
  return rows;
}

const Row& find(std::string_view name) {
  for (const Row& row : ladder()) {
    if (row.name == name) return row;
    for (const std::string& alias : row.aliases) {
      if (alias == name) return row;
    }
  }
  std::vector<std::string> names;
  for (const Row& row : ladder()) {
    names.push_back(row.name);
    names.insert(names.end(), row.aliases.begin(), row.aliases.end());
  }
  throw BadArgument{unknown_variant("vector_add", name, names)};
}

Resolved resolve(std::string_view variant, std::optional<int64_t> block_size) {
  const Row& row = find(variant);
  const int block = checked_size(row, "block_size", block_size.value_or(0), block_size.has_value());
  if (&row != &ladder().back()) return {&row, block};
  return {&find(kAutoRow), block_size.has_value() ? block : kAutoBlock};
}

}  // namespace treduce::elementwise
