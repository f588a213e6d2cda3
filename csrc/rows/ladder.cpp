// The table of row operations.
#include "ladder.h"

#include "prepare.h"

namespace treduce::rows {
namespace {

using Prepare = void (*)(const Request&, const Chip&, Prepared&);

Row make_row(const char* name, const char* summary, const char* origin, Prepare prepare) {
  Row row;
  row.prepare = prepare;
  row.name = name;
  row.summary = summary;
  row.origin = origin;
  row.order = "row_pairwise";
  row.order_text = "maxima in any order; sums of a row's mapped elements in the pairwise order";
  row.dtypes = {DType::float32, DType::float64, DType::float16, DType::bfloat16};
  return row;
}

Row with_capability(Row row, int capability) {
  row.capability = capability;
  return row;
}

Row one_pass(Row row) {
  row.order = "online";
  row.order_text =
      "element e belongs to part e mod 1024; a part takes its elements in order, then parts i and i + 512 meet, i and "
      "i + 256, ..., each time scaled to the greater maximum, or moved to the common mean";
  row.is_online = true;
  return row;
}

// In teaching order.
std::vector<Row> make_ladder() {
  return {
      make_row("three_pass", "a block a row, which it reads once for each reduction and once for the output",
               "the textbook's softmax: a maximum, a sum, a quotient", prepare_three_pass),
      one_pass(make_row("online", "a block a row, which it reads once for all reductions and once for the output",
                        "Milakov and Gimelshein (2018); Welford (1962)", prepare_online)),
      make_row("row_registers", "the row stays in registers: it is read once", "ATen, PersistentSoftmax.cuh (2019)",
               prepare_registers),
      with_capability(
          make_row("row_cluster", "long rows in the registers of several blocks, joined by distributed shared memory",
                   "Dao-AILab, QuACK (2025)", prepare_cluster),
          90),
      with_capability(make_row("row_shared", "long rows in shared memory, of one block or of a cluster's",
                               "Dao-AILab, QuACK (2025)", prepare_shared),
                      90),
      make_row("auto", "picks the fastest by the length of a row", "this project", nullptr),
  };
}

const Ladder<Row>& table() {
  static const Ladder<Row> ladder("softmax", make_ladder());
  return ladder;
}

}  // namespace

const std::vector<Row>& ladder() { return table().rows(); }

const Row& find(std::string_view name) { return table().find(name); }

}  // namespace treduce::rows
