// The reduction ladder: one row a rung, in teaching order. Tests, benchmarks, documentation and the command line read it.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "../common/ladder.h"
#include "plan.h"
#include "result.h"
#include "schedule.h"

namespace treduce::reduce {

struct Call;
struct Prepared;

struct Row : LadderRow<Call> {
  // Classic rungs reduce whole tensors by a plan of their own, which `prepare` lays out (see prepare.h). The others (`along_dims`) take
  // any dims, in the order of pairwise.h, by a schedule; null for `auto` and `compensated`, which borrow one.
  Order plan_order{};
  void (*prepare)(int64_t accumulator, Prepared& prepared) = nullptr;
  bool along_dims = false;
  Arithmetic arithmetic = Arithmetic::plain;
  Scheduled (*schedule)(const Work&) = nullptr;
};

const std::vector<Row>& ladder();

// The row of a name or alias; throws BadArgument with the closest names.
const Row& find(std::string_view name);

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
