#include "work.h"

#include <cxxabi.h>

#include <algorithm>
#include <cstring>
#include <numeric>

namespace virtual_cuda {
namespace {

std::string demangled(const char* name) {
  int status = 0;
  std::unique_ptr<char, decltype(&std::free)> text(abi::__cxa_demangle(name, nullptr, nullptr, &status), std::free);
  return text ? text.get() : name;
}

unsigned char* bytes_at(uintptr_t address) { return reinterpret_cast<unsigned char*>(address); }

void make_garbage(const Access& access) {
  for (uintptr_t at = access.begin; at < access.end; ++at) *bytes_at(at) ^= 0xa5;
}

// What a lying pair does to one piece of work.
struct Losses {
  std::vector<Access> dropped;  // the destination keeps what it held
  std::vector<Access> garbage;
  bool hangs = false;

  void add(const Lie& lie, const Access& access, bool as_garbage) {
    if (lie.hangs)
      hangs = true;
    else
      (as_garbage ? garbage : dropped).push_back(access);
  }
};

std::function<void(Rng&, bool)> losing(std::function<void(Rng&, bool)> run, Losses losses) {
  if (losses.dropped.empty() && losses.garbage.empty()) return run;
  return [run, losses](Rng& rng, bool threads) {
    std::vector<std::vector<unsigned char>> before;
    for (const Access& a : losses.dropped) before.emplace_back(bytes_at(a.begin), bytes_at(a.end));
    run(rng, threads);
    for (const Access& a : losses.garbage) make_garbage(a);
    for (size_t i = 0; i < before.size(); ++i)
      std::copy(before[i].begin(), before[i].end(), bytes_at(losses.dropped[i].begin));
  };
}

Losses kernel_losses(Runtime& rt, const Work& work) {
  Losses losses;
  for (const Lie& lie : rt.config.lies) {
    if (lie.device != work.device) continue;
    const bool misreads = lie.reads && std::any_of(work.accesses.begin(), work.accesses.end(), [&](auto& a) {
      return !a.writes && rt.memory.device_of(a.begin) == lie.peer;
    });
    for (const Access& a : work.accesses) {
      if (!a.writes) continue;
      if (misreads) losses.add(lie, a, true);
      if (lie.writes && rt.memory.device_of(a.begin) == lie.peer) losses.add(lie, a, lie.garbage);
    }
  }
  return losses;
}

Losses copy_losses(Runtime& rt, int from, int to, const Access& written) {
  Losses losses;
  const auto& enabled = rt.checker.enabled_peers;
  const bool staged = !enabled.contains({from, to}) && !enabled.contains({to, from});
  for (const Lie& lie : rt.config.lies)
    if (lie.copies && !staged && lie.device == from && lie.peer == to) losses.add(lie, written, lie.garbage);
  return losses;
}

struct Grid {
  dim3 dim;
  unsigned block_threads;
  bool blocks_wait;
  std::function<void()> thread;

  void run_blocks(const unsigned* begin, const unsigned* end) const {
    gridDim = dim;
    blockDim = block_threads;
    for (; begin != end; ++begin) {
      blockIdx = {*begin % dim.x, *begin / dim.x % dim.y, *begin / dim.x / dim.y};
      for (threadIdx.x = 0; threadIdx.x < block_threads; ++threadIdx.x) thread();
    }
  }

  // Blocks have no order; on two threads, ThreadSanitizer sees what they share.
  void run(Rng& rng, bool threads) const {
    std::vector<unsigned> order(dim.x * dim.y * dim.z);
    std::iota(order.begin(), order.end(), 0U);
    std::shuffle(order.begin(), order.end(), rng);
    const unsigned* begin = order.data();
    const unsigned* end = begin + order.size();
    if (blocks_wait) {
      std::vector<std::thread> blocks;
      for (; begin != end; ++begin) blocks.emplace_back([this, begin] { run_blocks(begin, begin + 1); });
      for (std::thread& block : blocks) block.join();
      return;
    }
    const unsigned* middle = threads && rng.below(2) == 0 ? begin + order.size() / 2 : begin;
    std::thread other;
    if (middle != begin) other = std::thread([&] { run_blocks(begin, middle); });
    run_blocks(middle, end);
    if (other.joinable()) other.join();
  }
};

std::string place(const Runtime& rt, uintptr_t address) {
  const int device = rt.memory.device_of(address);
  return device >= 0 ? "device " + std::to_string(device) : "the host";
}

}  // namespace

SharedWork kernel_work(Runtime& rt, const cudaLaunchConfig_t& config, Launch launch, int device) {
  Work work{
      "kernel(" + demangled(launch.args_name) + ") on device " + std::to_string(device), device, true, {}, {}, false};
  Accesses accesses;
  if (launch.declare)
    launch.declare(device, accesses);
  else
    rt.report("undeclared: " + work.name + " has no declare_accesses");
  work.accesses = std::move(accesses.ranges);
  const unsigned threads = std::min(config.blockDim.x, static_cast<unsigned>(rt.config.block_threads));
  const Grid grid{config.gridDim, threads, rt.config.blocks_wait, std::move(launch.thread)};
  Losses losses = kernel_losses(rt, work);
  work.hangs = losses.hangs;
  work.run = losing([grid](Rng& rng, bool threads) { grid.run(rng, threads); }, std::move(losses));
  return std::make_shared<const Work>(std::move(work));
}

SharedWork copy_work(Runtime& rt, void* dst, const void* src, size_t bytes, int device) {
  const auto to = reinterpret_cast<uintptr_t>(dst), from = reinterpret_cast<uintptr_t>(src);
  Accesses accesses;
  accesses.reads(src, bytes);
  accesses.writes(dst, bytes);
  auto run = [dst, src, bytes](Rng&, bool) { std::memmove(dst, src, bytes); };
  Losses losses = copy_losses(rt, rt.memory.device_of(from), rt.memory.device_of(to), {to, to + bytes, true});
  const bool hangs = losses.hangs;
  return std::make_shared<const Work>(Work{"copy from " + place(rt, from) + " to " + place(rt, to), device, false,
                                           std::move(accesses.ranges), losing(run, std::move(losses)), hangs});
}

SharedWork upload_work(void* dst, const void* src, size_t bytes, int device) {
  Accesses accesses;
  accesses.writes(dst, bytes);
  const auto* const first = static_cast<const unsigned char*>(src);
  auto run = [dst, staged = std::vector(first, first + bytes)](Rng&, bool) {
    std::memcpy(dst, staged.data(), staged.size());
  };
  return std::make_shared<const Work>(
      Work{"upload to device " + std::to_string(device), device, false, std::move(accesses.ranges), run, false});
}

SharedWork memset_work(void* dst, int value, size_t bytes, int device) {
  Accesses accesses;
  accesses.writes(dst, bytes);
  auto run = [dst, value, bytes](Rng&, bool) { std::memset(dst, value, bytes); };
  return std::make_shared<const Work>(
      Work{"memset on device " + std::to_string(device), device, false, std::move(accesses.ranges), run, false});
}

}  // namespace virtual_cuda
