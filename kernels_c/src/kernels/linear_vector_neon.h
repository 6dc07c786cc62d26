/* linear_vector_neon.h: 4 rows per vector; NEON of arm64, for GGFW_UNIT_DOTPROD with SDOT, for GGFW_UNIT_I8MM with USDOT and
 * USMMLA.
 *
 * But for USDOT both factors are signed bytes: codes with offset 128 are moved by it, all others are below 64. Two products of
 * -128 and 127 fit 16 bits.
 */
#ifndef GGFW_LINEAR_VECTOR_NEON_H
#define GGFW_LINEAR_VECTOR_NEON_H

#include <arm_neon.h>

#include "linear_format.h"

#define LV_LANES 4
#define LV_UNROLL _Pragma("GCC unroll 16")
#define LV_UNROLL_PARTS _Pragma("GCC unroll 1")
#define LV_FLOAT_TILE 4 /* rows that a float tile holds at most */
#if defined(GGFW_UNIT_I8MM)
#define LV_SIGNED 0
#define LV_WORDS 0
#define LV_PAIRS 1
#else
#define LV_SIGNED 1
#define LV_WORDS 0
#define LV_PAIRS 0
#endif

typedef uint8x16_t lv_bytes;
typedef int32x4_t lv_ints;
typedef float32x4_t lv_floats;

LINEAR_INLINE lv_bytes lv_load(const uint8_t *at) { return vld1q_u8(at); }
LINEAR_INLINE lv_bytes lv_and(lv_bytes v, int mask) { return vandq_u8(v, vdupq_n_u8((uint8_t)mask)); }
LINEAR_INLINE lv_bytes lv_or(lv_bytes a, lv_bytes b) { return vorrq_u8(a, b); }
/* Shifts move single bytes here, whole words elsewhere: bits that cross a byte are for the caller to mask. */
LINEAR_INLINE lv_bytes lv_right(lv_bytes v, int n) { return vshlq_u8(v, vdupq_n_s8((int8_t)-n)); }
LINEAR_INLINE lv_bytes lv_left(lv_bytes v, int n) { return vshlq_u8(v, vdupq_n_s8((int8_t)n)); }
LINEAR_INLINE lv_bytes lv_lookup(const uint8_t table[16], lv_bytes index) { return vqtbl1q_u8(vld1q_u8(table), index); }

#if defined(GGFW_UNIT_I8MM)
#define LV_DOT_LANE(i) sum = vusdotq_laneq_s32(sum, w[4 * k + i], quads, i)
#elif defined(GGFW_UNIT_DOTPROD)
#define LV_DOT_LANE(i) sum = vdotq_laneq_s32(sum, lv_signed(w[4 * k + i], max_code), quads, i)
#else
#define LV_DOT_LANE(i) sum = lv_dot_quad(sum, lv_signed(w[4 * k + i], max_code), vdupq_laneq_s32(vreinterpretq_s32_s8(quads), i))
#endif

LINEAR_INLINE LINEAR_UNUSED int8x16_t lv_signed(lv_bytes code, int max_code)
{
    return vreinterpretq_s8_u8(max_code > 127 ? veorq_u8(code, vdupq_n_u8(0x80)) : code);
}

LINEAR_INLINE LINEAR_UNUSED int32x4_t lv_dot_quad(int32x4_t sum, int8x16_t w, int32x4_t quad)
{
    const int8x16_t a = vreinterpretq_s8_s32(quad);
    const int16x8_t low = vmull_s8(vget_low_s8(w), vget_low_s8(a)), high = vmull_high_s8(w, a);
    return vpadalq_s16(sum, vpaddq_s16(low, high));
}

/* init + sum over n quads (4 or 8) of code * activation, per row. a: 4 n activations. */
LINEAR_INLINE lv_ints lv_dot(const lv_bytes *w, int n, const int8_t *a, int32_t init, int max_code)
{
    (void)max_code;
    lv_ints sum = vdupq_n_s32(init);
    LV_UNROLL
    for (int k = 0; k < n / 4; k++) {
        const int8x16_t quads = vld1q_s8(a + 16 * k);
        LV_DOT_LANE(0);
        LV_DOT_LANE(1);
        LV_DOT_LANE(2);
        LV_DOT_LANE(3);
    }
    return sum;
}

#if LV_PAIRS
/* The same with two rows of activations, a and a + stride. USMMLA takes 8 columns of two rows of weights and two of
 * activations. */
