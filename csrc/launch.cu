#include "launch.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <tuple>

#include "cuda_raii.h"
#include "reduce.h"

namespace fastreduce {
namespace {

// 256 threads keep registers for 8 unrolled sources; the occupancy query sets the blocks.
constexpr int kThreads = 256;

// ---- device: memory seen in aligned vectors of `Bytes` (0: single elements)

template <class T, int Bytes>
constexpr int kVectorElems = Bytes > static_cast<int>(sizeof(T)) ? Bytes / static_cast<int>(sizeof(T)) : 1;

template <class T, int Bytes>
struct alignas(kVectorElems<T, Bytes> * sizeof(T)) Vector {
  T elems[kVectorElems<T, Bytes>];
};

template <class T, int Bytes>
struct VectorPointer {
  T* first;
  C10_HOST_DEVICE VectorPointer operator+(int64_t elems) const { return {first + elems}; }
  C10_HOST_DEVICE Vector<T, Bytes>& operator*() const { return *reinterpret_cast<Vector<T, Bytes>*>(first); }
};

// In place the read-only cache must not be used: the same launch writes what it reads.
template <int V, class T, int Bytes, class A>
C10_HOST_DEVICE C10_ALWAYS_INLINE void widen(VectorPointer<T, Bytes> src, A (&acc)[V]) {
  const Vector<T, Bytes> vector = *src;
#pragma unroll
  for (int v = 0; v < V; ++v) acc[v] = static_cast<A>(vector.elems[v]);
}

template <int V, class T, int Bytes>
C10_HOST_DEVICE C10_ALWAYS_INLINE void store(const T (&values)[V], VectorPointer<T, Bytes> dst) {
  Vector<T, Bytes> vector;
#pragma unroll
  for (int v = 0; v < V; ++v) vector.elems[v] = values[v];
  *dst = vector;
}

// An instruction's operands, looked up where they are used: parameters are cached constants.
template <class T, int Bytes>
struct Operands {
  const LaunchArgs& args;
  int first_operand;
  int first_pointer;
  C10_HOST_DEVICE VectorPointer<T, Bytes> operator[](int i) const {
    return {reinterpret_cast<T*>(args.pointers[first_pointer + args.operands[first_operand + i]])};
  }
};

struct Range {
  int64_t begin;
  int64_t end;
};

// Every instruction gives an element to the same thread, so a thread meets only its own writes and
// a row needs no barrier between its instructions.
template <class T, class O, int K, int Bytes>
__device__ void reduce_elems(const LaunchArgs& args, const RowArg& row, const InstructionArg& instruction,
                             Range range) {
  constexpr int V = kVectorElems<T, Bytes>;
  const Operands<T, Bytes> srcs{args, instruction.first_operand, row.first_pointer};
  const Operands<T, Bytes> dsts{args, instruction.first_operand + instruction.num_srcs, row.first_pointer};
  for (int64_t at = range.begin + static_cast<int64_t>(threadIdx.x) * V; at + V <= range.end;
       at += static_cast<int64_t>(blockDim.x) * V) {
    if constexpr (K == 1) {
      const Vector<T, Bytes> vector = *(srcs[0] + at);
      for (int d = 0; d < instruction.num_dsts; ++d) *(dsts[d] + at) = vector;
    } else {
      reduce_vector<T, O, K, 0, V>(srcs, instruction.num_srcs, dsts, instruction.num_dsts, at,
                                   instruction.contributions);
    }
  }
}

template <class T, class O>
__device__ void reduce_unaligned(const LaunchArgs& args, const RowArg& row, const InstructionArg& instruction,
                                 Range range, int bytes) {
  const bool copies = instruction.num_srcs == 1;
  if (bytes == 8)
    copies ? reduce_elems<T, O, 1, 8>(args, row, instruction, range)
           : reduce_elems<T, O, 0, 8>(args, row, instruction, range);
  else if (bytes == 4)
    copies ? reduce_elems<T, O, 1, 4>(args, row, instruction, range)
           : reduce_elems<T, O, 0, 4>(args, row, instruction, range);
  else
    copies ? reduce_elems<T, O, 1, 0>(args, row, instruction, range)
           : reduce_elems<T, O, 0, 0>(args, row, instruction, range);
}

template <class T, class O>
__device__ void reduce_aligned(const LaunchArgs& args, const RowArg& row, const InstructionArg& instruction,
                               Range range) {
  switch (instruction.num_srcs) {
    case 1: return reduce_elems<T, O, 1, 16>(args, row, instruction, range);
    case 2: return reduce_elems<T, O, 2, 16>(args, row, instruction, range);
    case 3: return reduce_elems<T, O, 3, 16>(args, row, instruction, range);
    case 4: return reduce_elems<T, O, 4, 16>(args, row, instruction, range);
    case 5: return reduce_elems<T, O, 5, 16>(args, row, instruction, range);
    case 6: return reduce_elems<T, O, 6, 16>(args, row, instruction, range);
    case 7: return reduce_elems<T, O, 7, 16>(args, row, instruction, range);
    case 8: return reduce_elems<T, O, 8, 16>(args, row, instruction, range);
    default: return reduce_elems<T, O, 0, 16>(args, row, instruction, range);
  }
}

// The elements of one tile, its whole vectors, and single elements before and behind them.
template <class T, class O>
__device__ void run_tile(const LaunchArgs& args, const RowArg& row, int tile) {
  const int64_t body = row.head_elems + static_cast<int64_t>(tile) * args.tile_elems;
  const int64_t end = body + args.tile_elems < row.elems ? body + args.tile_elems : row.elems;
  const int vector_elems = row.vector_bytes > sizeof(T) ? row.vector_bytes / static_cast<int>(sizeof(T)) : 1;
  const int64_t tail = body + (end - body) / vector_elems * vector_elems;
  for (int i = row.first_instruction; i < row.end_instruction; ++i) {
    const InstructionArg& instruction = args.instructions[i];
    if (tile == 0 && row.head_elems > 0) reduce_unaligned<T, O>(args, row, instruction, {0, row.head_elems}, 0);
    if (row.vector_bytes == 16)
      reduce_aligned<T, O>(args, row, instruction, {body, tail});
    else
      reduce_unaligned<T, O>(args, row, instruction, {body, tail}, row.vector_bytes);
    if (tail < end) reduce_unaligned<T, O>(args, row, instruction, {tail, end}, 0);
  }
}

template <class T, class O>
__global__ void __launch_bounds__(kThreads) reduce_rows(const __grid_constant__ LaunchArgs args) {
  for (int tile = blockIdx.x; tile < args.num_tiles; tile += gridDim.x) {
    int low = 0, high = args.num_rows - 1;
    while (low < high) {  // the last row that begins at or before this tile
      const int middle = (low + high + 1) / 2;
      if (args.rows[middle].first_tile <= tile)
        low = middle;
      else
        high = middle - 1;
    }
    run_tile<T, O>(args, args.rows[low], tile - args.rows[low].first_tile);
  }
}

// ---- host

using Kernel = void (*)(LaunchArgs);

struct MakeKernel {
  template <class T, class O>
  Kernel make() const {
    return reduce_rows<T, O>;
  }
};

// The grid that fills the device: asked once for each kernel and device.
int full_grid(Kernel kernel, int device) {
  static std::mutex mutex;
  static std::map<std::tuple<Kernel, int>, int> known;
  std::lock_guard lock(mutex);
  int& grid = known[{kernel, device}];
  if (grid == 0) {
    int blocks = 0, processors = 0;
    cuda_check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, kThreads, 0),
               "cudaOccupancyMaxActiveBlocksPerMultiprocessor");
    cuda_check(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device),
               "cudaDeviceGetAttribute");
    grid = std::max(1, blocks * processors);
  }
  return grid;
}

