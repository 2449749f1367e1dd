#include "shard_threads.h"

#include <ATen/Parallel.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/Exceptions.h>
#include <torch/library.h>

#include <algorithm>
#include <thread>

namespace fastreduce {
namespace {

// A key that no tensor has and for which torch has no kernels: a thread has it inside of DrawsNothing. For all
// operations that take no generator it costs nothing.
constexpr c10::DispatchKey kDrawsNothing = c10::DispatchKey::TESTING_ONLY_GenericMode;

void raise(const c10::OperatorHandle&, torch::jit::Stack*) {
  const pybind11::gil_scoped_acquire gil;
  PyErr_SetNone(has_drawn());
  python_error error;
  error.persist();
  throw error;
}

bool takes_generator(const c10::FunctionSchema& schema) {
  const auto& arguments = schema.arguments();
  return std::any_of(arguments.begin(), arguments.end(), [](const c10::Argument& argument) {
    const c10::TypePtr type = argument.type();
    const auto optional = type->cast<c10::OptionalType>();
    return (optional ? optional->getElementType() : type)->kind() == c10::TypeKind::GeneratorType;
  });
}

// All that is drawn, is drawn in the end by an operation of torch that may be given a generator.
void register_kernels() {
  static torch::Library all(torch::Library::IMPL, "_", kDrawsNothing, __FILE__, __LINE__);
  all.fallback(torch::CppFunction::makeFallthrough());
  static torch::Library aten(torch::Library::IMPL, "aten", kDrawsNothing, __FILE__, __LINE__);
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    if (!name.name.starts_with("aten::")) continue;
    const auto found = c10::Dispatcher::singleton().findSchema(name);
    if (!found || !takes_generator(found->schema())) continue;
    const std::string own = name.name.substr(6) + (name.overload_name.empty() ? "" : "." + name.overload_name);
    aten.impl(own.c_str(), torch::CppFunction::makeFromBoxedFunction<&raise>());
  }
}

}  // namespace

PyObject* has_drawn() {
  static PyObject* const type = PyErr_NewException("fastreduce._C.HasDrawn", PyExc_BaseException, nullptr);
  return type;
}

// Here, not in enter(): while a kernel is registered, other threads of the shards must not look for theirs.
DrawsNothing::DrawsNothing() { [[maybe_unused]] static const bool registered = (register_kernels(), true); }

void DrawsNothing::enter() {
  before_ = c10::impl::tls_is_dispatch_key_included(kDrawsNothing);
  c10::impl::tls_set_dispatch_key_included(kDrawsNothing, true);
}

void DrawsNothing::exit() { c10::impl::tls_set_dispatch_key_included(kDrawsNothing, before_); }

// at::set_num_threads sets two things: what the calling thread uses, and what all others begin with.
void take_cores(int cores) {
  const int of_others = at::get_num_threads();
  at::set_num_threads(cores);
  std::thread([of_others] { at::set_num_threads(of_others); }).join();
}

}  // namespace fastreduce
