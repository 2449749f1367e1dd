#include "cpu/kernels.h"

#ifdef FASTREDUCE_X86_KERNELS
#pragma GCC target("avx2,f16c")

namespace fastreduce {
namespace {

// g++ 12 does not turn loops over c10::Half into vcvtph2ps by itself.
template <int V>
C10_ALWAYS_INLINE void widen(const c10::Half* src, float (&acc)[V]) {
  if constexpr (V % 8 == 0) {
    for (int v = 0; v < V; v += 8)
      _mm256_storeu_ps(acc + v, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(src + v))));
  } else {
    for (int v = 0; v < V; ++v) acc[v] = src[v];
  }
}

template <int V>
C10_ALWAYS_INLINE void narrow(const float (&acc)[V], c10::Half* dst) {
  if constexpr (V % 8 == 0) {
    for (int v = 0; v < V; v += 8)
      _mm_storeu_si128(reinterpret_cast<__m128i*>(dst + v),
                       _mm256_cvtps_ph(_mm256_loadu_ps(acc + v), _MM_FROUND_TO_NEAREST_INT));
  } else {
    for (int v = 0; v < V; ++v) dst[v] = acc[v];
  }
}

}  // namespace
}  // namespace fastreduce

#include "cpu/reduce_range.h"

namespace fastreduce {
Reduce select_avx2(DType dtype, Op op, int num_srcs) {
  return dispatch<Reduce>(Elements{}, dtype, op, CpuKernel<true>{num_srcs});
}
}  // namespace fastreduce
#endif
