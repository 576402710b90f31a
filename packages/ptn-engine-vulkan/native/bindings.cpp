// The only file that knows Python.
#include <pybind11/pybind11.h>

#include <string>
#include <vector>

#include "vk/devices.h"

namespace py = pybind11;

namespace {

py::tuple list_devices() {
  std::string reason;
  std::vector<ptn::vk::DeviceInfo> found;
  {
    const py::gil_scoped_release release;
    found = ptn::vk::list_devices(reason);
  }
  py::list devices;
  for (const auto& info : found) {
    py::dict device;
    device["name"] = info.name;
    device["type"] = info.type;
    device["api_version"] = info.api_version;
    device["memory_bytes"] = info.memory_bytes;
    devices.append(device);
  }
  return py::make_tuple(devices, reason);
}

}  // namespace

PYBIND11_MODULE(_native, module) {
  module.attr("__version__") = PTN_VERSION;
  module.def("list_devices", &list_devices);
}
