// Idea: where there are columns enough to fill the chip, a thread takes a vector of them and walks down all of their rows, many
// loads in flight. Columns never meet, so nothing is shared: no barrier, no shared memory, no counter.
//
// After:   thread, which walks any strides, one element after another.
// Mapping: thread t of a block takes vector t of a tile of columns, rows 16 at a time. Up to 128 rows a leaf is an element, and 16
//          neighbours are one node of the tree; longer columns are walked as 32 groups of four leaves, four stripes at a time. Up to
//          four and eight rows have kernels of fewer registers, of which more threads fit an SM.
// Bound:   memory bandwidth.
// Next:    column_block, for columns that are fewer or longer.
// Source:  Nicholas Higham, The accuracy of floating point summation (1993).
#include "../../primitives/ptx/launch.cuh"
#include "../column_nodes.cuh"

namespace treduce::reduce::column_thread {

constexpr int kRows = 16;  // at a time

// The node over all rows, up to kMost of them.
template <class O, int kMost, class Columns, class Source, bool kEven>
TREDUCE_DEVICE typename columns::Side<O, Columns::kSize>::Acc fold_columns(
    const Source& x, const columns::OwnColumns<Source, Columns>& own, const columns::Rows<kEven>& rows, int length) {
  constexpr int kSize = Columns::kSize;
  if constexpr (kMost <= kRows) {
    return columns::fold_rows<O, kMost>(x, own, rows, 0, length);
  } else if constexpr (is_order_free<O>) {
    using Op = typename columns::Counted<O, typename Source::Raw>::Op;
    auto total = columns::Side<Op, kSize>::identity();
#pragma unroll 1
    for (int first = 0; first < length; first += kRows) {
      total = columns::Side<Op, kSize>::combine(total, columns::fold_rows<Op, kRows>(x, own, rows, first, length));
    }
    typename columns::Side<O, kSize>::Acc node;
#pragma unroll
    for (int c = 0; c < kSize; ++c) node.at[c] = static_cast<typename O::Acc>(total.at[c]);
    return node;
  } else if constexpr (kMost <= Pairwise::kLanes) {
    columns::Tree<O, kSize, 3> runs;
#pragma unroll 1
    for (int first = 0; first < length; first += kRows) {
      runs.push(columns::fold_rows<O, kRows>(x, own, rows, first, length));
    }
    return runs.value();
  } else {
    columns::Tree<O, kSize, 5> groups;
#pragma unroll 1
    for (int q = 0; q < columns::Tall::kGroupsAChunk; ++q) groups.push(columns::fold_group<O>(x, own, rows, q, length));
    return groups.value();
  }
}

template <class O, int kMost, class Columns, class Source, class Placement>
__global__ void __launch_bounds__(kColumnThreadThreads, kMost < kRows               ? 8
                                                        : kMost <= Pairwise::kLanes ? 4
                                                        : Columns::kSize > 4        ? 2
                                                                                    : 3)
    kernel(TREDUCE_GRID_CONSTANT Source x, int64_t outputs, int64_t tiles, int length, bool early, MappedResult result,
           TREDUCE_GRID_CONSTANT Placement placement) {
  ptx::wait_for_launch_before();
  const int width = blockDim.x * Columns::kSize;
  for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const columns::OwnColumns<Source, Columns> own(placement.kept, tile * width, outputs, threadIdx.x, blockDim.x);
    const auto node = fold_columns<O, kMost>(x, own, placement.rows, length);
    if (early) ptx::allow_launch_after();
    columns::store<O, Columns, Source>(node.at, result, placement.kept, tile * width, outputs, threadIdx.x, blockDim.x);
  }
}

cudaError_t launch_one(const Call& call) {
  return columns::dispatch<Kernels::every, Sum, kColumnThreadSingles, columns::KeptOfThread>(
      call, [&](auto op, auto source, auto own, auto placement) {
        using O = decltype(op);
        using Columns = decltype(own);
        const Geometry& g = call.request.geometry;
        using Source = decltype(source);
        using Placement = decltype(placement);
        auto chosen = &kernel<O, Pairwise::kLanes, Columns, Source, Placement>;
        if constexpr (Source::kConverts || is_common<Source>) {
          // The kernels that the schedule asks for alone.
          if constexpr (!is_order_free<O>) {
            if (g.length > Pairwise::kLanes) chosen = &kernel<O, Pairwise::kChunk, Columns, Source, Placement>;
          }
          if constexpr (!Source::kConverts && Placement::kIsEven) {
            if (g.length <= kRows / 4) {
              chosen = &kernel<O, kRows / 4, Columns, Source, Placement>;
            } else if (g.length <= kRows / 2) {
              chosen = &kernel<O, kRows / 2, Columns, Source, Placement>;
            } else if (g.length <= kRows) {
              chosen = &kernel<O, kRows, Columns, Source, Placement>;
            }
          }
        }
        return launch(chosen, call.shape(), source, g.outputs, call.prepared.schedule.tiles, static_cast<int>(g.length),
                      call.prepared.schedule.early, result_of(call, source), placement);
      });
}

const Rung<launch_one> rung("column_thread");

}  // namespace treduce::reduce::column_thread
