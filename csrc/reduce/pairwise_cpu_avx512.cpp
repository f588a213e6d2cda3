// For x86-64 CPUs with AVX-512 F, BW, DQ and VL. Everything that the pragma shall not reach is included before it.
#ifdef __x86_64__
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // GCC 12 finds one in its own header
#endif
#include <immintrin.h>

#include <cstring>
#include <utility>

#include "../common/round.h"
#include "pairwise_cpu_kernels.h"

// -O3 takes half as long again to compile, for the same speed: vectors are written out. A scheduler would read the vectors of a run out of
// order, and caches would prefetch less of it.
#pragma GCC optimize("O2,no-schedule-insns2")
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,f16c")
#define TREDUCE_AVX512 1
#define TREDUCE_INSTRUCTIONS avx512
#define TREDUCE_VECTOR_BYTES 64
#include "pairwise_cpu_vectors.h"
#endif
