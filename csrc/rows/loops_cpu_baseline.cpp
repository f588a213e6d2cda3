// For any CPU: fused multiply-adds may be calls of the C library, which rounds them alike.
#define TREDUCE_INSTRUCTIONS baseline
#include "loops_cpu_vectors.h"
