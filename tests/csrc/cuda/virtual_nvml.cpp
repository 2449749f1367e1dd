// An NVML for tests, under the real one's file name: the GPUs at 40 and 3F, and those at 3F and 3E, have NVLink between
// them, and there is one more at 3D. Their order is not that of CUDA's devices.
#include <cstring>
#include <iterator>

namespace {

constexpr const char* kBuses[] = {"0000:3D:00.0", "0000:3E:00.0", "0000:3F:00.0", "0000:40:00.0"};
constexpr int kUninitialized = 1, kNotFound = 6;
bool initialized = false;

}  // namespace

extern "C" {

int nvmlInit_v2() {
  initialized = true;
  return 0;
}

const char* nvmlErrorString(int) { return "Not Found"; }

int nvmlDeviceGetHandleByPciBusId_v2(const char* bus, const char* const** device) {
  if (!initialized) return kUninitialized;
  for (const char* const& known : kBuses) {
    if (std::strcmp(known, bus) != 0) continue;
    *device = &known;
    return 0;
  }
  return kNotFound;
}

// 2 asks for NVLink; 0 is yes, and 1 is no.
int nvmlDeviceGetP2PStatus(const char* const* device, const char* const* other, int capability, int* status) {
  if (!initialized) return kUninitialized;
  const auto apart = device > other ? device - other : other - device;
  const bool linked = apart == 1 && device != kBuses && other != kBuses;
  *status = capability == 2 && linked ? 0 : 1;
  return 0;
}
}
