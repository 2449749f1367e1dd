// The bindings of what plans: proofs, routes and simulations. None of it needs torch.
#pragma once

#include <pybind11/pybind11.h>

#include "simulation/program.h"

namespace fastreduce {

void define_simulation(pybind11::module& module);

namespace simulation {

void define_programs(pybind11::module& module);

// Ctrl-C ends what takes long.
inline const Pause kUntilInterrupted = [] {
  const pybind11::gil_scoped_acquire gil;
  if (PyErr_CheckSignals()) throw pybind11::error_already_set();
};

}  // namespace simulation
}  // namespace fastreduce
