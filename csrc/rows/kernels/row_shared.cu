// Idea: a long row waits in shared memory, as the dtype has it, and each pass reads it there. A thread holds one chunk at a time, so
//       few registers do for any length, and two blocks of an SM work on two rows: one waits for memory while the other computes.
//
// After:   row_cluster; the same additions, hence the same bits.
// Mapping: warp w of W takes chunks w, w + W, ... of the block's row. Asynchronous copies bring all of them at once. Each thread reads
//          from shared memory what it copied there itself, so only the nodes of chunks need a barrier, one a reduction. Elements as
//          wide as the accumulator are replaced by what they become; narrower ones are computed again for the output. Rows that begin
//          anywhere are read in aligned vectors, with lanes that move to their place before they meet. A row that one block cannot
//          hold lies in those of a cluster.
//          The kernel: row_shared.cuh.
// Bound:   memory; softmax of 16-bit floats computes exp twice.
// Source:  Dao-AILab, QuACK (2025); ATen, SoftMax.cu, cunn_SoftMaxForwardSmem (2023).
#include "../rung.h"

namespace treduce::rows::row_shared {

template <template <class> class RowOp>
cudaError_t launch_op(Tag<RowOp> op, const Call& call);

cudaError_t launch_one(const Call& call) {
  return dispatch_op(call.request.op, [&](auto op) { return launch_op(op, call); });
}

const Rung<launch_one> rung("row_shared");

}  // namespace treduce::rows::row_shared
