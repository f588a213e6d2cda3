// The vector_add ladder: one row a rung, in teaching order. Tests, benchmarks, documentation and the command line read
// it.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "../common/variants.h"

namespace treduce::elementwise {

struct Call;
using Launcher = int (*)(const Call&);  // returns a cudaError_t

// Where kernel files leave their launchers, by name. Empty in a build without CUDA.
std::map<std::string, Launcher>& launchers();

struct Row : Variant {
  Launcher launcher = nullptr;
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
