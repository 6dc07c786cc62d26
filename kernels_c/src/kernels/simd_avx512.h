/* simd_avx512.h: 16 floats in one register; AVX-512 F, BW, DQ, VL. */
#ifndef GGFW_SIMD_AVX512_H
#define GGFW_SIMD_AVX512_H

#include <immintrin.h>

typedef __m512 vf;
typedef __mmask16 vm;

VF_INLINE vf vf_zero(void) { return _mm512_setzero_ps(); }
VF_INLINE vf vf_set(float a) { return _mm512_set1_ps(a); }
VF_INLINE vf vf_load(const float *p) { return _mm512_loadu_ps(p); }
VF_INLINE void vf_store(float *p, vf a) { _mm512_storeu_ps(p, a); }
VF_INLINE vm vf_lanes_below(int n) { return (vm)(n >= 16 ? 0xffff : (1u << n) - 1); }
VF_INLINE vf vf_load_n(const float *p, int n) { return _mm512_maskz_loadu_ps(vf_lanes_below(n), p); }
VF_INLINE void vf_store_n(float *p, vf a, int n) { _mm512_mask_storeu_ps(p, vf_lanes_below(n), a); }

VF_INLINE vf vf_add(vf a, vf b) { return _mm512_add_ps(a, b); }
VF_INLINE vf vf_sub(vf a, vf b) { return _mm512_sub_ps(a, b); }
VF_INLINE vf vf_mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
VF_INLINE vf vf_div(vf a, vf b) { return _mm512_div_ps(a, b); }
VF_INLINE vf vf_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
VF_INLINE vf vf_max(vf a, vf b) { return _mm512_max_ps(a, b); }
VF_INLINE vf vf_min(vf a, vf b) { return _mm512_min_ps(a, b); }
VF_INLINE vf vf_round(vf a) {
    return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
/* a * 2^n for integral n; overflows to infinity, underflows to zero. */
VF_INLINE vf vf_scale2(vf a, vf n) { return _mm512_scalef_ps(a, n); }

VF_INLINE vm vf_less(vf a, vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
VF_INLINE vf vf_select(vm m, vf yes, vf no) { return _mm512_mask_blend_ps(m, no, yes); }

/* Lane i of the result is the sum of v[i]. */
VF_INLINE vf vf_sum16(const vf *v) {
    vf t[8], u[4], w[2];
    VF_UNROLL
    for (int i = 0; i < 8; i++)
        t[i] = _mm512_add_ps(_mm512_unpacklo_ps(v[2 * i], v[2 * i + 1]), _mm512_unpackhi_ps(v[2 * i], v[2 * i + 1]));
    VF_UNROLL
    for (int i = 0; i < 4; i++) {
        __m512d a = _mm512_castps_pd(t[2 * i]), b = _mm512_castps_pd(t[2 * i + 1]);
        u[i] = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(a, b)), _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
    }
    VF_UNROLL
    for (int i = 0; i < 2; i++)
        w[i] = _mm512_add_ps(_mm512_shuffle_f32x4(u[2 * i], u[2 * i + 1], 0x88),
                             _mm512_shuffle_f32x4(u[2 * i], u[2 * i + 1], 0xdd));
    return _mm512_add_ps(_mm512_shuffle_f32x4(w[0], w[1], 0x88), _mm512_shuffle_f32x4(w[0], w[1], 0xdd));
}

/* Row i of the result is column i. */
VF_INLINE void vf_transpose16(vf *v) {
    vf t[16];
    VF_UNROLL
    for (int i = 0; i < 8; i++) {
        t[2 * i] = _mm512_unpacklo_ps(v[2 * i], v[2 * i + 1]);
        t[2 * i + 1] = _mm512_unpackhi_ps(v[2 * i], v[2 * i + 1]);
    }
    VF_UNROLL
    for (int i = 0; i < 4; i++) { /* v[4i + j]: column j of each 4x4 block */
        __m512d a = _mm512_castps_pd(t[4 * i]), b = _mm512_castps_pd(t[4 * i + 1]);
        __m512d c = _mm512_castps_pd(t[4 * i + 2]), d = _mm512_castps_pd(t[4 * i + 3]);
        v[4 * i] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, c));
        v[4 * i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, c));
        v[4 * i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(b, d));
        v[4 * i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(b, d));
    }
    VF_UNROLL
    for (int j = 0; j < 4; j++) { /* 4x4 blocks of 128 bits */
        vf ab_even = _mm512_shuffle_f32x4(v[j], v[4 + j], 0x88), ab_odd = _mm512_shuffle_f32x4(v[j], v[4 + j], 0xdd);
        vf cd_even = _mm512_shuffle_f32x4(v[8 + j], v[12 + j], 0x88);
        vf cd_odd = _mm512_shuffle_f32x4(v[8 + j], v[12 + j], 0xdd);
        t[j] = _mm512_shuffle_f32x4(ab_even, cd_even, 0x88);
        t[8 + j] = _mm512_shuffle_f32x4(ab_even, cd_even, 0xdd);
        t[4 + j] = _mm512_shuffle_f32x4(ab_odd, cd_odd, 0x88);
        t[12 + j] = _mm512_shuffle_f32x4(ab_odd, cd_odd, 0xdd);
    }
    VF_UNROLL
    for (int i = 0; i < 16; i++) v[i] = t[i];
}

