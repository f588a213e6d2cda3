// Idea: one pass in place of two. A thread keeps the maximum that it has seen and the sum of exp(x - maximum); when the maximum rises,
//       the sum is multiplied by exp(old - new). A variance is kept likewise: a mean that moves, and the squares around it.
//
// After:   three_pass, whose maximum (or mean) is known before the sum begins.
// Mapping: a block of 256 threads a row; thread t takes elements t, t + 256, ..., in four chains by turns, and what two of them, or two
//          threads, have found meets by the same formula, in a tree. A second pass writes the outputs. The order is its own
//          (numerics.md, class `online`): the products that scale a sum round. It is the same on every chip and on the CPU.
//          The kernel: online.cuh.
// Bound:   latency: an element waits for the exp and the multiply-add of the one before it in its thread, where three_pass has 32
//          independent ones at a time. Fewer reads do not help who does not wait for memory.
// Next:    row_registers keeps the row, so that one read does for all passes.
// Source:  Maxim Milakov and Natalia Gimelshein, Online normalizer calculation for softmax (2018); B. P. Welford (1962) for variances.
#include "../rung.h"

namespace treduce::rows::online {

template <template <class> class RowOp>
cudaError_t launch_op(Tag<RowOp> op, const Call& call);

cudaError_t launch_one(const Call& call) {
  return dispatch_op(call.request.op, [&](auto op) { return launch_op(op, call); });
}

const Rung<launch_one> rung("online");

}  // namespace treduce::rows::online
