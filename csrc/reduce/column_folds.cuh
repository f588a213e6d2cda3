// How the nodes of columns meet: those of a block in shared memory, those of several blocks through global memory.
//
// A block's nodes lie in its dynamic shared memory, [node][column], and behind them is room for the first fold (with_fold_room). These functions
// take and return offsets into it.
#pragma once

#include "../primitives/block.cuh"
#include "../primitives/grid.cuh"
#include "../primitives/ptx/launch.cuh"
#include "column_nodes.cuh"

namespace treduce::reduce::columns {

// Folds the nodes at [k][j] from `from` on, k below `count` (a power of two) and j below `width`, by neighbours, eight at a time, to
// and fro between `from` and `to`. Returns where the `width` values are.
// Who calls: every thread of the block; `thread` numbers them. Synchronises on the way in and between rounds; __syncthreads()
// before other threads than the writers read the values.
template <class O>
TREDUCE_DEVICE int fold_rounds(int from, int to, int count, int width, int thread, int threads) {
  using Acc = typename O::Acc;
  constexpr int kRadix = kFoldRadix;
  Acc* const shared = dynamic_shared<Acc>();
  while (count > 1) {
    const int radix = count < kRadix ? count : kRadix;
    count /= radix;
    __syncthreads();
    for (int i = thread; i < count * width; i += threads) {
      const int k = i / width;
      const Acc* const neighbours = shared + from + k * radix * width + (i - k * width);
      Acc value[kRadix];
#pragma unroll
      for (int n = 0; n < kRadix; ++n) value[n] = n < radix ? neighbours[n * width] : O::identity();
      shared[to + i] = thread::fold_neighbours<O>(value);
    }
    const int swap = from;
    from = to;
    to = swap;
  }
  return from;
}

// Folds the partials of `splits` blocks, partials[part][column], for each of `width` columns. Shared memory has room for `slots` (a
// power of two) nodes of each and an eighth. A thread takes an aligned run of partials of kSide columns, 16 bytes a load, and leaves
// its node as [run][column]; then fold_rounds. Returns, who calls, synchronises: as fold_rounds.
template <class O, int kSide>
TREDUCE_DEVICE int fold_partials(const typename O::Acc* partials, int splits, int width, int slots, int thread,
                                 int threads) {
  using Sides = Side<O, kSide>;
  constexpr int kAhead =
      16;  // loads in flight: partials come from the L2, some 0.7 us away, and nothing else runs meanwhile
  typename O::Acc* const shared = dynamic_shared<typename O::Acc>();
  const int sides = width / kSide;
  // As many runs as there are threads for them: then the tree over them is short, and all are read at once.
  int runs = 1;
  while (runs < splits && runs < slots && 2 * runs * sides <= threads) runs *= 2;
  const int each = block::each_of(splits, runs);
  for (int i = thread; i < runs * sides; i += threads) {
    const int run = i / sides;
    const int column = (i - run * sides) * kSide;
    const auto node = block::fold_run<Sides, kAhead>(run * each, each, splits, [&](int part) {
      return block::load_partial(
          reinterpret_cast<const typename Sides::Acc*>(partials + column + static_cast<int64_t>(part) * width));
    });
#pragma unroll
    for (int c = 0; c < kSide; ++c) shared[run * width + column + c] = node.at[c];
  }
  return fold_rounds<O>(0, slots * width, runs, width, thread, threads);
}

// Columns that are 16 bytes.
template <class Acc>
constexpr int kSideOf = sizeof(Acc) < 16 ? 16 / static_cast<int>(sizeof(Acc)) : 1;

// Leaves a tile's `width` values, at `folded` in shared memory, as partials[part]. The last of `splits` blocks to finish folds them
// all: then `folded` is where their values are, and the return value true. kWide: width is a multiple of kSideOf.
// Who calls: every thread of the block. Synchronises on the way in and out.
template <class O, bool kWide>
TREDUCE_DEVICE bool fold_with_other_blocks(int& folded, typename O::Acc* partials, int part, int splits,
                                           unsigned* counter, int width, int slots, int thread, int threads) {
  const typename O::Acc* const values = dynamic_shared<typename O::Acc>() + folded;
  for (int j = thread; j < width; j += threads) partials[static_cast<int64_t>(part) * width + j] = values[j];
  __syncthreads();
  if (!grid::arrive_last(counter, static_cast<unsigned>(splits))) return false;
  ptx::allow_launch_after();
  constexpr int kSide = kSideOf<typename O::Acc>;
  folded = kWide ? fold_partials<O, kSide>(partials, splits, width, slots, thread, threads)
                 : fold_partials<O, 1>(partials, splits, width, slots, thread, threads);
  __syncthreads();
  return true;
}

// What a launch of column_block (or of compensated) needs beside the source and the placement; what is needed first comes first.
template <class O>
struct Tiling {
  int64_t outputs, length, tiles;
  int nodes_a_thread;
  Divider splits;
  typename O::Acc* partials;
  unsigned* counters;
  MappedResult result;

  Tiling(const Call& call, const MappedResult& to)
      : outputs(call.request.geometry.outputs),
        length(call.request.geometry.length),
        tiles(call.prepared.schedule.tiles),
        nodes_a_thread(static_cast<int>(call.prepared.schedule.span)),
        splits(call.prepared.schedule.splits),
        partials(call.region<typename O::Acc>("partials")),
        counters(call.counter),
        result(to) {}
};

}  // namespace treduce::reduce::columns
