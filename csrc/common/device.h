// Facts about the GPUs of this machine, free of torch.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "prepared.h"

namespace treduce {

// What launches are shaped by. Asked of the driver once a device.
const Chip& chip_of(int device);

int device_count();

// Name and value of each fact, in the order in which `info` shows them.
struct DeviceFacts {
  std::string name;
  std::vector<std::pair<std::string, int64_t>> numbers;
};
DeviceFacts device_facts(int device);

}  // namespace treduce
