// The part of the CUDA driver API that fastreduce uses: launching a kernel with a buffer of arguments, what it says of
// memory that cudaMalloc did not allocate, and whether a thread has a context.
#pragma once

#include "cuda_runtime.h"

using CUfunction = cudaFunction_t;
using CUstream = cudaStream_t;
using CUcontext = struct CUctx_st*;
using CUmemoryPool = cudaMemPool_t;
using CUdeviceptr = unsigned long long;
enum CUresult { CUDA_SUCCESS = 0 };

enum CUpointer_attribute {
  CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE = 10,
  CU_POINTER_ATTRIBUTE_RANGE_START_ADDR = 11,
  CU_POINTER_ATTRIBUTE_RANGE_SIZE = 12,
  CU_POINTER_ATTRIBUTE_ACCESS_FLAGS = 16,
  CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE = 17,
};
enum { CU_POINTER_ATTRIBUTE_ACCESS_FLAG_NONE, CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE = 3 };

enum cudaDriverEntryPointQueryResult { cudaDriverEntryPointSuccess, cudaDriverEntryPointSymbolNotFound };

cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned version,
                                             unsigned long long flags, cudaDriverEntryPointQueryResult* result);
#if CUDART_VERSION < 12050
constexpr unsigned long long cudaEnableDefault = 0;
inline cudaError_t cudaGetDriverEntryPoint(const char* symbol, void** function, unsigned long long flags,
                                           cudaDriverEntryPointQueryResult* result) {
  return cudaGetDriverEntryPointByVersion(symbol, function, 12000, flags, result);
}
#endif
cudaError_t cudaGetFuncBySymbol(cudaFunction_t* function, const void* symbol);
