// What a rank sends of a run that ranks cut, and the sum of what all sent: a block of threads folds an output, for each cut its
// chunk, then its block of chunks, and at last all blocks.
#include "parts.h"

#include "../common/launch.h"
#include "../primitives/block.cuh"

namespace treduce::reduce {
namespace {

template <class Acc, int kThreads>
__global__ void __launch_bounds__(kThreads) fold_parts(Parts<Acc> p, Result result) {
  using O = Sum<Acc>;
  SHARED_ARRAY(Part, parts, kMostParts);
  SHARED_ARRAY(Acc, cut, kMostParts);
  SHARED_ARRAY(Acc, chunk, 1);
  const int64_t output = blockIdx.x;
  const int thread = threadIdx.x;
  if (thread < p.ranks) parts[thread] = p.parts[thread];
  __syncthreads();
  p.parts = parts;
  for (int r = 0; r < p.ranks; ++r) {
    if (p.elements_at(r) > 0) {
      const Acc node =
          block::fold_values<O>(Pairwise::kLanes, kThreads, [&](int lane) { return p.leaf(r, lane, output); });
      if (thread == 0) chunk[0] = node;
      __syncthreads();
    }
    if (p.chunks_at(r) > 0) {
      const Acc node =
          block::fold_values<O>(p.chunks_at(r), kThreads, [&](int i) { return p.chunk(r, i, chunk[0], output); });
      if (thread == 0) cut[r] = node;
      __syncthreads();
    }
  }
  const Acc total = block::fold_values<O>(p.blocks(), kThreads, [&](int i) { return p.block(i, cut, output); });
  if (thread == 0) result.store<O>(total, output);
}

template <class Source, class Acc>
__global__ void __launch_bounds__(Pairwise::kLanes) pack_parts(Message<Source, Acc> m) {
  const int thread = threadIdx.x;
  if (const int64_t node = blockIdx.x; node < m.nodes()) {
    const Acc value =
        block::fold_values<Sum<Acc>>(Pairwise::kLanes, Pairwise::kLanes, [&](int lane) { return m.leaf(node, lane); });
    if (thread == 0) m.node(node) = value;
  } else {
    const int64_t i = (node - m.nodes()) * Pairwise::kLanes + thread;
    if (i < m.copies()) m.copy(i);
  }
}

template <class Acc>
int fold_one(const Parts<Acc>& p, const Result& result, void* stream) {
  const LaunchShape shape = prepare_parts(p);
  const auto kernel =
      shape.block == kPartsThreads ? &fold_parts<Acc, kPartsThreads> : &fold_parts<Acc, kPartsMostThreads>;
  return static_cast<int>(launch(kernel, Launch{shape, static_cast<cudaStream_t>(stream)}, p, result));
}

template <class Acc>
int pack_one(const Message<Converted<Acc>, Acc>& message, void* stream) {
  return with_elements(message, [&](const auto& m) {
    using M = std::decay_t<decltype(m)>;
    return static_cast<int>(launch(&pack_parts<decltype(M::elements), Acc>,
                                   Launch{prepare_message(m), static_cast<cudaStream_t>(stream)}, m));
  });
}

}  // namespace

int launch_parts(const Parts<float>& p, const Result& result, void* stream) { return fold_one(p, result, stream); }
int launch_parts(const Parts<double>& p, const Result& result, void* stream) { return fold_one(p, result, stream); }
int launch_pack(const Message<Converted<float>, float>& m, void* stream) { return pack_one(m, stream); }
int launch_pack(const Message<Converted<double>, double>& m, void* stream) { return pack_one(m, stream); }

}  // namespace treduce::reduce
