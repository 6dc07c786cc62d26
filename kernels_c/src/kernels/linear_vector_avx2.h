/* linear_vector_avx2.h: 8 rows per vector; AVX2, FMA and F16C, and AVX-VNNI for GGFW_UNIT_AVXVNNI.
 *
 * Without AVX-VNNI: vpmaddubsw adds two products of unsigned code and signed activation in 16 bits. With |activation| <= 128 a code of at
 * most 15 leaves room for 8 such sums, 31 for 4, 63 for 2, before they are widened. A code of 255 has no room even for
 * one: those formats are taken as signed bytes w, and |w| * (activation * sign of w) stays below 32768.
 */
#ifndef GGFW_LINEAR_VECTOR_AVX2_H
#define GGFW_LINEAR_VECTOR_AVX2_H

#include <immintrin.h>

#include "linear_format.h"

#define LV_LANES 8
#define LV_PAIRS 0
#if defined(GGFW_UNIT_AVXVNNI)
#define LV_SIGNED 0
#define LV_WORDS 0
#else
#define LV_SIGNED 1
#define LV_WORDS 1
#endif
#define LV_UNROLL _Pragma("GCC unroll 16")
#define LV_UNROLL_PARTS _Pragma("GCC unroll 1")
#define LV_FLOAT_TILE 2 /* rows that a float tile holds at most */

typedef __m256i lv_bytes;
typedef __m256i lv_ints;
typedef __m256 lv_floats;

LINEAR_INLINE lv_bytes lv_load(const uint8_t *at) { return _mm256_loadu_si256((const void *)at); }
LINEAR_INLINE lv_bytes lv_and(lv_bytes v, int mask) { return _mm256_and_si256(v, _mm256_set1_epi8((char)mask)); }
LINEAR_INLINE lv_bytes lv_or(lv_bytes a, lv_bytes b) { return _mm256_or_si256(a, b); }
/* Shifts move whole words: bits that cross a byte are for the caller to mask. */
LINEAR_INLINE lv_bytes lv_right(lv_bytes v, int n) { return _mm256_srli_epi16(v, n); }
LINEAR_INLINE lv_bytes lv_left(lv_bytes v, int n) { return _mm256_slli_epi16(v, n); }
LINEAR_INLINE lv_bytes lv_lookup(const uint8_t table[16], lv_bytes index)
{
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_loadu_si128((const void *)table)), index);
}

/* 4 activations, or a number of 32 bits, for all rows. */
LINEAR_INLINE lv_ints lv_quad(const uint8_t *at)
{
    int32_t quad;
    memcpy(&quad, at, 4);
    return _mm256_set1_epi32(quad);
}

/* init + sum over n quads of code * activation, per row. a: 4 n activations. */
#if defined(GGFW_UNIT_AVXVNNI)
#if defined(__AVXVNNI__)
#define LV_DPBUSD _mm256_dpbusd_avx_epi32
#else /* the same instruction of AVX-512 */
#define LV_DPBUSD _mm256_dpbusd_epi32
#endif
LINEAR_INLINE lv_ints lv_dot(const lv_bytes *w, int n, const int8_t *a, int32_t init, int max_code)
{
    (void)max_code;
    lv_ints sum = _mm256_set1_epi32(init);
    __asm__ volatile("" : "+r"(a)); /* see below */
    LV_UNROLL
    for (int i = 0; i < n; i++) {
        sum = LV_DPBUSD(sum, w[i], lv_quad((const uint8_t *)a + 4 * i));
    }
    return sum;
}
#else
/* One quad: its products with 4 activations, added in pairs to words. */
LINEAR_INLINE lv_ints lv_quad_words(lv_bytes w, lv_ints quad, int max_code)
{
    if (max_code <= 127) return _mm256_maddubs_epi16(w, quad);
    const __m256i weight = _mm256_xor_si256(w, _mm256_set1_epi8((char)0x80));
    return _mm256_maddubs_epi16(_mm256_abs_epi8(weight), _mm256_sign_epi8(quad, weight));
}
/* Quads whose words one word can take. */
LINEAR_INLINE int lv_room(int max_code) { return max_code > 127 ? 1 : 32767 / (2 * 128 * max_code); }
LINEAR_INLINE lv_ints lv_add_words(lv_ints a, lv_ints b)
{
    a = _mm256_add_epi16(a, b);
    __asm__("" : "+x"(a)); /* see lv_word_dot */
    return a;
}
LINEAR_INLINE lv_ints lv_widen(lv_ints sum, lv_ints words)
{
    return _mm256_add_epi32(sum, _mm256_madd_epi16(words, _mm256_set1_epi16(1)));
}

LINEAR_INLINE lv_ints lv_dot(const lv_bytes *w, int n, const int8_t *a, int32_t init, int max_code)
{
    const int room = lv_room(max_code);
    lv_ints sum = _mm256_set1_epi32(init), narrow = _mm256_setzero_si256();
    /* Hide where a comes from: broadcasts are cheaper than what gcc does to keep them for the other half of the panel,
     * which is to store and reload all of them. */
    __asm__ volatile("" : "+r"(a));
    LV_UNROLL
    for (int i = 0; i < n; i++) {
        const lv_ints product = lv_quad_words(w[i], lv_quad((const uint8_t *)a + 4 * i), max_code);
        narrow = i % room == 0 ? product : _mm256_add_epi16(narrow, product);
        if (i % room == room - 1 || i == n - 1) sum = lv_widen(sum, narrow);
    }
    return sum;
}

