/* simd_generic.h: 16 floats as four vectors of four, in the vector extension of GCC and Clang: SSE2, NEON or what the
 * processor family always has. No fused multiply-add: it is not everywhere. */
#ifndef GGFW_SIMD_GENERIC_H
#define GGFW_SIMD_GENERIC_H

typedef float v4 __attribute__((vector_size(16)));
typedef int32_t v4i __attribute__((vector_size(16)));
typedef uint32_t v4u __attribute__((vector_size(16)));

typedef struct vf {
    v4 a, b, c, d;
} vf;
typedef struct vm { /* each lane 0 or all ones */
    v4u a, b, c, d;
} vm;

/* The same function of each of the four vectors of one, two or three values. */
#define VF_MAP1(f, x) ((vf){f(x.a), f(x.b), f(x.c), f(x.d)})
#define VF_MAP2(f, x, y) ((vf){f(x.a, y.a), f(x.b, y.b), f(x.c, y.c), f(x.d, y.d)})

VF_INLINE v4 v4_set(float a) { return (v4){a, a, a, a}; }
VF_INLINE v4 v4_load(const float *p) {
    v4 r;
    memcpy(&r, p, sizeof r);
    return r;
}
VF_INLINE v4 v4_select(v4u m, v4 yes, v4 no) { return (v4)(((v4u)yes & m) | ((v4u)no & ~m)); }
VF_INLINE v4 v4_add(v4 x, v4 y) { return x + y; }
VF_INLINE v4 v4_sub(v4 x, v4 y) { return x - y; }
VF_INLINE v4 v4_mul(v4 x, v4 y) { return x * y; }
VF_INLINE v4 v4_div(v4 x, v4 y) { return x / y; }
VF_INLINE v4 v4_max(v4 x, v4 y) { return v4_select((v4u)(x > y), x, y); }
VF_INLINE v4 v4_min(v4 x, v4 y) { return v4_select((v4u)(x < y), x, y); }
/* Nearest even; exact for |x| < 2^22, which is all that is asked here. */
VF_INLINE v4 v4_round(v4 x) { return (x + 12582912.0f) - 12582912.0f; }
VF_INLINE v4 v4_power2(v4 n) { /* 2^n, -126 <= n <= 127; 2^0 for NaN */
    v4 known = v4_select((v4u)(n == n), n, v4_set(0.0f));
    return (v4)((__builtin_convertvector(known, v4i) + 127) << 23);
}

VF_INLINE vf vf_set(float a) { return (vf){v4_set(a), v4_set(a), v4_set(a), v4_set(a)}; }
VF_INLINE vf vf_zero(void) { return vf_set(0.0f); }
VF_INLINE vf vf_load(const float *p) { return (vf){v4_load(p), v4_load(p + 4), v4_load(p + 8), v4_load(p + 12)}; }
VF_INLINE void vf_store(float *p, vf x) { memcpy(p, &x, sizeof x); }
VF_INLINE vf vf_load_n(const float *p, int n) {
    float all[16] = {0};
    memcpy(all, p, (size_t)(n < 16 ? n : 16) * sizeof *p);
    return vf_load(all);
}
VF_INLINE void vf_store_n(float *p, vf x, int n) { memcpy(p, &x, (size_t)(n < 16 ? n : 16) * sizeof *p); }
VF_INLINE vm vf_lanes_below(int n) {
    v4i i = {0, 1, 2, 3};
    return (vm){(v4u)(i < n), (v4u)(i + 4 < n), (v4u)(i + 8 < n), (v4u)(i + 12 < n)};
}

