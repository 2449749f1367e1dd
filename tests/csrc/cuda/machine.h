// Ranks on virtual devices, and one call's tensors in their memory.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "content.h"
#include "cuda/engines.h"
#include "cuda/lanes.h"
#include "cuda/raii.h"

namespace fastreduce {
extern std::map<const std::byte*, ptrdiff_t> lane_of_memory;  // virtual_launch.cpp
}

namespace engines_test {

// Nor may an error be left to be blamed on a later launch.
inline void expect_clean(const std::string& where) {
  if (const cudaError_t left = cudaGetLastError(); left != cudaSuccess)
    fail(where + ": the last error is " + cudaGetErrorName(left));
  for (const std::string& violation : virtual_cuda::take_violations()) fail(where + ": " + violation);
}

inline void synchronize(int devices) {
  for (int d = 0; d < devices; ++d) {
    const DeviceGuard guard(d);
    cuda_check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }
}

// What a user captures on a stream, ready to be launched.
class Captured {
 public:
  template <class Run>
  Captured(cudaStream_t stream, cudaStreamCaptureMode mode, const Run& run) {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cuda_check(cudaStreamBeginCapture(stream, mode), "cudaStreamBeginCapture");
    run();
    cuda_check(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
    graph_ = Graph(graph);
    cuda_check(cudaGraphInstantiate(&exec, graph, 0), "cudaGraphInstantiate");
    exec_ = GraphExec(exec);
  }
  void launch(cudaStream_t stream) const { cuda_check(cudaGraphLaunch(exec_.get(), stream), "cudaGraphLaunch"); }

 private:
  Graph graph_;
  GraphExec exec_;
};

// How ranks lie on devices, and how they are to be served.
struct Setting {
  int devices;
  bool in_blocks = false;  // neighbours share a device; else they take turns
  bool lane_per_rank = false;
  int slices = 0;
  int64_t copy_engine_bytes = kCopyEngineBytes;
  bool by_flags = false;
  std::string name() const {
    return std::to_string(devices) + " devices" + (in_blocks ? " in blocks" : "") + (by_flags ? ", by flags" : "") +
           (lane_per_rank ? ", a lane per rank, " : ", ") + std::to_string(slices) + " slices";
  }
};

// Each device has a stream as torch's current one: of the odd ones it is the default stream, whose
// handle means another on every device.
struct Machine {
  Machine(int ranks, const Setting& setting) : devices(setting.devices) {
    placement.lane_per_rank = setting.lane_per_rank;
    placement.by_flags = setting.by_flags;
    placement.slices = setting.slices;
    placement.copy_engine_bytes = {setting.copy_engine_bytes, setting.copy_engine_bytes};
    for (int r = 0; r < ranks; ++r) {
      const int device = setting.in_blocks ? r * devices / ranks : r % devices;
      placement.device_of_rank.push_back(device);
      const DeviceGuard guard(device);
      if (!streams.contains(device)) streams.emplace(device, device % 2 == 0 ? make_stream() : Stream());
      placement.current.push_back(streams.at(device).get());
    }
  }
  int devices;
  Placement placement;
  std::map<int, Stream> streams;
};

using Allocate = std::function<DeviceMemory(int device, int64_t bytes)>;

// A call's tensors on the devices of their ranks.
class Buffers {
 public:
  Buffers(const Content& content, const Placement& placement, const Allocate& allocate = allocate_device)
      : content_(content), placement_(placement) {
    const Images before = content.before();
    for (int buffer = 0; buffer < content.buffers(); ++buffer) {
      const int device = device_of(buffer);
      const int64_t bytes = content.bytes(buffer);
      tensors_.push_back({allocate(device, bytes), allocate_device(device, bytes), allocate_device(device, bytes)});
      cuda_check(cudaMemcpy(tensors_.back().before.get(), before[buffer].data(), bytes, cudaMemcpyHostToDevice),
                 "cudaMemcpy");
      cuda_check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    }
  }

  // Backwards: what is freed last is given out first, and the next ones like these get the same addresses.
  ~Buffers() {
    while (!tensors_.empty()) tensors_.pop_back();
  }
  Buffers(Buffers&&) = delete;

  // What torch would have enqueued before the call, and behind it: nobody waits in between.
  void fill() const { copy(&Tensor::before, &Tensor::memory); }
  void collect() const { copy(&Tensor::memory, &Tensor::after); }

  std::vector<Table> tables() const {
    std::vector<std::byte*> memory;
    for (const Tensor& one : tensors_) memory.push_back(static_cast<std::byte*>(one.memory.get()));
    const Table table = content_.table(memory);
    if (placement_.by_flags) tell_lanes(table);
    return {table};
  }

  // The host is about to use the tensors: nothing may be under way on them.
  void touch() const {
    for (int buffer = 0; buffer < content_.buffers(); ++buffer)
      virtual_cuda::host_writes(tensors_[buffer].memory.get(), content_.bytes(buffer));
  }

  // What was collected, when all devices are done.
  void expect(const Images& wanted, const std::string& where) const {
    Images found;
    for (int buffer = 0; buffer < content_.buffers(); ++buffer) {
      found.emplace_back(content_.bytes(buffer));
      cuda_check(cudaMemcpy(found[buffer].data(), tensors_[buffer].after.get(), content_.bytes(buffer),
                            cudaMemcpyDeviceToHost),
                 "cudaMemcpy");
    }
    content_.expect_same(std::move(found), wanted, where);
  }
  void expect_reduced(const std::string& where) const { expect(content_.wanted(content_.before()), where); }

 private:
  struct Tensor {
    DeviceMemory memory, before, after;
  };

  // Who answers for which tensor (virtual_launch.cpp). Lanes are numbered as their ranks come.
  void tell_lanes(const Table& table) const {
    std::vector<int> lanes;
    std::vector<ptrdiff_t> lane_of_rank;
    for (int rank = 0; rank < content_.ranks(); ++rank) {
      const int lane = placement_.lane_per_rank ? rank : placement_.device_of_rank[rank];
      auto found = std::find(lanes.begin(), lanes.end(), lane);
      if (found == lanes.end()) found = lanes.insert(found, lane);
      lane_of_rank.push_back(found - lanes.begin());
    }
    for (const Row& row : table.rows)
      for (int buffer = 0; buffer < content_.buffers(); ++buffer)
        lane_of_memory[table.pointers[row.first_pointer + buffer]] = lane_of_rank[buffer % content_.ranks()];
  }

  int device_of(int buffer) const { return placement_.device_of_rank[buffer % content_.ranks()]; }

  void copy(DeviceMemory Tensor::* from, DeviceMemory Tensor::* to) const {
    for (int buffer = 0; buffer < content_.buffers(); ++buffer) {
      const DeviceGuard guard(device_of(buffer));
      const Tensor& one = tensors_[buffer];
      cuda_check(cudaMemcpyAsync((one.*to).get(), (one.*from).get(), content_.bytes(buffer), cudaMemcpyDeviceToDevice,
                                 placement_.current[buffer % content_.ranks()]),
                 "cudaMemcpyAsync");
    }
  }

  const Content& content_;
  const Placement& placement_;
  std::vector<Tensor> tensors_;
};

}  // namespace engines_test
