// launch.cpp for the virtual runtime, which asks of every launch what it reads and writes.
#include "cuda/launch.h"

namespace fastreduce {

template <class Out>
void declare_accesses(const LaunchArgs& args, int, Out& out) {
  for (int r = 0; r < args.num_rows; ++r) {
    const RowArg& row = args.row(r);
    const size_t bytes = static_cast<size_t>(row.elems) * args.elem_bytes;
    for (int i = row.first_instruction; i < row.end_instruction; ++i) {
      const InstructionArg& instruction = args.instruction(i);
      for (int o = 0; o < instruction.num_srcs + instruction.num_dsts; ++o) {
        std::byte* const memory = args.pointer(row.first_pointer + args.operand(instruction.first_operand + o));
        o < instruction.num_srcs ? out.reads(memory, bytes) : out.writes(memory, bytes);
      }
    }
  }
}

namespace {
const virtual_cuda::KernelsTake<LaunchArgs> kernels_take;
}

}  // namespace fastreduce

#include "cuda/launch.cpp"
