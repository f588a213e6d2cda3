// Asks the driver for the facts of a GPU.
#include "device.h"

#include <cuda_runtime.h>

#include <array>
#include <atomic>
#include <stdexcept>

namespace treduce {
namespace {

void check(cudaError_t error) {
  if (error != cudaSuccess) throw std::runtime_error(std::string("CUDA: ") + cudaGetErrorString(error));
}

}  // namespace

const Chip& chip_of(int device) {
  constexpr int kDevices = 128;
  static std::array<std::atomic<const Chip*>, kDevices> known{};
  if (device < 0 || device >= kDevices) throw std::out_of_range("CUDA device " + std::to_string(device));
  if (const Chip* facts = known[device].load(std::memory_order_acquire)) return *facts;
  const auto attribute = [&](cudaDeviceAttr what) {
    int value = 0;
    check(cudaDeviceGetAttribute(&value, what, device));
    return value;
  };
  const int capability =
      10 * attribute(cudaDevAttrComputeCapabilityMajor) + attribute(cudaDevAttrComputeCapabilityMinor);
  const Chip* facts = new Chip{attribute(cudaDevAttrMultiProcessorCount), capability};
  // If two threads query at once, the first result is kept; the second is equal, and leaks a few bytes.
  const Chip* none = nullptr;
  known[device].compare_exchange_strong(none, facts, std::memory_order_acq_rel);
  return *known[device].load(std::memory_order_acquire);
}

int device_count() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

DeviceFacts device_facts(int device) {
  cudaDeviceProp p;
  check(cudaGetDeviceProperties(&p, device));
  int clock = 0, memory_clock = 0, cluster = 0;
  check(cudaDeviceGetAttribute(&clock, cudaDevAttrClockRate, device));
  check(cudaDeviceGetAttribute(&memory_clock, cudaDevAttrMemoryClockRate, device));
  check(cudaDeviceGetAttribute(&cluster, cudaDevAttrClusterLaunch, device));
  DeviceFacts facts;
  facts.name = p.name;
  facts.numbers = {
      {"compute_capability_major", p.major},
      {"compute_capability_minor", p.minor},
      {"multiprocessors", p.multiProcessorCount},
      {"clock_khz", clock},
      {"memory_clock_khz", memory_clock},
      {"memory_bus_bits", p.memoryBusWidth},
      {"memory_bytes", static_cast<int64_t>(p.totalGlobalMem)},
      {"l2_bytes", p.l2CacheSize},
      {"shared_bytes_per_block", static_cast<int64_t>(p.sharedMemPerBlock)},
      {"shared_bytes_per_block_optin", static_cast<int64_t>(p.sharedMemPerBlockOptin)},
      {"shared_bytes_per_multiprocessor", static_cast<int64_t>(p.sharedMemPerMultiprocessor)},
      {"registers_per_block", p.regsPerBlock},
      {"registers_per_multiprocessor", p.regsPerMultiprocessor},
      {"warp_size", p.warpSize},
      {"max_threads_per_block", p.maxThreadsPerBlock},
      {"max_threads_per_multiprocessor", p.maxThreadsPerMultiProcessor},
      {"max_blocks_per_multiprocessor", p.maxBlocksPerMultiProcessor},
      {"max_block_x", p.maxThreadsDim[0]},
      {"max_block_y", p.maxThreadsDim[1]},
      {"max_block_z", p.maxThreadsDim[2]},
      {"max_grid_x", p.maxGridSize[0]},
      {"max_grid_y", p.maxGridSize[1]},
      {"max_grid_z", p.maxGridSize[2]},
      {"cooperative_launch", p.cooperativeLaunch},
      {"cluster_launch", cluster},
  };
  return facts;
}

}  // namespace treduce
