// The part of CUDA that the kernels use, for a host compiler. Put this folder first on the include path and compile a .cu
// file as C++: it then runs on the emulator. What is not here does not compile, and what cannot be honoured is an error.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <type_traits>

#include "emulator.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __noinline__  // nothing: libstdc++ writes __attribute__((__noinline__)), which must stay valid
#define __launch_bounds__(...)
#define __align__(bytes) alignas(bytes)
#ifndef __restrict__
#define __restrict__ __restrict
#endif

constexpr int warpSize = emulator::kWarpLanes;
using std::max;
using std::min;

// ---- integer instructions ----

inline uint64_t __umul64hi(uint64_t a, uint64_t b) {
  return static_cast<uint64_t>(static_cast<unsigned __int128>(a) * b >> 64);
}
inline unsigned __umulhi(unsigned a, unsigned b) { return static_cast<unsigned>(uint64_t{a} * b >> 32); }
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
  return static_cast<unsigned>((uint64_t{high} << 32 | low) >> (shift & 31));
}
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz(static_cast<unsigned>(x)); }
inline int __clzll(long long x) { return x == 0 ? 64 : __builtin_clzll(static_cast<unsigned long long>(x)); }

namespace emulator {

// sum + the products of the four bytes of a and b; wraps.
template <class Byte>
unsigned dot_of_bytes(unsigned a, unsigned b, unsigned sum) {
  for (int shift = 0; shift < 32; shift += 8) {
    sum += static_cast<unsigned>(static_cast<Byte>(a >> shift) * static_cast<Byte>(b >> shift));
  }
  return sum;
}

// of(a, b) of each of the fields of a word.
template <class Field, class Of>
unsigned of_fields(unsigned a, unsigned b, Of of) {
  unsigned result = 0;
  for (unsigned shift = 0; shift < 32; shift += 8 * sizeof(Field)) {
    const auto field = of(static_cast<Field>(a >> shift), static_cast<Field>(b >> shift));
    result |= static_cast<unsigned>(static_cast<std::make_unsigned_t<Field>>(field)) << shift;
  }
  return result;
}

}  // namespace emulator

inline unsigned __vmaxu2(unsigned a, unsigned b) {
  return emulator::of_fields<uint16_t>(a, b, [](auto x, auto y) { return std::max(x, y); });
}
inline unsigned __vmaxu4(unsigned a, unsigned b) {
  return emulator::of_fields<uint8_t>(a, b, [](auto x, auto y) { return std::max(x, y); });
}
inline unsigned __vminu2(unsigned a, unsigned b) {
  return emulator::of_fields<uint16_t>(a, b, [](auto x, auto y) { return std::min(x, y); });
}
inline unsigned __vminu4(unsigned a, unsigned b) {
  return emulator::of_fields<uint8_t>(a, b, [](auto x, auto y) { return std::min(x, y); });
}
inline unsigned __vmins2(unsigned a, unsigned b) {
  return emulator::of_fields<int16_t>(a, b, [](auto x, auto y) { return std::min(x, y); });
}
inline unsigned __vimax3_u16x2(unsigned a, unsigned b, unsigned c) { return __vmaxu2(__vmaxu2(a, b), c); }
inline unsigned __vimin3_u16x2(unsigned a, unsigned b, unsigned c) { return __vminu2(__vminu2(a, b), c); }
inline unsigned __vimax3_u32(unsigned a, unsigned b, unsigned c) { return std::max(std::max(a, b), c); }
inline unsigned __vimin3_u32(unsigned a, unsigned b, unsigned c) { return std::min(std::min(a, b), c); }
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
  const uint64_t bytes = uint64_t{b} << 32 | a;
  unsigned result = 0;
  for (int i = 0; i < 4; ++i) {
    const unsigned nibble = selector >> 4 * i & 15;
    const auto byte = static_cast<uint8_t>(bytes >> (nibble & 7) * 8);
    result |= (nibble < 8 ? unsigned{byte} : byte >> 7 != 0 ? 0xffu : 0u) << 8 * i;
  }
  return result;
}

inline int __dp4a(int a, int b, int sum) {
  return static_cast<int>(
      emulator::dot_of_bytes<int8_t>(static_cast<unsigned>(a), static_cast<unsigned>(b), static_cast<unsigned>(sum)));
}
inline unsigned __dp4a(unsigned a, unsigned b, unsigned sum) { return emulator::dot_of_bytes<uint8_t>(a, b, sum); }

// ---- barriers, shuffles, votes ----

inline void __syncthreads(emulator::Site site = emulator::Site::here()) { emulator::block_barrier(site); }
inline void __syncwarp(unsigned mask = 0xffffffffu, emulator::Site site = emulator::Site::here()) {
  emulator::warp_barrier(mask, site);
}

