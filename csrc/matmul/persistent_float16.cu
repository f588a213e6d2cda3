// The kernels of persistent for float16.
#include "kernels/persistent.cuh"

namespace treduce::matmul::persistent {

cudaError_t launch_float16(const Call& call) { return launch_type<float16, float16>(call); }

}  // namespace treduce::matmul::persistent