/* Codes 0 and 2 of every quad, or 1 and 3, as words; those above 127 stand for code - 128 here too. */
LINEAR_INLINE lv_ints lv_even_words(lv_bytes v, int max_code)
{
    if (max_code <= 127) return _mm256_and_si256(v, _mm256_set1_epi16(255));
    return _mm256_srai_epi16(_mm256_slli_epi16(_mm256_xor_si256(v, _mm256_set1_epi8((char)0x80)), 8), 8);
}
LINEAR_INLINE lv_ints lv_odd_words(lv_bytes v, int max_code)
{
    if (max_code <= 127) return _mm256_srli_epi16(v, 8);
    return _mm256_srai_epi16(_mm256_xor_si256(v, _mm256_set1_epi8((char)0x80)), 8);
}
LINEAR_INLINE lv_ints lv_word_dot(lv_ints sum, lv_ints words, lv_ints pairs)
{
    sum = _mm256_add_epi32(sum, _mm256_madd_epi16(words, pairs));
    /* Hide it: gcc would rather add products to each other first, and keep sums and products in memory. */
    __asm__("" : "+x"(sum));
    return sum;
}
LINEAR_INLINE lv_ints lv_offset(lv_ints v, int32_t by) { return _mm256_add_epi32(v, _mm256_set1_epi32(by)); }
LINEAR_INLINE lv_ints lv_none(void) { return _mm256_setzero_si256(); }

/* 32 activations of two planes, 128 high + low, as the pairs of linear_words.h. */
LINEAR_INLINE void lv_pairs(const uint8_t *q, uint8_t *pairs)
{
    const __m256i high = _mm256_loadu_si256((const void *)q), low = _mm256_loadu_si256((const void *)(q + 32));
    const __m256i top = _mm256_set1_epi16((short)0xff00);
    const __m256i even = _mm256_add_epi16(_mm256_srai_epi16(_mm256_slli_epi16(high, 8), 1), _mm256_srai_epi16(_mm256_slli_epi16(low, 8), 8));
    const __m256i odd = _mm256_add_epi16(_mm256_srai_epi16(_mm256_and_si256(high, top), 1), _mm256_srai_epi16(low, 8));
    _mm256_storeu_si256((void *)pairs, even);
    _mm256_storeu_si256((void *)(pairs + 32), odd);
}
#endif

/* Code t of every quad. */
LINEAR_INLINE lv_ints lv_code(lv_bytes v, int t)
{
    return _mm256_and_si256(_mm256_srli_epi32(v, 8 * t), _mm256_set1_epi32(255));
}
LINEAR_INLINE lv_ints lv_join(lv_ints high, lv_ints low) { return _mm256_add_epi32(_mm256_slli_epi32(high, 7), low); } /* 128 high + low */
LINEAR_INLINE lv_floats lv_convert(lv_ints v) { return _mm256_cvtepi32_ps(v); }
LINEAR_INLINE lv_floats lv_zero(void) { return _mm256_setzero_ps(); }
LINEAR_INLINE lv_floats lv_set(float value) { return _mm256_set1_ps(value); }
LINEAR_INLINE lv_floats lv_mul(lv_floats a, lv_floats b) { return _mm256_mul_ps(a, b); }
LINEAR_INLINE lv_floats lv_add(lv_floats a, lv_floats b) { return _mm256_add_ps(a, b); }
LINEAR_INLINE lv_floats lv_fma(lv_floats a, lv_floats b, lv_floats c) { return _mm256_fmadd_ps(a, b, c); }
LINEAR_INLINE lv_floats lv_negate(lv_floats a) { return _mm256_xor_ps(a, _mm256_set1_ps(-0.0f)); }
LINEAR_INLINE void lv_store(float *at, lv_floats v) { _mm256_storeu_ps(at, v); }

/* Loads with conversion, one element per row. */
LINEAR_INLINE lv_floats lv_load_f32(const uint8_t *at) { return _mm256_loadu_ps((const void *)at); }
LINEAR_INLINE lv_floats lv_load_f16(const uint8_t *at) { return _mm256_cvtph_ps(_mm_loadu_si128((const void *)at)); }
LINEAR_INLINE lv_floats lv_load_bf16(const uint8_t *at)
{
    const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)at));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}
LINEAR_INLINE lv_ints lv_load_u8(const uint8_t *at) { return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const void *)at)); }
LINEAR_INLINE lv_ints lv_load_i8(const uint8_t *at) { return _mm256_cvtepi8_epi32(_mm_loadl_epi64((const void *)at)); }
LINEAR_INLINE lv_ints lv_low_nibbles(lv_ints v) { return _mm256_and_si256(v, _mm256_set1_epi32(15)); }
LINEAR_INLINE lv_ints lv_high_nibbles(lv_ints v) { return _mm256_srli_epi32(v, 4); }
/* 2^(e - 128) from exponent bytes; see linear_e8m0. */
LINEAR_INLINE lv_floats lv_load_e8m0(const uint8_t *at)
{
    const __m256i e = lv_load_u8(at), one = _mm256_set1_epi32(1);
    const __m256i normal = _mm256_slli_epi32(_mm256_sub_epi32(e, one), 23);
    const __m256i small = _mm256_sllv_epi32(_mm256_set1_epi32(0x00200000), _mm256_min_epi32(e, one));
    return _mm256_castsi256_ps(_mm256_max_epi32(normal, small));
}

#endif
