/* simd_avx2.h: 16 floats in two registers; AVX2, FMA, F16C. */
#ifndef GGFW_SIMD_AVX2_H
#define GGFW_SIMD_AVX2_H

#include <immintrin.h>

typedef struct vf {
    __m256 lo, hi;
} vf;
typedef struct vm {
    __m256 lo, hi;
} vm;

#define VF_BOTH(expression_lo, expression_hi) ((vf){expression_lo, expression_hi})

VF_INLINE vf vf_zero(void) { return VF_BOTH(_mm256_setzero_ps(), _mm256_setzero_ps()); }
VF_INLINE vf vf_set(float a) { return VF_BOTH(_mm256_set1_ps(a), _mm256_set1_ps(a)); }
VF_INLINE vf vf_load(const float *p) { return VF_BOTH(_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)); }
VF_INLINE void vf_store(float *p, vf a) {
    _mm256_storeu_ps(p, a.lo);
    _mm256_storeu_ps(p + 8, a.hi);
}

static const int32_t vf_window[32] = {-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1};

VF_INLINE vm vf_lanes_below(int n) {
    const float *at = (const float *)(vf_window + 16 - (n < 16 ? n : 16));
    return (vm){_mm256_loadu_ps(at), _mm256_loadu_ps(at + 8)};
}
VF_INLINE vf vf_load_n(const float *p, int n) {
    vm m = vf_lanes_below(n);
    return VF_BOTH(_mm256_maskload_ps(p, _mm256_castps_si256(m.lo)),
                   _mm256_maskload_ps(p + 8, _mm256_castps_si256(m.hi)));
}
VF_INLINE void vf_store_n(float *p, vf a, int n) {
    vm m = vf_lanes_below(n);
    _mm256_maskstore_ps(p, _mm256_castps_si256(m.lo), a.lo);
    _mm256_maskstore_ps(p + 8, _mm256_castps_si256(m.hi), a.hi);
}

VF_INLINE vf vf_add(vf a, vf b) { return VF_BOTH(_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)); }
VF_INLINE vf vf_sub(vf a, vf b) { return VF_BOTH(_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)); }
VF_INLINE vf vf_mul(vf a, vf b) { return VF_BOTH(_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)); }
VF_INLINE vf vf_div(vf a, vf b) { return VF_BOTH(_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)); }
VF_INLINE vf vf_fma(vf a, vf b, vf c) {
    return VF_BOTH(_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi));
}
VF_INLINE vf vf_max(vf a, vf b) { return VF_BOTH(_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)); }
VF_INLINE vf vf_min(vf a, vf b) { return VF_BOTH(_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)); }
VF_INLINE vf vf_round(vf a) {
    return VF_BOTH(_mm256_round_ps(a.lo, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC),
                   _mm256_round_ps(a.hi, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

VF_INLINE __m256 vf_power2(__m256 n) { /* 2^n, -126 <= n <= 127 */
    __m256i e = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    return _mm256_castsi256_ps(_mm256_slli_epi32(e, 23));
}
/* a * 2^n for integral -252 <= n <= 254; in two steps, since 2^128 and 2^-127 are no (normal) floats. */
VF_INLINE vf vf_scale2(vf a, vf n) {
    vf half = vf_round(vf_mul(n, vf_set(0.5f))), rest = vf_sub(n, half);
    a = VF_BOTH(_mm256_mul_ps(a.lo, vf_power2(half.lo)), _mm256_mul_ps(a.hi, vf_power2(half.hi)));
    return VF_BOTH(_mm256_mul_ps(a.lo, vf_power2(rest.lo)), _mm256_mul_ps(a.hi, vf_power2(rest.hi)));
}

VF_INLINE vm vf_less(vf a, vf b) {
    return (vm){_mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ)};
}
VF_INLINE vf vf_select(vm m, vf yes, vf no) {
    return VF_BOTH(_mm256_blendv_ps(no.lo, yes.lo, m.lo), _mm256_blendv_ps(no.hi, yes.hi, m.hi));
}

/* Lane i of the result is the sum of v[i]. */
VF_INLINE __m256 vf_fours(__m256 a, __m256 b, __m256 c, __m256 d) { /* sums of four lanes, a b c d in each half */
    __m256 ab = _mm256_add_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
    __m256 cd = _mm256_add_ps(_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
    __m256d x = _mm256_castps_pd(ab), y = _mm256_castps_pd(cd);
    return _mm256_add_ps(_mm256_castpd_ps(_mm256_unpacklo_pd(x, y)), _mm256_castpd_ps(_mm256_unpackhi_pd(x, y)));
}
VF_INLINE __m256 vf_halves(__m256 a, __m256 b) {
    return _mm256_add_ps(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
}
VF_INLINE vf vf_sum16(const vf *v) {
    __m256 lo[4], hi[4];
    VF_UNROLL
    for (int i = 0; i < 4; i++) {
        lo[i] = vf_fours(v[4 * i].lo, v[4 * i + 1].lo, v[4 * i + 2].lo, v[4 * i + 3].lo);
        hi[i] = vf_fours(v[4 * i].hi, v[4 * i + 1].hi, v[4 * i + 2].hi, v[4 * i + 3].hi);
    }
    return VF_BOTH(_mm256_add_ps(vf_halves(lo[0], lo[1]), vf_halves(hi[0], hi[1])),
                   _mm256_add_ps(vf_halves(lo[2], lo[3]), vf_halves(hi[2], hi[3])));
}

VF_INLINE void vf_transpose8(const __m256 *v, __m256 *out) {
    __m256 t[8], u[8];
    VF_UNROLL
    for (int i = 0; i < 4; i++) {
        t[2 * i] = _mm256_unpacklo_ps(v[2 * i], v[2 * i + 1]);
        t[2 * i + 1] = _mm256_unpackhi_ps(v[2 * i], v[2 * i + 1]);
    }
    VF_UNROLL
    for (int i = 0; i < 2; i++) {
        u[4 * i] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0x44);
        u[4 * i + 1] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0xee);
        u[4 * i + 2] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0x44);
        u[4 * i + 3] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0xee);
    }
    VF_UNROLL
    for (int i = 0; i < 4; i++) {
        out[i] = _mm256_permute2f128_ps(u[i], u[4 + i], 0x20);
        out[4 + i] = _mm256_permute2f128_ps(u[i], u[4 + i], 0x31);
    }
}

