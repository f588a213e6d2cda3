// A list of the launches of this thread, for tests that compare what was launched with what was prepared.
#pragma once

#include <vector>

#include "launch_shape.h"

namespace treduce {

// Where log_launch() writes each launch down; null, as it is outside such tests: nowhere.
std::vector<LaunchShape>*& launch_log();

}  // namespace treduce
