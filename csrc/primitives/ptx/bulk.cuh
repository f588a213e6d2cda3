// Copies of contiguous bytes by the copy engine (sm_90 and later): one thread asks, a barrier in shared memory counts the bytes, and no
// register or load unit is held meanwhile. One wrapper an instruction; the emulator copies at once.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "../../common/macros.h"

#ifdef TREDUCE_EMULATOR
#include <cstring>

namespace treduce::ptx {

// A barrier as a word: how many arrivals end a phase, how many are missing, and the phase's parity.
TREDUCE_DEVICE void mbarrier_init(uint64_t* barrier, unsigned arrivals) { *barrier = arrivals * 0x10001ull; }
TREDUCE_DEVICE void fence_mbarrier_init() {}
TREDUCE_DEVICE void mbarrier_arrive(uint64_t* barrier) {
  const uint64_t arrivals = *barrier & 0xffff, left = (*barrier >> 16 & 0xffff) - 1, parity = *barrier >> 32;
  *barrier = left > 0 ? arrivals | left << 16 | parity << 32 : arrivals * 0x10001ull | (parity ^ 1) << 32;
}
TREDUCE_DEVICE void mbarrier_arrive_expect(uint64_t* barrier, unsigned) { mbarrier_arrive(barrier); }
TREDUCE_DEVICE void mbarrier_wait(uint64_t* barrier, unsigned parity) {
  while (*barrier >> 32 == parity) emulator::overtake();
}
TREDUCE_DEVICE void load_bytes(void* to, const void* from, unsigned bytes, uint64_t*) { memcpy(to, from, bytes); }
TREDUCE_DEVICE void fence_async_proxy() {}

}  // namespace treduce::ptx
#else
#include "mbarrier.cuh"

namespace treduce::ptx {

// Copies `bytes` contiguous bytes to shared memory and counts them at `barrier`; both ends and the number are multiples of 16.
TREDUCE_DEVICE void load_bytes(void* to, const void* from, unsigned bytes, uint64_t* barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(to)),
               "l"(from), "r"(bytes), "r"(shared_address(barrier))
               : "memory");
}

// Lets the copy engine and the tensor cores see what this thread stored to shared memory, and keeps what it asks of the copy engine
// afterwards behind the loads and stores that happened before, other threads' included if it waited for them at a barrier.
TREDUCE_DEVICE void fence_async_proxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

}  // namespace treduce::ptx
#endif
