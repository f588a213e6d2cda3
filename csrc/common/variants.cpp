// What a caller is told who names a variant or size that is not there.
#include "variants.h"

#include <algorithm>
#include <numeric>

#if __has_include("treduce_build.h")  // the tests' own builds have none
#include "treduce_build.h"
#endif

namespace treduce {
namespace {

// Levenshtein distance, one row at a time.
int edit_distance(std::string_view a, std::string_view b) {
  std::vector<int> row(b.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (size_t i = 1; i <= a.size(); ++i) {
    int diagonal = row[0];
    row[0] = static_cast<int>(i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const int above = row[j];
      row[j] = std::min({above + 1, row[j - 1] + 1, diagonal + (a[i - 1] != b[j - 1])});
      diagonal = above;
    }
  }
  return row[b.size()];
}

}  // namespace

bool built_for(const Variant& variant) {
#ifdef TREDUCE_CUDA_ARCHITECTURES
  return !variant.one_chip || std::string_view(TREDUCE_CUDA_ARCHITECTURES).find("9.0a") != std::string_view::npos;
#else
  return !variant.one_chip;
#endif
}

std::string unknown_variant(std::string_view family, std::string_view given, const std::vector<std::string>& names) {
  std::vector<std::pair<int, std::string>> ranked;
  for (const std::string& name : names) ranked.emplace_back(edit_distance(given, name), name);
  std::stable_sort(ranked.begin(), ranked.end(), [](auto& a, auto& b) { return a.first < b.first; });
  std::string message =
      "unknown variant '" + std::string(given) + "' of " + std::string(family) + "; the closest names are";
  for (size_t i = 0; i < ranked.size() && i < 3; ++i) message += (i ? ", '" : " '") + ranked[i].second + "'";
  return message + " (torch_reduce.variants() lists all)";
}

Refusal refused_by(const Chip& chip, const Variant& variant) {
  if (runs_on(variant, chip.capability)) return {};
  const auto version = [](int tenfold) { return std::to_string(tenfold / 10) + "." + std::to_string(tenfold % 10); };
  return {"variant '" + variant.name + "' needs a GPU of compute capability " + version(variant.capability) +
              (variant.one_chip ? "" : " or later") + ", this one has " + version(chip.capability),
          /*by_chip=*/true};
}

int checked_size(const Variant& variant, const char* what, int64_t given, bool was_given) {
  if (!was_given) return variant.size_default;
  if (variant.size_max == 0) throw BadArgument{"variant '" + variant.name + "' takes no " + what};
  const bool is_power_of_two = given > 0 && (given & (given - 1)) == 0;
  if (!is_power_of_two || given < variant.size_min || given > variant.size_max) {
    throw BadArgument{std::string(what) + " of variant '" + variant.name + "' must be a power of two from " +
                      std::to_string(variant.size_min) + " to " + std::to_string(variant.size_max) + ", got " +
                      std::to_string(given)};
  }
  return static_cast<int>(given);
}

}  // namespace treduce
