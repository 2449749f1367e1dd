#include "shard_threads.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <ATen/SavedTensorHooks.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <malloc.h>
#include <omp.h>
#include <torch/csrc/Exceptions.h>
#include <torch/library.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <thread>
#include <utility>

// Of torch's OpenMP, if it has this function of OpenMP 5.0.
extern "C" int omp_pause_resource_all(omp_pause_resource_t) __attribute__((weak));

namespace fastreduce {
namespace {

// A forked process has none of the threads that its copy of OpenMP would wait for.
const pid_t kProcess = getpid();

// A key that no tensor has and for which torch has no kernels: a thread has it inside of DrawsFrom. For all operations
// that take no generator it costs nothing.
constexpr c10::DispatchKey kDraws = c10::DispatchKey::TESTING_ONLY_GenericMode;
const c10::DispatchKeySet kAfterDraws(c10::DispatchKeySet::FULL_AFTER, kDraws);

thread_local DrawsFrom* of_this_thread = nullptr;

std::atomic<int64_t> refused{0};

at::mt19937_data_pod state_of(at::Generator generator) {
  const std::lock_guard lock(generator.mutex());
  return generator.get<at::CPUGeneratorImpl>()->engine().data();
}

at::mt19937_data_pod state_of_torch() { return state_of(at::detail::getDefaultCPUGenerator()); }

bool is_equal(const at::mt19937_data_pod& one, const at::mt19937_data_pod& other) {
  return one.seed_ == other.seed_ && one.left_ == other.left_ && one.next_ == other.next_ && one.state_ == other.state_;
}

bool is_generator(const c10::Argument& argument) {
  const c10::TypePtr type = argument.type();
  const auto optional = type->cast<c10::OptionalType>();
  return (optional ? optional->getElementType() : type)->kind() == c10::TypeKind::GeneratorType;
}

bool takes_generator(const c10::FunctionSchema& schema) {
  return std::any_of(schema.arguments().begin(), schema.arguments().end(), is_generator);
}

bool is_elsewhere(const c10::IValue& argument) {
  if (argument.isDevice()) return !argument.toDevice().is_cpu();
  return argument.isTensor() && argument.toTensor().defined() && !argument.toTensor().is_cpu();
}

void draw(const c10::OperatorHandle& operation, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  if (DrawsFrom::lend(operation.schema(), *stack)) return operation.redispatchBoxed(keys & kAfterDraws, stack);
  ++refused;
  const pybind11::gil_scoped_acquire gil;
  PyErr_SetNone(has_drawn());
  python_error error;
  error.persist();
  throw error;
}

// All that is drawn, is drawn in the end by an operation of torch that may be given a generator.
void register_kernels() {
  static torch::Library all(torch::Library::IMPL, "_", kDraws, __FILE__, __LINE__);
  all.fallback(torch::CppFunction::makeFallthrough());
  static torch::Library aten(torch::Library::IMPL, "aten", kDraws, __FILE__, __LINE__);
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    if (!name.name.starts_with("aten::")) continue;
    const auto found = c10::Dispatcher::singleton().findSchema(name);
    if (!found || !takes_generator(found->schema())) continue;
    const std::string own = name.name.substr(6) + (name.overload_name.empty() ? "" : "." + name.overload_name);
    aten.impl(own.c_str(), torch::CppFunction::makeFromBoxedFunction<&draw>());
  }
}

}  // namespace

PyObject* has_drawn() {
  static PyObject* const type = PyErr_NewException("fastreduce._C.HasDrawn", PyExc_BaseException, nullptr);
  return type;
}

// Here, not in enter(): while a kernel is registered, other threads of the shards must not look for theirs.
DrawsFrom::DrawsFrom(std::optional<at::Generator> own)
    : own_(std::move(own)), torchs_(state_of_torch()), begin_(own_ ? state_of(*own_) : torchs_) {
  [[maybe_unused]] static const bool registered = (register_kernels(), true);
}

void DrawsFrom::enter() {
  before_ = std::exchange(of_this_thread, this);
  with_gradients_ = c10::GradMode::is_enabled();
  included_before_ = c10::impl::tls_is_dispatch_key_included(kDraws);
  c10::impl::tls_set_dispatch_key_included(kDraws, true);
}

void DrawsFrom::exit() {
  c10::impl::tls_set_dispatch_key_included(kDraws, included_before_);
  of_this_thread = before_;
}

bool DrawsFrom::drew() const { return own_ && !is_equal(state_of(*own_), begin_); }

bool DrawsFrom::is_here() { return of_this_thread != nullptr; }

int64_t DrawsFrom::refusals() { return refused; }

bool DrawsFrom::lend(const c10::FunctionSchema& schema, torch::jit::Stack& stack) {
  DrawsFrom* const own = of_this_thread;
  const auto& arguments = schema.arguments();
  const auto found = torch::jit::last(stack, arguments.size());
  if (!own || !own->own_ || own->may_be_repeated()) return false;
  if (std::any_of(found.begin(), found.end(), is_elsewhere)) return false;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (!is_generator(arguments[i])) continue;
    c10::IValue& given = torch::jit::peek(stack, i, arguments.size());
    if (given.isNone())
      given = *own->own_;
    else if (given.toGenerator() != *own->own_)
      return false;
  }
  return true;
}

// Checkpoints keep the state of torch's generator, and are made with hooks or without gradients.
bool DrawsFrom::may_be_repeated() const {
  return at::SavedTensorDefaultHooks::get_hooks(true) || c10::GradMode::is_enabled() != with_gradients_ ||
         !is_equal(state_of_torch(), torchs_);
}

// at::set_num_threads sets two things: what the calling thread uses, and what all others begin with.
void take_cores(int cores) {
  const int of_others = at::get_num_threads();
  at::set_num_threads(cores);
  std::thread([of_others] { at::set_num_threads(of_others); }).join();
}

void use_cores(int cores) {
  at::get_num_threads();  // the first time, torch sets how many this thread uses
  omp_set_num_threads(cores);
}

void end_waiting_threads() {
  if (omp_pause_resource_all && getpid() == kProcess) omp_pause_resource_all(omp_pause_soft);
}

// The first two are where glibc's own limits end up after a block of 32 MiB has been mapped for itself alone and freed.
// The third is as large as the heaps from which other threads than the first take their memory: an empty one goes back
// to the system unless those before it are so full that less than this is free (heap_trim in glibc's malloc/arena.c).
// On 2 cores of an AMD EPYC (family 26 model 2, 2026-11-30) a step of ResNet-18 with 4 replicas, at the same time, had
// 3,500 to 11,500 page faults without the third and took 1.24 to 1.36 times as long as the bare module's, now 1.22; one
// of a transformer with 2 replicas had 5,000 to 6,000 and took 1.04 to 1.05, now 0.99 to 1.02.
void keep_freed_memory() {
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
  mallopt(M_TRIM_THRESHOLD, 64 << 20);
  mallopt(M_TOP_PAD, 64 << 20);
}

}  // namespace fastreduce
