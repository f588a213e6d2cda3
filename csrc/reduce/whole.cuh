// Device code of the rungs that reduce a whole tensor of a common float with a team for each chunk.
#pragma once

#include "../primitives/ptx/launch.cuh"
#include "chunk.cuh"

namespace treduce::reduce::whole {

// The node over the chunks from `chunk` on, as many as the block has teams; less where the tensor ends. The time of a small sum is
// that of its instructions, one after another, and of fetching them: few parameters, offsets of 32 bits, no loop over chunks.
//
// The next launch may come as soon as every block's elements have been asked for.
// Who calls: every thread of the block. Valid in: its first warp. Shared memory: 32 accumulators, static. Synchronises; not to be
// called again.
template <class O, class T>
TREDUCE_DEVICE typename O::Acc fold_block(const T* data, int length, int chunk) {
  using Acc = typename O::Acc;
  using Source = Stored<T>;
  constexpr int kSize = vector_of<Source>;
  using Team = reduce::Team<O, Source, kSize>;
  constexpr int kPacks = Team::kPacks;
  const Source x{{data}};
  const int lane = threadIdx.x % warp::kLanes;
  const int begin =
      (chunk + (static_cast<int>(threadIdx.x) - lane) / Team::kThreads) * Pairwise::kChunk;  // of the warp
  const int at = begin + lane / Team::kThreads * Pairwise::kChunk + lane % Team::kThreads * kSize;
  // The elements of no whole vector: the warp in whose chunks they are loads them side by side, and gives them to their thread.
  const int cut = length % kSize;
  const int to_cut = length - cut - begin;
  const bool has_cut = cut > 0 && to_cut >= 0 && to_cut < Team::kOfWarp * Pairwise::kChunk;
  Acc rest = O::identity();
  Pack<T, kSize> pack[Pairwise::kStripes][kPacks] = {};
#pragma unroll
  for (int s = 0; s < Pairwise::kStripes; ++s) {
#pragma unroll
    for (int h = 0; h < kPacks; ++h) {
      const int from = at + s * Pairwise::kLanes + h * Team::kStep;
      if (from + kSize <= length) pack[s][h] = load_pack<kSize>(x, from);
    }
  }
  if (has_cut && lane < cut) rest = widen<Acc>(x.at(length - cut + lane));
  ptx::allow_launch_after();
  typename Team::OwnLanes lanes[kPacks];
#pragma unroll
  for (int s = 0; s < Pairwise::kStripes; ++s) {
#pragma unroll
    for (int h = 0; h < kPacks; ++h) lanes[h].take(x, pack[s][h]);  // what was not there is +0, which no sum notices
  }
  if (has_cut) {
    const int to_mine = length - cut - at;
    const bool is_mine = to_mine >= 0 && to_mine < Pairwise::kChunk && to_mine % Team::kStep == 0;
#pragma unroll
    for (int c = 0; c + 1 < kSize; ++c) {
      const Acc element = warp::from(rest, c);
#pragma unroll
      for (int h = 0; h < kPacks; ++h) {
        if (is_mine && to_mine % Pairwise::kLanes / Team::kStep == h) {
          lanes[h].at[c] = O::combine(lanes[h].at[c], element);
        }
      }
    }
  }
  Acc value = Team::tree(lanes);
#pragma unroll
  for (int s = Team::kThreads; s < warp::kLanes; s *= 2) value = O::combine(value, warp::exchange(value, s));
  if (blockDim.x > warp::kLanes) {
    SHARED_ARRAY(Acc, values, warp::kLanes);
    const int warps = static_cast<int>(blockDim.x) / warp::kLanes;
    if (lane == 0) values[threadIdx.x / warp::kLanes] = value;
    __syncthreads();
    if (threadIdx.x < warp::kLanes) {
      value = lane < warps ? values[lane] : O::identity();
#pragma unroll 1
      for (int s = 1; s < warps; s *= 2) value = O::combine(value, warp::exchange(value, s));
    }
  }
  return value;
}

}  // namespace treduce::reduce::whole