LINEAR_INLINE void lv_dot_pair(const lv_bytes *w, int n, const int8_t *a, int stride, const int32_t init[2], lv_ints out[2])
{
    const int32x2_t both = vld1_s32(init);
    lv_ints low = vcombine_s32(both, both), high = low; /* rows 0, 1 and 2, 3: each with both activations */
    LV_UNROLL
    for (int i = 0; i < n; i += 2) {
        const uint32x4_t first = vreinterpretq_u32_u8(w[i]), second = vreinterpretq_u32_u8(w[i + 1]);
        const int8x16_t x = vcombine_s8(vld1_s8(a + 4 * i), vld1_s8(a + stride + 4 * i));
        low = vusmmlaq_s32(low, vreinterpretq_u8_u32(vzip1q_u32(first, second)), x);
        high = vusmmlaq_s32(high, vreinterpretq_u8_u32(vzip2q_u32(first, second)), x);
    }
    out[0] = vuzp1q_s32(low, high);
    out[1] = vuzp2q_s32(low, high);
}
#endif

/* Code t of every quad. */
LINEAR_INLINE lv_ints lv_code(lv_bytes v, int t)
{
    const uint32x4_t moved = vshlq_u32(vreinterpretq_u32_u8(v), vdupq_n_s32(-8 * t));
    return vreinterpretq_s32_u32(vandq_u32(moved, vdupq_n_u32(255)));
}
LINEAR_INLINE lv_ints lv_join(lv_ints high, lv_ints low) { return vaddq_s32(vshlq_n_s32(high, 7), low); } /* 128 high + low */
LINEAR_INLINE lv_floats lv_convert(lv_ints v) { return vcvtq_f32_s32(v); }
LINEAR_INLINE lv_floats lv_zero(void) { return vdupq_n_f32(0); }
LINEAR_INLINE lv_floats lv_set(float value) { return vdupq_n_f32(value); }
LINEAR_INLINE lv_floats lv_mul(lv_floats a, lv_floats b) { return vmulq_f32(a, b); }
LINEAR_INLINE lv_floats lv_add(lv_floats a, lv_floats b) { return vaddq_f32(a, b); }
LINEAR_INLINE lv_floats lv_fma(lv_floats a, lv_floats b, lv_floats c) { return vfmaq_f32(c, a, b); }
LINEAR_INLINE lv_floats lv_negate(lv_floats a) { return vnegq_f32(a); }
LINEAR_INLINE void lv_store(float *at, lv_floats v) { vst1q_f32(at, v); }

/* Loads with conversion, one element per row. */
LINEAR_INLINE lv_floats lv_load_f32(const uint8_t *at) { return vld1q_f32((const float *)(const void *)at); }
LINEAR_INLINE uint16x4_t lv_load_u16(const uint8_t *at) { return vreinterpret_u16_u8(vld1_u8(at)); }
LINEAR_INLINE lv_floats lv_load_f16(const uint8_t *at) { return vcvt_f32_f16(vreinterpret_f16_u16(lv_load_u16(at))); }
LINEAR_INLINE lv_floats lv_load_bf16(const uint8_t *at) { return vreinterpretq_f32_u32(vshll_n_u16(lv_load_u16(at), 16)); }
LINEAR_INLINE lv_ints lv_load_u8(const uint8_t *at)
{
    const uint8x8_t four = vreinterpret_u8_u32(vdup_n_u32(linear_load32(at)));
    return vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(vmovl_u8(four))));
}
LINEAR_INLINE lv_ints lv_load_i8(const uint8_t *at)
{
    const int8x8_t four = vreinterpret_s8_u32(vdup_n_u32(linear_load32(at)));
    return vmovl_s16(vget_low_s16(vmovl_s8(four)));
}
LINEAR_INLINE lv_ints lv_low_nibbles(lv_ints v) { return vandq_s32(v, vdupq_n_s32(15)); }
LINEAR_INLINE lv_ints lv_high_nibbles(lv_ints v) { return vshrq_n_s32(v, 4); }
/* 2^(e - 128) from exponent bytes; see linear_e8m0. */
LINEAR_INLINE lv_floats lv_load_e8m0(const uint8_t *at)
{
    const int32x4_t e = lv_load_u8(at), one = vdupq_n_s32(1);
    const int32x4_t normal = vshlq_n_s32(vsubq_s32(e, one), 23);
    const int32x4_t small = vshlq_s32(vdupq_n_s32(0x00200000), vminq_s32(e, one));
    return vreinterpretq_f32_s32(vmaxq_s32(normal, small));
}

#endif
