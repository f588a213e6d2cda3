// What every op family's ladder shares: rows in teaching order, found by name or alias, and the launchers that kernel files
// leave for them. Free of torch and CUDA, so that a build without CUDA has its ladders too, with empty places.
#pragma once

#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "launchers.h"
#include "variants.h"

namespace treduce {

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
      for (auto entry = registered_launchers<typename Row::Call>(); entry != nullptr; entry = entry->next) {
        if (row.name == entry->name) row.launcher = entry->launcher;
      }
      names_.emplace(row.name, &row);
      for (const std::string& alias : row.aliases) names_.emplace(alias, &row);
    }
  }
  Ladder(const Ladder&) = delete;

  const std::vector<Row>& rows() const { return rows_; }

  // The row of a name or alias; throws BadArgument with the closest names.
  const Row& find(std::string_view name) const {
    if (name == rows_.back().name) return rows_.back();  // nearly every call
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
