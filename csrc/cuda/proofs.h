#pragma once

#include <optional>
#include <string>

namespace fastreduce {

// What was found out about pairs of devices, in a file that several processes may read and append to.
class Proofs {
 public:
  explicit Proofs(std::string path = "") : path_(std::move(path)) {}
  std::optional<std::string> find(int device, int other) const;
  void keep(int device, int other, const std::string& problem) const;

 private:
  std::string path_;
};

}  // namespace fastreduce
