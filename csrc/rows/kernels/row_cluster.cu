// Idea: a row that is too long for one block lies in the registers of two, four or eight, which read each other's shared memory.
//
// After:   row_registers; the same additions, hence the same bits.
// Mapping: block b of a cluster holds the b-th run of chunks, a power of two of them, a warp each: its node is one of the row's tree.
//          Every block then reads the nodes of all, and folds them. Up to eight warps a block, as long as eight blocks suffice: while
//          one row waits for its last elements, another one of the same SM computes.
//          The kernel: row_cluster.cuh.
// Bound:   memory; each reduction adds a barrier of the cluster, which the other clusters of the SM hide.
// Next:    row_shared keeps rows where registers are not needed, and reads in vectors what begins anywhere.
// Source:  Dao-AILab, QuACK (2025), for rows in clusters; NVIDIA, CUDA Programming Guide, thread block clusters.
#include "../rung.h"

namespace treduce::rows::row_cluster {

template <template <class> class RowOp>
cudaError_t launch_op(Tag<RowOp> op, const Call& call);

cudaError_t launch_one(const Call& call) {
  return dispatch_op(call.request.op, [&](auto op) { return launch_op(op, call); });
}

const Rung<launch_one> rung("row_cluster");

}  // namespace treduce::rows::row_cluster
