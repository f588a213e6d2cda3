// For any CPU.
#include "pairwise_cpu_kernels.h"

#define TREDUCE_INSTRUCTIONS baseline
#define TREDUCE_VECTOR_BYTES 16
#include "pairwise_cpu_vectors.h"
