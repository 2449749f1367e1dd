// Programs, buffers on virtual devices, and what they must hold in the end.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "cuda_engines.h"
#include "cuda_raii.h"
#include "peers.h"

namespace engines_test {

using namespace fastreduce;

[[noreturn]] inline void fail(const std::string& what) {
  std::fprintf(stderr, "FAILED: %s\n", what.c_str());
  std::exit(1);
}

inline void expect_clean(const std::string& where) {
  for (const std::string& violation : virtual_cuda::take_violations()) fail(where + ": " + violation);
}

inline std::vector<int> all(int k) {
  std::vector<int> ranks;
  for (int r = 0; r < k; ++r) ranks.push_back(r);
  return ranks;
}

// The orders that a program's reads and writes imply, written once more.
inline std::vector<std::vector<int>> waits_of(const std::vector<Instruction>& steps) {
  std::vector<std::vector<int>> waits(steps.size());
  const auto touches = [](const std::vector<int>& some, const std::vector<int>& others) {
    for (int a : some)
      for (int b : others)
        if (a == b) return true;
    return false;
  };
  for (size_t later = 0; later < steps.size(); ++later)
    for (size_t earlier = 0; earlier < later; ++earlier) {
      const Instruction &a = steps[earlier], &b = steps[later];
      if (a.shard == b.shard && (touches(a.dsts, b.srcs) || touches(a.srcs, b.dsts) || touches(a.dsts, b.dsts)))
        waits[later].push_back(static_cast<int>(earlier));
    }
  return waits;
}

// Neighbours of one rank that do not depend on each other.
inline std::vector<std::vector<int>> launches_of(const std::vector<Instruction>& steps,
                                                 const std::vector<std::vector<int>>& waits) {
  std::vector<std::vector<int>> launches;
  for (int i = 0; i < static_cast<int>(steps.size()); ++i) {
    bool together = !launches.empty() && steps[launches.back().front()].rank == steps[i].rank;
    if (together)
      for (int earlier : waits[i]) together = together && earlier < launches.back().front();
    if (!together) launches.emplace_back();
    launches.back().push_back(i);
  }
  return launches;
}

inline Program program_of(const std::string& name, int k) {
  std::vector<Instruction> steps;
  if (name == "leader") steps.push_back({0, 0, all(k), all(k), k > 1});
  if (name == "sharded")
    for (int r = 0; r < k; ++r) steps.push_back({r, r, all(k), all(k), k > 1});
  if (name == "host") steps.push_back({kHost, 0, all(k), all(k), k > 1});
  if (name == "pairs")  // two shards a rank, both in one launch
    for (int r = 0; r < k; ++r)
      for (int half = 0; half < 2; ++half) steps.push_back({r, 2 * r + half, all(k), all(k), k > 1});
  if (name == "ring") {
    for (int t = 0; t < k - 1; ++t)
      for (int r = 0; r < k; ++r)
        steps.push_back({r, (r + 2 * k - t - 1) % k, {(r + k - 1) % k, r}, {r}, t == k - 2});
    for (int t = 0; t < k - 1; ++t)
      for (int r = 0; r < k; ++r) steps.push_back({r, (r + k - t) % k, {(r + k - 1) % k}, {r}, false});
  }
  const int shards = name == "leader" || name == "host" ? 1 : name == "pairs" ? 2 * k : k;
  const auto waits = waits_of(steps);
  const auto launches = launches_of(steps, waits);
  return Program(k, k, shards, std::move(steps), waits, launches);
}

// One tensor of float32 a rank and length, on the rank's device, `offset` elements behind an
// aligned address; and the sums that the program's own order gives. Allocated memory is freed.
class Buffers {
 public:
  Buffers(const Program& program, const std::vector<int>& device_of_rank, std::vector<int64_t> lengths, int offset,
          uint64_t seed)
      : program_(program), lengths_(std::move(lengths)), devices_(device_of_rank) {
    std::mt19937_64 random(seed);
    for (int rank = 0; rank < program.ranks; ++rank)
      for (int64_t length : lengths_) {
        float* const memory = allocate(devices_[rank], length + offset + 1);
        memory_.push_back(memory + offset);
        std::vector<float> values(length);
        for (float& value : values) value = static_cast<float>(random() % 100003) / 7919.0f;
        origin_.push_back(allocate(devices_[rank], length));
        found_.push_back(allocate(devices_[rank], length));
        cuda_check(cudaMemcpy(origin_.back(), values.data(), length * sizeof(float), cudaMemcpyHostToDevice),
                   "cudaMemcpy");
        start_.push_back(std::move(values));
      }
  }
  ~Buffers() {
    for (float* memory : allocated_) cudaFree(memory);
  }

