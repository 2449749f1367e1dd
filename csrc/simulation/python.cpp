#include "simulation/python.h"

#include <pybind11/stl.h>

#include <array>
#include <memory>

#include "simulation/network.h"
#include "simulation/simulation.h"

namespace fastreduce {
namespace {

namespace py = pybind11;
using namespace simulation;

// ---- machines

std::unique_ptr<Machine> make_machine(const std::vector<std::pair<bool, double>>& nodes,
                                      const std::vector<std::tuple<int, int, double, double>>& links) {
  std::vector<Node> read_nodes;
  for (const auto& [ends_routes, memory_bytes_per_s] : nodes) read_nodes.push_back({ends_routes, memory_bytes_per_s});
  std::vector<Link> read_links;
  for (const auto& [src, dst, bytes_per_s, latency_s] : links) read_links.push_back({src, dst, bytes_per_s, latency_s});
  return std::make_unique<Machine>(std::move(read_nodes), std::move(read_links));
}

// ---- simulations

Costs read_costs(const std::array<double, 4>& costs) { return {costs[0], costs[1], costs[2], costs[3]}; }

std::unique_ptr<Simulation> make_simulation(KnownProgram& program, Machine& machine, const std::vector<int>& node_of,
                                            int host, bool by_kernels) {
  const py::gil_scoped_release no_gil;
  return std::make_unique<Simulation>(program, machine, node_of, host, by_kernels, kUntilInterrupted);
}

double seconds_of(const Simulation& simulation, const std::vector<double>& shard_bytes, int slices,
                  const std::array<double, 4>& costs, bool distances) {
  const py::gil_scoped_release no_gil;
  return simulation.seconds(shard_bytes, slices, read_costs(costs), distances, kUntilInterrupted);
}

py::tuple spans_of(const Simulation& simulation, const std::vector<double>& shard_bytes, int slices,
                   const std::array<double, 4>& costs) {
  Spans found;
  {
    const py::gil_scoped_release no_gil;
    found = simulation.spans(shard_bytes, slices, read_costs(costs), kUntilInterrupted);
  }
  return py::make_tuple(found.stage_start_s, found.stage_end_s, found.transfer_start_s, found.transfer_end_s);
}

auto described_tasks(const Simulation& simulation) {
  std::vector<std::tuple<int, int, int, int>> found;
  for (const Task& x : simulation.tasks.tasks) found.emplace_back(x.lane, x.reads, x.writes, x.end);
  return found;
}

auto described_transfers(const Simulation& simulation) {
  std::vector<std::tuple<int, int, int, int, int>> found;
  for (const Transfer& x : simulation.tasks.transfers)
    found.emplace_back(x.pair, x.shard, x.times, x.instruction, x.buffer);
  return found;
}

void define_simulations(py::module& module) {
  py::class_<Machine>(module, "Machine")
      .def(py::init(&make_machine), py::arg("nodes"), py::arg("links"))
      .def("route", &Machine::route, py::arg("src"), py::arg("dst"));
  py::class_<Simulation>(module, "Simulation")
      .def(py::init(&make_simulation), py::arg("program"), py::arg("machine"), py::arg("node_of"), py::arg("host"),
           py::arg("by_kernels"))
      .def_property_readonly("unreached", [](const Simulation& x) { return x.paths.unreached; })
      .def_property_readonly("unknown", &Simulation::unknown)
      .def_property_readonly("pairs", [](const Simulation& x) { return x.tasks.pairs; })
      .def_property_readonly("tasks", &described_tasks)
      .def_property_readonly("transfers", &described_transfers)
      .def_property_readonly("events", &Simulation::events)
      .def("link_bytes",
           [](const Simulation& x, const std::vector<double>& shard_bytes, int slices) {
    return x.link_bytes(shard_bytes, slices);
  }, py::arg("shard_bytes"), py::arg("slices"))
      .def("seconds", &seconds_of, py::arg("shard_bytes"), py::arg("slices"), py::arg("costs"),
           py::arg("distances") = true)
      .def("spans", &spans_of, py::arg("shard_bytes"), py::arg("slices"), py::arg("costs"));
}

// ---- flows

Lists as_lists(const std::vector<std::vector<int>>& lists) {
  Lists found;
  for (const auto& list : lists) found.add(list);
  return found;
}

std::vector<double> max_min(const std::vector<std::vector<int>>& paths, const std::vector<double>& counts,
                            std::vector<double> bytes_per_s) {
  const Lists links = as_lists(paths);
  std::vector<int> used;
  for (size_t path = 0; path < counts.size(); ++path)
    if (counts[path] > 0) used.push_back(static_cast<int>(path));
  std::vector<double> rates(paths.size());
  MaxMin(links, std::move(bytes_per_s)).solve(used, counts, rates);
  return rates;
}

void define_flows(py::module& module) {
  module.def("max_min", &max_min, py::arg("paths"), py::arg("counts"), py::arg("bytes_per_s"));
  py::class_<Network>(module, "Network")
      .def(py::init([](const std::vector<std::vector<int>>& paths, std::vector<double> bytes_per_s) {
    return std::make_unique<Network>(as_lists(paths), std::move(bytes_per_s));
  }),
           py::arg("paths"), py::arg("bytes_per_s"))
      .def("start", &Network::start, py::arg("transfer"), py::arg("path"), py::arg("nbytes"))
      .def("next_s", &Network::next_s)
      .def("advance", &Network::advance, py::arg("seconds"));
  module.attr("moment_s") = kMomentS;
}

}  // namespace

void define_simulation(py::module& module) {
  define_programs(module);
  define_simulations(module);
  define_flows(module);
}

}  // namespace fastreduce