// The widest vectors at which all buffers can be read after the same few single elements.
void align(RowArg& row, std::byte* const* pointers, const std::vector<int>& used, int64_t elem_bytes) {
  const auto address = [&](int buffer) { return reinterpret_cast<uintptr_t>(pointers[buffer]); };
  uintptr_t differing = 0;
  for (int buffer : used) differing |= address(buffer) ^ address(used.front());
  for (uintptr_t bytes : {16, 8, 4}) {
    if (bytes <= static_cast<uintptr_t>(elem_bytes) || differing % bytes != 0) continue;
    const uintptr_t beyond = address(used.front()) % bytes;
    row.vector_bytes = static_cast<uint8_t>(bytes);
    row.head_elems = static_cast<uint8_t>(
        std::min<int64_t>(row.elems, beyond == 0 ? 0 : (bytes - beyond) / static_cast<uintptr_t>(elem_bytes)));
    return;
  }
}

std::vector<int> used_buffers(const std::vector<const Instruction*>& instructions) {
  std::vector<int> used;
  for (const Instruction* instruction : instructions) {
    used.insert(used.end(), instruction->srcs.begin(), instruction->srcs.end());
    used.insert(used.end(), instruction->dsts.begin(), instruction->dsts.end());
  }
  return used;
}

}  // namespace

