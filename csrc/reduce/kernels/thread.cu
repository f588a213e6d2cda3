// Idea: the loop that every CPU program has, one thread for each output. It takes any strides: row sums, column sums, gathers.
//
// Mapping: thread t reduces output t. It computes the leaves one after another and adds neighbours as they come, holding one
//          value for each level of the tree.
// Bound:   along the outer dim neighbouring threads read neighbouring columns, so loads coalesce, and what is missing is
//          threads; along the inner dim they read a row apart, and every load brings 32 bytes for one element.
// Next:    row_tile and row_lanes let neighbouring threads read neighbouring elements.
// Source:  Nicholas Higham, The accuracy of floating point summation (1993).
#include "../rows.cuh"

namespace treduce::reduce::thread_per_output {

template <class O, class Source>
__global__ void __launch_bounds__(kMaxBlock)
    kernel(TREDUCE_GRID_CONSTANT Source x, TREDUCE_GRID_CONSTANT Layout<Walk::any> layout, int64_t outputs,
           int64_t length, MappedResult result) {
  using Acc = typename O::Acc;
  for (int64_t o = thread::global_index(); o < outputs; o += thread::grid_threads()) {
    const int64_t row = layout.row(o);
    Neighbours<O, 40> leaves;
    for (int64_t chunk = 0; chunk < length; chunk += Pairwise::kChunk) {
      for (int lane = 0; lane < Pairwise::kLanes && chunk + lane < length; ++lane) {
        Acc leaf = O::identity();
        for (int s = 0; s < Pairwise::kStripes; ++s) {
          const int64_t e = chunk + s * Pairwise::kLanes + lane;
          if (e < length) leaf = O::combine(leaf, widen<Acc>(x.at(row + layout.element(e))));
        }
        leaves.push(leaf);
      }
    }
    result.store<O>(leaves.value(), layout.out(o));
  }
}

cudaError_t launch_one(const Call& call) {
  return dispatch_looked_up(call, [&](auto op, auto source) {
    return launch(&kernel<decltype(op), decltype(source)>, call.shape(), source,
                  layout_of<Walk::any>(call.request.geometry), call.request.geometry.outputs,
                  call.request.geometry.length, result_of(call, source));
  });
}

const Rung<launch_one> rung("thread");

}  // namespace treduce::reduce::thread_per_output