VF_INLINE vf vf_add(vf x, vf y) { return VF_MAP2(v4_add, x, y); }
VF_INLINE vf vf_sub(vf x, vf y) { return VF_MAP2(v4_sub, x, y); }
VF_INLINE vf vf_mul(vf x, vf y) { return VF_MAP2(v4_mul, x, y); }
VF_INLINE vf vf_div(vf x, vf y) { return VF_MAP2(v4_div, x, y); }
VF_INLINE vf vf_fma(vf x, vf y, vf z) { return vf_add(vf_mul(x, y), z); }
VF_INLINE vf vf_max(vf x, vf y) { return VF_MAP2(v4_max, x, y); }
VF_INLINE vf vf_min(vf x, vf y) { return VF_MAP2(v4_min, x, y); }
VF_INLINE vf vf_round(vf x) { return VF_MAP1(v4_round, x); }
/* x * 2^n for integral -252 <= n <= 254; in two steps, since 2^128 and 2^-127 are no (normal) floats. */
VF_INLINE vf vf_scale2(vf x, vf n) {
    vf half = vf_round(vf_mul(n, vf_set(0.5f))), rest = vf_sub(n, half);
    return vf_mul(vf_mul(x, VF_MAP1(v4_power2, half)), VF_MAP1(v4_power2, rest));
}

VF_INLINE vm vf_less(vf x, vf y) {
    return (vm){(v4u)(x.a < y.a), (v4u)(x.b < y.b), (v4u)(x.c < y.c), (v4u)(x.d < y.d)};
}
VF_INLINE vf vf_select(vm m, vf yes, vf no) {
    return (vf){v4_select(m.a, yes.a, no.a), v4_select(m.b, yes.b, no.b), v4_select(m.c, yes.c, no.c),
                v4_select(m.d, yes.d, no.d)};
}

/* Lane i of the result is the sum of v[i]. */
static inline vf vf_sum16(const vf *v) {
    float sums[16];
    for (int i = 0; i < 16; i++) {
        float four[4];
        v4 part[4] = {v[i].a, v[i].b, v[i].c, v[i].d};
        for (int j = 0; j < 4; j++) four[j] = (part[j][0] + part[j][2]) + (part[j][1] + part[j][3]);
        sums[i] = (four[0] + four[1]) + (four[2] + four[3]);
    }
    return vf_load(sums);
}

/* Row i of the result is column i. */
static inline void vf_transpose16(vf *v) {
    float from[16][16], to[16][16];
    memcpy(from, v, sizeof from);
    for (int i = 0; i < 16; i++)
        for (int j = 0; j < 16; j++) to[j][i] = from[i][j];
    memcpy(v, to, sizeof to);
}

VF_INLINE float vf_largest(vf x) { /* NaN is not looked for */
    v4 m = v4_max(v4_max(x.a, x.b), v4_max(x.c, x.d));
    float left = m[0] > m[1] ? m[0] : m[1], right = m[2] > m[3] ? m[2] : m[3];
    return left > right ? left : right;
}

/* 16-bit floats; rounding to nearest even, as the processors that have instructions for it do. */
VF_INLINE v4u v4_widen(const uint16_t *p) { return (v4u){p[0], p[1], p[2], p[3]}; }
VF_INLINE v4 v4_from_f16(v4u h) {
    v4u sign = (h & 0x8000u) << 16, rest = h & 0x7fffu;
    /* subnormals: the integer times 2^-24; others: move the exponent; infinity and NaN: move it further */
    v4 subnormal = __builtin_convertvector((v4i)rest, v4) * 5.9604644775390625e-8f;
    v4u normal = (rest << 13) + (((v4u)(rest >= 0x7c00u) & 0x38000000u) + 0x38000000u);
    return (v4)(sign | (v4u)v4_select((v4u)(rest < 0x400u), subnormal, (v4)normal));
}
VF_INLINE v4 v4_from_bf16(v4u h) { return (v4)(h << 16); }
VF_INLINE vf vf_load_f16(const uint16_t *p) {
    return (vf){v4_from_f16(v4_widen(p)), v4_from_f16(v4_widen(p + 4)), v4_from_f16(v4_widen(p + 8)),
                v4_from_f16(v4_widen(p + 12))};
}
VF_INLINE vf vf_load_bf16(const uint16_t *p) {
    return (vf){v4_from_bf16(v4_widen(p)), v4_from_bf16(v4_widen(p + 4)), v4_from_bf16(v4_widen(p + 8)),
                v4_from_bf16(v4_widen(p + 12))};
}