  // What torch would have enqueued before the call, and behind it: nobody waits in between.
  void fill(const Placement& placement) const { copy_on(placement, origin_, memory_); }
  void collect(const Placement& placement) const { copy_on(placement, memory_, found_); }

  std::vector<Table> tables() const {
    Table table{DType::f32, Op::sum, sizeof(float), {}, {}};
    for (size_t t = 0; t < lengths_.size(); ++t)
      for (int shard = 0; shard < program_.shards; ++shard) {
        const auto [begin, elems] = part(lengths_[t], shard);
        if (elems <= 0) continue;
        table.rows.push_back({shard, elems, table.pointers.size()});
        for (int rank = 0; rank < program_.ranks; ++rank)
          table.pointers.push_back(reinterpret_cast<std::byte*>(memory_[rank * lengths_.size() + t] + begin));
      }
    return {table};
  }

  void expect_reduced(const std::string& where, int times = 1) const {
    auto wanted = start_;
    for (int n = 0; n < times; ++n) interpret(wanted);
    for (size_t i = 0; i < memory_.size(); ++i) {
      std::vector<float> found(wanted[i].size());
      cuda_check(cudaMemcpy(found.data(), found_[i], found.size() * sizeof(float), cudaMemcpyDeviceToHost),
                 "cudaMemcpy");
      if (std::memcmp(found.data(), wanted[i].data(), found.size() * sizeof(float)) != 0)
        fail(where + ": wrong sums in rank " + std::to_string(i / lengths_.size()));
    }
  }

 private:
  float* allocate(int device, int64_t elems) {
    float* memory;
    const DeviceGuard guard(device);
    cuda_check(cudaMalloc(&memory, elems * sizeof(float)), "cudaMalloc");
    allocated_.push_back(memory);
    return memory;
  }

  void copy_on(const Placement& placement, const std::vector<float*>& from, const std::vector<float*>& to) const {
    for (size_t i = 0; i < from.size(); ++i) {
      const size_t rank = i / lengths_.size();
      const DeviceGuard guard(devices_[rank]);
      cuda_check(cudaMemcpyAsync(to[i], from[i], start_[i].size() * sizeof(float), cudaMemcpyDeviceToDevice,
                                 placement.current[rank]),
                 "cudaMemcpyAsync");
    }
  }

  std::pair<int64_t, int64_t> part(int64_t length, int shard) const {
    const int64_t each = (length + program_.shards - 1) / program_.shards;
    return {shard * each, std::min(each, length - shard * each)};
  }

  void interpret(std::vector<std::vector<float>>& values) const {
    const size_t tensors = lengths_.size();
    for (const Instruction& step : program_.instructions)
      for (size_t t = 0; t < tensors; ++t) {
        const auto [begin, elems] = part(lengths_[t], step.shard);
        for (int64_t i = begin; i < begin + elems; ++i) {
          float sum = values[step.srcs[0] * tensors + t][i];
          for (size_t s = 1; s < step.srcs.size(); ++s) sum += values[step.srcs[s] * tensors + t][i];
          for (int dst : step.dsts) values[dst * tensors + t][i] = sum;
        }
      }
  }

  const Program& program_;
  std::vector<int64_t> lengths_;
  std::vector<int> devices_;
  std::vector<float*> allocated_, memory_, origin_, found_;
  std::vector<std::vector<float>> start_;
};

inline void synchronize(int devices) {
  for (int d = 0; d < devices; ++d) {
    const DeviceGuard guard(d);
    cuda_check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }
}

}  // namespace engines_test

// peers_test.cpp; each returns how many cases were right.
int kept_proofs(const std::string& path);
int kept_failures(const std::string& path);
int unknown_in_a_capture();
int first_scratch_in_a_capture();

namespace engines_test {

// Ranks dealt over the devices, each with a stream of its own as torch's current one.
struct Machine {
  explicit Machine(int ranks, int devices, bool lane_per_rank = false, int slices = 0) : devices(devices) {
    placement.lane_per_rank = lane_per_rank;
    placement.slices = slices;
    for (int r = 0; r < ranks; ++r) {
      const int device = r % devices;
      placement.device_of_rank.push_back(device);
      const DeviceGuard guard(device);
      if (!streams.contains(device)) streams.emplace(device, make_stream());
      placement.current.push_back(streams.at(device).get());
    }
  }
  int devices;
  Placement placement;
  std::map<int, Stream> streams;
};

}  // namespace engines_test
