// Markers for code that the host compiler and nvcc both read.
#pragma once

#ifdef __CUDACC__
#define TREDUCE_HOST_DEVICE __host__ __device__ __forceinline__
#define TREDUCE_DEVICE __device__ __forceinline__
#else
#define TREDUCE_HOST_DEVICE inline
#define TREDUCE_DEVICE inline
#endif