static inline uint16_t vf_to_f16(float a) {
    uint32_t bits;
    memcpy(&bits, &a, 4);
    uint32_t sign = bits >> 16 & 0x8000, rest = bits & 0x7fffffff;
    if (rest > 0x7f800000) return (uint16_t)(sign | 0x7e00 | (rest >> 13 & 0x3ff));
    if (rest >= 0x477ff000) return (uint16_t)(sign | 0x7c00); /* rounds to 65536 or more */
    if (rest < 0x38800000) { /* below 2^-14: adding 0.5 puts the last place of the result at the last bit */
        float shifted;
        memcpy(&shifted, &rest, 4);
        shifted += 0.5f;
        memcpy(&rest, &shifted, 4);
        return (uint16_t)(sign | (rest - 0x3f000000));
    }
    return (uint16_t)(sign | ((rest - 0x38000000 + 0xfff + (rest >> 13 & 1)) >> 13));
}
static inline uint16_t vf_to_bf16(float a) {
    uint32_t bits;
    memcpy(&bits, &a, 4);
    if ((bits & 0x7fffffff) > 0x7f800000) return (uint16_t)((bits | 0x400000) >> 16); /* a NaN stays one, and quiet */
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
static inline void vf_store_f16(uint16_t *p, vf x) {
    float all[16];
    vf_store(all, x);
    for (int i = 0; i < 16; i++) p[i] = vf_to_f16(all[i]);
}
static inline void vf_store_bf16(uint16_t *p, vf x) {
    float all[16];
    vf_store(all, x);
    for (int i = 0; i < 16; i++) p[i] = vf_to_bf16(all[i]);
}

/* 16 small integers as floats: int8, or one half of the nibbles of 16 bytes, minus 8. */
static inline vf vf_load_i8(const uint8_t *p) {
    float all[16];
    for (int i = 0; i < 16; i++) all[i] = (float)(int8_t)p[i];
    return vf_load(all);
}
static inline vf vf_load_nibbles(const uint8_t *p, int high) {
    float all[16];
    for (int i = 0; i < 16; i++) all[i] = (float)((p[i] >> (high ? 4 : 0) & 15) - 8);
    return vf_load(all);
}

/* ---- quantising: 16 columns at once ------------------------------------------------------------------------------ */

/* Largest bit pattern of |a[0..16)|: for finite floats the order of the values, infinities and NaN above all. */
static inline uint32_t vf_largest_bits16(const float *a) {
    uint32_t top = 0;
    for (int i = 0; i < 16; i++) {
        uint32_t bits;
        memcpy(&bits, a + i, 4);
        bits &= 0x7fffffff;
        top = bits > top ? bits : top;
    }
    return top;
}

/* The same of 32 columns. */
static inline uint32_t vf_largest_bits32(const float *a) {
    uint32_t first = vf_largest_bits16(a), second = vf_largest_bits16(a + 16);
    return first > second ? first : second;
}

/* q = round(a / d) for 16 columns; returns their sum. */
static inline int32_t vf_quantize16(const float *a, float d, int8_t *q) {
    int32_t sum = 0;
    for (int i = 0; i < 16; i++) {
        float rounded = (a[i] / d + 12582912.0f) - 12582912.0f; /* nearest even */
        int32_t v = (int32_t)rounded;
        q[i] = (int8_t)v;
        sum += v;
    }
    return sum;
}

/* round(a / d) = 128 high + low for 16 columns; returns their sum. */
static inline int32_t vf_quantize_planes16(const float *a, float d, int8_t *high, int8_t *low) {
    int32_t sum = 0;
    for (int i = 0; i < 16; i++) {
        int32_t v = (int32_t)((a[i] / d + 12582912.0f) - 12582912.0f), h = (v + 64) >> 7; /* nearest even */
        high[i] = (int8_t)h;
        low[i] = (int8_t)(v - h * 128);
        sum += v;
    }
    return sum;
}

#endif
