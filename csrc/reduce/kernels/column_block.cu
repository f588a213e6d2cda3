// Idea: along the outer dim neighbouring threads take neighbouring columns, 16 bytes each, and the rows are shared out among the
// y's of the block. Loads coalesce and the columns never meet; only the y's do, in shared memory. Where columns are few and long,
// several blocks share a tile of them, and the last to finish folds what they left.
//
// After:   column_thread, where one thread walks a whole column.
// Mapping: block t is part t % splits of tile t / splits, blockDim.x vectors of columns; thread (x, y) computes `span` nodes: groups
//          of four leaves, 32 rows of a chunk, whose accumulators fit registers.
// Bound:   memory bandwidth; for short columns the way through memory and back for counter and partials.
// Next:    column_narrow, where there are not even enough columns for a warp.
// Source:  Mark Harris, An Efficient Matrix Transpose in CUDA C/C++ (2013).
#include "../column_folds.cuh"

namespace treduce::reduce::column_block {

template <class O, class Columns, class Source, class Placement>
__global__ void __launch_bounds__(kColumnBlockThreads, kColumnBlocksAnSm)
    kernel(TREDUCE_GRID_CONSTANT Source x, TREDUCE_GRID_CONSTANT columns::Tiling<O> tiling,
           TREDUCE_GRID_CONSTANT Placement placement) {
  ptx::wait_for_launch_before();
  using Acc = typename O::Acc;
  constexpr int kSize = Columns::kSize;
  const int64_t length = tiling.length, outputs = tiling.outputs;
  const int width = blockDim.x * kSize;  // columns of a tile
  const int threads = blockDim.x * blockDim.y;
  const int thread = threadIdx.y * blockDim.x + threadIdx.x;
  const int slots = tiling.nodes_a_thread * blockDim.y;  // nodes of a block, of each column
  const int splits = static_cast<int>(tiling.splits.divisor);
  const int64_t nodes = columns::nodes_of<Columns>(length);
  Acc* const shared = dynamic_shared<Acc>();
  for (int64_t tile = blockIdx.x; tile < tiling.tiles; tile += gridDim.x) {
    // Which part of which columns.
    const int64_t of_outputs = tiling.splits.quotient(tile);
    const int part = static_cast<int>(tile - of_outputs * splits);
    const int64_t first = of_outputs * width;
    const columns::OwnColumns<Source, Columns> own(placement.kept, first, outputs, threadIdx.x, blockDim.x);

    // Thread (x, y) walks down its columns: node y of the part, y + blockDim.y, ...
#pragma unroll 1
    for (int i = threadIdx.y; i < slots; i += blockDim.y) {
      const int64_t q = static_cast<int64_t>(part) * slots + i;
      auto node = columns::Side<O, kSize>::identity();
      if (q < nodes) node = columns::fold_node<O>(x, own, placement.rows, q, length);
#pragma unroll
      for (int c = 0; c < kSize; ++c) shared[i * width + Columns::column(c, threadIdx.x, blockDim.x)] = node.at[c];
    }

    // The y's meet in shared memory, column by column.
    int folded = columns::fold_rounds<O>(0, slots * width, slots, width, thread, threads);
    __syncthreads();

    // A block alone writes its columns. Of several, the last to finish folds what they left.
    constexpr bool kWide = kSize % columns::kSideOf<Acc> == 0;
    if (splits == 1 ||
        columns::fold_with_other_blocks<O, kWide>(folded, tiling.partials + of_outputs * splits * width, part, splits,
                                                  tiling.counters + of_outputs, width, slots, thread, threads)) {
      for (int j = thread; j < width; j += threads) {
        if (first + j < outputs) tiling.result.template store<O>(shared[folded + j], placement.kept.out(first + j));
      }
    }
    if (tile + gridDim.x < tiling.tiles) __syncthreads();
  }
}

cudaError_t launch_one(const Call& call) {
  return columns::dispatch(call, [&](auto op, auto source, auto own, auto placement) {
    using O = decltype(op);
    return launch(&kernel<O, decltype(own), decltype(source), decltype(placement)>, call.shape(), source,
                  columns::Tiling<O>(call, result_of(call, source)), placement);
  });
}

const Rung<launch_one> rung("column_block");

}  // namespace treduce::reduce::column_block
