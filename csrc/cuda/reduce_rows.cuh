// The kernel: each block takes one tile of a launch's rows through the row's instructions.
#pragma once

#include <cuda_runtime.h>

#include "cuda/launch.h"
#include "cuda/signals.cuh"
#include "reduce.h"

namespace fastreduce {
namespace {

// ---- device: the part of one buffer that a thread holds at a time: `Vectors` aligned vectors of `Bytes` bytes (0:
// single elements). They are a block's width apart, so that neighbouring threads read neighbouring vectors.

template <class T, int Bytes>
constexpr int kVectorElems = Bytes > static_cast<int>(sizeof(T)) ? Bytes / static_cast<int>(sizeof(T)) : 1;

// Words, not elements, so that loaded data needs few registers.
template <class T, int Bytes>
struct alignas(kVectorElems<T, Bytes> * sizeof(T)) Vector {
  std::conditional_t<Bytes == 0, T, uint32_t> words[Bytes == 0 ? 1 : Bytes / 4];
};

// As a constant, so that the distances between vectors become part of the machine instructions.
__device__ C10_ALWAYS_INLINE int block_threads() {
  const int threads = static_cast<int>(blockDim.x);
  __builtin_assume(threads == kThreads);
  return threads;
}

template <class T, int Bytes, int Vectors>
struct Pack {
  Vector<T, Bytes> vectors[Vectors];
};

template <class T, int Bytes, int Vectors>
struct PackPointer {
  T* first;
  __device__ PackPointer operator+(int64_t elems) const { return {first + elems}; }
  __device__ Vector<T, Bytes>& operator[](int vector) const {
    return reinterpret_cast<Vector<T, Bytes>*>(first)[vector * block_threads()];
  }
};

// Plain loads, not those of the read-only cache, because the same launch writes the memory that it reads.
template <class T, int Bytes, int Vectors>
__device__ C10_ALWAYS_INLINE Pack<T, Bytes, Vectors> load(PackPointer<T, Bytes, Vectors> src) {
  Pack<T, Bytes, Vectors> pack;
  FASTREDUCE_UNROLL
  for (int i = 0; i < Vectors; ++i) pack.vectors[i] = src[i];
  return pack;
}

template <class T, int Bytes, int Vectors>
__device__ C10_ALWAYS_INLINE void store(const Pack<T, Bytes, Vectors>& pack, PackPointer<T, Bytes, Vectors> dst) {
  FASTREDUCE_UNROLL
  for (int i = 0; i < Vectors; ++i) dst[i] = pack.vectors[i];
}

template <int V, class T, int Bytes, int Vectors, class A>
__device__ C10_ALWAYS_INLINE void widen(const Pack<T, Bytes, Vectors>& pack, A (&acc)[V]) {
  T elems[V];
  std::memcpy(elems, &pack, sizeof elems);
  FASTREDUCE_UNROLL
  for (int v = 0; v < V; ++v) acc[v] = static_cast<A>(elems[v]);
}

template <int V, class T, int Bytes, int Vectors>
__device__ C10_ALWAYS_INLINE void store(const T (&values)[V], PackPointer<T, Bytes, Vectors> dst) {
  Pack<T, Bytes, Vectors> pack;
  std::memcpy(&pack, values, sizeof pack);
  store(pack, dst);
}

// An instruction's operands, read at each use, which is cheap: kernel parameters are in the constant cache.
template <class T, int Bytes, int Vectors>
struct Operands {
  const LaunchArgs& args;
  int first_pointer;
  int64_t begin;
  __device__ PackPointer<T, Bytes, Vectors> operator[](int i) const {
    return {reinterpret_cast<T*>(args.pointer(first_pointer + i)) + begin};
  }
};

// Operands whose addresses are held in registers.
template <class T, int Bytes, int Vectors, int K>
struct Held {
  PackPointer<T, Bytes, Vectors> pointers[K];
  __device__ PackPointer<T, Bytes, Vectors> operator[](int i) const { return pointers[i]; }
};

// One instruction on one row of the launch, from its element `begin` on.
template <class T, class O>
struct Step {
  const LaunchArgs& args;
  const RowArg& row;
  const InstructionArg& instruction;
  int64_t begin;  // all that follows counts from here: fewer registers than addresses take

