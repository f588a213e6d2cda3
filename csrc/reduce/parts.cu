// What a rank sends of a run that ranks cut, and the sum of what all sent: a block of threads folds an output, for each cut its
// chunk, then its block of chunks, and at last all blocks.
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
  for (int r = 0; r < p.ranks; ++r) {
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

template <class Source, class Acc>
__global__ void __launch_bounds__(Pairwise::kLanes) pack_parts(Message<Source, Acc> m, int64_t nodes, int64_t copies) {
  using O = Sum<Acc>;
  constexpr int kWarps = Pairwise::kLanes / warp::kLanes;
  static_assert(kWarps == 4 && kMostPacked == warp::kLanes);
  SHARED_ARRAY(Acc, of_warps, kMostPacked * kWarps);
  const int lane = threadIdx.x % warp::kLanes, warp = threadIdx.x / warp::kLanes;
  if (blockIdx.x < nodes) {
    const auto node = m.place(true, blockIdx.x);
#pragma unroll 2
    for (int c = 0; c < node.chunks; ++c) {
      const Acc value = warp::reduce_neighbours<O>(m.leaf(node, c, threadIdx.x));
      if (lane == 0) of_warps[c * kWarps + warp] = value;
    }
    __syncthreads();
    if (warp > 0) return;
    Acc value = O::identity();
    if (lane < node.chunks) {
      const Acc* const own = of_warps + lane * kWarps;
      value = O::combine(O::combine(own[0], own[1]), O::combine(own[2], own[3]));
    }
    value = warp::reduce_neighbours<O>(value);
    if (lane == 0) *node.value = value;
  } else {
    const int64_t i = (blockIdx.x - nodes) * Pairwise::kLanes + threadIdx.x;
    if (i >= copies) return;
    const auto copied = m.place(false, i);
    *copied.value = m.element(copied.at);
  }
}

template <class Acc>
int fold_one(const Parts<Acc>& p, const Result& result, void* stream) {
  return static_cast<int>(
      launch(&fold_parts<Acc>, Launch{prepare_parts(p), static_cast<cudaStream_t>(stream)}, p, result));
}

template <class Acc>
int pack_one(const Message<Converted<Acc>, Acc>& message, void* stream) {
  return with_elements(message, [&](const auto& m) {
    using M = std::decay_t<decltype(m)>;
    return static_cast<int>(launch(&pack_parts<decltype(M::elements), Acc>,
                                   Launch{prepare_message(m), static_cast<cudaStream_t>(stream)}, m, m.count(true),
                                   m.count(false)));
  });
}

}  // namespace

int launch_parts(const Parts<float>& p, const Result& result, void* stream) { return fold_one(p, result, stream); }
int launch_parts(const Parts<double>& p, const Result& result, void* stream) { return fold_one(p, result, stream); }
int launch_pack(const Message<Converted<float>, float>& m, void* stream) { return pack_one(m, stream); }
int launch_pack(const Message<Converted<double>, double>& m, void* stream) { return pack_one(m, stream); }

}  // namespace treduce::reduce
