#include "cuda/nvml.h"

#include <dlfcn.h>

#include <cstdio>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "cuda/raii.h"

namespace fastreduce {
namespace {

// As nvml.h declares them, which toolkits may lack.
using NvmlDevice = struct nvmlDevice_st*;
constexpr int kP2PCapsIndexNvlink = 2;  // NVML_P2P_CAPS_INDEX_NVLINK
constexpr int kP2PStatusOk = 0;         // NVML_P2P_STATUS_OK

// Found when it is first needed, and kept: opening it takes milliseconds (predicted).
class Nvml {
 public:
  static const Nvml& instance() {
    static const Nvml nvml;
    return nvml;
  }

  NvmlDevice find(int device) const {
    char bus[32];  // as CUDA_VISIBLE_DEVICES gives devices other numbers than NVML
    cuda_check(cudaDeviceGetPCIBusId(bus, sizeof bus, device), "cudaDeviceGetPCIBusId");
    NvmlDevice found = nullptr;
    check(handle_by_bus_(bus, &found), std::string("nvmlDeviceGetHandleByPciBusId of ") + bus);
    return found;
  }

  bool nvlink(NvmlDevice device, NvmlDevice other) const {
    int status = 0;
    check(p2p_status_(device, other, kP2PCapsIndexNvlink, &status), "nvmlDeviceGetP2PStatus");
    return status == kP2PStatusOk;
  }

 private:
  Nvml() {
    void* const library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    if (!library) throw std::runtime_error(dlerror());
    const auto load = [&](auto& function, const char* name) {
      function = reinterpret_cast<std::decay_t<decltype(function)>>(dlsym(library, name));
      if (!function) throw std::runtime_error(dlerror());
    };
    int (*init)();
    load(init, "nvmlInit_v2");
    load(error_string_, "nvmlErrorString");
    load(handle_by_bus_, "nvmlDeviceGetHandleByPciBusId_v2");
    load(p2p_status_, "nvmlDeviceGetP2PStatus");
    check(init(), "nvmlInit");
  }

  void check(int status, const std::string& call) const {
    if (status != 0) throw std::runtime_error(call + ": " + error_string_(status));
  }

  const char* (*error_string_)(int status);
  int (*handle_by_bus_)(const char* bus, NvmlDevice* device);
  int (*p2p_status_)(NvmlDevice device, NvmlDevice other, int capability, int* status);
};

}  // namespace

std::optional<bool> nvlink_between(int device, int other) {
  try {
    const Nvml& nvml = Nvml::instance();
    return nvml.nvlink(nvml.find(device), nvml.find(other));
  } catch (const std::runtime_error& error) {
    [[maybe_unused]] static const int once =
        std::fprintf(stderr,
                     "fastreduce: warning: NVML does not say which GPUs NVLink connects (%s); "
                     "those are taken for connected between which atomics work\n",
                     error.what());
    return std::nullopt;
  }
}

}  // namespace fastreduce