/* Row i of the result is column i. */
VF_INLINE void vf_transpose16(vf *v) {
    __m256 from[8], to[4][8]; /* to: quarters by (half of the rows, half of the columns) */
    VF_UNROLL
    for (int quarter = 0; quarter < 4; quarter++) {
        for (int i = 0; i < 8; i++) from[i] = quarter & 1 ? v[(quarter & 2) * 4 + i].hi : v[(quarter & 2) * 4 + i].lo;
        vf_transpose8(from, to[quarter]);
    }
    VF_UNROLL
    for (int i = 0; i < 8; i++) {
        v[i] = VF_BOTH(to[0][i], to[2][i]);
        v[8 + i] = VF_BOTH(to[1][i], to[3][i]);
    }
}

VF_INLINE float vf_largest(vf a) { /* NaN is not looked for */
    __m256 x = _mm256_max_ps(a.lo, a.hi);
    __m128 y = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    y = _mm_max_ps(y, _mm_movehl_ps(y, y));
    return _mm_cvtss_f32(_mm_max_ss(y, _mm_shuffle_ps(y, y, 1)));
}

/* 16-bit floats; rounding to nearest even. */
VF_INLINE vf vf_load_f16(const uint16_t *p) {
    return VF_BOTH(_mm256_cvtph_ps(_mm_loadu_si128((const void *)p)),
                   _mm256_cvtph_ps(_mm_loadu_si128((const void *)(p + 8))));
}
VF_INLINE void vf_store_f16(uint16_t *p, vf a) {
    _mm_storeu_si128((void *)p, _mm256_cvtps_ph(a.lo, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    _mm_storeu_si128((void *)(p + 8), _mm256_cvtps_ph(a.hi, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
VF_INLINE __m256 vf_widen_bf16(const uint16_t *p) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)p)), 16));
}
VF_INLINE vf vf_load_bf16(const uint16_t *p) { return VF_BOTH(vf_widen_bf16(p), vf_widen_bf16(p + 8)); }
VF_INLINE __m256i vf_narrow_bf16(__m256 a) {
    __m256i bits = _mm256_castps_si256(a);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    __m256i up = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000)); /* a NaN stays one, and quiet */
    up = _mm256_blendv_epi8(up, quiet, _mm256_castps_si256(_mm256_cmp_ps(a, a, _CMP_UNORD_Q)));
    return _mm256_srli_epi32(up, 16);
}
VF_INLINE void vf_store_bf16(uint16_t *p, vf a) {
    __m256i packed = _mm256_packus_epi32(vf_narrow_bf16(a.lo), vf_narrow_bf16(a.hi));
    _mm256_storeu_si256((void *)p, _mm256_permute4x64_epi64(packed, 0xd8));
}

