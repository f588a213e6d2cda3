// Barriers in shared memory that count arrivals and bytes (sm_90 and later): how a copy engine tells threads that a tile
// is there, and threads tell the copy engine's thread that a tile may be overwritten. One wrapper an instruction.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "shared_address.cuh"

#ifdef TREDUCE_EMULATOR
#include "emulator_barriers.h"
#else
namespace treduce::ptx {

// A phase ends after `arrivals` arrivals and all bytes that were expected. One thread, before any other use.
TREDUCE_DEVICE void mbarrier_init(uint64_t* barrier, unsigned arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}

// Makes initialised barriers visible to the copy engine and to the other blocks of the cluster. By the thread that
// initialised them, before a barrier of the block or cluster.
TREDUCE_DEVICE void fence_mbarrier_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

// shared_address(), kept in a register. The compiler would compute such an address again at each use, which a loop that waits at
// each step cannot afford.
TREDUCE_DEVICE uint32_t kept_shared_address(const void* place) {
  uint32_t kept;
  asm volatile("mov.b32 %0, %1;" : "=r"(kept) : "r"(shared_address(place)));
  return kept;
}

// One thread arrives at a barrier of its own block, and releases what it wrote before.
TREDUCE_DEVICE void mbarrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
TREDUCE_DEVICE void mbarrier_arrive(uint64_t* barrier) { mbarrier_arrive(shared_address(barrier)); }

// Arrives at the barrier that lies at the same place in the shared memory of block `rank` of the cluster.
TREDUCE_DEVICE void mbarrier_arrive_at(uint32_t barrier, unsigned rank) {
  asm volatile(
      "{\n"
      ".reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [remote];\n"
      "}" ::"r"(barrier),
      "r"(rank)
      : "memory");
}
TREDUCE_DEVICE void mbarrier_arrive_at(uint64_t* barrier, unsigned rank) {
  mbarrier_arrive_at(shared_address(barrier), rank);
}

// Arrives, and lets the phase wait for `bytes` of copies as well.
TREDUCE_DEVICE void mbarrier_arrive_expect(uint32_t barrier, unsigned bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
TREDUCE_DEVICE void mbarrier_arrive_expect(uint64_t* barrier, unsigned bytes) {
  mbarrier_arrive_expect(shared_address(barrier), bytes);
}

// Arrives when this thread's copies (cp.async) so far have. cp.async.mbarrier.arrive.noinc.
TREDUCE_DEVICE void mbarrier_arrive_when_copied(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

// Waits until the phase of that parity has ended, and acquires what was written before it ended, copies included. Every thread
// that reads what the barrier guards waits for itself. kPause: nanoseconds between two polls; kLongPause is for a thread that waits long
// while others work, and leaves the issue slots to them.
constexpr int kLongPause = 64;
template <int kPause = 0>
TREDUCE_DEVICE void mbarrier_wait(uint32_t barrier, unsigned parity) {
  unsigned done;
  while (true) {
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n"
        "}"
        : "=r"(done)
        : "r"(barrier), "r"(parity)
        : "memory");
    if (done != 0) return;
    if constexpr (kPause > 0) __nanosleep(kPause);
  }
}
template <int kPause = 0>
TREDUCE_DEVICE void mbarrier_wait(uint64_t* barrier, unsigned parity) {
  mbarrier_wait<kPause>(shared_address(barrier), parity);
}

// Whether it has ended, without waiting; if so, acquires the same.
TREDUCE_DEVICE bool mbarrier_test(uint32_t barrier, unsigned parity) {
  unsigned done;
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n"
      "}"
      : "=r"(done)
      : "r"(barrier), "r"(parity)
      : "memory");
  return done != 0;
}

// Arrives if `does`, without a branch.
TREDUCE_DEVICE void mbarrier_arrive_if(bool does, uint32_t barrier) {
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "setp.ne.u32 p, %1, 0;\n"
      "@p mbarrier.arrive.shared::cta.b64 _, [%0];\n"
      "}" ::"r"(barrier),
      "r"(unsigned(does))
      : "memory");
}

}  // namespace treduce::ptx
#endif
