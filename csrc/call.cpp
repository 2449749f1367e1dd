#include "call.h"

#include <c10/core/GradMode.h>

#include <array>
#include <sstream>
#include <utility>

#include "check.h"
#include "dtypes.h"
#include "programs.h"
#include "tables.h"

namespace fastreduce {
namespace {

constexpr std::array<std::pair<const char*, Collective>, 5> kCollectives = {{
    {"allreduce", Collective::allreduce},
    {"reduce", Collective::reduce},
    {"broadcast", Collective::broadcast},
    {"reduce_scatter", Collective::reduce_scatter},
    {"all_gather", Collective::all_gather},
}};

std::array<Engine*, static_cast<size_t>(c10::DeviceType::COMPILE_TIME_MAX_DEVICE_TYPES)>& engines() {
  static std::array<Engine*, static_cast<size_t>(c10::DeviceType::COMPILE_TIME_MAX_DEVICE_TYPES)> by_type{};
  return by_type;
}

}  // namespace

std::function<std::string()> cache_folder;
std::atomic<bool> lane_per_rank{false};

void register_engine(c10::DeviceType type, Engine& engine) { engines()[static_cast<size_t>(type)] = &engine; }

Engine* find_engine(c10::DeviceType type) { return engines()[static_cast<size_t>(type)]; }

std::string TensorLists::where(int64_t rank, int64_t index) const {
  std::ostringstream text;
  text << (std::string(name) == "outputs" ? "the output of rank " : "rank ") << rank << ", tensor " << index;
  return text.str();
}

Devices Call::devices() const {
  Devices devices;
  for (int64_t rank = 0; rank < ranks(); ++rank)
    devices.push_back(outputs.per_rank > 0 ? outputs.at(rank, 0).device() : c10::Device(c10::kCPU));
  return devices;
}

Engine& Call::engine() const {
  return *find_engine(outputs.flat.empty() ? c10::kCPU : outputs.flat.front().device().type());
}

int64_t Call::nbytes() const {
  int64_t bytes = 0;
  for (int64_t i = 0; i < outputs.per_rank; ++i) bytes += static_cast<int64_t>(outputs.at(0, i).nbytes());
  return bytes;
}

Collective parse_collective(const std::string& name) {
  std::string known;
  for (const auto& [each, collective] : kCollectives) {
    if (name == each) return collective;
    known += std::string(known.empty() ? "" : ", ") + each;
  }
  TORCH_CHECK_VALUE(false, "unknown collective '", name, "'; known are ", known);
}

const char* name_of(Collective collective) {
  for (const auto& [name, known] : kCollectives)
    if (known == collective) return name;
  return "";
}

Op parse_op(const std::string& name) {
  std::string known;
  for (Op op : every_op()) {
    if (name == name_of(op)) return op;
    known += std::string(known.empty() ? "" : ", ") + name_of(op);
  }
  TORCH_CHECK_VALUE(false, "unknown op '", name, "'; known are ", known);
}

void run(const Call& call) {
  check(call);
  const auto schedule = schedule_of(question_of(call));
  const std::vector<bool> written = written_outputs(call, *schedule);
  check_autograd(call.outputs, written);
  execute(call, *schedule);
  bump_versions(call.outputs, written);
}

// For each output, whether the schedule writes it. The outputs are the buffers after the inputs.
std::vector<bool> written_outputs(const Call& call, const Schedule& schedule) {
  return {schedule.written.begin() + call.inputs.ranks, schedule.written.end()};
}

void execute(const Call& call, const Schedule& schedule) {
  const c10::AutoGradMode no_grad(false);
  const Tables tables(call, schedule);
  call.engine().run(call.devices(), schedule, tables.all());
  tables.write_back();
}

void bump_versions(const TensorLists& lists, const std::vector<bool>& written) {
  for (int64_t rank = 0; rank < lists.ranks; ++rank)
    if (written[rank])
      for (int64_t i = 0; i < lists.per_rank; ++i) lists.at(rank, i).unsafeGetTensorImpl()->bump_version();
}

}  // namespace fastreduce
