// What a .cu file needs beside the API: the language's keywords, built-in variables and launches.
// A block is its first Config::block_threads threads, one after the other, and blockDim says so: a
// kernel may not need more of them. Only blocks of one thread may wait at a barrier, for nobody.
#pragma once

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <tuple>
#include <type_traits>
#include <typeinfo>

#include "cuda_runtime_api.h"
#include "virtual_cuda.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ __inline__ __attribute__((always_inline))
#define __launch_bounds__(...)
#define __grid_constant__
#define __shared__ static thread_local

struct uint3 {
  unsigned x, y, z;
};
struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

inline constinit thread_local uint3 threadIdx{0, 0, 0};
inline constinit thread_local uint3 blockIdx{0, 0, 0};
inline constinit thread_local dim3 blockDim{1, 1, 1};
inline constinit thread_local dim3 gridDim{1, 1, 1};

#define __builtin_assume(what) static_cast<void>(what)

inline void __syncthreads() {}
inline int __syncthreads_and(int all) { return all; }
[[noreturn]] inline void __trap() {
  std::fprintf(stderr, "a kernel trapped\n");
  std::abort();
}

struct cudaLaunchAttribute {
  int id;
};

struct cudaLaunchConfig_t {
  dim3 gridDim;
  dim3 blockDim;
  size_t dynamicSmemBytes;
  cudaStream_t stream;
  cudaLaunchAttribute* attrs;
  unsigned numAttrs;
};

namespace virtual_cuda {

struct Launch {
  const void* function;
  const char* args_name;  // mangled
  size_t parameter_bytes;
  std::function<void()> thread;
  std::function<void(int device, Accesses& out)> declare;  // empty: the kernel declares nothing
};

cudaError_t launch(const char* name, const cudaLaunchConfig_t& config, Launch launch);
cudaError_t set_function_attribute(const void* function, cudaFuncAttribute attribute, int value);
cudaError_t occupancy(int* blocks, int block_size, size_t dynamic_smem_bytes);

template <class Args>
concept Declares = requires(const Args& args, int device, Accesses& out) { declare_accesses(args, device, out); };

template <class... Expected>
Launch bound(void (*kernel)(Expected...), const std::tuple<std::decay_t<Expected>...>& args) {
  Launch launch{
      reinterpret_cast<const void*>(kernel), typeid(kernel).name(), (size_t{0} + ... + sizeof(Expected)), {}, {}};
  if constexpr (sizeof...(Expected) == 1) {
    using Args = std::decay_t<decltype(std::get<0>(args))>;
    launch.args_name = typeid(Args).name();
    if constexpr (Declares<Args>)
      launch.declare = [args](int device, Accesses& out) { declare_accesses(std::get<0>(args), device, out); };
  }
  launch.thread = [kernel, args] { std::apply(kernel, args); };
  return launch;
}

// What nvcc tells the runtime of kernels that are launched by their addresses: in a program here, all of
// them take one argument of one type. What is behind the end of the bytes that are passed is garbage to
// them, as it is on a device.
inline Launch (*bind_by_address)(const void* kernel, const void* args, size_t bytes) = nullptr;

template <class Args>
struct KernelsTake {
  KernelsTake() {
    bind_by_address = [](const void* kernel, const void* args, size_t bytes) {
      Args whole;
      std::memset(static_cast<void*>(&whole), 0xA5, sizeof whole);
      std::memcpy(static_cast<void*>(&whole), args, std::min(bytes, sizeof whole));
      const auto function = reinterpret_cast<void (*)(Args)>(const_cast<void*>(kernel));
      return bound(function, std::tuple<Args>(whole));
    };
  }
};

// The launch that kernel parameters or a buffer describe; exactly one of them must be there.
Launch described(const void* kernel, void** params, void** extra);

}  // namespace virtual_cuda

template <class... Expected, class... Actual>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Expected...), Actual&&... args) {
  return virtual_cuda::launch("cudaLaunchKernelEx", *config,
                              virtual_cuda::bound(kernel, std::tuple<std::decay_t<Expected>...>(args...)));
}

#define CU_LAUNCH_PARAM_END ((void*)0x00)
#define CU_LAUNCH_PARAM_BUFFER_POINTER ((void*)0x01)
#define CU_LAUNCH_PARAM_BUFFER_SIZE ((void*)0x02)

struct cudaKernelNodeParams {
  void* func;
  dim3 gridDim;
  dim3 blockDim;
  unsigned sharedMemBytes;
  void** kernelParams;
  void** extra;
};

cudaError_t cudaGraphAddKernelNode(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* after,
                                   size_t after_count, const cudaKernelNodeParams* params);
cudaError_t cudaGraphExecKernelNodeSetParams(cudaGraphExec_t exec, cudaGraphNode_t node,
                                             const cudaKernelNodeParams* params);

template <class Function>
cudaError_t cudaFuncSetAttribute(Function* function, cudaFuncAttribute attribute, int value) {
  return virtual_cuda::set_function_attribute(reinterpret_cast<const void*>(function), attribute, value);
}

template <class Function>
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, Function, int block_size,
                                                          size_t dynamic_smem_bytes) {
  return virtual_cuda::occupancy(blocks, block_size, dynamic_smem_bytes);
}

template <class T>
cudaError_t cudaMalloc(T** pointer, size_t bytes) {
  return cudaMalloc(reinterpret_cast<void**>(pointer), bytes);
}
template <class T>
cudaError_t cudaMallocHost(T** pointer, size_t bytes, unsigned = 0) {
  return cudaMallocHost(reinterpret_cast<void**>(pointer), bytes);
}
template <class T>
cudaError_t cudaHostAlloc(T** pointer, size_t bytes, unsigned flags) {
  return cudaHostAlloc(reinterpret_cast<void**>(pointer), bytes, flags);
}
