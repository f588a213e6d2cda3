// Idea: as many blocks as the chip holds walk over the tiles. While the consumers of a block write one tile, its producer
// already fetches the next; and two blocks of a cluster, one below the other, each fetch half of the columns of B that
// both multiply (multicast).
//
// After:   warp_specialized; up to 8192 steps of k the same multiplications in the same order, hence the same bits.
// Mapping: tiles in bands (see Grid). The tile's shape is chosen by the number of tiles, 128 x 256 for many of them down to
//          64 x 16; what large tiles would leave of a last round of blocks is a launch of smaller ones. For few rows the product is
//          transposed, because a multiplication has 64 rows, filled or not. Few outputs, and few rows, have kernels of their own:
//          few_outputs.cuh, few_rows.cuh, and for tfloat32 narrow.cu and register_operand.cu; so have operands that the copy engine
//          cannot read, of short k: in_place.cu. Results leave through shared memory: as boxes by the copy engine, or where rows are not
//          aligned as words.
// Bound:   the tensor cores, and the power that they may draw; for few rows the memory, and where k is short of 8192 the
//          chain of dependent multiplications, which the order of k does not allow to cut. Small tiles wait for the L2, which
//          gives all multiprocessors together half as many bytes a cycle if rows begin inside sectors of 32 bytes: so clusters
//          of two, four and eight are faster there, and there alone.
// Note:    longer k is cut in groups of 2048: a consumer adds the tensor cores' sums of each to a second set of registers
//          (128 x 256 tiles have none to spare), or, where tiles are few, groups are tasks of their own and a second launch
//          adds them, one after another as well.
// Next:    split_bf16 gives float32 its full precision on tensor cores.
// Source:  V. Thakkar et al., CUTLASS 3: persistent warp-specialised kernels.
#include "persistent.cuh"

namespace treduce::matmul::persistent {

cudaError_t launch_one(const Call& call) {
  switch (call.dtype) {
    case DType::float16: return launch_float16(call);
    case DType::bfloat16: return launch_bfloat16(call);
    case DType::int8: return launch_type<int8_t, int32_t>(call);
    default: return launch_type<ptx::tfloat32, float>(call);
  }
}

const Rung<launch_one> rung("persistent");

}  // namespace treduce::matmul::persistent
