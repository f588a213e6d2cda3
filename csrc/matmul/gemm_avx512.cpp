// For x86-64 CPUs with AVX-512 F, BW, DQ and VL. Everything that the pragma shall not reach is included before it.
#ifdef __x86_64__
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // GCC 12 finds one in its own header
#endif
#include <immintrin.h>

#include <cmath>
#include <cstring>
#include <new>
#include <utility>

#include "gemm.h"

#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c,prefer-vector-width=512")
#define TREDUCE_AVX512 1
#include "gemm_kernels.h"

namespace treduce::matmul {

void run_avx512(const Gemm& gemm, int64_t begin, int64_t end) {
  dispatch_dtype(gemm.dtype, [&](auto type) { run<Avx512, typename decltype(type)::type>(gemm, begin, end); });
}

}  // namespace treduce::matmul
#endif
