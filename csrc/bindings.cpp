// Python and the dispatcher meet the engines here, and nothing else happens here.
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/record_function.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/extension.h>
#include <torch/library.h>
#include <torch/version.h>

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>

#include "call.h"
#include "cpu/kernels.h"

namespace fastreduce {
namespace {

// ---- programs: built and verified in Python, once for each question, then kept

struct Question {
  Collective collective;
  std::string algorithm;
  int64_t ranks;
  int64_t root;
  std::string place;  // this and the size: only where the answer depends on them
  int64_t nbytes;
  auto operator<=>(const Question&) const = default;
};

// Python knows the user's folders; it is asked before the first pair of devices is tried out.
void keep_proofs_of_peers(const Call& call) {
  static std::atomic<bool> asked{false};
  if (!cuda_backend || !call.on_cuda() || asked.exchange(true)) return;
  py::gil_scoped_acquire gil;
  cuda_backend->keep_proofs_in(py::module_::import("fastreduce.plan.build").attr("proofs_file")().cast<std::string>());
}

Question question_of(const Call& call, const std::string& algorithm) {
  keep_proofs_of_peers(call);
  if (algorithm != "auto" || call.collective != Collective::allreduce)
    return {call.collective, algorithm, call.ranks(), call.root, "", 0};
  return {call.collective, algorithm, call.ranks(), call.root, place(call), size_class(call)};
}

std::mutex programs_mutex;
std::map<Question, std::shared_ptr<const Schedule>> programs;
int64_t programs_generation = 0;

std::shared_ptr<const Schedule> program_for(const Question& question) {
  int64_t generation;
  {
    std::lock_guard lock(programs_mutex);
    if (auto found = programs.find(question); found != programs.end()) return found->second;
    generation = programs_generation;
  }
  // Not under the lock: Python code may wait for the GIL, whose holder may wait for the lock.
  py::gil_scoped_acquire gil;
  auto built = py::module_::import("fastreduce.plan.build")
                   .attr("build")(name_of(question.collective), question.algorithm, question.ranks, question.root,
                         question.place, question.nbytes)
                   .cast<std::shared_ptr<Schedule>>();
  std::lock_guard lock(programs_mutex);
  // An algorithm that was replaced meanwhile serves this call, but no later one.
  if (generation == programs_generation) programs[question] = built;
  return built;
}

void forget_programs() {
  std::lock_guard lock(programs_mutex);
  programs.clear();
  ++programs_generation;
}

using PyInstruction = std::tuple<int, int, std::vector<int>, std::vector<int>, bool, std::vector<int>>;

std::shared_ptr<Schedule> make_program(int ranks, int buffers, int shards,
                                      const std::vector<PyInstruction>& described,
                                      std::vector<std::vector<int>> launches, bool whole_tensors) {
  std::vector<Instruction> instructions;
  std::vector<std::vector<int>> waits;
  for (const auto& [rank, shard, srcs, dsts, completes, earlier] : described) {
    instructions.push_back({rank, shard, srcs, dsts, completes});
    waits.push_back(earlier);
  }
  return std::make_shared<Schedule>(ranks, buffers, shards, std::move(instructions), std::move(waits),
                                   std::move(launches), whole_tensors);
}

// ---- the dispatcher's way: torch.compile, fake tensors, subclasses

Call make_call(const std::string& collective, at::TensorList outputs, at::TensorList inputs, int64_t ranks,
               const std::string& op, int64_t root) {
  TORCH_CHECK_VALUE(ranks > 0 && outputs.size() % ranks == 0 && inputs.size() % ranks == 0, outputs.size(),
                    " tensors cannot belong to ", ranks, " ranks");
  const auto per_rank = [&](at::TensorList list) { return static_cast<int64_t>(list.size()) / ranks; };
  return {parse_collective(collective),
          {inputs.empty() ? "tensors" : "outputs", outputs.vec(), ranks, per_rank(outputs)},
          {"tensors", inputs.vec(), inputs.empty() ? 0 : ranks, per_rank(inputs)},
          parse_op(op),
          root};
}

void dispatched(std::string_view collective, at::TensorList outputs, at::TensorList inputs, int64_t ranks,
                std::string_view op, int64_t root, std::string_view algorithm) {
  const Call call = make_call(std::string(collective), outputs, inputs, ranks, std::string(op), root);
  check(call);
  execute(call, *program_for(question_of(call, std::string(algorithm))));
}

// Tensors may be fake here, without a size or a device; whatever "auto" stands for writes all.
std::vector<bool> written_by(const Call& call, std::string_view algorithm) {
  return written_outputs(call, *program_for(question_of(call, std::string(algorithm == "auto" ? "leader" : algorithm))));
}

void dispatched_meta(std::string_view, at::TensorList, at::TensorList, int64_t, std::string_view, int64_t,
                     std::string_view) {}

void dispatch(std::string_view collective, at::TensorList outputs, at::TensorList inputs, int64_t ranks,
              std::string_view op, int64_t root, std::string_view algorithm) {
  static const auto handle = c10::Dispatcher::singleton()
                                 .findSchemaOrThrow("fastreduce::collective_", "")
                                 .typed<decltype(dispatched)>();
  handle.call(collective, outputs, inputs, ranks, op, root, algorithm);
}

void dispatched_autograd(std::string_view collective, at::TensorList outputs, at::TensorList inputs, int64_t ranks,
                         std::string_view op, int64_t root, std::string_view algorithm) {
  const Call call = make_call(std::string(collective), outputs, inputs, ranks, std::string(op), root);
  check_autograd(call.outputs, written_by(call, algorithm));
  at::AutoDispatchBelowAutograd below;
  dispatch(collective, outputs, inputs, ranks, op, root, algorithm);
}

void dispatched_inplace(std::string_view collective, at::TensorList outputs, at::TensorList inputs, int64_t ranks,
                        std::string_view op, int64_t root, std::string_view algorithm) {
  {
    at::AutoDispatchBelowADInplaceOrView below;
    dispatch(collective, outputs, inputs, ranks, op, root, algorithm);
  }
  const Call call = make_call(std::string(collective), outputs, inputs, ranks, std::string(op), root);
  bump_versions(call.outputs, written_by(call, algorithm));
}

// ---- the direct way: lists of plain tensors

bool needs_dispatcher(const TensorLists& lists) {
  constexpr c10::DispatchKeySet beyond_us({c10::DispatchKey::Python, c10::DispatchKey::Functionalize,
                                           c10::DispatchKey::FuncTorchGradWrapper,
                                           c10::DispatchKey::FuncTorchBatched});
  for (const at::Tensor& tensor : lists.flat)
    if (tensor.unsafeGetTensorImpl()->key_set().has_any(beyond_us)) return true;
  return c10::impl::TorchDispatchModeTLS::any_modes_set();
}

at::Tensor as_tensor(py::handle item, int64_t rank, int64_t index) {
  if (THPVariable_Check(item.ptr())) return THPVariable_Unpack(item.ptr());
  return py::module_::import("fastreduce.collectives").attr("as_tensor")(item, rank, index).cast<at::Tensor>();
}

// Lists and tuples as they are, other iterables as a list, tensors and arrays as one item.
bool is_list_of_tensors(py::handle item) {
  return PyList_Check(item.ptr()) || PyTuple_Check(item.ptr()) ||
         (!THPVariable_Check(item.ptr()) && !item.is_none() && !py::hasattr(item, "__dlpack__") &&
          py::isinstance<py::iterable>(item) && !py::isinstance<py::str>(item));
}

py::object as_sequence(py::handle items) {
  return py::reinterpret_steal<py::object>(PySequence_Fast(items.ptr(), "not iterable"));
}

TensorLists read_lists(py::handle items, const char* name) {
  if (!is_list_of_tensors(items))
    throw py::type_error(std::string(name) + " is " + Py_TYPE(items.ptr())->tp_name +
                         "; want a list with one tensor, or one list of tensors, a rank");
  const py::object ranks = as_sequence(items);
  TensorLists lists;
  lists.name = name;
  lists.ranks = PySequence_Fast_GET_SIZE(ranks.ptr());
  lists.flat.reserve(lists.ranks);
  for (int64_t rank = 0; rank < lists.ranks; ++rank) {
    const py::handle item = PySequence_Fast_GET_ITEM(ranks.ptr(), rank);
    int64_t count = 1;
    if (!is_list_of_tensors(item)) {
      lists.flat.push_back(as_tensor(item, rank, 0));
    } else {
      const py::object tensors = as_sequence(item);
      count = PySequence_Fast_GET_SIZE(tensors.ptr());
      for (int64_t i = 0; i < count; ++i)
        lists.flat.push_back(as_tensor(PySequence_Fast_GET_ITEM(tensors.ptr(), i), rank, i));
    }
    if (rank == 0) lists.per_rank = count;
    TORCH_CHECK_VALUE(count == lists.per_rank, "rank ", rank, " has ", count, " tensors but rank 0 has ",
                      lists.per_rank, "; every rank needs as many");
  }
  return lists;
}

std::string op_name(py::handle op) {
  if (PyUnicode_Check(op.ptr())) return op.cast<std::string>();
  return py::module_::import("fastreduce.collectives").attr("_op_name")(op).cast<std::string>();
}

int64_t read_root(py::handle root) {
  if (!PyIndex_Check(root.ptr()))
    throw py::type_error(std::string("root is ") + Py_TYPE(root.ptr())->tp_name + "; want the number of a rank");
  return root.cast<int64_t>();
}

void run(const std::string& collective, py::handle outputs, py::handle inputs, py::handle op, py::handle root_arg,
         py::handle algorithm_arg) {
  if (!PyUnicode_Check(algorithm_arg.ptr()))
    throw py::type_error(std::string("algorithm is ") + Py_TYPE(algorithm_arg.ptr())->tp_name + "; want its name");
  const auto algorithm = algorithm_arg.cast<std::string>();
  const int64_t root = read_root(root_arg);
  RECORD_FUNCTION("fastreduce::" + collective, std::vector<c10::IValue>());
  const std::string op_text = op_name(op);
  const bool in_place = inputs.is_none();
  Call call{parse_collective(collective), read_lists(outputs, in_place ? "tensors" : "outputs"),
            in_place ? TensorLists{} : read_lists(inputs, "tensors"), parse_op(op_text), root};
  py::gil_scoped_release no_gil;
  if (needs_dispatcher(call.outputs) || needs_dispatcher(call.inputs))
    return dispatch(collective, call.outputs.flat, call.inputs.flat, call.ranks(), op_text, root, algorithm);
  check(call);
  const auto program = program_for(question_of(call, algorithm));
  const std::vector<bool> written = written_outputs(call, *program);
  check_autograd(call.outputs, written);
  execute(call, *program);
  bump_versions(call.outputs, written);
}

}  // namespace
}  // namespace fastreduce

