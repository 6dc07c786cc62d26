/* simd_neon.h: 16 floats in four registers; NEON of arm64. */
#ifndef GGFW_SIMD_NEON_H
#define GGFW_SIMD_NEON_H

#include <arm_neon.h>

typedef struct vf {
    float32x4_t v[4];
} vf;
typedef struct vm { /* each lane 0 or all ones */
    uint32x4_t v[4];
} vm;

/* An expression of i for each of the four registers. */
#define VF_EACH(type, expression)                                                                                      \
    type r;                                                                                                            \
    VF_UNROLL                                                                                                          \
    for (int i = 0; i < 4; i++) r.v[i] = expression;                                                                   \
    return r

VF_INLINE vf vf_set(float a) { VF_EACH(vf, vdupq_n_f32(a)); }
VF_INLINE vf vf_zero(void) { return vf_set(0.0f); }
VF_INLINE vf vf_load(const float *p) { VF_EACH(vf, vld1q_f32(p + 4 * i)); }
VF_INLINE void vf_store(float *p, vf a) {
    VF_UNROLL
    for (int i = 0; i < 4; i++) vst1q_f32(p + 4 * i, a.v[i]);
}
VF_INLINE vf vf_load_n(const float *p, int n) {
    float all[16] = {0};
    if (n >= 16) return vf_load(p);
    memcpy(all, p, (size_t)n * sizeof *p);
    return vf_load(all);
}
VF_INLINE void vf_store_n(float *p, vf a, int n) {
    float all[16];
    if (n >= 16) {
        vf_store(p, a);
        return;
    }
    vf_store(all, a);
    memcpy(p, all, (size_t)n * sizeof *p);
}
VF_INLINE vm vf_lanes_below(int n) {
    const uint32x4_t count = {0, 1, 2, 3};
    const uint32_t most = (uint32_t)(n > 0 ? n : 0);
    VF_EACH(vm, vcltq_u32(vaddq_u32(count, vdupq_n_u32(4 * (uint32_t)i)), vdupq_n_u32(most)));
}

VF_INLINE vf vf_add(vf a, vf b) { VF_EACH(vf, vaddq_f32(a.v[i], b.v[i])); }
VF_INLINE vf vf_sub(vf a, vf b) { VF_EACH(vf, vsubq_f32(a.v[i], b.v[i])); }
VF_INLINE vf vf_mul(vf a, vf b) { VF_EACH(vf, vmulq_f32(a.v[i], b.v[i])); }
VF_INLINE vf vf_div(vf a, vf b) { VF_EACH(vf, vdivq_f32(a.v[i], b.v[i])); }
VF_INLINE vf vf_fma(vf a, vf b, vf c) { VF_EACH(vf, vfmaq_f32(c.v[i], a.v[i], b.v[i])); }
/* Not FMAX and FMIN: those give NaN when either operand is one. */
VF_INLINE vf vf_max(vf a, vf b) { VF_EACH(vf, vbslq_f32(vcgtq_f32(a.v[i], b.v[i]), a.v[i], b.v[i])); }
VF_INLINE vf vf_min(vf a, vf b) { VF_EACH(vf, vbslq_f32(vcltq_f32(a.v[i], b.v[i]), a.v[i], b.v[i])); }
VF_INLINE vf vf_round(vf a) { VF_EACH(vf, vrndnq_f32(a.v[i])); }

VF_INLINE float32x4_t vf_power2(float32x4_t n) { /* 2^n, -126 <= n <= 127; 2^0 for NaN */
    return vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(vcvtq_s32_f32(n), vdupq_n_s32(127)), 23));
}
/* a * 2^n for integral -252 <= n <= 254; in two steps, since 2^128 and 2^-127 are no (normal) floats. */
VF_INLINE vf vf_scale2(vf a, vf n) {
    vf half = vf_round(vf_mul(n, vf_set(0.5f))), rest = vf_sub(n, half);
    VF_EACH(vf, vmulq_f32(vmulq_f32(a.v[i], vf_power2(half.v[i])), vf_power2(rest.v[i])));
}

