// Functions of the driver, asked for by name, so that the extension can be imported where there is no driver.
#pragma once

#include <stdexcept>
#include <string>

#include "cuda/raii.h"

namespace fastreduce {

template <class Function>
Function driver_function(const char* name) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult result;
#if CUDART_VERSION >= 12050
  const cudaError_t status = cudaGetDriverEntryPointByVersion(name, &function, 12000, 0, &result);
#else
  const cudaError_t status = cudaGetDriverEntryPoint(name, &function, cudaEnableDefault, &result);
#endif
  cuda_check(status, "cudaGetDriverEntryPoint");
  if (!function)
    throw std::runtime_error(std::string("fastreduce: the CUDA driver has no ") + name + "; want driver 525 or later");
  return reinterpret_cast<Function>(function);
}

// Functions of the driver need a context of the calling thread. A new thread has none until a function of the runtime
// makes one (triton#3729); those that only ask, as for the current device, make none.
inline void need_context() {
  static const auto get_current = driver_function<CUresult (*)(CUcontext*)>("cuCtxGetCurrent");
  CUcontext context = nullptr;
  driver_check(get_current(&context), "cuCtxGetCurrent");
  if (context) return;
  int device;
  cuda_check(cudaGetDevice(&device), "cudaGetDevice");
  cuda_check(cudaSetDevice(device), "cudaSetDevice");
}

}  // namespace fastreduce
