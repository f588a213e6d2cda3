// How the copy engine of sm_90 is told about a tensor. Host code, free of torch.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

namespace treduce {

// What the L2 fetches where a copy asks for a row of 128 bytes that it has not: that line, or the pair of lines. Pairs are faster where
// the other line is asked for a stage later, and slower by up to 10 % where both are asked for at once: the memory is then read twice in
// part (NVIDIA H200, 2026-11-26).
enum class Fetch { lines, pairs };

// Asks the driver to describe a tensor of four dims, the contiguous one first, for copies of box[0] x box[1] x depth elements whose rows of
// 128 bytes, or of 32 or 64, are swizzled; what lies outside reads as zero. Strides are in bytes, of all dims but the first, and multiples
// of 16. The function is found at run time, so that the extension needs no libcuda to be imported.
inline cudaError_t describe_tensor(const void* data, CUtensorMapDataType type, const cuuint64_t (&sizes)[4],
                                   const cuuint64_t (&strides)[3], const cuuint32_t (&box)[2], CUtensorMap* map,
                                   Fetch fetch = Fetch::pairs, cuuint32_t depth = 1,
                                   CUtensorMapSwizzle swizzle = CU_TENSOR_MAP_SWIZZLE_128B) {
  using Encode = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*,
                              const cuuint64_t*, const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave,
                              CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);
  static const Encode function = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult status;
    cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &status);
    return reinterpret_cast<Encode>(found);
  }();
  if (function == nullptr) return cudaErrorNotSupported;
  const cuuint32_t boxes[4] = {box[0], box[1], depth, 1};
  const cuuint32_t steps[4] = {1, 1, 1, 1};
  // Of rows that begin inside lines of the L2, fetching pairs of lines brings what nobody asked for yet: 5 to 10 % of the time of small
  // products (NVIDIA H200, 2026-11-25).
  constexpr cuuint64_t kLine = 128;
  const auto promotion = fetch == Fetch::pairs && strides[0] % kLine == 0 ? CU_TENSOR_MAP_L2_PROMOTION_L2_256B
                                                                          : CU_TENSOR_MAP_L2_PROMOTION_L2_128B;
  const auto encode = [&] {
    return function(map, type, 4, const_cast<void*>(data), sizes, strides, boxes, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                    swizzle, promotion, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  };
  CUresult result = encode();
  int device = 0;
  // A thread that has not used the device yet, such as one of autograd's, has no context, for which the driver asks.
  if (result != CUDA_SUCCESS && cudaGetDevice(&device) == cudaSuccess && cudaSetDevice(device) == cudaSuccess) {
    result = encode();
  }
  return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

}  // namespace treduce
