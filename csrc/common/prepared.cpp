// Launches and workspaces as text.
#include "prepared.h"

namespace treduce {

std::string to_string(const LaunchShape& shape) {
  const auto pair = [](int64_t x, int64_t y) {
    return y == 1 ? std::to_string(x) : std::to_string(x) + " x " + std::to_string(y);
  };
  std::string text = std::string(shape.kernel) + ": grid " + pair(shape.grid, shape.grid_y) + ", block " +
                     pair(shape.block, shape.block_y);
  if (shape.shared_bytes > 0) text += ", shared " + std::to_string(shape.shared_bytes) + " bytes";
  if (shape.cluster > 1) text += ", clusters of " + std::to_string(shape.cluster);
  if (shape.cooperative) text += ", cooperative";
  if (shape.overlapping) text += ", overlapping";
  return text;
}

std::string to_string(const Launches& launches, const Workspace& workspace) {
  std::string text;
  for (const LaunchShape& launch : launches) text += "launch " + to_string(launch) + "\n";
  for (const Region& region : workspace.regions()) {
    text += "workspace " + std::string(region.name) + ": " + std::to_string(region.bytes) + " bytes at " +
            std::to_string(region.offset) + "\n";
  }
  return text;
}

}  // namespace treduce
