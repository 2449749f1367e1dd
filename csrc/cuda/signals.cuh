// How a block waits for the blocks of other GPUs that have the same tile (cuda/flags.cpp).
#pragma once

#include <cuda_runtime.h>

#include <chrono>

#include "cuda/launch.h"

namespace fastreduce {
namespace {

__device__ inline uint32_t load_acquire(const uint32_t* from) {
#ifdef __CUDA_ARCH__
  uint32_t value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
  return value;
#else
  return __atomic_load_n(from, __ATOMIC_ACQUIRE);
#endif
}

__device__ inline void store_release(uint32_t* to, uint32_t value) {
#ifdef __CUDA_ARCH__
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
#else
  __atomic_store_n(to, value, __ATOMIC_RELEASE);
#endif
}

__device__ inline uint64_t now_ns() {
#ifdef __CUDA_ARCH__
  uint64_t ns;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
  return ns;
#else
  return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
#endif
}

// The signals of one tile in one launch. Every lane has, in its own memory, a word for each lane and tile. A lane
// reports progress by writing its word in the other lanes' memories, so each lane waits on its own memory. For a row of
// n instructions a word rises by 1 when the lane has begun (what its stream did before is done), by i + 2 in all when
// it has done instruction i, and by n + 2 when it touches no memory of the call any more. The word for itself changes
// only at the end: until then it is the value from which the others count.
struct Signals {
  const LaunchArgs& args;
  int tile;

  __device__ uint32_t* word(int in, int of) const {
    auto* const words = reinterpret_cast<uint32_t*>(args.pointer(args.first_signals + in));
    return words + of * kMaxSignalTiles + tile;
  }
  __device__ uint32_t begun_at() const { return *word(args.lane, args.lane); }

  // The barrier makes all of the block's writes part of what the release publishes.
  __device__ void tell(int progress) const {
    __syncthreads();
    const uint32_t value = begun_at() + static_cast<uint32_t>(progress);
    for (int lane = static_cast<int>(threadIdx.x); lane < args.num_lanes; lane += static_cast<int>(blockDim.x))
      if (lane != args.lane) store_release(word(lane, args.lane), value);
  }

  // False if the host ended the wait, because a launch of another lane has failed. Words may wrap around.
  __device__ bool wait_for(int lane, int progress) const {
    const uint32_t wanted = begun_at() + static_cast<uint32_t>(progress);
    const auto* const end = reinterpret_cast<const WaitEnd*>(args.pointer(args.first_signals + args.num_lanes));
    const uint64_t begin_ns = now_ns();
    for (uint32_t turn = 1; static_cast<int32_t>(load_acquire(word(args.lane, lane)) - wanted) < 0; ++turn) {
      if (turn % 256 != 0) continue;
      if (load_acquire(&end->now)) return false;
      if (now_ns() - begin_ns > end->after_s * uint64_t{1'000'000'000}) __trap();
    }
    return true;
  }

  // The functions below return false, to all threads of the block, if it must touch no tensor any more.

  __device__ bool meet(int progress) const {
    tell(progress);
    bool all = true;
    for (int lane = static_cast<int>(threadIdx.x); lane < args.num_lanes; lane += static_cast<int>(blockDim.x))
      if (lane != args.lane) all = wait_for(lane, progress) && all;
    return __syncthreads_and(all);
  }

  __device__ bool begin() const { return meet(1); }

  __device__ bool wait(const StepArg& step) const {
    if (step.num_waits == 0) return true;
    bool all = true;
    for (int i = static_cast<int>(threadIdx.x); i < step.num_waits; i += static_cast<int>(blockDim.x)) {
      const WaitArg& wait = args.wait(step.first_wait + i);
      all = wait_for(wait.lane, wait.number + 2) && all;
    }
    return __syncthreads_and(all);
  }

  __device__ void end(int instructions) const {
    meet(instructions + 2);
    if (threadIdx.x == 0) *word(args.lane, args.lane) += static_cast<uint32_t>(instructions) + 2;
  }
};

}  // namespace
}  // namespace fastreduce
