// broken NAME SEED...: sums 1 + 2 + ... + 100 with a block of 128 threads under each seed; prints the sums.
#include <cstdio>
#include <cstdlib>
#include <memory>

#include "broken.h"

int main(int argc, char** argv) {
  constexpr int kCount = 100, kThreads = 128;
  const auto found = broken::launchers().find(argc > 1 ? argv[1] : "");
  if (found == broken::launchers().end()) {
    for (const auto& [name, launcher] : broken::launchers()) printf("%s\n", name.c_str());
    return 2;
  }
  const std::unique_ptr<float[]> x(new float[kCount]);
  for (int i = 0; i < kCount; ++i) x[i] = static_cast<float>(i + 1);  // whole numbers: the sum is exact in any order
  const auto out = std::make_unique<float>(0.0f);
  for (int a = 2; a < argc; ++a) {
    emulator::seed(strtoull(argv[a], nullptr, 10));
    *out = -1;
    const cudaError_t error = found->second(x.get(), kCount, kThreads, out.get());
    if (error != cudaSuccess) {
      printf("%s\n", cudaGetErrorString(error));
      return 1;
    }
    printf("%g\n", *out);
  }
}
