#include "engine.h"

#include <array>

namespace fastreduce {
namespace {

// Engines register while other globals are still being constructed.
constinit std::array<Engine*, static_cast<size_t>(c10::DeviceType::COMPILE_TIME_MAX_DEVICE_TYPES)> engines{};

}  // namespace

std::function<std::string()> cache_folder;
std::atomic<bool> lane_per_rank{false};

void register_engine(c10::DeviceType type, Engine& engine) { engines[static_cast<size_t>(type)] = &engine; }

Engine* find_engine(c10::DeviceType type) { return engines[static_cast<size_t>(type)]; }

}  // namespace fastreduce
