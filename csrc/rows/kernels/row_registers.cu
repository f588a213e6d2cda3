// Idea: a thread keeps the elements that it adds up. Maximum, sum and output take them from registers, so the row is read once, and
//       exp is computed once an element.
//
// After:   online; the additions of three_pass, hence its bits.
// Mapping: a warp holds a chunk of 1024 elements, 32 a thread, in loads of four; a team of 1, 2, 4, ... warps of a block holds a row,
//          and meets through shared memory with one barrier a reduction. Rows of up to 512 elements lie several in a warp, 32 elements
//          a thread all the same; threads that exchange nodes of several rows keep one of two, so each row is finished by one thread.
//          Rows that begin anywhere, or have strides, are read element by element, thread by thread; of up to 128 elements side by
//          side, by a kernel for their number of warps' widths.
//          The kernel: row_registers.cuh.
// Bound:   memory; softmax of 16-bit floats has some 30 instructions an element, which take as long.
// Next:    row_cluster spreads a long row over several blocks.
// Source:  ATen, PersistentSoftmax.cuh (2019).
#include "../rung.h"

namespace treduce::rows::row_registers {

template <template <class> class RowOp>
cudaError_t launch_op(Tag<RowOp> op, const Call& call);

cudaError_t launch_one(const Call& call) {
  return dispatch_op(call.request.op, [&](auto op) { return launch_op(op, call); });
}

const Rung<launch_one> rung("row_registers");

}  // namespace treduce::rows::row_registers
