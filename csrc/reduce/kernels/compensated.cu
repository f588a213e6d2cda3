// Idea: every addition is followed by the few that find out what it lost (two-sum), and the losses are summed beside the sum. The
// tree is the one of row_block and column_block with pairs for values; seven additions in place of one, which memory hides.
//
// After:   row_block and column_block, whose error grows with the logarithm of the length.
// Mapping: theirs, line by line. Kernels are fewer: vectors of one reduced dim, and single float32; else a dtype is looked up.
// Bound:   memory bandwidth for large inputs: 7 float additions for 4 bytes, a third of what the chip can add meanwhile.
// Next:    exact has no rounding error but the last.
// Source:  Takeshi Ogita, Siegfried Rump and Shin'ichi Oishi, Accurate sum and dot product (2005).
#include "../../primitives/ptx/launch.cuh"
#include "../column_folds.cuh"
#include "../rows.cuh"

namespace treduce::reduce::compensated {

// The kernel of row_block.
template <class Team, class O, class Source, class Layout>
__global__ void __launch_bounds__(kRowThreads)
    rows_kernel(TREDUCE_GRID_CONSTANT Source x, TREDUCE_GRID_CONSTANT rows::Shares shares, typename O::Acc* partials,
                unsigned* counters, TREDUCE_GRID_CONSTANT MappedResult result, TREDUCE_GRID_CONSTANT Layout layout) {
  ptx::wait_for_launch_before();
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

// The kernel of column_block.
template <class O, class Columns, class Source, class Placement>
__global__ void __launch_bounds__(kColumnBlockThreads)
    columns_kernel(TREDUCE_GRID_CONSTANT Source x, TREDUCE_GRID_CONSTANT columns::Tiling<O> tiling,
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

// As many bytes of partials are prepared.
static_assert(sizeof(WithError<float>) == 2 * sizeof(float) && sizeof(WithError<complex128>) == 2 * sizeof(complex128));

cudaError_t launch_one(const Call& call) {
  constexpr Kernels kKernels = Kernels::compensated;
  if (call.prepared.schedule.columns) {
    return columns::dispatch<kKernels, Compensated>(
        call, [&](auto op, auto source, auto own, auto placement) -> cudaError_t {
          using O = decltype(op);
          if constexpr (!carries_error<typename O::Acc>) {
            return cudaErrorInvalidValue;  // prepared for sums of floats alone
          } else {
            return launch(&columns_kernel<O, decltype(own), decltype(source), decltype(placement)>, call.shape(),
                          source, columns::Tiling<O>(call, result_of(call, source)), placement);
          }
        });
  }
  return rows::dispatch<kKernels, Compensated>(
      call, [&](auto op, auto source, auto size, auto shifted, auto layout) -> cudaError_t {
        using O = decltype(op);
        using Source = decltype(source);
        if constexpr (!carries_error<typename O::Acc>) {
          return cudaErrorInvalidValue;
        } else {
          return launch(&rows_kernel<Team<O, Source, size.value, shifted.value>, O, Source, decltype(layout)>,
                        call.shape(), source, rows::shares_of(call), call.region<typename O::Acc>("partials"),
                        call.counter, result_of(call, source), layout);
        }
      });
}

const Rung<launch_one> rung("compensated");

}  // namespace treduce::reduce::compensated