VF_INLINE vm vf_less(vf a, vf b) { VF_EACH(vm, vcltq_f32(a.v[i], b.v[i])); }
VF_INLINE vf vf_select(vm m, vf yes, vf no) { VF_EACH(vf, vbslq_f32(m.v[i], yes.v[i], no.v[i])); }

/* Row i of the result is column i, of four. */
VF_INLINE void vf_transpose4(float32x4_t *v) {
    float32x4_t a = vtrn1q_f32(v[0], v[1]), b = vtrn2q_f32(v[0], v[1]);
    float32x4_t c = vtrn1q_f32(v[2], v[3]), d = vtrn2q_f32(v[2], v[3]);
    float64x2_t x = vreinterpretq_f64_f32(a), y = vreinterpretq_f64_f32(b);
    float64x2_t z = vreinterpretq_f64_f32(c), w = vreinterpretq_f64_f32(d);
    v[0] = vreinterpretq_f32_f64(vtrn1q_f64(x, z));
    v[1] = vreinterpretq_f32_f64(vtrn1q_f64(y, w));
    v[2] = vreinterpretq_f32_f64(vtrn2q_f64(x, z));
    v[3] = vreinterpretq_f32_f64(vtrn2q_f64(y, w));
}

/* Lane i of the result is the sum of v[i]. */
VF_INLINE vf vf_sum16(const vf *v) {
    vf sums;
    VF_UNROLL
    for (int i = 0; i < 4; i++) { /* of four vectors */
        float32x4_t four[4];
        VF_UNROLL
        for (int q = 0; q < 4; q++) { /* of their quarters */
            float32x4_t t[4] = {v[4 * i].v[q], v[4 * i + 1].v[q], v[4 * i + 2].v[q], v[4 * i + 3].v[q]};
            vf_transpose4(t);
            four[q] = vaddq_f32(vaddq_f32(t[0], t[2]), vaddq_f32(t[1], t[3]));
        }
        sums.v[i] = vaddq_f32(vaddq_f32(four[0], four[1]), vaddq_f32(four[2], four[3]));
    }
    return sums;
}

/* Row i of the result is column i. */
VF_INLINE void vf_transpose16(vf *v) {
    vf out[16];
    VF_UNROLL
    for (int i = 0; i < 4; i++) {
        VF_UNROLL
        for (int j = 0; j < 4; j++) { /* rows 4i.. of columns 4j.. */
            float32x4_t t[4] = {v[4 * i].v[j], v[4 * i + 1].v[j], v[4 * i + 2].v[j], v[4 * i + 3].v[j]};
            vf_transpose4(t);
            for (int k = 0; k < 4; k++) out[4 * j + k].v[i] = t[k];
        }
    }
    memcpy(v, out, sizeof out);
}

VF_INLINE float vf_largest(vf a) { /* NaN is not looked for */
    return vmaxvq_f32(vmaxq_f32(vmaxq_f32(a.v[0], a.v[1]), vmaxq_f32(a.v[2], a.v[3])));
}

/* 16-bit floats; rounding to nearest even. The unit of the processor flushes subnormal halves only under FZ16, which is
 * not set. */
VF_INLINE vf vf_load_f16(const uint16_t *p) { VF_EACH(vf, vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p + 4 * i)))); }
VF_INLINE void vf_store_f16(uint16_t *p, vf a) {
    VF_UNROLL
    for (int i = 0; i < 4; i++) vst1_u16(p + 4 * i, vreinterpret_u16_f16(vcvt_f16_f32(a.v[i])));
}
VF_INLINE vf vf_load_bf16(const uint16_t *p) {
    VF_EACH(vf, vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p + 4 * i), 16)));
}
VF_INLINE uint16x4_t vf_narrow_bf16(float32x4_t a) {
    uint32x4_t bits = vreinterpretq_u32_f32(a);
    uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    uint32x4_t up = vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
    uint32x4_t quiet = vorrq_u32(bits, vdupq_n_u32(0x400000)); /* a NaN stays one, and quiet */
    return vshrn_n_u32(vbslq_u32(vceqq_f32(a, a), up, quiet), 16);
}
VF_INLINE void vf_store_bf16(uint16_t *p, vf a) {
    VF_UNROLL
    for (int i = 0; i < 4; i++) vst1_u16(p + 4 * i, vf_narrow_bf16(a.v[i]));
}

