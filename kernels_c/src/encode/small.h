/* small.h: blocks of 32 with float16 scales: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, IQ4_NL. */
#ifndef GGFW_ENCODE_SMALL_H
#define GGFW_ENCODE_SMALL_H

#include "lanes.h"
#include "levels.h"

/* Nibbles: element j low, element j + 16 high; returns the fifth bits. */
static uint32_t put_nibbles(uint8_t *to, const uint8_t *q) {
    uint32_t fifth = 0;
    for (int j = 0; j < 16; j++) to[j] = (uint8_t)((q[j] & 15) | (q[j + 16] & 15) << 4);
    for (int j = 0; j < 32; j++) fifth |= (uint32_t)(q[j] >> 4 & 1) << j;
    return fifth;
}

static void put_fifth(uint8_t *to, uint32_t fifth) {
    for (int i = 0; i < 4; i++) to[i] = (uint8_t)(fifth >> 8 * i);
}

/* Q4_0 and Q5_0 (high = 7 or 15): scale, [fifth bits,] nibbles. */
static void encode_scaled(const source *s, float high, uint8_t *out) {
    int fifth = high > 7.5f, size = fifth ? 22 : 18;
    float low = -high - 1.0f;
    group g;
    for (int64_t first = 0; first < s->n_blocks; first += LANES) {
        load_group(&g, s, first, 32, 1);
        float d[LANES];
        vf_store(d, search_scale(32, g.x, g.w, low, high));
        for (int lane = 0; lane < LANES && first + lane < s->n_blocks; lane++)
            d[lane] = put_half(out + (first + lane) * size, d[lane]);
        round_group(&g, 32, vf_load(d), vf_zero(), low, high);
        for (int lane = 0; lane < LANES && first + lane < s->n_blocks; lane++) {
            uint8_t *to = out + (first + lane) * size;
            uint32_t bits = put_nibbles(to + (fifth ? 6 : 2), g.q[lane]);
            if (fifth) put_fifth(to + 2, bits);
        }
    }
}

/* Q4_1 and Q5_1 (high = 15 or 31): scale, offset, [fifth bits,] nibbles. */
static void encode_offset(const source *s, float high, uint8_t *out) {
    int fifth = high > 15.5f, size = fifth ? 24 : 20;
    group g;
    for (int64_t first = 0; first < s->n_blocks; first += LANES) {
        load_group(&g, s, first, 32, 1);
        vf scale, offset;
        search_affine(32, g.x, g.w, high, 0, &scale, &offset);
        float d[LANES], m[LANES];
        vf_store(d, scale);
        vf_store(m, offset);
        for (int lane = 0; lane < LANES && first + lane < s->n_blocks; lane++) {
            uint8_t *to = out + (first + lane) * size;
            d[lane] = put_half(to, d[lane]);
            m[lane] = put_half(to + 2, m[lane]);
        }
        round_group(&g, 32, vf_load(d), vf_load(m), 0.0f, high);
        for (int lane = 0; lane < LANES && first + lane < s->n_blocks; lane++) {
            uint8_t *to = out + (first + lane) * size;
            uint32_t bits = put_nibbles(to + (fifth ? 8 : 4), g.q[lane]);
            if (fifth) put_fifth(to + 4, bits);
        }
    }
}

/* Q8_0: scale, 32 int8. With 255 levels nothing is gained by a search. */
static void encode_q8_0(const source *s, uint8_t *out) {
    for (int64_t b = 0; b < s->n_blocks; b++, out += 34) {
        const float *x = s->x + b * 32;
        float top = 0.0f;
        for (int i = 0; i < 32; i++) top = fabsf(x[i]) > top ? fabsf(x[i]) : top;
        float d = put_half(out, top / 127.0f), inverse = d > 0.0f ? 1.0f / d : 0.0f;
        for (int i = 0; i < 32; i++) {
            float q = x[i] * inverse;
            out[2 + i] = (uint8_t)(int8_t)rintf(q < -127.0f ? -127.0f : q > 127.0f ? 127.0f : q);
        }
    }
}

/* IQ4_NL: scale, nibbles that number the levels. */
static void encode_iq4_nl(const source *s, uint8_t *out) {
    group g;
    for (int64_t first = 0; first < s->n_blocks; first += LANES) {
        load_group(&g, s, first, 32, 1);
        float d[LANES];
        vf_store(d, search_levels(32, g.x, g.w));
        for (int lane = 0; lane < LANES && first + lane < s->n_blocks; lane++)
            d[lane] = put_half(out + (first + lane) * 18, d[lane]);
        number_levels(&g, 32, vf_load(d));
        for (int lane = 0; lane < LANES && first + lane < s->n_blocks; lane++)
            put_nibbles(out + (first + lane) * 18 + 2, g.q[lane]);
    }
}

#endif
