// The kernels of persistent for bfloat16.
#include "kernels/persistent.cuh"

namespace treduce::matmul::persistent {

cudaError_t launch_bfloat16(const Call& call) { return launch_type<bfloat16, bfloat16>(call); }

}  // namespace treduce::matmul::persistent
