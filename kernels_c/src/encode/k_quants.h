/* k_quants.h: the layouts of ggml's block_q2_K ... block_q6_K and block_iq4_xs around the searches of super.h. */
#ifndef GGFW_ENCODE_K_QUANTS_H
#define GGFW_ENCODE_K_QUANTS_H

#include "super.h"

/* Elements 0 ... 255 as 2-bit planes: byte l of half h holds elements l, l + 32, l + 64, l + 96 of it. */
VF_INLINE void put_planes(uint8_t *restrict to, const uint8_t *restrict q, int shift) {
    for (int half = 0; half < 2; half++)
        for (int l = 0; l < 32; l++) {
            int byte = 0;
            for (int plane = 0; plane < 4; plane++)
                byte |= (q[128 * half + 32 * plane + l] >> shift & 3) << 2 * plane;
            to[32 * half + l] = (uint8_t)byte;
        }
}

/* Eight scales and eight minima of 6 bits in 12 bytes (get_scale_min_k4). */
static void put_six_bits(uint8_t *to, const float *scale, const float *low) {
    memset(to, 0, 12);
    for (int j = 0; j < 8; j++) {
        int s = (int)scale[j], m = (int)low[j];
        if (j < 4) {
            to[j] |= (uint8_t)s;
            to[j + 4] |= (uint8_t)m;
        } else {
            to[j + 4] |= (uint8_t)((s & 15) | (m & 15) << 4);
            to[j - 4] |= (uint8_t)(s >> 4 << 6);
            to[j] |= (uint8_t)(m >> 4 << 6);
        }
    }
}

static void round_affine(group *g, int n, const affine *a, float high) {
    vf d = vf_mul(vf_load(a->own), vf_load(a->scale)), m = vf_mul(vf_load(a->own_low), vf_load(a->low));
    round_group(g, n, d, vf_sub(vf_zero(), m), 0.0f, high);
}

static void encode_q2_k(source *s, uint8_t *out) { /* 16 scale bytes, 64 of planes, d, dmin */
    group g;
    affine a;
    for (int64_t first = 0; first < s->n_blocks; first += LANES, out += 84) {
        load_group(&g, s, first, 16, LANES);
        search_affine_super(16, &g, 3.0f, 15.0f, &a);
        round_affine(&g, 16, &a, 3.0f);
        for (int j = 0; j < 16; j++) out[j] = (uint8_t)((int)a.scale[j] | (int)a.low[j] << 4);
        put_planes(out + 16, g.q, 0);
        put_half(out + 80, a.own[0]);
        put_half(out + 82, a.own_low[0]);
    }
}

/* Q4_K and Q5_K: d, dmin, 12 bytes of scales, [32 of fifth bits,] 128 of nibbles. */
static void encode_q45_k(source *s, int fifth, uint8_t *out) {
    float high = fifth ? 31.0f : 15.0f;
    group g;
    affine a;
    for (int64_t first = 0; first < s->n_blocks; first += LANES) {
        load_group(&g, s, first, 32, 8);
        search_affine_super(32, &g, high, 63.0f, &a);
        round_affine(&g, 32, &a, high);
        for (int lane = 0; lane < LANES && first + lane < s->n_blocks; lane += 8) {
            const uint8_t *q = g.q + 32 * lane;
            put_half(out, a.own[lane]);
            put_half(out + 2, a.own_low[lane]);
            put_six_bits(out + 4, a.scale + lane, a.low + lane);
            out += 16;
            if (fifth) {
                memset(out, 0, 32);
                for (int e = 0; e < SUPER; e++)
                    out[e % 32] |= (uint8_t)((q[e] >> 4 & 1) << e / 32);
                out += 32;
            }
            for (int pair = 0; pair < 4; pair++, out += 32)
                for (int l = 0; l < 32; l++)
                    out[l] = (uint8_t)((q[64 * pair + l] & 15) |
                                       (q[64 * pair + 32 + l] & 15) << 4);
        }
    }
}

static void encode_q3_k(source *s, uint8_t *out) { /* 32 bytes of high bits, 64 of planes, 12 of scales, d */
    static const signed_form form = {.low = -4, .high = 3, .scale_low = -32, .scale_high = 31};
    group g;
    float own[LANES], scale[LANES];
    for (int64_t first = 0; first < s->n_blocks; first += LANES, out += 110) {
        load_group(&g, s, first, 16, LANES);
        search_signed(&form, 16, &g, own, scale);
        round_group(&g, 16, vf_mul(vf_load(own), vf_load(scale)), vf_zero(), form.low, form.high);
        memset(out, 0, 32);
        for (int e = 0; e < SUPER; e++) out[e % 32] |= (uint8_t)((g.q[e] >> 2) << e / 32);
        put_planes(out + 32, g.q, 0);
        memset(out + 96, 0, 12);
        for (int j = 0; j < 16; j++) {
            int l = (int)scale[j] + 32;
            out[96 + j % 8] |= (uint8_t)((l & 15) << 4 * (j / 8));
            out[104 + j % 4] |= (uint8_t)((l >> 4) << 2 * (j / 4));
        }
        put_half(out + 108, own[0]);
    }
}

static void encode_q6_k(source *s, uint8_t *out) { /* 128 bytes of nibbles, 64 of planes, 16 scales, d */
    static const signed_form form = {.low = -32, .high = 31, .scale_low = -128, .scale_high = 127};
    group g;
    float own[LANES], scale[LANES];
    for (int64_t first = 0; first < s->n_blocks; first += LANES, out += 210) {
        load_group(&g, s, first, 16, LANES);
        search_signed(&form, 16, &g, own, scale);
        round_group(&g, 16, vf_mul(vf_load(own), vf_load(scale)), vf_zero(), form.low, form.high);
        for (int half = 0; half < 2; half++)
            for (int l = 0; l < 64; l++)
                out[64 * half + l] = (uint8_t)((g.q[128 * half + l] & 15) |
                                               (g.q[128 * half + 64 + l] & 15) << 4);
        put_planes(out + 128, g.q, 4);
        for (int j = 0; j < 16; j++) out[192 + j] = (uint8_t)(int8_t)scale[j];
        put_half(out + 208, own[0]);
    }
}

static void encode_iq4_xs(source *s, uint8_t *out) { /* d, high bits of scales, low bits, 128 of nibbles */
    static const signed_form form = {.levels = 1, .scale_low = -32, .scale_high = 31};
    group g;
    float own[LANES], scale[LANES];
    for (int64_t first = 0; first < s->n_blocks; first += LANES) {
        load_group(&g, s, first, 32, 8);
        search_signed(&form, 32, &g, own, scale);
        number_levels(&g, 32, vf_mul(vf_load(own), vf_load(scale)));
        for (int lane = 0; lane < LANES && first + lane < s->n_blocks; lane += 8, out += 136) {
            const uint8_t *q = g.q + 32 * lane;
            put_half(out, own[lane]);
            memset(out + 2, 0, 6);
            for (int j = 0; j < 8; j++) {
                int l = (int)scale[lane + j] + 32;
                out[2 + j / 4] |= (uint8_t)((l >> 4) << 2 * (j % 4));
                out[4 + j / 2] |= (uint8_t)((l & 15) << 4 * (j % 2));
                for (int i = 0; i < 16; i++)
                    out[8 + 16 * j + i] = (uint8_t)(q[32 * j + i] | q[32 * j + i + 16] << 4);
            }
        }
    }
}

#endif