Launcher::Launcher(DType dtype, Op op, int64_t elem_bytes, int device, cudaStream_t stream)
    : dtype_(dtype), op_(op), elem_bytes_(elem_bytes), device_(device), stream_(stream) {
  args_.tile_elems = static_cast<int32_t>(kCudaTileBytes / elem_bytes);
}

bool Launcher::fits(const std::vector<const Instruction*>& instructions, int num_pointers) const {
  if (args_.num_rows == kMaxRows || num_pointers_ + num_pointers > kMaxPointers) return false;
  if (&instructions == last_instructions_) return true;
  return num_instructions_ + static_cast<int>(instructions.size()) <= kMaxInstructions &&
         num_operands_ + static_cast<int>(used_buffers(instructions).size()) <= kMaxOperands;
}

void Launcher::add_instructions(const std::vector<const Instruction*>& instructions, int contributions) {
  for (const Instruction* instruction : instructions) {
    args_.instructions[num_instructions_++] = {
        static_cast<uint16_t>(num_operands_), static_cast<uint16_t>(instruction->srcs.size()),
        static_cast<uint16_t>(instruction->dsts.size()),
        static_cast<uint16_t>(instruction->completes ? contributions : 1)};
    for (const auto* buffers : {&instruction->srcs, &instruction->dsts})
      for (int buffer : *buffers) args_.operands[num_operands_++] = static_cast<uint16_t>(buffer);
  }
  last_instructions_ = &instructions;
}

void Launcher::add(const std::vector<const Instruction*>& instructions, int contributions,
                   std::byte* const* pointers, int num_pointers, int64_t elems) {
  if (elems == 0 || instructions.empty()) return;
  if (!fits(instructions, num_pointers)) flush();
  if (&instructions != last_instructions_) add_instructions(instructions, contributions);
  const int count = static_cast<int>(instructions.size());
  RowArg row{elems,
             args_.num_tiles,
             static_cast<uint16_t>(num_pointers_),
             static_cast<uint16_t>(num_instructions_ - count),
             static_cast<uint16_t>(num_instructions_),
             0,
             0};
  align(row, pointers, used_buffers(instructions), elem_bytes_);
  args_.rows[args_.num_rows++] = row;
  const int64_t body = std::max<int64_t>(1, elems - row.head_elems);
  args_.num_tiles += static_cast<int32_t>((body + args_.tile_elems - 1) / args_.tile_elems);
  std::copy_n(pointers, num_pointers, args_.pointers + num_pointers_);
  num_pointers_ += num_pointers;
}

void Launcher::flush() {
  if (args_.num_rows == 0) return;
  const Kernel kernel = select(dtype_, op_, MakeKernel{});
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(std::min(args_.num_tiles, full_grid(kernel, device_))));
  config.blockDim = dim3(kThreads);
  config.stream = stream_;
  cuda_check(cudaLaunchKernelEx(&config, kernel, args_), "kernel launch");
  args_.num_rows = args_.num_tiles = 0;
  num_pointers_ = num_instructions_ = num_operands_ = 0;
  last_instructions_ = nullptr;
}

}  // namespace fastreduce
