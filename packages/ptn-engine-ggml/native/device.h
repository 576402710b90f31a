// ggml's devices, and what one context needs to compute on one: a backend and its threads.
#pragma once

#include <ggml-backend.h>

#include <cstdint>
#include <string>
#include <vector>

namespace ptn {

struct DeviceInfo {
  std::string name;         // ggml's own, such as "CPU" or "CUDA0"
  std::string kind;         // cpu, gpu, igpu or accelerator
  std::string description;  // the hardware's name
  std::size_t memory = 0;   // bytes in total; 0 where not known
};

// Every device of ggml's registry, in its order.
std::vector<DeviceInfo> list_devices();

// Errors of ggml on the calling thread become exceptions (std::runtime_error) while one of these lives; elsewhere
// ggml's abort stays an abort, because it cannot be unwound from a thread of ggml's own.
class AbortGuard {
 public:
  AbortGuard();
  ~AbortGuard();
  AbortGuard(const AbortGuard&) = delete;
  AbortGuard& operator=(const AbortGuard&) = delete;
};

// Suspends the calling thread's guards, where `active`.
class AbortPause {
 public:
  explicit AbortPause(bool active);
  ~AbortPause();
  AbortPause(const AbortPause&) = delete;
  AbortPause& operator=(const AbortPause&) = delete;

 private:
  int suspended_ = 0;
};

// Installs the abort callback and silences ggml's log below errors. Called once when the module is loaded.
void init_ggml();

// One device as one context uses it. Not thread-safe; streams of one device run side by side.
//
// A CPU stream lives on in a forked process: there it brings up threads of its own, as those of the parent are gone.
class Stream {
 public:
  // `threads` matters for CPU devices only. Throws std::runtime_error where the device does not come up.
  Stream(const std::string& device_name, int threads);
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  bool is_cpu() const { return is_cpu_; }
  int threads() const { return threads_; }
  ggml_backend_dev_t device() const { return device_; }
  ggml_backend_buffer_type_t buffer_type() const { return ggml_backend_dev_buffer_type(device_); }
  // The backend for a graph of about `work` scalar operations: a small graph runs on the calling thread alone, since
  // waking others costs more than they save.
  ggml_backend_t backend(double work) const { return many_ != nullptr && work > kWorkForThreads ? many_ : one_; }
  // To call before a run. Throws std::runtime_error where the device cannot be used in a forked process.
  void ensure_usable();
  // Stops a running graph after the current node where `*flag` is not 0.
  void set_abort_flag(bool (*callback)(void*), void* data);

 private:
  static constexpr double kWorkForThreads = 2e5;

  void add_cpu_backends();
  ggml_backend_t add_cpu_backend(int threads);
  void release();
  // Forgets what belongs to the process that this one was forked from; freeing it would wait for threads that are gone.
  void abandon();

  ggml_backend_dev_t device_ = nullptr;
  bool is_cpu_ = false;
  int threads_ = 1;
  ggml_backend_t one_ = nullptr;
  ggml_backend_t many_ = nullptr;
  std::vector<ggml_threadpool_t> pools_;
  int forks_;  // how often this process had been forked when the members above were made
};

}  // namespace ptn
