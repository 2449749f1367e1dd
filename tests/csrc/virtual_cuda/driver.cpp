#include <cstdint>
#include <deque>
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

CUfunction function_of(const void* symbol, int device) {
  static auto* const functions = new std::deque<CUfunc_st>;  // a handle is good until the process ends
  for (CUfunc_st& function : *functions)
    if (function.symbol == symbol && function.device == device) return &function;
  return &functions->emplace_back(CUfunc_st{symbol, device});
}

CUresult launch_kernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                       unsigned block_y, unsigned block_z, unsigned smem_bytes, CUstream stream, void** params,
                       void** extra) {
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
    const bool known = std::string(symbol) == "cuLaunchKernel";
    *function = known ? reinterpret_cast<void*>(&virtual_cuda::launch_kernel) : nullptr;
    *result = known ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  });
}

cudaError_t cudaGetFuncBySymbol(cudaFunction_t* function, const void* symbol) {
  return virtual_cuda::call("cudaGetFuncBySymbol", [&](virtual_cuda::Runtime&) {
    *function = virtual_cuda::function_of(symbol, virtual_cuda::host_thread().device);
  });
}
