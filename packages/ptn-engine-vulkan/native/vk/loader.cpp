#include "vk/loader.h"

#include <mutex>

#if defined(_WIN32)
#include <windows.h>
#else
#include <dlfcn.h>
#endif

namespace ptn::vk {
namespace {

struct Library {
  PFN_vkGetInstanceProcAddr entry = nullptr;
  std::string error;
};

#if defined(_WIN32)
Library open_library() {
  Library library;
  HMODULE handle = LoadLibraryA("vulkan-1.dll");
  if (handle == nullptr) {
    library.error = "vulkan-1.dll was not found; install your GPU's driver";
    return library;
  }
  library.entry = reinterpret_cast<PFN_vkGetInstanceProcAddr>(GetProcAddress(handle, "vkGetInstanceProcAddr"));
  return library;
}
#else
Library open_library() {
  Library library;
#if defined(__APPLE__)
  const char* names[] = {"libvulkan.dylib", "libvulkan.1.dylib", "libMoltenVK.dylib"};
#else
  const char* names[] = {"libvulkan.so.1", "libvulkan.so"};
#endif
  void* handle = nullptr;
  for (const char* name : names) {
    handle = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (handle != nullptr) {
      break;
    }
  }
  if (handle == nullptr) {
    library.error =
        std::string(names[0]) + " was not found; install the Vulkan loader (Debian: libvulkan1) and your GPU's driver";
    return library;
  }
  library.entry = reinterpret_cast<PFN_vkGetInstanceProcAddr>(dlsym(handle, "vkGetInstanceProcAddr"));
  return library;
}
#endif

}  // namespace

PFN_vkGetInstanceProcAddr load_vulkan(std::string& error) {
  static const Library library = [] {
    Library opened = open_library();
    if (opened.entry == nullptr && opened.error.empty()) {
      opened.error = "the Vulkan library has no vkGetInstanceProcAddr";
    }
    return opened;
  }();
  error = library.error;
  return library.entry;
}

}  // namespace ptn::vk
