// What one process has that takes part in calls between virtual GPUs, in a thread of its own.
#pragma once

#include <c10/cuda/CUDAStream.h>

#include <barrier>
#include <mutex>
#include <thread>

#include "cuda/ipc.h"
#include "machine.h"
#include "processes/group.h"

namespace processes_test {

using namespace engines_test;
using c10::cuda::current_streams;
using std::chrono::milliseconds;

constexpr int kRounds = 3;
inline int cases = 0;

inline std::mutex mutex;                          // of lane_of_memory
inline MakeDeviceStaging make_staging = nullptr;  // the engine's own
inline thread_local DeviceAddress own_address;    // of what it made last

inline std::unique_ptr<DeviceStaging> make_known_staging(int device, int rank, int ranks) {
  auto staging = make_staging(device, rank, ranks);
  own_address = staging->address();
  std::byte* memory;
  std::memcpy(&memory, own_address.staging.data(), sizeof(memory));
  const std::lock_guard lock(mutex);
  lane_of_memory[memory] = rank;
  return staging;
}

// Without destructors, which would wait for kernels that wait for each other.
[[noreturn]] inline void fail_at_once(const std::string& what) {
  std::fprintf(stderr, "FAILED: %s\n", what.c_str());
  std::_Exit(1);
}

inline float value(int rank, int64_t elem, int round) {
  return static_cast<float>(((elem + round) % 7 + 1) << (3 * rank));  // a sum tells whose they are
}

struct Case {
  const Named& named;
  std::vector<int64_t> elems;  // of each tensor
  bool at_once = true;         // how it must be served
  int shifted_rank = -1;       // whose tensors begin where no vector does
  bool on_one_gpu = false;
  int first_gpu = 0;

  int ranks() const { return named.program.ranks; }
  std::string where() const {
    return named.where() + ", " + std::to_string(elems.size()) + " tensors, the first of " + std::to_string(elems[0]) +
           (on_one_gpu ? ", on one GPU" : "");
  }
};

// What one process has: a group, and on its GPU a stream, staging memory and tensors, one behind the other.
class Process {
 public:
  Process(const Case& test, int rank, const std::vector<std::string>& names)
      : test_(test), program_(test.named.program), group_(rank, names, 1 << 16), devices_(group_) {
    for (int64_t elems : test.elems) total_ += elems;
    move_to(test.on_one_gpu ? 0 : test.first_gpu + rank);
  }

  // Has its stream and its tensors there from now on.
  void move_to(int device) {
    device_ = device;
    const DeviceGuard guard(device);
    current_streams[device] = (stream_ = make_stream()).get();
    for (DeviceMemory* tensors : {&in_, &out_}) {
      DeviceMemory made = allocate_device(device, total_ * 4 + 64);
      const std::lock_guard lock(mutex);
      lane_of_memory.erase(static_cast<std::byte*>(tensors->get()));
      lane_of_memory[static_cast<std::byte*>(made.get())] = group_.rank();
      *tensors = std::move(made);
    }
  }

  bool gpu_fails = false;  // so what is left of a call is not known

  Group& group() { return group_; }
  Announcement announcement() const {
    Announcement mine;
    mine.describe(test_.where());
    mine.device = own_address;
    return mine;
  }

  // Whether the GPUs reach each other. Ranks with other fingerprints make other calls.
  bool call(const RankSchedule& rank_schedule, milliseconds timeout, uint64_t fingerprint = 0) {
    FlagsCall call{rank_schedule, DType::f32, Op::sum, 4, items(), announcement(), timeout};
    call.announcement.fingerprint = fingerprint;
    try {
      const bool reached = devices_.run(call, c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(device_)));
      if (cudaPeekAtLastError() != cudaSuccess) fail_at_once(test_.where() + ": left an error to a later launch");
      if (reached != devices_.reach()) fail_at_once(test_.where() + ": wrong about whether GPUs reach each other");
      return reached;
    } catch (const GroupError&) {
      const DeviceGuard guard(device_);
      if (!gpu_fails && cudaStreamQuery(stream_.get()) == cudaErrorNotReady)
        fail_at_once(test_.where() + ": a kernel waits on after its call has failed");
      throw;
    }
  }

  void wait() {
    const DeviceGuard guard(device_);
    cuda_check(cudaStreamSynchronize(stream_.get()), "cudaStreamSynchronize");
  }

