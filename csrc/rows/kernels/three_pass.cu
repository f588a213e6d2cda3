// Idea: a block a row, and as many passes over it as the formula has: for softmax one for the maximum, one for the sum of
//       exp(x - max), one that divides and writes. Each pass reads the row from memory again.
//
// Mapping: warp w of W takes chunks w, w + W, ... of the row. Its lanes hold the chunk while they add it up in the pairwise order:
//          stripes one after another in a thread, then lanes by shuffles, then warps through shared memory, then rounds of W chunks.
//          It takes rows of any length and any strides.
//          The kernel: three_pass.cuh.
// Bound:   reads: three of each element for one that is needed, though a row of moderate length comes from a cache again.
// Next:    online does with two.
// Source:  the formula.
#include "../rung.h"

namespace treduce::rows::three_pass {

template <template <class> class RowOp>
cudaError_t launch_op(Tag<RowOp> op, const Call& call);

cudaError_t launch_one(const Call& call) {
  return dispatch_op(call.request.op, [&](auto op) { return launch_op(op, call); });
}

const Rung<launch_one> rung("three_pass");

}  // namespace treduce::rows::three_pass
