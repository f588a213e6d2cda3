// Cooperation between the blocks of a cluster (compute capability 9.0): they can read each other's shared memory. These are
// the functions behind cooperative_groups::this_cluster(), whose header takes longer to compile than most kernels here.
#pragma once

#include <cuda_runtime.h>

#include "shared.cuh"

#ifndef TREDUCE_EMULATOR
namespace treduce::cluster {

// Waits for every thread of the cluster; shared memory written before is seen by its other blocks after.
// Who calls: every thread of every block of the cluster. A block must not exit while others may still read its shared memory:
// call it once more before the end.
TREDUCE_DEVICE void sync() {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  __cluster_barrier_arrive();
  __cluster_barrier_wait();
#endif
}

// The two halves of sync(): between them a thread may do what no other thread waits for. Who calls: as sync(), arrive() first.
TREDUCE_DEVICE void arrive() {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  __cluster_barrier_arrive();
#endif
}
// The same of a thread that has nothing to tell: it has begun, or no longer reads. It waits for no store of its own.
TREDUCE_DEVICE void arrive_relaxed() {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  __cluster_barrier_arrive_relaxed();
#endif
}
TREDUCE_DEVICE void wait() {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  __cluster_barrier_wait();
#endif
}

// The rank of this block in its cluster. Any thread may ask.
TREDUCE_DEVICE int rank() {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  return static_cast<int>(__clusterRelativeBlockRank());
#else
  return 0;
#endif
}

// The address, in block `rank` of this cluster, of the shared variable at `here` in this block.
// Who calls: any thread. The caller synchronises the cluster before it reads there, and again before that block exits.
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
