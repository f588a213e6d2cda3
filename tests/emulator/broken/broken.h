// Kernels that sum one block's worth of floats, each with one mistake, to show that the emulator finds it.
#pragma once

#include <map>
#include <string>

#include "../../../csrc/common/launch.h"
#include "../../../csrc/primitives/shared.cuh"

namespace broken {

// Sums x[0 .. n) into *out with a block of `threads`; n is at most `threads`.
using Launcher = cudaError_t (*)(const float* x, int n, int threads, float* out);

inline std::map<std::string, Launcher>& launchers() {
  static std::map<std::string, Launcher> map;
  return map;
}

struct Kernel {
  Kernel(const char* name, Launcher launcher) { launchers()[name] = launcher; }
};

inline treduce::Launch one_block(int threads, size_t shared_bytes) {
  treduce::Launch shape;
  shape.block = threads;
  shape.shared_bytes = shared_bytes;
  return shape;
}

}  // namespace broken
