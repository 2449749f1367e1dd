#include "cuda/enqueue.h"

#include <algorithm>
#include <functional>
#include <list>
#include <set>

#include "cuda/launch.h"
#include "cuda/peers.h"

namespace fastreduce {

Enqueue::Enqueue(const Schedule& schedule, const std::vector<Table>& tables, const Layout& layout,
                 std::vector<Line> lines)
    : schedule_(schedule),
      tables_(tables),
      layout_(layout),
      lines_(std::move(lines)),
      waits_(schedule.launches.size()),
      awaited_(schedule.launches.size(), false),
      known_(layout.lanes.size(), std::vector<int64_t>(layout.lanes.size(), 0)),
      recorded_(schedule.launches.size() * layout.slices),
      issued_(layout.lanes.size(), 0) {
  for (const Instruction& instruction : schedule.instructions) {
    direct_.push_back(reaches_all(instruction));
    if (direct_.back()) {
      expect_fits({&instruction});
      continue;
    }
    Instruction staged = instruction;
    staged.dsts.push_back(schedule.buffers);  // the scratch memory, so a staged instruction is never in place
    expect_fits({&staged});
  }
  std::vector<int> launch_of(schedule.instructions.size());
  for (size_t launch = 0; launch < schedule.launches.size(); ++launch) {
    std::set<int, std::greater<>> waits;
    for (int instruction : schedule.launches[launch]) {
      launch_of[instruction] = static_cast<int>(launch);
      for (int earlier : schedule.waits[instruction])
        if (lane_of(launch_of[earlier]) != lane_of(launch)) waits.insert(launch_of[earlier]);
    }
    waits_[launch].assign(waits.begin(), waits.end());
    for (int earlier : waits) awaited_[earlier] = true;
  }
}

void Enqueue::run() {
  for (size_t launch = 0; launch < schedule_.launches.size(); ++launch)
    for (int slice = 0; slice < layout_.slices; ++slice) {
      wait(launch, slice);
      execute(launch, slice);
      ++issued_[lane_of(launch)];
      if (awaited_[launch]) record(launch, slice);
    }
}

int Enqueue::lane_of(size_t launch) const {
  const int rank = schedule_.instructions[schedule_.launches[launch].front()].rank;
  return rank == kHost ? 0 : layout_.lane_of_rank[rank];
}

// A lane that waits for a task also comes after everything that the task came after. So the latest tasks are waited
// for first, and most other waits are then unnecessary.
void Enqueue::wait(size_t launch, int slice) {
  const int lane = lane_of(launch);
  for (int earlier : waits_[launch]) {
    const int other = lane_of(earlier);
    const size_t task = earlier * layout_.slices + slice;
    const std::vector<int64_t>& behind = recorded_[task];
    if (known_[lane][other] >= behind[other]) continue;
    lines_[lane].wait(layout_.lanes[other]->mark(task));
    for (size_t l = 0; l < layout_.lanes.size(); ++l) known_[lane][l] = std::max(known_[lane][l], behind[l]);
  }
}

void Enqueue::record(size_t launch, int slice) {
  const int lane = lane_of(launch);
  const size_t task = launch * layout_.slices + slice;
  lines_[lane].record(layout_.lanes[lane]->mark(task));
  recorded_[task] = known_[lane];
  recorded_[task][lane] = issued_[lane];
}

bool Enqueue::reaches(int device, int buffer) const {
  return can_reach(device, device_of(buffer)) && !layout_.closed.contains({device, buffer});
}

bool Enqueue::reaches(const Instruction& instruction, int buffer) const {
  return instruction.rank != kHost && reaches(device_of(instruction.rank), buffer);
}

bool Enqueue::reaches_all(const Instruction& instruction) const {
  const auto reached = [&](int buffer) { return reaches(instruction, buffer); };
  return std::all_of(instruction.srcs.begin(), instruction.srcs.end(), reached) &&
         std::all_of(instruction.dsts.begin(), instruction.dsts.end(), reached);
}

bool Enqueue::uses_host() const { return std::find(direct_.begin(), direct_.end(), false) != direct_.end(); }

void Enqueue::execute(size_t launch, int slice) {
  const int lane = lane_of(launch);
  std::vector<const Instruction*> direct, staged;
  for (int i : schedule_.launches[launch]) (direct_[i] ? direct : staged).push_back(&schedule_.instructions[i]);
  for (const Table& table : tables_) {
    execute_directly(direct, table, slice, lines_[lane]);
    for (const Instruction* instruction : staged) execute_staged(*instruction, table, slice, lane);
  }
}

template <class Visit>  // visit(address in every buffer, elements) for each row's part in this slice
void Enqueue::for_each_slice(const Table& table, int shard, int slice, const Visit& visit) const {
  std::vector<std::byte*> pointers(schedule_.buffers);
  for (const Row& row : table.rows) {
    if (row.shard != shard) continue;
    const int64_t per_slice = part_elems(row.elems, layout_.slices, table.elem_bytes);
    const int64_t begin = std::min(row.elems, slice * per_slice);
    const int64_t elems = std::min(row.elems - begin, per_slice);
    if (elems == 0) continue;
    for (int buffer = 0; buffer < schedule_.buffers; ++buffer) {
      std::byte* const first = table.pointers[row.first_pointer + buffer];
      pointers[buffer] = first ? first + begin * table.elem_bytes : nullptr;
    }
    visit(pointers, elems);
  }
}

// A large copy between this lane's device and another goes to the copy engine, if it is the only instruction of its
// launch: the copy engine would run several copies one after the other, and one kernel runs them at the same time.
// A copy between two other devices is left to the kernel, because whether those two have peer access is not known here.
// So is one where either device has no access to the other's buffer: CUDA does not say whose copy engine does it.
void Enqueue::execute_directly(const std::vector<const Instruction*>& instructions, const Table& table, int slice,
                               Line& line) {
  Launcher launcher(table.dtype, table.op, table.elem_bytes, line);
  std::list<std::vector<const Instruction*>> each;  // the launcher knows lists by their addresses
  for (const Instruction* instruction : instructions) {
    const auto& only = each.emplace_back(1, instruction);
    const int src = instruction->srcs[0], dst = instruction->dsts[0];
    const bool is_copy = instructions.size() == 1 && instruction->srcs.size() == 1 && instruction->dsts.size() == 1 &&
                         device_of(src) != device_of(dst) &&
                         (device_of(src) == line.device() || device_of(dst) == line.device()) &&
                         reaches(device_of(src), dst) && reaches(device_of(dst), src);
    for_each_slice(table, instruction->shard, slice, [&](const std::vector<std::byte*>& pointers, int64_t elems) {
      const int64_t bytes = elems * table.elem_bytes;
      if (is_copy && bytes >= copy_engine_bytes(device_of(src), device_of(dst)))
        line.copy(pointers[dst], pointers[src], bytes, cudaMemcpyDeviceToDevice);
      else
        launcher.add(only, schedule_.ranks, pointers.data(), elems);
    });
  }
  launcher.flush();
}

// What connects the two is asked only where it matters: NVML may not be there to answer.
int64_t Enqueue::copy_engine_bytes(int device, int other) const {
  const auto& [nvlink, pcie] = layout_.copy_engine_bytes;
  return nvlink == pcie || has_nvlink(device, other) ? nvlink : pcie;
}

void Enqueue::execute_staged(const Instruction& instruction, const Table& table, int slice, int lane) {
  for_each_slice(table, instruction.shard, slice, [&](std::vector<std::byte*> pointers, int64_t elems) {
    const int64_t most = kStageBytes / table.elem_bytes;
    for (int64_t at = 0; at < elems; at += most) {
      execute_stage(instruction, table, pointers, std::min(most, elems - at), lane);
      for (std::byte*& pointer : pointers) pointer = pointer ? pointer + kStageBytes : nullptr;
    }
  });
}

// Data of buffers that the executing device cannot reach passes through host memory. Such sources are first copied to
// scratch memory of the device. Such destinations get the result from a destination that the device can reach, or
// from scratch memory.
void Enqueue::execute_stage(const Instruction& instruction, const Table& table, std::vector<std::byte*> pointers,
                            int64_t elems, int lane_index) {
  Lane& lane = *layout_.lanes[lane_index];
  Line& line = lines_[lane_index];
  const int64_t bytes = elems * table.elem_bytes;
  Instruction local = instruction;
  local.dsts.clear();
  std::vector<int> far_srcs, far_dsts;
  for (int src : instruction.srcs)
    if (!reaches(instruction, src)) far_srcs.push_back(src);
  for (int dst : instruction.dsts) (reaches(instruction, dst) ? local.dsts : far_dsts).push_back(dst);

  std::byte* const scratch = lane.scratch(static_cast<int>(far_srcs.size()) + 1);
  const auto add_scratch = [&](size_t number) {
    pointers.push_back(scratch + number * kStageBytes);
    return static_cast<int>(pointers.size()) - 1;
  };
  std::vector<HostStage::Transfer> transfers;
  for (size_t i = 0; i < far_srcs.size(); ++i) {
    const int buffer = add_scratch(i);
    transfers.push_back({pointers[buffer], lane.device, pointers[far_srcs[i]], device_of(far_srcs[i])});
    std::replace(local.srcs.begin(), local.srcs.end(), far_srcs[i], buffer);
  }
  lane.stage.copy(line, transfers, bytes);
  const int result = local.dsts.empty() ? add_scratch(far_srcs.size()) : local.dsts[0];
  if (local.dsts.empty()) local.dsts.push_back(result);

  const std::vector<const Instruction*> only{&local};
  Launcher launcher(table.dtype, table.op, table.elem_bytes, line);
  launcher.add(only, schedule_.ranks, pointers.data(), elems);
  launcher.flush();

  const int result_device = result < schedule_.buffers ? device_of(result) : lane.device;
  transfers.clear();
  for (int dst : far_dsts) transfers.push_back({pointers[dst], device_of(dst), pointers[result], result_device});
  lane.stage.copy(line, transfers, bytes);
}

}  // namespace fastreduce
