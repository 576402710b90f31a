#include "vk/devices.h"

#include "vk/loader.h"

namespace ptn::vk {
namespace {

// An instance that lives as long as the listing; owns what it created.
class Instance {
 public:
  Instance(PFN_vkGetInstanceProcAddr entry, std::string& reason) : entry_(entry) {
    const auto create = global<PFN_vkCreateInstance>("vkCreateInstance");
    if (create == nullptr) {
      reason = "the Vulkan library has no vkCreateInstance";
      return;
    }
    VkApplicationInfo application{};
    application.sType = VK_STRUCTURE_TYPE_APPLICATION_INFO;
    application.pApplicationName = "ptn";
    application.apiVersion = VK_API_VERSION_1_1;
    VkInstanceCreateInfo info{};
    info.sType = VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO;
    info.pApplicationInfo = &application;
    const VkResult result = create(&info, nullptr, &handle_);
    if (result != VK_SUCCESS) {
      handle_ = VK_NULL_HANDLE;
      reason = result == VK_ERROR_INCOMPATIBLE_DRIVER
                   ? "no Vulkan driver is installed (Debian's software device: mesa-vulkan-drivers)"
                   : "vkCreateInstance failed with code " + std::to_string(result);
    }
  }

  ~Instance() {
    if (handle_ != VK_NULL_HANDLE) {
      if (const auto destroy = get<PFN_vkDestroyInstance>("vkDestroyInstance")) {
        destroy(handle_, nullptr);
      }
    }
  }

  Instance(const Instance&) = delete;
  Instance& operator=(const Instance&) = delete;

  explicit operator bool() const { return handle_ != VK_NULL_HANDLE; }
  VkInstance handle() const { return handle_; }

  template <typename Function>
  Function get(const char* name) const {
    return reinterpret_cast<Function>(entry_(handle_, name));
  }

 private:
  template <typename Function>
  Function global(const char* name) const {
    return reinterpret_cast<Function>(entry_(VK_NULL_HANDLE, name));
  }

  PFN_vkGetInstanceProcAddr entry_;
  VkInstance handle_ = VK_NULL_HANDLE;
};

const char* type_name(VkPhysicalDeviceType type) {
  switch (type) {
    case VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU:
      return "discrete";
    case VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU:
      return "integrated";
    case VK_PHYSICAL_DEVICE_TYPE_VIRTUAL_GPU:
      return "virtual";
    case VK_PHYSICAL_DEVICE_TYPE_CPU:
      return "cpu";
    default:
      return "other";
  }
}

}  // namespace

std::vector<DeviceInfo> list_devices(std::string& reason) {
  const PFN_vkGetInstanceProcAddr entry = load_vulkan(reason);
  if (entry == nullptr) {
    return {};
  }
  const Instance instance(entry, reason);
  if (!instance) {
    return {};
  }
  const auto enumerate = instance.get<PFN_vkEnumeratePhysicalDevices>("vkEnumeratePhysicalDevices");
  const auto properties_of = instance.get<PFN_vkGetPhysicalDeviceProperties>("vkGetPhysicalDeviceProperties");
  const auto memory_of = instance.get<PFN_vkGetPhysicalDeviceMemoryProperties>("vkGetPhysicalDeviceMemoryProperties");
  uint32_t count = 0;
  if (enumerate == nullptr || properties_of == nullptr || memory_of == nullptr ||
      enumerate(instance.handle(), &count, nullptr) != VK_SUCCESS) {
    reason = "the Vulkan drivers could not be asked for devices";
    return {};
  }
  std::vector<VkPhysicalDevice> handles(count);
  enumerate(instance.handle(), &count, handles.data());
  std::vector<DeviceInfo> devices;
  for (uint32_t i = 0; i < count; ++i) {
    VkPhysicalDeviceProperties properties{};
    properties_of(handles[i], &properties);
    VkPhysicalDeviceMemoryProperties memory{};
    memory_of(handles[i], &memory);
    DeviceInfo info;
    info.name = properties.deviceName;
    info.type = type_name(properties.deviceType);
    info.api_version = std::to_string(VK_API_VERSION_MAJOR(properties.apiVersion)) + "." +
                       std::to_string(VK_API_VERSION_MINOR(properties.apiVersion)) + "." +
                       std::to_string(VK_API_VERSION_PATCH(properties.apiVersion));
    for (uint32_t heap = 0; heap < memory.memoryHeapCount; ++heap) {
      if ((memory.memoryHeaps[heap].flags & VK_MEMORY_HEAP_DEVICE_LOCAL_BIT) != 0) {
        info.memory_bytes += memory.memoryHeaps[heap].size;
      }
    }
    devices.push_back(info);
  }
  if (devices.empty()) {
    reason = "the installed Vulkan drivers found no device";
  }
  return devices;
}

}  // namespace ptn::vk
