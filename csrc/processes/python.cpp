#include "processes/python.h"

#include <pybind11/chrono.h>
#include <pybind11/functional.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include "processes/backend.h"
#include "processes/heap.h"

namespace fastreduce {
namespace {

namespace py = pybind11;
using BackendPointer = c10::intrusive_ptr<c10d::Backend>;

using NamedRanks = std::tuple<std::string, std::vector<int>>;  // of one machine

BackendPointer process_backend(int rank, std::vector<std::string> names, std::chrono::milliseconds timeout,
                               size_t shared_bytes, const ProcessBackend::Exchange& exchange, BackendPointer rest,
                               const std::vector<NamedRanks>& machines, const std::vector<std::string>& all_names,
                               BackendPointer across, bool own_cores) {
  const py::gil_scoped_release no_gil;
  std::optional<Machines::Settings> several;
  if (across) {
    several = Machines::Settings{{}, {}, all_names, std::move(across), rest};
    for (const auto& [name, ranks] : machines) {
      several->names.push_back(name);
      several->ranks.push_back(ranks);
    }
  }
  const ProcessBackend::Settings settings{rank,         std::move(names), all_names, timeout,
                                          shared_bytes, std::move(rest),  own_cores};
  return c10::make_intrusive<ProcessBackend>(settings, exchange, std::move(several));
}

BackendPointer make_group_in_python(const Membership& of) {
  const py::gil_scoped_acquire gil;
  const py::object make = py::module::import("fastreduce.distributed.backend").attr("joined");
  return make(of.store, of.rank, of.timeout, of.names, of.shared_bytes).cast<BackendPointer>();
}

}  // namespace

void define_processes(py::module& module) {
  make_group = make_group_in_python;
  without_gil = [](const std::function<void()>& body) {
    if (!Py_IsInitialized() || !PyGILState_Check()) return body();
    const py::gil_scoped_release no_gil;
    body();
  };
  py::module::import("atexit").attr("register")(
      py::cpp_function(&Queue::end_all, py::call_guard<py::gil_scoped_release>()));
  py::class_<ProcessBackend, c10::intrusive_ptr<ProcessBackend>, c10d::Backend>(module, "ProcessBackend")
      .def("allocate_tensor", [](const ProcessBackend&, long size, at::ScalarType dtype, c10::Device device) {
    return ProcessBackend::memory_for_calls(size, at::TensorOptions().dtype(dtype).device(device));
  }, py::arg("size"), py::kw_only(), py::arg("dtype"), py::arg("device"));
  module.def("process_backend", &process_backend, py::arg("rank"), py::arg("names"), py::arg("timeout"),
             py::arg("shared_bytes"), py::arg("exchange"), py::arg("rest"),
             py::arg("machines") = std::vector<NamedRanks>(), py::arg("all_names") = std::vector<std::string>(),
             py::arg("across") = BackendPointer(), py::arg("own_cores") = false);
  module.def("shared_empty", [](const std::vector<int64_t>& sizes, at::ScalarType dtype) {
    return Heap::instance().allocate(sizes, dtype);
  }, py::arg("sizes"), py::arg("dtype"));
  module.def("set_wait_on_shared_gpus", [](bool wait) { wait_on_shared_gpus = wait; }, py::arg("wait"));
  module.def("set_share_device_memory", [](bool share) { share_device_memory = share; }, py::arg("share"));
}

}  // namespace fastreduce
