#include "peers.h"

#include <cstdio>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "lanes.h"
#include "launch.h"

namespace fastreduce {
namespace {

constexpr int64_t kProofBytes = 64 * 1024;

// A value that tells its address, so that a transfer to the wrong place shows.
std::vector<unsigned char> pattern(unsigned salt) {
  std::vector<unsigned char> bytes(kProofBytes);
  for (size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<unsigned char>((i * 2654435761u + salt * 40503u) >> 11);
  return bytes;
}

void fill(const DeviceMemory& memory, const std::vector<unsigned char>& bytes) {
  cuda_check(cudaMemcpy(memory.get(), bytes.data(), bytes.size(), cudaMemcpyHostToDevice), "cudaMemcpy");
}

bool holds(const DeviceMemory& memory, const std::vector<unsigned char>& bytes) {
  std::vector<unsigned char> found(bytes.size());
  cuda_check(cudaMemcpy(found.data(), memory.get(), found.size(), cudaMemcpyDeviceToHost), "cudaMemcpy");
  return found == bytes;
}

void copy_by_kernel(int device, cudaStream_t stream, const DeviceMemory& dst, const DeviceMemory& src) {
  const Instruction instruction{0, 0, {0}, {1}, false};
  const std::vector<const Instruction*> instructions{&instruction};
  std::byte* const pointers[] = {static_cast<std::byte*>(src.get()), static_cast<std::byte*>(dst.get())};
  Launcher launcher(DType::u8, Op::sum, 1, device, stream);
  launcher.add(instructions, 1, pointers, 2, kProofBytes);
  launcher.flush();
  cuda_check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
}

// "" where kernel reads, kernel writes and the copy engine all carry the data, else what did not.
std::string failure(int device, int other) {
  const DeviceMemory here = allocate_device(device, kProofBytes),
                     there = allocate_device(other, kProofBytes);
  const DeviceGuard guard(device);
  const Stream stream = make_stream();
  fill(here, pattern(1));
  fill(there, pattern(2));
  copy_by_kernel(device, stream.get(), here, there);
  if (!holds(here, pattern(2))) return "a kernel reads wrong data";
  fill(here, pattern(3));
  copy_by_kernel(device, stream.get(), there, here);
  if (!holds(there, pattern(3))) return "a kernel's writes do not arrive";
  fill(here, pattern(4));
  cuda_check(cudaMemcpyPeerAsync(there.get(), other, here.get(), device, kProofBytes, stream.get()),
             "cudaMemcpyPeerAsync");
  cuda_check(cudaStreamSynchronize(stream.get()), "cudaStreamSynchronize");
  if (!holds(there, pattern(4))) return "the copy engine's writes do not arrive";
  return "";
}

std::string why_not(int device, int other) {
  int can = 0;
  cuda_check(cudaDeviceCanAccessPeer(&can, device, other), "cudaDeviceCanAccessPeer");
  if (!can) return "the driver offers no peer access";
  const DeviceGuard guard(device);
  const cudaError_t status = cudaDeviceEnablePeerAccess(other, 0);
  if (status == cudaErrorPeerAccessAlreadyEnabled || status == cudaErrorTooManyPeers)
    cudaGetLastError();  // sticky: it would be blamed on the next launch
  else
    cuda_check(status, "cudaDeviceEnablePeerAccess");
  if (status == cudaErrorTooManyPeers) return "the device has as many peers as it can";
  const std::string problem = failure(device, other);
  // The copy engine would use the broken path too as long as it is enabled.
  if (!problem.empty() && status == cudaSuccess)
    cuda_check(cudaDeviceDisablePeerAccess(other), "cudaDeviceDisablePeerAccess");
  return problem;
}

std::mutex mutex;
std::map<std::pair<int, int>, bool> known;

}  // namespace

bool can_reach(int device, int other) {
  if (device == other) return true;
  std::lock_guard lock(mutex);
  const auto [entry, is_new] = known.try_emplace({device, other}, false);
  if (is_new) {
    std::string reason;
    try {
      reason = why_not(device, other);
    } catch (...) {
      known.erase(entry);
      throw;
    }
    entry->second = reason.empty();
    if (!reason.empty())
      std::fprintf(stderr,
                   "fastreduce: warning: device %d cannot use the memory of device %d directly (%s); "
                   "their data goes through host memory, which is slower\n",
                   device, other, reason.c_str());
  }
  return entry->second;
}

void forget_peers() {
  std::lock_guard lock(mutex);
  known.clear();
}

}  // namespace fastreduce
