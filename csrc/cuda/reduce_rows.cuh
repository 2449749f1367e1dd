// The kernel: persistent blocks take tiles of a launch's rows through their instructions.
#pragma once

#include <cuda_runtime.h>

#include "cuda/launch.h"
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

// An instruction's operands, looked up at each use, which is cheap: kernel parameters are in the constant cache.
template <class T, int Bytes, int Vectors>
struct Operands {
  const LaunchArgs& args;
  int first_operand;
  int first_pointer;
  int64_t begin;
  __device__ PackPointer<T, Bytes, Vectors> operator[](int i) const {
    return {reinterpret_cast<T*>(args.pointers[first_pointer + args.operands[first_operand + i]]) + begin};
  }
};

struct Range {
  int64_t begin;
  int64_t end;
};

// How many vectors of each of K sources are loaded at a time. 8 loads hide the memory's latency (predicted), and 16
// accumulators leave enough registers for them. For four 16-bit sources, two vectors each would be too many: loads
// would then wait for additions (tests/csrc/cuda/test_machine_code.py).
template <class T, int K, int V = kVectorElems<T, 16>>
constexpr int kVectors = K == 1 ? 4 : std::max(1, std::min({8 / K, 16 / V, 48 / (K * V)}));

// Whether separate code for 2, 3, 4 and 8 sources is worth its size. For 5 to 7, as for more than 8, the loop has half
// of 8 loads in flight (predicted: little slower). Not for types and operations that are rarely used with much data,
// and not for float8, whose time goes into conversions.
template <class T, class O>
constexpr bool pays_unrolled = !is_integer<T> && !is_float8<T> && !std::is_same_v<O, Prod>;

// One instruction on one row of the launch.
template <class T, class O>
struct Step {
  const LaunchArgs& args;
  const RowArg& row;
  const InstructionArg& instruction;
  int64_t begin;  // all that follows counts from here: fewer registers than addresses take

  // Handles this thread's whole packs from `at` on; returns where the rest begins. Every instruction gives an element
  // to the same thread, so of this launch's writes a thread reads only its own, and a row needs no barrier
  // between its instructions.
  template <int K, int Bytes, int Vectors>
  __device__ int packs(int at, int end) const {
    const Operands<T, Bytes, Vectors> srcs{args, instruction.first_operand, row.first_pointer, begin};
    const Operands<T, Bytes, Vectors> dsts{args, instruction.first_operand + instruction.num_srcs, row.first_pointer,
                                           begin};
    constexpr int V = kVectorElems<T, Bytes>;
    const int width = block_threads() * V;
    for (; at + (Vectors - 1) * width < end; at += Vectors * width) {
      if constexpr (K == 1) {
        const auto pack = load(srcs[0] + at);
        for (int d = 0; d < instruction.num_dsts; ++d) store(pack, dsts[d] + at);
      } else {
        reduce_vector<T, O, K, V * Vectors>(srcs, instruction.num_srcs, dsts, instruction.num_dsts, at,
                                            instruction.divisor);
      }
    }
    return at;
  }

  // As many vectors at a time as the number of sources allows, if that number has its own code.
  __device__ int unrolled(int at, int end) const {
    if (instruction.num_srcs == 1) return packs<1, 16, kVectors<T, 1>>(at, end);
    if constexpr (pays_unrolled<T, O>) {
      switch (instruction.num_srcs) {
        case 2: return packs<2, 16, kVectors<T, 2>>(at, end);
        case 3: return packs<3, 16, kVectors<T, 3>>(at, end);
        case 4: return packs<4, 16, kVectors<T, 4>>(at, end);
        case 8: return packs<8, 16, kVectors<T, 8>>(at, end);
      }
    }
    return at;
  }

  // One source is copied where converting it and back could change the bits of a NaN.
  template <int Bytes>
  __device__ void rest(int at, int end) const {
    if constexpr (!std::is_same_v<T, Accumulator<T>>) {
      if (instruction.num_srcs == 1) {
        packs<1, Bytes, 1>(at, end);
        return;
      }
    }
    packs<0, Bytes, 1>(at, end);
  }

  __device__ void run(int elems, bool vectors) const {
    const int at = static_cast<int>(threadIdx.x) * (vectors ? kVectorElems<T, 16> : 1);
    vectors ? rest<16>(unrolled(at, elems), elems) : rest<0>(at, elems);
  }
};

// A tile of a row is a head of single elements up to the first aligned address (in the first tile
// only), a body of vectors, and a tail of single elements.
template <class T, class O>
__device__ void run_tile(const LaunchArgs& args, const RowArg& row, int tile) {
  const int64_t begin = row.head_elems + static_cast<int64_t>(tile) * args.tile_elems;
  const int64_t end = begin + args.tile_elems < row.elems ? begin + args.tile_elems : row.elems;
  const int vector_elems = row.vectors ? kVectorElems<T, 16> : 1;
  const int64_t tail = begin + (end - begin) / vector_elems * vector_elems;
  for (int i = row.first_instruction; i < row.end_instruction; ++i)
    for (int stretch = 0; stretch < 3; ++stretch) {
      const Range range = stretch == 0   ? Range{tile == 0 ? 0 : begin, begin}
                          : stretch == 1 ? Range{begin, tail}
                                         : Range{tail, end};
      if (range.begin < range.end)
        Step<T, O>{args, row, args.instructions[i], range.begin}.run(static_cast<int>(range.end - range.begin),
                                                                     stretch == 1 && row.vectors);
    }
}

template <class T, class O>
__global__ void __launch_bounds__(kThreads, kBlocksPerProcessor) reduce_rows(const __grid_constant__ LaunchArgs args) {
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

struct CudaKernel {
  template <class T, class O>
  Kernel make() const {
    return reduce_rows<T, O>;
  }
};

}  // namespace
}  // namespace fastreduce
