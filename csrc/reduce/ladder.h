// The reduction ladder: one row a rung, in teaching order. Tests, benchmarks, documentation and the command line read it.
#pragma once

#include <algorithm>
#include <optional>
#include <string_view>
#include <vector>

#include "../common/ladder.h"
#include "plan.h"
#include "schedule.h"

namespace treduce::reduce {

struct Call;

// How the values of the pairwise order are added.
enum class Arithmetic : int8_t { plain, compensated, exact };

struct Row : LadderRow<Call> {
  // Classic rungs reduce whole tensors by a plan of their own. The others (`along_dims`) take any dims, in the order of
  // pairwise.h.
  Order plan_order{};
  bool along_dims = false;
  Arithmetic arithmetic = Arithmetic::plain;
  Scheduled (*schedule)(const Work&) = nullptr;  // of rungs along dims; null for `auto`, which borrows one
  bool needs_counter = false;                    // a zeroed counter of its own, for a last-block finish
  bool scratch_of_input = false;                 // scratch as large as the input, in accumulators
  bool at_least_one = false;                     // one accumulator of scratch even where the plan has no partials
};

const std::vector<Row>& ladder();

// The row of a name or alias; throws BadArgument with the closest names.
const Row& find(std::string_view name);

// Accumulators that a CUDA call of this row needs between its passes or blocks.
inline int64_t workspace_accumulators(const Row& row, const Plan& plan) {
  const int64_t count = plan.partials() + (row.scratch_of_input ? plan.first().n : 0);
  return row.at_least_one ? std::max<int64_t>(count, 1) : count;
}

// The row, block size and number of blocks (0: the default) behind the arguments of a call. Throws BadArgument: for an unknown
// variant, a size that it does not take, or `dims` (the caller named some) with a rung that reduces whole tensors.
struct Resolved {
  const Row* row;
  int block;
  int64_t num_blocks;
};
Resolved resolve(std::string_view variant, bool dims, std::optional<int64_t> block_size,
                 std::optional<int64_t> num_blocks);

// Where a row is `auto` (or has arithmetic of its own), the rung whose kernel it borrows for this work.
const Row& executor(const Row& row, const Work& work);

}  // namespace treduce::reduce
