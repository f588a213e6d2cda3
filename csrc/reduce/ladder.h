// The reduction ladder: one row a rung, in teaching order. Tests, benchmarks, documentation and the command line read it.
#pragma once

#include <algorithm>
#include <optional>
#include <string_view>
#include <vector>

#include "../common/ladder.h"
#include "plan.h"

namespace treduce::reduce {

struct Call;

struct Row : LadderRow<Call> {
  Order plan_order{};
  bool needs_counter = false;     // a zeroed counter of its own, for a last-block finish
  bool scratch_of_input = false;  // scratch as large as the input, in accumulators
  bool at_least_one = false;      // one accumulator of scratch even where the plan has no partials
};

const std::vector<Row>& ladder();

// The row of a name or alias; throws BadArgument with the closest names.
const Row& find(std::string_view name);

// Accumulators that a CUDA call of this row needs between its passes or blocks.
inline int64_t workspace_accumulators(const Row& row, const Plan& plan) {
  const int64_t count = plan.partials() + (row.scratch_of_input ? plan.first().n : 0);
  return row.at_least_one ? std::max<int64_t>(count, 1) : count;
}

// The row, block size and number of blocks (0: the default) behind the arguments of a call, with `auto` replaced by what it
// picks for this length: from measurements, the same on every device. Throws BadArgument. `n` -1: not known.
struct Resolved {
  const Row* row;
  int block;
  int64_t num_blocks;
};
Resolved resolve(std::string_view variant, DType dtype, int64_t n, std::optional<int64_t> block_size,
                 std::optional<int64_t> num_blocks);

}  // namespace treduce::reduce
