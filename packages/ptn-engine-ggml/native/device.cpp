#include "device.h"

#include <ggml-cpu.h>
#include <ggml.h>

#ifndef _WIN32
#include <pthread.h>
#endif

#include <cstdio>
#include <stdexcept>
#include <utility>

namespace ptn {
namespace {

thread_local int guards = 0;

int forks = 0;  // counted in the child

void on_abort(const char* message) {
  if (guards > 0) throw std::runtime_error(message);
}

void on_log(ggml_log_level level, const char* text, void*) {
  if (level == GGML_LOG_LEVEL_ERROR) std::fputs(text, stderr);
}

const char* kind_name(enum ggml_backend_dev_type type) {
  switch (type) {
    case GGML_BACKEND_DEVICE_TYPE_CPU:
      return "cpu";
    case GGML_BACKEND_DEVICE_TYPE_GPU:
      return "gpu";
    case GGML_BACKEND_DEVICE_TYPE_IGPU:
      return "igpu";
    default:
      return "accelerator";
  }
}

// A function that ggml's CPU library offers by name. Looked up, not linked, so that the library may be one of several
// variants that ggml chooses at run time.
template <typename Function>
Function cpu_function(ggml_backend_dev_t device, const char* name) {
  void* address = ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(device), name);
  if (address == nullptr) throw std::runtime_error(std::string("ggml's CPU library lacks ") + name);
  return reinterpret_cast<Function>(address);
}

}  // namespace

std::vector<DeviceInfo> list_devices() {
  std::vector<DeviceInfo> devices;
  for (std::size_t i = 0; i < ggml_backend_dev_count(); ++i) {
    ggml_backend_dev_t device = ggml_backend_dev_get(i);
    std::size_t free = 0, total = 0;
    ggml_backend_dev_memory(device, &free, &total);
    devices.push_back({ggml_backend_dev_name(device), kind_name(ggml_backend_dev_type(device)),
                       ggml_backend_dev_description(device), total});
  }
  return devices;
}

AbortGuard::AbortGuard() { ++guards; }
AbortGuard::~AbortGuard() { --guards; }

AbortPause::AbortPause(bool active) {
  if (active) std::swap(suspended_, guards);
}
AbortPause::~AbortPause() { guards += suspended_; }

void init_ggml() {
  ggml_set_abort_callback(on_abort);
  ggml_log_set(on_log, nullptr);
#ifndef _WIN32
  pthread_atfork(nullptr, nullptr, [] { ++forks; });
#endif
}

Stream::Stream(const std::string& device_name, int threads) : threads_(threads), forks_(forks) {
  device_ = ggml_backend_dev_by_name(device_name.c_str());
  if (device_ == nullptr) throw std::runtime_error("ggml has no device '" + device_name + "'");
  is_cpu_ = ggml_backend_dev_type(device_) == GGML_BACKEND_DEVICE_TYPE_CPU;
  try {
    if (is_cpu_) {
      add_cpu_backends();
    } else {
      one_ = ggml_backend_dev_init(device_, nullptr);
      if (one_ == nullptr) throw std::runtime_error("ggml's device '" + device_name + "' does not come up");
    }
  } catch (...) {
    release();
    throw;
  }
}

Stream::~Stream() { release(); }

void Stream::ensure_usable() {
  if (forks_ == forks) return;
  if (!is_cpu_) {
    throw std::runtime_error(std::string("ggml's device '") + ggml_backend_dev_name(device_) +
                             "' cannot be used in a forked process; load the model after the fork");
  }
  abandon();
  add_cpu_backends();
}

void Stream::abandon() {
  one_ = many_ = nullptr;
  pools_.clear();
  forks_ = forks;
}

void Stream::release() {
  if (forks_ != forks) return abandon();
  if (one_ != nullptr) ggml_backend_free(one_);
  if (many_ != nullptr) ggml_backend_free(many_);
  for (ggml_threadpool_t pool : pools_) {
    cpu_function<decltype(&ggml_threadpool_free)>(device_, "ggml_threadpool_free")(pool);
  }
  one_ = many_ = nullptr;
  pools_.clear();
}

void Stream::add_cpu_backends() {
  one_ = add_cpu_backend(1);
  if (threads_ > 1) many_ = add_cpu_backend(threads_);
}

ggml_backend_t Stream::add_cpu_backend(int threads) {
  ggml_backend_t backend = ggml_backend_dev_init(device_, nullptr);
  if (backend == nullptr) throw std::runtime_error("ggml's CPU device does not come up");
  ggml_threadpool_params params = ggml_threadpool_params_default(threads);
  // Waiting threads sleep soon: the processors belong to the host program, not to us.
  params.poll = threads > 1 ? 1 : 0;
  ggml_threadpool_t pool = cpu_function<decltype(&ggml_threadpool_new)>(device_, "ggml_threadpool_new")(&params);
  if (pool == nullptr) {
    ggml_backend_free(backend);
    throw std::runtime_error("ggml's thread pool of " + std::to_string(threads) + " threads does not come up");
  }
  pools_.push_back(pool);
  cpu_function<ggml_backend_set_n_threads_t>(device_, "ggml_backend_set_n_threads")(backend, threads);
  cpu_function<decltype(&ggml_backend_cpu_set_threadpool)>(device_, "ggml_backend_cpu_set_threadpool")(backend, pool);
  return backend;
}

void Stream::set_abort_flag(bool (*callback)(void*), void* data) {
  if (!is_cpu_) return;
  auto set = cpu_function<ggml_backend_set_abort_callback_t>(device_, "ggml_backend_set_abort_callback");
  set(one_, callback, data);
  if (many_ != nullptr) set(many_, callback, data);
}

}  // namespace ptn
