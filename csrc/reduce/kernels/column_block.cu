// Idea: along the outer dim neighbouring threads take neighbouring columns, 16 bytes each, and the rows are shared out among the
// y's of the block. Loads coalesce and the columns never meet; only the y's do, in shared memory. Where columns are few and long,
// several blocks share a tile of them, and the last to finish folds what they left.
//
// After:   column_thread, where one thread walks a whole column.
// Mapping: block t is part t % splits of tile t / splits, blockDim.x vectors of columns; thread (x, y) computes `span` groups of
//          four leaves: 32 rows of a chunk, whose accumulators fit registers.
// Bound:   memory bandwidth; for short columns the way through memory and back for counter and partials.
// Next:    column_narrow, where there are not even enough columns for a warp.
#include "../columns.cuh"

namespace treduce::reduce::column_block {

template <class O, class Held, class Source, class Placement>
__global__ void __launch_bounds__(256, 2)
    kernel(TREDUCE_GRID_CONSTANT Source x, TREDUCE_GRID_CONSTANT columns::Tiling<O> tiling,
           TREDUCE_GRID_CONSTANT Placement placement) {
  columns::grid<O, Held>(x, tiling, placement);
}

cudaError_t launch_one(const Call& call) {
  return columns::dispatch(call, [&](auto op, auto source, auto held, auto placement) {
    using O = decltype(op);
    return launch(&kernel<O, decltype(held), decltype(source), decltype(placement)>, call.shape(), source,
                  columns::Tiling<O>(call), placement);
  });
}

const Rung<launch_one> rung("column_block");

}  // namespace treduce::reduce::column_block