inline int __syncthreads_or(int predicate, emulator::Site site = emulator::Site::here()) {
  return emulator::vote_of_block(predicate != 0, site) > 0;
}
inline int __syncthreads_and(int predicate, emulator::Site site = emulator::Site::here()) {
  return emulator::vote_of_block(predicate == 0, site) == 0;
}

namespace emulator {

template <class T>
T shuffle(unsigned mask, T value, int source, Site site) {
  static_assert(std::is_arithmetic_v<T> && (sizeof(T) == 4 || sizeof(T) == 8 || std::is_same_v<T, bool>),
                "CUDA shuffles 4 and 8 byte numbers, and what is true");
  const unsigned char* of_lane = exchange(&value, sizeof(T), mask, site);
  memcpy(&value, of_lane + 8 * source, sizeof(T));
  return value;
}

inline unsigned vote(unsigned mask, bool mine, Site site) {
  const unsigned char* of_lane = exchange(&mine, 1, mask, site);
  unsigned ballot = 0;
  for (int l = 0; l < kWarpLanes; ++l) ballot |= (of_lane[8 * l] == 1 ? 1u : 0u) << l;  // 0xff: no such lane
  return ballot;
}

}  // namespace emulator

// A source outside of the caller's group of `width` lanes: the caller gets its own value back.
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32,
                   emulator::Site site = emulator::Site::here()) {
  const int lane = emulator::lane(), source = lane + static_cast<int>(delta);
  return emulator::shuffle(mask, value, lane % width + static_cast<int>(delta) < width ? source : lane, site);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, emulator::Site site = emulator::Site::here()) {
  const int lane = emulator::lane(), source = lane - static_cast<int>(delta);
  return emulator::shuffle(mask, value, lane % width >= static_cast<int>(delta) ? source : lane, site);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = 32, emulator::Site site = emulator::Site::here()) {
  const int lane = emulator::lane(), source = lane ^ lane_mask;
  return emulator::shuffle(mask, value, source / width <= lane / width ? source % 32 : lane, site);
}
template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32, emulator::Site site = emulator::Site::here()) {
  const int lane = emulator::lane();
  return emulator::shuffle(mask, value, lane - lane % width + (source & (width - 1)), site);
}

inline unsigned __ballot_sync(unsigned mask, int predicate, emulator::Site site = emulator::Site::here()) {
  return emulator::vote(mask, predicate != 0, site);
}
inline int __any_sync(unsigned mask, int predicate, emulator::Site site = emulator::Site::here()) {
  return emulator::vote(mask, predicate != 0, site) != 0;
}
inline int __all_sync(unsigned mask, int predicate, emulator::Site site = emulator::Site::here()) {
  return emulator::vote(mask, predicate != 0, site) == emulator::lanes();
}

namespace emulator {

// Of the values of all lanes that the mask names.
template <class Join>
unsigned reduce(unsigned mask, unsigned value, Join join, Site site) {
  const unsigned char* of_lane = exchange(&value, sizeof(value), mask, site);
  bool any = false;
  unsigned all = 0;
  for (int l = 0; l < kWarpLanes; ++l) {
    if ((mask & lanes() & 1u << l) == 0) continue;
    unsigned other;
    memcpy(&other, of_lane + 8 * l, sizeof(other));
    all = any ? join(all, other) : other;
    any = true;
  }
  return all;
}

}  // namespace emulator

inline unsigned __reduce_or_sync(unsigned mask, unsigned x, emulator::Site site = emulator::Site::here()) {
  return emulator::reduce(mask, x, [](unsigned a, unsigned b) { return a | b; }, site);
}
inline unsigned __reduce_and_sync(unsigned mask, unsigned x, emulator::Site site = emulator::Site::here()) {
  return emulator::reduce(mask, x, [](unsigned a, unsigned b) { return a & b; }, site);
}
inline unsigned __reduce_add_sync(unsigned mask, unsigned x, emulator::Site site = emulator::Site::here()) {
  return emulator::reduce(mask, x, [](unsigned a, unsigned b) { return a + b; }, site);
}
template <class T>
T __reduce_max_sync(unsigned mask, T x, emulator::Site site = emulator::Site::here()) {
  const auto larger = [](unsigned a, unsigned b) { return static_cast<T>(a) > static_cast<T>(b) ? a : b; };
  return static_cast<T>(emulator::reduce(mask, static_cast<unsigned>(x), larger, site));
}
template <class T>
T __reduce_min_sync(unsigned mask, T x, emulator::Site site = emulator::Site::here()) {
  const auto smaller = [](unsigned a, unsigned b) { return static_cast<T>(a) < static_cast<T>(b) ? a : b; };
  return static_cast<T>(emulator::reduce(mask, static_cast<unsigned>(x), smaller, site));
}
inline unsigned __match_any_sync(unsigned mask, unsigned x, emulator::Site site = emulator::Site::here()) {
  const unsigned char* of_lane = emulator::exchange(&x, sizeof(x), mask, site);
  unsigned alike = 0;
  for (int l = 0; l < emulator::kWarpLanes; ++l) {
    unsigned other;
    memcpy(&other, of_lane + 8 * l, sizeof(other));
    if ((mask & emulator::lanes() & 1u << l) != 0 && other == x) alike |= 1u << l;
  }
  return alike;
}

