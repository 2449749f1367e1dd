#include "cpu/kernels.h"

#ifdef FASTREDUCE_X86_KERNELS
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,prefer-vector-width=512")

namespace fastreduce {
constexpr int kSimdBytes = 64;
}

#include "cpu/simd.h"

namespace fastreduce {
namespace {

// 16-bit results are stored in whole cache lines. They are then copied to the destinations by lines, and a load that
// spans two earlier stores would wait for both to retire. The maskz intrinsics do the same as the plain ones, for
// which g++ 12 wrongly warns of an uninitialised operand.
constexpr __mmask16 kAll = 0xffff;

template <int N>
C10_ALWAYS_INLINE void widen(const c10::Half* src, Simd<float> (&acc)[N]) {
#pragma GCC unroll 16
  for (int n = 0; n < N; ++n)
    acc[n] = _mm512_maskz_cvtph_ps(kAll, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(src + 16 * n)));
}

C10_ALWAYS_INLINE __m256i round_to_half(__m512 value) {
  return _mm512_maskz_cvtps_ph(kAll, value, _MM_FROUND_TO_NEAREST_INT);
}

template <int N, int V>
C10_ALWAYS_INLINE void narrow(const Simd<float> (&acc)[N], c10::Half (&values)[V]) {
#pragma GCC unroll 16
  for (int n = 0; n < N; n += 2) {
    const __m512i low = _mm512_castsi256_si512(round_to_half(acc[n]));
    _mm512_storeu_si512(values + 16 * n, _mm512_maskz_inserti64x4(0xff, low, round_to_half(acc[n + 1]), 1));
  }
}

// A bfloat16 is the upper half of a float32. In a register of pairs the even elements are shifted up and the odd ones
// are masked, so nothing is unpacked. Therefore acc holds 16 even elements, then 16 odd ones.
template <int N>
C10_ALWAYS_INLINE void widen(const c10::BFloat16* src, Simd<float> (&acc)[N]) {
  const __m512i upper_half = _mm512_set1_epi32(static_cast<int>(0xffff0000));
#pragma GCC unroll 16
  for (int n = 0; n < N; n += 2) {
    const __m512i pairs = _mm512_loadu_si512(src + 16 * n);
    acc[n] = _mm512_castsi512_ps(_mm512_maskz_slli_epi32(kAll, pairs, 16));
    acc[n + 1] = _mm512_castsi512_ps(_mm512_and_si512(pairs, upper_half));
  }
}

// Rounds to nearest, ties to even. The result is the upper half; the lower half is garbage. All NaNs become the same
// NaN.
C10_ALWAYS_INLINE __m512i round_to_bfloat16(__m512 value) {
  const __m512i bits = _mm512_castps_si512(value);
  const __m512i odd = _mm512_and_si512(_mm512_maskz_srli_epi32(kAll, bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, odd), _mm512_set1_epi32(0x7fff));
  const __mmask16 nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
  return _mm512_mask_mov_epi32(rounded, nan, _mm512_set1_epi32(0x7fc00000));
}

template <int N, int V>
C10_ALWAYS_INLINE void narrow(const Simd<float> (&acc)[N], c10::BFloat16 (&values)[V]) {
#pragma GCC unroll 16
  for (int n = 0; n < N; n += 2) {
    const __m512i even = _mm512_maskz_srli_epi32(kAll, round_to_bfloat16(acc[n]), 16);
    _mm512_storeu_si512(values + 16 * n, _mm512_mask_blend_epi16(0xaaaaaaaa, even, round_to_bfloat16(acc[n + 1])));
  }
}

}  // namespace
}  // namespace fastreduce

#include "cpu/reduce_range.h"

namespace fastreduce {
Reduce select_avx512(DType dtype, Op op) { return dispatch<Reduce>(dtype, op, CpuKernel{}); }
}  // namespace fastreduce
#endif
