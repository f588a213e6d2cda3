// Shared memory, clusters and the grid barrier for the emulator: what csrc/primitives gets from CUDA elsewhere.
#pragma once

#include "emulator.h"

// The address of a static names the call site; a template's static is another one for each of its instantiations, as a
// __shared__ variable is. A reference to an array, not a pointer, so that UBSan checks indices and sizeof is the array's.
#define SHARED(T, name)                \
  static char emulator_site_of_##name; \
  T& name = *static_cast<T*>(::emulator::shared_array(&emulator_site_of_##name, sizeof(T)))
#define SHARED_ARRAY(T, name, count)   \
  static char emulator_site_of_##name; \
  T(&name)[count] = *static_cast<T(*)[count]>(::emulator::shared_array(&emulator_site_of_##name, sizeof(T) * (count)))
#define SHARED_TABLE(T, name, rows, columns)           \
  static char emulator_site_of_##name;                 \
  T(&name)                                             \
  [rows][columns] = *static_cast<T(*)[rows][columns]>( \
      ::emulator::shared_array(&emulator_site_of_##name, sizeof(T) * (rows) * (columns)))

namespace treduce {

template <class T>
T* dynamic_shared() {
  return static_cast<T*>(::emulator::dynamic_shared());
}

namespace grid {
inline void sync(::emulator::Site site = ::emulator::Site::here()) { ::emulator::grid_barrier(site); }
}  // namespace grid

namespace cluster {
inline void sync(::emulator::Site site = ::emulator::Site::here()) { ::emulator::cluster_barrier(site); }
// Nothing happens between the halves that the emulator could show: the second does all of it.
inline void arrive() {}
inline void arrive_relaxed() {}
inline void wait(::emulator::Site site = ::emulator::Site::here()) { ::emulator::cluster_barrier(site); }
inline int rank() { return ::emulator::cluster_rank(); }
template <class T>
T* shared_of(T* here, int rank, ::emulator::Site site = ::emulator::Site::here()) {
  return static_cast<T*>(::emulator::shared_of(here, rank, site));
}
}  // namespace cluster

}  // namespace treduce
