// Idea: a block a row, its teams take chunks and their values meet in shared memory; and where rows are too few for the chip,
// several blocks a row. Each folds an aligned run of 2^k chunks, a node of the tree, and the last block of the row to finish folds
// the nodes. So one long row, or a whole tensor, fills the chip in one launch.
//
// After:   row_warp, where a long row is one warp's work; single_pass, whose order knew the grid.
// Mapping: tile t is part t % splits of row t / splits. Partials lie in global memory by tile, so it does not matter who
//          finishes last; a counter a row finds out.
// Bound:   memory bandwidth; for short rows the way through memory and back for counter and partials.
// Next:    row_cluster, which spares that way.
#include "../rows.cuh"

namespace treduce::reduce::row_block {

template <int kResident, class Team, class O, class Source, class Layout>
__global__ void __launch_bounds__(256, kResident)
    kernel(TREDUCE_GRID_CONSTANT Source x, TREDUCE_GRID_CONSTANT rows::Shares shares, typename O::Acc* partials,
           unsigned* counters, TREDUCE_GRID_CONSTANT Result result, TREDUCE_GRID_CONSTANT Layout layout) {
  rows::grid<Team, O>(x, shares, partials, counters, result, layout);
}

cudaError_t launch_one(const Call& call) {
  return rows::dispatch(call, [&](auto op, auto source, auto size, auto shifted, auto layout) {
    using O = decltype(op);
    using Source = decltype(source);
    using Layout = decltype(layout);
    using Team = reduce::Team<O, Source, size.value, shifted.value>;
    return launch(&kernel<Team::template kResident<Layout>, Team, O, Source, Layout>, call.shape(), source,
                  rows::shares_of(call), static_cast<typename O::Acc*>(call.workspace), call.counter, call.result,
                  layout);
  });
}

const Rung<launch_one> rung("row_block");

}  // namespace treduce::reduce::row_block
