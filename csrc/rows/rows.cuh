// What the kernels share above a chunk: how warps and blocks that hold parts of one row meet, and the launch of an op's kernels.
#pragma once

#include "../common/launch.h"
#include "../primitives/cluster.cuh"
#include "../primitives/neighbours.h"
#include "../primitives/ptx/launch.cuh"
#include "../primitives/shared.cuh"
#include "chunk.cuh"
#include "rung.h"
#include "shapes.h"

namespace treduce::rows {

template <class A, class Source>
TREDUCE_DEVICE Constants<A> constants_of(const Parameters<Source>& p) {
  return {static_cast<A>(p.problem.eps), p.problem.length, p.has_mean, p.problem.sums_alone};
}

struct Slots {
  Two<double> of_warp[kTurns][warp::kLanes];
  Two<double> of_block[kTurns];
};
TREDUCE_DEVICE Slots* slots() {
  SHARED_ARRAY(Slots, all, 1);
  return all;
}

// The node over the chunks of `warps` neighbouring warps (a power of two), each of which gives the node of its own.
// Who calls: every thread of the block, with a `turn` that alternates. Valid in: every thread. Shared memory: slots(). Synchronises once
// where warps share a row.
template <class Fold>
TREDUCE_DEVICE typename Fold::Acc fold_warps(typename Fold::Acc value, int warps, int turn) {
  using Acc = typename Fold::Acc;
  if (warps == 1) return value;
  Acc* const of_warp = reinterpret_cast<Acc*>(slots()->of_warp[turn]);
  const int lane = threadIdx.x % warp::kLanes, warp = threadIdx.x / warp::kLanes;
  if (lane == 0) of_warp[warp] = value;
  __syncthreads();
  return warp::reduce_neighbours<Fold>(of_warp[(warp & -warps) + (lane & (warps - 1))], warps);
}

// The same over the blocks of a cluster (a power of two), each of which has a place for its node in shared memory.
// Who calls: every thread of the cluster, with places that alternate. Valid in: every thread. The cluster synchronises once; before
// a block ends, it does again.
template <class Fold>
TREDUCE_DEVICE typename Fold::Acc fold_blocks(typename Fold::Acc value, int blocks, typename Fold::Acc* of_block) {
  if (threadIdx.x == 0) *of_block = value;
  cluster::sync();
  const int lane = threadIdx.x % warp::kLanes;
  return warp::reduce_neighbours<Fold>(*cluster::shared_of(of_block, lane & (blocks - 1)), blocks);
}

// Who calls: every thread, when its first elements are read.
TREDUCE_DEVICE void allow_launch_after() {
  if (gridDim.x >= kManyBlocks) ptx::allow_launch_after();
}

// Threads of a block at most, for the compiler.
template <template <class> class RowOp, class Source, int kSize>
constexpr int kThreads = most_threads(RowOp<typename Source::Acc>::kInputs, RowOp<typename Source::Acc>::kWeight,
                                      sizeof(typename Source::Acc) == 8, (kSize > 1));

// Blocks of that size that an SM shall hold: a warp that waits needs others, and the compiler would take more registers than it needs.
// 2048 threads of 32 registers to 512 of 128, as measured for softmax and rms_norm (H200, 2026-11-22); nothing spills.
template <template <class> class RowOp, class Source, int kSize>
constexpr int kResident = sizeof(typename Source::Acc) == 8 ? 1
                          : Source::kAdjacent               ? (RowOp<float>::kInputs > 1 || RowOp<float>::kBias ? 2 : 3)
                          : kSize > 1 && RowOp<float>::kInputs == 1 ? 1024 / kThreads<RowOp, Source, kSize>
                                                                    : 1;

template <class Source>
Parameters<Source> parameters(const Call& call) {
  return {call.request.problem, call.pointers, Source(call.request.dtype), has_mean(call.request.op)};
}

// Calls body(source, integral_constant<kSize>) for what is prepared. A rung names the ways of reading that it has kernels for, beside
// vectors and single elements (those of 16 bits share a kernel).
template <Reads... kHas, class Body>
cudaError_t dispatch_source(const Call& call, Body body) {
  const DType dtype = call.request.dtype;
  const Reads reads = call.prepared.reads;
  if constexpr (((kHas == Reads::wide) || ...)) {
    if (reads == Reads::wide) {
      constexpr std::integral_constant<int, kWide> eight{};
      if (dtype == DType::float16) return body(Type<Stored<float16>>{}, eight);
      return body(Type<Stored<bfloat16>>{}, eight);
    }
  }
  if (reads == Reads::vectors) {
    constexpr std::integral_constant<int, 4> four{};
    switch (dtype) {
      case DType::float64: return body(Type<Stored<double>>{}, std::integral_constant<int, 2>{});
      case DType::float16: return body(Type<Stored<float16>>{}, four);
      case DType::bfloat16: return body(Type<Stored<bfloat16>>{}, four);
      default: return body(Type<Stored<float>>{}, four);
    }
  }
  constexpr std::integral_constant<int, 1> one{};
  if constexpr (((kHas == Reads::shifted) || ...)) {
    if (reads == Reads::shifted) {
      constexpr std::integral_constant<int, 4> four{};
      switch (dtype) {
        case DType::float16: return body(Type<Shifted<float16>>{}, four);
        case DType::bfloat16: return body(Type<Shifted<bfloat16>>{}, four);
        default: return body(Type<Shifted<float>>{}, four);
      }
    }
  }
  if constexpr (((kHas == Reads::adjacent) || ...)) {
    if (reads == Reads::adjacent) {
      switch (dtype) {
        case DType::float16: return body(Type<Adjacent<float16>>{}, one);
        case DType::bfloat16: return body(Type<Adjacent<bfloat16>>{}, one);
        default: return body(Type<Adjacent<float>>{}, one);
      }
    }
  }
  switch (dtype) {
    case DType::float64: return body(Type<Stored<double>>{}, one);
    case DType::float32: return body(Type<Stored<float>>{}, one);
    default: return body(Type<Either16>{}, one);
  }
}

}  // namespace treduce::rows
