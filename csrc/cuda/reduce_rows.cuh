// The kernel: persistent blocks take tiles of a launch's rows through their instructions.
#pragma once

#include <cuda_runtime.h>

#include "cuda/launch.h"
#include "reduce.h"

namespace fastreduce {
namespace {

// ---- device: what a thread holds of one buffer at a time, `Vectors` aligned vectors of `Bytes`
// (0: single elements) that lie a block's width apart, so that neighbours read neighbouring vectors

template <class T, int Bytes>
constexpr int kVectorElems = Bytes > static_cast<int>(sizeof(T)) ? Bytes / static_cast<int>(sizeof(T)) : 1;

// Words, not elements: what is loaded waits in few registers.
template <class T, int Bytes>
struct alignas(kVectorElems<T, Bytes> * sizeof(T)) Vector {
  std::conditional_t<Bytes == 0, T, uint32_t> words[Bytes == 0 ? 1 : Bytes / 4];
};

// With the constant, the distances of vectors are part of the instructions.
__device__ C10_ALWAYS_INLINE int block_threads() {
  const int threads = static_cast<int>(blockDim.x);
  __builtin_assume(threads == kThreads);
  return threads;
}

template <class T, int Bytes, int Vectors>
struct Pack {
  Vector<T, Bytes> vectors[Vectors];
};

// Of the vectors the first `count` are inside the tile: the others are neither read nor written.
template <class T, int Bytes, int Vectors>
struct PackPointer {
  T* first;
  int count;
  __device__ PackPointer operator+(int64_t elems) const { return {first + elems, count}; }
  __device__ Vector<T, Bytes>& operator[](int vector) const {
    return reinterpret_cast<Vector<T, Bytes>*>(first)[vector * block_threads()];
  }
};

// In place the read-only cache must not be used: the same launch writes what it reads.
template <class T, int Bytes, int Vectors>
__device__ C10_ALWAYS_INLINE Pack<T, Bytes, Vectors> load(PackPointer<T, Bytes, Vectors> src) {
  Pack<T, Bytes, Vectors> pack{};
  FASTREDUCE_UNROLL
  for (int i = 0; i < Vectors; ++i)
    if (i < src.count) pack.vectors[i] = src[i];
  return pack;
}

template <class T, int Bytes, int Vectors>
__device__ C10_ALWAYS_INLINE void store(const Pack<T, Bytes, Vectors>& pack, PackPointer<T, Bytes, Vectors> dst) {
  FASTREDUCE_UNROLL
  for (int i = 0; i < Vectors; ++i)
    if (i < dst.count) dst[i] = pack.vectors[i];
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

// An instruction's operands, looked up where they are used: parameters are cached constants.
template <class T, int Bytes, int Vectors>
struct Operands {
  const LaunchArgs& args;
  int first_operand;
  int first_pointer;
  int count;
  __device__ PackPointer<T, Bytes, Vectors> operator[](int i) const {
    return {reinterpret_cast<T*>(args.pointers[first_pointer + args.operands[first_operand + i]]), count};
  }
};

struct Range {
  int64_t begin;
  int64_t end;
};

// With K sources 8 loads under way hide the memory's latency, as long as 16 accumulators leave
// registers for what they load. Predicted.
template <class T, int K, int Bytes>
constexpr int kVectors = K == 0 || Bytes < 16 ? 1
                         : K == 1             ? 4
                                              : std::max(1, std::min(8 / K, 16 / kVectorElems<T, Bytes>));

// Every instruction gives an element to the same thread, so a thread meets only its own writes and
// a row needs no barrier between its instructions.
template <class T, class O, int K, int Bytes>
__device__ void reduce_elems(const LaunchArgs& args, const RowArg& row, const InstructionArg& instruction,
                             Range range) {
  constexpr int V = kVectorElems<T, Bytes>, Vectors = kVectors<T, K, Bytes>;
  const int64_t width = static_cast<int64_t>(block_threads()) * V;
  for (int64_t at = range.begin + static_cast<int64_t>(threadIdx.x) * V; at < range.end; at += Vectors * width) {
    const int count = static_cast<int>(std::min<int64_t>(Vectors, (range.end - at + width - 1) / width));
    const Operands<T, Bytes, Vectors> srcs{args, instruction.first_operand, row.first_pointer, count};
    const Operands<T, Bytes, Vectors> dsts{args, instruction.first_operand + instruction.num_srcs, row.first_pointer,
                                           count};
    if constexpr (K == 1) {
      const auto pack = load(srcs[0] + at);
      for (int d = 0; d < instruction.num_dsts; ++d) store(pack, dsts[d] + at);
    } else {
      reduce_vector<T, O, K, 0, V * Vectors>(srcs, instruction.num_srcs, dsts, instruction.num_dsts, at,
                                             instruction.divisor);
    }
  }
}

// Vectors are unrolled over the sources where that pays; single elements are rare.
template <class T, class O>
__device__ void reduce_segment(const LaunchArgs& args, const RowArg& row, const InstructionArg& instruction,
                               Range range, bool vectors) {
  const int num_srcs = instruction.num_srcs;
  if (!vectors && num_srcs == 1) return reduce_elems<T, O, 1, 0>(args, row, instruction, range);
  if (!vectors) return reduce_elems<T, O, 0, 0>(args, row, instruction, range);
  if (num_srcs == 1) return reduce_elems<T, O, 1, 16>(args, row, instruction, range);
  if constexpr (pays_unrolled<T, O>) {
    switch (num_srcs) {
      case 2: return reduce_elems<T, O, 2, 16>(args, row, instruction, range);
      case 3: return reduce_elems<T, O, 3, 16>(args, row, instruction, range);
      case 4: return reduce_elems<T, O, 4, 16>(args, row, instruction, range);
      case 5: return reduce_elems<T, O, 5, 16>(args, row, instruction, range);
      case 6: return reduce_elems<T, O, 6, 16>(args, row, instruction, range);
      case 7: return reduce_elems<T, O, 7, 16>(args, row, instruction, range);
      case 8: return reduce_elems<T, O, 8, 16>(args, row, instruction, range);
    }
  }
  reduce_elems<T, O, 0, 16>(args, row, instruction, range);
}

// The elements of one tile: single ones up to the first aligned address, vectors, single ones.
template <class T, class O>
__device__ void run_tile(const LaunchArgs& args, const RowArg& row, int tile) {
  const int64_t begin = row.head_elems + static_cast<int64_t>(tile) * args.tile_elems;
  const int64_t end = begin + args.tile_elems < row.elems ? begin + args.tile_elems : row.elems;
  const int vector_elems = row.vectors ? kVectorElems<T, 16> : 1;
  const int64_t tail = begin + (end - begin) / vector_elems * vector_elems;
  for (int i = row.first_instruction; i < row.end_instruction; ++i)
    for (int segment = 0; segment < 3; ++segment) {
      const Range range = segment == 0   ? Range{tile == 0 ? 0 : begin, begin}
                          : segment == 1 ? Range{begin, tail}
                                         : Range{tail, end};
      if (range.begin < range.end)
        reduce_segment<T, O>(args, row, args.instructions[i], range, segment == 1 && row.vectors);
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
