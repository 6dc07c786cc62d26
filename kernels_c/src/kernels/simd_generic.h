/* simd_generic.h: 16 floats as an array; the compiler makes what it can of the loops. */
#ifndef GGFW_SIMD_GENERIC_H
#define GGFW_SIMD_GENERIC_H

typedef struct vf {
    float v[16];
} vf;
typedef struct vm {
    uint32_t v[16]; /* 0 or all ones */
} vm;

#define VF_EACH(expression)                                                                                            \
    vf r;                                                                                                              \
    for (int i = 0; i < 16; i++) r.v[i] = (expression);                                                                \
    return r

VF_INLINE uint32_t vf_bits(float a) {
    uint32_t bits;
    memcpy(&bits, &a, 4);
    return bits;
}
VF_INLINE float vf_of_bits(uint32_t bits) {
    float a;
    memcpy(&a, &bits, 4);
    return a;
}

VF_INLINE vf vf_zero(void) { VF_EACH(0.0f); }
VF_INLINE vf vf_set(float a) { VF_EACH(a); }
VF_INLINE vf vf_load(const float *p) { VF_EACH(p[i]); }
VF_INLINE void vf_store(float *p, vf a) { memcpy(p, a.v, sizeof a.v); }
VF_INLINE vm vf_lanes_below(int n) {
    vm r;
    for (int i = 0; i < 16; i++) r.v[i] = i < n ? 0xffffffffu : 0;
    return r;
}
VF_INLINE vf vf_load_n(const float *p, int n) { VF_EACH(i < n ? p[i] : 0.0f); }
VF_INLINE void vf_store_n(float *p, vf a, int n) {
    for (int i = 0; i < 16 && i < n; i++) p[i] = a.v[i];
}

VF_INLINE vf vf_add(vf a, vf b) { VF_EACH(a.v[i] + b.v[i]); }
VF_INLINE vf vf_sub(vf a, vf b) { VF_EACH(a.v[i] - b.v[i]); }
VF_INLINE vf vf_mul(vf a, vf b) { VF_EACH(a.v[i] * b.v[i]); }
VF_INLINE vf vf_div(vf a, vf b) { VF_EACH(a.v[i] / b.v[i]); }
VF_INLINE vf vf_fma(vf a, vf b, vf c) { VF_EACH(a.v[i] * b.v[i] + c.v[i]); }
VF_INLINE vf vf_max(vf a, vf b) { VF_EACH(a.v[i] > b.v[i] ? a.v[i] : b.v[i]); }
VF_INLINE vf vf_min(vf a, vf b) { VF_EACH(a.v[i] < b.v[i] ? a.v[i] : b.v[i]); }
/* Nearest even; exact for |a| < 2^22, which is all that is asked here. */
VF_INLINE vf vf_round(vf a) { VF_EACH((a.v[i] + 12582912.0f) - 12582912.0f); }

VF_INLINE float vf_power2(float n) { /* 2^n, -126 <= n <= 127; something for NaN */
    return vf_of_bits((uint32_t)((n == n ? (int32_t)n : 0) + 127) << 23);
}
/* a * 2^n for integral -252 <= n <= 254; in two steps, since 2^128 and 2^-127 are no (normal) floats. */
VF_INLINE vf vf_scale2(vf a, vf n) {
    vf half = vf_round(vf_mul(n, vf_set(0.5f)));
    VF_EACH(a.v[i] * vf_power2(half.v[i]) * vf_power2(n.v[i] - half.v[i]));
}

VF_INLINE vm vf_less(vf a, vf b) {
    vm r;
    for (int i = 0; i < 16; i++) r.v[i] = a.v[i] < b.v[i] ? 0xffffffffu : 0;
    return r;
}
VF_INLINE vf vf_select(vm m, vf yes, vf no) {
    VF_EACH(vf_of_bits((vf_bits(yes.v[i]) & m.v[i]) | (vf_bits(no.v[i]) & ~m.v[i])));
}

