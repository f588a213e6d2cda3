// The kernels of split_wide.cuh for up to 64 lines of X, in a file of their own for they take long to compile.
#include "split_wide_rest.cuh"

namespace treduce::matmul::split_wide {

template cudaError_t run_shape<split_rows::kWide64>(const Call&, bool, const Boxes&, const Operand&, const Operand&,
                                                    const Operand16&, const Operand16&, float*, bool);

}  // namespace treduce::matmul::split_wide
