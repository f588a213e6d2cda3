// For x86-64 CPUs with AVX2 and FMA.
#ifdef __x86_64__
#include "gemm_kernels.h"

namespace treduce::matmul {
namespace {

template <class T>
__attribute__((target("avx2,fma"))) void run_all(const Gemm& gemm, int64_t begin, int64_t end) {
  run<Avx2, T>(gemm, begin, end);
}

}  // namespace

void run_avx2(const Gemm& gemm, int64_t begin, int64_t end) {
  dispatch_dtype(gemm.dtype, [&](auto type) { run_all<typename decltype(type)::type>(gemm, begin, end); });
}

}  // namespace treduce::matmul
#endif
