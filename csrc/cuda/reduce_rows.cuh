// The kernel: persistent blocks take tiles of a launch's rows through their instructions.
#pragma once

#include <cuda_runtime.h>

#include "cuda/launch.h"
#include "reduce.h"

namespace fastreduce {
namespace {

// ---- device: what a thread holds of one buffer at a time, `Pieces` aligned vectors of `Bytes`
// (0: single elements) that lie a block's width apart, so that neighbours read neighbouring vectors

template <class T, int Bytes>
constexpr int kVectorElems = Bytes > static_cast<int>(sizeof(T)) ? Bytes / static_cast<int>(sizeof(T)) : 1;

// Words, not elements: what is loaded waits in few registers.
template <class T, int Bytes>
struct alignas(kVectorElems<T, Bytes> * sizeof(T)) Vector {
  std::conditional_t<Bytes == 0, T, uint32_t> words[Bytes == 0 ? 1 : Bytes / 4];
};

// With the constant, the distances of pieces are part of the instructions.
__device__ C10_ALWAYS_INLINE int block_threads() {
  const int threads = static_cast<int>(blockDim.x);
  __builtin_assume(threads == kThreads);
  return threads;
}

template <class T, int Bytes, int Pieces>
struct Pack {
  Vector<T, Bytes> pieces[Pieces];
};

template <class T, int Bytes, int Pieces>
struct PackPointer {
  T* first;
  __device__ PackPointer operator+(int64_t elems) const { return {first + elems}; }
  __device__ Vector<T, Bytes>& operator[](int piece) const {
    return reinterpret_cast<Vector<T, Bytes>*>(first)[piece * block_threads()];
  }
};

// In place the read-only cache must not be used: the same launch writes what it reads.
template <class T, int Bytes, int Pieces>
__device__ C10_ALWAYS_INLINE Pack<T, Bytes, Pieces> load(PackPointer<T, Bytes, Pieces> src) {
  Pack<T, Bytes, Pieces> pack;
  FASTREDUCE_UNROLL
  for (int p = 0; p < Pieces; ++p) pack.pieces[p] = src[p];
  return pack;
}

template <class T, int Bytes, int Pieces>
__device__ C10_ALWAYS_INLINE void store(const Pack<T, Bytes, Pieces>& pack, PackPointer<T, Bytes, Pieces> dst) {
  FASTREDUCE_UNROLL
  for (int p = 0; p < Pieces; ++p) dst[p] = pack.pieces[p];
}

template <int V, class T, int Bytes, int Pieces, class A>
__device__ C10_ALWAYS_INLINE void widen(const Pack<T, Bytes, Pieces>& pack, A (&acc)[V]) {
  T elems[V];
  std::memcpy(elems, &pack, sizeof elems);
  FASTREDUCE_UNROLL
  for (int v = 0; v < V; ++v) acc[v] = static_cast<A>(elems[v]);
}

template <int V, class T, int Bytes, int Pieces>
__device__ C10_ALWAYS_INLINE void store(const T (&values)[V], PackPointer<T, Bytes, Pieces> dst) {
  Pack<T, Bytes, Pieces> pack;
  std::memcpy(&pack, values, sizeof pack);
  store(pack, dst);
}

// An instruction's operands, looked up where they are used: parameters are cached constants.
template <class T, int Bytes, int Pieces>
struct Operands {
  const LaunchArgs& args;
  int first_operand;
  int first_pointer;
  __device__ PackPointer<T, Bytes, Pieces> operator[](int i) const {
    return {reinterpret_cast<T*>(args.pointers[first_pointer + args.operands[first_operand + i]])};
  }
};

struct Range {
  int64_t begin;
  int64_t end;
};

// Packs from `at` on, as long as they are whole; returns where the rest begins.
template <class T, class O, int K, int Bytes, int Pieces>
__device__ int64_t reduce_packs(const LaunchArgs& args, const RowArg& row, const InstructionArg& instruction,
                                int64_t at, int64_t end) {
  constexpr int V = kVectorElems<T, Bytes>;
  const Operands<T, Bytes, Pieces> srcs{args, instruction.first_operand, row.first_pointer};
  const Operands<T, Bytes, Pieces> dsts{args, instruction.first_operand + instruction.num_srcs, row.first_pointer};
  const int64_t width = static_cast<int64_t>(block_threads()) * V;
  for (; at + (Pieces - 1) * width < end; at += Pieces * width) {
    if constexpr (K == 1) {
      const auto pack = load(srcs[0] + at);
      for (int d = 0; d < instruction.num_dsts; ++d) store(pack, dsts[d] + at);
    } else {
      reduce_vector<T, O, K, 0, V * Pieces>(srcs, instruction.num_srcs, dsts, instruction.num_dsts, at,
                                            instruction.contributions);
    }
  }
  return at;
}

// With K sources 8 loads under way hide the memory's latency, as long as 16 accumulators leave
// registers for what they load. Predicted.
template <class T, int K, int Bytes>
constexpr int kPieces = K == 0 || Bytes < 16 ? 1
                        : K == 1             ? 4
                                             : std::max(1, std::min(8 / K, 16 / kVectorElems<T, Bytes>));

// Every instruction gives an element to the same thread, so a thread meets only its own writes and
// a row needs no barrier between its instructions.
template <class T, class O, int K, int Bytes>
__device__ void reduce_elems(const LaunchArgs& args, const RowArg& row, const InstructionArg& instruction,
                             Range range) {
  constexpr int Pieces = kPieces<T, K, Bytes>;
  int64_t at = range.begin + static_cast<int64_t>(threadIdx.x) * kVectorElems<T, Bytes>;
  if constexpr (Pieces > 1) at = reduce_packs<T, O, K, Bytes, Pieces>(args, row, instruction, at, range.end);
  reduce_packs<T, O, K, Bytes, 1>(args, row, instruction, at, range.end);
}

template <class T, class O, int Bytes>
__device__ void reduce_narrow(const LaunchArgs& args, const RowArg& row, const InstructionArg& instruction,
                              Range range) {
  if (instruction.num_srcs == 1)
    reduce_elems<T, O, 1, Bytes>(args, row, instruction, range);
  else
    reduce_elems<T, O, 0, Bytes>(args, row, instruction, range);
}

// Vectors of 16 bytes are unrolled over the sources; narrower ones and single elements are rare.
template <class T, class O>
__device__ void reduce_segment(const LaunchArgs& args, const RowArg& row, const InstructionArg& instruction,
                               Range range, int bytes) {
  const int num_srcs = instruction.num_srcs;
  if constexpr (sizeof(T) < 8)
    if (bytes == 8) return reduce_narrow<T, O, 8>(args, row, instruction, range);
  if constexpr (sizeof(T) < 4)
    if (bytes == 4) return reduce_narrow<T, O, 4>(args, row, instruction, range);
  if (bytes == 0) return reduce_narrow<T, O, 0>(args, row, instruction, range);
  if (num_srcs == 1) return reduce_elems<T, O, 1, 16>(args, row, instruction, range);
  if constexpr (!is_float8<T>) {  // whose conversions dominate
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
  const int vector_elems = row.vector_bytes > sizeof(T) ? row.vector_bytes / static_cast<int>(sizeof(T)) : 1;
  const int64_t tail = begin + (end - begin) / vector_elems * vector_elems;
  for (int i = row.first_instruction; i < row.end_instruction; ++i)
    for (int segment = 0; segment < 3; ++segment) {
      const Range range = segment == 0   ? Range{tile == 0 ? 0 : begin, begin}
                          : segment == 1 ? Range{begin, tail}
                                         : Range{tail, end};
      if (range.begin < range.end)
        reduce_segment<T, O>(args, row, args.instructions[i], range, segment == 1 ? row.vector_bytes : 0);
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
