// A call as Python makes it: tensors and arrays in lists, and names of algorithms and operations.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <string>

#include "call.h"

namespace fastreduce {

py::object python(const char* module, const char* name);

// Without inputs, which are None then, the collective works in place. Errors name rank and tensor.
Call read_call(const std::string& collective, py::handle outputs, py::handle inputs, py::handle op, py::handle root,
               py::handle algorithm, py::handle engine);

}  // namespace fastreduce
