// Device code of the rungs that reduce a row by a whole block: a row's chunks go to the teams of the block.
#pragma once

#include "../primitives/block.cuh"
#include "../primitives/grid.cuh"
#include "../primitives/ptx/launch.cuh"
#include "chunk.cuh"
#include "reads.h"

namespace treduce::reduce::rows {

constexpr int kChunksAtOnce = 1024;  // chunk values that a block keeps in shared memory

// What a grid of blocks works on: block t takes part t % splits of output t / splits.
struct Shares {
  int64_t tiles, chunks_a_block, length;
  Divider splits;
  bool early;  // see Schedule
};

template <class Acc>
TREDUCE_DEVICE Acc* chunk_values() {
  SHARED_ARRAY(Acc, values, kChunksAtOnce);
  return values;
}

// The node over `count` values: of a block's chunks, or the partials of several blocks where `partials` is not null. Inlined: a call
// costs the small launches a tenth of their time.
// Who calls, valid in, shared memory, synchronises: as block::fold_values.
template <class O>
TREDUCE_DEVICE typename O::Acc fold_values(const typename O::Acc* partials, int count, int threads) {
  const typename O::Acc* const values = chunk_values<typename O::Acc>();
  return block::fold_values<O>(
      count, threads, [&](int i) { return partials == nullptr ? values[i] : block::load_partial(partials + i); });
}

// Up to that many values one warp folds, and the others need not wait.
constexpr int kValuesOfWarp = 8 * warp::kLanes;

// The node over `count` chunks of a row, from chunk `first` on. Chunks past the row's end are left out.
// Who calls: every thread of the block. Valid in: thread 0. Shared memory: kChunksAtOnce accumulators, static. Synchronises;
// before it is called again, __syncthreads().
template <class Team, class O, class Source, class Layout>
TREDUCE_DEVICE typename O::Acc fold_chunks(const Source& x, const Layout& layout, int64_t row, int64_t first,
                                           int64_t count, int64_t length) {
  using Acc = typename O::Acc;
  Acc* const values = chunk_values<Acc>();
  const int teams = blockDim.x / Team::kThreads;
  const int team = threadIdx.x / Team::kThreads;
  const int thread = threadIdx.x % Team::kThreads;
  const int first_of_warp = team / Team::kOfWarp * Team::kOfWarp;
  Neighbours<O, 24> parts;  // of a row with more chunks than fit shared memory
  for (int64_t done = 0;; done += kChunksAtOnce) {
    const int chunks = static_cast<int>(count - done < kChunksAtOnce ? count - done : kChunksAtOnce);
    for (int c = first_of_warp; c < chunks; c += teams) {  // whole warps stay together
      const int mine = c + team - first_of_warp;
      const Acc value =
          Team::chunk(x, layout, row, (first + done + mine) * Pairwise::kChunk, mine < chunks ? length : 0, thread);
      if (thread == 0 && mine < chunks) values[mine] = value;
    }
    __syncthreads();
    const int threads = chunks <= kValuesOfWarp ? warp::kLanes : static_cast<int>(blockDim.x);
    Acc node = O::identity();
    if (static_cast<int>(threadIdx.x) < threads) node = fold_values<O>(nullptr, chunks, threads);
    if (count <= kChunksAtOnce) return node;
    parts.push(node);
    if (done + kChunksAtOnce >= count) return parts.value();
    __syncthreads();
  }
}

// Leaves this block's value, that of thread 0, as partial `part` of an output. The last of `splits` blocks to finish folds them all:
// then `value` is their node, and the return value true.
// Who calls: every thread of the block. Valid in: thread 0. Before it is called again, __syncthreads().
template <class O>
TREDUCE_DEVICE bool fold_with_other_blocks(typename O::Acc& value, typename O::Acc* of_output, int64_t part,
                                           int64_t splits, unsigned* counter) {
  if (threadIdx.x == 0) of_output[part] = value;
  const bool by_warp = splits <= kValuesOfWarp;
  if (by_warp && threadIdx.x >= warp::kLanes) return false;
  const bool is_last =
      by_warp ? grid::arrive_last_warp(counter, splits) : grid::arrive_last(counter, static_cast<unsigned>(splits));
  if (is_last) {
    ptx::allow_launch_after();
    value = fold_values<O>(of_output, static_cast<int>(splits), by_warp ? warp::kLanes : static_cast<int>(blockDim.x));
  }
  return is_last;
}

// Calls body(functor, source, integral_constant<kSize>, bool_constant<kShifted>, layout) for what the schedule reads.
template <Kernels kKernels = Kernels::every, template <class> class SumOp = Sum, class Body>
cudaError_t dispatch(const Call& call, Body body) {
  const Geometry& g = call.request.geometry;
  if (call.prepared.schedule.shifted) {
    const auto layout = layout_of<Walk::even>(g);
    if constexpr (has_shifted(kKernels)) {
      if (!is_extremum(call.request.op) && is_common_float(call.request.dtype)) {
        return dispatch_common_sum<SumOp>(call, [&](auto op, auto source) {
          return body(op, source, std::integral_constant<int, vector_of<decltype(source)>>{}, std::true_type{}, layout);
        });
      }
    }
    return dispatch_vectors<kKernels, SumOp>(call, [&](auto op, auto source) -> cudaError_t {
      if constexpr (is_order_free<decltype(op)>) {
        return body(op, source, std::integral_constant<int, vector_of<decltype(source)>>{}, std::true_type{}, layout);
      }
      return cudaErrorInvalidValue;  // the schedule asks for no other
    });
  }
  return dispatch_reads<kKernels, SumOp>(call, [&](auto op, auto source, auto vectors, auto walk) {
    constexpr int kSize = decltype(vectors)::value ? vector_of<decltype(source)> : 1;
    return body(op, source, std::integral_constant<int, kSize>{}, std::false_type{},
                layout_of<decltype(walk)::value>(g));
  });
}

inline Shares shares_of(const Call& call) {
  const Schedule& s = call.prepared.schedule;
  return {s.tiles, s.span, call.request.geometry.length, Divider(s.splits), s.early};
}

}  // namespace treduce::reduce::rows
