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

template <class O, int kSize, class Source, class Layout>
__global__ void __launch_bounds__(512, 2)
    kernel(TREDUCE_GRID_CONSTANT Source x, TREDUCE_GRID_CONSTANT Layout layout, int64_t tiles,
           TREDUCE_GRID_CONSTANT Divider splits, int64_t span, int64_t length, typename O::Acc* partials,
           unsigned* counters, Result result) {
  rows::grid<O, kSize>(x, layout, tiles, splits, span, length, partials, counters, result);
}

cudaError_t launch_one(const Call& call) {
  return rows::dispatch(call, [&](auto op, auto source, auto size, auto layout) {
    using O = decltype(op);
    const Schedule& s = *call.schedule;
    return launch(&kernel<O, size.value, decltype(source), decltype(layout)>, rows::shape_of(call), source, layout,
                  s.tiles, Divider(s.splits), s.span, call.geometry->length,
                  static_cast<typename O::Acc*>(call.workspace), call.counter, call.result);
  });
}

const Rung<launch_one> rung("row_block");

}  // namespace treduce::reduce::row_block
