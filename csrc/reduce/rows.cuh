// Device code of the rungs that reduce rows by whole blocks, and their dispatch: a row's chunks go to the teams of a block.
#pragma once

#include "../primitives/block.cuh"
#include "../primitives/grid.cuh"
#include "leaves.cuh"
#include "rung.h"

namespace treduce::reduce::rows {

constexpr int kChunksAtOnce = 1024;  // chunk values that a block keeps in shared memory

// What a grid of blocks works on.
struct Shares {
  int64_t tiles, span, length;
  Divider splits;
};

// The node over `count` chunks of a row, from chunk `first` on. Chunks past the row's end are left out.
// Who calls: every thread of the block. Valid in: thread 0. Synchronises; may be called again at once.
template <class Team, class O, class Source, class Layout>
TREDUCE_DEVICE typename O::Acc span(const Source& x, const Layout& layout, int64_t row, int64_t first, int64_t count,
                                    int64_t length) {
  using Acc = typename O::Acc;
  SHARED_ARRAY(Acc, values, kChunksAtOnce);
  const int teams = blockDim.x / Team::kThreads;
  const int team = threadIdx.x / Team::kThreads;
  const int thread = threadIdx.x % Team::kThreads;
  const int first_of_warp = team / Team::kOfWarp * Team::kOfWarp;
  const auto part = [&](int64_t begin, int chunks) {
    for (int c = first_of_warp; c < chunks; c += teams) {  // whole warps stay together
      const int mine = c + team - first_of_warp;
      const Acc value =
          Team::chunk(x, layout, row, (begin + mine) * Pairwise::kChunk, mine < chunks ? length : 0, thread);
      if (thread == 0 && mine < chunks) values[mine] = value;
    }
    return block::fold_neighbours<O>(values, chunks);
  };
  if (count <= kChunksAtOnce) return part(first, static_cast<int>(count));
  Neighbours<O, 24> parts;
  for (int64_t c = 0; c < count; c += kChunksAtOnce) {
    parts.push(part(first + c, static_cast<int>(count - c < kChunksAtOnce ? count - c : kChunksAtOnce)));
    __syncthreads();
  }
  return parts.value();
}

// Tile t is part t % splits of output t / splits, `span` chunks of it. With one split a block writes the result; with more, the
// last block of an output to finish folds the partials.
template <class Team, class O, class Source, class Layout>
TREDUCE_DEVICE void grid(const Source& x, const Shares& shares, typename O::Acc* partials, unsigned* counters,
                         const Result& result, const Layout& layout) {
  using Acc = typename O::Acc;
  const int64_t chunks = Pairwise(shares.length).chunks(), splits = shares.splits.divisor;
  for (int64_t tile = blockIdx.x; tile < shares.tiles; tile += gridDim.x) {
    const int64_t output = shares.splits.quotient(tile);
    const int64_t first = (tile - output * splits) * shares.span;
    const int64_t count = chunks - first < shares.span ? chunks - first : shares.span;
    if (splits > 1) treduce::grid::expect_arrival(counters + output);
    Acc value = span<Team, O>(x, layout, layout.row(output), first, count, shares.length);
    if (splits == 1) {
      if (threadIdx.x == 0) result.store<O>(value, layout.out(output));
    } else {
      if (threadIdx.x == 0) partials[tile] = value;
      const Acc* const of_output = partials + output * splits;
      if (splits <= block::kPartialsOfWarp) {
        // One warp is enough to fold them, and the others need not wait for the news.
        if (threadIdx.x < warp::kLanes && treduce::grid::arrive_last_warp(counters + output, splits)) {
          value = block::fold_partials_by_warp<O>(of_output, static_cast<int>(splits));
          if (threadIdx.x == 0) result.store<O>(value, layout.out(output));
        }
      } else if (treduce::grid::arrive_last(counters + output, static_cast<unsigned>(splits))) {
        value = block::fold_partials<O>(of_output, splits);
        if (threadIdx.x == 0) result.store<O>(value, layout.out(output));
      }
    }
    if (tile + gridDim.x < shares.tiles) __syncthreads();
  }
}

// Calls body(functor, source, integral_constant<kSize>, bool_constant<kShifted>, layout) for what the schedule reads.
template <template <class> class SumOp = Sum, class Body>
cudaError_t dispatch(const Call& call, Body body) {
  if (call.prepared.schedule.shifted) {
    return dispatch_vectors<SumOp>(call, [&](auto op, auto source) -> cudaError_t {
      constexpr int kSize = vector_of<decltype(source)>;
      if constexpr (kSize == 1) {
        return cudaErrorInvalidValue;  // 16-byte elements cannot begin anywhere else
      } else {
        return body(op, source, std::integral_constant<int, kSize>{}, std::true_type{},
                    layout_of<Walk::even>(call.request.geometry));
      }
    });
  }
  return dispatch_reads<SumOp>(call, [&](auto op, auto source, auto vectors, auto walk) {
    constexpr int kSize = decltype(vectors)::value ? vector_of<decltype(source)> : 1;
    return body(op, source, std::integral_constant<int, kSize>{}, std::false_type{},
                layout_of<decltype(walk)::value>(call.request.geometry));
  });
}

inline Shares shares_of(const Call& call) {
  const Schedule& s = call.prepared.schedule;
  return {s.tiles, s.span, call.request.geometry.length, Divider(s.splits)};
}

}  // namespace treduce::reduce::rows
