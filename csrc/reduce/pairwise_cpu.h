// The order of pairwise.h, executed on the CPU: the same additions in the same order as the kernels, hence the same bits.
#pragma once

#include "geometry.h"
#include "result.h"

namespace treduce::reduce {

// Reduces the input to geometry.outputs results, in plain or compensated arithmetic; output o goes to element kept_out.offset(o)
// of `result`. `dtype` is what lies in memory; if `converting`, each element becomes a `target` before it is combined. There is
// at least one output, of at least one element.
void reduce_on_cpu(Op op, Arithmetic arithmetic, DType dtype, DType target, bool converting, const void* input,
                   const Geometry& geometry, const Result& result);

// nodes[r] is the node over x[r * stride + e], e < n <= kMostOfRun, for each of `rows` rows of accumulators: float32 or float64, sums or
// maxima. Runs that begin at multiples of a power of two of chunks have nodes of the tree over all of them.
constexpr int64_t kMostOfRun = 32 * 1024;
using FoldRuns = void (*)(const void* x, int64_t rows, int64_t stride, int64_t n, void* nodes);
FoldRuns fold_runs(Op op, DType accumulator);

}  // namespace treduce::reduce
