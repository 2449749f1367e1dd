// The Python bindings: they convert arguments and errors, and do nothing else.
#include <ATen/ThreadLocalState.h>
#include <ATen/dlpack.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/version.h>

#include <cstdlib>
#include <map>
#include <memory>
#include <optional>

#include "backward.h"
#include "call.h"
#include "copy_engine.h"
#include "cpu/kernels.h"
#include "dispatcher.h"
#include "dtypes.h"
#include "float_modes.h"
#include "processes/python.h"
#include "programs.h"
#include "python_call.h"
#include "replicas.h"
#include "shard_threads.h"
#include "simulation/python.h"

namespace fastreduce {
namespace {

// ---- calls from C++ into Python

std::shared_ptr<const Schedule> build(const Question& question) {
  const py::gil_scoped_acquire gil;
  return python("fastreduce.plan.build", "build")(name_of(question.collective), question.algorithm, question.ranks,
                                                  question.root, question.place, question.nbytes, question.variable)
      .cast<std::shared_ptr<Schedule>>();
}

void find_algorithm(const std::string& name) {
  const py::gil_scoped_acquire gil;
  python("fastreduce.algorithms.registration", "find")(name);
}

// With the GIL.
std::string named_by_environment() {
  const char* value = std::getenv("FASTREDUCE_ALGORITHM");
  return value ? value : "";
}

std::string folder_for_caches() {
  const py::gil_scoped_acquire gil;
  try {
    return py::str(python("fastreduce.folders", "cache")());
  } catch (const py::error_already_set& error) {
    if (!error.matches(PyExc_FileNotFoundError)) throw;
    return "";  // this user has no home folder
  }
}

// ---- the functions for Python

void run_from_python(const std::string& collective, py::handle outputs, py::handle inputs, py::handle op,
                     py::handle root, py::handle algorithm, py::handle engine) {
  Call call = read_call(collective, outputs, inputs, op, root, algorithm, engine);
  if (is_to_be_chosen(call.collective, call.algorithm)) call.variable = named_by_environment();
  const py::gil_scoped_release no_gil;
  run_for_torch(call);
}

std::string place(const std::vector<c10::Device>& devices) {
  TORCH_CHECK_VALUE(!devices.empty(), "no devices: want one per rank");
  for (const c10::Device& device : devices)
    TORCH_CHECK_VALUE(device.type() == devices.front().type(), "devices are ", devices.front(), " and ", device,
                      "; want all ranks on GPUs or all on the CPU");
  Engine* engine = find_engine(devices.front().type());
  TORCH_CHECK_VALUE(engine, "this build of fastreduce has no engine for ", devices.front());
  return engine->place(Devices(devices.begin(), devices.end()));
}

// By the operation's name: the dtypes for which it is defined.
std::map<std::string, std::vector<at::ScalarType>> ops() {
  std::map<std::string, std::vector<at::ScalarType>> found;
  for (Op op : every_op())
    for (int type = 0; type < static_cast<int>(at::ScalarType::NumOptions); ++type)
      if (find_arithmetic(static_cast<at::ScalarType>(type), op))
        found[name_of(op)].push_back(static_cast<at::ScalarType>(type));
  return found;
}

struct Exported {
  bool read_only;                // known since DLPack 1.0
  std::vector<int64_t> strides;  // in elements; empty: those of a contiguous array
};

Exported exported(const DLTensor& tensor, bool read_only) {
  return {read_only,
          tensor.strides ? std::vector(tensor.strides, tensor.strides + tensor.ndim) : std::vector<int64_t>()};
}

// `capsule` is what an array's __dlpack__ returned.
Exported look_at(const py::capsule& capsule) {
  const std::string name = capsule.name() ? capsule.name() : "";
  if (name == "dltensor") return exported(capsule.get_pointer<DLManagedTensor>()->dl_tensor, false);
  if (name != "dltensor_versioned") throw py::type_error("no capsule of an array");
  const auto& versioned = *capsule.get_pointer<DLManagedTensorVersioned>();
  return exported(versioned.dl_tensor, (versioned.flags & DLPACK_FLAG_BITMASK_READ_ONLY) != 0);
}

// All that torch keeps for a thread: modes, hooks, function transforms, the profiler. Another thread has it between
// `enter` and `exit`, as autograd's threads have it.
class ThreadState {
 public:
  void enter() {
    before_.emplace();
    at::ThreadLocalState::setThreadLocalState(state_);
  }

  void exit(const py::args&) {
    at::ThreadLocalState::setThreadLocalState(*before_);
    before_.reset();
  }

