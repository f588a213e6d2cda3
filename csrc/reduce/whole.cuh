// Device code of the rungs that reduce a row at once, with a team for each of its chunks.
#pragma once

#include "../primitives/ptx/launch.cuh"
#include "chunk.cuh"

namespace treduce::reduce::whole {

// The node over the lanes of every team of a block, a chunk each.
// Who calls: every thread of the block. Valid in: its first warp. Shared memory: 32 accumulators, static. Synchronises; not to be
// called again.
template <class O, class Team>
TREDUCE_DEVICE typename O::Acc fold_teams(const typename Team::OwnLanes (&lanes)[Team::kPacks]) {
  using Acc = typename O::Acc;
  const int lane = threadIdx.x % warp::kLanes;
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

// The node over the chunks of a row from `chunk` on, as many as the block has teams; less where the row ends. The time of a small sum is
// that of its instructions, one after another, and of fetching them: few parameters, offsets of 32 bits, no loop over chunks.
//
// The next launch may come as soon as every block's elements have been asked for.
// Who calls: every thread of the block. Valid in: its first warp. Shared memory: 32 accumulators, static. Synchronises; not to be
// called again.
template <class O, int kSize, class Source>
TREDUCE_DEVICE typename O::Acc fold_block(const Source& x, int length, int chunk) {
  using Acc = typename O::Acc;
  using Raw = typename Source::Raw;
  using Team = reduce::Team<O, Source, kSize>;
  constexpr int kPacks = Team::kPacks;
  const int lane = threadIdx.x % warp::kLanes;
  const int begin =
      (chunk + (static_cast<int>(threadIdx.x) - lane) / Team::kThreads) * Pairwise::kChunk;  // of the warp
  const int at = begin + lane / Team::kThreads * Pairwise::kChunk + lane % Team::kThreads * kSize;
  // The elements of no whole vector: the warp in whose chunks they are loads them side by side, and gives them to their thread.
  const int cut = length % kSize;
  const int to_cut = length - cut - begin;
  const bool has_cut = cut > 0 && to_cut >= 0 && to_cut < Team::kOfWarp * Pairwise::kChunk;
  Raw rest = {};
  Pack<Raw, kSize> pack[Pairwise::kStripes][kPacks] = {};
  // One address for all loads: from others the compiler would compute each anew, and the last load waits for all of them.
  Source mine = x;
  mine.data += at;
  const int left = length - at;
#pragma unroll
  for (int s = 0; s < Pairwise::kStripes; ++s) {
#pragma unroll
    for (int h = 0; h < kPacks; ++h) {
      const int from = s * Pairwise::kLanes + h * Team::kStep;
      if (from + kSize <= left) pack[s][h] = load_pack<kSize>(mine, from);
    }
  }
  if (has_cut && lane < cut) rest = x.at(length - cut + lane);
  ptx::allow_launch_after();
  typename Team::OwnLanes lanes[kPacks];
#pragma unroll
  for (int s = 0; s < Pairwise::kStripes; ++s) {
#pragma unroll
    for (int h = 0; h < kPacks; ++h) {
      if (takes_zeros<O, Source> || s * Pairwise::kLanes + h * Team::kStep + kSize <= left)
        lanes[h].take(x, pack[s][h]);
    }
  }
  if constexpr (is_order_free<O>) {
    if (has_cut && lane < cut) lanes[0].take(x, rest, 0);
  } else if (has_cut) {
    Acc of_lane;
    x.each(Several<Raw, 1>{{rest}}, [&](int, auto element) { of_lane = widen<Acc>(element); });
    const int to_mine = length - cut - at;
    const bool is_mine = to_mine >= 0 && to_mine < Pairwise::kChunk && to_mine % Team::kStep == 0;
#pragma unroll
    for (int c = 0; c + 1 < kSize; ++c) {
      const Acc element = warp::from(of_lane, c);
#pragma unroll
      for (int h = 0; h < kPacks; ++h) {
        if (is_mine && to_mine % Pairwise::kLanes / Team::kStep == h) {
          lanes[h].at[c] = O::combine(lanes[h].at[c], element);
        }
      }
    }
  }
  return fold_teams<O, Team>(lanes);
}

// The same for a row of any strides, element by element: a warp for each chunk. Of a row of up to a stripe, kStripes is 1.
// Who calls, valid in, shared memory, synchronises: as fold_block.
template <class O, int kStripes, class Source, class Layout>
TREDUCE_DEVICE typename O::Acc fold_elements(const Source& x, const Layout& layout, int64_t row, int length) {
  using Team = reduce::Team<O, Source, 1>;
  constexpr int kPacks = Team::kPacks;
  const int lane = threadIdx.x % warp::kLanes;
  const int first = (static_cast<int>(threadIdx.x) - lane) / warp::kLanes * Pairwise::kChunk + lane;
  Walker<Team::kStep, 1, Layout::kHow> walker(layout, first);
  row += walker.begin();
  typename Source::Raw raw[kStripes][kPacks] = {};
#pragma unroll
  for (int s = 0; s < kStripes; ++s) {
#pragma unroll
    for (int h = 0; h < kPacks; ++h) {
      const auto offset = walker.next(s * kPacks + h);
      if (first + s * Pairwise::kLanes + h * Team::kStep < length) raw[s][h] = x.at(row + offset);
    }
  }
  ptx::allow_launch_after();
  typename Team::OwnLanes lanes[kPacks];
#pragma unroll
  for (int s = 0; s < kStripes; ++s) {
#pragma unroll
    for (int h = 0; h < kPacks; ++h) lanes[h].take(x, raw[s][h], 0);  // zeros, where the row has ended
  }
  return fold_teams<O, Team>(lanes);
}

}  // namespace treduce::reduce::whole
