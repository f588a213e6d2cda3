// For any CPU.
#include "gemm_kernels.h"

namespace treduce::matmul {
namespace {

template <class T>
void run_all(const Gemm& gemm, int64_t begin, int64_t end) {
  run<Baseline, T>(gemm, begin, end);
}

}  // namespace

void run_baseline(const Gemm& gemm, int64_t begin, int64_t end) {
  dispatch_dtype(gemm.dtype, [&](auto type) { run_all<typename decltype(type)::type>(gemm, begin, end); });
}

}  // namespace treduce::matmul
