// The API's allocations, copies, memsets and launches.
#include "work.h"

using namespace virtual_cuda;

namespace virtual_cuda {
namespace {

// Before CUDA 13 more than 4 KB is not captured, and old drivers refuse it altogether.
constexpr size_t kParameterBytes = CUDART_VERSION >= 13000 ? 32764 : 4096, kDefaultSharedMemory = 48 * 1024;

uintptr_t address(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer); }

void allocate(Runtime& rt, const char* name, int device, void** pointer, size_t bytes) {
  require(pointer != nullptr, cudaErrorInvalidValue);
  rt.not_while_capturing(name);
  *pointer = nullptr;
  if (bytes == 0) return;
  *pointer = rt.memory.allocate(device, bytes);
  require(*pointer != nullptr, cudaErrorMemoryAllocation);
}

void release(Runtime& rt, const char* name, bool host, void* pointer) {
  rt.not_while_capturing(name);
  if (pointer == nullptr) return;
  Allocation* allocation = rt.memory.find(address(pointer));
  const bool whole = allocation != nullptr && allocation->begin == address(pointer) && !allocation->freed;
  if (!whole || (allocation->device == kHost) != host) {
    rt.report(std::string(name) +
              " of what is no allocation: " + rt.memory.describe(address(pointer), address(pointer)));
    throw Error{cudaErrorInvalidValue};
  }
  if (!rt.checker.check_free(*allocation)) rt.wait_all();
  if (!rt.memory.release(*allocation))
    rt.report("out of bounds: something wrote next to " + rt.memory.describe(allocation->begin, allocation->end));
}

bool pageable(const Runtime& rt, const void* pointer) { return rt.memory.device_of(address(pointer)) == kNobody; }

void copy(Runtime& rt, void* dst, const void* src, size_t bytes, CUstream_st& stream, bool blocks) {
  if (bytes == 0) return;
  require(dst != nullptr && src != nullptr, cudaErrorInvalidValue);
  if (!stream.capture && pageable(rt, src) && !pageable(rt, dst)) {
    // The host leaves a copy behind and does not wait for its arrival, not even in cudaMemcpy.
    if (blocks) rt.wait_queue(*stream.queue);
    rt.checker.host_access({address(src), address(src) + bytes, false}, "the host's copy");
    return rt.submit(stream, upload_work(dst, src, bytes, stream.device));
  }
  rt.submit(stream, copy_work(rt, dst, src, bytes, stream.device));
  if (!stream.capture && (blocks || pageable(rt, dst))) rt.wait_queue(*stream.queue);
}

}  // namespace

// Which side is a device must be what the caller says it is.
void check_kind(const Runtime& rt, const void* dst, const void* src, cudaMemcpyKind kind) {
  if (kind == cudaMemcpyDefault) return;
  const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
  const bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
  require(to_device == (rt.memory.device_of(address(dst)) >= 0), cudaErrorInvalidValue);
  require(from_device == (rt.memory.device_of(address(src)) >= 0), cudaErrorInvalidValue);
}

void check_launch(const Runtime& rt, const cudaLaunchConfig_t& config, const Launch& launch) {
  const dim3 grid = config.gridDim, block = config.blockDim;
  const bool dimensions = grid.x > 0 && grid.y > 0 && grid.y < 65536 && grid.z > 0 && grid.z < 65536 &&
                          block.x * block.y * block.z > 0 && block.x * block.y * block.z <= 1024;
  require(dimensions, cudaErrorInvalidConfiguration);
  require(launch.parameter_bytes <= kParameterBytes, cudaErrorInvalidValue);
  const auto allowed = rt.dynamic_smem_bytes.find(launch.function);
  const size_t most = allowed == rt.dynamic_smem_bytes.end() ? kDefaultSharedMemory : allowed->second;
  require(config.dynamicSmemBytes <= most, cudaErrorInvalidValue);
}

cudaError_t launch(const char* name, const cudaLaunchConfig_t& config, Launch launch) {
  return call(name, [&](Runtime& rt) {
    CUstream_st& stream = rt.stream(config.stream);
    require(stream.device == host_thread().device, cudaErrorInvalidResourceHandle);
    check_launch(rt, config, launch);
    rt.submit(stream, kernel_work(rt, config, std::move(launch), stream.device));
  });
}

}  // namespace virtual_cuda

cudaError_t cudaMalloc(void** pointer, size_t bytes) {
  return call("cudaMalloc", [&](Runtime& rt) { allocate(rt, "cudaMalloc", host_thread().device, pointer, bytes); });
}

cudaError_t cudaFree(void* pointer) {
  auto body = [&](Runtime& rt) { release(rt, "cudaFree", false, pointer); };
  return call("cudaFree", body, body);
}

cudaError_t cudaHostAlloc(void** pointer, size_t bytes, unsigned) {
  return call("cudaHostAlloc", [&](Runtime& rt) { allocate(rt, "cudaHostAlloc", kHost, pointer, bytes); });
}

cudaError_t cudaMallocHost(void** pointer, size_t bytes) {
  return call("cudaMallocHost", [&](Runtime& rt) { allocate(rt, "cudaMallocHost", kHost, pointer, bytes); });
}

cudaError_t cudaFreeHost(void* pointer) {
  auto body = [&](Runtime& rt) { release(rt, "cudaFreeHost", true, pointer); };
  return call("cudaFreeHost", body, body);
}

