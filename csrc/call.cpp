#include "call.h"

#include <c10/core/GradMode.h>
#include <c10/util/StringUtil.h>

#include <array>
#include <sstream>

#include "check.h"
#include "dtypes.h"
#include "programs.h"
#include "tables.h"

namespace fastreduce {
namespace {

constexpr std::array kCollectives = {Collective::allreduce, Collective::reduce, Collective::broadcast,
                                     Collective::reduce_scatter, Collective::all_gather};

template <class Values>
auto parse(const char* kind, const std::string& name, const Values& values) {
  std::string known;
  for (const auto value : values) {
    if (name == name_of(value)) return value;
    known += std::string(known.empty() ? "" : ", ") + name_of(value);
  }
  // Not TORCH_CHECK_VALUE(false, ...): without optimization g++ takes that for a condition, and warns that the end
  // is reached.
  C10_THROW_ERROR(ValueError, c10::str("unknown ", kind, " '", name, "'; known are ", known));
}

}  // namespace

std::string TensorLists::where(int64_t rank, int64_t index) const {
  std::ostringstream text;
  text << (std::string(name) == "outputs" ? "the output of rank " : "rank ") << first_rank + rank << ", tensor "
       << index;
  return text.str();
}

Devices Call::devices() const {
  Devices devices(ranks(), c10::Device(c10::kCPU));
  for (int64_t rank = 0; rank < ranks() && outputs.per_rank > 0; ++rank) devices[rank] = outputs.at(rank, 0).device();
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

const char* name_of(Collective collective) {
  switch (collective) {
    case Collective::allreduce: return "allreduce";
    case Collective::reduce: return "reduce";
    case Collective::broadcast: return "broadcast";
    case Collective::reduce_scatter: return "reduce_scatter";
    case Collective::all_gather: return "all_gather";
  }
  return "";
}

Collective parse_collective(const std::string& name) { return parse("collective", name, kCollectives); }

Op parse_op(const std::string& name) { return parse("op", name, every_op()); }

std::optional<Op> find_op(const std::string& name) {
  for (Op op : every_op())
    if (name == name_of(op)) return op;
  return std::nullopt;
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
  call.engine().run(call.devices(), schedule, tables.all(), call.engine_name == "flags");
  tables.write_back();
}

void bump_versions(const TensorLists& lists, const std::vector<bool>& written) {
  for (int64_t rank = 0; rank < lists.ranks; ++rank)
    if (written[rank])
      for (int64_t i = 0; i < lists.per_rank; ++i)
        if (const at::Tensor& tensor = lists.at(rank, i); !tensor.is_inference())  // those have no versions
          tensor.unsafeGetTensorImpl()->bump_version();
}

}  // namespace fastreduce
