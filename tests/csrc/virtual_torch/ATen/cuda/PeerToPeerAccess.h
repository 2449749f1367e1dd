// Which pairs of devices torch was asked to connect.
#pragma once

#include <c10/core/Device.h>

#include <utility>
#include <vector>

namespace at::cuda {

inline std::vector<std::pair<int, int>> connected_pairs;

inline bool get_p2p_access(c10::DeviceIndex device, c10::DeviceIndex other) {
  connected_pairs.emplace_back(device, other);
  return true;
}

}  // namespace at::cuda