// It stays the process's ordinary memory. CUDA does not say whether a capture forbids it, as cudaMallocHost: here it is
// forbidden.
cudaError_t cudaHostRegister(void* pointer, size_t bytes, unsigned flags) {
  return call("cudaHostRegister", [&](Runtime& rt) {
    rt.not_while_capturing("cudaHostRegister");
    require(pointer && bytes > 0 && flags == cudaHostRegisterPortable, cudaErrorInvalidValue);
  });
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer) {
  return call("cudaPointerGetAttributes", [&](Runtime& rt) {
    void* address_itself = const_cast<void*>(pointer);
    const Allocation* allocation = rt.memory.find(address(pointer));
    if (allocation == nullptr || allocation->freed)
      *attributes = {cudaMemoryTypeUnregistered, cudaInvalidDeviceId, nullptr, address_itself};
    else if (allocation->device == kHost)
      *attributes = {cudaMemoryTypeHost, 0, address_itself, address_itself};
    else
      *attributes = {cudaMemoryTypeDevice, allocation->device, address_itself, nullptr};
  });
}

// CUDA does not say whether a capture forbids these three, as cudaMalloc and cudaFree: here they are forbidden.
cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* pointer) {
  return call("cudaIpcGetMemHandle", [&](Runtime& rt) {
    rt.not_while_capturing("cudaIpcGetMemHandle");
    const Allocation* allocation = rt.memory.find(address(pointer));
    require(allocation && !allocation->freed && !allocation->foreign && allocation->device != kHost &&
                allocation->begin == address(pointer),
            cudaErrorInvalidValue);
    *handle = {};
    std::memcpy(handle->reserved, &pointer, sizeof(pointer));
  });
}

cudaError_t cudaIpcOpenMemHandle(void** pointer, cudaIpcMemHandle_t handle, unsigned flags) {
  return call("cudaIpcOpenMemHandle", [&](Runtime& rt) {
    rt.not_while_capturing("cudaIpcOpenMemHandle");
    require(flags == cudaIpcMemLazyEnablePeerAccess, cudaErrorInvalidValue);
    std::memcpy(pointer, handle.reserved, sizeof(*pointer));
    const Allocation* allocation = rt.memory.find(address(*pointer));
    require(allocation && !allocation->freed, cudaErrorInvalidValue);
    const int device = host_thread().device, peer = allocation->device;
    require(device == peer || can_access(rt, device, peer), cudaErrorPeerAccessUnsupported);
    if (device != peer) rt.checker.enabled_peers.insert({device, peer});
  });
}

cudaError_t cudaIpcCloseMemHandle(void* pointer) {
  return call("cudaIpcCloseMemHandle", [&](Runtime& rt) {
    rt.not_while_capturing("cudaIpcCloseMemHandle");
    require(rt.memory.find(address(pointer)) != nullptr, cudaErrorInvalidValue);
  });
}

// A pool's handle is its device's number and one.
cudaError_t cudaMemPoolSetAccess(cudaMemPool_t pool, const cudaMemAccessDesc* descriptions, size_t count) {
  return call("cudaMemPoolSetAccess", [&](Runtime& rt) {
    require(rt.config.pools_open, cudaErrorNotSupported);
    const int device = rt.valid_device(static_cast<int>(reinterpret_cast<uintptr_t>(pool)) - 1);
    for (size_t i = 0; i < count; ++i) {
      const auto& [location, flags] = descriptions[i];
      require(location.type == cudaMemLocationTypeDevice, cudaErrorInvalidValue);
      require(flags == cudaMemAccessFlagsProtReadWrite, cudaErrorInvalidValue);
      rt.memory.pool_access.insert({device, rt.valid_device(location.id)});
    }
  });
}

// Between devices the host does not wait, as in CUDA.
cudaError_t cudaMemcpy(void* dst, const void* src, size_t bytes, cudaMemcpyKind kind) {
  return call("cudaMemcpy", [&](Runtime& rt) {
    rt.not_while_capturing("cudaMemcpy");
    check_kind(rt, dst, src, kind);
    const bool on_devices = rt.memory.device_of(address(dst)) >= 0 && rt.memory.device_of(address(src)) >= 0;
    copy(rt, dst, src, bytes, rt.stream(nullptr), !on_devices);
  });
}

cudaError_t cudaMemcpyAsync(void* dst, const void* src, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  return call("cudaMemcpyAsync", [&](Runtime& rt) {
    check_kind(rt, dst, src, kind);
    copy(rt, dst, src, bytes, rt.stream(stream), false);
  });
}

cudaError_t cudaMemcpyPeerAsync(void* dst, int dst_device, const void* src, int src_device, size_t bytes,
                                cudaStream_t stream) {
  return call("cudaMemcpyPeerAsync", [&](Runtime& rt) {
    require(rt.memory.device_of(address(dst)) == rt.valid_device(dst_device), cudaErrorInvalidValue);
    require(rt.memory.device_of(address(src)) == rt.valid_device(src_device), cudaErrorInvalidValue);
    rt.not_captured(rt.stream(stream), "cudaMemcpyPeerAsync");
    copy(rt, dst, src, bytes, rt.stream(stream), false);
  });
}

cudaError_t cudaMemsetAsync(void* dst, int value, size_t bytes, cudaStream_t stream) {
  return call("cudaMemsetAsync", [&](Runtime& rt) {
    CUstream_st& target = rt.stream(stream);
    require(target.device == host_thread().device, cudaErrorInvalidResourceHandle);
    require(rt.memory.device_of(address(dst)) != kNobody, cudaErrorInvalidValue);
    if (bytes > 0) rt.submit(target, memset_work(dst, value, bytes, target.device));
  });
}
