#include "cuda/trial.h"

#include <chrono>
#include <cstring>
#include <limits>
#include <thread>

#include "cuda/lanes.h"
#include "cuda/launch.h"

namespace fastreduce {
namespace {

// Each step takes microseconds, once the GPUs are free. A driver that is busy elsewhere may take long, but not seconds.
constexpr double kDeadline_s = 2;

double seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }
double (*clock_s)() = seconds;

struct Hangs {};

// The host waits only by asking, so that it can give up. For that the host's side is pinned: copies of other memory
// make the host wait inside CUDA.
class Trial {
 public:
  Trial(int device, int other) : here_(device), there_(other), host_(allocate_host(kTrialBytes)) {}

  std::string problem() {
    wait_for_both();
    fill(here_, 1);
    fill(there_, 2);
    copy_by_kernel(here_, here_.memory.get(), there_.memory.get(), kTrialBytes);
    if (!holds(here_, 2)) return "a kernel reads wrong data";
    fill(here_, 3);
    copy_by_kernel(here_, there_.memory.get(), here_.memory.get(), kTrialBytes);
    if (!holds(there_, 3)) return "a kernel's writes do not arrive";
    fill(here_, 4);
    copy_by_engine(there_, here_);
    if (!holds(there_, 4)) return "the copy engine's writes do not arrive";
    fill(there_, 5);
    copy_by_engine(here_, there_);
    if (!holds(here_, 5)) return "the copy engine reads wrong data";
    return "";
  }

 private:
  struct Side {
    explicit Side(int device) : device(device), memory(allocate_device(device, kTrialBytes)) {
      const DeviceGuard guard(device);
      stream = make_stream();
    }
    int device;
    DeviceMemory memory;
    Stream stream;
  };

  // What keeps a GPU busy may take as long as it will, as for every other call: it tells nothing of the pair.
  void wait_for_both() {
    for (const Side* side : {&here_, &there_}) {
      fill(*side, 0);
      auto* const half = static_cast<std::byte*>(side->memory.get()) + kTrialBytes / 2;
      copy_by_kernel(*side, half, side->memory.get(), kTrialBytes / 2);
    }
    patience_s_ = kDeadline_s;
  }

  void finish(const Side& side) const {
    const double end_s = clock_s() + patience_s_;
    while (!is_done(side.stream.get())) {
      if (clock_s() > end_s) throw Hangs();
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  }

  void copy(const Side& side, void* dst, const void* src, cudaMemcpyKind kind) const {
    const DeviceGuard guard(side.device);
    cuda_check(cudaMemcpyAsync(dst, src, kTrialBytes, kind, side.stream.get()), "cudaMemcpyAsync");
    finish(side);
  }

  void fill(const Side& side, unsigned salt) const {
    std::memcpy(host_.get(), pattern(salt).data(), kTrialBytes);
    copy(side, side.memory.get(), host_.get(), cudaMemcpyHostToDevice);
  }

  bool holds(const Side& side, unsigned salt) const {
    copy(side, host_.get(), side.memory.get(), cudaMemcpyDeviceToHost);
    return std::memcmp(host_.get(), pattern(salt).data(), kTrialBytes) == 0;
  }

  void copy_by_kernel(const Side& side, void* dst, void* src, int64_t bytes) const {
    fastreduce::copy_by_kernel(side.device, side.stream.get(), dst, src, bytes);
    finish(side);
  }

  void copy_by_engine(const Side& dst, const Side& src) const {
    copy(here_, dst.memory.get(), src.memory.get(), cudaMemcpyDeviceToDevice);
  }

  Side here_, there_;
  HostMemory host_;
  double patience_s_ = std::numeric_limits<double>::infinity();
};

}  // namespace

std::vector<std::byte> pattern(unsigned salt) {
  std::vector<std::byte> bytes(kTrialBytes);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>((i * 2654435761u + salt * 40503u) >> 11);
  return bytes;
}

void copy_by_kernel(int device, cudaStream_t stream, void* dst, void* src, int64_t bytes) {
  const Instruction instruction{0, 0, {0}, {1}, false};
  const std::vector<const Instruction*> instructions{&instruction};
  std::byte* const pointers[] = {static_cast<std::byte*>(src), static_cast<std::byte*>(dst)};
  Line line(device, stream);
  Launcher launcher(DType::u8, Op::sum, 1, line);
  launcher.add(instructions, 1, pointers, bytes);
  launcher.flush();
}

Finding try_pair(int device, int other) {
  KeptUnlessDone<Trial> trial(device, other);
  try {
    const std::string problem = trial->problem();
    trial.done();
    return {problem};
  } catch (const Hangs&) {
    return {"a copy between them did not end within 2 s", true};
  }
}

void tell_time_by(double (*now_s)()) { clock_s = now_s; }

}  // namespace fastreduce