  void fill(int round) {
    std::vector<float> values(total_);
    for (int64_t e = 0; e < total_; ++e) values[e] = value(group_.rank(), e, round);
    const DeviceGuard guard(device_);
    cuda_check(cudaMemcpy(at(in_, 0), values.data(), total_ * 4, cudaMemcpyHostToDevice), "cudaMemcpy");
    cuda_check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }

  void check(int round) {
    const int rank = group_.rank();
    const int buffer = in_place() ? rank : test_.ranks() + rank;
    std::vector<float> found(total_);
    const DeviceGuard guard(device_);
    cuda_check(cudaMemcpy(found.data(), at(in_place() ? in_ : out_, 0), total_ * 4, cudaMemcpyDeviceToHost),
               "cudaMemcpy");
    each_shard([&](int64_t first, int shard, int64_t begin, int64_t length) {
      const std::vector<int>& goal = test_.named.goal(buffer, shard);
      for (int64_t e = first + begin; e < first + begin + length && !goal.empty(); ++e) {
        float wanted = 0;
        for (int from : goal) wanted += value(from, e, round);
        if (found[e] != wanted)
          fail_at_once(test_.where() + ": wrong value " + std::to_string(found[e]) + " on rank " +
                       std::to_string(rank) + ", element " + std::to_string(e) + ", round " + std::to_string(round));
      }
    });
  }

 private:
  bool in_place() const { return program_.buffers == program_.ranks; }
  std::byte* at(const DeviceMemory& memory, int64_t elem) const {
    const int64_t shift = group_.rank() == test_.shifted_rank ? 4 : 0;
    return static_cast<std::byte*>(memory.get()) + shift + elem * 4;
  }

  // Calls visit(the tensor's first element, shard, where it begins in the tensor, its length).
  template <class Visit>
  void each_shard(const Visit& visit) const {
    int64_t first = 0;
    for (int64_t elems : test_.elems) {
      const int64_t part = part_elems(elems, program_.shards, 4);
      for (int shard = 0; shard < program_.shards; ++shard) {
        const int64_t begin = std::min(shard * part, elems);
        visit(first, shard, begin, std::min(part, elems - begin));
      }
      first += elems;
    }
  }

  std::vector<Item> items() const {
    std::vector<Item> items;
    for (int64_t elems : test_.elems) items.push_back({part_elems(elems, program_.shards, 4), {}, {}});
    size_t spans = 0;
    each_shard([&](int64_t first, int, int64_t begin, int64_t length) {
      Item& item = items[spans++ / program_.shards];
      item.in.push_back({at(in_, first + begin), length, 0});
      item.out.push_back({at(in_place() ? in_ : out_, first + begin), length, 0});
    });
    return items;
  }

  const Case& test_;
  const Schedule& program_;
  int device_ = 0;
  Group group_;
  Stream stream_;
  DeviceGroup devices_;
  int64_t total_ = 0;
  DeviceMemory in_, out_;
};

// Each rank, in a thread of its own, once all have joined: does(process, its part of the program, the barrier of all).
template <class Does>
void as_processes(const Case& test, const Does& does) {
  const int k = test.ranks();
  const std::shared_ptr<const Schedule> schedule(std::shared_ptr<void>(), &test.named.program);
  std::vector<std::string> names(k), invitations(k);
  for (int r = 0; r < k; ++r) names[r] = std::to_string(r);
  std::barrier all(k);
  std::vector<std::jthread> ranks;
  for (int r = 0; r < k; ++r)
    ranks.emplace_back([&, r] {
      try {
        Process process(test, r, names);
        invitations[r] = process.group().invitation();
        all.arrive_and_wait();
        process.group().join(invitations);
        does(process, RankSchedule(schedule, r), all);
        all.arrive_and_wait();
      } catch (const std::exception& error) {
        fail_at_once(test.where() + ": " + error.what());
      }
    });
}

// process_errors_test.cpp
void one_stops(const Case& test, bool leaves, const std::string& words);
void calls_differ(const Case& test);
void a_gpu_fails_where_calls_differ(const Case& test);
void one_gpu_fails(const Case& test);
void no_memory_to_share();
void a_mark_that_fails();

}  // namespace processes_test
