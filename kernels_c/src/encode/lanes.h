/* lanes.h: floats into lanes, weights of columns, integers out of lanes. */
#ifndef GGFW_ENCODE_LANES_H
#define GGFW_ENCODE_LANES_H

#include "search.h"

/* 16 blocks of n floats each, the weight of every element, and the integers that stand for them. */
typedef struct group {
    vf x[MAX_BLOCK], w[MAX_BLOCK];
    uint8_t q[LANES * MAX_BLOCK]; /* block after block, without gaps */
} group;

/* What is encoded: where block b of n elements starts, its columns' importance, and whether values were met that the
 * scales may not reach (see LARGE). */
typedef struct source {
    const float *x, *importance; /* importance may be NULL */
    int64_t n_blocks, blocks_per_row;
    int large;
} source;

/* A quarter of the largest float16: scales and offsets of smaller values stay finite, whatever the search makes. */
#define LARGE 16376.0f
#define HALF_MAX 65504.0f

/* Load 16 blocks of n elements from block `first` on; lanes past the end are zero. `share`: neighbouring blocks whose
 * common root mean square sets the floor of the weights: without it a block's small elements would count for nothing. */
static void load_group(group *g, source *s, int64_t first, int n, int share) {
    float padded[LANES * MAX_BLOCK], square[LANES], mean[LANES], root[LANES];
    const float *from = s->x + first * n;
    if (first + LANES > s->n_blocks) {
        memset(padded, 0, sizeof padded);
        memcpy(padded, from, (size_t)((s->n_blocks - first) * n) * sizeof *padded);
        from = padded;
    }
    for (int i = 0; i < n; i += LANES) { /* n is 16 or 32 */
        for (int lane = 0; lane < LANES; lane++) g->x[i + lane] = vf_load(from + lane * n + i);
        vf_transpose16(g->x + i);
    }
    vf squares = vf_zero();
    for (int i = 0; i < n; i++) squares = vf_fma(g->x[i], g->x[i], squares);
    vf unlike = vf_select(vf_less(squares, vf_set(LARGE * LARGE)), vf_zero(), vf_set(1.0f)); /* 1 also for NaN */
    s->large |= vf_sum(unlike) > 0.0f;
    vf_store(square, squares);
    for (int lane = 0; lane < LANES; lane++) {
        float sum = 0.0f;
        int begin = lane / share * share;
        for (int other = begin; other < begin + share; other++) sum += square[other];
        mean[lane] = sum / (float)(n * share);
        root[lane] = sqrtf(mean[lane]);
    }
    if (!s->importance) {
        vf roots = vf_load(root);
        for (int i = 0; i < n; i++) g->w[i] = vf_add(roots, vf_abs(g->x[i]));
        return;
    }
    for (int i = 0; i < n; i++) {
        float w[LANES];
        for (int lane = 0; lane < LANES; lane++) {
            const float *importance = s->importance + (first + lane) % s->blocks_per_row * n;
            w[lane] = importance[i] * sqrtf(mean[lane] + from[lane * n + i] * from[lane * n + i]);
        }
        g->w[i] = vf_load(w);
    }
}

/* 16 integers as bytes, modulo 256. A float between 2^23 and 2^24 has its units in the lowest bits: there they are read,
 * without converting one by one. */
VF_INLINE void put_bytes(uint8_t *to, vf integers) {
    float shifted[LANES];
    uint32_t bits[LANES];
    vf_store(shifted, vf_add(integers, vf_set(12582912.0f))); /* 1.5 x 2^23 */
    memcpy(bits, shifted, sizeof bits);
    for (int i = 0; i < LANES; i++) to[i] = (uint8_t)bits[i];
}

/* Round to integers low ... high with scale d and offset m per lane, and keep them less `low`, so from 0 on. */
VF_INLINE void round_group(group *g, int n, vf d, vf m, float low, float high) {
    vf inverse = vf_inverse(d), zero = vf_set(low), q[LANES];
    for (int i = 0; i < n; i += LANES) {
        for (int j = 0; j < LANES; j++) {
            vf exact = vf_mul(vf_sub(g->x[i + j], m), inverse);
            q[j] = vf_sub(vf_clamp(vf_round(exact), low, high), zero);
        }
        vf_transpose16(q);
        for (int lane = 0; lane < LANES; lane++) put_bytes(g->q + lane * n + i, q[lane]);
    }
}

/* One float16 per lane as bytes, and the floats they stand for; lanes from `count` on are not written. */
VF_INLINE vf put_halves(uint8_t *to, int64_t stride, int64_t count, vf values) {
    uint16_t halves[LANES];
    vf_store_f16(halves, values);
    for (int lane = 0; lane < LANES && lane < count; lane++) memcpy(to + lane * stride, halves + lane, 2);
    return vf_load_f16(halves);
}

/* A float16 as bytes, and the float it stands for. */
VF_INLINE float put_half(uint8_t *to, float value) {
    uint16_t half[16] = {0};
    float all[16] = {value};
    vf_store_f16(half, vf_load(all));
    memcpy(to, half, 2);
    vf_store(all, vf_load_f16(half));
    return all[0];
}

#endif
