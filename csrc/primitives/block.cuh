// Reductions within a block whose size is a multiple of 32.
#pragma once

#include "neighbours.h"
#include "shared.cuh"
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
// launch, so they are read past the L1.
template <class Op>
TREDUCE_DEVICE typename Op::Acc reduce_partials(const typename Op::Acc* partials, int64_t count) {
  typename Op::Acc value = Op::identity();
  for (int64_t i = threadIdx.x; i < count; i += blockDim.x) value = Op::combine(value, __ldcg(partials + i));
  return reduce<Op>(value);
}

// Tree by neighbours over one value a thread: lanes, then warps.
// Who calls: every thread of the block. Valid in: thread 0. Shared memory: 32 accumulators, static.
// Synchronises once; before calling it again, __syncthreads().
template <class Op>
TREDUCE_DEVICE typename Op::Acc reduce_neighbours(typename Op::Acc value) {
  using Acc = typename Op::Acc;
  SHARED_ARRAY(Acc, of_warp, warp::kLanes);
  const int lane = threadIdx.x % warp::kLanes;
  value = warp::reduce_neighbours<Op>(value);
  if (lane == 0) of_warp[threadIdx.x / warp::kLanes] = value;
  __syncthreads();
  if (threadIdx.x >= warp::kLanes) return value;
  return warp::reduce_neighbours<Op>(lane < static_cast<int>(blockDim.x) / warp::kLanes ? of_warp[lane]
                                                                                        : Op::identity());
}

// A value that another block of the same launch may have written: read past the L1.
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
template <class Op, int kAhead = 8, class Index, class Load>
TREDUCE_DEVICE typename Op::Acc fold_run(Index begin, Index each, Index count, Load load) {
  using Acc = typename Op::Acc;
  const auto few = [&](Index from) {
    Acc value[kAhead];
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      value[k] = k < each && from + k < count ? load(from + k) : Op::identity();
    }
#pragma unroll
    for (int s = 1; s < kAhead; s *= 2) {
#pragma unroll
      for (int k = 0; k < kAhead; k += 2 * s) value[k] = Op::combine(value[k], value[k + s]);
    }
    return value[0];
  };
  if (each <= kAhead) return few(begin);
  Neighbours<Op, 24> nodes;
  for (Index from = begin; from < begin + each && from < count; from += kAhead) nodes.push(few(from));
  return nodes.value();
}

// The smallest power of two of which `threads` are `count` or more.
TREDUCE_DEVICE int64_t each_of(int64_t count, int threads) {
  int64_t each = 1;
  while (each * threads < count) each *= 2;
  return each;
}

// Tree by neighbours over partials[0 .. count) in global memory, written by blocks of the same launch.
// Who calls, valid in, shared memory, synchronises: as reduce_neighbours.
template <class Op>
TREDUCE_DEVICE typename Op::Acc fold_partials(const typename Op::Acc* partials, int64_t count) {
  const int64_t each = each_of(count, blockDim.x);
  return reduce_neighbours<Op>(
      fold_run<Op>(threadIdx.x * each, each, int64_t{count}, [&](int64_t i) { return load_partial(partials + i); }));
}

// The same by one warp, for up to kPartialsOfWarp of them. Valid in: every lane. No shared memory.
constexpr int kPartialsOfWarp = 256;
template <class Op>
TREDUCE_DEVICE typename Op::Acc fold_partials_by_warp(const typename Op::Acc* partials, int count) {
  const int64_t each = each_of(count, warp::kLanes);
  return warp::reduce_neighbours<Op>(
      fold_run<Op>(threadIdx.x * each, each, int64_t{count}, [&](int64_t i) { return load_partial(partials + i); }));
}

// Tree by neighbours over values[0 .. count), which are in shared memory; every thread may have written some of them.
// Who calls: every thread of the block. Valid in: thread 0. Shared memory: 32 accumulators, static, beside `values`.
// Synchronises on the way in; before `values` are written again, or this is called again, __syncthreads().
template <class Op>
TREDUCE_DEVICE typename Op::Acc fold_neighbours(const typename Op::Acc* values, int count) {
  __syncthreads();
  if (count <= warp::kLanes) {  // the common case first, and short
    if (threadIdx.x >= warp::kLanes) return Op::identity();
    return warp::reduce_neighbours<Op>(static_cast<int>(threadIdx.x) < count ? values[threadIdx.x] : Op::identity());
  }
  if (count <= 8 * warp::kLanes) {
    if (threadIdx.x >= warp::kLanes) return Op::identity();
    const int64_t each = each_of(count, warp::kLanes);
    return warp::reduce_neighbours<Op>(
        fold_run<Op>(threadIdx.x * each, each, int64_t{count}, [&](int64_t i) { return values[i]; }));
  }
  // A thread folds an aligned run of values, a power of two of them, so that the block has a thread for each run.
  const int64_t each = each_of(count, blockDim.x);
  return reduce_neighbours<Op>(
      fold_run<Op>(threadIdx.x * each, each, int64_t{count}, [&](int64_t i) { return values[i]; }));
}

}  // namespace treduce::block
