// For x86-64 CPUs with AVX2, FMA and F16C. Everything that the pragma shall not reach is included before it.
#ifdef __x86_64__
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "../common/dtypes.h"
#include "../primitives/functors.h"

#pragma GCC target("avx2,fma,f16c")
#define TREDUCE_INSTRUCTIONS avx2
#include "loops_cpu_vectors.h"
#endif
