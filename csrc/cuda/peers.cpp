#include "cuda/peers.h"

#include <cstdio>
#include <map>
#include <mutex>
#include <optional>
#include <set>

#include "cuda/nvml.h"
#include "cuda/proofs.h"
#include "cuda/raii.h"
#include "cuda/trial.h"

namespace fastreduce {
namespace {

std::mutex peers_mutex;
struct Reach {
  bool direct = false;
  std::optional<bool> nvlink;  // as far as it was asked for
};
std::map<std::pair<int, int>, Reach> known;
std::set<int> hanging;                  // devices
std::set<std::pair<int, int>> enabled;  // pairs, by this file, perhaps in a trial that failed
Proofs proofs;
void (*reached)(int device, int other) = nullptr;

Finding find_out(int device, int other) {
  if (const std::optional<std::string> before = proofs.find(device, other)) return {*before};
  const Finding found = try_pair(device, other);
  proofs.keep(device, other, found.problem);
  if (found.hangs) hanging.insert({device, other});
  return found;
}

// "" if `device` can use the memory of `other`, else why not.
std::string try_out(int device, int other) {
  int can = 0;
  cuda_check(cudaDeviceCanAccessPeer(&can, device, other), "cudaDeviceCanAccessPeer");
  if (!can) return "the driver offers no peer access";
  // Each such pair might take as long again, or wait for the device.
  if (hanging.contains(device) || hanging.contains(other)) return "a copy of one of them to another device hangs";
  const DeviceGuard guard(device);
  const cudaError_t status = cudaDeviceEnablePeerAccess(other, 0);
  if (status == cudaErrorPeerAccessAlreadyEnabled || status == cudaErrorTooManyPeers)
    cudaGetLastError();  // sticky: it would be blamed on the next launch
  else
    cuda_check(status, "cudaDeviceEnablePeerAccess");
  if (status == cudaErrorTooManyPeers) return "the device has as many peers as it can";
  if (status == cudaSuccess) enabled.insert({device, other});
  const Finding found = find_out(device, other);
  // While peer access is enabled, the copy engine would also use the broken path. A pair that hangs keeps it, because
  // taking it away waits for the device, or pulls the memory from under its work.
  if (!found.problem.empty() && !found.hangs && enabled.contains({device, other}))
    cuda_check(cudaDeviceDisablePeerAccess(other), "cudaDeviceDisablePeerAccess");
  return found.problem;
}

bool passes_atomics(int device, int other) {
  int value = 0;
  cuda_check(cudaDeviceGetP2PAttribute(&value, cudaDevP2PAttrNativeAtomicSupported, device, other),
             "cudaDeviceGetP2PAttribute");
  return value != 0;
}

bool is_known(int device, int other) {
  std::lock_guard lock(peers_mutex);
  return device == other || known.contains({device, other});
}

}  // namespace

bool can_reach(int device, int other) {
  if (device == other) return true;
  std::lock_guard lock(peers_mutex);
  if (const auto found = known.find({device, other}); found != known.end()) return found->second.direct;
  const RelaxedCapture relaxed;
  const std::string reason = try_out(device, other);
  if (!reason.empty())
    std::fprintf(stderr,
                 "fastreduce: warning: device %d cannot use the memory of device %d directly (%s); "
                 "their data goes through host memory, which is slower\n",
                 device, other, reason.c_str());
  const bool direct = reason.empty();
  if (direct && reached) reached(device, other);
  return known[{device, other}].direct = direct;
}

bool has_nvlink(int device, int other) {
  if (device == other) return true;
  if (!can_reach(device, other)) return false;
  std::lock_guard lock(peers_mutex);
  std::optional<bool>& nvlink = known[{device, other}].nvlink;
  if (!nvlink) nvlink = nvlink_between(device, other);
  if (!nvlink) nvlink = passes_atomics(device, other);
  return *nvlink;
}

bool any_captured(const std::vector<int>& devices, const std::vector<cudaStream_t>& streams) {
  for (size_t rank = 0; rank < devices.size(); ++rank)
    if (capture_of(devices[rank], streams[rank])) return true;
  return false;
}

void prove_peers(const std::vector<int>& devices, const std::vector<cudaStream_t>& streams) {
  const bool capturing = any_captured(devices, streams);
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
  std::lock_guard lock(peers_mutex);
  reached = hook;
}

void keep_proofs_in(const std::string& path) {
  std::lock_guard lock(peers_mutex);
  proofs = Proofs(path);
}

void forget_peers() {
  std::lock_guard lock(peers_mutex);
  known.clear();
  hanging.clear();
  enabled.clear();
}

}  // namespace fastreduce