/* Lane i of the result is the sum of v[i]. */
VF_INLINE vf vf_sum16(const vf *v) {
    vf r;
    for (int i = 0; i < 16; i++) {
        float four[4];
        for (int j = 0; j < 4; j++)
            four[j] = (v[i].v[4 * j] + v[i].v[4 * j + 2]) + (v[i].v[4 * j + 1] + v[i].v[4 * j + 3]);
        r.v[i] = (four[0] + four[1]) + (four[2] + four[3]);
    }
    return r;
}

/* Row i of the result is column i. */
VF_INLINE void vf_transpose16(vf *v) {
    for (int i = 0; i < 16; i++)
        for (int j = 0; j < i; j++) {
            float a = v[i].v[j];
            v[i].v[j] = v[j].v[i];
            v[j].v[i] = a;
        }
}

VF_INLINE float vf_largest(vf a) { /* NaN is not looked for */
    for (int i = 8; i > 0; i /= 2)
        for (int j = 0; j < i; j++) a.v[j] = a.v[j] > a.v[j + i] ? a.v[j] : a.v[j + i];
    return a.v[0];
}

/* 16-bit floats; rounding to nearest even, as the processors that have instructions for it do. */
VF_INLINE float vf_from_f16(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, rest = h & 0x7fff;
    /* subnormals: the integer times 2^-24; others: move the exponent; infinity and NaN: move it further */
    float small = (float)rest * 5.9604644775390625e-8f;
    uint32_t bits = (rest << 13) + (rest >= 0x7c00 ? 0x70000000u : 0x38000000u);
    return vf_of_bits(sign | (rest < 0x400 ? vf_bits(small) : bits));
}
VF_INLINE uint16_t vf_to_f16(float a) {
    uint32_t bits = vf_bits(a), sign = bits >> 16 & 0x8000, rest = bits & 0x7fffffff;
    if (rest > 0x7f800000) return (uint16_t)(sign | 0x7e00 | (rest >> 13 & 0x3ff));
    if (rest >= 0x477ff000) return (uint16_t)(sign | 0x7c00); /* rounds to 65536 or more */
    if (rest < 0x38800000) { /* below 2^-14: adding 0.5 puts the last place of the result at the last bit */
        return (uint16_t)(sign | (vf_bits(vf_of_bits(rest) + 0.5f) - 0x3f000000));
    }
    return (uint16_t)(sign | ((rest - 0x38000000 + 0xfff + (rest >> 13 & 1)) >> 13));
}
VF_INLINE uint16_t vf_to_bf16(float a) {
    uint32_t bits = vf_bits(a);
    if ((bits & 0x7fffffff) > 0x7f800000) return (uint16_t)((bits | 0x400000) >> 16); /* a NaN stays one, and quiet */
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
VF_INLINE vf vf_load_f16(const uint16_t *p) { VF_EACH(vf_from_f16(p[i])); }
VF_INLINE vf vf_load_bf16(const uint16_t *p) { VF_EACH(vf_of_bits((uint32_t)p[i] << 16)); }
VF_INLINE void vf_store_f16(uint16_t *p, vf a) {
    for (int i = 0; i < 16; i++) p[i] = vf_to_f16(a.v[i]);
}
VF_INLINE void vf_store_bf16(uint16_t *p, vf a) {
    for (int i = 0; i < 16; i++) p[i] = vf_to_bf16(a.v[i]);
}

/* ---- quantising: 32 columns at once ------------------------------------------------------------------------------ */

/* Largest bit pattern of |a[0..32)|: for finite floats the order of the values, infinities and NaN above all. */
VF_INLINE uint32_t vf_largest_bits32(const float *a) {
    uint32_t top = 0;
    for (int i = 0; i < 32; i++) {
        uint32_t bits = vf_bits(a[i]) & 0x7fffffff;
        top = bits > top ? bits : top;
    }
    return top;
}

/* q = round(a / d) for 16 columns; returns their sum. */
VF_INLINE int32_t vf_quantize16(const float *a, float d, int8_t *q) {
    int32_t sum = 0;
    for (int i = 0; i < 16; i++) {
        float rounded = (a[i] / d + 12582912.0f) - 12582912.0f; /* nearest even */
        int32_t v = (int32_t)rounded;
        q[i] = (int8_t)v;
        sum += v;
    }
    return sum;
}

#endif
