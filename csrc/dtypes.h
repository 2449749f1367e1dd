// How torch's dtypes are reduced: most as themselves, some as several elements of another dtype.
#pragma once

#include <c10/core/ScalarType.h>

#include <optional>
#include <string>
#include <vector>

#include "ops.h"

namespace fastreduce {

// The kernels reduce one torch element as `per_elem` elements of `dtype`, by the operation `op`.
struct Arithmetic {
  DType dtype;
  Op op;
  int64_t per_elem;
};

// None if the operation is not defined for the dtype.
std::optional<Arithmetic> find_arithmetic(c10::ScalarType type, Op op);

// As bytes, for collectives that only move data.
Arithmetic moved(c10::ScalarType type);

// As users write it: "float32".
inline std::string name_of(c10::ScalarType type) { return std::string(c10::getDtypeNames(type).first); }

const char* name_of(Op op);
const std::vector<Op>& every_op();

// The error where there is no arithmetic, with what there is. `which`: behind the dtype's name, as " (tensor 3)".
std::string not_defined(c10::ScalarType type, Op op, const std::string& which = "");

}  // namespace fastreduce
