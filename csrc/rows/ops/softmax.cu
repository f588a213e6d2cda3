// The kernels of softmax.
#include "../kernels/online.cuh"
#include "../kernels/row_cluster.cuh"
#include "../kernels/row_registers.cuh"
#include "../kernels/row_shared.cuh"
#include "../kernels/three_pass.cuh"

namespace treduce::rows {

template cudaError_t three_pass::launch_op(Tag<Softmax>, const Call&);
template cudaError_t online::launch_op(Tag<Softmax>, const Call&);
template cudaError_t row_registers::launch_op(Tag<Softmax>, const Call&);
template cudaError_t row_cluster::launch_op(Tag<Softmax>, const Call&);
template cudaError_t row_shared::launch_op(Tag<Softmax>, const Call&);

}  // namespace treduce::rows
