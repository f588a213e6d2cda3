// Reductions within a block whose size is a multiple of 32.
#pragma once

#include "neighbours.h"
#include "shared.cuh"
#include "thread.cuh"
#include "warp.cuh"

#include <cstring>

namespace treduce::block {

// Each warp folds its lanes with shuffles, then the first warp folds one value a warp.
// Who calls: every thread of the block. Valid in: thread 0. Shared memory: 32 accumulators, static.
// Synchronises once, on the way in to the second step; before calling it again, __syncthreads().
template <class Op>
TREDUCE_DEVICE typename Op::Acc reduce(typename Op::Acc value) {
  using Acc = typename Op::Acc;
  SHARED_ARRAY(Acc, of_warp, warp::kLanes);
  const int lane = threadIdx.x % warp::kLanes;
  const int warp = threadIdx.x / warp::kLanes;
  value = warp::reduce<Op>(value);
  if (lane == 0) of_warp[warp] = value;
  __syncthreads();
  if (warp == 0) {
    const int warps = blockDim.x / warp::kLanes;
    value = warp::reduce<Op>(lane < warps ? of_warp[lane] : Op::identity());
  }
  return value;
}

// One block reduces `count` partial values: a loop with the block as its stride, then the tree above.
// Who calls: every thread of one block. Valid in: thread 0. `partials` may have been written by other blocks of the same
// launch, so they are read past the L1. Shared memory, and who synchronises: as reduce.
template <class Op>
TREDUCE_DEVICE typename Op::Acc reduce_partials(const typename Op::Acc* partials, int64_t count) {
  typename Op::Acc value = Op::identity();
  for (int64_t i = threadIdx.x; i < count; i += blockDim.x) value = Op::combine(value, __ldcg(partials + i));
  return reduce<Op>(value);
}

// A value that another block of the same launch may have written: read past the L1.
// Who calls: any thread, after it knows that the value is there (grid::arrive_last). Needs: an address that is a multiple of the
// value's size, up to 16 bytes. Nobody synchronises.
template <class T>
TREDUCE_DEVICE T load_partial(const T* address) {
  T value;
  if constexpr (sizeof(T) == 4) {
    const int word = __ldcg(reinterpret_cast<const int*>(address));
    memcpy(&value, &word, sizeof(T));
  } else if constexpr (sizeof(T) == 8) {
    const int2 words = __ldcg(reinterpret_cast<const int2*>(address));
    memcpy(&value, &words, sizeof(T));
  } else {
    const int4* source = reinterpret_cast<const int4*>(address);
    int4 words[sizeof(T) / 16];
#pragma unroll
    for (int i = 0; i < static_cast<int>(sizeof(T) / 16); ++i) words[i] = __ldcg(source + i);
    memcpy(&value, words, sizeof(T));
  }
  return value;
}

// Tree by neighbours over values [begin, begin + each), `each` a power of two; what lies past `count` is left out. load(i) is called
// for kAhead of them (a power of two) before the first is used.
// Who calls: any thread, alone. Valid in: that thread. No shared memory. Nobody synchronises.
template <class Op, int kAhead = 8, class Load>
TREDUCE_DEVICE typename Op::Acc fold_run(int begin, int each, int count, Load load) {
  using Acc = typename Op::Acc;
  Neighbours<Op, 24> nodes;
  for (int done = 0;; done += kAhead) {
    Acc value[kAhead];
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      value[k] = done + k < each && begin + done + k < count ? load(begin + done + k) : Op::identity();
    }
    const Acc node = thread::fold_neighbours<Op>(value);
    if (each <= kAhead) return node;
    nodes.push(node);
    if (done + kAhead >= each || begin + done + kAhead >= count) return nodes.value();
  }
}

// The smallest power of two such that `threads` runs of that length cover `count` values.
TREDUCE_DEVICE int each_of(int count, int threads) {
  int each = 1;
  while (each * static_cast<int64_t>(threads) < count) each *= 2;
  return each;
}

// Tree by neighbours over load(0) to load(count - 1), with the first `threads` threads of the block: a warp, or all of them. Each
// folds an aligned run of values, a power of two of them; then lanes meet, then warps.
// Who calls: `threads` threads. Valid in: thread 0. Shared memory: 32 accumulators, static. Synchronises where `threads` are more
// than a warp; before it is called again with as many, __syncthreads().
template <class Op, class Load>
TREDUCE_DEVICE typename Op::Acc fold_values(int count, int threads, Load load) {
  using Acc = typename Op::Acc;
  SHARED_ARRAY(Acc, of_warp, warp::kLanes);
  const int t = threadIdx.x;
  Acc value;
  if (count <= threads) {  // the common case first, and short
    value = t < count ? load(t) : Op::identity();
  } else {
    const int each = each_of(count, threads);
    value = fold_run<Op>(t * each, each, count, load);
  }
  value = warp::reduce_neighbours<Op>(value);
  if (threads == warp::kLanes) return value;
  if (t % warp::kLanes == 0) of_warp[t / warp::kLanes] = value;
  __syncthreads();
  if (t >= warp::kLanes) return value;
  return warp::reduce_neighbours<Op>(t < threads / warp::kLanes ? of_warp[t] : Op::identity());
}

}  // namespace treduce::block
