#include <cstdio>
#include <cstring>

#include "runtime.h"

namespace virtual_cuda {
namespace {

constexpr int kSharedMemory = 48 * 1024, kSharedMemoryOptin = 227 * 1024;
constexpr int kThreadsPerBlock = 1024, kThreadsPerMultiprocessor = 2048;
constexpr int kMajor = 9, kMinor = 0, kL2CacheBytes = 1 << 20;

int attribute(const Runtime& rt, cudaDeviceAttr attribute) {
  switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock: return kThreadsPerBlock;
    case cudaDevAttrMaxSharedMemoryPerBlock: return kSharedMemory;
    case cudaDevAttrMultiProcessorCount: return rt.config.multiprocessors;
    case cudaDevAttrL2CacheSize: return kL2CacheBytes;
    case cudaDevAttrMaxThreadsPerMultiProcessor: return kThreadsPerMultiprocessor;
    case cudaDevAttrUnifiedAddressing: return 1;
    case cudaDevAttrComputeCapabilityMajor: return kMajor;
    case cudaDevAttrComputeCapabilityMinor: return kMinor;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: return kSharedMemoryOptin + 1024;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: return kSharedMemoryOptin;
  }
  throw Error{cudaErrorInvalidValue};
}

bool can_access(const Runtime& rt, int device, int peer) {
  if (device == peer) return false;
  return rt.config.peers.empty() || rt.config.peers.at(device).at(peer);
}

int peers_of(const Runtime& rt, int device) {
  int count = 0;
  for (const auto& [from, to] : rt.checker.enabled_peers) count += from == device;
  return count;
}

}  // namespace

int Runtime::valid_device(int device) const {
  require(0 <= device && device < config.devices, cudaErrorInvalidDevice);
  return device;
}

}  // namespace virtual_cuda

using namespace virtual_cuda;

cudaError_t cudaDriverGetVersion(int* version) {
  return call("cudaDriverGetVersion", [&](Runtime& rt) { *version = rt.driver_version; });
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  return call("cudaRuntimeGetVersion", [&](Runtime&) { *version = CUDART_VERSION; });
}

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 0;
  return call("cudaGetDeviceCount", [&](Runtime& rt) { *count = rt.config.devices; });
}

cudaError_t cudaGetDevice(int* device) {
  return call("cudaGetDevice", [&](Runtime&) { *device = host_thread().device; });
}

cudaError_t cudaSetDevice(int device) {
  return call("cudaSetDevice", [&](Runtime& rt) { host_thread().device = rt.valid_device(device); });
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr name, int device) {
  return call("cudaDeviceGetAttribute", [&](Runtime& rt) {
    rt.valid_device(device);
    *value = attribute(rt, name);
  });
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  return call("cudaGetDeviceProperties", [&](Runtime& rt) {
    rt.valid_device(device);
    *properties = {};
    std::snprintf(properties->name, sizeof properties->name, "Virtual GPU");
    std::snprintf(properties->uuid.bytes, sizeof properties->uuid.bytes, "virtual-%d", device);
    properties->totalGlobalMem = rt.config.memory_bytes;
    properties->sharedMemPerBlock = kSharedMemory;
    properties->sharedMemPerBlockOptin = kSharedMemoryOptin;
    properties->major = kMajor;
    properties->minor = kMinor;
    properties->multiProcessorCount = rt.config.multiprocessors;
    properties->l2CacheSize = kL2CacheBytes;
    properties->pciBusID = 0x40 - device;
  });
}

// Not in the order of the devices' numbers, as under CUDA_VISIBLE_DEVICES.
cudaError_t cudaDeviceGetPCIBusId(char* id, int bytes, int device) {
  return call("cudaDeviceGetPCIBusId", [&](Runtime& rt) {
    const int gpu = rt.config.gpus.empty() ? rt.valid_device(device) : rt.config.gpus.at(device);
    std::snprintf(id, static_cast<size_t>(bytes), "0000:%02X:00.0", 0x40 - gpu);
  });
}

cudaError_t cudaDeviceSynchronize() {
  return call("cudaDeviceSynchronize", [](Runtime& rt) {
    const int device = host_thread().device;
    for (auto& [handle, stream] : rt.streams.all())
      if (stream->device == device) rt.not_captured(*stream, "cudaDeviceSynchronize");
    rt.not_while_capturing("cudaDeviceSynchronize");
    for (auto& queue : rt.queues)
      if (queue->device == device) rt.wait_queue(*queue);
    rt.forget_done();
  });
}

cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  return call("cudaDeviceCanAccessPeer",
              [&](Runtime& rt) { *can = can_access(rt, rt.valid_device(device), rt.valid_device(peer)); });
}

cudaError_t cudaDeviceGetP2PAttribute(int* value, cudaDeviceP2PAttr attribute, int device, int peer) {
  return call("cudaDeviceGetP2PAttribute", [&](Runtime& rt) {
    require(attribute == cudaDevP2PAttrNativeAtomicSupported, cudaErrorInvalidValue);
    require(rt.valid_device(device) != rt.valid_device(peer), cudaErrorInvalidDevice);
    *value = can_access(rt, device, peer);
  });
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags) {
  return call("cudaDeviceEnablePeerAccess", [&](Runtime& rt) {
    const int device = host_thread().device;
    require(rt.valid_device(peer) != device, cudaErrorInvalidDevice);
    require(flags == 0, cudaErrorInvalidValue);
    require(can_access(rt, device, peer), cudaErrorPeerAccessUnsupported);
    rt.not_while_capturing("cudaDeviceEnablePeerAccess");
    require(!rt.checker.enabled_peers.contains({device, peer}), cudaErrorPeerAccessAlreadyEnabled);
    require(peers_of(rt, device) < rt.config.max_peers, cudaErrorTooManyPeers);
    rt.checker.enabled_peers.insert({device, peer});
  });
}

cudaError_t cudaDeviceDisablePeerAccess(int peer) {
  return call("cudaDeviceDisablePeerAccess", [&](Runtime& rt) {
    const int device = host_thread().device;
    require(rt.valid_device(peer) != device, cudaErrorInvalidDevice);
    rt.not_while_capturing("cudaDeviceDisablePeerAccess");
    require(rt.checker.enabled_peers.erase({device, peer}) > 0, cudaErrorPeerAccessNotEnabled);
    for (const auto& queue : rt.queues)
      if (const Work* hung = queue->hung())
        for (const Access& access : hung->accesses)
          if (hung->device == device && rt.memory.device_of(access.begin) == peer)
            rt.report("peer access disabled under " + hung->name);
  });
}

namespace virtual_cuda {

cudaError_t set_function_attribute(const void* function, cudaFuncAttribute attribute, int value) {
  return call("cudaFuncSetAttribute", [&](Runtime& rt) {
    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return;
    require(0 <= value && value <= kSharedMemoryOptin, cudaErrorInvalidValue);
    rt.dynamic_smem_bytes[function] = value;
  });
}

cudaError_t occupancy(int* blocks, int block_size, size_t dynamic_smem_bytes) {
  return call("cudaOccupancyMaxActiveBlocksPerMultiprocessor", [&](Runtime&) {
    require(block_size > 0 && block_size <= kThreadsPerBlock, cudaErrorInvalidValue);
    *blocks = dynamic_smem_bytes > kSharedMemoryOptin ? 0 : kThreadsPerMultiprocessor / kThreadsPerBlock;
  });
}

}  // namespace virtual_cuda
