// How a thread computes with floats: whether denormals count as zero (torch.set_flush_denormal), and how it rounds.
#pragma once

#include <cfenv>

namespace fastreduce {

// As they are in the thread that makes it. Processors keep them for each thread, and a new thread has those of the one
// that started it: they do not follow what that one sets later.
class FloatModes {
 public:
  FloatModes() { std::fegetenv(&modes_); }
  void set() const { std::fesetenv(&modes_); }

 private:
  std::fenv_t modes_{};
};

// This thread has them for as long as this lives.
class WithFloatModes {
 public:
  explicit WithFloatModes(const FloatModes& modes) { modes.set(); }
  WithFloatModes(const WithFloatModes&) = delete;
  ~WithFloatModes() { before_.set(); }

 private:
  const FloatModes before_;
};

}  // namespace fastreduce
