// What a program moves on a machine, and after what.
#pragma once

#include <utility>

#include "simulation/program.h"

namespace fastreduce::simulation {

// Bytes move from one node to another, or in the memory of one node, for one shard: the whole transfer or, where a
// program is played in slices, each slice of it.
struct Transfer {
  int pair;  // an index into Tasks::pairs
  int shard;
  int times;  // how many times the shard's bytes
  int instruction;
  int buffer;  // whose data moves; kAll: that of all sources and the result, in the executor's memory
  static constexpr int kAll = -1, kStraight = -2;  // kStraight: between the executor and the one other node
};

// A launch of a lane (a device's stream): it reads, then it writes to other nodes, where it does. If it streams, it
// writes while it reads.
struct Task {
  int lane;      // a node
  int reads;     // the first of its transfers that read
  int writes;    // and the first of those that write
  int end;       // one past its last transfer
  int previous;  // the lane's launch before it, or kNone
  int next;      // the lane's launch after it, or kNone
  bool streams;  // only if it has both phases
  static constexpr int kNone = -1;

  int phases() const { return writes < end ? 2 : 1; }
};

struct Tasks {
  std::vector<Task> tasks;  // launches, in the program's order
  std::vector<Transfer> transfers;
  std::vector<std::pair<int, int>> pairs;  // of nodes between which there are transfers, by first use
  Lists before;                            // by task, those that it depends on
  Lists after;                             // by task, those that depend on it
};

// `node_of[buffer]` holds a buffer, and `node_of[rank]` executes; `host` is the node of kHost. By kernels, launches
// stream, and rank 0 does the host's work, on copies that pass through the host's memory (csrc/cuda/enqueue.cpp).
Tasks tasks_of(const FlatProgram& program, const Lists& waits, const std::vector<int>& launches,
               std::span<const int> node_of, int host, bool by_kernels);

}  // namespace fastreduce::simulation
