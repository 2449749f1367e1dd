// The part of the CUDA driver API that fastreduce uses: launching a kernel with a buffer of arguments.
#pragma once

#include "cuda_runtime.h"

using CUfunction = cudaFunction_t;
using CUstream = cudaStream_t;
enum CUresult { CUDA_SUCCESS = 0 };

enum cudaDriverEntryPointQueryResult { cudaDriverEntryPointSuccess, cudaDriverEntryPointSymbolNotFound };

cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned version,
                                             unsigned long long flags, cudaDriverEntryPointQueryResult* result);
cudaError_t cudaGetFuncBySymbol(cudaFunction_t* function, const void* symbol);
