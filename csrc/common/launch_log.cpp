// This thread's log of launches.
#include "launch_log.h"

namespace treduce {

std::vector<LaunchShape>*& launch_log() {
  thread_local std::vector<LaunchShape>* log = nullptr;
  return log;
}

void log_launch(const LaunchShape& shape) {
  if (launch_log() != nullptr) launch_log()->push_back(shape);
}

}  // namespace treduce
