#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <numeric>
#include <variant>

#include "schedule.h"
#include "simulation/known_program.h"
#include "simulation/proof.h"
#include "simulation/python.h"

namespace fastreduce::simulation {
namespace {

namespace py = pybind11;

py::tuple as_tuple(std::span<const int> items) {
  py::tuple found(items.size());
  for (size_t i = 0; i < items.size(); ++i) found[i] = items[i];
  return found;
}

// False if the object is no integer from `least` up to `end`, without `end`. Python counts True and False as integers.
bool read_int(PyObject* item, int least, int end, int& found) {
  if (PyBool_Check(item)) return false;
  const Py_ssize_t value = PyNumber_AsSsize_t(item, nullptr);  // what is too large becomes the largest
  if (value == -1 && PyErr_Occurred()) {
    PyErr_Clear();
    return false;
  }
  found = static_cast<int>(value);
  return least <= value && value < end;
}

bool read_buffers(PyObject* items, int end, std::vector<int>& found) {
  if (!PyTuple_Check(items)) return false;
  found.resize(PyTuple_GET_SIZE(items));
  for (size_t i = 0; i < found.size(); ++i)
    if (!read_int(PyTuple_GET_ITEM(items, i), 0, end, found[i])) return false;
  return !found.empty();
}

bool has_twice(std::vector<int> items) {
  std::sort(items.begin(), items.end());
  return std::adjacent_find(items.begin(), items.end()) != items.end();
}

// The instructions, or the index of the first that is malformed. The engines' lists of pointers have room for each
// buffer once.
using Flattened = std::variant<FlatProgram, int64_t>;

Flattened flatten(const py::tuple& instructions, const py::type& type, int ranks, int shards, int buffers) {
  FlatProgram program{ranks, shards, std::max(buffers, 0), {}, {}, {}, {}};
  std::vector<int> srcs, dsts;
  for (size_t index = 0; index < instructions.size(); ++index) {
    PyObject* item = PyTuple_GET_ITEM(instructions.ptr(), index);
    int rank = 0, shard = 0;
    const bool well_formed = PyObject_TypeCheck(item, reinterpret_cast<PyTypeObject*>(type.ptr())) &&
                             PyTuple_GET_SIZE(item) == 4 && read_int(PyTuple_GET_ITEM(item, 0), kHost, ranks, rank) &&
                             read_int(PyTuple_GET_ITEM(item, 1), 0, shards, shard) &&
                             read_buffers(PyTuple_GET_ITEM(item, 2), buffers, srcs) &&
                             read_buffers(PyTuple_GET_ITEM(item, 3), buffers, dsts) && !has_twice(srcs) &&
                             !has_twice(dsts);
    if (!well_formed) return static_cast<int64_t>(index);
    program.rank.push_back(rank);
    program.shard.push_back(shard);
    program.srcs.add(srcs);
    program.dsts.add(dsts);
  }
  return program;
}

std::variant<ProgramPointer, int64_t> make_program(const py::tuple& instructions, const py::type& type, int ranks,
                                                   int shards, int buffers) {
  Flattened found = flatten(instructions, type, ranks, shards, buffers);
  if (const auto* malformed = std::get_if<int64_t>(&found)) return *malformed;
  return std::make_shared<KnownProgram>(std::move(std::get<FlatProgram>(found)));
}

const Lists& waits_of(KnownProgram& program) {
  const py::gil_scoped_release no_gil;
  return program.waits();
}

const std::vector<int>& launches_of(KnownProgram& program) {
  const py::gil_scoped_release no_gil;
  return program.launches();
}

int slices_of(KnownProgram& program, int64_t nbytes, int sliced) {
  const py::gil_scoped_release no_gil;
  return Schedule::slices_of(nbytes, program.flat.shards, sliced, program.idle_shards());
}

py::list dependencies_of(KnownProgram& program) {
  const Lists& waits = waits_of(program);
  py::list found(waits.size());
  for (int64_t index = 0; index < waits.size(); ++index) found[index] = as_tuple(waits[index]);
  return found;
}

py::list launch_groups(KnownProgram& program) {
  const std::vector<int>& firsts = launches_of(program);
  py::list found(firsts.size() - 1);
  for (size_t group = 0; group + 1 < firsts.size(); ++group) {
    py::tuple indices(firsts[group + 1] - firsts[group]);
    for (size_t i = 0; i < indices.size(); ++i) indices[i] = firsts[group] + i;
    found[group] = indices;
  }
  return found;
}

// Python's int.from_bytes(..., "little") reads it.
py::bytes as_bytes(const RankSet& words) {
  return py::bytes(reinterpret_cast<const char*>(words.data()), words.size() * sizeof(uint64_t));
}

py::object first_wrong_cell(KnownProgram& program, const std::vector<std::vector<int>>& goals,
                            const py::array_t<int, py::array::c_style>& goal_of) {
  std::vector<RankSet> wanted;
  for (const auto& ranks : goals) {
    RankSet& words = wanted.emplace_back(words_of(program.flat));
    for (int rank : ranks) words.at(rank / 64) |= uint64_t{1} << (rank % 64);
  }
  const std::span<const int> cells(goal_of.data(), goal_of.size());
  std::optional<WrongCell> wrong;
  {
    const py::gil_scoped_release no_gil;
    wrong = first_wrong(program.flat, wanted, cells, kUntilInterrupted);
  }
  if (!wrong) return py::none();
  return py::make_tuple(wrong->buffer, wrong->shard, as_bytes(wrong->once), as_bytes(wrong->twice));
}

std::vector<std::vector<int>> as_vectors(const Lists& lists) {
  std::vector<std::vector<int>> found;
  for (int64_t index = 0; index < lists.size(); ++index) found.emplace_back(lists[index].begin(), lists[index].end());
  return found;
}

std::shared_ptr<Schedule> schedule_of(KnownProgram& program, bool whole_tensors, int sliced) {
  const py::gil_scoped_release no_gil;
  const FlatProgram& flat = program.flat;
  const std::vector<bool> completing = completes(flat, kUntilInterrupted);
  const auto srcs = as_vectors(flat.srcs), dsts = as_vectors(flat.dsts);
  std::vector<Instruction> instructions;
  for (int64_t index = 0; index < flat.size(); ++index)
    instructions.push_back({flat.rank[index], flat.shard[index], srcs[index], dsts[index], completing[index]});
  std::vector<std::vector<int>> launches;
  for (size_t group = 0; group + 1 < program.launches().size(); ++group) {
    std::vector<int>& indices = launches.emplace_back(program.launches()[group + 1] - program.launches()[group]);
    std::iota(indices.begin(), indices.end(), program.launches()[group]);
  }
  return std::make_shared<Schedule>(flat.ranks, flat.buffers, flat.shards, std::move(instructions),
                                    as_vectors(program.waits()), std::move(launches), whole_tensors, sliced,
                                    program.idle_shards());
}

std::vector<bool> completes_of(KnownProgram& program) {
  const py::gil_scoped_release no_gil;
  return completes(program.flat, kUntilInterrupted);
}

}  // namespace

void define_programs(py::module& module) {
  py::class_<KnownProgram, ProgramPointer>(module, "KnownProgram")
      .def("dependencies", &dependencies_of)
      .def("launches", &launch_groups)
      .def_property_readonly("launch_count", [](KnownProgram& program) { return launches_of(program).size() - 1; })
      .def_property_readonly("uses_host",
                             [](const KnownProgram& program) {
    return std::ranges::find(program.flat.rank, kHost) != program.flat.rank.end();
  })
      .def("slices", &slices_of, py::arg("nbytes"), py::arg("sliced"))
      .def("first_wrong", &first_wrong_cell, py::arg("goals"), py::arg("goal_of"))
      .def("completes", &completes_of)
      .def("schedule", &schedule_of, py::arg("whole_tensors"), py::arg("sliced"));
  module.def("flatten", &make_program, py::arg("instructions"), py::arg("type"), py::arg("ranks"), py::arg("shards"),
             py::arg("buffers"));
}

}  // namespace fastreduce::simulation