VF_INLINE float vf_largest(vf a) { return _mm512_reduce_max_ps(a); } /* NaN is not looked for */

/* 16-bit floats; rounding to nearest even. */
VF_INLINE vf vf_load_f16(const uint16_t *p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const void *)p)); }
VF_INLINE void vf_store_f16(uint16_t *p, vf a) {
    _mm256_storeu_si256((void *)p, _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
VF_INLINE vf vf_load_bf16(const uint16_t *p) {
    __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}
VF_INLINE void vf_store_bf16(uint16_t *p, vf a) {
    __m512i bits = _mm512_castps_si512(a);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i up = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    vm nan = _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q);
    up = _mm512_mask_or_epi32(up, nan, bits, _mm512_set1_epi32(0x400000)); /* a NaN stays one, and quiet */
    _mm256_storeu_si256((void *)p, _mm512_cvtepi32_epi16(_mm512_srli_epi32(up, 16)));
}

/* 16 small integers as floats: int8, or one half of the nibbles of 16 bytes, minus 8. */
VF_INLINE vf vf_load_i8(const uint8_t *p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const void *)p)));
}
VF_INLINE vf vf_load_nibbles(const uint8_t *p, int high) {
    __m128i x = _mm_loadu_si128((const void *)p);
    if (high) x = _mm_srli_epi16(x, 4);
    x = _mm_sub_epi8(_mm_and_si128(x, _mm_set1_epi8(15)), _mm_set1_epi8(8));
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(x));
}

/* ---- quantising: 16 columns at once ------------------------------------------------------------------------------ */

/* Largest bit pattern of |a[0..16)|: for finite floats the order of the values, infinities and NaN above all. */
VF_INLINE uint32_t vf_largest_bits16(const float *a) {
    __m512i x = _mm512_and_si512(_mm512_loadu_si512(a), _mm512_set1_epi32(0x7fffffff));
    return (uint32_t)_mm512_reduce_max_epi32(x);
}

/* The same of 32 columns. */
VF_INLINE uint32_t vf_largest_bits32(const float *a) {
    __m512i mask = _mm512_set1_epi32(0x7fffffff);
    __m512i x = _mm512_and_si512(_mm512_loadu_si512(a), mask), y = _mm512_and_si512(_mm512_loadu_si512(a + 16), mask);
    return (uint32_t)_mm512_reduce_max_epi32(_mm512_max_epi32(x, y));
}

/* q = round(a / d) for 16 columns; returns their sum. */
VF_INLINE int32_t vf_quantize16(const float *a, float d, int8_t *q) {
    __m512i v = _mm512_cvtps_epi32(_mm512_div_ps(_mm512_loadu_ps(a), _mm512_set1_ps(d)));
    _mm_storeu_si128((void *)q, _mm512_cvtepi32_epi8(v));
    return _mm512_reduce_add_epi32(v);
}

/* round(a / d) = 128 high + low for 16 columns; returns their sum. */
VF_INLINE int32_t vf_quantize_planes16(const float *a, float d, int8_t *high, int8_t *low) {
    __m512i v = _mm512_cvtps_epi32(_mm512_div_ps(_mm512_loadu_ps(a), _mm512_set1_ps(d)));
    __m512i h = _mm512_srai_epi32(_mm512_add_epi32(v, _mm512_set1_epi32(64)), 7);
    _mm_storeu_si128((void *)high, _mm512_cvtepi32_epi8(h));
    _mm_storeu_si128((void *)low, _mm512_cvtepi32_epi8(_mm512_sub_epi32(v, _mm512_slli_epi32(h, 7))));
    return _mm512_reduce_add_epi32(v);
}

#endif
