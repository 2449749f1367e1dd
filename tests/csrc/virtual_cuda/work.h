// How kernels, copies and memsets become work, and where lying pairs lose data.
#pragma once

#include "runtime.h"

namespace virtual_cuda {

using SharedWork = std::shared_ptr<const Work>;

// The errors of a launch that cannot be.
void check_launch(const Runtime& runtime, const cudaLaunchConfig_t& config, const Launch& launch);
// Which side is a device must be what the caller says it is.
void check_kind(const Runtime& runtime, const void* dst, const void* src, cudaMemcpyKind kind);

SharedWork kernel_work(Runtime& runtime, const cudaLaunchConfig_t& config, Launch launch, int device);
SharedWork copy_work(Runtime& runtime, void* dst, const void* src, size_t bytes, int device);
SharedWork upload_work(void* dst, const void* src, size_t bytes, int device);  // of what is in src now
SharedWork memset_work(void* dst, int value, size_t bytes, int device);

}  // namespace virtual_cuda
