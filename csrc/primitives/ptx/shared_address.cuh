// Addresses in shared memory as instructions take them.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "../../common/macros.h"

namespace treduce::ptx {

// A place in shared memory, in bytes: 32 bits, so that a kernel that keeps one computes with one register.
using SharedAddress = uint32_t;
TREDUCE_DEVICE SharedAddress shared_address(const void* place) {
  return static_cast<SharedAddress>(__cvta_generic_to_shared(place));
}

// What lies there.
template <class T>
TREDUCE_DEVICE T load_shared(SharedAddress address) {
  return *static_cast<const T*>(__cvta_shared_to_generic(address));
}

// *to = value, at once.
template <class T>
TREDUCE_DEVICE void store_shared(SharedAddress to, T value) {
  *static_cast<T*>(__cvta_shared_to_generic(to)) = value;
}

}  // namespace treduce::ptx
