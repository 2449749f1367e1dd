// How kernels, copies and memsets become work, and where lying pairs lose data.
#pragma once

#include "runtime.h"

namespace virtual_cuda {

using SharedWork = std::shared_ptr<const Work>;

SharedWork kernel_work(Runtime& runtime, const cudaLaunchConfig_t& config, Launch launch, int device);
SharedWork copy_work(Runtime& runtime, void* dst, const void* src, size_t bytes, int device);
SharedWork upload_work(void* dst, const void* src, size_t bytes, int device);  // of what is in src now
SharedWork memset_work(void* dst, int value, size_t bytes, int device);

}  // namespace virtual_cuda
