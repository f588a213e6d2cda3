// Cooperation between the blocks of a cluster (compute capability 9.0): they can read each other's shared memory. These are
// the functions behind cooperative_groups::this_cluster(), whose header takes longer to compile than most kernels here.
#pragma once

#include <cuda_runtime.h>

#include "shared.cuh"

#ifndef TREDUCE_EMULATOR
namespace treduce::cluster {

// Waits for every thread of the cluster; shared memory written before is seen by its other blocks after.
// A block must not leave while others may still read its shared memory: synchronise once more before the end.
TREDUCE_DEVICE void sync() {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  __cluster_barrier_arrive();
  __cluster_barrier_wait();
#endif
}

// The two halves of sync(): between them a thread may do what nobody waits for. Each thread calls both, in turn.
TREDUCE_DEVICE void arrive() {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  __cluster_barrier_arrive();
#endif
}
TREDUCE_DEVICE void wait() {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  __cluster_barrier_wait();
#endif
}

// The rank of this block in its cluster.
TREDUCE_DEVICE int rank() {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  return static_cast<int>(__clusterRelativeBlockRank());
#else
  return 0;
#endif
}

// The address, in block `rank` of this cluster, of the shared variable that `here` names in this block.
template <class T>
TREDUCE_DEVICE T* shared_of(T* here, int rank) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  return static_cast<T*>(__cluster_map_shared_rank(here, static_cast<unsigned>(rank)));
#else
  return here;
#endif
}

}  // namespace treduce::cluster
#endif
