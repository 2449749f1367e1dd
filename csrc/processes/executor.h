// Where a rank does its part of a program: on the CPU, or on a GPU, which works while the CPU goes on.
#pragma once

#include <cstddef>
#include <cstdint>

#include "rows.h"
#include "schedule.h"

namespace fastreduce {

// Copies and instructions are executed in the order given by `flush`: those between two of them may run at the same
// time.
class Executor {
 public:
  virtual ~Executor() = default;

  // Of this rank, and how much of it one slice may take; 0 if it has none.
  virtual int64_t staging_bytes() const = 0;
  virtual int64_t slice_bytes() const = 0;
  virtual std::byte* staging(int rank) const = 0;

  virtual void copy(std::byte* to, const std::byte* from, int64_t elems) = 0;
  // `pointers` by buffer; those that the instruction does not use may be anything.
  virtual void execute(const Instruction& instruction, std::byte* const* pointers, int64_t elems) = 0;
  virtual void flush() {}
  // Whether all that was flushed is done, and peers may see it.
  virtual bool idle() { return true; }

  // Whether this rank may do a call of so many bytes at once: then the executors wait for each other, and no counter is
  // needed.
  virtual bool may_run_at_once(int64_t) { return false; }
  // When all ranks have said that they may: begins the call, or returns false; all ranks do the same. As soon as one
  // executor is idle, none touches the memory of another rank any more. The table is of the program `with_copies`. In
  // it, memory of other ranks that is not shared is nullptr.
  virtual bool run_at_once(const Table&) { return false; }
};

}  // namespace fastreduce
