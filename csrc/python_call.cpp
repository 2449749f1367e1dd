#include "python_call.h"

#include <torch/csrc/autograd/python_variable.h>

#include "dtypes.h"

namespace fastreduce {
namespace {

bool add_if_tensor(py::handle item, int64_t rank, int64_t index, Tensors& tensors) {
  py::detail::make_caster<at::Tensor> tensor;
  if (!tensor.load(item, /*convert=*/false)) return false;
  if (!THPVariable_CheckExact(item.ptr())) python("fastreduce.arguments", "check_initialized")(item, rank, index);
  tensors.push_back(std::move(py::detail::cast_op<at::Tensor&>(tensor)));
  return true;
}

void add(py::handle item, int64_t rank, int64_t index, bool written, Tensors& tensors) {
  if (!add_if_tensor(item, rank, index, tensors))
    tensors.push_back(python("fastreduce.arguments", "as_tensor")(item, rank, index, written).cast<at::Tensor>());
}

bool is_tensor(py::handle item) { return py::detail::make_caster<at::Tensor>().load(item, /*convert=*/false); }

// True for lists, tuples and other iterables; false for tensors and arrays, which are one item.
bool is_list_of_tensors(py::handle item) {
  return PyList_Check(item.ptr()) || PyTuple_Check(item.ptr()) ||
         (!is_tensor(item) && !item.is_none() && !py::hasattr(item, "__dlpack__") &&
          py::isinstance<py::iterable>(item) && !py::isinstance<py::str>(item));
}

// The items as they are now: converting one runs Python, which may change the caller's list.
py::tuple as_tuple(py::handle items) { return py::tuple(py::reinterpret_borrow<py::object>(items)); }

TensorLists read_lists(py::handle items, const char* name, bool written) {
  if (!is_list_of_tensors(items))
    throw py::type_error(std::string(name) + " is " + Py_TYPE(items.ptr())->tp_name +
                         "; want a list with one tensor, or one list of tensors, per rank");
  const py::tuple ranks = as_tuple(items);
  TensorLists lists;
  lists.name = name;
  lists.ranks = static_cast<int64_t>(ranks.size());
  lists.flat.reserve(lists.ranks);
  for (int64_t rank = 0; rank < lists.ranks; ++rank) {
    const py::handle item = PyTuple_GET_ITEM(ranks.ptr(), rank);
    int64_t count = 1;
    if (add_if_tensor(item, rank, 0, lists.flat)) {
      // The usual case comes first, since each further look at an item costs part of every small call.
    } else if (!is_list_of_tensors(item)) {
      add(item, rank, 0, written, lists.flat);
    } else {
      const py::tuple tensors = as_tuple(item);
      count = static_cast<int64_t>(tensors.size());
      for (int64_t i = 0; i < count; ++i) add(PyTuple_GET_ITEM(tensors.ptr(), i), rank, i, written, lists.flat);
    }
    if (rank == 0) lists.per_rank = count;
    TORCH_CHECK_VALUE(count == lists.per_rank, "rank ", rank, " has ", count, " tensors but rank 0 has ",
                      lists.per_rank, "; every rank needs as many");
  }
  return lists;
}

Op read_op(py::handle op) {
  if (PyUnicode_Check(op.ptr()))
    if (const auto found = find_op(op.cast<std::string>())) return *found;
  return parse_op(python("fastreduce.arguments", "known_op")(op).cast<std::string>());
}

std::string read_algorithm(py::handle algorithm) {
  if (PyUnicode_Check(algorithm.ptr())) return algorithm.cast<std::string>();
  return python("fastreduce.algorithms.registration", "name_of")(algorithm).cast<std::string>();
}

std::string read_engine(py::handle engine) {
  if (!PyUnicode_Check(engine.ptr()))
    throw py::type_error(std::string("engine is ") + Py_TYPE(engine.ptr())->tp_name + "; want 'auto' or 'flags'");
  return engine.cast<std::string>();
}

int64_t read_root(py::handle root) {
  if (!PyIndex_Check(root.ptr()))
    throw py::type_error(std::string("root is ") + Py_TYPE(root.ptr())->tp_name + "; want the number of a rank");
  const Py_ssize_t rank = PyNumber_AsSsize_t(root.ptr(), nullptr);  // what is too large becomes the largest
  if (rank == -1 && PyErr_Occurred()) throw py::error_already_set();
  return rank;
}

}  // namespace

py::object python(const char* module, const char* name) { return py::module_::import(module).attr(name); }

Call read_call(const std::string& collective, py::handle outputs, py::handle inputs, py::handle op, py::handle root,
               py::handle algorithm, py::handle engine) {
  const bool in_place = inputs.is_none();
  Call call{parse_collective(collective), {}, {}, read_op(op), read_root(root), read_algorithm(algorithm),
            read_engine(engine)};
  call.outputs = read_lists(outputs, in_place ? "tensors" : "outputs", /*written=*/true);
  if (!in_place) call.inputs = read_lists(inputs, "tensors", /*written=*/false);
  return call;
}

}  // namespace fastreduce
