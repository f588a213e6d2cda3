// For x86-64 CPUs with AVX-512 F, BW, DQ and VL. Everything that the pragma shall not reach is included before it.
#ifdef __x86_64__
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "../common/dtypes.h"
#include "../primitives/functors.h"

#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c,prefer-vector-width=512")
#define TREDUCE_INSTRUCTIONS avx512
#include "loops_cpu_vectors.h"
#endif
