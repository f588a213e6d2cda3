// Dtypes that no kernel multiplies. Free of torch.
#pragma once

#include "../common/dtypes.h"

namespace treduce::matmul {

// Dtypes whose products are made of products of another dtype: see csrc/torch/matmul_composed.h.
struct ComposedDType {
  DType dtype, of;
};
constexpr ComposedDType kComposedDTypes[] = {{DType::uint8, DType::int8},
                                             {DType::int16, DType::int32},
                                             {DType::complex64, DType::float32},
                                             {DType::complex128, DType::float64}};

// What kernels multiply for a product of that dtype.
constexpr DType multiplied_dtype(DType dtype) {
  for (const ComposedDType& composed : kComposedDTypes) {
    if (composed.dtype == dtype) return composed.of;
  }
  return dtype;
}
constexpr bool is_composed(DType dtype) { return multiplied_dtype(dtype) != dtype; }

}  // namespace treduce::matmul
