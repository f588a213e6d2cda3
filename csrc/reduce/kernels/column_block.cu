// Idea: along the outer dim neighbouring threads take neighbouring columns, 16 bytes each, and the rows are shared out among the
// y's of the block. Loads coalesce and the columns never meet; only the y's do, in shared memory. Where columns are few and long,
// several blocks share a tile of them, and the last to finish folds what they left.
//
// After:   thread, where one thread walks a whole column.
// Mapping: block t is part t % splits of tile t / splits, blockDim.x vectors of columns; thread (x, y) computes `span` groups of
//          four leaves: 32 rows of a chunk, whose accumulators fit registers.
// Bound:   memory bandwidth; for short columns the way through memory and back for counter and partials.
// Next:    column_narrow, where there are not even enough columns for a warp.
#include "../columns.cuh"

namespace treduce::reduce::column_block {

template <class O, int kSize, class Source, class Layout>
__global__ void __launch_bounds__(256, 2)
    kernel(TREDUCE_GRID_CONSTANT Source x, TREDUCE_GRID_CONSTANT Layout layout, int64_t outputs, int64_t tiles,
           TREDUCE_GRID_CONSTANT Divider splits, int span, int64_t length, typename O::Acc* partials,
           unsigned* counters, Result result) {
  columns::grid<O, kSize>(x, layout, outputs, tiles, splits, span, length, partials, counters, result);
}

cudaError_t launch_one(const Call& call) {
  return columns::dispatch(call, [&](auto op, auto source, auto size, auto layout) {
    using O = decltype(op);
    const Geometry& g = *call.geometry;
    const Schedule& s = *call.schedule;
    return launch(&kernel<O, size.value, decltype(source), decltype(layout)>, rows::shape_of(call), source, layout,
                  g.outputs, s.tiles, Divider(s.splits), static_cast<int>(s.span), g.length,
                  static_cast<typename O::Acc*>(call.workspace), call.counter, call.result);
  });
}

const Rung<launch_one> rung("column_block");

}  // namespace treduce::reduce::column_block
