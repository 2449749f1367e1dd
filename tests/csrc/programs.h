// The programs that program_files.py writes, and what their waits and launches must keep to.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "schedule.h"

namespace engines_test {

using namespace fastreduce;

[[noreturn]] inline void fail(const std::string& what) {
  std::fprintf(stderr, "FAILED: %s\n", what.c_str());
  std::exit(1);
}

struct Named {
  std::string name;
  std::string collective;
  Schedule program;
  bool in_rank_order;                   // its bits are promised to be those of the loop
  std::vector<bool> holds_one_shard;    // by buffer: the one whose number is the buffer's rank
  std::vector<std::vector<int>> goals;  // by buffer and shard: whose contributions; empty: anything

  const std::vector<int>& goal(int buffer, int shard) const { return goals[buffer * program.shards + shard]; }
  std::string where() const { return name + ", " + std::to_string(program.ranks) + " ranks"; }
};

inline int read_number(std::istream& file) {
  int number;
  if (!(file >> number)) fail("the file of programs ends too early");
  return number;
}

inline std::vector<int> read_list(std::istream& file) {
  std::vector<int> numbers(read_number(file));
  for (int& number : numbers) number = read_number(file);
  return numbers;
}

inline std::vector<std::vector<int>> read_lists(std::istream& file, int count) {
  std::vector<std::vector<int>> lists;
  for (int i = 0; i < count; ++i) lists.push_back(read_list(file));
  return lists;
}

inline Named read_program(std::istream& file) {
  std::string name, collective;
  file >> name >> collective;
  const int ranks = read_number(file), buffers = read_number(file), shards = read_number(file);
  const bool whole_tensors = read_number(file), in_rank_order = read_number(file);
  const int steps = read_number(file);
  const std::vector<int> one_shard = read_list(file);
  std::vector<Instruction> instructions;
  std::vector<std::vector<int>> waits;
  for (int i = 0; i < steps; ++i) {
    const int rank = read_number(file), shard = read_number(file);
    const bool completes = read_number(file);
    const std::vector<int> srcs = read_list(file), dsts = read_list(file);
    instructions.push_back({rank, shard, srcs, dsts, completes});
    waits.push_back(read_list(file));
  }
  const auto launches = read_lists(file, read_number(file));
  return {name,
          collective,
          Schedule(ranks, buffers, shards, std::move(instructions), std::move(waits), launches, whole_tensors),
          in_rank_order,
          {one_shard.begin(), one_shard.end()},
          read_lists(file, buffers * shards)};
}

inline std::vector<Named> read_programs(const std::string& path) {
  std::ifstream file(path);
  std::vector<Named> programs;
  for (std::string word; file >> word;) {
    if (word != "program") fail("not a program: " + word);
    programs.push_back(read_program(file));
  }
  return programs;
}

// A program of its own, for which no engine has kept anything.
inline Schedule copy_of(const Schedule& other) {
  return Schedule(other.ranks, other.buffers, other.shards, other.instructions, other.waits, other.launches,
                  other.whole_tensors);
}

// Two instructions on one shard, of which one writes what the other reads or writes.
inline bool conflict(const Instruction& a, const Instruction& b) {
  const auto touch = [](const std::vector<int>& some, const std::vector<int>& others) {
    for (int one : some)
      for (int other : others)
        if (one == other) return true;
    return false;
  };
  return a.shard == b.shard && (touch(a.dsts, b.srcs) || touch(a.srcs, b.dsts) || touch(a.dsts, b.dsts));
}

// Whether the program's waits, one behind the other, order all that the reads and writes of its
// instructions say must be ordered: worked out from these alone.
inline void expect_ordered(const Named& named) {
  const std::vector<Instruction>& steps = named.program.instructions;
  std::vector<std::vector<bool>> behind(steps.size(), std::vector<bool>(steps.size(), false));
  for (size_t later = 0; later < steps.size(); ++later) {
    for (int earlier : named.program.waits[later]) {
      behind[later][earlier] = true;
      for (int before = 0; before < earlier; ++before)
        if (behind[earlier][before]) behind[later][before] = true;
    }
    for (size_t earlier = 0; earlier < later; ++earlier)
      if (conflict(steps[earlier], steps[later]) && !behind[later][earlier])
        fail(named.where() + ": instruction " + std::to_string(later) + " does not wait for " +
             std::to_string(earlier));
  }
}

// Every instruction starts once, in order, with neighbours of its rank that it does not conflict with.
inline void expect_launches(const Named& named) {
  const std::vector<Instruction>& steps = named.program.instructions;
  int next = 0;
  for (const std::vector<int>& launch : named.program.launches)
    for (int i : launch) {
      const std::string where = named.where() + ": instruction " + std::to_string(i);
      if (i != next++) fail(where + " starts out of order");
      if (steps[i].rank != steps[launch[0]].rank) fail(where + " starts with another rank's");
      for (int other : launch)
        if (other < i && conflict(steps[other], steps[i])) fail(where + " starts with what it must wait for");
    }
  if (next != static_cast<int>(steps.size())) fail(named.where() + ": not every instruction starts");
}

}  // namespace engines_test
