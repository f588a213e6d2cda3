// For x86-64 CPUs with AVX-512 F, DQ and VL.
#ifdef __x86_64__
#include "gemm_kernels.h"

namespace treduce::matmul {
namespace {

template <class T>
__attribute__((target("avx512f,avx512dq,avx512vl,prefer-vector-width=512"))) void run_all(const Gemm& gemm,
                                                                                          int64_t begin, int64_t end) {
  run<Avx512, T>(gemm, begin, end);
}

}  // namespace

void run_avx512(const Gemm& gemm, int64_t begin, int64_t end) {
  dispatch_dtype(gemm.dtype, [&](auto type) { run_all<typename decltype(type)::type>(gemm, begin, end); });
}

}  // namespace treduce::matmul
#endif
