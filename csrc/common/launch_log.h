// A list of the launches of this thread, for tests that compare what was launched with what was prepared.
#pragma once

#include <vector>

#include "launch_shape.h"

namespace treduce {

// Where log_launch() records launches. Null outside such tests: nothing is recorded.
std::vector<LaunchShape>*& launch_log();

}  // namespace treduce
