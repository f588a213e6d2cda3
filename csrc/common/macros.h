// Markers for code that the host compiler and nvcc both read.
#pragma once

#ifdef __CUDACC__
#define TREDUCE_HOST_DEVICE __host__ __device__ __forceinline__
#define TREDUCE_DEVICE __device__ __forceinline__
// A kernel's parameter that is read where it lies: taking its address makes no copy in every thread's local memory.
#define TREDUCE_GRID_CONSTANT const __grid_constant__
#define TREDUCE_NOINLINE __host__ __device__ __noinline__
#define TREDUCE_UNROLL _Pragma("unroll")
#define TREDUCE_ROLLED _Pragma("unroll 1")
#else
#define TREDUCE_GRID_CONSTANT const
#define TREDUCE_NOINLINE __attribute__((noinline))
#define TREDUCE_UNROLL _Pragma("GCC unroll 32")
#define TREDUCE_ROLLED
#define TREDUCE_HOST_DEVICE inline
#define TREDUCE_DEVICE inline
#endif
