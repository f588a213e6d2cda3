#include "launch_log.h"

namespace treduce {

std::vector<LaunchShape>*& launch_log() {
  thread_local std::vector<LaunchShape>* log = nullptr;
  return log;
}

}  // namespace treduce
