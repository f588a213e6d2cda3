// The matmul ladder: one row a rung, in teaching order. Tests, benchmarks, documentation and the command line read it.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "../common/ladder.h"
#include "problem.h"

namespace treduce::matmul {

struct Call;
using Row = LadderRow<Call>;

const std::vector<Row>& ladder();

// The row of a name or alias; throws BadArgument with the closest names.
const Row& find(std::string_view name);

// The row and tile size (0: it takes none) behind the arguments of a call. Throws BadArgument.
struct Resolved {
  const Row* row;
  int tile;
};
Resolved resolve(std::string_view variant, std::optional<int64_t> tile_size);

// Replaces `auto` by what it picks for this problem, which is the same on every device.
Resolved choose(const Resolved& resolved, DType dtype, const Problem& problem);

}  // namespace treduce::matmul
