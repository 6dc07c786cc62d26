/* small.h: blocks of 32 with float16 scales: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, IQ4_NL. */
#ifndef GGFW_ENCODE_SMALL_H
#define GGFW_ENCODE_SMALL_H

#include "lanes.h"
#include "levels.h"

/* Nibbles: element j low, element j + 16 high. */
VF_INLINE void put_nibbles(uint8_t *restrict to, const uint8_t *restrict q) {
    for (int j = 0; j < 16; j++) to[j] = (uint8_t)((q[j] & 15) | (q[j + 16] & 15) << 4);
}

/* The fifth bits of 32 elements. */
VF_INLINE void put_fifth(uint8_t *restrict to, const uint8_t *restrict q) {
    uint32_t fifth = 0;
    for (int j = 0; j < 32; j++) fifth |= (uint32_t)(q[j] >> 4 & 1) << j;
    for (int i = 0; i < 4; i++) to[i] = (uint8_t)(fifth >> 8 * i);
}

/* Q4_0 and Q5_0 (high = 7 or 15): scale, [fifth bits,] nibbles. */
VF_INLINE void encode_scaled(source *s, float high, uint8_t *out) {
    int fifth = high > 7.5f, size = fifth ? 22 : 18;
    float low = -high - 1.0f;
    group g;
    for (int64_t first = 0; first < s->n_blocks; first += LANES) {
        load_group(&g, s, first, 32, 1);
        vf d = put_halves(out + first * size, size, s->n_blocks - first, search_scale(32, g.x, g.w, low, high));
        round_group(&g, 32, d, vf_zero(), low, high);
        for (int lane = 0; lane < LANES && first + lane < s->n_blocks; lane++) {
            uint8_t *to = out + (first + lane) * size;
            put_nibbles(to + (fifth ? 6 : 2), g.q + 32 * lane);
            if (fifth) put_fifth(to + 2, g.q + 32 * lane);
        }
    }
}

/* The fitted offset may lie below the smallest value, and leave float16 where that one does not. */
VF_INLINE vf bounded_offset(const group *g, vf offset) {
    vf low = g->x[0];
    for (int i = 1; i < 32; i++) low = vf_min(low, g->x[i]);
    vm fits = vf_less(vf_abs(low), vf_set(HALF_MAX + 1.0f));
    return vf_select(fits, vf_clamp(offset, -HALF_MAX, HALF_MAX), offset);
}

/* Q4_1 and Q5_1 (high = 15 or 31): scale, offset, [fifth bits,] nibbles. */
static void encode_offset(source *s, float high, uint8_t *out) {
    int fifth = high > 15.5f, size = fifth ? 24 : 20;
    group g;
    for (int64_t first = 0; first < s->n_blocks; first += LANES) {
        load_group(&g, s, first, 32, 1);
        vf scale, offset;
        search_affine(32, g.x, g.w, high, 0, &scale, &offset);
        offset = bounded_offset(&g, offset);
        vf d = put_halves(out + first * size, size, s->n_blocks - first, scale);
        vf m = put_halves(out + first * size + 2, size, s->n_blocks - first, offset);
        round_group(&g, 32, d, m, 0.0f, high);
        for (int lane = 0; lane < LANES && first + lane < s->n_blocks; lane++) {
            uint8_t *to = out + (first + lane) * size;
            put_nibbles(to + (fifth ? 8 : 4), g.q + 32 * lane);
            if (fifth) put_fifth(to + 4, g.q + 32 * lane);
        }
    }
}

/* Q8_0: scale, 32 int8. With 255 levels nothing is gained by a search. */
static void encode_q8_0(source *s, uint8_t *out) {
    vf strange = vf_zero(); /* NaN as soon as a value is none or infinite: the largest would not show the former */
    for (int64_t first = 0; first < s->n_blocks; first += LANES) {
        float top[LANES] = {0}, inverse[LANES];
        int64_t count = s->n_blocks - first < LANES ? s->n_blocks - first : LANES;
        const float *x = s->x + first * 32;
        for (int64_t b = 0; b < count; b++) {
            vf left = vf_load(x + b * 32), right = vf_load(x + b * 32 + LANES);
            top[b] = vf_largest(vf_max(vf_abs(left), vf_abs(right)));
            s->large |= !(top[b] < LARGE);
            strange = vf_fma(left, vf_zero(), vf_fma(right, vf_zero(), strange));
        }
        uint8_t *to = out + first * 34;
        vf d = put_halves(to, 34, count, vf_div(vf_load(top), vf_set(127.0f)));
        vf_store(inverse, vf_inverse(d));
        for (int64_t b = 0; b < count; b++)
            for (int i = 0; i < 32; i += LANES) {
                vf q = vf_mul(vf_load(x + b * 32 + i), vf_set(inverse[b]));
                put_bytes(to + b * 34 + 2 + i, vf_clamp(vf_round(q), -127.0f, 127.0f));
            }
    }
    s->large |= !(vf_sum(strange) == 0.0f);
}

/* IQ4_NL: scale, nibbles that number the levels. */
static void encode_iq4_nl(source *s, uint8_t *out) {
    group g;
    for (int64_t first = 0; first < s->n_blocks; first += LANES) {
        load_group(&g, s, first, 32, 1);
        number_levels(&g, 32, put_halves(out + first * 18, 18, s->n_blocks - first, search_levels(32, g.x, g.w)));
        for (int lane = 0; lane < LANES && first + lane < s->n_blocks; lane++)
            put_nibbles(out + (first + lane) * 18 + 2, g.q + 32 * lane);
    }
}

#endif
