// Does a rank's part of a program, on the CPU or on a GPU, which works while the CPU goes on.
#pragma once

#include <cstddef>
#include <cstdint>

#include "rows.h"
#include "schedule.h"

namespace fastreduce {

// Copies and instructions between two calls of `flush` may run at the same time; what follows a flush runs after all
// that came before it.
class Executor {
 public:
  virtual ~Executor() = default;

  // The size of this rank's staging memory, 0 if it has none, and how much of it one slice may take.
  virtual int64_t staging_bytes() const = 0;
  virtual int64_t slice_bytes() const = 0;
  virtual std::byte* staging(int rank) const = 0;

  virtual void copy(std::byte* to, const std::byte* from, int64_t elems) = 0;
  // `pointers` has one for each buffer; those that the instruction does not use are not looked at.
  virtual void execute(const Instruction& instruction, std::byte* const* pointers, int64_t elems) = 0;
  virtual void flush() {}
  // Whether all that was flushed is done, so that peers may read it.
  virtual bool idle() { return true; }

  // Whether this rank may do a call of so many bytes at once. Then the executors themselves wait for each other,
  // without the counters of the group.
  virtual bool may_run_at_once(int64_t) { return false; }
  // Called when all ranks have said that they may: begins the call, or returns false, alike on all ranks. Once any of
  // the executors is idle, none touches the memory of another rank any more. The table belongs to the program that
  // `with_copies` makes; memory of other ranks that is not shared is nullptr in it.
  virtual bool run_at_once(const Table&) { return false; }
};

}  // namespace fastreduce
