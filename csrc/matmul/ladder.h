// The matmul ladder: one row a rung, in teaching order. Tests, benchmarks, documentation and the command line read it.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "../common/ladder.h"
#include "../common/prepared.h"
#include "problem.h"

namespace treduce::matmul {

struct Call;
struct Request;
struct Prepared;
struct Row : LadderRow<Call> {
  // Decides the rung's launches and workspace: see prepare.h. Null for `auto`.
  void (*prepare)(const Request&, const Chip&, Prepared&) = nullptr;
  int products = 1;                // of its instructions, for one of the operands' products
  int batch_dims = kMaxBatchDims;  // that do not merge; operands with more are copied
  // What the rung takes, in words, where that is not this problem; null: it takes it, or everything.
  const char* (*refusal)(const Problem&) = nullptr;
};

const std::vector<Row>& ladder();

// The row of a name or alias; throws BadArgument with the closest names.
const Row& find(std::string_view name);

// The row and tile size (0: it takes none) behind the arguments of a call. Throws BadArgument.
struct Resolved {
  const Row* row;
  int tile;
};
Resolved resolve(std::string_view variant, std::optional<int64_t> tile_size);

// Where a product is to be computed, as far as `auto` cares.
struct Target {
  Chip chip = {0, 0};     // capability 0: the CPU
  bool tfloat32 = false;  // float32 may be multiplied as tfloat32
  bool planned = false;   // nothing is launched: this build need not have the code
};

// Replaces `auto` by what it picks. On one target that depends on m, n and the batch only among rungs of one order class.
Resolved choose(const Resolved& resolved, DType dtype, const Problem& problem, const Target& target);

}  // namespace treduce::matmul
