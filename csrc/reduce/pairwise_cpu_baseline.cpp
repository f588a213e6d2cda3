// For any CPU.
#include "../common/round.h"
#include "pairwise_cpu_kernels.h"

#pragma GCC optimize("O2")  // -O3 takes half as long again to compile, for the same speed: vectors are written out
#define TREDUCE_INSTRUCTIONS baseline
#define TREDUCE_VECTOR_BYTES 16
#include "pairwise_cpu_vectors.h"