/* 16 small integers as floats: int8, or one half of the nibbles of 16 bytes, minus 8. */
VF_INLINE vf vf_widen_i8(__m128i x) {
    return VF_BOTH(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(x)),
                   _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(x, 8))));
}
VF_INLINE vf vf_load_i8(const uint8_t *p) { return vf_widen_i8(_mm_loadu_si128((const void *)p)); }
VF_INLINE vf vf_load_nibbles(const uint8_t *p, int high) {
    __m128i x = _mm_loadu_si128((const void *)p);
    if (high) x = _mm_srli_epi16(x, 4);
    return vf_widen_i8(_mm_sub_epi8(_mm_and_si128(x, _mm_set1_epi8(15)), _mm_set1_epi8(8)));
}

/* ---- quantising: 16 columns at once ------------------------------------------------------------------------------ */

/* Largest bit pattern of |a[0..16)|: for finite floats the order of the values, infinities and NaN above all. */
VF_INLINE uint32_t vf_largest_bits16(const float *a) {
    __m256i mask = _mm256_set1_epi32(0x7fffffff), top = _mm256_setzero_si256();
    for (int i = 0; i < 16; i += 8)
        top = _mm256_max_epi32(top, _mm256_and_si256(_mm256_loadu_si256((const void *)(a + i)), mask));
    __m128i x = _mm_max_epi32(_mm256_castsi256_si128(top), _mm256_extracti128_si256(top, 1));
    x = _mm_max_epi32(x, _mm_shuffle_epi32(x, 0x4e));
    x = _mm_max_epi32(x, _mm_shuffle_epi32(x, 0xb1));
    return (uint32_t)_mm_cvtsi128_si32(x);
}

/* Columns 0-7 and 8-15 as bytes, in order. */
VF_INLINE void vf_store_bytes16(int8_t *q, __m256i x, __m256i y) {
    __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(x, y), 0xd8);
    __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    _mm_storeu_si128((void *)q, bytes);
}

VF_INLINE int32_t vf_sum_ints16(__m256i x, __m256i y) {
    __m256i sum = _mm256_add_epi32(x, y);
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1));
    return _mm_cvtsi128_si32(s);
}

/* The same of 32 columns. */
VF_INLINE uint32_t vf_largest_bits32(const float *a) {
    uint32_t first = vf_largest_bits16(a), second = vf_largest_bits16(a + 16);
    return first > second ? first : second;
}

/* q = round(a / d) for 16 columns; returns their sum. */
VF_INLINE int32_t vf_quantize16(const float *a, float d, int8_t *q) {
    __m256 by = _mm256_set1_ps(d);
    __m256i x = _mm256_cvtps_epi32(_mm256_div_ps(_mm256_loadu_ps(a), by));
    __m256i y = _mm256_cvtps_epi32(_mm256_div_ps(_mm256_loadu_ps(a + 8), by));
    vf_store_bytes16(q, x, y);
    return vf_sum_ints16(x, y);
}

/* round(a / d) = 128 high + low for 16 columns; returns their sum. */
VF_INLINE int32_t vf_quantize_planes16(const float *a, float d, int8_t *high, int8_t *low) {
    __m256 by = _mm256_set1_ps(d);
    __m256i half = _mm256_set1_epi32(64);
    __m256i x = _mm256_cvtps_epi32(_mm256_div_ps(_mm256_loadu_ps(a), by));
    __m256i y = _mm256_cvtps_epi32(_mm256_div_ps(_mm256_loadu_ps(a + 8), by));
    __m256i xh = _mm256_srai_epi32(_mm256_add_epi32(x, half), 7), yh = _mm256_srai_epi32(_mm256_add_epi32(y, half), 7);
    vf_store_bytes16(high, xh, yh);
    vf_store_bytes16(low, _mm256_sub_epi32(x, _mm256_slli_epi32(xh, 7)), _mm256_sub_epi32(y, _mm256_slli_epi32(yh, 7)));
    return vf_sum_ints16(x, y);
}

#endif
