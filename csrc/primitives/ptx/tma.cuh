// The tensor memory accelerator (sm_90 and later): one thread asks for a box of a tensor, the engine computes the
// addresses, fills what lies outside with zeros, and reports to a barrier. One wrapper an instruction.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "mbarrier.cuh"

#ifdef TREDUCE_EMULATOR
#include "emulator_copies.h"
#else
namespace treduce::ptx {

// A place in a tensor of four dimensions, the contiguous one first.
struct Coordinates {
  int x, y, z, w;
};

// Brings the description of a tensor to the cache of descriptors. One thread, at the start of the kernel.
TREDUCE_DEVICE void prefetch_tensor_map(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// Copies the box at `at` to shared memory and counts its bytes at `barrier`. One thread asks; who reads the box waits at the
// barrier (mbarrier_wait).
TREDUCE_DEVICE void load_box(uint32_t to, const CUtensorMap* map, const Coordinates& at, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], "
      "[%2];" ::"r"(to),
      "l"(map), "r"(barrier), "r"(at.x), "r"(at.y), "r"(at.z), "r"(at.w)
      : "memory");
}
TREDUCE_DEVICE void load_box(void* to, const CUtensorMap* map, const Coordinates& at, uint64_t* barrier) {
  load_box(shared_address(to), map, at, shared_address(barrier));
}

// True in one lane of the warp, always the same. All 32 lanes call, converged. The compiler knows that it is one, and asks for a box
// once; behind `lane == 0` it makes a loop over all lanes that may be there.
TREDUCE_DEVICE bool elect_one() {
  uint32_t elected;
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "elect.sync _|p, 0xffffffff;\n"
      "selp.u32 %0, 1, 0, p;\n"
      "}"
      : "=r"(elected));
  return elected != 0;
}

// The same, to the same place in each block of the cluster whose bit is set in `blocks`; each block's own barrier
// counts.
TREDUCE_DEVICE void load_box_multicast(void* to, const CUtensorMap* map, const Coordinates& at, uint64_t* barrier,
                                       uint16_t blocks) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(shared_address(to)),
      "l"(map), "r"(shared_address(barrier)), "r"(at.x), "r"(at.y), "r"(at.z), "r"(at.w), "h"(blocks)
      : "memory");
}

// Copies `bytes` contiguous bytes to shared memory and counts them at `barrier`; both ends and the number are multiples of 16.
TREDUCE_DEVICE void load_bytes(void* to, const void* from, unsigned bytes, uint64_t* barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(to)),
               "l"(from), "r"(bytes), "r"(shared_address(barrier))
               : "memory");
}

// Copies a box from shared memory to the tensor; what lies outside is left out. Ordinary stores to the box must be
// followed by fence_async_proxy() in the threads that made them, and a barrier.
TREDUCE_DEVICE void store_box(const CUtensorMap* map, const Coordinates& at, const void* from) {
  asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(map),
               "r"(shared_address(from)), "r"(at.x), "r"(at.y), "r"(at.z), "r"(at.w)
               : "memory");
}

// Closes a group: this thread's box stores since the last call.
TREDUCE_DEVICE void commit_stores() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// Waits until all but the last kPending groups of this thread's stores have read their shared memory.
template <int kPending>
TREDUCE_DEVICE void wait_stores_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}

// Lets the copy engine and the tensor cores see what this thread stored to shared memory, and keeps what it asks of the copy engine
// afterwards behind the loads and stores that happened before, other threads' included if it waited for them at a barrier.
TREDUCE_DEVICE void fence_async_proxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
// The same of global memory, for copies of what this launch wrote: who wrote it calls this before it is released, and who copies it after
// that was acquired. fence.proxy.async.global (sm_90 and later).
TREDUCE_DEVICE void fence_async_proxy_global() { asm volatile("fence.proxy.async.global;" ::: "memory"); }

}  // namespace treduce::ptx
#endif
