#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace fastreduce {

// Not measured. So many bytes cover many pages of 4 KiB and all threads of several blocks; making a context takes far
// longer than copying them.
constexpr int64_t kTrialBytes = 64 * 1024;

// Each value depends on its address, so that a transfer to the wrong place shows, and on `salt`.
std::vector<std::byte> pattern(unsigned salt);

// Enqueues a copy by a kernel on a stream of the device.
void copy_by_kernel(int device, cudaStream_t stream, void* dst, void* src, int64_t bytes);

// Owns what a trial works on. If it is destroyed before `done`, it never frees that: freeing memory waits for the
// device, which may hang, and the trial's late writes would hit whatever uses the memory next.
template <class Trial>
class KeptUnlessDone {
 public:
  template <class... Args>
  explicit KeptUnlessDone(Args... args) : trial_(std::make_unique<Trial>(args...)) {}
  KeptUnlessDone(const KeptUnlessDone&) = delete;
  KeptUnlessDone& operator=(const KeptUnlessDone&) = delete;
  ~KeptUnlessDone() {
    static auto* const kept = new std::vector<std::unique_ptr<Trial>>;
    static std::mutex mutex;
    const std::lock_guard lock(mutex);
    if (trial_) kept->push_back(std::move(trial_));
  }

  Trial* operator->() const { return trial_.get(); }
  void done() { trial_.reset(); }

 private:
  std::unique_ptr<Trial> trial_;
};

struct Finding {
  std::string problem;  // "" if there is none
  bool hangs = false;   // the devices may still be at work on it
};

// Whether kernel reads, kernel writes and the copy engine all move data between the two correctly, and come to an end.
Finding try_pair(int device, int other);

// The clock that says when a trial has lasted too long, in seconds (the tests have one of their own).
void tell_time_by(double (*now_s)());

}  // namespace fastreduce
