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

}  // namespace fastreduce
