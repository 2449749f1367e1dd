// launch.cpp for the virtual runtime, which asks of every launch what it reads and writes.
#include "cuda/launch.h"

#include <cstdio>
#include <cstdlib>
#include <map>
#include <set>

namespace fastreduce {
namespace {

// A row is handled in vectors where all its addresses allow it, and nowhere else: a GPU refuses a vector at another
// address, and a CPU does not.
void expect_vectors(const LaunchArgs& args, const RowArg& row, const std::set<uintptr_t>& addresses) {
  std::set<uintptr_t> in_vector;
  for (uintptr_t address : addresses) in_vector.insert((address + row.head_elems * args.elem_bytes) % kVectorBytes);
  const bool at_vectors = *in_vector.begin() == 0 || row.head_elems == row.elems;
  if (row.vectors == (in_vector.size() == 1) && (at_vectors || !row.vectors)) return;
  std::fprintf(stderr, "a row%s in vectors, with addresses at %zu different places of a vector\n",
               row.vectors ? "" : " that is not", in_vector.size());
  std::abort();
}

}  // namespace

// By the first address of memory, for launches whose lanes wait for each other. While such a launch runs its lane
// answers for its own ranks' memory, whoever touches it. Whether the waits between lanes are enough, ThreadSanitizer
// sees.
std::map<const std::byte*, ptrdiff_t> lane_of_memory;

static ptrdiff_t lane_of(const std::byte* memory) { return std::prev(lane_of_memory.upper_bound(memory))->second; }

template <class Out>
void declare_accesses(const LaunchArgs& args, int, Out& out) {
  for (int r = 0; r < args.num_rows; ++r) {
    const RowArg& row = args.row(r);
    const size_t bytes = static_cast<size_t>(row.elems) * args.elem_bytes;
    std::set<uintptr_t> addresses;
    for (int i = row.first_instruction; i < row.end_instruction; ++i) {
      const InstructionArg& instruction = args.instruction(i);
      for (int o = 0; o < instruction.num_srcs + instruction.num_dsts; ++o) {
        std::byte* const memory = args.pointer(row.first_pointer + instruction.first_operand + o);
        addresses.insert(reinterpret_cast<uintptr_t>(memory));
        if (args.num_lanes > 0) {
          if (memory && lane_of(memory) == args.lane) out.reads(memory, bytes), out.writes(memory, bytes);
          continue;
        }
        if (o < instruction.num_srcs) out.reads(memory, bytes);
        if (o >= instruction.num_srcs || instruction.num_dsts == 0) out.writes(memory, bytes);
      }
    }
    expect_vectors(args, row, addresses);
  }
}

namespace {
const virtual_cuda::KernelsTake<LaunchArgs> kernels_take;
}

}  // namespace fastreduce

#include "cuda/launch.cpp"
