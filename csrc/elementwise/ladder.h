// The vector_add ladder: one row a rung, in teaching order. Tests, benchmarks, documentation and the command line read
// it.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "../common/ladder.h"

namespace treduce::elementwise {

struct Call;
struct Prepared;
struct Request;

struct Row : LadderRow<Call> {
  void (*prepare)(const Request& request,
                  Prepared& prepared) = nullptr;  // see prepare.h; null for `auto`, which borrows
};

const std::vector<Row>& ladder();

// The row of a name or alias; throws BadArgument with the closest names.
const Row& find(std::string_view name);

// The row and block size behind the arguments of a call, with `auto` replaced by what it picks. Throws BadArgument.
struct Resolved {
  const Row* row;
  int block;
};
Resolved resolve(std::string_view variant, std::optional<int64_t> block_size);

}  // namespace treduce::elementwise
