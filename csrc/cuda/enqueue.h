#pragma once

#include <vector>

#include "copy_engine.h"
#include "cuda/closed_memory.h"
#include "cuda/lanes.h"

namespace fastreduce {

// How one call is laid out on lanes.
struct Layout {
  std::vector<Lane*> lanes;
  std::vector<int> lane_of_rank;
  int slices;
  CopyEngineBytes copy_engine_bytes;
  ClosedBuffers closed;
};

// Puts one call's launches on lines, one for each lane, in program order, with the fewest waits that order them.
// Every shard is cut into slices, which go through the program independently. The host has no lane: data of its
// instructions passes through host memory, and the first lane does the arithmetic.
class Enqueue {
 public:
  Enqueue(const Schedule& schedule, const std::vector<Table>& tables, const Layout& layout, std::vector<Line> lines);
  void run();
  bool uses_host() const;  // for what a lane cannot reach

 private:
  template <class Visit>
  void for_each_slice(const Table& table, int shard, int slice, const Visit& visit) const;
  int lane_of(size_t launch) const;
  void wait(size_t launch, int slice);
  void record(size_t launch, int slice);
  void execute(size_t launch, int slice);
  void execute_directly(const std::vector<const Instruction*>& instructions, const Table& table, int slice, Line& line);
  void execute_staged(const Instruction& instruction, const Table& table, int slice, int lane);
  void execute_stage(const Instruction& instruction, const Table& table, std::vector<std::byte*> pointers,
                     int64_t elems, int lane_index);
  int64_t copy_engine_bytes(int device, int other) const;
  int device_of(int buffer) const { return layout_.lanes[layout_.lane_of_rank[buffer % schedule_.ranks]]->device; }
  bool reaches(int device, int buffer) const;
  bool reaches(const Instruction& instruction, int buffer) const;
  bool reaches_all(const Instruction& instruction) const;

  const Schedule& schedule_;
  const std::vector<Table>& tables_;
  const Layout& layout_;
  std::vector<Line> lines_;                     // by lane
  std::vector<bool> direct_;                    // by instruction: its rank reaches all that it touches
  std::vector<std::vector<int>> waits_;         // by launch: those of other lanes, the latest first
  std::vector<bool> awaited_;                   // by launch: another lane waits for it
  std::vector<std::vector<int64_t>> known_;     // [lane][other]: tasks of other that lane is behind
  std::vector<std::vector<int64_t>> recorded_;  // by task: what its lane was behind, itself included
  std::vector<int64_t> issued_;                 // by lane: tasks so far
};

}  // namespace fastreduce
