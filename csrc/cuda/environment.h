#pragma once

#include <cstdlib>
#include <string_view>

namespace fastreduce {

inline bool is_set_to(const char* variable, std::string_view value) {
  const char* found = std::getenv(variable);
  return found && found == value;
}

}  // namespace fastreduce
