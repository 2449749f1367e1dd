// Which devices reach each other: what is kept of it, and what a capture must not find out.
#include <fstream>
#include <sstream>

#include "cases.h"
#include "cuda/peers.h"

using namespace engines_test;

namespace {

struct Call {
  explicit Call(int devices, bool lane_per_rank = false)
      : one{program_of("sharded", devices), kSum, {100}, {0, 0}, {.devices = devices, .lane_per_rank = lane_per_rank}},
        program(copy_of(one.named.program)),
        machine(devices, one.setting),
        content(one.content()),
        buffers(content, machine.placement) {}
  void run() const { run_events(program, buffers.tables(), machine.placement); }
  cudaStream_t stream() const { return machine.placement.current[0]; }

  Case one;
  Schedule program;
  Machine machine;
  Content content;
  Buffers buffers;
};

template <class Error>
std::string thrown_by(const Call& call) {
  try {
    call.run();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

void reduce(const std::string& where) {
  const Call call(4);
  call.buffers.fill();
  call.run();
  call.buffers.collect();
  synchronize(4);
  call.buffers.expect_reduced(where);
  expect_clean(where);
}

int64_t work_of_reduce(const std::string& where) {
  const int64_t before = virtual_cuda::work_queued();
  reduce(where);
  return virtual_cuda::work_queued() - before;
}

// Of four devices' ordered pairs; the hook hears of each once.
void expect_reached(int pairs) {
  static int reached = 0;
  reached = 0;
  forget_peers();
  when_reached([](int, int) { ++reached; });
  for (int times = 0; times < 2; ++times) reduce("hears of pairs");
  when_reached(nullptr);
  if (reached != pairs) fail("heard of " + std::to_string(reached) + " pairs, not of " + std::to_string(pairs));
}

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

// The lines with one of their words changed: the boot, the driver's version, the device, the other device.
std::string with_another(int word, const std::string& proofs) {
  std::istringstream lines(proofs);
  std::string changed;
  for (std::string line; std::getline(lines, line);) {
    size_t at = 0;
    for (int i = 0; i < word; ++i) at = line.find(' ', at) + 1;
    line[at] = line[at] == '1' ? '2' : '1';
    changed += line + "\n";
  }
  return changed;
}

std::string uuid_of(int device) {
  cudaDeviceProp properties;
  if (cudaGetDeviceProperties(&properties, device) != cudaSuccess) fail("no uuid");
  std::string text;
  for (const unsigned char byte : properties.uuid.bytes) {
    char two[3];
    std::snprintf(two, sizeof two, "%02x", byte);
    text += two;
  }
  return text;
}

// What a proof is kept under cannot be asked for: the error says so, and the next call asks again.
void expect_errors_of_keys() {
  for (const std::string name : {"cudaDriverGetVersion", "cudaGetDeviceProperties"}) {
    forget_peers();
    virtual_cuda::fail_call(name, cudaErrorUnknown);
    const std::string thrown = thrown_by<std::runtime_error>(Call(4));
    virtual_cuda::forget_failures();
    if (thrown.find(name + " failed: cudaErrorUnknown") == std::string::npos)
      fail(name + " failed, and what was thrown is \"" + thrown + '"');
  }
}

int64_t properties_asked() {
  const auto calls = virtual_cuda::calls();
  return std::count(calls.begin(), calls.end(), "cudaGetDeviceProperties");
}

// A second process finds the proofs of the first and tries nothing out; a line that is cut off, or of
// other devices, counts for nothing.
void engines_test::kept_proofs(const std::string& path) {
  const auto process = [&](const std::string& where) {
    forget_peers();
    return work_of_reduce(where);
  };
  const int64_t without = process("no file");
  keep_proofs_in(path);
  expect_errors_of_keys();
  const int64_t asked = properties_asked();
  if (process("an empty file") != without) fail("an empty file changes what is tried out");
  // The names of four devices, of which each is in six pairs. CUDA takes long to tell a device's properties.
  if (properties_asked() != asked + 4)
    fail("not asked once for each device, but " + std::to_string(properties_asked() - asked) + " times");
  const std::string proofs = text_of(path);
  if (std::count(proofs.begin(), proofs.end(), '\n') != 12) fail("not one line per pair:\n" + proofs);
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  const std::string first = boot + " " + std::to_string(CUDART_VERSION) + " " + uuid_of(0) + " " + uuid_of(1) + " .\n";
  if (!proofs.starts_with(first)) fail("not of this boot and of these devices:\n" + proofs);
  virtual_cuda::set_driver_version(12080);
  if (process("another driver") != without) fail("a proof counts under another driver's version");
  virtual_cuda::set_driver_version(CUDART_VERSION);
  std::ofstream(path) << proofs;
  if (process("a full file") >= without) fail("what the file holds was tried out again");
  if (text_of(path) != proofs) fail("the file grew");
  std::string cut = proofs;
  for (size_t at; (at = cut.find(".\n")) != std::string::npos;) cut.erase(at, 1);
  std::ofstream(path) << cut;
  if (process("lines cut off") != without) fail("a line that is cut off counts");
  const char* const words[] = {"boot", "driver", "device", "other device"};
  for (int word = 0; word < 4; ++word) {
    std::ofstream(path) << with_another(word, proofs);
    if (process(words[word]) != without) fail(std::string("a proof counts of another ") + words[word]);
  }
  std::ofstream(path) << proofs;
  if (process("the file again") >= without) fail("control: the file does not count either");
  keep_proofs_in("/proc/nowhere/proofs");
  if (process("a file that cannot be written") != without) fail("a file that is not there changes what is tried out");
  keep_proofs_in("");
  expect_reached(12);
  cases += 13;
}

// A broken pair stays broken: the next process believes the file, and warns as this one did.
void engines_test::kept_failures(const std::string& path) {
  keep_proofs_in(path);
  reduce("found out");
  if (text_of(path).find("a kernel's writes do not arrive.\n") == std::string::npos) fail("no failure kept");
  forget_peers();
  reduce("believed");
  expect_reached(11);
  cases += 2;
}

// Peers are known, the memory to go through the host is not there yet: a capture makes it.
void engines_test::first_scratch_in_a_capture() {
  reduce("finds out about all pairs");
  const Call call(3, true);  // lanes of their own, which have no memory yet
  call.buffers.fill();
  synchronize(4);
  const Captured graph(call.stream(), cudaStreamCaptureModeGlobal, [&] { call.run(); });
  graph.launch(call.stream());
  synchronize(4);
  call.buffers.collect();
  synchronize(4);
  call.buffers.expect_reduced("captured through the host");
  expect_clean("captured through the host");
  cases += 1;
}

// The next call finds what is missing, and makes it.
void engines_test::no_host_memory_once() {
  reduce("finds out about all pairs");
  const Call call(2, true);
  virtual_cuda::fail_call("cudaHostAlloc", cudaErrorMemoryAllocation, 2);
  const std::string thrown = thrown_by<std::runtime_error>(call);
  if (thrown.find("cudaHostAlloc failed: cudaErrorMemoryAllocation") == std::string::npos) fail("thrown: " + thrown);
  virtual_cuda::forget_failures();
  call.buffers.fill();
  call.run();
  call.buffers.collect();
  synchronize(4);
  call.buffers.expect_reduced("after an allocation that failed");
  expect_clean("after an allocation that failed");
  cases += 1;
}

// A pair whose trial fails is tried out by the next call. If it is broken then, its access is taken back all the same:
// the copy from 1 to 3 is the user's.
void engines_test::a_trial_that_fails_once() {
  const Call call(4);
  virtual_cuda::fail_call("cudaHostAlloc", cudaErrorMemoryAllocation, 6);  // that of 1 and 3
  const std::string thrown = thrown_by<std::runtime_error>(call);
  virtual_cuda::forget_failures();
  if (thrown.find("cudaHostAlloc failed: cudaErrorMemoryAllocation") == std::string::npos) fail("thrown: " + thrown);
  reduce("after a trial that failed");
  const DeviceMemory from = allocate_device(1, 4), to = allocate_device(3, 4);
  uint32_t found = 0, sent = 7;
  for (const auto& [dst, src] :
       {std::pair<void*, void*>{from.get(), &sent}, {to.get(), from.get()}, {&found, to.get()}})
    cuda_check(cudaMemcpy(dst, src, 4, cudaMemcpyDefault), "cudaMemcpy");
  if (found != sent) fail("after a trial that failed, a broken pair keeps its peer access");
  cases += 1;
}

// A call over streams of two captures would be part of one of them only.
void engines_test::two_captures() {
  const Call call(3);
  call.run();
  synchronize(3);
  const cudaStream_t streams[] = {call.machine.placement.current[0], call.machine.placement.current[2]};
  for (cudaStream_t stream : streams)
    cuda_check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  const std::string thrown = thrown_by<std::invalid_argument>(call);
  if (thrown.find("captured into different CUDA graphs") == std::string::npos) fail("thrown: " + thrown);
  for (cudaStream_t stream : streams) {
    cudaGraph_t graph;
    cuda_check(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
    const Graph owned(graph);
  }
  expect_clean("two captures");
  cases += 1;
}

// The error comes before anything is captured, so that the capture itself stays whole.
void engines_test::unknown_in_a_capture() {
  const Call call(3);
  cuda_check(cudaStreamBeginCapture(call.stream(), cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  const std::string thrown = thrown_by<std::runtime_error>(call);
  if (thrown.find("make the call once before it") == std::string::npos) fail("thrown: " + thrown);
  cudaGraph_t graph;
  cuda_check(cudaStreamEndCapture(call.stream(), &graph), "cudaStreamEndCapture");
  const Graph owned(graph);
  expect_clean("a capture with unknown peers");
  reduce("after it");
  cases += 2;
}
