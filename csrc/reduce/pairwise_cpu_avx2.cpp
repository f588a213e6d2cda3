// For x86-64 CPUs with AVX2 and F16C. Everything that the pragma shall not reach is included before it.
#ifdef __x86_64__
#include <immintrin.h>

#include <cstring>
#include <utility>

#include "../common/round.h"
#include "pairwise_cpu_kernels.h"

#pragma GCC optimize("O2")  // -O3 takes half as long again to compile, for the same speed: vectors are written out
#pragma GCC target("avx2,f16c")
#define TREDUCE_AVX2 1
#define TREDUCE_INSTRUCTIONS avx2
#define TREDUCE_VECTOR_BYTES 32
#include "pairwise_cpu_vectors.h"
#endif
