// Lists the physical devices that the installed Vulkan drivers offer.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ptn::vk {

struct DeviceInfo {
  std::string name;
  std::string type;  // discrete, integrated, virtual, cpu or other
  std::string api_version;
  uint64_t memory_bytes = 0;  // sum of the device-local heaps
};

// Never throws for missing hardware: an empty list comes with the reason in `reason`.
std::vector<DeviceInfo> list_devices(std::string& reason);

}  // namespace ptn::vk