// ---- memory ----

inline size_t __cvta_generic_to_shared(const void* place) { return emulator::shared_address(place); }
inline void* __cvta_shared_to_generic(size_t address) { return emulator::shared_place(static_cast<uint32_t>(address)); }
inline void __nanosleep(unsigned /*nanoseconds*/) {}

inline float __uint_as_float(unsigned bits) {
  float value;
  memcpy(&value, &bits, sizeof(value));
  return value;
}
inline float __int_as_float(int bits) { return __uint_as_float(static_cast<unsigned>(bits)); }
inline int __float_as_int(float value) {
  int bits;
  memcpy(&bits, &value, sizeof(bits));
  return bits;
}
inline unsigned __float_as_uint(float value) {
  unsigned bits;
  memcpy(&bits, &value, sizeof(bits));
  return bits;
}

// Threads only change places in overtake(), so plain code is atomic. A thread may be overtaken on either side: before, when
// others have not seen what it is about to say, and after, when others of its block have not done what it speaks for.
template <class T, class Update>
T emulator_atomic(T* address, Update update) {
  emulator::overtake();
  const T before = *address;
  *address = update(before);
  emulator::overtake();
  return before;
}
template <class T>
T atomicAdd(T* address, std::common_type_t<T> value) {
  return emulator_atomic(address, [=](T old) {
    if constexpr (std::is_signed_v<T> && std::is_integral_v<T>) {
      return static_cast<T>(static_cast<unsigned>(old) + static_cast<unsigned>(value));  // wraps
    } else {
      return old + value;
    }
  });
}
template <class T>
T atomicMax(T* address, std::common_type_t<T> value) {
  return emulator_atomic(address, [=](T old) { return old > value ? old : value; });
}
template <class T>
T atomicMin(T* address, std::common_type_t<T> value) {
  return emulator_atomic(address, [=](T old) { return old < value ? old : value; });
}
template <class T>
T atomicOr(T* address, std::common_type_t<T> value) {
  return emulator_atomic(address, [=](T old) { return old | value; });
}
template <class T>
T atomicAnd(T* address, std::common_type_t<T> value) {
  return emulator_atomic(address, [=](T old) { return old & value; });
}
template <class T>
T atomicExch(T* address, std::common_type_t<T> value) {
  return emulator_atomic(address, [=](T) { return value; });
}
template <class T>
T atomicCAS(T* address, std::common_type_t<T> compare, std::common_type_t<T> value) {
  return emulator_atomic(address, [=](T old) { return old == compare ? value : old; });
}
inline unsigned atomicInc(unsigned* address, unsigned limit) {
  return emulator_atomic(address, [=](unsigned old) { return old >= limit ? 0 : old + 1; });
}

inline void __threadfence() { emulator::overtake(); }
inline void __threadfence_block() { emulator::overtake(); }

// Cache hints change when data arrives, not which data.
template <class T>
T __ldg(const T* address) {
  return *address;
}
template <class T>
T __ldcg(const T* address) {
  return *address;
}
template <class T>
T __ldcs(const T* address) {
  return *address;
}
template <class T>
void __stcs(T* address, T value) {
  *address = value;
}
template <class T>
void __stwb(T* address, T value) {
  *address = value;
}
template <class T>
void __stcg(T* address, T value) {
  *address = value;
}

// ---- the runtime ----

enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorInvalidConfiguration = 9,
  cudaErrorCooperativeLaunchTooLarge = 720,
  cudaErrorNotSupported = 801,
};
inline const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess: return "no error";
    case cudaErrorInvalidValue: return "invalid argument";
    case cudaErrorInvalidConfiguration: return "invalid configuration argument";
    case cudaErrorCooperativeLaunchTooLarge: return "too many blocks in cooperative launch";
    default: return "operation not supported by the emulator";
  }
}

using cudaStream_t = struct CUstream_st*;

