#include "cuda/peers.h"

#include <cstdio>
#include <map>
#include <mutex>
#include <optional>
#include <set>

#include "cuda/lanes.h"
#include "cuda/launch.h"
#include "cuda/proofs.h"

namespace fastreduce {
namespace {

// Not measured: many pages of 4 KiB and every thread of several blocks, and still nothing beside making a context.
constexpr int64_t kProofBytes = 64 * 1024;

// Each value depends on its address, so that a transfer to the wrong place shows.
std::vector<unsigned char> pattern(unsigned salt) {
  std::vector<unsigned char> bytes(kProofBytes);
  for (size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<unsigned char>((i * 2654435761u + salt * 40503u) >> 11);
  return bytes;
}

// cudaMemcpy may return when it has read the host's bytes but they have not arrived yet, so this synchronizes.
void fill(int device, const DeviceMemory& memory, const std::vector<unsigned char>& bytes) {
  const DeviceGuard guard(device);
  cuda_check(cudaMemcpy(memory.get(), bytes.data(), bytes.size(), cudaMemcpyHostToDevice), "cudaMemcpy");
  cuda_check(cudaStreamSynchronize(nullptr), "cudaStreamSynchronize");
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
  Line line(device, stream);
  Launcher launcher(DType::u8, Op::sum, 1, line);
  launcher.add(instructions, 1, pointers, 2, kProofBytes);
  launcher.flush();
  cuda_check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
}

void copy_by_engine(cudaStream_t stream, const DeviceMemory& dst, const DeviceMemory& src) {
  cuda_check(cudaMemcpyAsync(dst.get(), src.get(), kProofBytes, cudaMemcpyDeviceToDevice, stream),
             "cudaMemcpyAsync between devices");
  cuda_check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
}

// "" if kernel reads, kernel writes and the copy engine all move the data correctly, else what went wrong.
std::string failure(int device, int other) {
  const DeviceMemory here = allocate_device(device, kProofBytes), there = allocate_device(other, kProofBytes);
  const DeviceGuard guard(device);
  const Stream stream = make_stream();
  fill(device, here, pattern(1));
  fill(other, there, pattern(2));
  copy_by_kernel(device, stream.get(), here, there);
  if (!holds(here, pattern(2))) return "a kernel reads wrong data";
  fill(device, here, pattern(3));
  copy_by_kernel(device, stream.get(), there, here);
  if (!holds(there, pattern(3))) return "a kernel's writes do not arrive";
  fill(device, here, pattern(4));
  copy_by_engine(stream.get(), there, here);
  if (!holds(there, pattern(4))) return "the copy engine's writes do not arrive";
  fill(other, there, pattern(5));
  copy_by_engine(stream.get(), here, there);
  if (!holds(here, pattern(5))) return "the copy engine reads wrong data";
  return "";
}

// "" if `device` can use the memory of `other`, else why not.
std::string try_out(int device, int other, const Proofs& proofs) {
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
  const std::optional<std::string> before = proofs.find(device, other);
  const std::string problem = before ? *before : failure(device, other);
  if (!before) proofs.keep(device, other, problem);
  // While peer access is enabled, the copy engine would also use the broken path.
  if (!problem.empty() && status == cudaSuccess)
    cuda_check(cudaDeviceDisablePeerAccess(other), "cudaDeviceDisablePeerAccess");
  return problem;
}

std::mutex mutex;
struct Reach {
  bool direct = false;
  bool nvlink = false;
};
std::map<std::pair<int, int>, Reach> known;
Proofs proofs;
void (*reached)(int device, int other) = nullptr;

bool passes_atomics(int device, int other) {
  int value = 0;
  cuda_check(cudaDeviceGetP2PAttribute(&value, cudaDevP2PAttrNativeAtomicSupported, device, other),
             "cudaDeviceGetP2PAttribute");
  return value != 0;
}

bool is_known(int device, int other) {
  std::lock_guard lock(mutex);
  return device == other || known.contains({device, other});
}

Reach reach(int device, int other) {
  if (device == other) return {true, true};
  std::lock_guard lock(mutex);
  if (const auto found = known.find({device, other}); found != known.end()) return found->second;
  const RelaxedCapture relaxed;
  const std::string reason = try_out(device, other, proofs);
  if (!reason.empty())
    std::fprintf(stderr,
                 "fastreduce: warning: device %d cannot use the memory of device %d directly (%s); "
                 "their data goes through host memory, which is slower\n",
                 device, other, reason.c_str());
  const bool direct = reason.empty();
  if (direct && reached) reached(device, other);
  return known[{device, other}] = {direct, direct && passes_atomics(device, other)};
}

}  // namespace

bool can_reach(int device, int other) { return reach(device, other).direct; }

bool has_nvlink(int device, int other) { return reach(device, other).nvlink; }

void prove_peers(const std::vector<int>& devices, const std::vector<cudaStream_t>& streams) {
  bool capturing = false;
  for (cudaStream_t stream : std::set(streams.begin(), streams.end())) capturing = capturing || capture_of(stream);
  const std::set<int> each(devices.begin(), devices.end());
  for (int device : each)
    for (int other : each) {
      if (capturing && !is_known(device, other))
        throw std::runtime_error("fastreduce: whether device " + std::to_string(device) +
                                 " can use the memory of device " + std::to_string(other) +
                                 " cannot be found out while a stream is captured; make the call once before it");
      can_reach(device, other);
    }
}

void when_reached(void (*hook)(int device, int other)) {
  std::lock_guard lock(mutex);
  reached = hook;
}

void keep_proofs_in(const std::string& path) {
  std::lock_guard lock(mutex);
  proofs = Proofs(path);
}

void forget_peers() {
  std::lock_guard lock(mutex);
  known.clear();
}

}  // namespace fastreduce
