#include <cstdint>
#include <deque>
#include <map>
#include <string>

#include "cuda.h"
#include "runtime.h"

// A kernel as loaded on one device. Its handle means nothing to the others.
struct CUfunc_st {
  const void* symbol;
  int device;
};

namespace virtual_cuda {
namespace {

// `loads` is called if it is not loaded yet.
template <class Loads>
CUfunction function_of(const void* symbol, int device, const Loads& loads) {
  static auto* const functions = new std::deque<CUfunc_st>;  // a handle is good until the process ends
  for (CUfunc_st& function : *functions)
    if (function.symbol == symbol && function.device == device) return &function;
  loads();
  return &functions->emplace_back(CUfunc_st{symbol, device});
}

constexpr auto kNoContext = cudaErrorDeviceUninitialized;

CUresult get_current_context(CUcontext* context) {
  return static_cast<CUresult>(call("cuCtxGetCurrent", [&](Runtime&) {
    const HostThread& thread = host_thread();
    *context = thread.has_context ? reinterpret_cast<CUcontext>(static_cast<uintptr_t>(thread.device) + 1) : nullptr;
  }));
}

CUresult launch_kernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                       unsigned block_y, unsigned block_z, unsigned smem_bytes, CUstream stream, void** params,
                       void** extra) {
  if (!host_thread().has_context) return static_cast<CUresult>(kNoContext);
  if (function->device != host_thread().device) return static_cast<CUresult>(cudaErrorInvalidValue);
  const dim3 grid(grid_x, grid_y, grid_z), block(block_x, block_y, block_z);
  try {
    Launch described = virtual_cuda::described(function->symbol, params, extra);
    return static_cast<CUresult>(
        launch("cuLaunchKernel", {grid, block, smem_bytes, stream, nullptr, 0}, std::move(described)));
  } catch (const Error& error) {
    return static_cast<CUresult>(error.code);
  }
}

// Where a pointer lies, as one value of the type that CUDA gives it.
void describe(const Runtime& rt, const Allocation& allocation, CUpointer_attribute attribute, void* value) {
  const bool of_pool = allocation.foreign == Foreign::pool;
  const int user = host_thread().device;
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE: *static_cast<int*>(value) = !allocation.foreign; return;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: *static_cast<CUdeviceptr*>(value) = allocation.begin; return;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE: *static_cast<size_t*>(value) = allocation.end - allocation.begin; return;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
      *static_cast<uintptr_t*>(value) = of_pool ? static_cast<uintptr_t>(allocation.device) + 1 : 0;
      return;
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS: {
      const bool enabled = allocation.device == user || rt.checker.enabled_peers.contains({user, allocation.device});
      const bool open = allocation.foreign ? rt.memory.open_to(allocation, user) : enabled;
      *static_cast<unsigned*>(value) =
          open ? CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE : CU_POINTER_ATTRIBUTE_ACCESS_FLAG_NONE;
      return;
    }
  }
  throw Error{cudaErrorInvalidValue};
}

const Allocation& allocation_at(Runtime& rt, CUdeviceptr pointer) {
  require(host_thread().has_context, kNoContext);
  const Allocation* found = rt.memory.find(pointer);
  require(found != nullptr && !found->freed, cudaErrorInvalidValue);
  return *found;
}

CUresult get_pointer_attributes(unsigned count, CUpointer_attribute* attributes, void** values, CUdeviceptr pointer) {
  return static_cast<CUresult>(call("cuPointerGetAttributes", [&](Runtime& rt) {
    const Allocation& allocation = allocation_at(rt, pointer);
    for (unsigned i = 0; i < count; ++i) {
      require(attributes[i] != CU_POINTER_ATTRIBUTE_ACCESS_FLAGS, cudaErrorInvalidValue);  // alone only
      describe(rt, allocation, attributes[i], values[i]);
    }
  }));
}

CUresult get_pointer_attribute(void* value, CUpointer_attribute attribute, CUdeviceptr pointer) {
  return static_cast<CUresult>(
      call("cuPointerGetAttribute", [&](Runtime& rt) { describe(rt, allocation_at(rt, pointer), attribute, value); }));
}

const std::map<std::string, void*> kFunctions{
    {"cuCtxGetCurrent", reinterpret_cast<void*>(&get_current_context)},
    {"cuLaunchKernel", reinterpret_cast<void*>(&launch_kernel)},
    {"cuPointerGetAttribute", reinterpret_cast<void*>(&get_pointer_attribute)},
    {"cuPointerGetAttributes", reinterpret_cast<void*>(&get_pointer_attributes)},
};

}  // namespace

Launch described(const void* kernel, void** params, void** extra) {
  require((params == nullptr) != (extra == nullptr), cudaErrorInvalidValue);
  if (params) return bind_by_address(kernel, params[0], SIZE_MAX);
  require(extra[0] == CU_LAUNCH_PARAM_BUFFER_POINTER && extra[2] == CU_LAUNCH_PARAM_BUFFER_SIZE &&
              extra[4] == CU_LAUNCH_PARAM_END,
          cudaErrorInvalidValue);
  return bind_by_address(kernel, extra[1], *static_cast<const size_t*>(extra[3]));
}

}  // namespace virtual_cuda

cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* result) {
  return virtual_cuda::call("cudaGetDriverEntryPointByVersion", [&](virtual_cuda::Runtime&) {
    const auto found = virtual_cuda::kFunctions.find(symbol);
    const bool known = found != virtual_cuda::kFunctions.end();
    *function = known ? found->second : nullptr;
    *result = known ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  });
}

cudaError_t cudaGetFuncBySymbol(cudaFunction_t* function, const void* symbol) {
  std::vector<virtual_cuda::Node*> running;
  const cudaError_t code = virtual_cuda::call("cudaGetFuncBySymbol", [&](virtual_cuda::Runtime& rt) {
    const int device = virtual_cuda::host_thread().device;
    *function = virtual_cuda::function_of(symbol, device, [&] {
      for (const auto& queue : rt.queues)
        if (rt.config.loads_wait && queue->device == device) running.push_back(queue->last());
    });
  });
  for (virtual_cuda::Node* node : running) node->done.wait();  // other threads may go on
  return code;
}