enum cudaDeviceAttr {
  cudaDevAttrWarpSize = 10,
  cudaDevAttrMultiProcessorCount = 16,
  cudaDevAttrMaxSharedMemoryPerBlockOptin = 97,
};
inline cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int /*device*/) {
  switch (attribute) {
    case cudaDevAttrWarpSize: *value = warpSize; break;
    case cudaDevAttrMultiProcessorCount: *value = emulator::kProcessors; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = static_cast<int>(emulator::kMostSharedBytes); break;
  }
  return cudaSuccess;
}
template <class Kernel>
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, Kernel, int /*threads*/, size_t /*shared*/) {
  *blocks = emulator::kBlocksPerProcessor;
  return cudaSuccess;
}

inline cudaError_t cudaSetDevice(int /*device*/) { return cudaSuccess; }
inline cudaError_t cudaMemsetAsync(void* to, int byte, size_t bytes, cudaStream_t /*stream*/) {
  memset(to, byte, bytes);
  return cudaSuccess;
}

enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 };
inline cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute attribute, int value) {
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaErrorNotSupported;
  if (value < 0 || static_cast<size_t>(value) > emulator::kMostSharedBytes) return cudaErrorInvalidValue;
  emulator::allow_shared(kernel, static_cast<size_t>(value));
  return cudaSuccess;
}

enum cudaLaunchAttributeID {
  cudaLaunchAttributeCooperative = 2,
  cudaLaunchAttributeClusterDimension = 4,
  cudaLaunchAttributeProgrammaticStreamSerialization = 6,
  cudaLaunchAttributePriority = 8,
};
union cudaLaunchAttributeValue {
  int cooperative;
  struct {
    unsigned x, y, z;
  } clusterDim;
  int programmaticStreamSerializationAllowed;
};
struct cudaLaunchAttribute {
  cudaLaunchAttributeID id;
  cudaLaunchAttributeValue val;
};
struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  size_t dynamicSmemBytes;
  cudaStream_t stream;
  cudaLaunchAttribute* attrs;
  unsigned numAttrs;
};

// The limits are a GPU's, so that a launch that would fail there fails here.
inline cudaError_t emulator_grid(const cudaLaunchConfig_t& config, emulator::Grid* grid) {
  grid->blocks = config.gridDim;
  grid->threads = config.blockDim;
  grid->dynamic_shared = config.dynamicSmemBytes;
  for (unsigned a = 0; a < config.numAttrs; ++a) {
    const cudaLaunchAttribute& attribute = config.attrs[a];
    switch (attribute.id) {
      case cudaLaunchAttributeProgrammaticStreamSerialization: break;  // launches follow each other here
      case cudaLaunchAttributeCooperative: grid->cooperative = attribute.val.cooperative != 0; break;
      case cudaLaunchAttributeClusterDimension:
        if (attribute.val.clusterDim.y != 1 || attribute.val.clusterDim.z != 1) return cudaErrorNotSupported;
        grid->cluster = attribute.val.clusterDim.x;
        break;
      default: return cudaErrorNotSupported;
    }
  }
  const dim3 &b = grid->blocks, &t = grid->threads;
  const uint64_t threads = uint64_t{t.x} * t.y * t.z, blocks = uint64_t{b.x} * b.y * b.z;
  if (threads == 0 || threads > emulator::kMaxThreads || t.z > 64) return cudaErrorInvalidConfiguration;
  if (blocks == 0 || b.x > 0x7fffffffu || b.y > 0xffffu || b.z > 0xffffu) return cudaErrorInvalidConfiguration;
  if (grid->dynamic_shared > emulator::allowed_shared(grid->kernel)) return cudaErrorInvalidValue;
  if (grid->cluster == 0 || grid->cluster > emulator::kMaxCluster || b.x % grid->cluster != 0) {
    return cudaErrorInvalidConfiguration;
  }
  if (grid->cooperative && blocks > uint64_t{emulator::kProcessors} * emulator::kBlocksPerProcessor) {
    return cudaErrorCooperativeLaunchTooLarge;
  }
  return cudaSuccess;
}

// Runs at once and returns when the grid is done: every stream is in order, so nobody can tell.
template <class... Parameters, class... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               Arguments... arguments) {
  emulator::Grid grid;
  grid.kernel = reinterpret_cast<const void*>(kernel);
  const cudaError_t error = emulator_grid(*config, &grid);
  if (error != cudaSuccess) return error;
  const auto body = [kernel, arguments...] { kernel(arguments...); };
  emulator::run(grid, [](const void* b) { (*static_cast<decltype(body)*>(b))(); }, &body);
  return cudaSuccess;
}
