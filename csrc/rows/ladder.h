// The ladder of row operations: one row a rung, in teaching order. Tests, benchmarks, documentation and the command line read it.
#pragma once

#include <string_view>
#include <vector>

#include "../common/ladder.h"

namespace treduce::rows {

struct Call;
struct Prepared;
struct Request;

struct Row : LadderRow<Call> {
  void (*prepare)(const Request& request, const Chip& chip,
                  Prepared& prepared) = nullptr;  // see prepare.h; null for `auto`, which borrows
  bool is_online = false;                         // adds up as online.h does; the others, pairwise
};

const std::vector<Row>& ladder();

// The row of a name or alias; throws BadArgument with the closest names.
const Row& find(std::string_view name);

}  // namespace treduce::rows
