// torch's current streams where there is no torch for CUDA: each thread is a program of its own, whose test sets them.
#pragma once

#include <c10/core/Device.h>
#include <cuda_runtime.h>

#include <map>

namespace c10::cuda {

inline thread_local std::map<int, cudaStream_t> current_streams;  // by device; the default stream where it has none

inline cudaStream_t getCurrentCUDAStream(DeviceIndex device) { return current_streams[device]; }

}  // namespace c10::cuda
