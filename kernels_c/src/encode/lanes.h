/* lanes.h: floats into lanes, weights of columns, integers out of lanes. */
#ifndef GGFW_ENCODE_LANES_H
#define GGFW_ENCODE_LANES_H

#include "search.h"

/* 16 blocks of n floats each, the weight of every element, and the integers that stand for them. */
typedef struct group {
    vf x[MAX_BLOCK], w[MAX_BLOCK];
    uint8_t q[LANES][MAX_BLOCK];
} group;

/* What is encoded: where block b of n elements starts, and its columns' importance. */
typedef struct source {
    const float *x, *importance; /* importance may be NULL */
    int64_t n_blocks, blocks_per_row;
} source;

/* Load 16 blocks of n elements from block `first` on; lanes past the end are zero. `share`: neighbouring blocks whose
 * common root mean square sets the floor of the weights: without it a block's small elements would count for nothing. */
static void load_group(group *g, const source *s, int64_t first, int n, int share) {
    float x[MAX_BLOCK][LANES], square[LANES], mean[LANES], root[LANES];
    for (int lane = 0; lane < LANES; lane++) {
        const float *from = s->x + (first + lane) * n;
        if (first + lane < s->n_blocks)
            for (int i = 0; i < n; i++) x[i][lane] = from[i];
        else
            for (int i = 0; i < n; i++) x[i][lane] = 0.0f;
    }
    vf squares = vf_zero();
    for (int i = 0; i < n; i++) {
        g->x[i] = vf_load(x[i]);
        squares = vf_fma(g->x[i], g->x[i], squares);
    }
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
            w[lane] = importance[i] * sqrtf(mean[lane] + x[i][lane] * x[i][lane]);
        }
        g->w[i] = vf_load(w);
    }
}

/* Round to integers low ... high with scale d and offset m per lane, and keep them less `low`, so from 0 on. A float of
 * 2^23 and more has its units in the lowest bits: there the integers are read, without converting one by one. */
static void round_group(group *g, int n, vf d, vf m, float low, float high) {
    vf inverse = vf_inverse(d), to_bits = vf_set(8388608.0f - low);
    uint32_t q[MAX_BLOCK][LANES];
    for (int i = 0; i < n; i++) {
        float bits[LANES];
        vf_store(bits, vf_add(vf_clamp(vf_round(vf_mul(vf_sub(g->x[i], m), inverse)), low, high), to_bits));
        memcpy(q[i], bits, sizeof bits);
    }
    for (int lane = 0; lane < LANES; lane++)
        for (int i = 0; i < n; i++) g->q[lane][i] = (uint8_t)q[i][lane];
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
