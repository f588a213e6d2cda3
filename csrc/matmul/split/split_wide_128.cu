// The kernels of split_wide.cuh for 65 to 128 lines of X, in a file of their own for they take long to compile.
#include "split_wide_rest.cuh"

namespace treduce::matmul::split_wide {

template cudaError_t run_shape<split_rows::kWide128>(const Call&, bool, const Boxes&, const Operand&, const Operand&,
                                                     const Operand16&, const Operand16&, float*, bool);

}  // namespace treduce::matmul::split_wide
