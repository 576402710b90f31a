// Opens libvulkan at run time. Nothing links it, so the package imports on machines without Vulkan.
#pragma once

#include <vulkan/vulkan_core.h>

#include <string>

namespace ptn::vk {

// The library's entry point, or null with the reason in `error`. Opened once; stays open for the process.
PFN_vkGetInstanceProcAddr load_vulkan(std::string& error);

}  // namespace ptn::vk
