// What threads need that run the shards of a batch at the same time.
#pragma once

#include <Python.h>

namespace fastreduce {

// The type of the Python exception of an operation that would draw random numbers, a BaseException.
PyObject* has_drawn();

// From enter() to exit(), all operations of this thread that draw random numbers raise has_drawn() instead, before they
// draw. To be made before the threads that enter run.
class DrawsNothing {
 public:
  DrawsNothing();
  void enter();
  void exit();

 private:
  bool before_ = false;
};

// Operations of this thread use so many cores from now on. Other threads keep theirs, and new ones begin with what is
// set for all. To be called with Python's lock: until it returns, no other thread of Python begins.
void take_cores(int cores);

}  // namespace fastreduce
