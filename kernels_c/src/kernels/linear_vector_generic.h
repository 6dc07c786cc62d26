/* linear_vector_generic.h: 4 rows per vector, in the vector extension of GCC and clang; every processor.
 *
 * The one operation that the extension cannot say, sums of 16-bit products, has a branch for SSE2, which every x86-64
 * has.
 */
#ifndef GGFW_LINEAR_VECTOR_GENERIC_H
#define GGFW_LINEAR_VECTOR_GENERIC_H

#include "linear_format.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#define LV_LANES 4
#define LV_SIGNED 0
#define LV_WORDS 0
#define LV_PAIRS 0
#define LV_UNROLL
#define LV_UNROLL_PARTS
#define LV_FLOAT_TILE 4 /* rows that a float tile holds at most */

typedef uint8_t lv_bytes __attribute__((vector_size(16)));
typedef uint32_t lv_words __attribute__((vector_size(16)));
typedef int32_t lv_ints __attribute__((vector_size(16)));
typedef float lv_floats __attribute__((vector_size(16)));

LINEAR_INLINE lv_bytes lv_load(const uint8_t *at)
{
    lv_bytes v;
    memcpy(&v, at, sizeof v);
    return v;
}
LINEAR_INLINE lv_bytes lv_and(lv_bytes v, int mask) { return v & (uint8_t)mask; }
LINEAR_INLINE lv_bytes lv_or(lv_bytes a, lv_bytes b) { return a | b; }
/* Shifts move whole words: bits that cross a byte are for the caller to mask. */
LINEAR_INLINE lv_bytes lv_right(lv_bytes v, int n) { return (lv_bytes)((lv_words)v >> n); }
LINEAR_INLINE lv_bytes lv_left(lv_bytes v, int n) { return (lv_bytes)((lv_words)v << n); }
/* Sixteen comparisons: SSE2 has no byte shuffle, and single bytes cost more. */
LINEAR_INLINE lv_bytes lv_lookup(const uint8_t table[16], lv_bytes index)
{
    lv_bytes v = { 0 };
    for (int i = 0; i < 16; i++) v |= (lv_bytes)(index == (uint8_t)i) & table[i];
    return v;
}

/* init + sum over n quads of code * activation, per row. a: 4 n activations. */
LINEAR_INLINE lv_ints lv_dot(const lv_bytes *w, int n, const int8_t *a, int32_t init, int max_code)
{
    (void)max_code;
    lv_ints sum = { init, init, init, init };
    for (int i = 0; i < n; i++) {
#if defined(__SSE2__)
        int32_t quad;
        memcpy(&quad, a + 4 * i, 4);
        const __m128i weight = (__m128i)w[i], activation = _mm_set1_epi32(quad);
        /* bytes 0 and 2 of every quad, then bytes 1 and 3, as 16-bit numbers */
        const __m128i even = _mm_madd_epi16(_mm_and_si128(weight, _mm_set1_epi16(255)),
                                            _mm_srai_epi16(_mm_slli_epi16(activation, 8), 8));
        const __m128i odd = _mm_madd_epi16(_mm_srli_epi16(weight, 8), _mm_srai_epi16(activation, 8));
        sum += (lv_ints)_mm_add_epi32(even, odd);
#else
        const lv_words quad = (lv_words)w[i];
        sum += (lv_ints)(quad & 255) * a[4 * i] + (lv_ints)(quad >> 8 & 255) * a[4 * i + 1]
               + (lv_ints)(quad >> 16 & 255) * a[4 * i + 2] + (lv_ints)(quad >> 24) * a[4 * i + 3];
#endif
    }
    return sum;
}

/* Code t of every quad; bytes are little endian, as the packed layout is. */
LINEAR_INLINE lv_ints lv_code(lv_bytes v, int t) { return (lv_ints)((lv_words)v >> (8 * t) & 255); }
LINEAR_INLINE lv_ints lv_join(lv_ints high, lv_ints low) { return high * 128 + low; }
LINEAR_INLINE lv_floats lv_convert(lv_ints v) { return __builtin_convertvector(v, lv_floats); }
LINEAR_INLINE lv_floats lv_zero(void) { return (lv_floats){ 0, 0, 0, 0 }; }
LINEAR_INLINE lv_floats lv_set(float value) { return (lv_floats){ value, value, value, value }; }
LINEAR_INLINE lv_floats lv_mul(lv_floats a, lv_floats b) { return a * b; }
LINEAR_INLINE lv_floats lv_add(lv_floats a, lv_floats b) { return a + b; }
LINEAR_INLINE lv_floats lv_fma(lv_floats a, lv_floats b, lv_floats c)
{
#if defined(__FP_FAST_FMAF)
    lv_floats v;
    for (int i = 0; i < 4; i++) v[i] = __builtin_fmaf(a[i], b[i], c[i]);
    return v;
#else
    return a * b + c;
#endif
}
LINEAR_INLINE lv_floats lv_negate(lv_floats a) { return -a; }
LINEAR_INLINE void lv_store(float *at, lv_floats v) { memcpy(at, &v, sizeof v); }

/* Loads with conversion, one element per row. */
LINEAR_INLINE lv_floats lv_load_f32(const uint8_t *at)
{
    lv_floats v;
    memcpy(&v, at, sizeof v);
    return v;
}
LINEAR_INLINE lv_words lv_load_u16(const uint8_t *at)
{
    uint16_t v __attribute__((vector_size(8)));
    memcpy(&v, at, sizeof v);
    return __builtin_convertvector(v, lv_words);
}
LINEAR_INLINE lv_ints lv_load_u8(const uint8_t *at)
{
    uint8_t v __attribute__((vector_size(4)));
    memcpy(&v, at, sizeof v);
    return __builtin_convertvector(v, lv_ints);
}
LINEAR_INLINE lv_ints lv_load_i8(const uint8_t *at)
{
    int8_t v __attribute__((vector_size(4)));
    memcpy(&v, at, sizeof v);
    return __builtin_convertvector(v, lv_ints);
}
/* See linear_f16. */
LINEAR_INLINE lv_floats lv_load_f16(const uint8_t *at)
{
    const lv_words half = lv_load_u16(at), size = half & 0x7fff, rebias = { 112u << 23, 112u << 23, 112u << 23, 112u << 23 };
    const lv_words is_small = (lv_words)(size < 0x400), is_infinite = (lv_words)(size >= 0x7c00);
    const lv_floats small = lv_convert((lv_ints)size) * 0x1p-24f;
    const lv_words large = (size << 13) + rebias + (rebias & is_infinite);
    return (lv_floats)((half & 0x8000) << 16 | ((lv_words)small & is_small) | (large & ~is_small));
}
LINEAR_INLINE lv_floats lv_load_bf16(const uint8_t *at) { return (lv_floats)(lv_load_u16(at) << 16); }
LINEAR_INLINE lv_ints lv_low_nibbles(lv_ints v) { return v & 15; }
LINEAR_INLINE lv_ints lv_high_nibbles(lv_ints v) { return v >> 4; }
/* 2^(e - 128) from exponent bytes; see linear_e8m0. */
LINEAR_INLINE lv_floats lv_load_e8m0(const uint8_t *at)
{
    return (lv_floats){ linear_e8m0(at[0]), linear_e8m0(at[1]), linear_e8m0(at[2]), linear_e8m0(at[3]) };
}

#endif
