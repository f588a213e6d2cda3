// Calls from Python that take long enough for others to run meanwhile.
#pragma once

#include <torch/csrc/python_headers.h>

namespace treduce {

// Releases Python's lock for a scope.
class WithoutLock {
 public:
  WithoutLock() : state_(PyEval_SaveThread()) {}
  ~WithoutLock() { PyEval_RestoreThread(state_); }
  WithoutLock(const WithoutLock&) = delete;

 private:
  PyThreadState* state_;
};

}  // namespace treduce