/* 16 small integers as floats: int8, or one half of the nibbles of 16 bytes, minus 8. */
VF_INLINE vf vf_widen_i8(int8x16_t x) {
    int16x8_t low = vmovl_s8(vget_low_s8(x)), high = vmovl_high_s8(x);
    return (vf){{vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))), vcvtq_f32_s32(vmovl_high_s16(low)),
                 vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))), vcvtq_f32_s32(vmovl_high_s16(high))}};
}
VF_INLINE vf vf_load_i8(const uint8_t *p) { return vf_widen_i8(vreinterpretq_s8_u8(vld1q_u8(p))); }
VF_INLINE vf vf_load_nibbles(const uint8_t *p, int high) {
    uint8x16_t x = vld1q_u8(p);
    x = high ? vshrq_n_u8(x, 4) : vandq_u8(x, vdupq_n_u8(15));
    return vf_widen_i8(vsubq_s8(vreinterpretq_s8_u8(x), vdupq_n_s8(8)));
}

/* ---- quantising: 16 columns at once ------------------------------------------------------------------------------ */

/* Largest bit pattern of |a[0..16)|: for finite floats the order of the values, infinities and NaN above all. */
VF_INLINE uint32_t vf_largest_bits16(const float *a) {
    uint32x4_t top = vdupq_n_u32(0);
    VF_UNROLL
    for (int i = 0; i < 16; i += 4)
        top = vmaxq_u32(top, vandq_u32(vreinterpretq_u32_f32(vld1q_f32(a + i)), vdupq_n_u32(0x7fffffff)));
    return vmaxvq_u32(top);
}

/* The same of 32 columns. */
VF_INLINE uint32_t vf_largest_bits32(const float *a) {
    uint32_t first = vf_largest_bits16(a), second = vf_largest_bits16(a + 16);
    return first > second ? first : second;
}

/* Columns 4 i .. 4 i + 3 in x[i], as bytes. */
VF_INLINE void vf_store_bytes16(int8_t *q, const int32x4_t x[4]) {
    int16x8_t low = vcombine_s16(vmovn_s32(x[0]), vmovn_s32(x[1])), high = vcombine_s16(vmovn_s32(x[2]), vmovn_s32(x[3]));
    vst1q_s8(q, vcombine_s8(vmovn_s16(low), vmovn_s16(high)));
}

VF_INLINE int32_t vf_sum_ints16(const int32x4_t x[4]) {
    return vaddvq_s32(vaddq_s32(vaddq_s32(x[0], x[1]), vaddq_s32(x[2], x[3])));
}

/* q = round(a / d) for 16 columns; returns their sum. */
VF_INLINE int32_t vf_quantize16(const float *a, float d, int8_t *q) {
    int32x4_t x[4];
    VF_UNROLL
    for (int i = 0; i < 4; i++) x[i] = vcvtnq_s32_f32(vdivq_f32(vld1q_f32(a + 4 * i), vdupq_n_f32(d)));
    vf_store_bytes16(q, x);
    return vf_sum_ints16(x);
}

/* round(a / d) = 128 high + low for 16 columns; returns their sum. */
VF_INLINE int32_t vf_quantize_planes16(const float *a, float d, int8_t *high, int8_t *low) {
    int32x4_t x[4], h[4], l[4];
    VF_UNROLL
    for (int i = 0; i < 4; i++) {
        x[i] = vcvtnq_s32_f32(vdivq_f32(vld1q_f32(a + 4 * i), vdupq_n_f32(d)));
        h[i] = vshrq_n_s32(vaddq_s32(x[i], vdupq_n_s32(64)), 7);
        l[i] = vsubq_s32(x[i], vshlq_n_s32(h[i], 7));
    }
    vf_store_bytes16(high, h);
    vf_store_bytes16(low, l);
    return vf_sum_ints16(x);
}

#endif
