#pragma once

#include <string>

namespace fastreduce {

struct Finding {
  std::string problem;  // "" if there is none
  bool hangs = false;   // the devices may still be at work on it
};

// Whether kernel reads, kernel writes and the copy engine all move data between the two correctly, and come to an end.
Finding try_pair(int device, int other);

// The clock that says when a trial has lasted too long, in seconds (the tests have one of their own).
void tell_time_by(double (*now_s)());

}  // namespace fastreduce
