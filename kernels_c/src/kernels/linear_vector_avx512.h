/* linear_vector_avx512.h: 16 rows per vector; AVX-512 F, BW, DQ, VL and VNNI. */
#ifndef GGFW_LINEAR_VECTOR_AVX512_H
#define GGFW_LINEAR_VECTOR_AVX512_H

#include <immintrin.h>

#include "linear_format.h"

#define LV_LANES 16
#define LV_SIGNED 0
#define LV_WORDS 0
#define LV_PAIRS 0
#define LV_UNROLL _Pragma("GCC unroll 16")
#define LV_UNROLL_PARTS _Pragma("GCC unroll 1")
#define LV_FLOAT_TILE 8 /* rows that a float tile holds at most */

typedef __m512i lv_bytes;
typedef __m512i lv_ints;
typedef __m512 lv_floats;

LINEAR_INLINE lv_bytes lv_load(const uint8_t *at) { return _mm512_loadu_si512(at); }
LINEAR_INLINE lv_bytes lv_and(lv_bytes v, int mask) { return _mm512_and_si512(v, _mm512_set1_epi8((char)mask)); }
LINEAR_INLINE lv_bytes lv_or(lv_bytes a, lv_bytes b) { return _mm512_or_si512(a, b); }
/* Shifts move whole words: bits that cross a byte are for the caller to mask. */
LINEAR_INLINE lv_bytes lv_right(lv_bytes v, int n) { return _mm512_srli_epi16(v, (unsigned)n); }
LINEAR_INLINE lv_bytes lv_left(lv_bytes v, int n) { return _mm512_slli_epi16(v, (unsigned)n); }
LINEAR_INLINE lv_bytes lv_lookup(const uint8_t table[16], lv_bytes index)
{
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128((const void *)table)), index);
}

/* init + sum over n quads of code * activation, per row. a: 4 n activations. */
LINEAR_INLINE lv_ints lv_dot(const lv_bytes *w, int n, const int8_t *a, int32_t init, int max_code)
{
    (void)max_code;
    lv_ints sum = _mm512_set1_epi32(init);
    LV_UNROLL
    for (int i = 0; i < n; i++) {
        int32_t quad;
        memcpy(&quad, a + 4 * i, 4);
        sum = _mm512_dpbusd_epi32(sum, w[i], _mm512_set1_epi32(quad));
    }
    return sum;
}

/* Code t of every quad. */
LINEAR_INLINE lv_ints lv_code(lv_bytes v, int t)
{
    return _mm512_and_si512(_mm512_srli_epi32(v, (unsigned)(8 * t)), _mm512_set1_epi32(255));
}
LINEAR_INLINE lv_ints lv_join(lv_ints high, lv_ints low) { return _mm512_add_epi32(_mm512_slli_epi32(high, 7), low); } /* 128 high + low */
LINEAR_INLINE lv_floats lv_convert(lv_ints v) { return _mm512_cvtepi32_ps(v); }
LINEAR_INLINE lv_floats lv_zero(void) { return _mm512_setzero_ps(); }
LINEAR_INLINE lv_floats lv_set(float value) { return _mm512_set1_ps(value); }
LINEAR_INLINE lv_floats lv_mul(lv_floats a, lv_floats b) { return _mm512_mul_ps(a, b); }
LINEAR_INLINE lv_floats lv_add(lv_floats a, lv_floats b) { return _mm512_add_ps(a, b); }
LINEAR_INLINE lv_floats lv_fma(lv_floats a, lv_floats b, lv_floats c) { return _mm512_fmadd_ps(a, b, c); }
LINEAR_INLINE lv_floats lv_negate(lv_floats a) { return _mm512_xor_ps(a, _mm512_set1_ps(-0.0f)); }
LINEAR_INLINE void lv_store(float *at, lv_floats v) { _mm512_storeu_ps(at, v); }

/* Loads with conversion, one element per row. */
LINEAR_INLINE lv_floats lv_load_f32(const uint8_t *at) { return _mm512_loadu_ps(at); }
LINEAR_INLINE lv_floats lv_load_f16(const uint8_t *at)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const void *)at));
}
LINEAR_INLINE lv_floats lv_load_bf16(const uint8_t *at)
{
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)at));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}
LINEAR_INLINE lv_ints lv_load_u8(const uint8_t *at) { return _mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)at)); }
LINEAR_INLINE lv_ints lv_load_i8(const uint8_t *at) { return _mm512_cvtepi8_epi32(_mm_loadu_si128((const void *)at)); }
LINEAR_INLINE lv_ints lv_low_nibbles(lv_ints v) { return _mm512_and_si512(v, _mm512_set1_epi32(15)); }
LINEAR_INLINE lv_ints lv_high_nibbles(lv_ints v) { return _mm512_srli_epi32(v, 4); }
/* 2^(e - 128) from exponent bytes; see linear_e8m0. */
LINEAR_INLINE lv_floats lv_load_e8m0(const uint8_t *at)
{
    const __m512i e = lv_load_u8(at), one = _mm512_set1_epi32(1);
    const __m512i normal = _mm512_slli_epi32(_mm512_sub_epi32(e, one), 23);
    const __m512i small = _mm512_sllv_epi32(_mm512_set1_epi32(0x00200000), _mm512_min_epi32(e, one));
    return _mm512_castsi512_ps(_mm512_max_epi32(normal, small));
}

#endif
