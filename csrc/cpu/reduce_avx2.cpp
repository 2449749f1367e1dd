#include "cpu/kernels.h"

#ifdef FASTREDUCE_X86_KERNELS
#pragma GCC target("avx2,f16c")

namespace fastreduce {
constexpr int kSimdBytes = 32;
}

#include "cpu/simd.h"

namespace fastreduce {
namespace {

// g++ 12 does not turn loops over c10::Half into vcvtph2ps by itself.
template <int N>
C10_ALWAYS_INLINE void widen(const c10::Half* src, Simd<float> (&acc)[N]) {
#pragma GCC unroll 16
  for (int n = 0; n < N; ++n) acc[n] = _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(src + 8 * n)));
}

template <int N, int V>
C10_ALWAYS_INLINE void narrow(const Simd<float> (&acc)[N], c10::Half (&values)[V]) {
#pragma GCC unroll 16
  for (int n = 0; n < N; ++n)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(values + 8 * n), _mm256_cvtps_ph(acc[n], _MM_FROUND_TO_NEAREST_INT));
}

// A bfloat16 is the upper half of a float32.
template <int N>
C10_ALWAYS_INLINE void widen(const c10::BFloat16* src, Simd<float> (&acc)[N]) {
#pragma GCC unroll 16
  for (int n = 0; n < N; ++n) {
    const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(src + 8 * n));
    acc[n] = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
  }
}

// Rounds to nearest, ties to even, into the lower half of each 32 bits. All NaNs become the same NaN.
C10_ALWAYS_INLINE __m256i round_to_bfloat16(__m256 value) {
  const __m256i bits = _mm256_castps_si256(value);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, odd), _mm256_set1_epi32(0x7fff));
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(value, value, _CMP_UNORD_Q));
  return _mm256_srli_epi32(_mm256_blendv_epi8(rounded, _mm256_set1_epi32(0x7fc00000), nan), 16);
}

template <int N, int V>
C10_ALWAYS_INLINE void narrow(const Simd<float> (&acc)[N], c10::BFloat16 (&values)[V]) {
#pragma GCC unroll 16
  for (int n = 0; n < N; n += 2) {
    // Packing works within halves of the registers, so their middle quarters are swapped afterwards.
    const __m256i packed = _mm256_packus_epi32(round_to_bfloat16(acc[n]), round_to_bfloat16(acc[n + 1]));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(values + 8 * n), _mm256_permute4x64_epi64(packed, 0xd8));
  }
}

}  // namespace
}  // namespace fastreduce

#include "cpu/reduce_range.h"

namespace fastreduce {
Reduce select_avx2(DType dtype, Op op) { return dispatch<Reduce>(dtype, op, CpuKernel{}); }
}  // namespace fastreduce
#endif