 private:
  at::ThreadLocalState state_;
  std::optional<at::ThreadLocalState> before_;
};

void translate(std::exception_ptr error) {
  try {
    if (error) std::rethrow_exception(error);
  } catch (const python_error&) {  // autograd has told Python of it
  } catch (const c10::ValueError& e) {
    PyErr_SetString(PyExc_ValueError, e.what_without_backtrace());
  } catch (const c10::NotImplementedError& e) {
    PyErr_SetString(PyExc_NotImplementedError, e.what_without_backtrace());
  } catch (const c10::Error& e) {
    PyErr_SetString(PyExc_RuntimeError, e.what_without_backtrace());
  }
}

}  // namespace
}  // namespace fastreduce

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  using namespace fastreduce;
  build_schedule = build;
  look_at_file = find_algorithm;
  algorithm_of_environment = [] {
    const py::gil_scoped_acquire gil;
    return named_by_environment();
  };
  cache_folder = folder_for_caches;
  py::register_local_exception_translator(translate);  // others keep theirs
  py::class_<Schedule, std::shared_ptr<Schedule>>(module, "Schedule");
  module.def("run", &run_from_python, py::arg("collective"), py::arg("outputs"), py::arg("inputs"), py::arg("op"),
             py::arg("root"), py::arg("algorithm"), py::arg("engine"));
  module.def("place", &place, py::arg("devices"), py::call_guard<py::gil_scoped_release>());
  module.def("size_class", &size_class, py::arg("nbytes"));
  module.def("forget_schedules", &forget_schedules);
  module.def("cpu_kernels", [] { return cpu_kernels().name; });
  py::class_<Exported>(module, "Exported")
      .def_readonly("read_only", &Exported::read_only)
      .def_readonly("strides", &Exported::strides);
  py::class_<ThreadState>(module, "ThreadState")
      .def(py::init<>())
      .def("__enter__", &ThreadState::enter)
      .def("__exit__", &ThreadState::exit);
  py::class_<FloatModes>(module, "FloatModes").def(py::init<>()).def("set", &FloatModes::set);
  module.attr("HasDrawn") = py::handle(has_drawn());
  py::class_<DrawsFrom>(module, "DrawsFrom")
      .def(py::init<std::optional<at::Generator>>(), py::arg("own"))
      .def_property_readonly("drew", &DrawsFrom::drew)
      .def_static("is_here", &DrawsFrom::is_here)
      .def_static("refusals", &DrawsFrom::refusals)
      .def("__enter__", [](DrawsFrom& self) { return self.enter(), &self; }, py::return_value_policy::reference)
      .def("__exit__", [](DrawsFrom& self, const py::args&) { self.exit(); });
  module.def("take_cores", &take_cores, py::arg("cores"));
  module.def("use_cores", &use_cores, py::arg("cores"));
  module.def("end_waiting_threads", &end_waiting_threads, py::call_guard<py::gil_scoped_release>());
  module.def("keep_freed_memory", &keep_freed_memory);
  module.def("is_watched", &is_watched);
  module.def("look_at", &look_at, py::arg("capsule"));
  module.def("ops", &ops);
  module.def("replicate", &replicate, py::arg("params"), py::arg("memories"), py::arg("name"));
  py::class_<BackwardOfShards>(module, "BackwardOfShards")
      .def(py::init<Tensors>(), py::arg("losses"))
      .def_property_readonly("is_apart", &BackwardOfShards::is_apart)
      .def("run", &BackwardOfShards::run, py::arg("shard"), py::call_guard<py::gil_scoped_release>())
      .def("sum", &BackwardOfShards::sum, py::call_guard<py::gil_scoped_release>());
  module.def("copy_engine_bytes",
             [] { return std::pair<int64_t, int64_t>(nvlink_copy_engine_bytes, pcie_copy_engine_bytes); });
  module.def("set_copy_engine_bytes", [](int64_t nvlink, int64_t pcie) {
    nvlink_copy_engine_bytes = nvlink;
    pcie_copy_engine_bytes = pcie;
  }, py::arg("nvlink"), py::arg("pcie"));
  module.attr("default_copy_engine_bytes") = kCopyEngineBytes;
  module.def("set_lane_per_rank", [](bool on) {
    TORCH_CHECK(find_engine(c10::kCUDA), "this build of fastreduce has no CUDA engines");
    lane_per_rank = on;
  });
  define_processes(module);
  define_simulation(module);
  module.attr("cuda_engines") = find_engine(c10::kCUDA) != nullptr;
  module.attr("built_for_torch") = TORCH_VERSION;
  module.attr("compiler") = "g++ " __VERSION__;
}