  __device__ bool in_place() const { return instruction.num_dsts == 0; }
  __device__ int num_dsts() const { return in_place() ? instruction.num_srcs : instruction.num_dsts; }
  template <int Bytes, int Vectors>
  __device__ Operands<T, Bytes, Vectors> srcs() const {
    return {args, row.first_pointer + instruction.first_operand, begin};
  }
  template <int Bytes, int Vectors>
  __device__ Operands<T, Bytes, Vectors> dsts() const {
    const int before = in_place() ? 0 : instruction.num_srcs;
    return {args, row.first_pointer + instruction.first_operand + before, begin};
  }

  // The functions below handle this thread's packs from `at` to `end`. Every instruction gives an element to the same
  // thread, so of this launch's writes a thread reads only its own, and a row needs no barrier between its
  // instructions. Those that return something handle whole packs only, and return where the rest begins. No loop is
  // unrolled, since a tile is seldom more than one turn.

  template <int Bytes, int Vectors>
  __device__ int copy(int at, int end) const {
    const int width = block_threads() * kVectorElems<T, Bytes>;
    FASTREDUCE_NO_UNROLL
    for (; at + (Vectors - 1) * width < end; at += Vectors * width) {
      const auto pack = load(srcs<Bytes, Vectors>()[0] + at);
      for (int d = 0; d < num_dsts(); ++d) store(pack, dsts<Bytes, Vectors>()[d] + at);
    }
    return at;
  }

  // One turn only: a tile has more only if another instruction of the launch takes more vectors at a time. With a loop,
  // some of 8 loads came after the first sum (tests/csrc/cuda/test_machine_code.py).
  template <int K, int Vectors>
  __device__ int in_place(int at, int end) const {
    constexpr int V = kVectorElems<T, 16>;
    const int width = block_threads() * V;
    if (at + (Vectors - 1) * width >= end) return at;
    Held<T, 16, Vectors, K> held;
    FASTREDUCE_UNROLL
    for (int i = 0; i < K; ++i) held.pointers[i] = srcs<16, Vectors>()[i] + at;
    reduce_vector<T, O, K, V * Vectors>(held, K, held, K, 0, instruction.parameter);
    return at + Vectors * width;
  }

  template <int Bytes>
  __device__ void any(int at, int end) const {
    // One source is copied where converting it and back could change the bits of a NaN.
    if constexpr (!std::is_same_v<T, Accumulator<T>>) {
      if (instruction.num_srcs == 1) {
        copy<Bytes, 1>(at, end);
        return;
      }
    }
    constexpr int V = kVectorElems<T, Bytes>;
    FASTREDUCE_NO_UNROLL
    for (; at < end; at += block_threads() * V)
      reduce_vector<T, O, 0, V>(srcs<Bytes, 1>(), instruction.num_srcs, dsts<Bytes, 1>(), num_dsts(), at,
                                instruction.parameter);
  }

  __device__ int unrolled(int at, int end) const {
    if (instruction.num_srcs == 1) return copy<16, 1>(copy<16, vectors_at_a_time(1)>(at, end), end);
    if constexpr (pays_unrolled<T, O>) {
      switch (in_place() ? instruction.num_srcs : 0) {
        case 2: return in_place<2, 1>(in_place<2, vectors_at_a_time(2)>(at, end), end);
        case 3: return in_place<3, vectors_at_a_time(3)>(at, end);
        case 4: return in_place<4, vectors_at_a_time(4)>(at, end);
        case 8: return in_place<8, vectors_at_a_time(8)>(at, end);
      }
    }
    return at;
  }

