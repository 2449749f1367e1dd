#include "kernels.h"

#ifdef FASTREDUCE_X86_KERNELS
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,prefer-vector-width=512")

namespace fastreduce {
namespace {

// As in reduce_avx2.cpp, at the full width: mixing 256- and 512-bit halves defeats store forwarding.
// The maskz forms are the plain ones without g++ 12's false warning of an uninitialised operand.
template <int V>
C10_ALWAYS_INLINE void widen(const c10::Half* src, float (&acc)[V]) {
  if constexpr (V % 16 == 0) {
    for (int v = 0; v < V; v += 16)
      _mm512_storeu_ps(acc + v, _mm512_maskz_cvtph_ps(
                                    0xffff, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(src + v))));
  } else {
    for (int v = 0; v < V; ++v) acc[v] = src[v];
  }
}

template <int V>
C10_ALWAYS_INLINE void narrow(const float (&acc)[V], c10::Half* dst) {
  if constexpr (V % 16 == 0) {
    for (int v = 0; v < V; v += 16)
      _mm256_storeu_si256(
          reinterpret_cast<__m256i*>(dst + v),
          _mm512_maskz_cvtps_ph(0xffff, _mm512_loadu_ps(acc + v), _MM_FROUND_TO_NEAREST_INT));
  } else {
    for (int v = 0; v < V; ++v) dst[v] = acc[v];
  }
}

}  // namespace
}  // namespace fastreduce

#include "reduce.h"

namespace fastreduce {
Reduce select_avx512(DType dtype, Op op, int num_srcs) { return select(dtype, op, num_srcs); }
}  // namespace fastreduce
#endif
