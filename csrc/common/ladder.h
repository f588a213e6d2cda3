// What every op family's ladder shares: rows in teaching order, found by name or alias, and the launchers that kernel files
// leave for them. Free of torch and CUDA, so that a build without CUDA has its ladders too, with empty places.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "variants.h"

namespace treduce {

// Returns a cudaError_t. Each family has a Call of its own.
template <class Call>
using Launcher = int (*)(const Call&);

template <class Call>
std::map<std::string, Launcher<Call>>& launchers() {
  static std::map<std::string, Launcher<Call>> map;
  return map;
}

// Tells a ladder which launcher belongs to the row of that name: a static object at the end of each kernel file.
template <class Call, auto kLauncher>
struct RegisterRung {
  explicit RegisterRung(const char* name) {
    launchers<Call>()[name] = [](const Call& call) { return static_cast<int>(kLauncher(call)); };
  }
};

// A row of a ladder, to which a family may add columns.
template <class Family>
struct LadderRow : Variant {
  using Call = Family;
  Launcher<Call> launcher = nullptr;  // null for `auto`, and in a build without CUDA
};

template <class Row>
class Ladder {
 public:
  // The last row is `auto`, which has no kernel of its own.
  Ladder(const char* family, std::vector<Row> rows) : family_(family), rows_(std::move(rows)) {
    rows_.back().cuda = false;
    for (Row& row : rows_) {
      const auto found = launchers<typename Row::Call>().find(row.name);
      if (found != launchers<typename Row::Call>().end()) row.launcher = found->second;
      names_.emplace(row.name, &row);
      for (const std::string& alias : row.aliases) names_.emplace(alias, &row);
    }
  }
  Ladder(const Ladder&) = delete;

  const std::vector<Row>& rows() const { return rows_; }

  // The row of a name or alias; throws BadArgument with the closest names.
  const Row& find(std::string_view name) const {
    const auto found = names_.find(name);
    if (found != names_.end()) return *found->second;
    std::vector<std::string> all;
    for (const Row& row : rows_) {
      all.push_back(row.name);
      all.insert(all.end(), row.aliases.begin(), row.aliases.end());
    }
    throw BadArgument{unknown_variant(family_, name, all)};
  }

 private:
  const char* family_;
  std::vector<Row> rows_;
  std::unordered_map<std::string_view, const Row*> names_;
};

}  // namespace treduce
