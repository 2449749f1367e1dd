// What a test sets up, makes fail and looks at. Call `reset` before the first CUDA call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cuda_runtime_api.h"

namespace virtual_cuda {

// The memory that one kernel, copy or memset touches.
struct Access {
  uintptr_t begin, end;
  bool writes;
};

// Filled by `void declare_accesses(const Args& args, int device, virtual_cuda::Accesses& out)`, found by
// the type of a kernel's only argument and declared before the first launch. `out` may be a template's
// parameter, for sources that nvcc compiles too. What is both read and written is declared twice.
class Accesses {
 public:
  void reads(const void* pointer, size_t bytes) { add(pointer, bytes, false); }
  void writes(const void* pointer, size_t bytes) { add(pointer, bytes, true); }
  std::vector<Access> ranges;

 private:
  void add(const void* pointer, size_t bytes, bool writes) {
    const auto begin = reinterpret_cast<uintptr_t>(pointer);
    if (bytes > 0) ranges.push_back({begin, begin + bytes, writes});
  }
};

// A pair that says it has peer access and loses data: what `device` does to memory of `peer`
// (kernels), or what is copied from `device` to `peer` while either has the other enabled.
struct Lie {
  int device, peer;
  bool writes = true;    // a kernel's writes
  bool reads = false;    // a kernel's reads: all it writes from them is garbage
  bool copies = false;   // the copy engine
  bool garbage = false;  // lost writes and copies leave garbage, not what was there before
  bool hangs = false;    // linear only: what would be lost never finishes instead
};

// Memory that cudaMalloc did not allocate. Peer access alone does not make it usable for other devices.
enum class Foreign {
  pool,    // of a pool, one for each device, of which no other has access until it is set
  shared,  // mapped with access for all devices
  closed,  // mapped with access for its own device only
};

struct Config {
  int devices = 2;                            // 0: every call finds no device
  std::vector<std::vector<bool>> peers = {};  // peers[d][e]: d can reach e's memory; empty: all can
  std::vector<Lie> lies = {};
  uint64_t seed = 1;
  int max_delay_us = 50;  // before each item of a stream's work
  // One thread: what was queued runs at the next synchronisation or query, in a random legal order.
  bool linear = false;
  bool verify_writes = false;  // linear only: look for writes that the kernel did not declare
  int max_peers = 16;          // enabled by one device; 8 on machines without a switch
  int multiprocessors = 4;
  std::vector<int> gpus = {};             // gpus[d]: of which device d is a part, as by MIG; empty: each its own
  bool blocks_wait = false;               // for each other and for those of other devices: all run at once
  bool loads_wait = false;                // a kernel that is loaded waits for all that its device does
  int block_threads = 1;                  // of every block as many run, or as many as the launch asks for
  size_t memory_bytes = size_t{1} << 30;  // of each device
  bool reuse_addresses = false;           // what is freed last is allocated first, as torch's allocator does
  bool pools_open = true;                 // other devices can be given access to a pool
};

// Ends all work, reports what leaked, forgets every object and starts anew; violations stay until
// taken. `reseed` keeps all objects and changes only the order of what comes.
void reset(const Config& config);
void reseed(uint64_t seed);

// What went wrong since they were last taken, in words. A process that ends with violations that
// nobody took exits with status 97.
std::vector<std::string> violations();
std::vector<std::string> take_violations();

// Ends all work and reports what is still alive: streams, events, graphs, captures, memory.
void check_clean();

// The n-th call from now (the n-th of that name), 1 being the next, returns the error without doing
// anything. A destroy, a free or an EndCapture still gives up its object, as CUDA's do when they
// return the error of earlier work: nobody could do it for them.
void fail_call(int64_t n, cudaError_t error);
void fail_call(const std::string& name, cudaError_t error, int64_t n = 1);
void forget_failures();

// Before the n-th call from now, another thread runs `what` to its end. 0: never mind.
void interrupt_call(int64_t n, std::function<void()> what);

// The names of all calls since reset; GetLastError, PeekAtLastError and the texts of errors do not
// count, for they cannot fail.
std::vector<std::string> calls();
int64_t calls_made();
std::string failed_call();  // the last call made to fail; empty: none since reset

void* allocate_foreign(Foreign kind, int device, size_t bytes);  // for cudaFree

// Tells the checker that the host itself is about to touch this memory.
void host_reads(const void* pointer, size_t bytes);
void host_writes(const void* pointer, size_t bytes);

void set_driver_version(int version);  // until the next reset

// Devices that have a primary context, each of which takes hundreds of MB of the device's memory.
std::set<int> contexts();

size_t allocated_bytes(int device);  // cudaMalloc'ed; of the host's pinned memory for device -1
int64_t graphs_launched();           // since reset, those launched into captures left out
int64_t work_queued();               // kernels, copies, memsets handed to devices since reset

// What streams and launched graphs were given: to be held against what a model says of it.
struct Traffic {
  int64_t kernels = 0, copies = 0;
  int64_t waits = 0;                             // of a stream, or a graph node, for another device
  std::map<std::pair<int, int>, int64_t> bytes;  // from one device's memory to another's; -1: the host's
};
Traffic take_traffic();  // since reset, or since it was last taken

}  // namespace virtual_cuda