  __device__ void vectors(int elems) const {
    any<16>(unrolled(static_cast<int>(threadIdx.x) * kVectorElems<T, 16>, elems), elems);
  }
  __device__ void elements(int elems) const { any<0>(static_cast<int>(threadIdx.x), elems); }
};

// A tile of a row is a body of vectors, with a head of single elements before it, up to the first aligned address (in
// the first tile only), and a tail of single elements. Where vectors cannot be used, all is tail.
template <class T, class O>
__device__ C10_ALWAYS_INLINE void run_tile(const LaunchArgs& args, const RowArg& row, const InstructionArg& first,
                                           int tile) {
  const int64_t begin = row.head_elems + static_cast<int64_t>(tile) * args.tile_elems;
  const int64_t rest = row.elems - begin;
  const int elems = rest < args.tile_elems ? static_cast<int>(rest) : args.tile_elems;
  const int body = row.vectors ? elems & ~(kVectorElems<T, 16> - 1) : 0;
  const int head = tile == 0 ? row.head_elems : 0;
  const Signals signals{args, row.first_tile + tile};
  if (args.num_lanes > 0 && !signals.begin()) return;
  for (int i = row.first_instruction; i < row.end_instruction; ++i) {
    if (args.num_lanes > 0) {
      if (args.step(i).lane != args.lane) continue;
      if (!signals.wait(args.step(i))) return;
    }
    const InstructionArg instruction = i == row.first_instruction ? first : args.instruction(i);
    if (body > 0) Step<T, O>{args, row, instruction, begin}.vectors(body);
    FASTREDUCE_NO_UNROLL
    for (int edge = 0; edge < 2; ++edge) {
      const int edge_elems = edge == 0 ? head : elems - body;
      if (edge_elems > 0) Step<T, O>{args, row, instruction, edge == 0 ? 0 : begin + body}.elements(edge_elems);
    }
    if (args.num_lanes > 0 && args.step(i).awaited) signals.tell(i - row.first_instruction + 2);
  }
  if (args.num_lanes > 0) signals.end(row.end_instruction - row.first_instruction);
}

// Makes the compiler load the whole entry here, and not each part where it is first used.
template <class Entry>
__device__ C10_ALWAYS_INLINE Entry read_now(const Entry& from) {
  uint64_t words[sizeof(Entry) / sizeof(uint64_t)];
  std::memcpy(words, &from, sizeof from);
#ifdef __CUDA_ARCH__
  FASTREDUCE_UNROLL
  for (uint64_t& word : words) asm volatile("" : "+l"(word));
#endif
  Entry entry;
  std::memcpy(&entry, words, sizeof entry);
  return entry;
}

// The last row that begins at or before this tile.
__device__ inline int row_of(const LaunchArgs& args, int tile) {
  int low = 0, high = args.num_rows - 1;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (args.row(middle).first_tile <= tile)
      low = middle;
    else
      high = middle - 1;
  }
  return low;
}

template <class T, class O>
__global__ void __launch_bounds__(kThreads, kBlocksPerProcessor) reduce_rows(const __grid_constant__ LaunchArgs args) {
  const int tile = static_cast<int>(blockIdx.x);
  // Most small calls have one row. It is loaded at once: to wait for `num_rows` first would be a part of such a call's
  // time (predicted; tests/csrc/cuda/test_machine_code.py counts the waits).
  RowArg row = read_now(args.row(0));
  InstructionArg first = read_now(args.behind_one_row());
  if (args.num_rows > 1) {
    row = args.row(row_of(args, tile));
    first = args.instruction(row.first_instruction);
  }
  run_tile<T, O>(args, row, first, tile - row.first_tile);
}

struct CudaKernel {
  template <class T, class O>
  Kernel make() const {
    if constexpr (std::is_base_of_v<Min, O>)
      return reduce_rows<Unsigned<T>, FlippedMin>;
    else
      return reduce_rows<T, O>;
  }
};

}  // namespace
}  // namespace fastreduce
