// The part of the CUDA driver API that fastreduce uses: launching a kernel with a buffer of arguments.
#pragma once

#include <cstring>
#include <memory>

#include "cuda_runtime.h"

using CUfunction = cudaFunction_t;
using CUstream = cudaStream_t;
enum CUresult { CUDA_SUCCESS = 0 };

#define CU_LAUNCH_PARAM_END ((void*)0x00)
#define CU_LAUNCH_PARAM_BUFFER_POINTER ((void*)0x01)
#define CU_LAUNCH_PARAM_BUFFER_SIZE ((void*)0x02)

enum cudaDriverEntryPointQueryResult { cudaDriverEntryPointSuccess, cudaDriverEntryPointSymbolNotFound };

cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned version,
                                             unsigned long long flags, cudaDriverEntryPointQueryResult* result);
cudaError_t cudaGetFuncBySymbol(cudaFunction_t* function, const void* symbol);

namespace virtual_cuda {

using FromBuffer = Launch (*)(const void* kernel, const void* buffer, size_t bytes);

// Kernels that are launched with a buffer take one argument of this type. What is behind the buffer's end is garbage to
// them, as it is on a device.
void set_from_buffer(FromBuffer from_buffer);

template <class Args>
struct KernelsTake {
  KernelsTake() {
    set_from_buffer([](const void* kernel, const void* buffer, size_t bytes) {
      const auto args = std::make_shared<Args>();
      std::memset(static_cast<void*>(args.get()), 0xA5, sizeof(Args));
      std::memcpy(static_cast<void*>(args.get()), buffer, bytes);
      Launch launch{kernel, typeid(Args).name(), bytes, {}, {}};
      launch.declare = [args](int device, Accesses& out) { declare_accesses(*args, device, out); };
      launch.thread = [args, kernel] { reinterpret_cast<void (*)(Args)>(const_cast<void*>(kernel))(*args); };
      return launch;
    });
  }
};

}  // namespace virtual_cuda
