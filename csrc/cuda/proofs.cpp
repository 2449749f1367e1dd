#include "cuda/proofs.h"

#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <sstream>
#include <system_error>

#include "cuda/raii.h"

namespace fastreduce {
namespace {

// Asked once for each device: CUDA collects all properties of a device for it, which takes long.
const std::string& uuid_of(int device) {
  static std::mutex mutex;
  static std::map<int, std::string> known;
  const std::lock_guard lock(mutex);
  std::string& text = known[device];
  if (!text.empty()) return text;
  cudaDeviceProp properties;
  cuda_check(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
  for (unsigned char byte : properties.uuid.bytes) {
    text += "0123456789abcdef"[byte >> 4];
    text += "0123456789abcdef"[byte & 15];
  }
  return text;
}

// A line of the file is this key, which ends with a blank, then the problem if there was one, then a full stop.
std::string key_of(int device, int other) {
  int driver = 0;
  cuda_check(cudaDriverGetVersion(&driver), "cudaDriverGetVersion");
  std::string boot = "unknown";
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  return boot + " " + std::to_string(driver) + " " + uuid_of(device) + " " + uuid_of(other) + " ";
}

}  // namespace

std::optional<std::string> Proofs::find(int device, int other) const {
  if (path_.empty()) return std::nullopt;
  const std::string key = key_of(device, other);
  std::ifstream file(path_);
  for (std::string line; std::getline(file, line);)
    if (line.starts_with(key) && line.ends_with(".")) return line.substr(key.size(), line.size() - key.size() - 1);
  return std::nullopt;
}

// A line is written at once, so that lines of other processes come before or after it. A line that was cut off has no
// full stop. If the file cannot be written, the next process tries the pair out again.
void Proofs::keep(int device, int other, const std::string& problem) const {
  if (path_.empty()) return;
  std::ostringstream line;
  line << key_of(device, other) << problem << ".\n";
  std::error_code ignored;
  std::filesystem::create_directories(std::filesystem::path(path_).parent_path(), ignored);
  std::ofstream(path_, std::ios::app) << line.str();
}

}  // namespace fastreduce