TORCH_LIBRARY(fastreduce, library) {
  library.def(
      "collective_(str collective, Tensor(a!)[] outputs, Tensor[] inputs, int ranks, str op, int root, "
      "str algorithm) -> ()");
}
TORCH_LIBRARY_IMPL(fastreduce, CPU, library) { library.impl("collective_", fastreduce::dispatched); }
TORCH_LIBRARY_IMPL(fastreduce, CUDA, library) { library.impl("collective_", fastreduce::dispatched); }
TORCH_LIBRARY_IMPL(fastreduce, Meta, library) { library.impl("collective_", fastreduce::dispatched_meta); }
TORCH_LIBRARY_IMPL(fastreduce, Autograd, library) { library.impl("collective_", fastreduce::dispatched_autograd); }
TORCH_LIBRARY_IMPL(fastreduce, ADInplaceOrView, library) {
  library.impl("collective_", fastreduce::dispatched_inplace);
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  using namespace fastreduce;
  py::register_exception_translator([](std::exception_ptr error) {
    try {
      if (error) std::rethrow_exception(error);
    } catch (const c10::ValueError& e) {
      PyErr_SetString(PyExc_ValueError, e.what_without_backtrace());
    } catch (const c10::Error& e) {
      PyErr_SetString(PyExc_RuntimeError, e.what_without_backtrace());
    }
  });
  py::class_<Schedule, std::shared_ptr<Schedule>>(module, "Schedule")
      .def(py::init(&make_program), py::arg("ranks"), py::arg("buffers"), py::arg("shards"),
           py::arg("instructions"), py::arg("launches"), py::arg("whole_tensors"))
      .def("slices", &Schedule::slices, py::arg("nbytes"));
  module.def("run", &run, py::arg("collective"), py::arg("outputs"), py::arg("inputs"), py::arg("op"),
             py::arg("root"), py::arg("algorithm"));
  module.def("forget_programs", &forget_programs);
  module.def("cpu_kernels", [] { return cpu_kernels().name; }, "The instruction set of the kernels in use.");
  module.def("set_lane_per_rank", [](bool on) {
    TORCH_CHECK(cuda_backend, "this build of fastreduce has no CUDA engines");
    cuda_backend->set_lane_per_rank(on);
  });
  module.attr("cuda_engines") = cuda_backend != nullptr;
  module.attr("built_for_torch") = TORCH_VERSION;
  module.attr("compiler") = "g++ " __VERSION__;
}
