// Shared memory. Kernels ask for it here, so that the same sources also run where no GPU is (see tests/emulator).
#pragma once

#include "../common/macros.h"

#ifdef TREDUCE_EMULATOR
#include "emulator_shared.h"
#else
// SHARED_ARRAY(T, name, count): `T name[count]`, one a block, for types without constructors. Not initialised; who writes it
// synchronises before others read. SHARED(T, name): `T name`. SHARED_TABLE(T, name, rows, columns): `T name[rows][columns]`.
#define SHARED_ARRAY(T, name, count) __shared__ T name[count]
#define SHARED(T, name) __shared__ T name
#define SHARED_TABLE(T, name, rows, columns) __shared__ T name[rows][columns]

namespace treduce {

// The block's dynamic shared memory: as many bytes as the launch asked for, 16-byte aligned. One use a kernel.
template <class T>
TREDUCE_DEVICE T* dynamic_shared() {
  extern __shared__ __align__(16) unsigned char treduce_dynamic_shared[];
  return reinterpret_cast<T*>(treduce_dynamic_shared);
}

}  // namespace treduce
#endif
