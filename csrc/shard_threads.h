// What threads need that run the shards of a batch at the same time.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/MT19937RNGEngine.h>
#include <ATen/core/function_schema.h>
#include <ATen/core/stack.h>
#include <Python.h>

#include <optional>

namespace fastreduce {

// The type of the Python exception of an operation that would draw random numbers, a BaseException.
PyObject* has_drawn();

// From enter() to exit(), all operations of this thread that draw random numbers draw from this generator instead of
// torch's. Where that could be seen, they raise has_drawn() before they draw: where there is no generator, another is
// given, or a tensor is not on the CPU; where torch's has been moved since this was made, as by manual_seed; and where
// a checkpoint would draw the same again, from torch's, in the backward pass. To be made before the threads that enter
// run.
class DrawsFrom {
 public:
  explicit DrawsFrom(std::optional<at::Generator> own);
  void enter();
  void exit();
  bool drew() const;

  // Whether this thread is between enter() and exit() of one.
  static bool is_here();
  // How often an operation has raised, in all threads: forward may catch it, or say it in other words.
  static int64_t refusals();
  // For an operation of this thread: puts the generator where none is given, or returns false.
  static bool lend(const c10::FunctionSchema& schema, torch::jit::Stack& stack);

 private:
  bool may_be_repeated() const;

  std::optional<at::Generator> own_;
  at::mt19937_data_pod torchs_, begin_;
  bool with_gradients_ = false;
  DrawsFrom* before_ = nullptr;
  bool included_before_ = false;
};

// Operations of this thread use so many cores from now on. Other threads keep theirs, and new ones begin with what is
// set for all. To be called with Python's lock: until it returns, no other thread of Python begins.
void take_cores(int cores);

// As take_cores, but what new threads begin with is left alone.
void use_cores(int cores);

// Ends OpenMP's threads of the calling thread, which for some time after each of torch's operations wait for the next
// one and keep a core busy. The next one begins others.
void end_waiting_threads();

// Has the C library keep what threads have freed, or each step fetches its memory from the system anew.
void keep_freed_memory();

}  // namespace fastreduce
