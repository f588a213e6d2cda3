// Tasks that fill no round of blocks, dealt out by steps of k, so that all blocks end at the same time.
//
// `dealt` of a product's tasks, one to two for each block, are laid end to end and cut into equal parts. After its share of the others a block
// does the first steps of the last task of its part, and leaves the accumulators in the workspace; whole tasks follow; at last it does what
// the block before left of a task, and goes on from that block's accumulators. So an output's chain of additions is what it is without
// cuts, and its bits are the same. A part is at least as long as a task: what a block goes on from is there when it needs it.
// Source: M. Osama et al., "Stream-K: Work-centric parallel decomposition for dense matrix-matrix multiplication on the GPU"; its blocks
// add partial sums.
#pragma once

#include "../primitives/ptx/acquire.cuh"
#include "../primitives/ptx/launch.cuh"
#include "../primitives/ptx/opaque.cuh"
#include "rung.h"

namespace treduce::matmul {

// What kernels are told. Tasks that fill rounds are not dealt out: `dealt` is 0.
struct StreamK {
  int tasks, dealt;
  void* accumulators;  // [block][warp][16 bytes of a lane][lane]
  unsigned* ready;     // [block][warp], all zero before and after
};

inline StreamK stream_k_of(const Call& call, int64_t tasks) {
  const Decisions& d = call.prepared;
  return {static_cast<int>(tasks), static_cast<int>(d.dealt), call.region<void>(d.accumulators), call.counters};
}

// Steps of k of a task, or of a part of it.
struct Piece {
  int task;  // negative: there is none
  int2 steps;
  int taken;  // steps of its first group that the block before did
  bool left;  // whether the rest is left to the block after
};

// A block's part of the tasks that are dealt out: it ends before the last cut's task, of which it has so many steps, and the block before
// has the first cut's.
struct Part {
  struct Cut {
    int task, steps, of_group;
  };
  Cut first, last;
};

// range_of(task): its steps, of which `group` are a group of k; cuts lie at even steps inside groups.
template <class RangeOf>
TREDUCE_DEVICE Part part_of(const StreamK& all, int group, RangeOf&& range_of) {
  const int blocks = gridDim.x;
  const auto cut_before = [&](int block) {
    const int task = block * all.dealt / blocks, rest = block * all.dealt - task * blocks;
    const int2 range = range_of(task);
    int steps = static_cast<int>(int64_t(range.y - range.x) * rest / blocks) / 2 * 2;
    if (steps > 0 && steps % group == 0) steps -= 2;
    return Part::Cut{task, steps, steps % group};
  };
  if (all.dealt == 0) return {};
  const int block = blockIdx.x;
  return {cut_before(block), cut_before(block + 1)};
}

// A block's `i`th piece. Whole rounds of tasks come first, while all blocks are at the same steps of k, whose lines they find in the L2.
// kDeals: whether tasks may be dealt out.
template <bool kDeals, class RangeOf>
TREDUCE_DEVICE Piece piece_of(const StreamK& all, const Part& part, int i, RangeOf&& range_of) {
  const int blocks = gridDim.x, task = all.dealt + blockIdx.x + i * blocks;
  if (task < all.tasks) return {task, range_of(task), 0, false};
  if (!kDeals || all.dealt == 0) return {-1, {}, 0, false};
  const auto [first, last] = part;
  i -= (all.tasks - all.dealt) / blocks;
  if (last.steps > 0 && i-- == 0) {
    const int begin = range_of(last.task).x;
    return {last.task, {begin, begin + last.steps}, 0, true};
  }
  const int whole = first.task + (first.steps > 0) + i;
  if (whole < last.task) return {whole, range_of(whole), 0, false};
  if (first.steps == 0 || whole > last.task) return {-1, {}, 0, false};
  const int2 range = range_of(first.task);
  return {first.task, {range.x + first.steps, range.y}, first.of_group, false};
}

// Leaves a warp's accumulators to the same warp of the next block.
// Who calls: every lane of a warp, which has written all that goes with them. kWarps: of a block, that do.
template <int kWarps, class Sum, int kCount>
TREDUCE_DEVICE void hand_over(const StreamK& all, const Sum (&sums)[kCount]) {
  constexpr int kPack = 16 / sizeof(Sum);
  const int thread = ptx::kept(threadIdx.x), warp = ptx::block_index() * kWarps + thread / 32, lane = thread % 32;
  uint4* const to = static_cast<uint4*>(all.accumulators) + int64_t(warp) * (kCount / kPack * 32) + lane;
#pragma unroll
  for (int i = 0; i < kCount / kPack; ++i) {
    uint4 pack;
    memcpy(&pack, sums + i * kPack, sizeof(pack));
    to[i * 32] = pack;
  }
  __syncwarp();
  if (lane == 0) ptx::store_release(all.ready + warp, 1);
}

// Takes the accumulators that the same warp of the block before left. That block has begun: blocks begin in the order of their indices,
// on which look-back scans rely as well.
// Who calls: every lane of a warp.
template <int kWarps, class Sum, int kCount>
TREDUCE_DEVICE void take_over(const StreamK& all, Sum (&sums)[kCount]) {
  constexpr int kPack = 16 / sizeof(Sum);
  const int thread = ptx::kept(threadIdx.x), warp = (ptx::block_index() - 1) * kWarps + thread / 32, lane = thread % 32;
  // All lanes look, and vote: the compiler must not think that they part.
  while (__any_sync(~0u, ptx::load_acquire(all.ready + warp) == 0)) {
  }
  if (lane == 0) all.ready[warp] = 0;
  __syncwarp();
  const uint4* const from = static_cast<const uint4*>(all.accumulators) + int64_t(warp) * (kCount / kPack * 32) + lane;
#pragma unroll
  for (int i = 0; i < kCount / kPack; ++i) {
    const uint4 pack = __ldcg(from + i * 32);
    memcpy(sums + i * kPack, &pack, sizeof(pack));
  }
}

}  // namespace treduce::matmul
