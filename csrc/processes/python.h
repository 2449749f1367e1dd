// The bindings of torch.distributed's backend: apart from the others, since c10d's headers take long to compile.
#pragma once

#include <pybind11/pybind11.h>

namespace fastreduce {

void define_processes(pybind11::module& module);

}  // namespace fastreduce
