// The part of CUDA's driver that describes tensors to the copy engine.
#pragma once

#include <cstdint>
#include <cstring>

#include "cuda_runtime.h"

using cuuint32_t = uint32_t;
using cuuint64_t = uint64_t;

enum CUresult { CUDA_SUCCESS = 0, CUDA_ERROR_INVALID_VALUE = 1 };
enum CUtensorMapDataType {
  CU_TENSOR_MAP_DATA_TYPE_UINT8,
  CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
  CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
  CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
  CU_TENSOR_MAP_DATA_TYPE_TFLOAT32,
  CU_TENSOR_MAP_DATA_TYPE_FLOAT64,
};
enum CUtensorMapInterleave { CU_TENSOR_MAP_INTERLEAVE_NONE };
enum CUtensorMapSwizzle {
  CU_TENSOR_MAP_SWIZZLE_NONE,
  CU_TENSOR_MAP_SWIZZLE_32B,
  CU_TENSOR_MAP_SWIZZLE_64B,
  CU_TENSOR_MAP_SWIZZLE_128B
};
enum CUtensorMapL2promotion { CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B };
enum CUtensorMapFloatOOBfill { CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE };

struct alignas(64) CUtensorMap {
  unsigned char* data;
  CUtensorMapDataType type;
  cuuint64_t sizes[4], strides[3];  // elements; bytes
  cuuint32_t box[4];
  int swizzle;  // rows of 16 << swizzle bytes are swizzled; 0: none are

  unsigned element_bytes() const {
    switch (type) {
      case CU_TENSOR_MAP_DATA_TYPE_UINT8: return 1;
      case CU_TENSOR_MAP_DATA_TYPE_FLOAT16:
      case CU_TENSOR_MAP_DATA_TYPE_BFLOAT16: return 2;
      case CU_TENSOR_MAP_DATA_TYPE_FLOAT64: return 8;
      default: return 4;
    }
  }
};

// The driver's conditions, so that a map that it would refuse is refused here.
inline CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* data,
                                       const cuuint64_t* sizes, const cuuint64_t* strides, const cuuint32_t* box,
                                       const cuuint32_t* steps, CUtensorMapInterleave, CUtensorMapSwizzle swizzle,
                                       CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
  CUtensorMap made{static_cast<unsigned char*>(data), type, {}, {}, {}, static_cast<int>(swizzle)};
  if (rank != 4 || reinterpret_cast<uintptr_t>(data) % 16 != 0) return CUDA_ERROR_INVALID_VALUE;
  for (int d = 0; d < 4; ++d) {
    if (sizes[d] == 0 || sizes[d] > uint64_t{1} << 32 || box[d] == 0 || box[d] > 256 || steps[d] != 1) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    made.sizes[d] = sizes[d];
    made.box[d] = box[d];
    if (d == 3) continue;
    if (strides[d] % 16 != 0 || strides[d] >= uint64_t{1} << 40) return CUDA_ERROR_INVALID_VALUE;
    made.strides[d] = strides[d];
  }
  const unsigned row = made.box[0] * made.element_bytes();
  if (row % 16 != 0 || (made.swizzle != 0 && row > 16u << made.swizzle)) return CUDA_ERROR_INVALID_VALUE;
  *map = made;
  return CUDA_SUCCESS;
}

enum cudaDriverEntryPointQueryResult { cudaDriverEntryPointSuccess };
enum { cudaEnableDefault = 0 };
inline cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned /*version*/,
                                                    int /*flags*/, cudaDriverEntryPointQueryResult* /*status*/) {
  if (strcmp(name, "cuTensorMapEncodeTiled") != 0) return cudaErrorNotSupported;
  *function = reinterpret_cast<void*>(&cuTensorMapEncodeTiled);
  return cudaSuccess;
}
