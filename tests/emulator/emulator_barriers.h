// Barriers of some threads for the emulator: what csrc/primitives/ptx/mbarrier.cuh and named_barrier.cuh get from the hardware.
#pragma once

#include "emulator.h"

namespace treduce::ptx {

// ---- in shared memory ----

inline void mbarrier_init(uint64_t* barrier, unsigned arrivals) {
  ::emulator::init_barrier(::emulator::shared_address(barrier), arrivals);
}
inline void fence_mbarrier_init() {}
inline uint32_t kept_shared_address(const void* place) { return ::emulator::shared_address(place); }

// Barriers are named by address or by pointer.
inline uint32_t address_of_barrier(uint32_t barrier) { return barrier; }
inline uint32_t address_of_barrier(const uint64_t* barrier) { return ::emulator::shared_address(barrier); }

template <class Barrier>
void mbarrier_arrive(Barrier barrier, ::emulator::Site site = ::emulator::Site::here()) {
  ::emulator::arrive(address_of_barrier(barrier), site);
}
template <class Barrier>
void mbarrier_arrive_at(Barrier barrier, unsigned rank, ::emulator::Site site = ::emulator::Site::here()) {
  ::emulator::arrive(address_of_barrier(barrier), site, 0, static_cast<int>(rank));
}
template <class Barrier>
void mbarrier_arrive_expect(Barrier barrier, unsigned bytes, ::emulator::Site site = ::emulator::Site::here()) {
  ::emulator::arrive(address_of_barrier(barrier), site, bytes);
}
inline void mbarrier_arrive_when_copied(uint32_t barrier) { ::emulator::arrive_when_copied(barrier); }

constexpr int kLongPause = 64;
template <int kPause = 0, class Barrier>
void mbarrier_wait(Barrier barrier, unsigned parity, ::emulator::Site site = ::emulator::Site::here()) {
  ::emulator::wait_for_phase(address_of_barrier(barrier), parity, site);
}

template <class Barrier>
bool mbarrier_test(Barrier barrier, unsigned parity, ::emulator::Site site = ::emulator::Site::here()) {
  return ::emulator::has_ended(address_of_barrier(barrier), parity, site);
}
template <class Barrier>
void mbarrier_arrive_if(bool does, Barrier barrier, ::emulator::Site site = ::emulator::Site::here()) {
  if (does) ::emulator::arrive(address_of_barrier(barrier), site);
}

// ---- by number ----

template <int kThreads>
void named_barrier(int id, ::emulator::Site site = ::emulator::Site::here()) {
  ::emulator::meet(id, kThreads, false, true, site);
}
template <int kThreads>
bool named_any(int id, bool x, ::emulator::Site site = ::emulator::Site::here()) {
  return ::emulator::meet(id, kThreads, x, true, site);
}
template <int kThreads>
void named_arrive(int id, ::emulator::Site site = ::emulator::Site::here()) {
  ::emulator::meet(id, kThreads, false, false, site);
}

}  // namespace treduce::ptx
