// Idea: a block a row, its teams take chunks and their values meet in shared memory; and where rows are too few for the chip,
// several blocks a row. Each folds an aligned run of 2^k chunks, a node of the tree, and the last block of the row to finish folds
// the nodes. So one long row, or a whole tensor, fills the chip in one launch.
//
// After:   row_warp, where a long row is one warp's work; single_pass, whose order knew the grid.
// Mapping: tile t is part t % splits of row t / splits. Partials lie in global memory by tile, so it does not matter who
//          finishes last; a counter a row finds out.
// Bound:   memory bandwidth; for short rows the way through memory and back for counter and partials.
// Next:    row_cluster, which spares that way.
// Source:  Nicholas Wilt, The CUDA Handbook (2013).
#include "../rows.cuh"

namespace treduce::reduce::row_block {

template <int kResident, class Team, class O, class Source, class Layout>
__global__ void __launch_bounds__(kRowThreads, kResident)
    kernel(TREDUCE_GRID_CONSTANT Source x, TREDUCE_GRID_CONSTANT rows::Shares shares, typename O::Acc* partials,
           unsigned* counters, TREDUCE_GRID_CONSTANT MappedResult result, TREDUCE_GRID_CONSTANT Layout layout) {
  using Acc = typename O::Acc;
  const int64_t chunks = Pairwise(shares.length).chunks(), splits = shares.splits.divisor;
  for (int64_t tile = blockIdx.x; tile < shares.tiles; tile += gridDim.x) {
    // Which chunks of which row.
    const int64_t output = shares.splits.quotient(tile);
    const int64_t part = tile - output * splits;
    const int64_t first = part * shares.chunks_a_block;
    const int64_t count = chunks - first < shares.chunks_a_block ? chunks - first : shares.chunks_a_block;
    if (splits > 1) grid::expect_arrival(counters + output);

    // The teams of the block read them; their values meet in shared memory.
    Acc value = rows::fold_chunks<Team, O>(x, layout, layout.row(output), first, count, shares.length);

    // A block alone writes the result. Of several, the last to finish folds what they left.
    const bool is_last = splits == 1 || rows::fold_with_other_blocks<O>(value, partials + output * splits, part, splits,
                                                                        counters + output);
    if (is_last && threadIdx.x == 0) result.store<O>(value, layout.out(output));
    if (tile + gridDim.x < shares.tiles) __syncthreads();
  }
}

cudaError_t launch_one(const Call& call) {
  return rows::dispatch(call, [&](auto op, auto source, auto size, auto shifted, auto layout) {
    using O = decltype(op);
    using Source = decltype(source);
    using Layout = decltype(layout);
    using Team = reduce::Team<O, Source, size.value, shifted.value>;
    return launch(&kernel<Team::template kResident<Layout>, Team, O, Source, Layout>, call.shape(), source,
                  rows::shares_of(call), static_cast<typename O::Acc*>(call.workspace), call.counter,
                  result_of(call, source), layout);
  });
}

const Rung<launch_one> rung("row_block");

}  // namespace treduce::reduce::row_block
