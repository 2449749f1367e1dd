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

FromBuffer from_buffer = nullptr;

CUfunction function_of(const void* symbol, int device) {
  static auto* const functions = new std::deque<CUfunc_st>;  // a handle is good until the process ends
  for (CUfunc_st& function : *functions)
    if (function.symbol == symbol && function.device == device) return &function;
  return &functions->emplace_back(CUfunc_st{symbol, device});
}

CUresult launch_kernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                       unsigned block_y, unsigned block_z, unsigned smem_bytes, CUstream stream, void** params,
                       void** extra) {
  if (params || extra[0] != CU_LAUNCH_PARAM_BUFFER_POINTER || extra[2] != CU_LAUNCH_PARAM_BUFFER_SIZE ||
      extra[4] != CU_LAUNCH_PARAM_END || function->device != host_thread().device)
    return static_cast<CUresult>(cudaErrorInvalidValue);
  const cudaLaunchConfig_t config{
      dim3(grid_x, grid_y, grid_z), dim3(block_x, block_y, block_z), smem_bytes, stream, nullptr, 0};
  const size_t bytes = *static_cast<const size_t*>(extra[3]);
  return static_cast<CUresult>(launch(config, from_buffer(function->symbol, extra[1], bytes)));
}

}  // namespace

void set_from_buffer(FromBuffer maker) { from_buffer = maker; }

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
