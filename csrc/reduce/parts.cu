// A block of threads folds what ranks sent of an output: for each cut its chunk, then its block of chunks, and at last all blocks.
#include "parts.h"

#include "../common/launch.h"
#include "../primitives/block.cuh"

namespace treduce::reduce {
namespace {

template <class Acc>
__global__ void __launch_bounds__(kPartsThreads) fold_parts(Parts<Acc> p, Result result) {
  using O = Sum<Acc>;
  SHARED_ARRAY(Part, parts, kMostParts);
  SHARED_ARRAY(Acc, cut, kMostParts);
  SHARED_ARRAY(Acc, chunk, 1);
  const int64_t output = blockIdx.x;
  const int thread = threadIdx.x;
  if (thread < p.ranks) parts[thread] = p.parts[thread];
  __syncthreads();
  p.parts = parts;
  for (int r = 0; r + 1 < p.ranks; ++r) {
    if (p.elements_at(r) > 0) {
      const Acc node =
          block::fold_values<O>(Pairwise::kLanes, kPartsThreads, [&](int lane) { return p.leaf(r, lane, output); });
      if (thread == 0) chunk[0] = node;
      __syncthreads();
    }
    if (p.chunks_at(r) > 0) {
      const Acc node =
          block::fold_values<O>(p.chunks_at(r), kPartsThreads, [&](int i) { return p.chunk(r, i, chunk[0], output); });
      if (thread == 0) cut[r] = node;
      __syncthreads();
    }
  }
  const Acc total = block::fold_values<O>(p.blocks(), kPartsThreads, [&](int i) { return p.block(i, cut, output); });
  if (thread == 0) result.store<O>(total, output);
}

template <class Acc>
int launch_one(const Parts<Acc>& p, const Result& result, void* stream) {
  return static_cast<int>(
      launch(&fold_parts<Acc>, Launch{prepare_parts(p), static_cast<cudaStream_t>(stream)}, p, result));
}

}  // namespace

int launch_parts(const Parts<float>& p, const Result& result, void* stream) { return launch_one(p, result, stream); }
int launch_parts(const Parts<double>& p, const Result& result, void* stream) { return launch_one(p, result, stream); }

}  // namespace treduce::reduce
